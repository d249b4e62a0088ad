"""With a journal a fan-out goes on where an earlier one ended, however that ended.

On a journal in memory and a virtual clock. The same with files and processes that are killed is in
``tests/journal``.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import (
    FanOutError,
    JournaledError,
    JournalError,
    JournalMismatchError,
    QuorumError,
)
from harness.policies import Decision, Judge
from tests.fanout.journaled import Body, key_of, killed, run
from tests.fanout.probes import Boom
from tests.support.memory_journal import MemoryJournal, disk_is_full

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


def is_one(item: Any) -> bool:
    return bool(item == 1)


@pytest.mark.parametrize("priority", [None, lambda item: item], ids=["in order", "priority"])
@pytest.mark.parametrize(
    "policy",
    [harness.FailFast(), harness.BestEffort(critical=is_one)],
    ids=["fail fast", "critical"],
)
async def test_kept_failures_are_raised_once_everything_to_do_has_run(
    autojump_clock: MockClock, policy: Any, priority: Any
) -> None:
    """The second night was green, although what had failed in the first still had no value."""
    journal = MemoryJournal()
    with pytest.raises(FanOutError):
        await run(journal, Body(fails=is_one), range(3), policy=policy)
    for items in (range(5), range(5)):  # The third night, too, when nothing is left to do.
        with pytest.raises(FanOutError, match=r"1 item .* failed, in an earlier") as caught:
            await run(journal, Body(), items, policy=policy, priority=priority)
        results: harness.Results[Any] = caught.value.results
        assert [one.status for one in results] == ["ok", "failed", "ok", "ok", "ok"]
        [failed] = results.failed
        assert isinstance(failed.error, JournaledError)
        assert (failed.error.type_name, failed.error.message) == ("Boom", "1")
        assert caught.value.exceptions == (failed.error,)


async def test_a_stream_raises_kept_failures_after_its_last_result(
    autojump_clock: MockClock,
) -> None:
    journal = MemoryJournal()
    await run(journal, Body(fails=is_one), range(3))
    read: list[Any] = []
    with pytest.raises(FanOutError, match="in an earlier session"):
        async with harness.open_fan_out(Body(), range(5), journal=journal, key=key_of) as stream:
            async for one in stream:
                read.append(one.status)
    assert sorted(read) == ["failed", "ok", "ok", "ok", "ok"]


async def test_kept_failures_are_among_the_results_if_the_journal_says_so(
    autojump_clock: MockClock,
) -> None:
    journal = MemoryJournal()
    await run(journal, Body(fails=is_one), range(3))
    journal.kept = "return"
    body = Body()
    results = await run(journal, body, range(5), policy=harness.FailFast())
    assert sorted(body.ran) == [3, 4]
    assert [one.key for one in results.failed] == ["k1"]


async def test_kept_failures_break_no_policy_that_allows_them(autojump_clock: MockClock) -> None:
    journal = MemoryJournal()
    await run(journal, Body(fails=is_one), range(3))
    for policy in (
        harness.BestEffort(),
        harness.BestEffort(critical=lambda item: item == 2),
        harness.BestEffort(max_failures=0),  # It counts those of this session.
    ):
        results = await run(journal, Body(), range(5), policy=policy)
        assert len(results.failed) == 1


async def test_a_failure_of_this_session_is_raised_with_the_kept_ones(
    autojump_clock: MockClock,
) -> None:
    journal = MemoryJournal()
    await run(journal, Body(fails=is_one), range(3))
    with pytest.raises(FanOutError, match=r"2 items .* failed, 1 of them in an earlier") as caught:
        await run(journal, Body(fails=lambda item: item == 4), range(9), policy=harness.FailFast())
    assert [one.key for one in caught.value.results.failed] == ["k1", "k4"]


async def test_an_item_that_is_set_aside_fails_the_fan_out_in_that_session_and_after(
    autojump_clock: MockClock,
) -> None:
    journal = MemoryJournal(max_attempts=1)
    journal = await killed(journal, range(1), at=0.5)
    journal.items[(str, "k0")].attempts[-1].alone = True
    for _ in range(2):
        with pytest.raises(FanOutError, match="SetAside") as caught:
            await run(journal, Body(), range(3), policy=harness.FailFast())
        assert [one.status for one in caught.value.results] == ["failed", "ok", "ok"]


async def test_a_cancel_from_outside_goes_before_kept_failures(autojump_clock: MockClock) -> None:
    """Not everything has run, so whether they are all there is to tell isn't known."""
    journal = MemoryJournal()
    await run(journal, Body(fails=is_one), range(3))
    with trio.move_on_after(0.5) as scope:
        await run(journal, Body(), range(5), policy=harness.FailFast())
    assert scope.cancelled_caught


async def test_a_policy_of_ones_own_can_hear_of_kept_failures(autojump_clock: MockClock) -> None:
    class OfMine(Judge):
        hears_kept = False

        def __init__(self, *, broken: bool) -> None:
            self.broken = broken

        def heard(self, result: Any) -> Decision:
            return Decision.GO_ON

        def kept_failure(self, result: Any) -> bool:
            if self.broken:
                raise ZeroDivisionError
            return False

    class Policy:
        def __init__(self, *, broken: bool) -> None:
            self.broken = broken

        def begin(self, total: int | None) -> Judge:
            return OfMine(broken=self.broken)

    journal = MemoryJournal()
    await run(journal, Body(fails=is_one), range(3))
    assert len(await run(journal, Body(), range(3), policy=Policy(broken=False))) == 3
    with pytest.raises(FanOutError) as caught:
        await run(journal, Body(), range(3), policy=Policy(broken=True))
    assert isinstance(caught.value.exceptions[0], ZeroDivisionError)


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
