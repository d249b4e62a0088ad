"""The store against a dictionary, over any order of records, crashes and reopenings.

A crash is a copy of the files in the middle of a session: what was acknowledged before the copy has
to be in it. Each session is one trio run over the steps that the rules collected, so the machine
stays synchronous.
"""

import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import trio
from hypothesis import settings, strategies
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    multiple,
    precondition,
    rule,
)

import harness.journal
from harness.fanout import Ending, Entry
from harness.journal._batch import JournalBatch
from tests.scale import scaled

KEYS = strategies.sampled_from(["a", "b", 1, "1", "c"])
INPUTS = strategies.integers(0, 1)
VALUES = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.text(max_size=5),
    lambda inner: (
        strategies.lists(inner, max_size=2)
        | strategies.dictionaries(strategies.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


class Known:
    """What the model knows of an item."""

    def __init__(self, item: int) -> None:
        self.item = item
        self.begun = 0
        self.given_back = 0
        self.ended = 0
        self.ending: tuple[str, Any] | None = None
        self.unended: dict[int, bool] = {}
        """For each attempt without an ending, in order, whether it was begun alone."""

    @property
    def alone(self) -> bool:
        return list(self.unended.values())[-1]

    @property
    def state(self) -> tuple[str, int]:
        attempts = self.begun - self.given_back
        if self.ending is not None:
            return ("done" if self.ending[0] == "ok" else "failed"), attempts
        return ("in_flight" if self.begun > self.ended else "open"), attempts


class Store(RuleBasedStateMachine):
    """Collects what is to be done in a session; `_play` does it, and compares."""

    entries: "Bundle[tuple[Any, Entry]]" = Bundle("entries")
    attempts: "Bundle[tuple[int, Any, Entry, int]]" = Bundle("attempts")

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "run.db"
        self.model: dict[Any, Known] = {}
        self.spent = 0
        self.session = 0
        self.found: set[Any] = set()
        self._begin_session()

    def _begin_session(self) -> None:
        self.session += 1
        self.found = set()
        self.todo: list[Any] = []

    @rule(target=entries, key=KEYS, item=INPUTS)
    def find(self, key: Any, item: int) -> Any:
        typed = (type(key), key)
        if typed in self.found:
            return multiple()
        self.found.add(typed)
        token = [self.session, typed]
        self.todo.append(("find", token, key, item))
        return token

    @rule(target=attempts, entry=entries, alone=strategies.booleans())
    def begin(self, entry: Any, alone: bool) -> Any:
        if entry[0] != self.session:
            return multiple()
        token = [self.session, entry[1], object()]
        self.todo.append(("begin", token, entry, alone))
        return token

    @rule(
        attempt=consumes(attempts),
        status=strategies.sampled_from(["ok", "failed", "timed_out", "cancelled", "unstarted"]),
        value=VALUES,
        final=strategies.booleans(),
        tokens=strategies.integers(0, 9),
    )
    def end(self, attempt: Any, status: str, value: Any, final: bool, tokens: int) -> None:
        if attempt[0] == self.session:
            self.todo.append(("end", attempt, status, value, final, tokens))

    @precondition(lambda self: self.todo)
    @rule()
    def reopen(self) -> None:
        """Leave the block, and begin another session on the same file."""
        self._play(crash=False)

    @precondition(lambda self: self.todo)
    @rule()
    def crash(self) -> None:
        """Lose the process after the last acknowledgement, and begin another session."""
        self._play(crash=True)

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        try:
            if self.todo:
                self._play(crash=False)
            self._play(crash=False)
        finally:
            shutil.rmtree(self.folder)

    def _play(self, *, crash: bool) -> None:
        trio.run(self._session, crash)
        if crash:
            copy = self.folder / "copy"
            shutil.rmtree(self.folder / "session", ignore_errors=True)
            for name in ("run.db", "run.db-wal"):
                (self.folder / name).unlink(missing_ok=True)
                if (copy / name).exists():
                    shutil.move(copy / name, self.folder / name)
            (self.folder / "run.db-shm").unlink(missing_ok=True)
        self._begin_session()

    async def _session(self, crash: bool) -> None:
        async with harness.journal.open_journal(self.path) as journal:
            batch = await journal.open_batch("nightly", target="t", settings={})
            assert batch.items == len(self.model)
            entries: dict[Any, Entry] = {}
            self.fresh: dict[Any, int] = {}
            numbers: dict[Any, int] = {}
            for step in self.todo:
                await self._step(batch, entries, numbers, step)
            totals = await batch.totals()
            assert totals.tokens == self.spent
            by_status = [k.ending[0] for k in self.model.values() if k.ending]
            assert (totals.ok, totals.failed, totals.timed_out) == tuple(
                by_status.count(status) for status in ("ok", "failed", "timed_out")
            )
            assert totals.items == len(self.model)
            if crash:
                copy = self.folder / "copy"
                copy.mkdir(exist_ok=True)
                for name in ("run.db", "run.db-wal"):
                    shutil.copy(self.folder / name, copy / name)

    async def _step(
        self, batch: JournalBatch, entries: dict[Any, Entry], numbers: dict[Any, int], step: Any
    ) -> None:
        match step:
            case ("find", token, key, item):
                entry = entries[token[1]] = batch.find(key, item)
                known = self.model.get(token[1])
                if known is None or known.item != item:
                    assert (entry.state, entry.attempts) == ("new", 0)
                    # Nothing is recorded of it until it begins.
                    self.fresh[token[1]] = item
                else:
                    assert (entry.state, entry.attempts) == known.state
                    if entry.state == "in_flight":
                        assert entry.alone == known.alone
                    if known.ending is not None:
                        [stored] = await batch.read([entry])
                        assert (stored.status, stored.value) == known.ending
            case ("begin", token, (_, typed), alone):
                [numbers[id(token)]] = await batch.begin([entries[typed]], alone=alone)
                if typed in self.fresh:
                    self.model[typed] = Known(self.fresh.pop(typed))
                self.model[typed].begun += 1
                self.model[typed].unended[numbers[id(token)]] = alone
            case ("end", token, status, value, final, tokens):
                entry, known = entries[token[1]], self.model[token[1]]
                text = batch.encode(value)[0] if status == "ok" else None
                ending = Ending(status=status, final=final, value=text, tokens=tokens)
                await batch.end(entry, numbers[id(token)], ending)
                self.spent += tokens
                known.ended += 1
                known.unended.pop(numbers[id(token)])
                if status in ("cancelled", "unstarted"):
                    known.given_back += 1
                elif final:
                    known.ending = (status, value if status == "ok" else None)


TestStore = Store.TestCase
TestStore.settings = settings(
    max_examples=scaled(8, full=200), stateful_step_count=30, deadline=None
)


def test_the_copy_of_a_crash_is_a_whole_database(tmp_path: Path) -> None:
    """The machine above would prove nothing if its crash lost everything in the WAL."""

    async def main() -> None:
        async with harness.journal.open_journal(tmp_path / "run.db") as journal:
            batch = await journal.open_batch("nightly", target="t", settings={})
            await batch.begin([batch.find("a", 0)])
            for name in ("run.db", "run.db-wal"):
                shutil.copy(tmp_path / name, tmp_path / f"copy{name[3:]}")

    trio.run(main)
    connection = sqlite3.connect(tmp_path / "copy.db")
    assert connection.execute("SELECT count(*) FROM harness_attempts").fetchone() == (1,)
    connection.close()
