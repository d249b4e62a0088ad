"""With a journal a fan-out goes on where an earlier one ended, however that ended.

On a journal in memory and a virtual clock. The same with files and processes that are killed is in
``tests/journal``.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import harness
from harness.errors import (
    BudgetExceeded,
    FanOutError,
    JournaledError,
    JournalError,
    JournalKeyError,
    JournalMismatchError,
    JournalValueError,
    QuorumError,
    RateLimitedError,
)
from harness.shared import budget_left, reserve_budget
from tests.fanout.probes import Boom
from tests.support.memory_journal import MemoryJournal, disk_is_full


def key_of(item: Any) -> str:
    return f"k{item}"


class Body:
    """A function that notes for which items it ran, and how many at once."""

    def __init__(self, *, seconds: float = 1, fails: Any = lambda item: False) -> None:
        self.seconds = seconds
        self.fails = fails
        self.ran: list[Any] = []
        self.running: set[Any] = set()
        self.beside: dict[Any, int] = {}
        """How many others ran while an item did, at most."""

    async def __call__(self, item: Any) -> Any:
        self.ran.append(item)
        self.running.add(item)
        for one in self.running:
            self.beside[one] = max(self.beside.get(one, 0), len(self.running) - 1)
        try:
            await trio.sleep(self.seconds)
        finally:
            self.running.discard(item)
        if self.fails(item):
            raise Boom(item)
        return (item, {"square": item * item})


async def run(journal: MemoryJournal, body: Any, items: Any, **options: Any) -> Any:
    options = {"policy": harness.BestEffort(), "limit": 4, **options}
    return await harness.fan_out(body, items, journal=journal, key=key_of, **options)


# Resume -------------------------------------------------------------------------------------------


async def test_what_is_done_is_not_run_again(autojump_clock: MockClock) -> None:
    journal, body = MemoryJournal(), Body()
    await run(journal, body, range(10))
    body.ran.clear()
    shuffled = list(range(10))
    random.Random(1).shuffle(shuffled)
    results = await run(journal, body, shuffled)
    assert body.ran == []
    assert [result.item for result in results] == shuffled
    assert [result.key for result in results] == [key_of(item) for item in shuffled]
    assert results.complete


async def test_appended_items_run_and_changed_ones_run_again(autojump_clock: MockClock) -> None:
    journal, ran = MemoryJournal(), []

    async def read(item: dict[str, Any]) -> str:
        ran.append(item["id"])
        return str(item["text"])

    async def session(items: list[dict[str, Any]]) -> Any:
        return await harness.fan_out(read, items, journal=journal, key=lambda item: item["id"])

    await session([{"id": "a", "text": "one"}, {"id": "b", "text": "two"}])
    ran.clear()
    results = await session(
        [{"id": "c", "text": "three"}, {"id": "b", "text": "TWO"}, {"text": "one", "id": "a"}]
    )
    assert sorted(ran) == ["b", "c"]
    assert results.values() == ["three", "TWO", "one"]


async def test_a_resumed_batch_equals_an_unbroken_one(autojump_clock: MockClock) -> None:
    """Down to the type of the values: a tuple is a list in both."""
    each = harness.Attempt(retry=harness.Retry(2), fallback=lambda item, error: [item])

    def session(journal: MemoryJournal, items: Any) -> Any:
        return run(journal, Body(fails=lambda item: item % 3 == 2), items, each=each)

    unbroken = await session(MemoryJournal(), range(9))
    broken = MemoryJournal()
    await session(broken, range(4))
    resumed = await session(broken, range(9))

    def facts(results: Any) -> list[Any]:
        return [
            (one.index, one.key, one.status, one.value, one.attempts, one.degraded)
            for one in results
        ]

    assert facts(resumed) == facts(unbroken)
    assert resumed[0].value == [0, {"square": 0}]
    assert (resumed[2].value, resumed[2].attempts, resumed[2].degraded) == ([2], 2, True)
    assert resumed[2].seconds == pytest.approx(unbroken[2].seconds, abs=1.0)
    assert resumed[2].seconds >= 2


async def test_cancelled_and_skipped_items_are_not_done(autojump_clock: MockClock) -> None:
    journal, body = MemoryJournal(), Body()
    results = await run(journal, body, range(20), within=2.5)
    done = [result.item for result in results if result.ok]
    assert {result.status for result in results} == {"ok", "cancelled", "skipped"}
    assert journal.unended() == []
    body.ran.clear()
    resumed = await run(journal, body, range(20))
    assert resumed.complete
    assert sorted(body.ran) == [item for item in range(20) if item not in done]
    assert {result.attempts for result in resumed} == {1}, "cancelled attempts are given back"


# Failures -----------------------------------------------------------------------------------------


async def test_kept_failures_stand_in_the_results_and_trip_no_policy(
    autojump_clock: MockClock,
) -> None:
    journal = MemoryJournal()
    await run(journal, Body(fails=lambda item: item == 1), range(3))
    body = Body()
    results = await run(journal, body, range(5), policy=harness.FailFast())
    assert sorted(body.ran) == [3, 4]
    [failed] = results.failed
    assert isinstance(failed.error, JournaledError)
    assert (failed.error.type_name, failed.error.message) == ("Boom", "1")
    with pytest.raises(FanOutError) as caught:
        results.raise_if_incomplete()
    assert caught.value.exceptions == (failed.error,)


async def test_timed_out_is_kept_as_timed_out(autojump_clock: MockClock) -> None:
    journal = MemoryJournal()
    each = harness.Attempt(timeout=0.5)
    await run(journal, Body(), [1], each=each)
    [result] = await run(journal, Body(), [1], each=each)
    assert result.status == "timed_out"
    assert isinstance(result.error, JournaledError)
    assert result.error.type_name == "RunTimedOut"


async def test_failed_items_are_retried_on_request(autojump_clock: MockClock) -> None:
    journal = MemoryJournal()
    await run(journal, Body(fails=lambda item: item == 1), range(3))
    again = journal.after_a_crash()
    again.retry_failed = True
    body = Body()
    results = await run(again, body, range(3))
    assert body.ran == [1]
    assert results.complete
    assert results[1].attempts == 2


async def test_kept_successes_count_for_a_quorum(autojump_clock: MockClock) -> None:
    journal = MemoryJournal()
    await run(journal, Body(), range(3))
    body = Body()
    results = await run(journal, body, range(10), policy=harness.Quorum(3))
    assert len(results.values()) >= 3
    assert body.ran == []
    assert results[9].status == "skipped"


async def test_a_quorum_that_kept_failures_make_impossible(autojump_clock: MockClock) -> None:
    journal = MemoryJournal()
    await run(journal, Body(fails=lambda item: True), range(3))
    body = Body()
    with pytest.raises(FanOutError) as caught:
        await run(journal, body, range(4), policy=harness.Quorum(2))
    assert any(isinstance(error, QuorumError) for error in caught.value.exceptions)
    assert body.ran == []


# Durability ---------------------------------------------------------------------------------------


async def test_an_attempt_is_durable_before_the_function_starts(
    autojump_clock: MockClock,
) -> None:
    """Also a retry, and a hedge."""
    journal = MemoryJournal()
    seen: list[tuple[int, int]] = []

    async def body(item: int) -> int:
        calls = sum(one == item for one, _ in seen)
        begun = sum(entry == ("begun", key_of(item)) for entry in journal.log)
        seen.append((item, begun - calls))
        await trio.sleep(10 if item == 0 and not calls else 1)
        if item == 1 and calls < 2:
            raise Boom(item)
        return item

    each = harness.Attempt(retry=harness.Retry(3), hedge=harness.Hedge(after=5))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.slow_disk, 0.3)
        results = await run(journal, body, range(4), each=each)
        nursery.cancel_scope.cancel()
    assert results.complete
    assert len(seen) == 7, "one hedge and two retries"
    assert all(ahead >= 1 for _, ahead in seen)
    assert journal.unended() == []


async def test_a_slot_is_free_when_the_function_ends_and_the_result_comes_when_it_is_durable(
    autojump_clock: MockClock,
) -> None:
    journal, body = MemoryJournal(), Body()
    journal.hold = "endings"
    got: list[int] = []
    async with harness.open_fan_out(
        body, range(8), journal=journal, key=key_of, limit=1, window=4
    ) as stream:

        async def read() -> None:
            async for result in stream:
                got.append(result.item)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.sleep(100)
            # At most ``window`` results wait for the disk, and nothing more is started.
            assert body.ran == [0, 1]
            assert got == []
            journal.release()
    assert got == list(range(8))


async def test_a_fail_fast_error_comes_after_what_ended_is_durable(
    autojump_clock: MockClock,
) -> None:
    journal = MemoryJournal()
    journal.hold = "endings"
    body = Body(fails=lambda item: item == 2)
    async with trio.open_nursery() as nursery:

        async def session() -> None:
            with pytest.raises(FanOutError) as caught:
                await run(journal, body, range(9), policy=harness.FailFast(), limit=3)
            assert [one.item for one in caught.value.results if one.ok] == [0, 1]
            nursery.cancel_scope.cancel()

        nursery.start_soon(session)
        await trio.sleep(50)
        assert not any(status == "ok" for status, _ in journal.log)
        journal.release()
        await trio.sleep_forever()
    endings = [status for status, _ in journal.log if status in ("ok", "failed")]
    assert sorted(endings) == ["failed", "ok", "ok"]


async def test_a_disk_error_ends_the_fan_out(autojump_clock: MockClock) -> None:
    journal, body = MemoryJournal(), Body()
    error = disk_is_full()

    async def fill() -> None:
        await trio.sleep(1.5)
        journal.disk_error = error

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fill)
        with pytest.raises(JournalError) as caught:
            await run(journal, body, range(20))
    assert caught.value is error
    assert trio.current_time() < 5
    assert body.running == set()
    kept = [key for status, key in journal.log if status == "ok"]
    again = journal.after_a_crash()
    body.ran.clear()
    results = await run(again, body, range(20))
    assert results.complete
    assert not {key_of(item) for item in body.ran} & set(kept), "what was acknowledged stays"


async def test_a_dump_says_that_the_disk_is_waited_for(autojump_clock: MockClock) -> None:
    journal = await killed(MemoryJournal(max_attempts=2), range(3), at=0.5, limit=2)
    journal.hold = "endings"
    async with harness.open_fan_out(
        Body(), range(6), journal=journal, key=key_of, limit=2, name="nightly"
    ):
        await trio.sleep(100)
        shown = str(harness.dump())
        journal.release()
    assert "4 on their way to the journal" in shown, "the window, and no more"
    assert "2 to run alone, since their process died before" in shown


async def test_a_disk_error_is_raised_from_a_stream(autojump_clock: MockClock) -> None:
    journal = MemoryJournal()
    journal.disk_error = disk_is_full()
    async with harness.open_fan_out(Body(), range(9), journal=journal, key=key_of) as stream:
        with pytest.raises(JournalError, match="no space left"):
            async for _ in stream:
                pass
        await trio.sleep(1)  # The block's body isn't cancelled.


async def test_a_batch_of_another_function_is_refused(autojump_clock: MockClock) -> None:
    journal = MemoryJournal()

    async def other(item: int) -> int:
        return item

    await run(journal, other, range(3))
    with pytest.raises(JournalMismatchError):
        await run(journal, Body(), range(3))
    async with harness.open_fan_out(
        Body(), range(3), journal=journal, key=key_of, within=5
    ) as stream:
        with pytest.raises(JournalMismatchError):
            await anext(stream)
    assert {one.status for one in stream.results} == {"skipped"}


# Attempts over all processes ----------------------------------------------------------------------


async def killed(journal: MemoryJournal, items: Any, *, at: float, **options: Any) -> MemoryJournal:
    """Run a session, and return what the file has when it is killed at that time."""
    found: list[MemoryJournal] = []

    async def kill() -> None:
        await trio.sleep(at)
        found.append(journal.after_a_crash())
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill)
        await run(journal, options.pop("body", None) or Body(), items, **options)
    return found[0]


async def test_what_was_in_flight_at_a_crash_runs_again_with_its_attempt_counted(
    autojump_clock: MockClock,
) -> None:
    journal = await killed(MemoryJournal(), range(9), at=1.5)
    body = Body()
    results = await run(journal, body, range(9))
    assert sorted(body.ran) == [4, 5, 6, 7, 8]
    assert [result.attempts for result in results] == [1, 1, 1, 1, 2, 2, 2, 2, 1]


async def test_an_item_that_always_kills_the_process_is_set_aside_and_its_neighbours_are_not(
    autojump_clock: MockClock,
) -> None:
    beside: list[int] = []

    async def session(journal: MemoryJournal) -> tuple[MemoryJournal, Any]:
        """Run until the process dies, or to the end."""
        body = Body()

        async def deadly(item: int) -> Any:
            nonlocal journal
            if item != 5:
                return await body(item)
            await trio.sleep(0.5)
            beside.append(len(body.running))
            journal = journal.after_a_crash()
            scope.cancel()
            return await trio.sleep_forever()

        with trio.CancelScope() as scope:
            return journal, await run(journal, deadly, range(12))
        return journal, None

    journal, results, sessions = MemoryJournal(max_attempts=2), None, 0
    while results is None:
        sessions += 1
        assert sessions < 20
        journal, results = await session(journal)
    assert sessions == 3
    assert beside == [3, 0], "its last attempt had nothing beside it"
    assert [one.item for one in results.failed] == [5]
    error = results[5].error
    assert isinstance(error, JournaledError)
    assert error.type_name == "SetAside"
    assert "nothing else in flight" in error.message
    assert "max_attempts is 2" in error.message
    assert len(results.values()) == 11


@pytest.mark.parametrize("most", [1, 2, 3])
async def test_neighbours_of_a_crash_get_a_last_attempt_alone(
    autojump_clock: MockClock, most: int
) -> None:
    """However often they were in flight when the process died, by no fault of their own."""
    journal = MemoryJournal(max_attempts=most)
    for _ in range(most):
        journal = await killed(journal, range(4), at=0.5)
        assert len(journal.unended()) == 4 or most > 1
        if any(one.alone for kept in journal.order for one in kept.attempts):
            break
    body = Body()
    results = await run(journal, body, range(4))
    done = [one for one in results if one.ok]
    assert len(done) >= 3
    assert all(body.beside[one.item] == 0 for one in done)


async def test_suspects_do_not_hold_up_a_window_that_is_full_of_them(
    autojump_clock: MockClock,
) -> None:
    journal = await killed(MemoryJournal(max_attempts=2), range(6), at=0.5, limit=6)
    body = Body()
    got = []
    async with harness.open_fan_out(
        body, range(8), journal=journal, key=key_of, limit=2, window=2, ordered=True
    ) as stream:
        async for result in stream:
            got.append(result.item)
    assert got == list(range(8))
    assert all(body.beside[item] == 0 for item in range(6))


async def test_max_attempts_counts_failures_of_all_processes(autojump_clock: MockClock) -> None:
    """A retry is a decision of this process, and doesn't go beyond it."""
    journal = MemoryJournal(max_attempts=3, retry_failed=True)
    body = Body(fails=lambda item: True)
    each = harness.Attempt(retry=harness.Retry(2))
    first = await run(journal, body, [1], each=each)
    assert (first[0].attempts, len(body.ran)) == (2, 2)
    second = await run(journal.after_a_crash(), body, [1], each=each)
    assert (second[0].attempts, len(body.ran)) == (3, 3)


