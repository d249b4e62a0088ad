"""`Quorum(k)` and `FirstSuccess` end as soon as enough is known, either way."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError, QuorumError
from tests.fanout.probes import (
    AsyncSource,
    Boom,
    Flight,
    Source,
    fan_out_run,
    nap,
    nothing_left_behind,
    statuses,
)


async def fails_if_negative(item: float) -> float:
    """Sleep for as long as the item says, and fail when it is negative."""
    await trio.sleep(abs(item))
    if item < 0:
        raise Boom(item)
    return item


async def test_a_quorum_ends_with_the_kth_success(autojump_clock: MockClock) -> None:
    begin = trio.current_time()
    with nothing_left_behind():
        results = await harness.fan_out(
            fails_if_negative, [4, -1, 2, 3, 9, 9, 9], policy=harness.Quorum(2), limit=5
        )
    assert trio.current_time() - begin == 3
    # The slot of the item that failed at 1 s, and that of 2 s, went to the next two.
    assert statuses(results) == [
        "cancelled",
        "failed",
        "ok",
        "ok",
        "cancelled",
        "cancelled",
        "cancelled",
    ]
    assert list(results.values()) == [2, 3]


async def test_what_was_not_started_when_the_quorum_was_reached_is_skipped(
    autojump_clock: MockClock,
) -> None:
    results = await harness.fan_out(nap, [1, 9, 9, 9, 9], policy=harness.Quorum(1), limit=2)
    assert statuses(results) == ["ok", "cancelled", "skipped", "skipped", "skipped"]


async def test_a_degraded_answer_counts_for_the_quorum(autojump_clock: MockClock) -> None:
    each = harness.Attempt(fallback=lambda item, error: 0)
    results = await harness.fan_out(
        fails_if_negative, [-1, -2, -50], policy=harness.Quorum(2), each=each
    )
    assert statuses(results) == ["ok", "ok", "cancelled"]


async def test_an_impossible_quorum_raises_as_soon_as_that_is_certain(
    autojump_clock: MockClock,
) -> None:
    """With 4 items and 2 failures, 3 can't succeed any more: nobody waits for the rest."""
    begin = trio.current_time()
    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        await harness.fan_out(fails_if_negative, [-1, -2, 90, 90], policy=harness.Quorum(3))
    assert trio.current_time() - begin == 2
    entries = caught.value.exceptions
    assert sorted(type(entry).__name__ for entry in entries) == ["Boom", "Boom", "QuorumError"]
    assert statuses(caught.value.results) == ["failed", "failed", "cancelled", "cancelled"]
    [quorum] = [entry for entry in entries if isinstance(entry, QuorumError)]
    assert "3" in str(quorum)


async def test_a_quorum_above_the_number_of_items_raises_before_anything_runs(
    autojump_clock: MockClock,
) -> None:
    flight = Flight()
    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        await harness.fan_out(flight, [1, 2, 3], policy=harness.Quorum(4))
    assert [type(entry) for entry in caught.value.exceptions] == [QuorumError]
    assert flight.started == []
    assert statuses(caught.value.results) == ["skipped"] * 3


@pytest.mark.parametrize("kind", [Source, AsyncSource], ids=["iterator", "async iterator"])
async def test_of_an_iterator_a_quorum_is_impossible_once_it_has_ended(
    autojump_clock: MockClock, kind: Any
) -> None:
    async def body(item: int) -> int:
        await trio.sleep(1 + item)
        if item < 2:
            raise Boom(item)
        return item

    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        await harness.fan_out(body, kind(4), policy=harness.Quorum(3))
    assert QuorumError in [type(entry) for entry in caught.value.exceptions]
    assert len(caught.value.results) == 4


