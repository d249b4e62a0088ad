"""What is recorded comes back, from a file and from a server alike."""

import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pydantic
import pytest
import trio
from trio.testing import MockClock

from harness.errors import (
    JournalClosedError,
    JournalError,
    JournalKeyError,
    JournalLockedError,
    JournalMismatchError,
    JournalValueError,
)
from harness.fanout import Ending, Entry
from harness.journal import Journal, _index, open_journal
from harness.journal._batch import JournalBatch
from tests.support.checkpoints import cancel_at_every_checkpoint


async def open_batch(journal: Journal, name: str = "nightly", **settings: Any) -> JournalBatch:
    return await journal.open_batch(name, target="module.classify", settings=settings)


async def record(batch: JournalBatch, entry: Entry, value: Any, **fields: Any) -> None:
    """Begin and end an item."""
    [attempt] = await batch.begin([entry])
    text, _ = batch.encode(value)
    await batch.end(entry, attempt, Ending(status="ok", value=text, **fields))


def states(batch: JournalBatch, keys: Sequence[Any]) -> list[tuple[str, int]]:
    entries = [batch.find(key, key) for key in keys]
    return [(entry.state, entry.attempts) for entry in entries]


async def test_what_ended_is_known_to_the_next_session(journal_path: str) -> None:
    """The promise of the journal: after its commit a result is never computed again."""
    async with open_journal(journal_path) as journal:
        batch = await open_batch(journal)
        assert batch.items == 0
        done, failed = batch.find("a", 1), batch.find("b", 2)
        cancelled, lost, unstarted = (batch.find(key, 0) for key in "cde")
        assert {e.state for e in (done, failed, cancelled, lost, unstarted)} == {"new"}
        numbers = await batch.begin([done, failed, cancelled, lost, unstarted])
        text, value = batch.encode({"answer": (1, 2)})
        assert value == {"answer": (1, 2)}
        await batch.end(done, numbers[0], Ending(status="ok", value=text, seconds=2.5))
        error = Ending(
            status="failed",
            error_type="ValueError",
            error_message="no \0 such \ud800",
            error_traceback="in f\n\ud800",
        )
        await batch.end(failed, numbers[1], error)
        await batch.end(cancelled, numbers[2], Ending(status="cancelled"))
        await batch.end(unstarted, numbers[4], Ending(status="unstarted"))
        assert [e.attempts for e in (done, failed, cancelled, lost, unstarted)] == [1, 1, 0, 1, 0]

    async with open_journal(journal_path) as journal:
        batch = await open_batch(journal)
        assert batch.items == 5
        entries = [batch.find("e", 0), batch.find("b", 2), batch.find("a", 1)]  # In any order.
        entries += [batch.find("d", 0), batch.find("c", 0), batch.find("f", 0)]
        assert [(e.state, e.attempts) for e in entries] == [
            ("open", 0),
            ("failed", 1),
            ("done", 1),
            ("in_flight", 1),
            ("open", 0),
            ("new", 0),
        ]
        failure, success = await batch.read([entries[1], entries[2]])
        assert (success.status, success.value, success.seconds) == ("ok", {"answer": (1, 2)}, 2.5)
        assert success.started_at <= success.ended_at
        assert (failure.status, failure.error_type) == ("failed", "ValueError")
        assert failure.error_message == "no \\0 such \\ud800"
        assert failure.error_traceback == "in f\n\\ud800"


async def test_the_type_of_a_key_counts(journal_path: str) -> None:
    """The ids 1 and "1" of two tables are two items."""
    async with open_journal(journal_path) as journal:
        batch = await open_batch(journal)
        await record(batch, batch.find(1, 0), "number")
        await record(batch, batch.find("1", 0), "text")
        await record(batch, batch.find(2**80, 0), "large")
        await record(batch, batch.find("né \ud800\0", 0), "odd")
    async with open_journal(journal_path) as journal:
        batch = await open_batch(journal)
        entries = [batch.find(key, 0) for key in (1, "1", 2**80, "né \ud800\0")]
        values = [stored.value for stored in await batch.read(entries)]
        assert values == ["number", "text", "large", "odd"]


@pytest.mark.parametrize("key", [None, "", True, 1.5, ("a",), b"a"])
async def test_what_is_no_key_is_refused(tmp_path: object, key: object) -> None:
    """It would be lost, or taken for another one, in the next session."""
    async with open_journal(f"{tmp_path}/run.db") as journal:
        batch = await open_batch(journal)
        with pytest.raises(JournalKeyError, match="key= returned"):
            batch.find(key, 0)


