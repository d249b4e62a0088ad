"""`limit=` may be something that changes while the fan-out runs."""

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import harness
from harness.flow import Router
from harness.journal import open_journal
from harness.limits import AdaptiveCapacity, Limiter
from tests.fanout.probes import Flight, StatusError, nap, nothing_left_behind


async def _items(count: int) -> Any:
    for number in range(count):
        await trio.lowlevel.checkpoint()
        yield 1 + number * 0


@pytest.mark.parametrize("kind", ["list", "async", "journal", "priority", "router"])
async def test_more_are_started_as_soon_as_the_limit_grows(
    autojump_clock: MockClock, tmp_path: Path, kind: str
) -> None:
    """Nothing has to end for it: here everything in flight would take an hour."""
    flight, limit = Flight(lambda item: nap(3600)), harness.Limit(2)
    items: Any = _items(100) if kind == "async" else range(100)
    more: dict[str, Any] = {"priority": lambda item: 0} if kind == "priority" else {}
    async with trio.open_nursery() as nursery, open_journal(tmp_path / "j") as journal:
        if kind == "router":
            router: Router[int, None] = Router(lambda item: "a", tracks={"a": flight})
            nursery.start_soon(lambda: router.run(items, limit=limit))
        else:
            if kind == "journal":
                more = {"journal": journal, "key": int}
            nursery.start_soon(lambda: harness.fan_out(flight, items, limit=limit, **more))
        for count in (2, 7, 7, 90):
            limit.change(max(count, 2))
            await trio.sleep(1)
            assert flight.live == count
        nursery.cancel_scope.cancel()


async def test_a_smaller_limit_cancels_nothing_and_is_kept_from_then_on(
    autojump_clock: MockClock,
) -> None:
    limit, flight = harness.Limit(5), Flight(nap)
    with nothing_left_behind():
        async with harness.open_fan_out(flight, [2] * 9, limit=limit, window=9) as stream:
            await trio.sleep(1)
            limit.change(2)
            assert flight.live == 5
            await trio.sleep(2)
            assert flight.live == 2
            assert len([result async for result in stream]) == 9
    assert trio.current_time() >= 6


async def test_a_limit_of_nothing_pauses_until_it_is_changed(autojump_clock: MockClock) -> None:
    limit, flight = harness.Limit(1), Flight(nap)
    async with harness.open_fan_out(flight, [1] * 3, limit=limit) as stream:
        await trio.sleep(0.5)
        limit.change(0)
        await trio.sleep(100)
        assert len(flight.ended) == 1
        assert flight.live == 0
        limit.change(2)
        assert [result.status async for result in stream] == ["ok"] * 3


async def test_the_usual_window_of_a_stream_grows_with_the_limit(
    autojump_clock: MockClock,
) -> None:
    limit, flight = harness.Limit(1), Flight(nap)
    async with harness.open_fan_out(flight, [50] * 99, limit=limit) as stream:
        limit.change(40)
        await trio.sleep(1)
        assert flight.live == 40
        stream.run.cancel()


async def test_a_source_may_change_the_limit_itself(autojump_clock: MockClock) -> None:
    limit = harness.Limit(1)

    def items() -> Any:
        yield 1
        limit.change(3)
        yield from [1, 1]

    begin = trio.current_time()
    results = await harness.fan_out(nap, items(), limit=limit)
    assert results.complete
    assert trio.current_time() - begin == 2
    assert not limit._notices


async def test_an_adaptive_capacity_limits_what_is_started(autojump_clock: MockClock) -> None:
    """Items wait where they cost nothing, instead of in the line of the limiter."""
    capacity = AdaptiveCapacity(minimum=1, start=8, maximum=8, cooldown=60)
    limiter = Limiter("provider", concurrent=capacity)
    flight = Flight()

    async def ask(item: int) -> int:
        async with limiter.reserve() as reservation:
            await trio.sleep(1)
            if item == 0:
                reservation.settle(status=429)
                raise StatusError(429)
            await trio.sleep(1)
            return item

    flight.work = ask
    async with harness.open_fan_out(
        flight, range(40), limit=capacity, policy=harness.BestEffort(), window=40
    ) as stream:
        await wait_all_tasks_blocked()
        assert flight.live == 8
        await trio.sleep(5)
        assert capacity.limit == 4
        assert flight.live == 4
        stream.run.cancel()


@pytest.mark.parametrize("wrong", [0, -1, True, "3", None, 2.5, harness.Limit, object()])
def test_what_is_no_limit_is_refused(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="whole number from 1 upwards"):
        harness.open_fan_out(nap, [1], limit=wrong)


@pytest.mark.parametrize("wrong", [-1, True, "3", None])
def test_a_change_to_what_is_no_limit_is_refused_and_changes_nothing(wrong: Any) -> None:
    limit = harness.Limit(3)
    with pytest.raises((TypeError, ValueError), match=r"Limit.change\(limit\) takes a whole"):
        limit.change(wrong)
    assert limit.limit == 3
    with pytest.raises((TypeError, ValueError), match=r"Limit\(limit\) takes a whole"):
        harness.Limit(wrong)
