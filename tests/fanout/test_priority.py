"""``priority=``: the most urgent of the items read ahead is started first, and nothing starves."""

import itertools
import math
import random
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

import harness
from harness.errors import FanOutError
from harness.fanout import Priority
from harness.fanout._lookahead import Lookahead
from tests.fanout.probes import (
    AsyncSource,
    Boom,
    Closing,
    Flight,
    Source,
    echo,
    nap,
    nothing_left_behind,
    statuses,
)

BEST_EFFORT = harness.BestEffort()


def itself(item: Any) -> Any:
    return item


async def as_async(items: list[Any]) -> AsyncIterator[Any]:
    """Yield the items, all of them at hand."""
    for item in items:
        yield item


async def with_checkpoints(items: list[Any]) -> AsyncIterator[Any]:
    """Yield the items with a checkpoint before each, as a source that others feed does."""
    for item in items:
        await trio.lowlevel.checkpoint()
        yield item


SOURCES: dict[str, Callable[[list[Any]], Any]] = {
    "a list": list,
    "an iterator": iter,
    "an async generator": as_async,
    "one with checkpoints": with_checkpoints,
}


# Order -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
async def test_the_larger_number_is_first(source: Callable[[list[Any]], Any]) -> None:
    flight = Flight()
    items = [3, 1, 4, 1, 5, 9, 2, 6]
    with nothing_left_behind():
        results = await harness.fan_out(flight, source(items), limit=1, priority=itself)
    assert flight.started == sorted(items, reverse=True)
    assert [result.index for result in results] == list(range(8))
    assert list(results.values()) == items


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
async def test_equal_numbers_keep_the_order_of_the_input(
    source: Callable[[list[Any]], Any],
) -> None:
    flight = Flight()
    items = [(1, "a"), (2, "b"), (1, "c"), (2, "d"), (2, "e")]
    await harness.fan_out(flight, source(items), limit=1, priority=lambda item: item[0])
    assert "".join(name for _, name in flight.started) == "bdeac"


async def test_the_choice_is_among_those_read_ahead() -> None:
    """With a look-ahead of three, the last and most urgent item can be first only from there on."""
    flight = Flight()
    priority = Priority(itself, lookahead=3)
    await harness.fan_out(flight, iter([1, 2, 3, 4, 9]), limit=1, priority=priority)
    assert flight.started == [3, 4, 9, 1, 2]


async def test_a_source_is_read_no_further_than_the_look_ahead(autojump_clock: MockClock) -> None:
    source = Source()
    priority = Priority(itself, lookahead=7)
    async with harness.open_fan_out(nap, source, limit=2, priority=priority) as stream:
        await trio.testing.wait_all_tasks_blocked()
        assert source.pulled <= 2 + 7
        assert stream.statistics().waiting <= 7
        stream.run.cancel()


@pytest.mark.parametrize("window", [1, 3, 8, 20])
async def test_what_is_pulled_and_not_read_never_exceeds_the_window(window: int) -> None:
    source = Source(60)
    read = 0
    async with harness.open_fan_out(
        echo, source, limit=4, window=window, priority=lambda item: -item
    ) as stream:
        for _ in range(30):
            await trio.testing.wait_all_tasks_blocked()
            assert source.pulled - read <= window
            await anext(stream)
            read += 1
        rest = [result async for result in stream]
    assert read + len(rest) == 60


async def test_an_async_source_that_gives_slowly_delays_nothing(
    autojump_clock: MockClock,
) -> None:
    """What has come is started; nobody waits for a look-ahead to be full."""

    async def slowly() -> AsyncIterator[int]:
        for item in (1, 2, 3):
            await trio.sleep(10)
            yield item

    started: list[tuple[int, float]] = []

    async def body(item: int) -> None:
        started.append((item, trio.current_time() - begin))

    begin = trio.current_time()
    with nothing_left_behind():
        await harness.fan_out(body, slowly(), priority=itself)
    assert started == [(1, 10), (2, 20), (3, 30)]


async def test_an_async_source_is_read_while_items_run(autojump_clock: MockClock) -> None:
    """So that there is a choice when one of them ends."""

    async def body(item: int) -> None:
        started.append(item)
        await trio.sleep(10)

    async def slowly() -> AsyncIterator[int]:
        for item in (1, 2, 3, 4):
            await trio.sleep(1)
            yield item

    started: list[int] = []
    await harness.fan_out(body, slowly(), limit=1, priority=itself)
    assert started == [1, 4, 3, 2]


# Ageing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lookahead", [1, 2, 10])
async def test_an_item_is_overtaken_by_as_many_as_the_look_ahead_at_most(lookahead: int) -> None:
    """Behind an endless stream of more urgent ones it would otherwise wait for ever."""
    flight = Flight()
    items = itertools.chain([-1], range(10 * lookahead))
    await harness.fan_out(flight, items, limit=1, priority=Priority(itself, lookahead=lookahead))
    expected = 0 if lookahead == 1 else lookahead
    assert flight.started.index(-1) == expected


