"""Items that are never started: they cost little, block nobody, and say why they were skipped."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError, ItemSkipped
from tests.fanout.probes import Boom, fan_out_run, nap, statuses

MANY = 20_000


@pytest.mark.parametrize("way", ["failure", "stop", "success"])
async def test_skipping_many_items_lets_other_tasks_run(
    autojump_clock: MockClock, way: str
) -> None:
    """Recording a million skipped items held the whole of trio for a second and a half."""
    turns = 0
    over = False

    async def ticker() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += over

    def items() -> Any:
        class Many(list[int]):
            """Says when its items are asked for that nobody will start."""

            def __iter__(self) -> Any:
                nonlocal over
                for number in range(MANY):
                    over = number > MANY // 2
                    yield number
                over = False

        return Many(range(MANY))

    async def body(item: int) -> None:
        if way == "failure":
            raise Boom(item)
        if way == "stop":
            fan_out_run().stop()
        await trio.lowlevel.checkpoint()

    policy: Any = harness.FirstSuccess() if way == "success" else harness.FailFast()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ticker)
        try:
            results = await harness.fan_out(body, items(), limit=1, policy=policy)
        except FanOutError as error:
            results = error.results
        nursery.cancel_scope.cancel()
    assert len(results) == MANY
    assert results.summary().skipped == MANY - 1
    assert turns >= 5


@pytest.mark.parametrize("form", ["fan_out", "open_fan_out"])
async def test_a_range_too_long_to_have_a_length_is_a_source_without_one(
    autojump_clock: MockClock, form: str
) -> None:
    """``len(range(10**20))`` is an `OverflowError`, which came out of the call."""
    endless = range(10**20)
    if form == "fan_out":
        results = await harness.fan_out(nap, endless, limit=10, within=0)
        assert len(results) == 10
    else:
        async with harness.open_fan_out(nap, endless, limit=10) as stream:
            assert (await anext(stream)).item == 0
        assert len(stream.results) <= 20


@pytest.mark.parametrize("form", ["fan_out", "open_fan_out"])
@pytest.mark.strays
async def test_skipped_items_name_the_reason_of_an_outer_stop(
    autojump_clock: MockClock, form: str
) -> None:
    """They said no more than that the fan-out was over, in `fan_out` but not in a stream."""

    async def stop(run: harness.Run) -> None:
        await trio.sleep(1)
        run.stop("the budget is spent")

    async with trio.open_nursery() as nursery:
        async with harness.open_run("parent") as parent:
            nursery.start_soon(stop, parent)
            if form == "fan_out":
                results = await harness.fan_out(nap, [3, 3, 3], limit=1)
            else:
                async with harness.open_fan_out(nap, [3, 3, 3], limit=1, keep=True) as stream:
                    async for _ in stream:
                        pass
                results = stream.results
    assert statuses(results) == ["ok", "skipped", "skipped"]
    assert isinstance(results[1].error, ItemSkipped)
    assert "the budget is spent" in str(results[1].error)


async def test_skipped_items_name_the_cancel_of_the_fan_out(autojump_clock: MockClock) -> None:
    """They said only that the fan-out was over; the reason was gone with the run."""

    async def body(item: int) -> None:
        await trio.sleep(1)
        fan_out_run().cancel("enough")
        await trio.sleep(1)

    results = await harness.fan_out(body, range(3), limit=1)
    assert statuses(results) == ["cancelled", "skipped", "skipped"]
    assert "enough" in str(results[2].error)


async def test_a_timeout_around_a_fan_out_names_the_line_that_waits(
    autojump_clock: MockClock,
) -> None:
    """It counted the items in flight when they were gone: none of them, all ended."""
    with pytest.raises(harness.errors.RunTimedOut, match="names_the_line_that_waits"):
        async with harness.open_run("outer", timeout=5):
            await harness.fan_out(nap, [9] * 3)
