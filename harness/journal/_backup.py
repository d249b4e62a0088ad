"""Copy a whole journal, even while a batch writes to it.

Any other way of copying has to take the file and its WAL at the same moment. SQLite's own copying
sees one state of both, and doesn't hold up writers.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from harness.errors import JournalError
from harness.journal._open import open_for_reading
from harness.journal._sqlite import MARK, SqliteBackend

BESIDE = ("", "-wal", "-journal", "-lock")
"""Files a journal of that name would have; ``-shm`` means nothing without a WAL."""


def backup_journal(source: str | os.PathLike[str], output: str | os.PathLike[str]) -> int:
    """Copy a journal file to a new one, as of one moment, even while a batch writes to it.

    The copy is complete in one file. It appears under its name once it is on disk.

    Args:
      source: The journal's file.
      output: The file to create. Nothing may have that name.

    Returns:
      How large the copy is, in bytes.

    Raises:
      JournalMissingError: if there is no journal ``source``.
      JournalFormatError: if it is no journal, or damaged.
      JournalError: if ``output`` already exists or can't be written, or ``source`` is on a server.
    """
    copy = Path(os.path.abspath(output))
    _refuse_existing(copy)
    with closing(open_for_reading(os.fspath(source))) as backend:
        if not isinstance(backend, SqliteBackend):
            raise JournalError(
                f"the journal {backend.name!r} is on a server, which makes its own copies; use "
                "`pg_dump` or what backs up the server"
            )
        part = copy.with_name(f"{copy.name}.{os.getpid()}.part")
        try:
            # Created here with the source's permissions: its content isn't for everybody.
            mode = os.stat(source).st_mode & 0o777
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        except OSError as error:
            raise _cannot(copy, error.strerror) from error
        try:
            _copy(backend, part)
            _give_name(part, copy)
        except (OSError, sqlite3.Error) as error:
            raise _cannot(copy, error) from error
        finally:
            for ending in ("", "-wal", "-shm", "-journal"):
                with contextlib.suppress(OSError):
                    os.unlink(f"{part}{ending}")
    return copy.stat().st_size


def _copy(backend: SqliteBackend, part: Path) -> None:
    # Not synced page by page: it has no name yet, and is synced once as a whole.
    address = f"file:{quote(str(part))}?mode=rw"
    with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        backend.copy_to(connection)
        connection.execute("DELETE FROM harness_meta WHERE name = ?", (MARK,))
    with open(part, "rb+") as file:
        os.fsync(file.fileno())


def _give_name(part: Path, copy: Path) -> None:
    """Move the file, never over another one."""
    _refuse_existing(copy)
    try:
        os.link(part, copy)  # Fails if one exists by now; renaming wouldn't everywhere.
    except FileExistsError:
        _refuse_existing(copy)
        raise
    except OSError:  # No hard links on that disk.
        os.rename(part, copy)
    with contextlib.suppress(OSError):  # Not every system can open a folder.
        folder = os.open(copy.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _refuse_existing(copy: Path) -> None:
    for ending in BESIDE:
        if os.path.lexists(f"{copy}{ending}"):
            raise JournalError(
                f"{f'{copy}{ending}'!r} already exists, and a copy of a journal never overwrites "
                "anything; give it another name"
            )


def _cannot(copy: Path, why: object) -> JournalError:
    return JournalError(
        f"the copy {str(copy)!r} can't be written ({why}); nothing is left of it, and the journal "
        "is as it was"
    )