@given(
    priorities=st.lists(st.integers(0, 4) | st.floats(allow_nan=False), max_size=60),
    depth=st.integers(1, 12),
    together=st.integers(1, 12),
)
def test_the_order_is_the_one_of_an_obvious_model(
    priorities: list[float], depth: int, together: int
) -> None:
    """The heap and the subtraction against a list that counts who overtook whom."""
    lookahead = Lookahead(Priority(itself, lookahead=depth))
    model: list[list[float]] = []  # Of each that waits: its priority, its index, overtaken by.
    source = iter(enumerate(priorities))
    for_all = len(priorities)
    taken: list[int] = []
    while len(taken) < for_all:
        for index, priority in itertools.islice(source, min(depth, together) - len(model)):
            lookahead.put(priority)
            model.append([priority, index, 0])
        aged = [one for one in model if one[2] >= depth]
        best = aged[0] if aged else max(model, key=lambda one: (one[0], -one[1]))
        model.remove(best)
        for other in model:
            other[2] += other[1] < best[1]
            assert other[2] <= depth
        one = lookahead.take()
        assert one.index == best[1]
        assert one.item == priorities[one.index]
        taken.append(one.index)
    assert len(lookahead.waiting) == 0
    assert sorted(taken) == list(range(for_all))


def test_those_that_went_by_age_do_not_gather() -> None:
    """They stay in the heap, at its bottom, as long as more urgent ones keep coming."""
    lookahead = Lookahead(Priority(itself, lookahead=10))
    by_age = 0
    for number in range(5_000):
        lookahead.put(number)
        if len(lookahead.waiting) == 10:
            by_age += lookahead.take().index != lookahead.pulled - 1
    assert by_age > 1_000
    assert len(lookahead._best) < 100
    assert len(lookahead._oldest) < 100


# Count in = count out ----------------------------------------------------------------------------


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
async def test_items_pulled_and_never_started_are_skipped(
    source: Callable[[list[Any]], Any], autojump_clock: MockClock
) -> None:
    async def body(item: int) -> int:
        if item == 9:
            raise Boom
        await trio.sleep(5)
        return item

    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        await harness.fan_out(body, source(list(range(10))), limit=2, priority=itself)
    results = caught.value.results
    assert [result.index for result in results] == list(range(10))
    assert [result.item for result in results] == list(range(10))
    assert statuses(results) == ["skipped"] * 8 + ["cancelled", "failed"]
    assert all(result.run_id is None for result in results if result.status == "skipped")


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("way_out", ["stop", "cancel", "within", "quorum"])
async def test_every_item_that_was_pulled_has_one_result(
    source: Callable[[list[Any]], Any], way_out: str, autojump_clock: MockClock
) -> None:
    async def body(item: int) -> int:
        await trio.sleep(3 if item == 19 else 1)
        if item == 19 and way_out in ("stop", "cancel"):
            parent = harness.current_run().parent
            assert parent is not None
            parent.stop() if way_out == "stop" else parent.cancel()
        await trio.sleep(1)
        return item

    pulled: list[int] = []

    def counted(item: int) -> int:
        pulled.append(item)
        return item

    policy = harness.Quorum(5) if way_out == "quorum" else BEST_EFFORT
    with nothing_left_behind():
        results = await harness.fan_out(
            body,
            source(list(range(50))),
            limit=4,
            policy=policy,
            within=9 if way_out == "within" else None,
            priority=Priority(counted, lookahead=20),
        )
    indexes = [result.index for result in results]
    expected = 50 if source is list else len(pulled)
    assert indexes == sorted(set(indexes))
    assert len(indexes) == expected
    assert [result.item for result in results] == indexes
    assert "skipped" in statuses(results)
    assert any(result.ok for result in results)


async def test_a_stream_yields_what_was_skipped_after_a_stop(autojump_clock: MockClock) -> None:
    """It is counted, and whoever reads on sees it."""
    async with harness.open_fan_out(
        nap, iter([1] * 30), limit=2, priority=Priority(itself, lookahead=10)
    ) as stream:
        first = await anext(stream)
        stream.run.stop()
        rest = [result async for result in stream]
    assert first.ok
    assert statuses(rest).count("skipped") == stream.summary().skipped > 0
    assert len(rest) + 1 == stream.summary().total
    assert len(stream.results) == 0


async def test_leaving_early_closes_the_source() -> None:
    closing = Closing()
    with nothing_left_behind():
        async with harness.open_fan_out(
            echo, closing.async_numbers(), limit=3, priority=Priority(lambda i: -i, lookahead=5)
        ) as stream:
            first = await anext(stream)
    assert closing.closed == 1
    assert len(closing.tasks) == 1
    left = [result.index for result in stream.results]
    assert sorted([first.index, *left]) == list(range(closing.pulled))


async def test_an_async_source_has_one_owner_and_is_never_asked_twice_at_once() -> None:
    source = AsyncSource(80)
    results = await harness.fan_out(echo, source, limit=7, priority=lambda item: item % 5)
    assert len(results) == 80
    assert len(source.driven_by) == 1
    assert (source.overlapping, source.closed) == (0, 1)


