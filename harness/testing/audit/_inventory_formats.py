"""Write an inventory down: as text, as JSON, and as a Markdown table for a review."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Literal, TypeAlias

import attrs

from harness.testing.audit._inventory import STANDINGS, State, Use

InventoryFormat: TypeAlias = Literal["text", "json", "markdown"]


def inventory_report(states: Sequence[State], format: InventoryFormat) -> str:
    """Return an inventory in a format; ends with a line break.

    Args:
      states: The pieces of state.
      format: ``"text"``, ``"json"`` or ``"markdown"``.

    Raises:
      ValueError: if ``format`` is none of these.
    """
    if format == "text":
        return _text(states)
    if format == "json":
        value = {"state": [attrs.asdict(state) for state in states]}
        return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    if format == "markdown":
        return _markdown(states)
    raise ValueError(f"format={format!r} is not one of 'text', 'json', 'markdown'")


def _text(states: Sequence[State]) -> str:
    if not states:
        return "no state outlives a call\n"
    lines: list[str] = []
    for standing in STANDINGS:
        own = [state for state in states if state.standing == standing]
        if own:
            lines.append(f"{standing} ({len(own):,})")
        for state in own:
            lines.append(
                f"  {state.path}:{state.line}: {state.symbol} ({state.kind}): {state.reason}"
            )
            if state.written_by:
                lines.append(f"    written by {_named(state.written_by)}")
            if state.read_by:
                lines.append(f"    read by {_named(state.read_by)}")
    return "\n".join([*lines, "", _counts(states)]) + "\n"


def _counts(states: Sequence[State]) -> str:
    counts = Counter(state.standing for state in states)
    parts = [f"{counts[standing]:,} {standing}" for standing in STANDINGS if counts[standing]]
    pieces = "piece" if len(states) == 1 else "pieces"
    return f"{len(states):,} {pieces} of state: {', '.join(parts)}"


def _named(uses: Sequence[Use]) -> str:
    return ", ".join(f"{use.function} (line {use.line})" for use in uses)


def _markdown(states: Sequence[State]) -> str:
    lines = [
        "| state | declared | kind | standing | written by | read by |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for standing in STANDINGS:
        for state in states:
            if state.standing == standing:
                cells = [
                    f"`{state.symbol}`",
                    f"{state.path}:{state.line}",
                    state.kind,
                    f"{state.standing}: {state.reason}",
                    ", ".join(f"`{use.function}`" for use in state.written_by) or "–",
                    ", ".join(f"`{use.function}`" for use in state.read_by) or "–",
                ]
                cells = [cell.replace("|", "\\|") for cell in cells]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
