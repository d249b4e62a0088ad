"""A fan-out with a journal on disk or on a server: what one in memory can't show."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

import harness
from harness.budgets import budget_left, reserve_budget
from harness.cli import main
from harness.errors import (
    FanOutError,
    JournaledError,
    JournalError,
    JournalKeyError,
    JournalLockedError,
    JournalMismatchError,
    JournalValueError,
)
from harness.journal import backup_journal, edit_journal, open_journal, read_journal
from harness.shared import open_once
from tests.scale import scaled


@attrs.frozen
class Ticket:
    id: int
    text: str


class Body:
    def __init__(self, *fails: int) -> None:
        self.fails = fails
        self.ran: list[int] = []

    async def __call__(self, ticket: Ticket) -> Any:
        self.ran.append(ticket.id)
        with reserve_budget(tokens=10) as spending:
            await trio.sleep(1)
            spending.settle(tokens=10, cost_usd=0.5)
        if ticket.id in self.fails:
            raise ValueError(f"no {ticket.id}")
        return {"of": (ticket.id, ticket.text)}


def tickets(count: int) -> list[Ticket]:
    return [Ticket(number, f"text {number}") for number in range(count)]


def key_of(ticket: Ticket) -> int:
    return ticket.id


async def nightly(journal: Any, body: Any, items: Any, **options: Any) -> Any:
    options = {"policy": harness.BestEffort(), "limit": 3, "name": "nightly", **options}
    return await harness.fan_out(body, items, journal=journal, key=key_of, **options)


def facts(results: Any) -> list[Any]:
    return [
        (
            one.index,
            one.key,
            one.status,
            one.value if one.ok else (one.error.type_name, one.error.message),
            one.attempts,
        )
        if one.ok or isinstance(one.error, JournaledError)
        else (
            one.index,
            one.key,
            one.status,
            (type(one.error).__name__, str(one.error)),
            one.attempts,
        )
        for one in results
    ]


async def test_a_resumed_batch_equals_an_unbroken_one(
    journal_path: str, tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_journal(tmp_path / "unbroken.db") as journal:
        unbroken = await nightly(journal, Body(1), tickets(6))
    async with open_journal(journal_path) as journal:
        await nightly(journal, Body(1), tickets(4))
    body = Body(1)
    async with open_journal(journal_path) as journal:
        resumed = await nightly(journal, body, tickets(6))
    assert facts(resumed) == facts(unbroken)
    assert sorted(body.ran) == [4, 5]
    assert resumed[0].value == {"of": (0, "text 0")}
    assert [one.seconds for one in resumed] == pytest.approx([1.0] * 6, abs=0.01)
    with (
        read_journal(journal_path) as broken,
        read_journal(tmp_path / "unbroken.db") as whole,
    ):
        ours, theirs = broken.totals("nightly"), whole.totals("nightly")
    assert (ours.tokens, ours.cost_usd, ours.attempts) == (60, 3.0, 6)
    same = ("items", "ok", "failed", "attempts", "tokens", "cost_usd", "lost_attempts")
    assert [getattr(ours, name) for name in same] == [getattr(theirs, name) for name in same]
    assert ours.run_seconds == pytest.approx(theirs.run_seconds, abs=0.01)


async def test_a_budget_goes_on_over_sessions(journal_path: str, autojump_clock: MockClock) -> None:
    path = journal_path
    for expected in (3, 3, 5):
        async with open_journal(path) as journal:
            async with harness.open_run("night", budget=harness.Budget(tokens=10 * expected)):
                results = await nightly(journal, Body(), tickets(5), limit=1)
                assert len(results.values()) == expected
                assert budget_left().tokens == 0


@pytest.mark.parametrize("policy", [harness.FailFast(), harness.Quorum(2)], ids=repr)
async def test_a_budget_that_refused_several_calls_of_an_item_leaves_it_open(
    journal_path: str, autojump_clock: MockClock, policy: Any
) -> None:
    """Seen first as items that no later session ran: a group of refusals was kept as a failure."""
    body = Body()

    async def two_calls(ticket: Ticket) -> int:
        calls = [Ticket(ticket.id, "first"), Ticket(ticket.id, "second")]
        return len(await harness.fan_out(body, calls, policy=policy))

    for enough_for, expected in ((2, 1), (6, 3)):
        async with open_journal(journal_path) as journal:
            async with harness.open_run("night", budget=harness.Budget(tokens=10 * enough_for)):
                results = await nightly(journal, two_calls, tickets(3), limit=1)
                assert len(results.values()) == expected


@pytest.mark.parametrize("how", ["within", "cancel", "scope", "fail fast"])
async def test_what_a_function_makes_of_a_cancel_is_no_ending(
    journal_path: str, autojump_clock: MockClock, how: str
) -> None:
    """A client that turns a cancel into an error of its own left items that had failed for good."""

    async def turns(ticket: Ticket) -> None:
        if how == "fail fast" and ticket.id == 0:
            await trio.sleep(1)
            raise ValueError("the only one")
        try:
            await trio.sleep(5)
        except trio.Cancelled:
            raise ConnectionError("closed") from None

    async with open_journal(journal_path, max_attempts=1) as journal:
        if how == "within":
            await nightly(journal, turns, tickets(3), within=1)
        elif how == "scope":
            with trio.move_on_after(1):
                await nightly(journal, turns, tickets(3))
        elif how == "cancel":
            options: Any = {"journal": journal, "key": key_of, "name": "nightly"}
            async with harness.open_fan_out(turns, tickets(3), **options) as stream:
                await trio.sleep(1)
                stream.run.cancel("enough")
        else:
            with pytest.raises(FanOutError):
                await nightly(journal, turns, tickets(3), policy=harness.FailFast())
    failed = {"failed": 1} if how == "fail fast" else {}
    with read_journal(journal_path) as reader:
        assert reader.counts("nightly") == {"open": 3 - len(failed), **failed}
    body = Body()
    async with open_journal(journal_path, max_attempts=1, force=True) as journal:
        await nightly(journal, body, tickets(3))
    assert len(body.ran) == 3 - len(failed)


class Odd(dict[str, int]):
    """Has content that can't be seen, for a reason of its own."""

    def items(self) -> Any:
        raise LookupError("not now")

    __iter__ = items