async def test_an_item_that_always_hangs_ends(autojump_clock: MockClock) -> None:
    """Its user kills the batch each time; at the limit it is set aside, and the batch ends."""
    journal = MemoryJournal(max_attempts=2)

    async def body(item: int) -> int:
        if item == 2:
            await trio.sleep_forever()
        return item

    for _ in range(2):
        journal = await killed(journal, range(5), at=60, body=body)
    results = await run(journal, body, range(5))
    assert [one.status for one in results] == ["ok", "ok", "failed", "ok", "ok"]


async def test_attempts_recorded_ahead_are_given_back(autojump_clock: MockClock) -> None:
    """Items so short that attempts are recorded ahead; then the run is stopped."""
    journal = MemoryJournal()
    count = 0

    async def body(item: int) -> int:
        nonlocal count
        count += 1
        if count == 50:
            harness.current_run().parent.stop("enough")  # type: ignore[union-attr]
        await trio.lowlevel.checkpoint()
        return item

    await run(journal, body, range(1_000), limit=8)
    assert len(journal.begun) > count, "some were recorded ahead"
    assert journal.unended() == []
    results = await run(journal, body, range(1_000), limit=8)
    assert results.complete
    assert {one.attempts for one in results} == {1}


async def test_a_rate_limit_spends_no_attempt(autojump_clock: MockClock) -> None:
    journal, calls = MemoryJournal(), 0

    async def body(item: int) -> int:
        nonlocal calls
        calls += 1
        if calls < 4:
            raise RateLimitedError("slow down", retry_after=1)
        return item

    [result] = await run(journal, body, [1], each=harness.Attempt(retry=harness.Retry(2)))
    assert (result.status, result.attempts, calls) == ("ok", 1, 4)
    assert journal.begun == ["k1"], "the attempt went on with the next call"
    assert journal.unended() == []


