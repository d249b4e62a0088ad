"""`KeyboardInterrupt` and `SystemExit` come out bare, whoever raised them and under any policy."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from tests.fanout.probes import FakeLimiter, Flight, Source, nothing_left_behind

POLICIES: list[Any] = [
    harness.FailFast(),
    harness.BestEffort(),
    harness.Quorum(2),
    harness.FirstSuccess(),
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@pytest.mark.parametrize("exit_type", [KeyboardInterrupt, SystemExit])
async def test_an_exit_raised_by_an_item_comes_out_bare(
    autojump_clock: MockClock, policy: Any, exit_type: type[BaseException]
) -> None:
    async def body(item: int) -> None:
        await trio.sleep(5)
        if item == 2:
            raise exit_type
        await trio.sleep_forever()

    each = harness.Attempt(retry=harness.Retry(3), fallback=lambda item, error: 1)
    flight = Flight(body)
    with nothing_left_behind(), pytest.raises(exit_type) as caught:
        await harness.fan_out(flight, Source(), limit=4, policy=policy, each=each)
    assert type(caught.value) is exit_type
    assert len(flight.started) == 4
    assert flight.live == 0


@pytest.mark.parametrize("exit_type", [KeyboardInterrupt, SystemExit])
async def test_an_exit_inside_a_nursery_of_an_item_comes_out_bare(
    autojump_clock: MockClock, exit_type: type[BaseException]
) -> None:
    async def leaves() -> None:
        raise exit_type

    async def body(item: int) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leaves)
            nursery.start_soon(trio.sleep_forever)

    with nothing_left_behind(), pytest.raises(exit_type):
        await harness.fan_out(body, range(3))


@pytest.mark.parametrize("exit_type", [KeyboardInterrupt, SystemExit])
async def test_an_exit_raised_by_a_streams_item_comes_out_bare(
    autojump_clock: MockClock, exit_type: type[BaseException]
) -> None:
    async def body(item: int) -> int:
        await trio.sleep(item)
        if item == 2:
            raise exit_type
        return item

    with nothing_left_behind(), pytest.raises(exit_type):
        async with harness.open_fan_out(body, [1, 2, 3]) as stream:
            async for _ in stream:
                pass


async def test_an_exit_raised_by_the_source_or_the_fallback_comes_out_bare(
    autojump_clock: MockClock,
) -> None:
    def numbers() -> Any:
        yield 1
        raise KeyboardInterrupt

    with nothing_left_behind(), pytest.raises(KeyboardInterrupt):
        await harness.fan_out(trio.sleep, numbers())

    async def fails(item: int) -> None:
        raise ValueError

    def leaves(item: int, error: BaseException) -> None:
        raise KeyboardInterrupt

    with nothing_left_behind(), pytest.raises(KeyboardInterrupt):
        await harness.fan_out(fails, [1], each=harness.Attempt(fallback=leaves))


async def test_a_failure_beside_an_exit_leaves_the_exit_visible(
    autojump_clock: MockClock,
) -> None:
    """A failure in the same step must not swallow what asks the process to end."""

    async def body(item: int) -> None:
        await trio.sleep(1)
        raise KeyboardInterrupt if item else ValueError(item)

    for _ in range(10):
        with nothing_left_behind(), pytest.raises(KeyboardInterrupt):
            await harness.fan_out(body, range(2))


@pytest.mark.parametrize("form", ["plain", "hedged", "limited", "stream"])
@pytest.mark.parametrize("exit_type", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("exit_first", [True, False])
async def test_an_exit_beside_an_error_in_one_group_is_never_swallowed(
    autojump_clock: MockClock, form: str, exit_type: type[BaseException], exit_first: bool
) -> None:
    """An item whose nursery lost two tasks at once.

    The first leaf of the group that was an `Exception` won: with the error before the exit the
    item had merely failed, and the program went on as if nobody had asked it to end.
    """
    leaves = [exit_type(), ValueError("beside it")]

    async def body(item: int) -> None:
        await trio.lowlevel.checkpoint()
        raise BaseExceptionGroup("from a nursery", leaves if exit_first else leaves[::-1])

    each = harness.Attempt(
        hedge=harness.Hedge(after=1) if form == "hedged" else None,
        limiter=FakeLimiter() if form == "limited" else None,
    )
    with nothing_left_behind(), pytest.raises(exit_type) as caught:
        if form == "stream":
            async with harness.open_fan_out(body, [1], policy=harness.BestEffort()) as stream:
                async for _ in stream:
                    pass
        else:
            await harness.fan_out(body, [1], policy=harness.BestEffort(), each=each)
    assert type(caught.value) is exit_type
