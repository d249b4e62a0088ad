"""`open_fan_out` hands each result over as it ends, or in order, to a body that stays free."""

import math
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError
from tests.fanout.probes import Boom, Flight, Source, echo, nap, nothing_left_behind, statuses


async def fails_if_negative(item: float) -> float:
    """Sleep for as long as the item says, and fail when it is negative."""
    await trio.sleep(abs(item))
    if item < 0:
        raise Boom(item)
    return item


async def test_results_come_as_they_end(autojump_clock: MockClock) -> None:
    times: list[tuple[float, float]] = []
    begin = trio.current_time()
    with nothing_left_behind():
        async with harness.open_fan_out(nap, [4, 1, 3, 2]) as stream:
            async for result in stream:
                times.append((trio.current_time() - begin, result.value))
    assert times == [(1, 1), (2, 2), (3, 3), (4, 4)]


async def test_ordered_results_come_in_input_order_as_early_as_they_can(
    autojump_clock: MockClock,
) -> None:
    times: list[tuple[float, float]] = []
    begin = trio.current_time()
    with nothing_left_behind():
        async with harness.open_fan_out(nap, [2, 1, 4, 3], ordered=True) as stream:
            async for result in stream:
                times.append((trio.current_time() - begin, result.value))
    assert times == [(2, 2), (2, 1), (4, 4), (4, 3)]


async def test_ordered_results_include_failures_in_their_place(autojump_clock: MockClock) -> None:
    async with harness.open_fan_out(
        fails_if_negative, [3, -1, 2], ordered=True, policy=harness.BestEffort()
    ) as stream:
        read = [(result.index, result.status) async for result in stream]
    assert read == [(0, "ok"), (1, "failed"), (2, "ok")]


async def test_ordered_results_include_skipped_and_cancelled_ones_in_their_place(
    autojump_clock: MockClock,
) -> None:
    async with harness.open_fan_out(
        nap, [9, 1, 9, 9], ordered=True, within=5, limit=2, keep=True
    ) as stream:
        read = [result.index async for result in stream]
    assert read == sorted(read)
    assert statuses(stream.results) == ["cancelled", "ok", "cancelled", "skipped"]


async def test_current_run_in_the_body_is_the_readers(autojump_clock: MockClock) -> None:
    async with harness.open_run("reader") as reader:
        async with harness.open_fan_out(echo, range(3), name="nightly") as stream:
            assert harness.current_run() is reader
            assert stream.run.path == "reader/nightly"
            assert stream.run.parent is reader
            assert str(stream.run.status) == "running"
            async for result in stream:
                assert harness.current_run() is reader
                assert result.status == "ok"
        assert harness.current_run() is reader
        assert stream.run.status == "ok"
    async with harness.open_fan_out(echo, range(3)) as stream:
        assert harness.current_run_or_none() is None


async def test_items_run_while_the_body_does_something_else(autojump_clock: MockClock) -> None:
    flight = Flight(nap)
    async with harness.open_fan_out(flight, [1, 1, 1], limit=3) as stream:
        await trio.sleep(5)
        assert len(flight.ended) == 3
        begin = trio.current_time()
        assert [result.value async for result in stream] == [1, 1, 1]
        assert trio.current_time() == begin


async def test_a_failure_is_raised_from_the_iteration(autojump_clock: MockClock) -> None:
    read: list[float] = []
    raised = False
    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        async with harness.open_fan_out(fails_if_negative, [1, -2, 9]) as stream:
            try:
                async for result in stream:
                    if result.status == "ok":
                        read.append(result.value)
            except FanOutError:
                raised = True
                raise
    assert raised
    assert read == [1]
    assert [error.args for error in caught.value.exceptions] == [(-2,)]


async def test_a_failure_that_nobody_read_is_raised_at_the_end_of_the_block(
    autojump_clock: MockClock,
) -> None:
    """The body is never cancelled by a policy: it decides itself when it looks."""
    reached = False
    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        async with harness.open_fan_out(fails_if_negative, [1, -2, 90]) as stream:
            begin = trio.current_time()
            await trio.sleep(50)
            assert trio.current_time() - begin == 50
            reached = True
    assert reached
    assert [error.args for error in caught.value.exceptions] == [(-2,)]
    assert statuses(sorted(stream.results, key=lambda result: result.index)) == [
        "ok",
        "failed",
        "cancelled",
    ]


async def test_a_failure_after_an_early_break_is_raised_at_the_end_of_the_block(
    autojump_clock: MockClock,
) -> None:
    with nothing_left_behind(), pytest.raises(FanOutError):
        async with harness.open_fan_out(fails_if_negative, [1, -2, 90]) as stream:
            async for _ in stream:
                break
            await trio.sleep(10)


async def test_a_failure_that_was_raised_and_handled_is_not_raised_again(
    autojump_clock: MockClock,
) -> None:
    with nothing_left_behind():
        async with harness.open_fan_out(fails_if_negative, [1, -2, 90]) as stream:
            with pytest.raises(FanOutError):
                async for _ in stream:
                    pass
            await trio.sleep(1)