async def test_a_key_that_is_there_twice_is_refused(journal_path: str) -> None:
    """Also if the first one was done long ago: it is about the items, not about the work."""
    async with open_journal(journal_path) as journal:
        batch = await open_batch(journal)
        await record(batch, batch.find("a", 1), 1)
        with pytest.raises(JournalKeyError, match="two items of batch 'nightly' have the key 'a'"):
            batch.find("a", 2)
    async with open_journal(journal_path) as journal:
        batch = await open_batch(journal)
        assert batch.find("a", 1).state == "done"
        with pytest.raises(JournalKeyError, match="'a'"):
            batch.find("a", 1)
        other = await open_batch(journal, "another")
        assert other.find("a", 1).state == "new"  # Keys belong to their batch.


async def test_a_changed_input_is_a_new_item_under_its_key(journal_path: str) -> None:
    """The answer to yesterday's question isn't one to today's. Back again counts as changed."""
    for item, expected in (("old", "new"), ("new", "new"), ("new", "done"), ("old", "new")):
        async with open_journal(journal_path) as journal:
            batch = await open_batch(journal)
            entry = batch.find("a", {"text": item, "n": 1})
            assert (entry.state, entry.attempts) == (expected, int(expected == "done"))
            if expected == "new":
                await record(batch, entry, item)
    async with open_journal(journal_path) as journal:
        batch = await open_batch(journal)
        entry = batch.find("a", {"n": 1, "text": "old"})  # The order of fields is no change.
        assert [stored.value for stored in await batch.read([entry])] == ["old"]
        totals = await batch.totals()
        assert (totals.items, totals.ok, totals.attempts) == (1, 1, 3)


async def test_attempts_are_counted_over_sessions(journal_path: str) -> None:
    """What counts is what failed, timed out or took its process along; not what was cut short."""
    for status in ("failed", "timed_out", "cancelled", None, "unstarted"):
        async with open_journal(journal_path, retry_failed=True) as journal:
            batch = await open_batch(journal)
            entry = batch.find("a", 1)
            [number] = await batch.begin([entry])
            if status is not None:
                await batch.end(entry, number, Ending(status=status))
    async with open_journal(journal_path) as journal:
        batch = await open_batch(journal)
        entry = batch.find("a", 1)
        assert entry.attempts == 3
        totals = await batch.totals()
        assert (totals.attempts, totals.lost_attempts, totals.cancelled_attempts) == (2, 1, 1)
        assert totals.sessions == 6


async def test_it_is_known_whether_a_lost_attempt_was_alone(journal_path: str) -> None:
    """An item that took its process along while nothing else was in flight did it itself."""
    for alone in (False, True, False):
        async with open_journal(journal_path) as journal:
            batch = await open_batch(journal)
            entry = batch.find("a", 1)
            await batch.begin([entry], alone=alone)
        async with open_journal(journal_path) as journal:
            entry = (await open_batch(journal)).find("a", 1)
            assert (entry.state, entry.alone) == ("in_flight", alone)


async def test_an_attempt_alone_that_was_cut_short_blames_nobody(journal_path: str) -> None:
    """Ctrl-C while a suspect has its attempt alone tells nothing of it: it needs another one."""
    async with open_journal(journal_path) as journal:
        batch = await open_batch(journal)
        await batch.begin([batch.find("a", 1), batch.find("b", 1)])  # Both are lost.
    async with open_journal(journal_path) as journal:
        batch = await open_batch(journal)
        entry = batch.find("a", 1)
        [number] = await batch.begin([entry], alone=True)
        await batch.end(entry, number, Ending(status="cancelled", final=False))
        await batch.begin([batch.find("b", 1)], alone=True)
    async with open_journal(journal_path) as journal:
        batch = await open_batch(journal)
        entries = [batch.find(key, 1) for key in ("a", "b")]
        assert [(e.state, e.attempts, e.alone) for e in entries] == [
            ("in_flight", 1, False),
            ("in_flight", 2, True),
        ]


async def test_what_failed_and_is_lost_when_tried_again_is_in_flight(journal_path: str) -> None:
    """Else it were set aside for what its neighbours did to it, without ever being run alone."""
    async with open_journal(journal_path) as journal:
        batch = await open_batch(journal)
        for key in ("lost", "not begun again"):
            entry = batch.find(key, 1)
            await batch.begin([entry])  # An attempt that was lost before it failed.
            [number] = await batch.begin([entry])
            await batch.end(entry, number, Ending(status="failed"))
    async with open_journal(journal_path, retry_failed=True) as journal:
        batch = await open_batch(journal)
        await batch.begin([batch.find("lost", 1)])
    async with open_journal(journal_path, retry_failed=True) as journal:
        batch = await open_batch(journal)
        entries = [batch.find(key, 1) for key in ("lost", "not begun again")]
        assert [(e.state, e.attempts) for e in entries] == [("in_flight", 3), ("open", 2)]
    async with open_journal(journal_path) as journal:
        assert (await open_batch(journal)).find("lost", 1).state == "failed"


