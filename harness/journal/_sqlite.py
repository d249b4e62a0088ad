"""A journal in an SQLite file.

In WAL mode, so others read while one writes, and a commit is one append and one sync; with
``synchronous=FULL`` that sync comes before the commit returns, so a commit survives a power loss
if the disk keeps its word.

The newest records are in the WAL beside the file, so a copy of the file alone lacks them. To make
this noticeable, whoever opens the journal for writing leaves a mark in the file itself before
anything is acknowledged, and removes it when closing: a file with the mark but no WAL is
incomplete.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from harness.errors import (
    JournalError,
    JournalFormatError,
    JournalLockedError,
    JournalMissingError,
)
from harness.journal import _group, _schema
from harness.journal._backend import Backend, Row, Rows
from harness.journal._lock import FileLock, is_locked
from harness.journal._owner import Owner, words_for
from harness.journal._wal import GROWN_AFTER_COMMITS, grow_wal

CHECKED_BYTES_AT_MOST = 1 << 28
"""A file up to this size, a million items, has all its pages checked before it is written to, which
takes a second. Damage in a larger one is found when it is read."""

BUSY_SECONDS = 10.0
"""How long to wait for another program that holds SQLite's own lock, such as its shell."""

SYNCHRONOUS = "FULL"
"""Every commit is synced. The tests, which can't cut the power, do without."""

MARK = "open"
"""The row of ``harness_meta`` that says the file isn't complete without its WAL."""

MARK_SECONDS = 1.0
"""How long to wait for readers to get the mark into the file. One that reads on, perhaps for hours,
must not keep a batch from starting; then every commit tries again."""

CACHE_KIB = 16_384
"""Memory for the pages of the file."""

PAGES_PER_CHECKPOINT = 1_000
"""Pages of 4 KiB in the WAL before they are copied into the file, which takes some milliseconds.
Then the WAL is overwritten from its start, so a larger number would only make it larger."""


