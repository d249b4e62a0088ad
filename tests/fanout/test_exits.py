"""`KeyboardInterrupt` and `SystemExit` come out bare, whoever raised them and under any policy."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from tests.fanout.probes import Flight, Source, nothing_left_behind

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
