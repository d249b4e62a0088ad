"""With a journal, attempts count over all processes, and what kills one is run alone."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import (
    JournaledError,
    RateLimitedError,
)
from tests.fanout.journaled import Body, key_of, killed, run
from tests.fanout.probes import Boom
from tests.support.memory_journal import MemoryJournal


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
            assert inside.idempotency_key == run.idempotency_key
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
