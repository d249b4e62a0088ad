"""A stage that gathers: when a batch goes, with what, and what becomes of its members."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import RunTimedOut
from harness.flow import DROP, Batch, Pipeline, failed_at, stage
from tests.fanout.probes import Boom, FakeLimiter, Flight, Source, echo, nap, statuses


class Calls:
    """A stage that notes when it is called with what, and takes a second for it."""

    def __init__(self, seconds: float = 1) -> None:
        """Note nothing yet."""
        self.made: list[tuple[float, list[Any]]] = []
        self.seconds = seconds
        self.live = 0
        self.peak = 0

    async def __call__(self, items: list[Any]) -> list[Any]:
        """Return the items, doubled."""
        self.made.append((trio.current_time(), sorted(items)))
        self.live += 1
        self.peak = max(self.peak, self.live)
        try:
            await trio.sleep(self.seconds)
        finally:
            self.live -= 1
        return [2 * item for item in items]


async def test_it_goes_when_it_is_full_and_with_the_rest_when_nothing_more_can_arrive(
    autojump_clock: MockClock,
) -> None:
    calls = Calls()
    results = await Pipeline(stage(echo, limit=1), stage(calls, name="embed", batch=Batch(4))).run(
        range(10)
    )
    assert results.values() == [2 * n for n in range(10)]
    assert calls.made == [(0, [0, 1, 2, 3]), (1, [4, 5, 6, 7]), (2, [8, 9])]  # First come.


@pytest.mark.parametrize("kind", ["list", "iterator", "async iterator"])
async def test_the_last_batch_goes_whatever_the_source(
    autojump_clock: MockClock, kind: str
) -> None:
    """The end of an async source is noticed by a task of its own, after all items are waiting."""

    async def numbers() -> Any:
        for number in range(6):
            yield number
        await trio.sleep(3)

    sources: dict[str, Any] = {
        "list": range(6),
        "iterator": iter(range(6)),
        "async iterator": numbers(),
    }
    calls = Calls()
    results = await Pipeline(stage(calls, name="embed", batch=Batch(4))).run(sources[kind])
    assert results.values() == [2 * n for n in range(6)]
    assert [len(items) for _, items in calls.made] == [4, 2]
    assert calls.made[1][0] == (3 if kind == "async iterator" else 1)


async def test_it_goes_with_what_came_within(autojump_clock: MockClock) -> None:
    """The time counts from the arrival of its first item."""
    calls = Calls(seconds=0.1)
    pipeline = Pipeline(
        stage(nap, limit=9), stage(calls, name="embed", batch=Batch(100, within=2), limit=2)
    )
    await pipeline.run([1, 2, 2.5, 3.5, 9])
    assert calls.made == [(3, [1, 2, 2.5]), (5.5, [3.5]), (9, [9])]


async def test_a_batch_that_is_due_waits_for_a_slot(autojump_clock: MockClock) -> None:
    calls = Calls(seconds=5)
    pipeline = Pipeline(stage(nap, limit=9), stage(calls, name="embed", batch=Batch(9, within=1)))
    await pipeline.run([0, 2, 4, 4.5])
    assert calls.made == [(1, [0]), (6, [2, 4, 4.5])]


async def test_a_dropped_or_failed_item_is_not_waited_for(autojump_clock: MockClock) -> None:
    """The last that could have arrived ended on its way; the batch learns of it at once."""

    async def ends(item: int) -> Any:
        await trio.sleep(item)
        if item == 3:
            raise Boom(item)
        return DROP if item == 2 else item

    calls = Calls()
    results = await Pipeline(stage(ends, limit=9), stage(calls, name="embed", batch=Batch(9))).run(
        [0, 1, 2, 3], policy=harness.BestEffort()
    )
    assert statuses(results) == ["ok", "ok", "ok", "failed"]
    assert calls.made == [(3, [0, 1])]


async def test_the_limit_counts_batches(autojump_clock: MockClock) -> None:
    calls = Calls()
    await Pipeline(stage(calls, name="embed", limit=3, batch=Batch(2))).run(range(20))
    assert calls.peak == 3
    assert trio.current_time() == 4


async def test_the_room_before_it_is_the_buffer_or_a_batch_if_that_is_larger(
    autojump_clock: MockClock,
) -> None:
    for buffer, size, room in ((1, 4, 4), (6, 4, 6), (0, 2, 2)):
        for first in (False, True):
            source = Source()

            async def hang(items: list[Any]) -> list[Any]:
                await trio.sleep_forever()
                return items

            gathers = stage(hang, limit=1, batch=Batch(size))
            stages: list[Any] = [gathers] if first else [stage(echo, limit=3), gathers]
            pipeline = Pipeline(*stages, buffer=buffer)
            with trio.move_on_after(5):
                await pipeline.run(source)
            # A batch under way, a full room, and those that the stage before is done with.
            assert source.pulled == size + room + (0 if first else 3)


async def test_its_failure_fails_every_member(autojump_clock: MockClock) -> None:
    async def breaks(items: list[int]) -> list[int]:
        await trio.sleep(1)
        raise Boom(items)

    pipeline = Pipeline(stage(breaks, name="embed", batch=Batch(3)))
    results = await pipeline.run(range(4), policy=harness.BestEffort())
    assert statuses(results) == ["failed"] * 4
    assert len({str(result.error) for result in results}) == 2
    for result in results:
        assert failed_at(result.error) == ("embed",)
        of_runs = [note for note in getattr(result.error, "__notes__", ()) if "in run" in note]
        [of_run] = of_runs
        assert of_run.split(",")[0].endswith(f"/{result.index}"), "its own, not a sibling's"
    assert pipeline.statistics().stages[0].failed == 2


async def test_a_shared_error_does_not_grow_with_its_members(autojump_clock: MockClock) -> None:
    """A thousand items raise one object; each must not add its frames to all those before."""

    async def breaks(items: list[int]) -> list[int]:
        await trio.sleep(1)
        raise Boom("all")

    lengths: list[int] = []
    for size in (1, 100):
        results = await Pipeline(stage(breaks, batch=Batch(size))).run(
            range(size), policy=harness.BestEffort()
        )
        error = results[0].error
        assert error is not None
        traceback, length = error.__traceback__, 0
        while traceback is not None:
            traceback, length = traceback.tb_next, length + 1
        lengths.append(length)
        assert len(error.__notes__) <= 10
    assert lengths[0] == lengths[1]


async def test_its_timeout_is_that_of_each_member(autojump_clock: MockClock) -> None:
    calls = Calls(seconds=9)
    each = harness.Attempt(timeout=2)
    results = await Pipeline(stage(calls, name="embed", batch=Batch(2), each=each)).run(
        range(2), policy=harness.BestEffort()
    )
    assert statuses(results) == ["timed_out"] * 2
    for result in results:
        assert isinstance(result.error, RunTimedOut)
        assert result.error.run_id == result.run_id
        assert failed_at(result.error) == ("embed",)


async def test_attempts_are_made_for_the_batch(autojump_clock: MockClock) -> None:
    tries = 0

    async def flaky(items: list[int]) -> list[int]:
        nonlocal tries
        tries += 1
        await trio.sleep(1)
        if tries == 1:
            raise Boom(items)
        return items

    limiter = FakeLimiter()
    each = harness.Attempt(
        retry=harness.Retry(2, first_delay=1, jitter=0), limiter=limiter, tokens=len
    )
    results = await Pipeline(stage(flaky, batch=Batch(3), each=each)).run(range(3))
    assert results.values() == [0, 1, 2]
    assert [result.attempts for result in results] == [2, 2, 2]
    assert limiter.asked == [3, 3]


async def test_a_fallback_gives_a_value_for_each(autojump_clock: MockClock) -> None:
    async def breaks(items: list[int]) -> list[int]:
        await trio.sleep(1)
        raise Boom(items)

    each = harness.Attempt(fallback=lambda items, error: [-item for item in items])
    results = await Pipeline(stage(breaks, batch=Batch(3), each=each)).run([1, 2, 3])
    assert results.values() == [-1, -2, -3]
    assert all(result.degraded for result in results)


async def test_a_wrong_number_or_type_is_a_clear_error(autojump_clock: MockClock) -> None:
    answers: list[tuple[Any, type[Exception], str]] = [
        ([1, 2], ValueError, "stage 'embed' got a list of 3 items and returned 2 values; it must"),
        (None, TypeError, "stage 'embed' got a list of 3 items and returned None; it must return"),
        ("abc", TypeError, "returned 'abc'"),
        ({1, 2, 3}, TypeError, "returned {1, 2, 3}"),
        ({1: 1, 2: 2, 3: 3}, TypeError, "returned {1: 1, 2: 2, 3: 3}"),
        (iter([1, 2, 3]), TypeError, "it must return a list with one value per item"),
    ]
    for answer, kind, words in answers:

        async def embed(items: list[int], answer: Any = answer) -> Any:
            await trio.lowlevel.checkpoint()
            return answer

        def guess(items: list[int], error: Exception, answer: Any = answer) -> Any:
            return answer

        tries = [harness.Attempt(), harness.Attempt(fallback=guess)]
        for each in tries:
            results = await Pipeline(stage(embed, batch=Batch(3), each=each)).run(
                range(3), policy=harness.BestEffort()
            )
            assert statuses(results) == ["failed"] * 3
            assert isinstance(results[0].error, kind)
            assert words in str(results[0].error)


async def test_any_sequence_will_do(autojump_clock: MockClock) -> None:
    async def embed(items: list[int]) -> Any:
        await trio.lowlevel.checkpoint()
        return tuple(items)

    assert (await Pipeline(stage(embed, batch=Batch(3))).run(range(3))).values() == [0, 1, 2]


async def test_a_member_may_be_dropped(autojump_clock: MockClock) -> None:
    async def some(items: list[int]) -> list[Any]:
        await trio.lowlevel.checkpoint()
        return [DROP if item == 1 else item for item in items]

    pipeline = Pipeline(stage(some, batch=Batch(3)), echo)
    assert (await pipeline.run(range(3))).values() == [0, 2]


async def test_a_member_that_gives_up_leaves_the_others(autojump_clock: MockClock) -> None:
    """One is cancelled in the room, one in the batch; the batch is cancelled with its last."""
    calls = Calls(seconds=5)
    runs: dict[int, harness.Run] = {}

    async def note(item: int) -> int:
        runs[item] = harness.current_run()
        await trio.sleep(item / 100)
        return item

    async def cancel() -> None:
        await trio.sleep(1)
        runs[2].cancel("in the room")
        runs[0].cancel("in the batch")
        await trio.sleep(10)
        runs[5].cancel("in the last batch")

    pipeline = Pipeline(stage(note, limit=9), stage(calls, name="embed", batch=Batch(2)), buffer=9)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel)
        results = await pipeline.run([0, 1, 2, 3, 4, 5], policy=harness.BestEffort())
    assert statuses(results) == ["cancelled", "ok", "cancelled", "ok", "ok", "cancelled"]
    assert calls.made == [(0.01, [0, 1]), (5.01, [3, 4]), (10.01, [5])]
    assert trio.current_time() == 11


async def test_a_batch_nobody_waits_for_is_cancelled(autojump_clock: MockClock) -> None:
    calls = Calls(seconds=50)
    runs: list[harness.Run] = []

    async def note(item: int) -> int:
        runs.append(harness.current_run())
        await trio.lowlevel.checkpoint()
        return item

    async def cancel() -> None:
        await trio.sleep(1)
        for run in runs[:2]:
            run.cancel()

    pipeline = Pipeline(stage(note, limit=2), stage(calls, name="embed", batch=Batch(2)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel)
        with trio.move_on_after(9):
            await pipeline.run(range(4), policy=harness.BestEffort())
    assert [at for at, _ in calls.made] == [0, 1]
    assert pipeline.statistics().stages[1].cancelled == 2


async def test_a_batch_that_cancels_its_run_cancels_its_members(autojump_clock: MockClock) -> None:
    async def give_up(items: list[int]) -> list[int]:
        harness.current_run().cancel("no use")
        await trio.sleep(1)
        return items

    results = await Pipeline(stage(give_up, batch=Batch(2))).run(range(3))
    assert statuses(results) == ["cancelled"] * 3
    assert "no use" in str(results[0].error)


async def test_its_slot_is_kept_until_its_last_member_has_room(autojump_clock: MockClock) -> None:
    calls = Calls()
    slow = Flight(lambda item: nap(2))
    await Pipeline(
        stage(calls, name="embed", batch=Batch(3)), stage(slow, limit=1, name="slow"), buffer=1
    ).run(range(6))
    # At 1 s one of the batch works and one waits; the third holds the slot until 3 s.
    assert [at for at, _ in calls.made] == [0, 3]


async def test_a_full_window_is_the_end_of_waiting_only_for_a_reader_that_waits(
    autojump_clock: MockClock,
) -> None:
    """A slow reader keeps items out for a while; that is no reason for small batches."""
    calls = Calls(seconds=0)
    pipeline = Pipeline(stage(calls, name="embed", batch=Batch(4)), buffer=0)
    async with pipeline.open(range(40), window=8) as stream:
        async for _ in stream:
            await trio.sleep(1)
    assert [len(items) for _, items in calls.made] == [4] * 10

    calls = Calls(seconds=0)
    pipeline = Pipeline(stage(calls, name="embed", batch=Batch(4)), buffer=0)
    async with pipeline.open(range(6), window=3) as stream:
        async for _ in stream:
            pass
    assert [len(items) for _, items in calls.made] == [3, 3]


async def test_a_stop_lets_those_in_the_room_go(autojump_clock: MockClock) -> None:
    calls = Calls()

    async def may_stop(item: int) -> int:
        await trio.sleep(1)
        if item == 2:
            run = harness.current_run().parent
            assert run is not None
            run.stop("enough")
        return item

    pipeline = Pipeline(stage(may_stop, limit=1), stage(calls, name="embed", batch=Batch(9)))
    results = await pipeline.run(range(9))
    assert statuses(results) == ["ok"] * 3 + ["skipped"] * 6
    assert calls.made == [(3, [0, 1, 2])]


async def test_nothing_is_called_once_it_is_decided(autojump_clock: MockClock) -> None:
    """The failure that ends everything is also the end of what could have arrived."""
    calls = Calls()

    async def fails(item: int) -> int:
        await trio.sleep(item)
        if item == 3:
            raise Boom(item)
        return item

    pipeline = Pipeline(stage(fails, limit=9), stage(calls, name="embed", batch=Batch(9)))
    with pytest.raises(harness.errors.FanOutError) as caught:
        await pipeline.run([1, 2, 3])
    assert calls.made == []
    results = caught.value.results
    assert statuses(results) == ["cancelled", "cancelled", "failed"]
    assert "item 2 failed, and the policy is FailFast()" in str(results[0].error)


async def test_not_async_ends_everything(autojump_clock: MockClock) -> None:
    def plain(items: list[int]) -> list[int]:
        return items

    gathers: Any = stage(plain, name="embed", batch=Batch(2))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"stage 'embed': .*where an awaitable was expected"):
        await Pipeline(gathers).run(range(3), policy=harness.BestEffort())
