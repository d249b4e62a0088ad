"""Draw the steps of a failing trial as a table with a column for each run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from harness.testing.isolation._findings import Findings, run_words, shortened
from harness.testing.isolation._watch import Step

ROWS_AT_MOST = 40
"""How many rows a table may have; rows in the middle are left out."""

CELL_AT_MOST = 56
"""How many characters a cell may have."""


def table(findings: Findings) -> list[str]:
    """Return the steps in order, with a column for each run."""
    members = list(dict.fromkeys(findings.trial.members))
    rows: list[tuple[str, int, str]] = []
    causes = findings.causes
    named = (*causes.candidates, *causes.raced)
    paths = {id(suspect): one.path for one in named for suspect in one.suspects}
    for step in findings.steps:
        rows.append((str(step.number), step.member, _cell(findings, step, paths)))
    if not rows:
        return []
    head = [shortened(run_words(findings, member), CELL_AT_MOST) for member in members]
    widths = [
        max(len(title), *(len(cell) for _, who, cell in rows if who == member), 0)
        if any(who == member for _, who, _ in rows)
        else len(title)
        for title, member in zip(head, members, strict=True)
    ]
    number_width = max(4, len(rows[-1][0]))
    lines = [_row("step".rjust(number_width), head, widths)]
    lines.append("-+-".join(["-" * number_width, *("-" * width for width in widths)]))
    shown: Iterable[tuple[str, int, str] | None] = rows
    if len(rows) > ROWS_AT_MOST:
        half = ROWS_AT_MOST // 2
        shown = [*rows[:half], None, *rows[-half:]]
    for row in shown:
        if row is None:
            lines.append(f"{'...'.rjust(number_width)} | {len(rows) - ROWS_AT_MOST} more steps")
            continue
        number, who, cell = row
        cells = [cell if member == who else "" for member in members]
        lines.append(_row(number.rjust(number_width), cells, widths))
    return [line.rstrip() for line in [*lines, ""]]


def _cell(findings: Findings, step: Step, paths: dict[int, str]) -> str:
    """Return what a step did to the guilty objects, or else where it stopped."""
    own = [a for a in findings.accesses if a.step == step.number and id(a.suspect) in paths]
    # A line that appends reads the list in order to write it: one mention is enough.
    written_at = {access.where for access in own if access.is_write}
    did: list[str] = []
    for access in own:
        if access.is_write or access.where not in written_at:
            verb = "writes" if access.is_write else "reads"
            name = paths[id(access.suspect)].partition(" (local of")[0].rpartition(".")[2]
            did.append(f"{verb} {name}")
    kept = [words for words, _ in groupby(did)]
    halt = step.waits_in.rpartition("(")[2].rstrip(")") if step.waits_in else "ends"
    return shortened(f"{', '.join(kept)}; {halt}" if kept else halt, CELL_AT_MOST)


def _row(number: str, cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    return " | ".join([number, *padded])