async def test_a_hedge_that_lost_is_given_back(autojump_clock: MockClock) -> None:
    journal, calls = MemoryJournal(), 0

    async def body(item: int) -> int:
        nonlocal calls
        calls += 1
        await trio.sleep(100 if calls == 1 else 1)
        return calls

    each = harness.Attempt(hedge=harness.Hedge(after=2))
    [result] = await run(journal, body, [1], each=each)
    assert (result.value, result.attempts) == (2, 1)
    assert sorted(status for status, _ in journal.log) == ["begun", "begun", "cancelled", "ok"]


async def test_a_try_with_a_hedge_counts_once_towards_max_attempts(
    autojump_clock: MockClock,
) -> None:
    """Of two that failed side by side one is given back, so there is an attempt left."""
    journal, calls = MemoryJournal(max_attempts=2), 0

    async def body(item: int) -> int:
        nonlocal calls
        calls += 1
        await trio.sleep(3)
        raise Boom(item)

    each = harness.Attempt(hedge=harness.Hedge(after=2), retry=harness.Retry(9))
    [result] = await run(journal, body, [1], each=each)
    assert (result.status, result.attempts, calls) == ("failed", 2, 4)
    assert journal.unended() == []


async def test_an_item_that_waits_for_a_limiter_gives_its_attempt_back(
    autojump_clock: MockClock,
) -> None:
    journal = MemoryJournal()
    from_limits = harness.Attempt(limiter=_NeverGrants())
    results = await run(journal, Body(), [1], each=from_limits, within=5)
    assert results[0].status == "cancelled"
    assert [status for status, _ in journal.log] == ["begun", "unstarted"]


