"""Cancelling or stopping the fan-out's own run returns what there is; an outer cancel passes."""

from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

import harness
from harness.errors import FanOutError, RunCancelled, RunTimedOut
from tests.fanout.probes import Boom, Source, fan_out_run, nap, nothing_left_behind, statuses


async def test_an_item_may_cancel_the_whole(autojump_clock: MockClock) -> None:
    runs: list[harness.Run] = []

    async def body(item: int) -> int:
        runs.append(fan_out_run())
        await trio.sleep(item)
        if item == 2:
            fan_out_run().cancel("found it")
            await trio.lowlevel.checkpoint()
        return item

    with nothing_left_behind():
        results = await harness.fan_out(body, [1, 2, 9, 9, 9, 9], limit=4)
    assert statuses(results) == ["ok"] + ["cancelled"] * 4 + ["skipped"]
    assert isinstance(results[2].error, RunCancelled)
    assert "found it" in str(results[2].error)
    assert runs[0].status == "cancelled"
    assert runs[0].cancel_reason == "found it"


async def test_an_item_that_cancels_the_whole_and_returns_is_ok(
    autojump_clock: MockClock,
) -> None:
    async def body(item: int) -> int:
        if item == 1:
            fan_out_run().cancel("found it")
            return item
        await trio.sleep_forever()
        return item

    results = await harness.fan_out(body, range(3))
    assert results[1].status == "ok"
    assert statuses(results).count("cancelled") == 2


async def test_a_stop_lets_what_is_in_flight_finish_and_skips_the_rest(
    autojump_clock: MockClock,
) -> None:
    runs: list[harness.Run] = []
    stopping: list[bool] = []

    async def body(item: int) -> int:
        runs.append(fan_out_run())
        await trio.sleep(item)
        if item == 1:
            fan_out_run().stop("enough")
        stopping.append(harness.current_run().stopping)
        return item

    begin = trio.current_time()
    with nothing_left_behind():
        results = await harness.fan_out(body, [1, 5, 7, 9, 9], limit=3)
    assert trio.current_time() - begin == 7
    assert statuses(results) == ["ok", "ok", "ok", "skipped", "skipped"]
    assert stopping == [True, True, True]
    assert runs[0].status == "ok"


async def test_a_stop_of_an_outer_run_reaches_the_fan_out(autojump_clock: MockClock) -> None:
    async def body(item: int) -> int:
        await trio.sleep(1)
        if item == 1:
            outer.stop("enough")
        return item

    async with harness.open_run("outer") as outer:
        results = await harness.fan_out(body, range(10), limit=2)
    assert [status for status in statuses(results) if status != "skipped"] in (
        ["ok", "ok"],
        ["ok", "ok", "ok"],  # The other of the first two ended before the one that stops.
    )
    assert len(results) == 10
    assert outer.status == "ok"


async def test_a_failure_after_a_stop_is_still_raised(autojump_clock: MockClock) -> None:
    async def body(item: int) -> None:
        if item == 0:
            fan_out_run().stop()
            return
        await trio.sleep(1)
        raise Boom

    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(body, range(5), limit=2)
    assert "failed" in statuses(caught.value.results)


async def test_a_cancel_with_grace_stops_first_and_cuts_later(autojump_clock: MockClock) -> None:
    async def body(item: int) -> int:
        if item == 1:
            fan_out_run().cancel("closing", grace=5)
        await trio.sleep(item)
        return item

    begin = trio.current_time()
    with nothing_left_behind():
        results = await harness.fan_out(body, [1, 4, 20, 1, 1], limit=3)
    assert trio.current_time() - begin == 5
    assert statuses(results) == ["ok", "ok", "cancelled", "skipped", "skipped"]


async def test_an_outer_cancel_passes_untouched(autojump_clock: MockClock) -> None:
    runs: list[harness.Run] = []
    reached = False

    async def body(item: int) -> None:
        runs.extend([fan_out_run(), harness.current_run()])
        await trio.sleep(item)

    begin = trio.current_time()
    with nothing_left_behind():
        with trio.move_on_after(3) as scope:
            await harness.fan_out(body, Source(), limit=5, policy=harness.BestEffort())
            reached = True
        assert scope.cancelled_caught
    assert not reached
    assert trio.current_time() - begin == 3
    assert runs[0].status == "cancelled"


@pytest.mark.parametrize("limit", [1, 3, 10])
@pytest.mark.parametrize("form", ["fan_out", "open_fan_out"])
@pytest.mark.parametrize(
    "policy",
    [harness.FailFast(), harness.BestEffort(), harness.Quorum(2), harness.FirstSuccess()],
    ids=repr,
)
async def test_an_outer_cancel_passes_under_every_policy(
    autojump_clock: MockClock, policy: Any, form: str, limit: int
) -> None:
    """Also when all items are in flight and only their end is awaited.

    That a cancelled quorum can't be reached is no news to whoever cancelled it.
    """
    with nothing_left_behind(), trio.move_on_after(3) as scope:
        if form == "fan_out":
            await harness.fan_out(nap, [9, 9, 9], policy=policy, limit=limit)
        else:
            async with harness.open_fan_out(nap, [9, 9, 9], policy=policy, limit=limit) as stream:
                async for _ in stream:
                    pass
        pytest.fail("a cancelled fan-out went on")
    assert scope.cancelled_caught


