"""Choose the database for a path or an address, and open it."""

from __future__ import annotations

import re

from harness.journal import _postgres
from harness.journal._backend import Backend
from harness.journal._owner import Owner
from harness.journal._sqlite import SqliteBackend

_SERVER = re.compile(r"postgres(ql)?://")


def open_for_writing(path: str, owner: Owner) -> Backend:
    """Open a journal for writing, and make it if there is none."""
    backend = _backend(path)
    backend.open(owner)
    return backend


def open_for_reading(path: str) -> Backend:
    """Open a journal for reading, also while another process writes to it."""
    backend = _backend(path)
    backend.open_read_only()
    return backend


def _backend(path: str) -> Backend:
    if _SERVER.match(path):
        backend: Backend = _postgres.PostgresBackend(path)
        return backend
    return SqliteBackend(path)