class _NeverGrants:
    """A limiter that is used up."""

    def reserve(self, *, tokens: int | None = None) -> Any:
        return self

    async def __aenter__(self) -> None:
        await trio.sleep_forever()

    async def __aexit__(self, *exc: object) -> None:
        pass


async def test_the_idempotency_key_is_the_same_in_every_process(
    autojump_clock: MockClock,
) -> None:
    """So that a payment that was sent just before the crash is known by its receiver."""
    seen: list[str] = []

    async def pay(item: int) -> int:
        run = harness.current_run()
        seen.append(run.idempotency_key)
        async with harness.open_run("inside") as inside:
            assert inside.idempotency_key != run.idempotency_key
        await trio.sleep(1)
        if len(seen) == 2:
            raise Boom(item)
        return item

    each = harness.Attempt(retry=harness.Retry(2))
    journal = await killed(MemoryJournal(), [7], at=0.5, body=pay)
    await run(journal, pay, [7], each=each)
    await run(MemoryJournal(), pay, [8, 7])
    assert len(set(seen[:3])) == 1
    assert len(set(seen[3:])) == 2


# Keys and values ----------------------------------------------------------------------------------


async def test_a_journal_needs_keys() -> None:
    journal: Any = MemoryJournal()
    with pytest.raises(TypeError, match=r"needs key=: an item is found again by its key"):
        await harness.fan_out(Body(), [1], journal=journal)
    with pytest.raises(TypeError, match=r"needs key="):
        harness.open_fan_out(Body(), [1], journal=journal)
    with pytest.raises(TypeError, match=r"takes an open journal, not 'run.db'"):
        await harness.fan_out(Body(), [1], journal="run.db", key=key_of)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [None, "", 1.5, True, "k0"], ids=repr)