async def test_a_cancelled_of_outside_is_never_wrapped_in_a_group(
    autojump_clock: MockClock,
) -> None:
    with trio.move_on_after(3):
        with pytest.raises(trio.Cancelled):
            await harness.fan_out(nap, [9] * 5)


async def test_a_cancelled_outer_run_ends_quietly(autojump_clock: MockClock) -> None:
    async def body(item: int) -> None:
        await trio.sleep(1)
        outer.cancel("enough")
        await trio.sleep(1)

    with nothing_left_behind():
        async with harness.open_run("outer") as outer:
            await harness.fan_out(body, range(3))
            pytest.fail("a cancelled run went on")
    assert (outer.status, outer.cancel_reason) == ("cancelled", "enough")


async def test_the_deadline_of_an_outer_run_is_that_runs_timeout(
    autojump_clock: MockClock,
) -> None:
    with nothing_left_behind(), pytest.raises(RunTimedOut):
        async with harness.open_run("outer", timeout=3):
            await harness.fan_out(nap, [9] * 5)


async def test_a_failure_beside_an_outer_cancel_is_not_lost(autojump_clock: MockClock) -> None:
    """As with a nursery: the error comes out, beside or in place of the cancel."""

    async def body(item: int) -> None:
        try:
            await trio.sleep_forever()
        finally:
            if item == 1:
                raise Boom("in the cleanup")

    with nothing_left_behind(), pytest.raises((FanOutError, BaseExceptionGroup)) as caught:
        with trio.move_on_after(3):
            await harness.fan_out(body, range(3))
    assert caught.value.subgroup(Boom) is not None


async def test_a_failure_is_not_lost_to_a_cancel_that_comes_during_the_siblings_cleanup(
    autojump_clock: MockClock,
) -> None:
    async def body(item: int) -> None:
        if item == 0:
            await trio.sleep(2)
            raise Boom("first")
        try:
            await trio.sleep_forever()
        finally:
            with harness.cleanup():
                await trio.sleep(2)

    with nothing_left_behind(), pytest.raises((FanOutError, BaseExceptionGroup)) as caught:
        with trio.move_on_after(3):
            await harness.fan_out(body, range(3))
    assert caught.value.subgroup(Boom) is not None


async def test_cancelling_one_fan_out_leaves_another_alone(autojump_clock: MockClock) -> None:
    found: dict[str, Any] = {}

    async def body(item: int) -> int:
        await trio.sleep(item)
        if fan_out_run().name == "a" and item == 2:
            fan_out_run().cancel()
        return item

    async def run(name: str) -> None:
        found[name] = statuses(await harness.fan_out(body, [1, 2, 3], name=name))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, "a")
        nursery.start_soon(run, "b")
    assert found["a"][2] == "cancelled"
    assert found["b"] == ["ok", "ok", "ok"]


async def test_a_fan_out_in_a_cancelled_scope_starts_nothing_that_gets_far(
    autojump_clock: MockClock,
) -> None:
    done: list[int] = []
    source = Source()

    async def body(item: int) -> None:
        await trio.lowlevel.checkpoint()
        done.append(item)

    with trio.CancelScope() as scope:
        scope.cancel()
        await harness.fan_out(body, source, limit=5)
    assert scope.cancelled_caught
    assert done == []
    assert source.pulled <= 5


async def test_fan_out_is_a_checkpoint_even_for_nothing(autojump_clock: MockClock) -> None:
    with trio.testing.assert_checkpoints():
        await harness.fan_out(nap, [])
    with trio.testing.assert_checkpoints():
        await harness.fan_out(nap, [0])


async def test_an_item_cut_short_between_two_attempts_names_the_own_cancel(
    autojump_clock: MockClock,
) -> None:
    """Its last run had ended, so it asked only the runs above the fan-out who had cancelled it."""

    async def body(item: int) -> None:
        await trio.lowlevel.checkpoint()
        raise Boom(item)

    each = harness.Attempt(retry=harness.Retry(3, first_delay=10, jitter=0))
    async with harness.open_fan_out(body, [1], policy=harness.BestEffort(), each=each) as stream:
        await trio.sleep(1)
        stream.run.cancel("the operator said so")
    [result] = stream.results
    assert isinstance(result.error, RunCancelled)
    assert "the operator said so" in str(result.error)
    assert isinstance(result.error.__cause__, Boom)