async def test_an_error_of_the_body_comes_out_as_itself(autojump_clock: MockClock) -> None:
    flight = Flight(nap)
    boom = Boom("body")
    with nothing_left_behind(), pytest.raises(Boom) as caught:
        async with harness.open_fan_out(flight, Source(), limit=3):
            await trio.lowlevel.checkpoint()
            raise boom
    assert caught.value is boom
    assert flight.live == 0


async def test_no_policy_error_of_what_an_early_exit_cancelled(autojump_clock: MockClock) -> None:
    """Leaving early is a decision of the reader; what it cuts is cancelled and never raises."""
    with nothing_left_behind():
        async with harness.open_fan_out(nap, [1, 50, 50], policy=harness.FailFast()) as stream:
            async for _ in stream:
                break
    assert sorted(statuses(stream.results)) == ["cancelled", "cancelled"]


async def test_an_early_exit_does_not_raise_for_an_unreached_quorum(
    autojump_clock: MockClock,
) -> None:
    """The reader has what it wanted; that the quorum is open is its own doing."""
    with nothing_left_behind():
        async with harness.open_fan_out(nap, [1, 50, 50], policy=harness.Quorum(2)) as stream:
            async for _ in stream:
                break


async def test_a_cancelled_read_loses_no_result(autojump_clock: MockClock) -> None:
    """``move_on_after`` around a read is how a body stays responsive."""
    read: list[int] = []
    patience_ran_out = 0
    with nothing_left_behind():
        async with harness.open_fan_out(
            lambda item: nap(1 + item % 3), Source(30), limit=4
        ) as stream:
            while True:
                with trio.move_on_after(0.3) as scope:
                    try:
                        result = await stream.__anext__()
                    except StopAsyncIteration:
                        break
                    read.append(result.index)
                patience_ran_out += scope.cancelled_caught
    assert patience_ran_out > 5
    assert sorted(read + [result.index for result in stream.results]) == list(range(30))
    assert sorted(read) == list(range(30))


async def test_cancelling_the_streams_run_ends_the_iteration_not_the_body(
    autojump_clock: MockClock,
) -> None:
    read: list[Any] = []
    with nothing_left_behind():
        async with harness.open_fan_out(nap, [1, 2, 50, 50, 50, 50], limit=3) as stream:
            async for result in stream:
                read.append(result)
                if result.index == 1:
                    stream.run.cancel("enough")
            await trio.sleep(1)
    assert stream.run.status == "cancelled"
    both = sorted([*read, *stream.results], key=lambda result: result.index)
    assert statuses(both) == ["ok", "ok", "cancelled", "cancelled", "cancelled", "skipped"]


async def test_stopping_the_streams_run_finishes_what_is_in_flight(
    autojump_clock: MockClock,
) -> None:
    read: list[Any] = []
    with nothing_left_behind():
        async with harness.open_fan_out(nap, [1, 5, 6, 7, 7], limit=3) as stream:
            async for result in stream:
                read.append(result)
                stream.run.stop("enough")
    assert stream.run.status == "ok"
    both = sorted([*read, *stream.results], key=lambda result: result.index)
    # The fourth took the first one's slot at the instant at which the first ended.
    assert statuses(both) == ["ok", "ok", "ok", "ok", "skipped"]


async def test_an_outer_cancel_ends_body_and_items(autojump_clock: MockClock) -> None:
    flight = Flight(nap)
    with nothing_left_behind():
        with trio.move_on_after(3) as scope:
            async with harness.open_fan_out(flight, [9, 9], limit=2) as stream:
                async for _ in stream:
                    pytest.fail("nothing had ended")
    assert scope.cancelled_caught
    assert flight.live == 0
    assert stream.run.status == "cancelled"


async def test_the_summary_counts_everything_read_or_not(autojump_clock: MockClock) -> None:
    async with harness.open_fan_out(
        fails_if_negative, [1, -2, 3, 4], policy=harness.BestEffort()
    ) as stream:
        async for result in stream:
            if result.index == 2:
                break
    text = str(stream.summary())
    assert "2 of 4 ok" in text
    assert "1 failed" in text
    assert "1 cancelled" in text


async def test_ordered_defaults_to_false_and_the_last_item_ends_the_iteration(
    autojump_clock: MockClock,
) -> None:
    begin = trio.current_time()
    async with harness.open_fan_out(nap, [3, 1]) as stream:
        assert [result.value async for result in stream] == [1, 3]
        assert trio.current_time() - begin == 2 + 1
        with pytest.raises(StopAsyncIteration):
            await stream.__anext__()


async def test_a_stream_of_nothing_ends_at_once(autojump_clock: MockClock) -> None:
    async with harness.open_fan_out(nap, []) as stream:
        assert [result async for result in stream] == []
    assert len(stream.results) == 0


async def test_a_wait_for_a_result_has_words(autojump_clock: MockClock) -> None:
    """`waiting_for` of the reader's run names the stream it waits for."""
    words: list[str] = []

    async def body(item: float) -> None:
        await trio.sleep(1)
        words.append(reader.waiting_for)

    async with harness.open_run("reader") as reader:
        async with harness.open_fan_out(body, [math.pi], name="nightly") as stream:
            async for _ in stream:
                pass
    assert words[0]
