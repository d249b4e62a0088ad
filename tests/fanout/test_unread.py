"""Partial work is never lost: what was not read stands in ``stream.results``, on every way out."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError
from tests.fanout.probes import Boom, Source, nap, nothing_left_behind, statuses


def indexes(results: Any) -> list[int]:
    """Return the indexes of the results, in their order."""
    return [result.index for result in results]


async def test_after_a_break_the_rest_is_in_results(autojump_clock: MockClock) -> None:
    read: list[int] = []
    with nothing_left_behind():
        async with harness.open_fan_out(nap, [1, 2, 3, 9, 9, 9], limit=5) as stream:
            async for result in stream:
                read.append(result.index)
                await trio.sleep(4)  # The second and third have ended meanwhile.
                break
    assert read == [0]
    assert indexes(stream.results) == [1, 2, 3, 4, 5]
    assert statuses(stream.results)[:2] == ["ok", "ok"]
    assert set(statuses(stream.results)[2:]) <= {"cancelled", "skipped"}


async def test_a_full_reading_leaves_nothing(autojump_clock: MockClock) -> None:
    async with harness.open_fan_out(nap, [1, 2, 3]) as stream:
        async for _ in stream:
            pass
    assert len(stream.results) == 0


async def test_keep_keeps_all_in_input_order(autojump_clock: MockClock) -> None:
    for stop_after in (1, 3, 100):
        async with harness.open_fan_out(nap, [3, 1, 2, 9], keep=True) as stream:
            read = 0
            async for _ in stream:
                read += 1
                if read == stop_after:
                    break
        assert indexes(stream.results) == [0, 1, 2, 3]
        assert isinstance(stream.results, harness.Results)
        assert "ok" in statuses(stream.results)


async def test_of_an_iterator_only_what_was_pulled_has_a_result(
    autojump_clock: MockClock,
) -> None:
    source = Source()
    read: list[int] = []
    with nothing_left_behind():
        async with harness.open_fan_out(nap_one, source, limit=4) as stream:
            async for result in stream:
                read.append(result.index)
                if len(read) == 6:
                    break
    assert sorted(read + indexes(stream.results)) == list(range(source.pulled))


async def nap_one(item: int) -> int:
    """Sleep one second and return the item."""
    await trio.sleep(1)
    return item


async def test_after_an_error_the_unread_results_are_there(autojump_clock: MockClock) -> None:
    async def body(item: int) -> int:
        await trio.sleep(item)
        if item == 3:
            raise Boom(item)
        return item

    read: list[int] = []
    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        async with harness.open_fan_out(body, [1, 2, 3, 50, 50], limit=4) as stream:
            async for result in stream:
                read.append(result.index)
                await trio.sleep(5)
    assert sorted(read + indexes(stream.results)) == [0, 1, 2, 3, 4]
    assert "failed" in [*statuses(stream.results), *statuses(caught.value.results)]


async def test_after_an_error_of_the_body_the_unread_results_are_there(
    autojump_clock: MockClock,
) -> None:
    with nothing_left_behind(), pytest.raises(Boom):
        async with harness.open_fan_out(nap, [1, 2, 50, 50], limit=3) as stream:
            await trio.sleep(3)
            raise Boom
    assert indexes(stream.results) == [0, 1, 2, 3]
    assert statuses(stream.results)[:2] == ["ok", "ok"]


async def test_after_an_outer_cancel_the_unread_results_are_there(
    autojump_clock: MockClock,
) -> None:
    with nothing_left_behind(), trio.move_on_after(3):
        async with harness.open_fan_out(nap, [1, 2, 50, 50], limit=3) as stream:
            await trio.sleep_forever()
    assert indexes(stream.results) == [0, 1, 2, 3]
    # The fourth took the first one's slot.
    assert statuses(stream.results) == ["ok", "ok", "cancelled", "cancelled"]


async def test_unread_results_of_an_error_can_be_kept_in_the_error_with_keep(
    autojump_clock: MockClock,
) -> None:
    async def body(item: int) -> int:
        await trio.sleep(item)
        if item == 3:
            raise Boom(item)
        return item

    with pytest.raises(FanOutError) as caught:
        async with harness.open_fan_out(body, [1, 2, 3, 50], keep=True) as stream:
            async for _ in stream:
                pass
    assert statuses(stream.results) == ["ok", "ok", "failed", "cancelled"]
    assert statuses(caught.value.results) == ["ok", "ok", "failed", "cancelled"]


async def test_the_summary_counts_skipped_items_after_the_block(
    autojump_clock: MockClock,
) -> None:
    """It knew only what had ended, and its total was less than the number of items."""
    async with harness.open_fan_out(nap, [1, 5, 5, 5], limit=2) as stream:
        async for _ in stream:
            break
        assert stream.summary().total == 1
    for _ in range(2):
        summary = stream.summary()
        assert (summary.total, summary.ok, summary.cancelled, summary.skipped) == (4, 1, 2, 1)
    assert statuses(stream.results) == ["cancelled", "cancelled", "skipped"]
    assert stream.summary() == summary


@pytest.mark.parametrize(
    "use",
    [lambda stream: stream.results, lambda stream: stream.summary(), lambda stream: stream.run],
    ids=["results", "summary", "run"],
)
async def test_before_its_block_a_stream_says_what_to_write(
    autojump_clock: MockClock, use: Any
) -> None:
    stream = harness.open_fan_out(nap, [1])
    with pytest.raises(RuntimeError, match="async with"):
        use(stream)


async def test_reading_a_stream_without_its_block_is_refused(autojump_clock: MockClock) -> None:
    """It runs only inside its block, and the reader waited for ever."""
    with trio.fail_after(60), pytest.raises(RuntimeError, match="async with"):
        async for _ in harness.open_fan_out(nap, [1]):
            pytest.fail("there is a result")
