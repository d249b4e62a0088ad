"""Lay out source code as formatters of Python do, so that they leave it as it is."""

from __future__ import annotations

import re
import textwrap

WIDTH = 88
"""How wide a line may be: what formatters take unless they are told otherwise."""

_PAIRS = {"(": ")", "[": "]", "{": "}"}


def fitted(line: str) -> list[str]:
    """Return a statement in lines that are not too wide, as far as its brackets allow."""
    opening = _last_pair(line) if len(line) > WIDTH else None
    if opening is None:
        return [line]
    indent = re.match(" *", line)[0] + " " * 4  # type: ignore[index]  # It always matches.
    closing = _closing(line, opening)
    inner, rest = line[opening + 1 : closing], indent[4:] + line[closing:]
    if not inner:
        return [line]
    if len(indent + inner) <= WIDTH:
        return [line[: opening + 1], indent + inner, rest]
    items = [f"{indent}{item.strip()}," for item in _items(inner)]
    return [line[: opening + 1], *(part for item in items for part in fitted(item)), rest]


def comment(text: str) -> list[str]:
    """Return a text as a comment."""
    return textwrap.wrap(
        text, WIDTH, initial_indent="# ", subsequent_indent="#   ", break_long_words=False
    )


def snake_case(name: str) -> str:
    """Return ``Agent.answerAll`` as ``agent_answer_all``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.replace(".", "_")).lower().strip("_")


def _last_pair(line: str) -> int | None:
    """Return where the last bracket opens that is in no other."""
    found, depth, quote = None, 0, ""
    for place, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote and line[place - 1] != "\\" else quote
        elif letter in "\"'":
            quote = letter
        elif letter in _PAIRS:
            found = place if depth == 0 else found
            depth += 1
        elif letter in _PAIRS.values():
            depth -= 1
    return found


def _closing(line: str, opening: int) -> int:
    return line.rindex(_PAIRS[line[opening]])


def _items(text: str) -> list[str]:
    """Return what commas separate that are in no bracket and no text."""
    items, depth, quote, begins = [], 0, "", 0
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote and text[place - 1] != "\\" else quote
        elif letter in "\"'":
            quote = letter
        elif letter in _PAIRS:
            depth += 1
        elif letter in _PAIRS.values():
            depth -= 1
        elif letter == "," and depth == 0:
            items.append(text[begins:place])
            begins = place + 1
    return [*items, text[begins:]]
