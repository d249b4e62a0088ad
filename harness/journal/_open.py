"""Choose the database for a path or an address, and open it."""

from __future__ import annotations

import re
from collections.abc import Callable

from harness.journal import _postgres
from harness.journal._backend import Backend
from harness.journal._leases import Leases
from harness.journal._owner import Owner
from harness.journal._sqlite import SqliteBackend

_SERVER = re.compile(r"postgres(ql)?://")
_ADDRESS = re.compile(r"[A-Za-z][\w+.-]*://")


def open_for_writing(path: str, owner: Owner, lease_seconds: float | None = None) -> Backend:
    """Open a journal for writing, and create it if there is none.

    Args:
      path: The file or address.
      owner: Who opens it.
      lease_seconds: To share it with other processes, how long items are leased; only on a server.
    """
    leases = None if lease_seconds is None else Leases(owner, lease_seconds)
    return _opened(path, lambda backend: backend.open(owner), leases)


def open_for_reading(path: str) -> Backend:
    """Open a journal for reading, even while another process writes to it."""
    return _opened(path, lambda backend: backend.open_read_only())


def check_path(path: str) -> None:
    """Refuse an address that is neither a path nor a database that could hold a journal.

    Raises:
      ValueError: if it is one.
    """
    address = _ADDRESS.match(path)
    if address and not _SERVER.match(path):
        # Quote no more of it: what follows may be a password.
        raise ValueError(
            f"no journal can be opened at {address[0]}...; give the path of a file, or "
            "postgresql://... for a database on a server"
        )


def is_on_server(path: str) -> bool:
    """Return whether this is the address of a server's database."""
    return _SERVER.match(path) is not None


def _opened(path: str, open_it: Callable[[Backend], None], leases: Leases | None = None) -> Backend:
    check_path(path)
    server = is_on_server(path)
    backend: Backend = _postgres.PostgresBackend(path, leases) if server else SqliteBackend(path)
    try:
        open_it(backend)
    except BaseException:
        backend.close()
        raise
    return backend
