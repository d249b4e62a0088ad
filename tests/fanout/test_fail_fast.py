"""`FailFast`, the default: the first failure ends the rest, and one flat error tells it all."""

import math

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError, RunTimedOut
from tests.fanout.probes import (
    Boom,
    Flight,
    Source,
    living_tasks,
    nap,
    nothing_left_behind,
    statuses,
)


async def test_the_siblings_have_ended_before_the_error_is_seen(
    autojump_clock: MockClock,
) -> None:
    """One of ten fails; the other nine have stopped, their cleanup included."""
    cleaned: list[int] = []

    async def body(item: int) -> None:
        try:
            await trio.sleep(1 if item == 3 else 100)
        finally:
            with harness.cleanup():
                await trio.sleep(2)
            cleaned.append(item)
        raise Boom(item)

    begin, tasks = trio.current_time(), living_tasks()
    flight = Flight(body)
    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        await harness.fan_out(flight, range(10))
    assert trio.current_time() - begin <= 5
    assert living_tasks() == tasks
    assert sorted(cleaned) == list(range(10))
    assert flight.live == 0
    assert [error.args for error in caught.value.exceptions] == [(3,)]


async def test_a_failure_ends_the_rest_at_once(autojump_clock: MockClock) -> None:
    async def body(item: int) -> None:
        await trio.sleep(5 if item == 2 else 100)
        raise Boom(item)

    begin = trio.current_time()
    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(body, range(6), limit=4)
    assert trio.current_time() - begin == 5
    results = caught.value.results
    assert statuses(results) == ["cancelled", "cancelled", "failed", "cancelled"] + ["skipped"] * 2


async def test_what_was_done_before_the_failure_is_in_the_error(
    autojump_clock: MockClock,
) -> None:
    async def body(item: int) -> int:
        await trio.sleep(item)
        if item == 5:
            raise Boom(item)
        return item * 2

    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(body, range(8))
    results = caught.value.results
    assert len(results) == 8
    assert list(results.values()) == [0, 2, 4, 6, 8]
    assert [result.index for result in results.failed] == [5]
    assert statuses(results)[6:] == ["cancelled"] * 2


async def test_two_that_fail_in_the_same_step_are_two_entries(autojump_clock: MockClock) -> None:
    """Both were on their way out when the first was noticed; neither may be lost."""
    event = trio.Event()

    async def body(item: int) -> None:
        if item in (3, 7):
            await event.wait()
            raise Boom(item)
        if item == 5:
            await trio.sleep(1)
            event.set()
        await trio.sleep_forever()

    for _ in range(20):  # trio runs what is ready in a random order.
        event = trio.Event()
        with pytest.raises(FanOutError) as caught:
            await harness.fan_out(body, range(10))
        assert sorted(error.args for error in caught.value.exceptions) == [(3,), (7,)]
        assert statuses(caught.value.results).count("failed") == 2
        assert statuses(caught.value.results).count("cancelled") == 8


async def test_two_sleeps_due_at_the_same_instant_are_two_entries(
    autojump_clock: MockClock,
) -> None:
    """The first failure's cancel would turn the second sleep's end into a `trio.Cancelled`."""

    async def body(item: int) -> None:
        await trio.sleep(1 if item in (3, 7) else 100)
        raise Boom(item)

    for _ in range(20):
        with pytest.raises(FanOutError) as caught:
            await harness.fan_out(body, range(10))
        assert sorted(error.args for error in caught.value.exceptions) == [(3,), (7,)]
        assert statuses(caught.value.results).count("failed") == 2


