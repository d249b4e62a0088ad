"""What a database does for a journal. Plain synchronous code, for one thread at a time.

Both databases share this: one transaction per group of records, the token checked in each, the
tables and their migrations. A database adds how it is opened, what its errors mean, and where its
dialect differs. Statements are written with ``?``.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, ClassVar, TypeVar

from harness.errors import JournalFormatError, JournalLockedError, JournalMissingError
from harness.journal import _schema
from harness.journal._leases import Leases
from harness.journal._owner import Owner, words_for

T = TypeVar("T")

Row = tuple[Any, ...]

Rows = Mapping[str, list[Any]]
"""Rows for tables: for each table the values, row after row. Not a tuple per row, since a hundred
thousand of those a second keep Python's garbage collector busy."""


class Backend(ABC):
    """An open journal file, or database on a server."""

    types: ClassVar[Mapping[str, str]]
    begin_statement: ClassVar[str]
    token_query: str

    def __init__(self, name: str) -> None:
        self.name: str = name
        """Its name in messages, without a password."""
        self._owner: Owner | None = None
        self.leases: Leases | None = None
        """What this session has leased, if it shares the journal with others."""

    # What a database adds ---------------------------------------------------------------------

    @abstractmethod
    def open(self, owner: Owner) -> None:
        """Open for writing, and create the journal if there is none; close it even if this fails.

        Raises:
          JournalError: if that is not possible; nothing has changed then.
        """

    @abstractmethod
    def open_read_only(self) -> None:
        """Open for reading, even while another process writes; close it even if this fails.

        Raises:
          JournalError: if there is no journal to read.
        """

    @abstractmethod
    def is_written(self) -> bool:
        """Return whether a process has it open for writing, as far as this user can tell."""

    @abstractmethod
    def write(self, rows: Rows) -> None:
        """Append rows to tables, all or none, and return when they are durable."""

    @abstractmethod
    def execute(self, statement: str, arguments: Sequence[Any] = ()) -> Any:
        """Execute a statement, and return a cursor; to change something, in a `transaction`."""

    @abstractmethod
    def stream(self, query: str, arguments: Row = ()) -> Iterator[Row]:
        """Yield the rows of a query, holding few of them in memory."""

    @abstractmethod
    def fill(self, index: sqlite3.Connection, insert: str, query: str, arguments: Row) -> None:
        """Insert the rows of a query into a table of the temporary database ``index``."""

    @abstractmethod
    def vacuum(self) -> int:
        """Give the space of deleted rows back to the disk; return how many bytes that was."""

    @abstractmethod
    def close(self) -> None:
        """Release what is held; a second call does nothing."""

    @abstractmethod
    def translate(self, error: Exception) -> Exception:
        """Return what a database's error means for a journal."""

    @abstractmethod
    def version(self) -> int | None:
        """Return the version of the tables; 0 if there are none, None if they are foreign."""

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Raise, in place of a database error, what it means for a journal."""
        try:
            yield
        except Exception as error:
            meant = self.translate(error)
            if meant is error:
                raise
            raise meant from error

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Roll back if the block raises; otherwise like `translating`."""
        with self.translating():
            try:
                yield
            except Exception:
                self.roll_back()
                raise

    def through(self, work: Callable[[], T]) -> T:
        """Do something with the connection."""
        return work()

    def alone(self) -> AbstractContextManager[None]:
        """Keep other sessions from opening or claiming anything in the block."""
        return nullcontext()

    # Transactions -----------------------------------------------------------------------------

    def change(self, changes: Sequence[tuple[str, Row]]) -> list[int]:
        """Execute statements, all or none, and return how many rows each of them changed."""
        return self.transaction(
            lambda: [self.execute(statement, row).rowcount for statement, row in changes]
        )

    def transaction(self, work: Callable[[], T]) -> T:
        """Do some work, all of it or nothing: what it changes is durable when this returns.

        Making the changes twice must have the same effect as making them once.
        """

        def once() -> T:
            self.begin()
            done = work()
            self.commit()
            return done

        with self.all_or_nothing():
            return self.through(once)

    def fetch(self, query: str, arguments: Row = ()) -> list[Row]:
        """Return the rows of a query."""
        with self.translating():
            rows: list[Row] = self.through(lambda: self.execute(query, arguments).fetchall())
            return rows

    def begin(self) -> None:
        """Start a transaction that nobody else can write in, and check for our token.

        Raises:
          JournalLockedError: if another process has put its own there.
        """
        self.execute(self.begin_statement)
        owner = self._owner
        assert owner is not None, "opened for reading"
        left = self.execute(self.token_query).fetchall()
        text = left[0][0] if left else None
        if text is None or owner.token not in text:
            raise self.taken_over(text)

    def taken_over(self, text: str | None) -> JournalLockedError:
        """Return the error for a foreign or missing token where ours should be."""
        return JournalLockedError(
            f"the journal {self.name!r} was taken over by {words_for(text)}, while this "
            f"process ({self._owner}) was stopped or its lock was removed; nothing more is "
            "recorded here, and what was acknowledged is kept"
        )

    def commit(self) -> None:
        """Make the transaction durable."""
        self.execute("COMMIT")

    def roll_back(self) -> None:
        """Undo the transaction, if there is one."""
        # There may be no transaction, or no database any more; the first error is what counts.
        with suppress(Exception):
            self.execute("ROLLBACK")

    # The tables -------------------------------------------------------------------------------

    def prepare(self, owner: Owner) -> None:
        """Create or migrate the tables if needed, and leave the owner's name in them."""
        version = self.version()
        newest = len(_schema.MIGRATIONS)
        self.check_version(version, migrates=True)
        assert version is not None
        with self.all_or_nothing():
            self.execute(self.begin_statement)
            for step in range(version, newest):
                for statement in _schema.statements(_schema.MIGRATIONS[step], self.types):
                    self.execute(statement)
            if version < newest:
                self.set_version(newest)
            self.execute("DELETE FROM harness_meta WHERE name = 'owner'")
            self.execute("INSERT INTO harness_meta VALUES ('owner', ?)", (owner.text,))
            self.commit()
        self._owner = owner

    def set_version(self, version: int) -> None:
        """Leave the version of the tables, inside the transaction that made them so."""
        self.execute("DELETE FROM harness_meta WHERE name = 'version'")
        self.execute("INSERT INTO harness_meta VALUES ('version', ?)", (str(version),))

    def check_version(self, version: int | None, *, migrates: bool) -> None:
        """Refuse what is no journal, or a journal whose version can't be used.

        Raises:
          JournalFormatError: if it is.
        """
        newest = len(_schema.MIGRATIONS)
        if version is None:
            raise JournalFormatError(
                f"{self.name!r} is a database of another program, not a journal; nothing was "
                "changed: give the journal a file of its own"
            )
        if version > newest:
            raise JournalFormatError(
                f"the journal {self.name!r} has version {version}, and this harness reads up to "
                f"version {newest}; nothing was changed: use the newer harness"
            )
        if not migrates and not version:
            raise JournalMissingError(
                f"there is no journal in {self.name!r} yet; give one that a batch was recorded in"
            )
        if not migrates and version < newest:
            raise JournalFormatError(
                f"the journal {self.name!r} has version {version}, and is brought to version "
                f"{newest} by the next batch that writes to it"
            )