@pytest.mark.parametrize("source", ["plain", "async"])
@pytest.mark.parametrize("priority", [None, lambda item: 1.0], ids=["", "priority"])
@pytest.mark.parametrize(
    ("key", "item", "expected", "message"),
    [
        (lambda item: 10**5_000, 1, JournalKeyError, "too long to be written"),
        (lambda item: 1, Odd(a=1), JournalValueError, "LookupError: not now"),
    ],
    ids=["key", "item"],
)
async def test_whatever_is_wrong_with_a_key_or_an_item_ends_the_fan_out(
    tmp_path: Path,
    autojump_clock: MockClock,
    source: str,
    priority: Any,
    key: Any,
    item: Any,
    expected: type[JournalError],
    message: str,
) -> None:
    """Seen first as a hang: only the two errors that were foreseen were, and what had been
    counted as waiting never came to an end."""

    async def slowly() -> AsyncIterator[Any]:
        await trio.sleep(1)
        yield item

    body = Body()
    async with open_journal(tmp_path / "run.db") as journal:
        items = [item] if source == "plain" else slowly()
        with trio.fail_after(60), pytest.raises(expected, match=message):
            await harness.fan_out(body, items, journal=journal, key=key, priority=priority)
    assert body.ran == []


async def test_an_error_of_no_kind_in_particular_ends_the_fan_out(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any) -> Any:
        raise ZeroDivisionError("a mistake")

    async with open_journal(tmp_path / "run.db") as journal:
        monkeypatch.setattr("harness.journal._batch.JournalBatch.find", broken)
        with trio.fail_after(60), pytest.raises(ZeroDivisionError, match="a mistake"):
            await nightly(journal, Body(), tickets(3))


async def test_two_fan_outs_share_a_journal_and_not_a_batch(
    journal_path: str, autojump_clock: MockClock
) -> None:
    first, second = Body(), Body(2)
    async with open_journal(journal_path) as journal, trio.open_nursery() as nursery:

        async def work(body: Body, name: str) -> None:
            results = await nightly(journal, body, tickets(5), name=name)
            assert len(results) == 5

        nursery.start_soon(work, first, "first")
        nursery.start_soon(work, second, "second")
        await trio.sleep(0.5)
        with pytest.raises(JournalLockedError, match="another fan-out"):
            await nightly(journal, Body(), tickets(5), name="first")
    assert sorted(first.ran) == sorted(second.ran) == [0, 1, 2, 3, 4]
    with read_journal(journal_path) as reader:
        assert [reader.totals(name).ok for name in ("first", "second")] == [5, 4]


async def test_changed_code_is_refused_with_the_difference(
    journal_path: str, autojump_clock: MockClock
) -> None:
    path = journal_path

    async def other(ticket: Ticket) -> int:
        return 1

    async with open_journal(path, version="one") as journal:
        await nightly(journal, Body(), tickets(2))
        with pytest.raises(
            JournalMismatchError, match=r"the function was '.*Body' and is '.*other'"
        ):
            await nightly(journal, other, tickets(2))
    async with open_journal(path, version="two") as journal:
        with pytest.raises(JournalMismatchError, match="version= was 'one' and is 'two'"):
            await nightly(journal, Body(), tickets(2))
    body = Body()
    async with open_journal(path, version="two", force=True) as journal:
        await nightly(journal, body, tickets(3))
    assert body.ran == [2]


