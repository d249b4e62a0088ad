"""Read from a docstring what a tool is for, and what its parameters mean.

The model is told what the next developer is told, so nobody writes it twice. Google's sections
(``Args:``) and Sphinx's fields (``:param name:``) are understood; everything else is description.
"""

from __future__ import annotations

import inspect
import re

_ARGUMENTS = re.compile(r"(?:Args|Arguments|Parameters|Params):\s*$")
_FOR_CALLERS = re.compile(r"(?:Returns?|Raises|Yields?|Checkpoint|Cancellation):")
_ENTRY = re.compile(r"(?P<names>\w+(?:\s*,\s*\w+)*)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)$")
_FIELD = re.compile(
    r":(?:param|parameter|arg|argument)\s+(?:[^:]*\s)?(?P<name>\w+):\s*(?P<text>.*)$"
)
_OTHER_FIELD = re.compile(r":(?:returns?|rtype|raises?|type|yields?)\b[^:]*:")


def read_docstring(docstring: str | None) -> tuple[str, dict[str, str]]:
    """Return the description, and the text for each parameter that has one.

    Whatever only a Python caller needs, such as ``Returns:``, is left out.
    """
    description: list[str] = []
    texts: dict[str, str] = {}
    section = description
    lines = inspect.cleandoc(docstring or "").splitlines()
    arguments: list[str] = []
    skipped: list[str] = []
    for line in lines:
        if _ARGUMENTS.match(line):
            section = arguments
        elif _FOR_CALLERS.match(line) or _OTHER_FIELD.match(line):
            section = skipped
        elif field := _FIELD.match(line):
            texts[field["name"]] = field["text"].strip()
            section = skipped
        else:
            if line and not line[0].isspace():
                # Text at the margin ends a section and is description again.
                section = description
            section.append(line)
    texts.update(_entries(arguments))
    return "\n".join(description).strip(), texts


def _entries(lines: list[str]) -> dict[str, str]:
    """Return the text of each name in an ``Args:`` section."""
    found: dict[str, list[str]] = {}
    parts: list[str] = []
    margin: int | None = None
    for line in lines:
        text = line.strip()
        if not text:
            continue
        indent = len(line) - len(line.lstrip())
        margin = indent if margin is None else margin
        entry = _ENTRY.match(text) if indent <= margin else None
        if entry is None:
            parts.append(text)
            continue
        parts = [entry["text"]]
        found.update((name.strip(), parts) for name in entry["names"].split(","))
    return {name: " ".join(parts).strip() for name, parts in found.items()}
