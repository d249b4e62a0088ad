"""Read the files of the pages: HTML, style and scripts, which are in the package as they are."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def asset(name: str) -> str:
    """Return the text of one of the files in ``assets``."""
    return (Path(__file__).parent / "assets" / name).read_text(encoding="utf-8")