class SqliteBackend(Backend):
    """One connection to a journal file."""

    types = MappingProxyType({"integer": "INTEGER", "real": "REAL", "blob": "BLOB"})
    # Takes the single writer's lock at once, so that the token can't change after it is read.
    begin_statement = "BEGIN IMMEDIATE"
    token_query = "SELECT value FROM harness_meta WHERE name = 'owner'"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(os.fspath(path))
        # An agent may change the working directory.
        self._path = os.path.abspath(path)
        try:
            self._path.encode()
        except UnicodeEncodeError:
            raise JournalError(
                f"the path {self._path!r} isn't UTF-8, and SQLite takes nothing else; "
                "give the journal another name or folder"
            ) from None
        self._lock: FileLock | None = None
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        """The identity of the file, whatever its name leads to now."""
        self._wal: tuple[int, int] | None = None
        """The same for its WAL."""
        self._is_marked = False
        """Whether the mark has come from the WAL into the file."""
        self._unchanged: tuple[int, ...] | None = None
        """What the file must look like while it is read without SQLite's locks."""
        self._commits = 0

    def open(self, owner: Owner) -> None:
        """Open for writing, and create the file if there is none; close it even if this fails.

        Raises:
          JournalError: if that is not possible; nothing has changed then.
        """
        self._check_kind()
        self._lock = FileLock(self.name, owner)
        self._check_names()
        self._check_for_wal()
        self._check_for_damage()
        # Made by hand, not by SQLite: only an empty file may be turned into a journal.
        self._connect("mode=rw" if self._exists() else "mode=rwc")
        self.check_version(self.version(), migrates=True)
        with self.translating():
            self.execute("PRAGMA journal_mode=WAL")
            self.execute(f"PRAGMA synchronous={SYNCHRONOUS}")
            self.execute(f"PRAGMA wal_autocheckpoint={PAGES_PER_CHECKPOINT}")
        self._file = _identity(self._path)
        self._put_mark(owner)
        self._wal = _identity(f"{self._path}-wal")
        for statement in _group.SETUP:
            self.execute(statement)

    def open_read_only(self) -> None:
        """Open for reading, even while another process writes; close it even if this fails.

        Raises:
          JournalError: if there is no journal to read.
        """
        if not self._exists():
            raise JournalMissingError(
                f"there is no journal {self.name!r}; give the file that a batch was recorded in"
            )
        self._check_kind()
        self._check_for_wal()
        try:
            self._connect("mode=ro")
            version = self.version()
        except JournalError as error:
            if not self._can_be_read_as_it_is(error):
                raise
            version = self.version()
        self.check_version(version, migrates=False)

    def _can_be_read_as_it_is(self, error: JournalError) -> bool:
        """Open the file as one that nobody writes to, if that is so; return whether it is.

        To read from a WAL, or to make sure there is none, SQLite writes beside the file. Where it
        may not, as in another user's folder or on a read-only disk, a closed file can still be
        read. SQLite doesn't look for changes then, so we have to.
        """
        cause = error.__cause__
        code = getattr(cause, "sqlite_errorname", None) or ""
        if not code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
            return False
        self._disconnect()
        if os.path.exists(f"{self._path}-wal"):
            raise JournalError(
                f"the journal {self.name!r} can't be read without writing beside it ({cause}), "
                "since its newest records are in its -wal; allow this user to write in its folder, "
                "or copy both files into one where they may"
            ) from error
        unchanged = _looks(self._path)
        if is_locked(self._path):
            return False
        self._connect("mode=ro&immutable=1")
        self._unchanged = unchanged
        return True

    def _check_unchanged(self) -> None:
        if self._unchanged is None:
            return
        if _looks(self._path) != self._unchanged or os.path.exists(f"{self._path}-wal"):
            raise JournalLockedError(
                f"the journal {self.name!r} was opened for writing while it was read, from a "
                "folder in which this user can't write, so what was read may be neither old nor "
                "new; read it again once it is closed, or from a copy"
            )

    def fetch(self, query: str, arguments: Row = ()) -> list[Row]:
        """Return the rows of a query."""
        rows = super().fetch(query, arguments)
        self._check_unchanged()
        return rows

    def is_written(self) -> bool:
        """Return whether a process has it open for writing, as far as this user can tell."""
        return is_locked(self._path)

    def execute(self, statement: str, arguments: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Execute a statement, and return its cursor."""
        assert self._connection is not None
        return self._connection.execute(statement, arguments)

    def write(self, rows: Rows) -> None:
        """Append rows to tables, all or none, and return when they are durable.

        In one statement if possible, which is its own transaction. Each statement releases the GIL
        and has to get it back from trio's thread, which keeps it for milliseconds when busy; so
        what counts here isn't the work but how often it is interrupted.
        """
        assert self._owner is not None, "opened for reading"
        token = self._owner.text
        appends = _group.appends(rows, token)
        try:
            self._check_file()
            if len(appends) > 1:
                self.execute(self.begin_statement)
            for statement, values, count in appends:
                inserted = self.execute(statement, values).rowcount
                if count is not None and inserted != count:
                    left = self.execute(self.token_query).fetchone()
                    raise self.taken_over(left and left[0])
            if len(appends) > 1:
                self.commit()
        except sqlite3.IntegrityError as error:
            self.roll_back()
            left = self.execute(self.token_query).fetchone()
            if left is not None and left[0] == token:
                raise self.translate(error) from error
            raise self.taken_over(left and left[0]) from error
        except Exception as error:
            self.roll_back()
            raise self.translate(error) from error
        if not self._is_marked:
            self._move_mark(wait=False)
        self._commits += 1
        if self._commits == GROWN_AFTER_COMMITS:
            assert self._connection is not None
            grow_wal(self._connection, self._path, pages=PAGES_PER_CHECKPOINT)

    def stream(self, query: str, arguments: Row = ()) -> Iterator[Row]:
        """Yield the rows of a query, holding few of them in memory."""
        with self.translating():
            # Not ``yield from``: that closes the cursor of a reader who left early, and by then the
            # file is closed too.
            for row in self.execute(query, arguments):  # noqa: UP028
                yield row
            self._check_unchanged()

    def fill(self, index: sqlite3.Connection, insert: str, query: str, arguments: Row) -> None:
        """Insert the rows of a query into ``index``, without a detour through Python."""
        with self.translating():
            index.execute("ATTACH ? AS journal", (self._path,))
            try:
                index.execute(insert + query, arguments)
            finally:
                index.execute("DETACH journal")

    def copy_to(self, copy: sqlite3.Connection) -> None:
        """Copy everything as of now into an empty database; others may write meanwhile."""
        assert self._connection is not None
        with self.translating():
            # In one step: if somebody wrote between two, SQLite would start over.
            self._connection.backup(copy, pages=-1)
        self._check_unchanged()

    def vacuum(self) -> int:
        """Give the space of deleted rows back to the disk; return how many bytes that was."""
        before = os.path.getsize(self._path)
        self.change([])  # Checks for our token.
        with self.translating():
            self.execute("VACUUM")
            self.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return max(0, before - os.path.getsize(self._path))

    def version(self) -> int | None:
        """Return the version of the tables; 0 if there are none, None if they are foreign."""
        with self.translating():
            application = self.execute("PRAGMA application_id").fetchone()[0]
            version: int = self.execute("PRAGMA user_version").fetchone()[0]
            tables = self.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application == _schema.APPLICATION_ID:
            if version < 1:  # It is left together with the tables.
                raise self._damaged(f"its version reads {version}")
            return version
        return None if tables or application or version else 0

    def set_version(self, version: int) -> None:
        """Leave the version of the tables in the file's header."""
        self.execute(f"PRAGMA application_id={_schema.APPLICATION_ID}")
        self.execute(f"PRAGMA user_version={version}")

    def translate(self, error: Exception) -> Exception:
        """Return what an error of SQLite means for a journal."""
        if isinstance(error, UnicodeDecodeError):  # SQLite quotes what it can't read.
            return self._damaged("it has bytes in place of a text")
        if not isinstance(error, sqlite3.Error):
            return error
        code = getattr(error, "sqlite_errorname", "") or ""
        what = f"the journal {self.name!r}"
        kept = "what was acknowledged is kept"
        if code.startswith("SQLITE_NOTADB"):
            return JournalFormatError(
                f"{self.name!r} is not a journal or any other database ({error}); nothing was "
                "changed: give the journal a file of its own"
            )
        if "decode to UTF-8" in str(error):  # From Python's module, so without a code.
            return self._damaged("it has bytes in place of a text")
        # The second has no code of its own.
        if code.startswith("SQLITE_CORRUPT") or "unsupported file format" in str(error):
            return self._damaged(error)
        if code.startswith("SQLITE_FULL"):
            return JournalError(
                f"{what} can't grow: the disk is full ({error}); {kept}: make room, and resume"
            )
        if code.startswith(("SQLITE_READONLY", "SQLITE_PERM")):
            return JournalError(
                f"{what} can't be written to ({error}); allow this user to write to the file and "
                "its folder, or copy it elsewhere"
            )
        if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return JournalLockedError(
                f"{what} is held by another program for more than {BUSY_SECONDS:g} s ({error}; "
                f"the last to write was {self._last_owner()}); {kept}: close that program"
            )
        if code.startswith("SQLITE_CANTOPEN"):
            return JournalError(
                f"{what} can't be opened ({error}); check that its folder is there and that this "
                "user may write in it"
            )
        return JournalError(f"{what} failed: {error} ({code or type(error).__name__}); {kept}")

    def close(self) -> None:
        """Close the file, and give its lock back."""
        lock, self._lock = self._lock, None
        try:
            self._remove_mark()
            self._disconnect()
        finally:
            if lock is not None:
                lock.release()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        with self.translating():
            if connection is not None:
                connection.close()

    def begin(self) -> None:
        """Start a transaction that nobody else can write in, and check for our token.

        Raises:
          JournalLockedError: if another process has put its own there.
          JournalError: if the file was removed or replaced.
        """
        self._check_file()
        super().begin()

    def _check_file(self) -> None:
        """Refuse to go on in a file that nobody will find again. Takes a microsecond or two."""
        whose = "journal"
        if _identity(self._path) == self._file:
            if self._wal is None or _identity(f"{self._path}-wal") == self._wal:
                return
            whose = "-wal of the journal"
        raise JournalError(
            f"the {whose} {self.name!r} was removed or replaced while this process wrote to "
            "it; nothing more is recorded, since it would be lost: leave the file and those "
            "beside it alone while a batch runs"
        )

    def _put_mark(self, owner: Owner) -> None:
        """Leave our name in the tables and the mark in the file, before anything else."""
        self.prepare(owner)
        self.change(
            [
                ("DELETE FROM harness_meta WHERE name = ?", (MARK,)),
                ("INSERT INTO harness_meta VALUES (?, ?)", (MARK, owner.text)),
            ]
        )
        self._move_mark(wait=True)

    def _move_mark(self, *, wait: bool) -> None:
        with self.translating():
            if wait:
                self.execute(f"PRAGMA busy_timeout={int(MARK_SECONDS * 1e3)}")
            checkpoint = f"PRAGMA wal_checkpoint({'FULL' if wait else 'PASSIVE'})"
            busy, pages, moved = self.execute(checkpoint).fetchone()
            if wait:
                self.execute(f"PRAGMA busy_timeout={int(BUSY_SECONDS * 1e3)}")
        self._is_marked = not busy and pages == moved

    def _remove_mark(self) -> None:
        """Remove the mark, if the file is still ours; what is in the WAL follows on closing.

        Even if the WAL was removed: SQLite still has it open, and moves all of it into the file.
        """
        if self._owner is None or self._connection is None:
            return
        if _identity(self._path) != self._file:
            return
        # Whoever has opened it since has put their own mark there.
        remove = "DELETE FROM harness_meta WHERE name = ? AND value = ?"
        row = (MARK, self._owner.text)
        try:
            self.execute(remove, row)
        except sqlite3.Error:
            # On a full disk there is room again once the WAL is in the file. If that fails too, the
            # mark stays, and so does the WAL, as the mark says.
            with contextlib.suppress(sqlite3.Error):
                self.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                self.execute(remove, row)

    def _check_for_wal(self) -> None:
        """Refuse a file whose newest records were in a WAL that is missing.

        Raises:
          JournalError: if it is one.
        """
        wal = f"{self._path}-wal"
        if not self._exists() or os.path.exists(wal):
            return
        # As it is on disk: opened any other way, SQLite would create a WAL.
        try:
            self._connect("mode=ro&immutable=1")
            left = self.execute("SELECT value FROM harness_meta WHERE name = ?", (MARK,)).fetchone()
        except (sqlite3.Error, JournalError):
            return  # No journal, damaged, or being written to: the next to open it says which.
        finally:
            self._disconnect()
        # Somebody may have opened it for writing since we looked.
        if left is None or os.path.exists(wal):
            return
        raise JournalError(
            f"the journal {self.name!r} isn't complete: it was being written to by "
            f"{words_for(left[0])}, and its newest records are in {os.path.basename(wal)!r}, which "
            "isn't beside it. Bring both files from the same moment, or make copies with `harness "
            f"journal backup`. If that file is lost, or another program has put it into this one, "
            f"make an empty one (`touch {self.name}-wal`) to go on with what is here"
        )

    def _check_for_damage(self) -> None:
        """Refuse a damaged file before anything is written to it, not even our name.

        Raises:
          JournalFormatError: if it is damaged, or no database.
        """
        # A rollback journal beside it means that its creation was interrupted.
        if not self._exists() or os.path.exists(f"{self._path}-journal"):
            return
        if os.path.getsize(self._path) > CHECKED_BYTES_AT_MOST:
            return
        # For reading: else the last to close would move the WAL into the file.
        self._connect("mode=ro")
        try:
            found = self.fetch("PRAGMA quick_check(1)")[0][0]
        finally:
            self._disconnect()
        if found != "ok":
            raise self._damaged(found.splitlines()[-1])  # The lines above name the database.

    def _damaged(self, why: object) -> JournalFormatError:
        return JournalFormatError(
            f"the journal {self.name!r} is damaged ({why}); nothing was repaired or overwritten: "
            "keep a copy, and try `sqlite3 FILE .recover`"
        )

    def _check_kind(self) -> None:
        """Refuse a folder, a pipe or a device; SQLite would say little about it, or hang.

        Raises:
          JournalFormatError: if it is one.
        """
        if self._exists() and not os.path.isfile(self._path):
            what = "a folder" if os.path.isdir(self._path) else "no regular file"
            raise JournalFormatError(
                f"{self.name!r} is {what}, and a journal is a file; give it the name of one"
            )

    def _check_names(self) -> None:
        """Refuse a file with several names, each of which would have its own lock and WAL.

        Raises:
          JournalError: if it has several.
        """
        names = os.stat(self._path).st_nlink if self._exists() else 1
        if names > 1:
            raise JournalError(
                f"the journal {self.name!r} has {names} names in its file system (hard links), and "
                "whoever opens it by another one would write to it at the same time; remove the "
                "others, or make this one a copy"
            )

    def _exists(self) -> bool:
        return os.path.exists(self._path)

    def _connect(self, how: str) -> None:
        with self.translating():
            self._connection = sqlite3.connect(
                f"file:{quote(self._path)}?{how}",
                uri=True,
                timeout=BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            # Sorting while a batch is opened or shown goes to disk, not to memory.
            self._connection.execute("PRAGMA temp_store=FILE")
            self._connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")

    def _last_owner(self) -> str:
        try:
            return words_for(self.execute(self.token_query).fetchone()[0])
        except Exception:
            return words_for(None)


def _identity(path: str) -> tuple[int, int] | None:
    """Return the identity of a file, whatever its name; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _looks(path: str) -> tuple[int, ...]:
    """Return what changes when a file is written to or replaced."""
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