async def test_cancelled_items_make_a_quorum_impossible_too(autojump_clock: MockClock) -> None:
    async def body(item: int) -> None:
        harness.current_run().cancel()
        await trio.sleep(1)

    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        await harness.fan_out(body, range(3), policy=harness.Quorum(1))
    assert [type(entry) for entry in caught.value.exceptions] == [QuorumError]
    assert statuses(caught.value.results) == ["cancelled"] * 3


async def test_a_quorum_that_within_cuts_short_raises(autojump_clock: MockClock) -> None:
    begin = trio.current_time()
    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        await harness.fan_out(nap, [1, 2, 9, 9], policy=harness.Quorum(3), within=5)
    assert trio.current_time() - begin == 5
    assert [type(entry) for entry in caught.value.exceptions] == [QuorumError]
    assert statuses(caught.value.results) == ["ok", "ok", "cancelled", "cancelled"]


@pytest.mark.parametrize("way", ["cancel", "stop"])
async def test_a_quorum_that_a_cancel_or_stop_cuts_short_raises(
    autojump_clock: MockClock, way: str
) -> None:
    async def body(item: int) -> int:
        await trio.sleep(item)
        if item == 1:
            getattr(fan_out_run(), way)("enough")
        return item

    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        await harness.fan_out(body, [1, 2, 3], policy=harness.Quorum(3), limit=1)
    assert QuorumError in [type(entry) for entry in caught.value.exceptions]


async def test_first_success_is_the_first_answer(autojump_clock: MockClock) -> None:
    begin = trio.current_time()
    with nothing_left_behind():
        results = await harness.fan_out(
            fails_if_negative, [9, 5, -1, 7], policy=harness.FirstSuccess()
        )
    assert trio.current_time() - begin == 5
    assert list(results.values()) == [5]
    assert statuses(results) == ["cancelled", "ok", "failed", "cancelled"]


async def test_a_fast_failure_does_not_lose_to_a_slow_success(autojump_clock: MockClock) -> None:
    results = await harness.fan_out(
        fails_if_negative, [-0.1, 60], policy=harness.FirstSuccess(), limit=1
    )
    assert list(results.values()) == [60]


async def test_first_success_without_any_raises_all_failures(autojump_clock: MockClock) -> None:
    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        await harness.fan_out(fails_if_negative, [-1, -2, -3], policy=harness.FirstSuccess())
    assert sorted(type(entry).__name__ for entry in caught.value.exceptions) == [
        "Boom",
        "Boom",
        "Boom",
        "QuorumError",
    ]


async def test_first_success_of_nothing_is_impossible(autojump_clock: MockClock) -> None:
    empty: list[Any] = [[], iter(())]
    for items in empty:
        with nothing_left_behind(), pytest.raises(FanOutError) as caught:
            await harness.fan_out(nap, items, policy=harness.FirstSuccess())
        assert [type(entry) for entry in caught.value.exceptions] == [QuorumError]


async def test_a_loser_is_cancelled_with_a_reason(autojump_clock: MockClock) -> None:
    runs: list[harness.Run] = []

    async def body(item: int) -> int:
        runs.append(harness.current_run())
        await trio.sleep(item)
        return item

    results = await harness.fan_out(body, [1, 50], policy=harness.FirstSuccess())
    assert statuses(results) == ["ok", "cancelled"]
    [loser] = [run for run in runs if run.status == "cancelled"]
    assert loser.cancel_reason
    assert loser.cancel_reason in str(results[1].error)


async def test_the_words_of_a_missed_quorum_count_needs_endings_and_successes(
    autojump_clock: MockClock,
) -> None:
    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(fails_if_negative, [1, -2, -3, 90], policy=harness.Quorum(3))
    [quorum] = [entry for entry in caught.value.exceptions if isinstance(entry, QuorumError)]
    assert "3 successes were needed of 4 items" in str(quorum)
    assert "1 of those succeeded" in str(quorum)
    assert "3 successes were needed of 4 items; 4 ended" in str(caught.value)
    assert "2 items failed; the first is item 1: Boom: -2" in str(caught.value)
