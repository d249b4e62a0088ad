"""Find an item of a batch by its key, however many there are.

A session usually meets its items in the order in which an earlier one recorded them. So the rows
that come next are held by their key (`KeyIndex.glimpse`), and a resumed million costs no million
queries. What comes in any other order is looked up by a hash of its key (`KeyIndex.find`).

The journal itself has no index by key. Keys come in any order, so each new one would change a page
somewhere in the middle of the index, and every commit would write those pages: measured at eight
times the cost. Instead each session builds one in a private temporary database, which is never
synced and vanishes with the process; its memory is bounded, the rest is on disk. It is queried in
trio's own thread: an answer takes microseconds, going to a thread and back ten times as long.

Both backends share it, so a batch on a server is looked up just as fast.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from harness.errors import JournalError

CACHE_KIB = 8_192
"""Memory for the pages of one index."""

FOUND_IN_MEMORY = 50_000
"""How many new keys are kept in a set, some 5 MB, before they go to disk."""

ROWS_AHEAD = 1_024
"""Rows fetched at a time for `KeyIndex.glimpse`."""

FOUND_ELSEWHERE_AT_MOST = 8
"""Items in a row that weren't among the rows held, before others are fetched."""

COLUMNS = "digest, item, input_hash, attempts, lost, ending, status, alone, key"