async def test_a_key_that_names_no_item_is_refused(autojump_clock: MockClock, key: Any) -> None:
    """Not as the failure of that item: it could never be found again to be retried."""
    body = Body()
    keys = ["k0", key, "k2"]
    with pytest.raises(JournalKeyError):
        await harness.fan_out(
            body, range(3), journal=MemoryJournal(), key=lambda item: keys[item], limit=1
        )


async def test_a_key_function_that_raises_ends_the_fan_out(autojump_clock: MockClock) -> None:
    journal = MemoryJournal()
    with pytest.raises(JournalKeyError, match=r"key= raised KeyError\('id'\)"):
        items: list[dict[str, str]] = [{}]
        await harness.fan_out(Body(), items, journal=journal, key=lambda item: item["id"])


async def test_a_value_without_json_fails_its_item_and_is_not_tried_again(
    autojump_clock: MockClock,
) -> None:
    calls = 0

    async def body(item: int) -> Any:
        nonlocal calls
        calls += 1
        await trio.sleep(1)
        return object() if item == 1 else item

    each = harness.Attempt(retry=harness.Retry(5))
    journal = MemoryJournal()
    results = await run(journal, body, range(3), each=each)
    assert [one.status for one in results] == ["ok", "failed", "ok"]
    assert isinstance(results[1].error, JournalValueError)
    assert calls == 3
    assert journal.unended() == []