@pytest.mark.parametrize("policy", [harness.FailFast(), BEST_EFFORT])
async def test_what_was_read_before_the_source_failed_still_runs(
    policy: harness.FailFast | harness.BestEffort,
) -> None:
    def breaks() -> Iterator[int]:
        yield from (1, 2, 3)
        raise Boom("source")

    async def async_breaks() -> AsyncIterator[int]:
        for item in breaks():
            yield item

    for source in (breaks(), async_breaks()):
        flight = Flight()
        with nothing_left_behind(), pytest.raises(FanOutError) as caught:
            await harness.fan_out(flight, source, limit=1, policy=policy, priority=itself)
        assert flight.started[:2] == [3, 2]
        assert [str(error) for error in caught.value.exceptions] == ["source"]
        assert len(caught.value.results) == 3


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
async def test_nothing_to_do_is_done(source: Callable[[list[Any]], Any]) -> None:
    with nothing_left_behind():
        assert len(await harness.fan_out(echo, source([]), priority=itself)) == 0


# Bad priorities ----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [None, "high", math.nan, [1]])
async def test_a_priority_that_is_no_number_fails_the_item_at_once(wrong: Any) -> None:
    flight = Flight()
    results = await harness.fan_out(
        flight,
        [1, 2, 3],
        limit=1,
        policy=BEST_EFFORT,
        priority=lambda item: wrong if item == 2 else item,
    )
    assert statuses(results) == ["ok", "failed", "ok"]
    assert flight.started == [3, 1]
    assert isinstance(results[1].error, TypeError)
    assert "must return a number" in str(results[1].error)


async def test_a_priority_function_that_raises_fails_its_item() -> None:
    def breaks(item: int) -> float:
        raise Boom(item)

    results = await harness.fan_out(echo, [1, 2], policy=BEST_EFFORT, priority=breaks)
    assert statuses(results) == ["failed"] * 2
    assert [error.args for error in (results[0].error, results[1].error) if error] == [(1,), (2,)]


@pytest.mark.parametrize("wrong", [1, "urgency", int])
async def test_what_is_no_priority_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="priority="):
        await harness.fan_out(echo, [1], priority=wrong)
    with pytest.raises(TypeError, match="priority="):
        harness.open_fan_out(echo, [1], priority=wrong)
    with pytest.raises(TypeError, match="Priority"):
        Priority(wrong)


@pytest.mark.parametrize("wrong", [0, -1])
def test_a_look_ahead_of_nothing_is_refused(wrong: int) -> None:
    with pytest.raises(ValueError, match="lookahead"):
        Priority(itself, lookahead=wrong)


def test_results_in_input_order_and_priorities_do_not_go_together() -> None:
    with pytest.raises(ValueError, match="ordered=True or priority="):
        harness.open_fan_out(echo, [1], ordered=True, priority=itself)


# What can be seen --------------------------------------------------------------------------------


async def test_the_depth_of_the_queue_is_known_by_priority(autojump_clock: MockClock) -> None:
    async with harness.open_fan_out(nap, [1, 2, 2, 3, 3, 3], limit=1, priority=itself) as stream:
        await trio.testing.wait_all_tasks_blocked()
        now = stream.statistics()
        assert (now.in_flight, now.unread, now.waiting) == (1, 0, 5)
        assert list(now.waiting_by_priority.items()) == [(3, 2), (2, 2), (1, 1)]
        assert "5 read ahead" in str(harness.dump(stream.run))
        await trio.sleep(3.5)
        now = stream.statistics()
        assert (now.in_flight, now.unread, now.waiting) == (1, 1, 4)
    assert stream.statistics().waiting == 0


async def test_without_priorities_nothing_waits(autojump_clock: MockClock) -> None:
    async with harness.open_fan_out(nap, [1] * 5, limit=2) as stream:
        await trio.testing.wait_all_tasks_blocked()
        now = stream.statistics()
        assert (now.in_flight, now.unread, now.waiting) == (2, 0, 0)
        assert dict(now.waiting_by_priority) == {}


async def test_urgent_work_is_done_sooner(autojump_clock: MockClock) -> None:
    """What it is for: with one item in ten urgent, those wait a fraction of the time."""
    rng = random.Random(7)
    items = [(int(rng.random() < 0.1), index) for index in range(500)]

    async def body(item: tuple[int, int]) -> float:
        await trio.sleep(1)
        return trio.current_time() - begin

    waits: dict[str, float] = {}
    for name, priority in (("input order", None), ("urgent first", lambda item: item[0])):
        begin = trio.current_time()
        results = await harness.fan_out(body, items, limit=10, priority=priority)
        ends = [result.value for result in results if result.item[0]]
        waits[name] = sum(ends) / len(ends)
        assert max(result.value for result in results) == 50
    assert waits["urgent first"] < 0.85 * waits["input order"]
