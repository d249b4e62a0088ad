"""`Fold` combines results while they arrive, with the same answer for every order of arrival."""

import itertools
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError
from harness.fanin import Fold
from harness.fanout import Result
from tests.fanout.probes import Boom, echo, nap, nothing_left_behind


def appended(partial: list[Any], result: Result[Any]) -> list[Any]:
    return [*partial, result.value]


def added(partial: int, result: Result[int]) -> int:
    return partial + result.value


async def test_in_input_order_whatever_arrives_first(autojump_clock: MockClock) -> None:
    for delays in itertools.permutations([0, 1, 2, 3]):
        async with harness.open_fan_out(nap, delays, ordered=True) as stream:
            assert await Fold(stream, appended, []).run() == list(delays)


async def test_a_commutative_fold_takes_them_as_they_arrive(autojump_clock: MockClock) -> None:
    seen: list[float] = []

    def add(partial: float, result: Result[float]) -> float:
        seen.append(result.value)
        return partial + result.value

    for delays in itertools.permutations([0, 1, 2, 3]):
        seen.clear()
        async with harness.open_fan_out(nap, delays) as stream:
            assert await Fold(stream, add, 0.0, commutative=True).run() == 6
        assert seen == [0, 1, 2, 3]


async def test_without_an_order_and_not_commutative_it_is_refused() -> None:
    async with harness.open_fan_out(echo, [1, 2]) as stream:
        with pytest.raises(ValueError, match="ordered=True, or say commutative=True"):
            Fold(stream, added, 0)


async def test_the_partial_result_can_be_read_while_it_runs(autojump_clock: MockClock) -> None:
    async with harness.open_fan_out(nap, [1, 2, 4], ordered=True) as stream:
        fold = Fold(stream, lambda partial, result: partial + result.value, 0.0)
        assert (fold.partial, fold.count) == (0, 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fold.run)
            await trio.sleep(3)
            assert (fold.partial, fold.count) == (3, 2)
        assert (fold.partial, fold.count) == (7, 3)


async def test_the_function_may_be_async(autojump_clock: MockClock) -> None:
    async def add(partial: float, result: Result[float]) -> float:
        await trio.sleep(1)
        return partial + result.value

    async with harness.open_fan_out(nap, [1, 2, 4], ordered=True) as stream:
        assert await Fold(stream, add, 0.0).run() == 7


async def test_items_without_a_value_reach_the_function_too() -> None:
    """A fold that left them out would hide what is missing."""

    async def body(item: int) -> int:
        await trio.lowlevel.checkpoint()
        if item == 1:
            raise Boom
        return item

    def count(partial: dict[str, int], result: Result[int]) -> dict[str, int]:
        return {**partial, result.status: partial.get(result.status, 0) + 1}

    async with harness.open_fan_out(
        body, range(4), ordered=True, policy=harness.BestEffort()
    ) as stream:
        nothing: dict[str, int] = {}
        assert await Fold(stream, count, nothing).run() == {"ok": 3, "failed": 1}


async def test_a_broken_policy_is_raised_and_the_partial_result_stays(
    autojump_clock: MockClock,
) -> None:
    async def body(item: int) -> int:
        await trio.sleep(item)
        if item == 3:
            raise Boom
        return item

    with nothing_left_behind(), pytest.raises(FanOutError):
        async with harness.open_fan_out(body, [1, 2, 3, 4], ordered=True) as stream:
            fold = Fold(stream, added, 0)
            await fold.run()
    assert fold.partial == 3


@pytest.mark.parametrize("after", [0.5, 1.5, 2.5])
async def test_a_cancelled_fold_loses_no_result(after: float, autojump_clock: MockClock) -> None:
    async with harness.open_fan_out(nap, [1, 2, 3], ordered=True) as stream:
        fold = Fold(stream, appended, [])
        with trio.move_on_after(after):
            await fold.run()
        rest = [result.value async for result in stream]
    assert [*fold.partial, *rest] == [1, 2, 3]


async def test_an_error_of_the_function_comes_out() -> None:
    def breaks(partial: int, result: Result[int]) -> int:
        raise Boom

    with nothing_left_behind():
        async with harness.open_fan_out(echo, [1], ordered=True) as stream:
            fold = Fold(stream, breaks, 0)
            with pytest.raises(Boom):
                await fold.run()
    assert (fold.partial, fold.count) == (0, 0)


async def test_a_fold_runs_once() -> None:
    async with harness.open_fan_out(echo, [1], ordered=True) as stream:
        fold = Fold(stream, added, 0)
        await fold.run()
        with pytest.raises(RuntimeError, match="runs once"):
            await fold.run()


async def test_a_fold_over_nothing_is_its_beginning() -> None:
    async with harness.open_fan_out(echo, [], ordered=True) as stream:
        assert await Fold(stream, added, 5).run() == 5


async def test_what_is_no_stream_or_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match=r"functools\.reduce"):
        Fold([1, 2], added, 0)  # type: ignore[arg-type]
    async with harness.open_fan_out(echo, [1], ordered=True) as stream:
        with pytest.raises(TypeError, match="a function of the partial value"):
            Fold(stream, 0, added)  # type: ignore[arg-type]