async def test_a_fallback_may_stand_in_for_a_value_without_json(autojump_clock: MockClock) -> None:
    async def body(item: int) -> Any:
        return object()

    journal = MemoryJournal()
    each = harness.Attempt(fallback=lambda item, error: (item, "guess"))
    [result] = await run(journal, body, [1], each=each)
    assert (result.value, result.degraded) == ([1, "guess"], True)
    [kept] = await run(journal, body, [1], each=each)
    assert (kept.value, kept.degraded, kept.attempts) == ([1, "guess"], True, 1)

    each = harness.Attempt(fallback=lambda item, error: object())
    [result] = await run(MemoryJournal(), body, [1], each=each)
    assert (result.status, result.degraded) == ("failed", False)
    assert isinstance(result.error, JournalValueError)


async def test_a_function_that_is_not_async_is_nothing_to_keep(autojump_clock: MockClock) -> None:
    journal = MemoryJournal()

    def plain(item: int) -> Any:
        return item

    with pytest.raises(TypeError, match="where an awaitable was expected"):
        await run(journal, plain, range(3))
    assert not any(status in ("ok", "failed") for status, _ in journal.log)


# Sources, order, ends -----------------------------------------------------------------------------


async def test_async_sources_are_read_and_closed(autojump_clock: MockClock) -> None:
    journal, body, closed = MemoryJournal(), Body(), 0

    async def numbers(count: int) -> AsyncGenerator[int]:
        nonlocal closed
        try:
            for number in range(count):
                await trio.sleep(0.1)
                yield number
        finally:
            closed += 1

    await run(journal, body, numbers(5))
    results = await run(journal, body, numbers(9))
    assert results.complete
    assert body.ran == list(range(9))
    assert closed == 2


async def test_results_are_read_while_an_async_source_gives_more(
    autojump_clock: MockClock,
) -> None:
    """Seen as a crash of a killed batch's next session: the list that was being read had grown."""
    journal, body = MemoryJournal(), Body()

    async def numbers() -> AsyncGenerator[int]:
        for number in range(300):
            await trio.lowlevel.checkpoint()
            yield number

    await run(journal, Body(seconds=0), range(300))
    results = await run(journal, body, numbers(), limit=50)
    assert [result.item for result in results] == list(range(300))
    assert results.complete
    assert body.ran == []


async def test_a_source_that_breaks_is_told_in_its_turn(autojump_clock: MockClock) -> None:
    journal, body = MemoryJournal(), Body()

    def numbers() -> Iterator[int]:
        yield from range(6)
        raise OSError("the network is gone")

    with pytest.raises(FanOutError, match="could not be read beyond the first 6") as caught:
        await run(journal, body, numbers(), limit=2)
    assert sorted(body.ran) == list(range(6)), "what was read before it is still run"
    assert isinstance(caught.value.exceptions[0], OSError)


