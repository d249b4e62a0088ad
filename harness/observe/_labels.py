"""Make somebody else's names fit to leave the program: as labels, attributes and names of spans."""

from __future__ import annotations

from functools import lru_cache

from harness._words import harmless

LABEL_AT_MOST = 200
"""How many characters of a name leave the program."""


@lru_cache(maxsize=4_096)
def clean(name: str) -> str:
    """Return a name that is short, can be encoded, has no control characters and no secret."""
    text = harmless(name[: 10 * LABEL_AT_MOST])
    return text if len(text) <= LABEL_AT_MOST else f"{text[:LABEL_AT_MOST]}..."