async def test_the_policy_may_end_it_early_and_the_next_session_goes_on(
    journal_path: str, autojump_clock: MockClock
) -> None:
    path = journal_path
    async with open_journal(path) as journal:
        with pytest.raises(harness.errors.FanOutError) as caught:
            await nightly(journal, Body(2), tickets(50), policy=harness.FailFast())
        assert len(caught.value.results) == 50
    with read_journal(path) as reader:
        counts = reader.counts("nightly")
    assert counts["failed"] == 1
    assert "in_flight" not in counts
    body = Body()
    async with open_journal(path, retry_failed=True) as journal:
        results = await nightly(journal, body, tickets(50), policy=harness.FailFast())
    assert results.complete
    assert len(body.ran) == 50 - counts.get("ok", 0)


async def test_a_journal_that_was_left_is_refused(
    journal_path: str, autojump_clock: MockClock
) -> None:
    async with open_journal(journal_path) as journal:
        pass
    body = Body()
    with pytest.raises(JournalError, match="outside its block"):
        await nightly(journal, body, tickets(2))
    assert body.ran == []


async def test_an_endless_source_is_read_as_there_is_room_and_a_stream_may_be_left(
    journal_path: str, autojump_clock: MockClock
) -> None:
    async def forever() -> Any:
        number = 0
        while True:
            yield Ticket(number, "x")
            number += 1

    body = Body()
    async with open_journal(journal_path) as journal:
        async with harness.open_fan_out(
            body, forever(), journal=journal, key=key_of, limit=2, name="nightly"
        ) as stream:
            seen = 0
            async for result in stream:
                assert result.ok
                seen += 1
                if seen == 7:
                    break
    with read_journal(journal_path) as reader:
        totals = reader.totals("nightly")
    assert totals.ok >= 7
    assert totals.lost_attempts == 0


@pytest.mark.slow
async def test_five_of_448_fail_and_all_are_accounted_for(
    journal_path: str, autojump_clock: MockClock
) -> None:
    """Count in is count out, in the results and in the journal's totals, also once resumed."""
    fails = (7, 77, 177, 277, 377)
    for _ in range(2):
        async with open_journal(journal_path) as journal:
            results = await nightly(journal, Body(*fails), tickets(448), limit=50)
        assert len(results) == 448
        assert [one.key for one in results.failed] == list(fails)
        assert len(results.values()) == 443
        assert not results.complete
        with read_journal(journal_path) as reader:
            totals = reader.totals("nightly")
            failures = [item.key for item in reader.items("nightly", statuses=["failed"])]
        assert (totals.items, totals.ok, totals.failed, totals.attempts) == (448, 443, 5, 448)
        assert sorted(failures) == list(fails)


def test_harness_batch_on_a_server(
    postgres_path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("rich", reason="needs the extra cli")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "agent_on_a_server.py").write_text(
        "async def echo(record):\n    return record['id']\n"
    )
    (tmp_path / "in.csv").write_text("id\na\nb\nc\n")
    words = ["batch", "agent_on_a_server.py:echo", "--input", "in.csv", "--key", "id"]
    words += ["--output", "out.jsonl", "--journal"]
    assert main([*words, postgres_path, "--first", "2"]) == 0
    assert main([*words, postgres_path, "--overwrite"]) == 2
    assert "already has 2 items of this batch (2 ok)" in capsys.readouterr().err
    assert main([*words, postgres_path, "--resume"]) == 0
    assert "3 items (2 of them from the journal)" in capsys.readouterr().err
    assert main(["journal", "show", postgres_path]) == 0
    assert capsys.readouterr().out.startswith("batch: 3 items (3 ok), 3 attempts, ")
    for name in ("agent_on_a_server", "harness_target_agent_on_a_server"):
        sys.modules.pop(name, None)


# Names that nobody chose -------------------------------------------------------------------------


async def leaf(item: str) -> str:
    return f"{item} of {harness.current_run().path.split('/')[0]}"


async def test_a_batch_without_a_name_inside_of_an_item_is_refused(journal_path: str) -> None:
    """Seen first as the results of the first item, silently given to all that came after it."""
    async with open_journal(journal_path) as journal:

        async def outer(ticket: int, name: str | None = None) -> list[str]:
            results = await harness.fan_out(
                leaf, ["x", "y"], journal=journal, key=str, name=name and f"{name}-{ticket}"
            )
            return results.values()

        async def run(outer: Callable[[int], Awaitable[list[str]]], name: str) -> Any:
            return await harness.fan_out(
                outer,
                range(3),
                journal=journal,
                key=str,
                name=name,
                limit=1,
                policy=harness.BestEffort(),
            )

        results = await run(outer, "outer")
        assert {result.status for result in results} == {"failed"}
        for result in results:
            assert "is inside an item of another fan-out" in str(result.error)
            assert "name=f'leaf of {item.id}'" in str(result.error)
        results = await run(partial(outer, name="inner"), "named")
        assert results.complete