async def test_at_most_the_limit_runs_and_few_are_pulled(autojump_clock: MockClock) -> None:
    journal, body, pulled = MemoryJournal(), Body(), 0

    def numbers() -> Iterator[int]:
        nonlocal pulled
        for number in range(10_000):
            pulled += 1
            yield number

    async with harness.open_fan_out(
        body, numbers(), journal=journal, key=key_of, limit=3, window=7
    ) as stream:
        await trio.sleep(20)
        assert len(body.ran) <= 7
        assert pulled <= 14, "the window, and as many ahead"
        await anext(stream)
        await trio.sleep(20)
        assert len(body.ran) <= 8
        assert max(body.beside.values()) == 2


async def test_a_stop_lets_what_is_in_flight_end_and_keeps_it(autojump_clock: MockClock) -> None:
    journal, body = MemoryJournal(), Body()
    async with harness.open_fan_out(
        body, range(50), journal=journal, key=key_of, limit=4
    ) as stream:
        await trio.sleep(1.5)
        stream.run.stop("tea time")
        got = [result async for result in stream]
    assert sorted(result.item for result in got if result.ok) == list(range(8))
    assert {result.status for result in got} == {"ok", "skipped"}
    assert sum(status == "ok" for status, _ in journal.log) == 8
    assert journal.unended() == []


@pytest.mark.parametrize("within", [None, 5.0])
async def test_an_item_that_a_retry_was_owed_to_is_not_done(
    autojump_clock: MockClock, within: float | None
) -> None:
    """Stopped before its retry, or too late for it. Else the journal would keep a failure that an
    unbroken batch would not have had."""
    journal, calls = MemoryJournal(), 0

    async def body(item: int) -> int:
        nonlocal calls
        calls += 1
        await trio.sleep(1)
        if calls == 1:
            raise Boom(item)
        return item

    each = harness.Attempt(retry=harness.Retry(2, first_delay=10, jitter=0))
    async with harness.open_run("outer") as outer, trio.open_nursery() as nursery:
        if within is None:

            async def stop() -> None:
                await trio.sleep(3)
                outer.stop()

            nursery.start_soon(stop)
        [first] = await run(journal, body, [7], each=each, within=within)
    assert (first.status, first.attempts) == ("failed", 1)
    assert isinstance(first.error, Boom)
    [second] = await run(journal, body, [7], each=each)
    assert (second.status, second.attempts) == ("ok", 2)
    assert journal.unended() == []


async def test_priorities_hold_among_what_is_looked_ahead(autojump_clock: MockClock) -> None:
    journal, body = MemoryJournal(), Body()
    await run(journal, Body(), range(0, 20, 2))
    results = await run(journal, body, range(20), priority=lambda item: item, limit=1)
    assert results.complete
    assert body.ran == sorted(range(1, 20, 2), reverse=True)

    def broken(item: int) -> float:
        if item == 3:
            raise Boom(item)
        return item

    results = await run(MemoryJournal(), body, range(5), priority=broken)
    assert [one.item for one in results.failed] == [3]


@pytest.mark.parametrize("window", [1, 3, 12])
async def test_with_priorities_the_window_bounds_what_is_read_ahead(
    autojump_clock: MockClock, window: int
) -> None:
    """As without a journal: a small window is for items that are large."""
    pulled = 0
    read = 0

    def items() -> Iterator[int]:
        nonlocal pulled
        for number in range(100):
            pulled += 1
            assert pulled - read <= window + 1, "one is in the reader's hands"
            yield number

    async with harness.open_fan_out(
        Body(),
        items(),
        journal=MemoryJournal(),
        key=key_of,
        priority=harness.policies.Priority(lambda item: item, lookahead=50),
        window=window,
        limit=2,
    ) as stream:
        async for _ in stream:
            read += 1
            await trio.sleep(10)
    assert read == 100


async def test_nothing_is_started_in_a_run_that_was_stopped_before(
    autojump_clock: MockClock,
) -> None:
    journal, body = MemoryJournal(), Body()
    async with harness.open_run("nightly") as outer:
        outer.stop()
        results = await run(journal, body, range(5))
    assert {one.status for one in results} == {"skipped"}
    assert journal.begun == []


