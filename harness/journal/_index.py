"""Find an item of a batch by its key, however many there are.

The journal itself has no index by key. Keys come in any order, so each new one would change a page
somewhere in the middle of the index, and every commit would write those pages: measured at eight
times the cost. Instead each session builds one in a private temporary database, which is never
synced and vanishes with the process; its memory is bounded, the rest is on disk. It is queried in
trio's own thread: an answer takes microseconds, going to a thread and back ten times as long.

Both backends share it, so a batch on a server is looked up just as fast.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from harness.errors import JournalError

CACHE_KIB = 8_192
"""Memory for the pages of one index."""

FOUND_IN_MEMORY = 50_000
"""How many found keys are kept in a set, some 5 MB, before they go to disk."""

COLUMNS = "digest, item, input_hash, attempts, lost, ending, status, alone"

FILL = f"INSERT OR REPLACE INTO known ({COLUMNS}) "
"""To be followed by a query or by values in the order of `COLUMNS`."""

STEP_COLUMNS = "item, id, name, part, ending, for_good, status, degraded, further"

FILL_STEPS = f"INSERT INTO steps ({STEP_COLUMNS}) "
"""The same for `STEP_COLUMNS`."""


class KnownStep(NamedTuple):
    """What earlier sessions recorded of a step of an item, in the order of `STEP_COLUMNS`."""

    item: int
    id: int
    name: str
    part: str
    ending: int | None
    for_good: bool
    status: str | None
    """The status of that ending."""
    degraded: bool
    further: int


class Known(NamedTuple):
    """What earlier sessions recorded of an item."""

    item: int
    input_hash: bytes
    attempts: int
    lost: int
    """Attempts with no ending; none if the item ended after all of them had begun."""
    ending: int | None
    status: str | None
    """The status of that ending."""
    alone: bool
    """Whether the latest of those was begun with nothing else in flight."""


class KeyIndex:
    """The items of one batch by key, and which of them were found in this session."""

    def __init__(self) -> None:
        self._connection: sqlite3.Connection | None = None
        self.items = 0
        """How many items earlier sessions recorded; set once it is filled."""
        self._found: set[bytes] = set()
        self._found_on_disk = False

    @property
    def connection(self) -> sqlite3.Connection:
        """Its database, opened when needed: a new batch of few items needs none."""
        if self._connection is None:
            # An empty name gives a private file, deleted as soon as it is made. It is opened in one
            # thread and queried in another, never in two at once.
            self._connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
            for setting in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{CACHE_KIB}"):
                self._connection.execute(f"PRAGMA {setting}")
            self._connection.execute(
                "CREATE TABLE known (digest BLOB PRIMARY KEY, item INTEGER, input_hash BLOB, "
                "attempts INTEGER, lost INTEGER, ending INTEGER, status TEXT, alone INTEGER) "
                "WITHOUT ROWID"
            )
            self._connection.execute(
                "CREATE TABLE steps (item INTEGER, id INTEGER, name TEXT, part TEXT, "
                "ending INTEGER, for_good INTEGER, status TEXT, degraded INTEGER, "
                "further INTEGER, PRIMARY KEY (item, id)) WITHOUT ROWID"
            )
            self._connection.execute("CREATE TABLE found (digest BLOB PRIMARY KEY) WITHOUT ROWID")
        return self._connection

    def filled(self) -> None:
        """Count what was filled in."""
        self.items = self.connection.execute("SELECT count(*) FROM known").fetchone()[0]

    def find(self, digest: bytes) -> tuple[bool, Known | None]:
        """Return whether this is the first time in this session, and what was known before.

        Raises:
          JournalError: if it can't be read, or what it was filled with makes no sense.
        """
        try:
            return self._find(digest)
        except sqlite3.Error as error:
            raise _unreadable(error) from error

    def steps(self, item: int) -> list[KnownStep]:
        """Return the steps of an item that are done, oldest first.

        Raises:
          JournalError: if they can't be read.
        """
        query = f"SELECT {STEP_COLUMNS} FROM steps WHERE item = ? ORDER BY id"
        try:
            return [KnownStep(*row) for row in self.connection.execute(query, (item,))]
        except sqlite3.Error as error:
            raise _unreadable(error) from error

    def learn_steps(self, items: Iterable[int], steps: Iterable[Sequence[Any]]) -> None:
        """Take over what other sessions have recorded of some items since.

        Args:
          items: The items.
          steps: All that is known of their steps now, in the order of `STEP_COLUMNS`.

        Raises:
          JournalError: if it can't be kept.
        """
        places = ", ".join("?" * len(KnownStep._fields))
        try:
            self.connection.execute("BEGIN")
            self.connection.executemany(
                "DELETE FROM steps WHERE item = ?", [(item,) for item in items]
            )
            self.connection.executemany(f"{FILL_STEPS} VALUES ({places})", steps)
            self.connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise _unreadable(error) from error

    def _find(self, digest: bytes) -> tuple[bool, Known | None]:
        if digest in self._found or (self._found_on_disk and self._was_found(digest)):
            return False, None
        self._found.add(digest)
        if len(self._found) >= FOUND_IN_MEMORY:
            self._spill()
        if not self.items:
            return True, None
        row = self.connection.execute(
            "SELECT item, input_hash, attempts, lost, ending, status, alone FROM known "
            "WHERE digest = ?",
            (digest,),
        ).fetchone()
        return True, None if row is None else Known(*row)

    def _was_found(self, digest: bytes) -> bool:
        query = "SELECT 1 FROM found WHERE digest = ?"
        return self.connection.execute(query, (digest,)).fetchone() is not None

    def _spill(self) -> None:
        """Move the set to disk, sorted: ten times as fast as one by one."""
        self.connection.execute("BEGIN")
        rows = [(digest,) for digest in sorted(self._found)]
        self.connection.executemany("INSERT INTO found VALUES (?)", rows)
        self.connection.execute("COMMIT")
        self._found.clear()
        self._found_on_disk = True

    def close(self) -> None:
        """Drop it and its file."""
        if self._connection is not None:
            self._connection.close()


def _unreadable(error: sqlite3.Error) -> JournalError:
    return JournalError(
        f"an item can't be looked up ({error}): the folder for temporary files is full, or "
        "the journal is damaged; what was acknowledged is kept: make room there, or have "
        "TMPDIR name another, and resume"
    )