async def test_an_item_may_have_a_journal_of_its_own(tmp_path: Path) -> None:
    """Then no other item's fan-out is in it."""

    async def outer(ticket: int) -> list[str]:
        async with open_journal(tmp_path / f"{ticket}.db") as inner:
            return (await harness.fan_out(leaf, ["x"], journal=inner, key=str)).values()

    async with open_journal(tmp_path / "run.db") as journal:
        assert (await harness.fan_out(outer, range(3), journal=journal, key=str)).complete


async def test_a_second_batch_without_a_name_is_refused(journal_path: str) -> None:
    """It may go on with the first, or be another one whose items have the same keys."""
    async with open_journal(journal_path) as journal:
        fan_out = partial(harness.fan_out, leaf, ["x"], journal=journal, key=str)
        await fan_out()
        with pytest.raises(JournalError, match=r"already worked on in this block.*name='leaf'"):
            await fan_out()
        assert (await fan_out(name="leaf")).complete
        assert (await fan_out(name="other")).complete
    async with open_journal(journal_path) as journal:
        assert (await harness.fan_out(leaf, ["x"], journal=journal, key=str)).complete


async def keys_of_items(path: Path, items: Sequence[str]) -> dict[str, str]:
    """Run items that note their idempotency keys, and fail so that they run again."""
    keys: dict[str, str] = {}

    async def note(item: str) -> None:
        await trio.lowlevel.checkpoint()
        keys[item] = harness.current_run().idempotency_key
        raise ValueError("not yet")

    async with open_journal(path, retry_failed=True) as journal:
        await harness.fan_out(
            note, items, key=str, journal=journal, name="b", policy=harness.BestEffort()
        )
    return keys


@pytest.mark.parametrize("seed", range(scaled(5, full=100)))
async def test_no_key_is_used_for_two_items_after_a_restore(tmp_path: Path, seed: int) -> None:
    """Numbers that a process gave out made 261 of 290 keys belong to another item."""
    random = Random(seed)
    items = [f"k{number}" for number in range(40)]
    await keys_of_items(tmp_path / "run.db", items[: random.randrange(1, 40)])
    backup_journal(tmp_path / "run.db", tmp_path / "copy.db")
    before = await keys_of_items(tmp_path / "run.db", items)
    random.shuffle(items)
    after = await keys_of_items(tmp_path / "copy.db", items)
    assert after == before, "the effects that were had meanwhile are known by the same keys"
    assert len(set(after.values())) == len(items)


@pytest.mark.parametrize("seed", range(scaled(5, full=100)))
async def test_effects_in_flight_keep_their_keys_after_a_restore(tmp_path: Path, seed: int) -> None:
    """The copy is made in the middle of an effect, beside seven others."""
    draw = Random(seed)
    items = [f"k{number}" for number in range(20)]
    keys: dict[str, set[str]] = {}

    async def session(path: Path, *, copy_at: int | None = None) -> int:
        had = 0

        async def work(item: str) -> None:
            async def effect(key: str) -> None:
                nonlocal had
                number = had = had + 1
                keys.setdefault(item, set()).add(key)
                for _ in range(draw.randrange(4)):
                    await trio.lowlevel.checkpoint()
                if number == copy_at:
                    backup_journal(path, tmp_path / "copy.db")

            await once(f"mail {item}", effect)

        async with (
            open_journal(path) as journal,
            open_once(journal=journal, on_unknown="retry") as once,
        ):
            draw.shuffle(items)
            await harness.fan_out(work, items, key=str, journal=journal, name="b", limit=8)
        return had

    at = draw.randrange(1, 15)
    assert await session(tmp_path / "run.db", copy_at=at) == 20
    assert await session(tmp_path / "copy.db") >= 20 - at - 8
    assert [len(given) for given in keys.values()] == [1] * 20, "another key for the same effect"
    assert len({key for given in keys.values() for key in given}) == 20, "one key for two effects"


async def test_retry_keeps_the_key_of_an_item_and_forget_makes_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    before = await keys_of_items(path, ["a", "b"])
    with edit_journal(path) as editor:
        editor.retry("b", ["a"])
        editor.forget("b", ["b"])
    after = await keys_of_items(path, ["b", "a"])
    assert after["a"] == before["a"]
    assert after["b"] != before["b"]
    with edit_journal(path) as editor:
        editor.forget("b")
    third = await keys_of_items(path, ["a", "b"])
    assert not {*third.values()} & {*before.values(), *after.values()}