async def test_a_first_attempt_that_failed_leaves_the_item_open(journal_path: str) -> None:
    """A retry follows it; when the process ends in between, the item goes on with what is left."""
    async with open_journal(journal_path) as journal:
        batch = await open_batch(journal)
        entry = batch.find("a", 1)
        [number] = await batch.begin([entry])
        await batch.end(entry, number, Ending(status="failed", final=False))
    async with open_journal(journal_path) as journal:
        batch = await open_batch(journal)
        assert states(batch, ["b"]) == [("new", 0)]
        entry = batch.find("a", 1)
        assert (entry.state, entry.attempts) == ("open", 1)
        await batch.end(entry, None, Ending(status="failed", error_type="SetAside"))
    async with open_journal(journal_path) as journal:
        batch = await open_batch(journal)
        entry = batch.find("a", 1)
        assert (entry.state, entry.attempts) == ("failed", 1)


async def test_totals_cover_all_sessions(journal_path: str) -> None:
    """A resumed batch reports what the unbroken one would have: it is computed from the records."""
    async with open_journal(journal_path) as journal:
        batch = await open_batch(journal)
        other = await open_batch(journal, "another")
        await record(other, other.find("x", 0), 1, tokens=1_000, cost_usd=10.0)
        await record(batch, batch.find("a", 0), 1, tokens=5, cost_usd=0.25, seconds=2.0)
        entry = batch.find("b", 0)
        [number] = await batch.begin([entry])
        await batch.end(entry, number, Ending(status="cancelled", tokens=7, cost_usd=0.5))
    async with open_journal(journal_path) as journal:
        batch = await open_batch(journal)
        await record(batch, batch.find("b", 0), 1, tokens=1, seconds=1.0, degraded=True)
        totals = await batch.totals()
    assert (totals.items, totals.ok, totals.open, totals.degraded) == (2, 2, 0, 1)
    assert (totals.attempts, totals.cancelled_attempts, totals.lost_attempts) == (2, 1, 0)
    assert (totals.tokens, totals.cost_usd, totals.run_seconds) == (13, 0.75, 3.0)
    assert totals.sessions == 2
    assert totals.seconds >= 0


async def test_other_code_or_settings_are_refused_with_the_difference(journal_path: str) -> None:
    """Half of the answers from one prompt and half from another is what nobody wants to notice."""
    async with open_journal(journal_path, version="1") as journal:
        await open_batch(journal, prompt="short", model="small")
    async with open_journal(journal_path, version="2") as journal:
        with pytest.raises(JournalMismatchError) as caught:
            await journal.open_batch(
                "nightly", target="module.other", settings={"prompt": "long", "model": "small"}
            )
        assert "the function was 'module.classify' and is 'module.other'" in str(caught.value)
        assert "version= was '1' and is '2'" in str(caught.value)
        assert "prompt was 'short' and is 'long'" in str(caught.value)
        assert "model" not in str(caught.value)
        await open_batch(journal, "another")  # The journal is as usable as before.
    async with open_journal(journal_path, version="2", force=True) as journal:
        await open_batch(journal, prompt="long", model="small")
    async with open_journal(journal_path, version="2") as journal:
        await open_batch(journal, prompt="long", model="small")  # What was forced is what it is.


async def test_a_batch_is_open_once_and_two_batches_go_side_by_side(journal_path: str) -> None:
    """Two fan-outs of one name would each take the other's items for its own."""
    async with open_journal(journal_path) as journal:
        first = await open_batch(journal)
        second = await open_batch(journal, "another")
        with pytest.raises(JournalLockedError, match="'nightly'"):
            await open_batch(journal)
        await record(first, first.find("a", 0), 1)
        await record(second, second.find("a", 0), 2)
        await first.close()
        await first.close()
        with pytest.raises(JournalClosedError, match="'nightly' is closed"):
            first.find("b", 0)
        again = await open_batch(journal)
        assert [s.value for s in await again.read([again.find("a", 0)])] == [1]