async def test_a_crash_of_the_function_leaves_the_rest_resumable(autojump_clock: MockClock) -> None:
    """SystemExit passes, and what was in flight beside it is given back."""
    journal = MemoryJournal()

    async def body(item: int) -> int:
        await trio.sleep(1 + item % 4)
        if item == 2:
            raise SystemExit(3)
        return item

    with pytest.raises(SystemExit):
        await run(journal, body, range(8))
    assert len(journal.unended()) == 1, "only of the item that ended the process"
    await wait_all_tasks_blocked()


def test_a_program_without_a_journal_loads_none_of_it() -> None:
    names = "[name for name in sys.modules if 'journal' in name or 'sqlite' in name]"
    code = f"import sys, harness; loaded = {names}; assert not loaded, loaded"
    subprocess.run([sys.executable, "-c", code], check=True)


# Budgets ------------------------------------------------------------------------------------------


async def spend(item: int) -> int:
    with reserve_budget(tokens=10) as spending:
        await trio.sleep(1)
        spending.settle(tokens=10, cost_usd=0.25)
    return item


async def test_each_attempt_is_recorded_with_what_was_used_below_it(
    autojump_clock: MockClock,
) -> None:
    journal = MemoryJournal()
    await run(journal, spend, range(3))
    endings = [one.ending for kept in journal.order for one in kept.attempts]
    assert [(one.tokens, one.cost_usd) for one in endings if one] == [(10, 0.25)] * 3


@pytest.mark.parametrize("called", [True, False])
async def test_what_the_fallback_used_is_recorded_too(
    called: bool, autojump_clock: MockClock
) -> None:
    """A cheaper model is one that costs; and its mails go out once, like those of any attempt."""
    journal, keys = MemoryJournal(), list[str]()

    async def fail(item: int) -> int:
        keys.append(harness.current_run().idempotency_key)
        await spend(item)
        raise Boom(item)

    async def fall_back(item: int, error: Exception) -> int:
        keys.append(harness.current_run().idempotency_key)
        return await spend(item)

    limiter = None if called else _Refuses()
    each = harness.Attempt(limiter=limiter, fallback=fall_back)
    [result] = await run(journal, fail, [7], each=each)
    assert (result.value, result.degraded) == (7, True)
    ending = journal.order[0].ending
    assert ending is not None
    assert (ending.tokens, ending.cost_usd) == ((20, 0.5) if called else (10, 0.25))
    assert set(keys) == {"memory:0"}


class _Refuses:
    """A limiter that lets nobody through."""

    def reserve(self, *, tokens: int | None = None) -> Any:
        raise Boom("no")


async def test_a_resumed_batch_goes_on_with_what_is_left_of_its_budget(
    autojump_clock: MockClock,
) -> None:
    journal = MemoryJournal()
    async with harness.open_run("night", budget=harness.Budget(tokens=30)):
        first = await run(journal, spend, range(10), limit=1)
        assert len(first.values()) == 3
        assert budget_left().tokens == 0
        assert isinstance(first.failed[0].error, BudgetExceeded)

        # Once more within the same budget, which has heard of it all: nothing is counted twice.
        await run(journal, spend, range(3), limit=1)
    async with harness.open_run("night", budget=harness.Budget(tokens=50)):
        second = await run(journal, spend, range(10), limit=1)
        assert len(second.values()) == 5, "what found the budget used up was not done, and ran"
        assert budget_left().tokens == 0
        await run(journal, spend, range(3), limit=1)
    async with harness.open_run("night", budget=harness.Budget(tokens=1_000)):
        assert (await run(journal, spend, range(10), limit=1)).complete
        assert budget_left().tokens == 900


async def test_a_budget_of_the_items_own_is_its_own_failure(autojump_clock: MockClock) -> None:
    async def greedy(item: int) -> int:
        async with harness.open_run("inside", budget=harness.Budget(tokens=5)):
            await spend(item)
        return item

    journal = MemoryJournal()
    await run(journal, greedy, [1])
    [result] = await run(journal, greedy, [1])
    assert isinstance(result.error, JournaledError)
    assert result.error.type_name == "BudgetExceeded"
