"""The leases by which sessions that share a journal on a server divide its items.

A session that joins has a row of its own, its *holder*, which says until when it is alive; it
renews that long before the time is over. To work on an item it puts a *lease* on the item's key,
with an epoch that was never given out before. The lease ends in the transaction that records how
the item ended. A holder that isn't renewed in time has lost its items to whoever asks first, under
a new epoch.

Invariant: whatever is recorded of an item is recorded in a transaction that finds the lease with
the epoch under which the item was claimed. So a process that was stopped for longer than its lease,
and wakes up after others took over its items, is refused.

All times are the server's: the clocks of the workers don't matter. Items are claimed
(`harness.journal._claims`) by one session at a time, under a lock; records need no such lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from harness.errors import JournalLockedError
from harness.journal._owner import Owner
from harness.journal._schema import COLUMNS

TABLES = (
    "CREATE TABLE IF NOT EXISTS harness_holders "
    "(token TEXT PRIMARY KEY, owner TEXT NOT NULL, until DOUBLE PRECISION NOT NULL)",
    "CREATE TABLE IF NOT EXISTS harness_leases "
    "(digest BYTEA PRIMARY KEY, holder TEXT NOT NULL, epoch BIGINT NOT NULL UNIQUE)",
    "CREATE SEQUENCE IF NOT EXISTS harness_epochs",
    # Claims look at single items. A journal with one writer has these rows in memory instead.
    "CREATE INDEX IF NOT EXISTS harness_items_digest ON harness_items (digest)",
    "CREATE INDEX IF NOT EXISTS harness_attempts_item ON harness_attempts (item)",
    "CREATE INDEX IF NOT EXISTS harness_endings_item ON harness_endings (item)",
    "CREATE INDEX IF NOT EXISTS harness_effects_given ON harness_effects (idempotency_key)",
)
"""Made when the first session joins. No version of the journal's tables: nothing but the sessions
that are open needs them."""

NOW = "extract(epoch FROM clock_timestamp())"

_OF_ITEMS = ("harness_attempts", "harness_endings", "harness_steps")
"""The tables whose rows say something of an item."""

_ENDING_ITEM = COLUMNS["harness_endings"].index("item")
_ENDING_FINAL = COLUMNS["harness_endings"].index("final")

Rows = Mapping[str, list[Any]]


class Executes(Protocol):
    """An open database."""

    def execute(self, statement: str, arguments: Any = ()) -> Any:
        """Execute a statement, and return a cursor."""
        ...


class Leases:
    """What one session has leased. Items are registered in trio's thread, as they are claimed."""

    def __init__(self, owner: Owner, seconds: float) -> None:
        self.owner = owner
        self.seconds = seconds
        """How long after its last sign of life the session's items are its own."""
        self.token_query: str = (
            f"SELECT owner FROM harness_holders WHERE token = '{owner.token}' FOR UPDATE"
        )
        self.epochs: dict[int, int] = {}
        """The epochs of what is leased, by the item's number."""
        self.spares_until: float = 0.0
        """Until when, by the server's clock, no other session is taken for dead."""

    def join(self, database: Executes, owner: Owner) -> None:
        """Leave the session's row; inside a transaction, while nobody else joins."""
        for statement in TABLES:
            database.execute(statement)
        database.execute(
            f"INSERT INTO harness_holders VALUES (?, ?, {NOW} + ?)",
            (owner.token, owner.text, self.seconds),
        )

    def renew(self, database: Executes) -> bool:
        """Say that the session is alive; return False if its row is gone."""
        changed = database.execute(
            f"UPDATE harness_holders SET until = {NOW} + ? WHERE token = ?",
            (self.seconds, self.owner.token),
        )
        return bool(changed.rowcount)

    def come_back(self, database: Executes) -> None:
        """Say that the session is alive after a lost connection, and give the others time to.

        If the server was away for longer than a lease, nobody could renew theirs: whoever is back
        first must not take over what the others are working on.
        """
        self.renew(database)
        query = f"SELECT {NOW} + ?"
        self.spares_until = float(database.execute(query, (self.seconds,)).fetchone()[0])

    def leave(self, database: Executes) -> None:
        """Give everything back."""
        database.execute("DELETE FROM harness_leases WHERE holder = ?", (self.owner.token,))
        database.execute("DELETE FROM harness_holders WHERE token = ?", (self.owner.token,))

    def give_back(self, database: Executes, epochs: Iterable[int]) -> None:
        """End some leases without an ending of their items."""
        gone = set(epochs)
        if not gone:
            return
        _delete(database, gone)
        self._forget([item for item, epoch in list(self.epochs.items()) if epoch in gone])

    # What each transaction checks --------------------------------------------------------------

    def check(self, database: Executes, rows: Rows) -> None:
        """Send what fails, with a division by zero, if the token or a lease isn't ours any more.

        For statements that go to the server together.
        """
        database.execute(
            "SELECT 1 / count(*) FROM "
            "(SELECT 1 FROM harness_holders WHERE token = ? FOR UPDATE) ours",
            (self.owner.token,),
        )
        if epochs := self._epochs_of(rows):
            database.execute(
                "SELECT 1 / (CASE WHEN count(*) = ? THEN 1 ELSE 0 END) FROM (SELECT 1 FROM "
                "harness_leases WHERE epoch = ANY(?) AND holder = ? FOR UPDATE) ours",
                (len(epochs), epochs, self.owner.token),
            )

    def are_ours(self, database: Executes) -> bool:
        """Return whether nobody has taken over anything."""
        epochs = list(self.epochs.values())
        query = "SELECT count(*) FROM harness_leases WHERE epoch = ANY(?) AND holder = ?"
        found: int = database.execute(query, (epochs, self.owner.token)).fetchone()[0]
        return found == len(epochs)

    def has(self, database: Executes, rows: Rows) -> bool:
        """Return whether the database has rows that were sent before: the first of them tells."""
        for table in _OF_ITEMS:
            if values := rows.get(table):
                query = f"SELECT 1 FROM {table} WHERE id = ?"
                return database.execute(query, (values[0],)).fetchone() is not None
        return False

    def end(self, database: Executes, rows: Rows) -> None:
        """End the leases of items that end with these rows, in the transaction that has them."""
        if epochs := [self.epochs[item] for item in self._ended(rows)]:
            _delete(database, epochs)

    def have_ended(self, rows: Rows) -> None:
        """Note that this was committed."""
        self._forget(self._ended(rows))

    def lost(self, journal: str) -> JournalLockedError:
        """Return the error for items that somebody else has taken over."""
        return JournalLockedError(
            f"items of the journal {journal!r} were taken over by another session, since this one "
            f"({self.owner}) gave no sign of life for {self.seconds:g} s; nothing more is recorded "
            "here, and what was acknowledged is kept: join again, with a longer lease if this "
            "process may stop for so long"
        )

    def _epochs_of(self, rows: Rows) -> list[int]:
        items: set[int] = set()
        for table in _OF_ITEMS:
            columns = COLUMNS[table]
            items.update(rows.get(table, [])[columns.index("item") :: len(columns)])
        # What follows an item's end has no lease any more, and changes nothing.
        return [self.epochs[item] for item in items if item in self.epochs]

    def _ended(self, rows: Rows) -> list[int]:
        endings, width = rows.get("harness_endings", []), len(COLUMNS["harness_endings"])
        pairs = zip(endings[_ENDING_ITEM::width], endings[_ENDING_FINAL::width], strict=True)
        return [item for item, is_final in pairs if is_final and item in self.epochs]

    def _forget(self, items: Iterable[int]) -> None:
        for item in items:
            self.epochs.pop(item, None)


def _delete(database: Executes, epochs: Iterable[int]) -> None:
    database.execute("DELETE FROM harness_leases WHERE epoch = ANY(?)", (list(epochs),))


def forget_holders(database: Executes) -> None:
    """Have sessions that shared the journal, and don't hold its lock any more, be refused."""
    found = database.execute("SELECT to_regclass('harness_holders') IS NOT NULL").fetchone()
    if found[0]:
        database.execute("DELETE FROM harness_leases")
        database.execute("DELETE FROM harness_holders")