async def test_a_callback_comes_once_it_is_durable(journal_path: str) -> None:
    """An engine has no task to wait in for each of a thousand items."""
    heard: list[BaseException | None] = []
    async with open_journal(journal_path) as journal:
        batch = await open_batch(journal)
        entries = [batch.find(key, 0) for key in range(300)]
        [*numbers] = batch.begin_nowait(entries, heard.append)
        for entry, number in zip(entries, numbers, strict=True):
            batch.end_nowait([(entry, number, Ending(status="ok", value="1"))], heard.append)
        assert heard == []
        await batch.flush()
        assert heard == [None] * 301
        assert (await batch.totals()).ok == 300


async def test_values_that_json_cannot_hold_are_refused(tmp_path: object) -> None:
    """Recorded as something else, a result would be another one after a crash."""
    async with open_journal(f"{tmp_path}/run.db") as journal:
        batch = await open_batch(journal)
        circle: list[Any] = []
        circle.append(circle)
        for value, why in (
            (object(), "encode= and decode="),
            (circle, "it contains itself"),
        ):
            with pytest.raises(JournalValueError, match=why):
                batch.encode(value)
        nan = batch.encode([math.nan, math.inf])[1]
        assert math.isnan(nan[0])
        assert nan[1] == math.inf
        assert batch.encode({1: "é\ud800"})[1] == {1: "é\ud800"}
        with pytest.raises(JournalValueError, match="whether the item"):
            batch.find("a", object())


async def test_an_item_without_content_is_refused_with_what_to_do(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "run.db") as journal:
        batch = await open_batch(journal)
        with pytest.raises(JournalValueError, match=r"can't be hashed; use plain data .*encode="):
            batch.find("a", object())


async def test_own_encode_and_decode_replace_json(journal_path: str) -> None:
    """For values that are more than JSON: a model's class, a date."""

    def encode(value: complex) -> bytes:
        return f"{value.real} {value.imag}".encode()

    def decode(text: str) -> complex:
        return complex(*map(float, text.split()))

    for _ in range(2):
        async with open_journal(journal_path, encode=encode, decode=decode) as journal:
            batch = await open_batch(journal)
            entry = batch.find("a", 1j)
            if entry.state == "new":
                await record(batch, entry, 1 + 2j)
            assert [stored.value for stored in await batch.read([entry])] == [1 + 2j]
            with pytest.raises(JournalValueError, match="encode= and"):
                batch.encode("text")
    async with open_journal(journal_path) as journal:
        batch = await open_batch(journal)
        with pytest.raises(JournalValueError, match="encode= and decode= that it was written"):
            await batch.read([batch.find("a", 1j)])


async def test_a_virtual_clock_stands_still_while_the_disk_works(
    journal_path: str, autojump_clock: MockClock
) -> None:
    """Else an hour's timeout would strike in the tenth of a millisecond that a commit takes."""
    with trio.move_on_after(3600) as hour:
        async with open_journal(journal_path) as journal:
            batch = await open_batch(journal)
            for key in range(20):
                await record(batch, batch.find(key, 0), key)
            assert trio.current_time() == 0
            await trio.sleep(60)  # It goes on as soon as nothing is under way.
            assert trio.current_time() == 60
            await batch.totals()
    assert not hour.cancelled_caught
    assert trio.current_time() == 60


async def test_outside_its_block_a_journal_is_refused(tmp_path: object) -> None:
    """A record into a closed journal would wait for ever."""
    async with open_journal(f"{tmp_path}/run.db") as journal:
        batch = await open_batch(journal)
        entry = batch.find("a", 0)
    with pytest.raises(JournalClosedError, match="outside its block"):
        await open_batch(journal, "another")
    with pytest.raises(JournalClosedError, match="outside its block"):
        await batch.begin([entry])
    with pytest.raises(JournalClosedError, match="outside its block"):
        batch.find("b", 0)
    await batch.close()  # That is nobody's mistake.


async def test_another_trio_run_is_refused(tmp_path: object) -> None:
    """Its tasks would be woken in the wrong loop."""
    async with open_journal(f"{tmp_path}/run.db") as journal:
        batch = await open_batch(journal)
        entry = batch.find("a", 0)

        async def elsewhere() -> None:
            with pytest.raises(JournalClosedError, match=r"another trio\.run"):
                await batch.begin([entry])

        await trio.to_thread.run_sync(trio.run, elsewhere)


def exit_code_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
async def test_a_fork_is_refused(tmp_path: object) -> None:
    """It has the journal's file and memory, and none of its thread."""
    async with open_journal(f"{tmp_path}/run.db") as journal:
        batch = await open_batch(journal)
        child = os.fork()
        if child == 0:
            try:
                batch.find("a", 0)
            except JournalClosedError as error:
                os._exit(7 if "this is a fork" in str(error) else 1)
            os._exit(2)
        assert exit_code_of(child) == 7
        await record(batch, batch.find("a", 0), 1)


