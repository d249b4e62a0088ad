"""Tell a journal from other files, by its first bytes, or by its address."""

from __future__ import annotations

import os

_SQLITE = b"SQLite format 3\x00"


def is_journal(source: str | os.PathLike[str]) -> bool:
    """Return whether ``source`` is a journal: a file of SQLite, or the address of a database."""
    path = os.fspath(source)
    if path.startswith(("postgresql://", "postgres://")):
        return True
    try:
        with open(path, "rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False  # Whoever reads it says what is wrong with it.