async def test_two_timeouts_at_the_same_instant_are_two_entries(
    autojump_clock: MockClock,
) -> None:
    def each(item: int) -> harness.Attempt:
        return harness.Attempt(timeout=2 if item in (1, 2) else math.inf)

    for _ in range(10):
        with pytest.raises(FanOutError) as caught:
            await harness.fan_out(nap, [100, 1, 2, 100], each=harness.Attempt(timeout=50))
        assert [type(error) for error in caught.value.exceptions] == [RunTimedOut] * 2
        assert statuses(caught.value.results) == ["timed_out", "ok", "ok", "timed_out"]

        async def waits(item: int) -> None:
            await trio.sleep_forever()

        with pytest.raises(FanOutError) as caught:
            await harness.fan_out(waits, range(4), each=each)
        assert [type(error) for error in caught.value.exceptions] == [RunTimedOut] * 2
        assert statuses(caught.value.results) == [
            "cancelled",
            "timed_out",
            "timed_out",
            "cancelled",
        ]


async def test_items_that_fail_while_they_are_cancelled_are_entries_too(
    autojump_clock: MockClock,
) -> None:
    """An error in a sibling's cleanup is a failed item, and no failed item is dropped."""

    async def body(item: int) -> None:
        if item == 0:
            raise Boom("first")
        try:
            await trio.sleep_forever()
        finally:
            if item == 2:
                raise Boom("cleanup")

    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(body, range(4))
    assert sorted(str(error.args[0]) for error in caught.value.exceptions) == ["cleanup", "first"]
    assert statuses(caught.value.results) == ["failed", "cancelled", "failed", "cancelled"]


async def test_an_item_that_finishes_in_spite_of_the_cancel_is_ok(
    autojump_clock: MockClock,
) -> None:
    async def body(item: int) -> int:
        if item == 0:
            await trio.sleep(1)
            raise Boom
        with trio.CancelScope(shield=True):
            await trio.sleep(3)
        return item

    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(body, range(3))
    assert statuses(caught.value.results) == ["failed", "ok", "ok"]
    assert list(caught.value.results.values()) == [1, 2]


async def test_of_an_iterator_what_was_not_pulled_has_no_result(autojump_clock: MockClock) -> None:
    async def body(item: int) -> None:
        await trio.sleep(1)
        if item == 2:
            raise Boom
        await trio.sleep(100)

    source = Source(50)
    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(body, source, limit=4)
    assert source.pulled == 4
    assert statuses(caught.value.results) == ["cancelled", "cancelled", "failed", "cancelled"]


async def test_a_single_leaf_group_is_an_entry_of_its_own_type(autojump_clock: MockClock) -> None:
    """So ``except* ToolError`` and ``retry`` see the error that the user raised."""

    async def fails() -> None:
        raise Boom("inside")

    async def body(item: int) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails)
            nursery.start_soon(trio.sleep_forever)

    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(body, [1])
    assert [type(error) for error in caught.value.exceptions] == [Boom]


async def test_a_group_of_several_stays_one_entry(autojump_clock: MockClock) -> None:
    """One entry per failed item, however many errors that item had."""

    async def body(item: int) -> None:
        if item == 1:
            raise ExceptionGroup("two", [Boom(1), ExceptionGroup("one", [Boom(2)])])
        await trio.sleep_forever()

    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(body, range(3))
    [entry] = caught.value.exceptions
    assert isinstance(entry, ExceptionGroup)


async def test_a_fan_out_error_of_an_inner_fan_out_is_one_entry(
    autojump_clock: MockClock,
) -> None:
    async def inner(item: int) -> None:
        raise Boom(item)

    async def outer(item: int) -> None:
        await harness.fan_out(inner, range(2), limit=2)

    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        await harness.fan_out(outer, range(1))
    assert len(caught.value.exceptions) == 1


async def test_nothing_raises_when_nothing_failed(autojump_clock: MockClock) -> None:
    results = await harness.fan_out(nap, [1, 2, 3], policy=harness.FailFast())
    assert results.complete


async def test_a_failure_before_the_first_checkpoint_is_handled_alike(
    autojump_clock: MockClock,
) -> None:
    async def body(item: int) -> None:
        raise Boom(item)

    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        await harness.fan_out(body, range(500), limit=3)
    results = caught.value.results
    assert len(results) == 500
    assert len(results.failed) == len(caught.value.exceptions) >= 1
    assert set(statuses(results)) <= {"failed", "cancelled", "skipped"}
    assert statuses(results).count("skipped") >= 490