FILL = f"INSERT INTO known ({COLUMNS}) "
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

    def __init__(self, *, glimpses_failed: bool = True) -> None:
        """Make an empty one.

        Args:
          glimpses_failed: Whether items that failed are kept as they are.
        """
        self._glimpsed = "IS NOT NULL" if glimpses_failed else "= 'ok'"
        self._connection: sqlite3.Connection | None = None
        self.items = 0
        """How many items earlier sessions recorded; set once it is filled."""
        self.kept = 0
        """How many of them are done."""
        self._found = bytearray()
        """A byte for each place in ``known``: whether its key was found in this session."""
        self._new: set[bytes] = set()
        """The digests of keys found in this session that aren't in ``known``."""
        self._new_on_disk = False
        self._ahead: dict[str, int] = {}
        """The places of the rows that should come next, by key; only of items that are done."""
        self._rows: dict[int, tuple[Any, ...]] = {}
        """The rows that `glimpsed` should be asked for next, by place."""
        self._asked = 0
        """The place that it was asked for last."""
        self._fetched = 0
        """The last place that was fetched."""
        self._fetch_at = 0
        """The place from which on more should be fetched."""
        self._elsewhere = 0
        """Items in a row that were found in another place."""
        self._patience = FOUND_ELSEWHERE_AT_MOST

    @property
    def connection(self) -> sqlite3.Connection:
        """Its database, opened when needed: a new batch of few items needs none."""
        if self._connection is None:
            # An empty name gives a private file, deleted as soon as it is made. It is opened in one
            # thread and queried in another, never in two at once.
            self._connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
            for setting in ("journal_mode=MEMORY", "synchronous=OFF", f"cache_size=-{CACHE_KIB}"):
                self._connection.execute(f"PRAGMA {setting}")
            self._connection.execute(
                "CREATE TABLE known (place INTEGER PRIMARY KEY, digest BLOB, item INTEGER, "
                "input_hash BLOB, attempts INTEGER, lost INTEGER, ending INTEGER, status TEXT, "
                "alone INTEGER, key TEXT)"
            )
            self._connection.execute(
                "CREATE TABLE steps (item INTEGER, id INTEGER, name TEXT, part TEXT, "
                "ending INTEGER, for_good INTEGER, status TEXT, degraded INTEGER, "
                "further INTEGER, PRIMARY KEY (item, id)) WITHOUT ROWID"
            )
            self._connection.execute("CREATE TABLE new (digest BLOB PRIMARY KEY) WITHOUT ROWID")
        return self._connection

    def filled(self) -> None:
        """Count what was filled in, in the order of the items, and make it ready for questions."""
        execute = self.connection.execute
        by_digest = "CREATE UNIQUE INDEX by_digest ON known (digest)"
        try:
            execute(by_digest)
        except sqlite3.IntegrityError:
            # The input of some items has changed, and they were recorded anew: the newest counts.
            execute("CREATE INDEX every_digest ON known (digest, item)")
            execute(
                "DELETE FROM known WHERE EXISTS (SELECT 1 FROM known newer "
                "WHERE newer.digest = known.digest AND newer.item > known.item)"
            )
            execute("DROP INDEX every_digest")
            execute(by_digest)
        last, self.items, self.kept = execute(
            "SELECT coalesce(max(place), 0), count(*), "
            f"count(CASE WHEN status {self._glimpsed} THEN 1 END) FROM known"
        ).fetchone()
        self._found = bytearray(last + 1)

    def glimpse(self, key_json: str) -> int | None:
        """Return what is known of an item, if it is done and among those that should come next.

        Returns:
          Its place, which `glimpsed` takes; None: only `find` knows.

        Raises:
          JournalError: as `find` does.
        """
        place = self._ahead.pop(key_json, None)
        if place is None:
            if self._fetched or not self.items:
                return None
            self._fetch()
            return self.glimpse(key_json)
        self._found[place] = 1
        self._elsewhere = 0
        if place >= self._fetch_at:
            self._patience = FOUND_ELSEWHERE_AT_MOST
            self._fetch()
        return place

    def glimpsed(self, place: int) -> tuple[int, bytes, int, int, str]:
        """Return of `Known` the item, the hash of its input, the attempts, the ending and status.

        Raises:
          JournalError: as `find` does.
        """
        if place not in self._rows:
            query = (
                "SELECT place, item, input_hash, attempts, ending, status FROM known "
                "WHERE place BETWEEN ? AND ?"
            )
            more = ROWS_AHEAD if place == self._asked + 1 else 0
            try:
                rows = self.connection.execute(query, (place, place + more)).fetchall()
            except sqlite3.Error as error:
                raise _unreadable(error) from error
            self._rows = {row[0]: row[1:] for row in rows}
        self._asked = place
        return self._rows[place]

    def _fetch(self) -> None:
        """Hold the rows that come next."""
        if len(self._ahead) >= 4 * ROWS_AHEAD:
            self._ahead.clear()  # Their items no longer come, or came in another order.
        # In one row: before each further one, Python would wait for the threads that compute.
        query = (
            "SELECT group_concat(key, char(10)), group_concat(place) FROM (SELECT key, place "
            f"FROM known WHERE place > ? AND status {self._glimpsed} ORDER BY place LIMIT ?)"
        )
        try:
            found = self.connection.execute(query, (self._fetched, ROWS_AHEAD)).fetchone()
        except sqlite3.Error as error:
            raise _unreadable(error) from error
        keys, texts = found
        if keys is None:
            self._fetch_at = self._fetched = sys.maxsize
            return
        places = list(map(int, texts.split(",")))
        self._ahead.update(zip(keys.split("\n"), places, strict=True))
        self._fetch_at = places[len(places) // 2]
        self._fetched = places[-1]

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
        row = None
        if self.items:
            row = self.connection.execute(
                "SELECT place, item, input_hash, attempts, lost, ending, status, alone FROM known "
                "WHERE digest = ?",
                (digest,),
            ).fetchone()
        if row is not None:
            place, *fields = row
            known = Known(*fields)
            if self._found[place]:
                return False, None
            self._found[place] = 1
            if known.status is not None:
                self._was_elsewhere(place)
            return True, known
        if digest in self._new or (self._new_on_disk and self._is_on_disk(digest)):
            return False, None
        self._new.add(digest)
        if len(self._new) >= FOUND_IN_MEMORY:
            self._spill()
        return True, None

    def _was_elsewhere(self, place: int) -> None:
        """Go on from another place if the items seem to; seldom, if they come in any order."""
        self._elsewhere += 1
        if self._fetched and self._elsewhere >= self._patience:
            self._elsewhere = 0
            self._patience *= 2
            self._fetched = place
            self._ahead.clear()
            self._fetch()

    def _is_on_disk(self, digest: bytes) -> bool:
        query = "SELECT 1 FROM new WHERE digest = ?"
        return self.connection.execute(query, (digest,)).fetchone() is not None

    def _spill(self) -> None:
        """Move the set to disk, sorted: ten times as fast as one by one."""
        self.connection.execute("BEGIN")
        rows = [(digest,) for digest in sorted(self._new)]
        self.connection.executemany("INSERT INTO new VALUES (?)", rows)
        self.connection.execute("COMMIT")
        self._new.clear()
        self._new_on_disk = True

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