async def test_the_end_of_the_block_waits_for_what_was_recorded(journal_path: str) -> None:
    """Also when it is cancelled, or ends with an error."""
    for ending in ("normal", "cancelled", "error"):
        with trio.CancelScope() as scope:
            try:
                async with open_journal(journal_path) as journal:
                    batch = await open_batch(journal, ending)
                    entries = [batch.find(key, 0) for key in range(50)]
                    batch.begin_nowait(entries, lambda _: None)
                    if ending == "cancelled":
                        scope.cancel()
                        await trio.lowlevel.checkpoint()
                    if ending == "error":
                        raise KeyError("mine")
            except KeyError:
                assert ending == "error"
    async with open_journal(journal_path) as journal:
        for ending in ("normal", "cancelled", "error"):
            assert (await open_batch(journal, ending)).items == 50


@pytest.mark.slow
async def test_cancelled_at_any_checkpoint_it_is_closed_and_counts_right(
    tmp_path: object, autojump_clock: MockClock
) -> None:
    """The lock is free, and what was acknowledged is there."""
    path = f"{tmp_path}/run.db"
    acknowledged: set[int] = set()
    rounds = 0

    async def use() -> None:
        nonlocal rounds
        rounds += 1
        async with open_journal(path) as journal:
            batch = await open_batch(journal)
            entry = batch.find(rounds, 0)
            [number] = await batch.begin([entry])
            await batch.end(entry, number, Ending(status="ok", value="1"))
            acknowledged.add(rounds)
            await batch.totals()
            await batch.close()

    async def check() -> None:
        async with open_journal(path) as journal:
            batch = await open_batch(journal)
            for key in range(1, rounds + 1):
                assert batch.find(key, 0).state == "done" or key not in acknowledged

    assert await cancel_at_every_checkpoint(use, check) >= 5


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"version": 3}, TypeError, r"version=...\) takes a string"),
        ({"max_attempts": 0}, ValueError, "from 1 upwards"),
        ({"max_attempts": True}, TypeError, "whole number"),
        ({"encode": str}, TypeError, "encode= and no decode="),
        ({"decode": str}, TypeError, "decode= and no encode="),
        ({"encode": str, "decode": 3}, TypeError, r"decode=...\) takes a function"),
    ],
)
def test_wrong_arguments_are_refused_at_once(
    tmp_path: object, options: dict[str, Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        open_journal(f"{tmp_path}/run.db", **options)
    with pytest.raises(ValueError, match="empty"):
        open_journal("")
    assert not os.path.exists(f"{tmp_path}/run.db")


async def test_reading_what_has_no_ending_is_an_error(tmp_path: object) -> None:
    async with open_journal(f"{tmp_path}/run.db") as journal:
        batch = await open_batch(journal)
        with pytest.raises(JournalError, match="no ending for the item 'a'"):
            await batch.read([batch.find("a", 0)])


async def test_keys_that_were_found_are_known_however_many(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a million, most are on disk when the millionth is looked up."""
    monkeypatch.setattr(_index, "FOUND_IN_MEMORY", 7)
    async with open_journal(f"{tmp_path}/run.db") as journal:
        batch = await open_batch(journal)
        for key in range(30):
            batch.find(key, 0)
        for key in range(30):
            with pytest.raises(JournalKeyError):
                batch.find(key, 0)
        assert batch.find(30, 0).state == "new"


@dataclasses.dataclass
class Ticket:
    text: str
    labels: Any


class Note(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    id: int


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({1: "a"}, {"1": "a"}),
        ([1, 2], (1, 2)),
        ({"a": [(1,)]}, {"a": [[1]]}),
        (Ticket("a", [1]), Ticket("a", (1,))),
        (Note(id=1, text="old"), Note(id=1, text="new")),  # type: ignore[call-arg]
        ("\ud83d\ude42", "\U0001f642"),
    ],
)
async def test_an_item_that_is_not_equal_to_the_one_before_is_a_new_item(
    tmp_path: Path, before: Any, now: Any
) -> None:
    """Seen first as the answer for an old text, kept for a new one that stood in an extra field."""
    assert before != now
    for item, state in ((before, "new"), (before, "done"), (now, "new"), (now, "done")):
        async with open_journal(tmp_path / "run.db") as journal:
            batch = await open_batch(journal)
            entry = batch.find("key", item)
            assert entry.state == state
            if state == "new":
                await record(batch, entry, 1)
