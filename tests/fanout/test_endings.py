"""How a fan-out ends where something else ends too: a cancel around it, a stop, a cleanup block."""

from __future__ import annotations

import gc
import pickle
import tracemalloc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError, ItemSkipped, RunCancelled, RunEndedError
from harness.flow import DROP, Pipeline, Router, stage, track
from tests.fanout.probes import Boom, statuses


async def fails_in_cleanup(item: int) -> None:
    try:
        await trio.sleep_forever()
    finally:
        raise Boom(item)


async def two_and_no_end() -> AsyncIterator[int]:
    for item in range(2):
        yield item
    await trio.sleep_forever()


async def source_that_fails_at_its_end() -> AsyncIterator[int]:
    try:
        yield 0
        await trio.sleep_forever()
    finally:
        raise Boom("source")


async def sleeps(item: int) -> None:
    await trio.sleep_forever()


async def streamed() -> None:
    async with harness.open_fan_out(fails_in_cleanup, range(2)) as stream:
        async for _ in stream:
            pass


async def never(item: int) -> None:
    raise AssertionError("an item that is being cancelled is not tried again")


RETRIES = harness.Attempt(retry=harness.Retry(3))

Form = Callable[[], Awaitable[object]]

FORMS: dict[str, Form] = {
    "all in flight": lambda: harness.fan_out(fails_in_cleanup, range(2)),
    "more to start": lambda: harness.fan_out(fails_in_cleanup, range(5), limit=2),
    "an async source": lambda: harness.fan_out(fails_in_cleanup, two_and_no_end()),
    "a pipeline": lambda: Pipeline(stage(fails_in_cleanup, limit=2)).run(range(3)),
    "a stream": streamed,
    "with retries": lambda: harness.fan_out(fails_in_cleanup, range(2), each=RETRIES),
    "a stage with retries": lambda: Pipeline(stage(fails_in_cleanup, each=RETRIES)).run(range(2)),
    "another track to try": lambda: Router(
        lambda item: "a", tracks={"a": track(fails_in_cleanup, escalate="b"), "b": never}
    ).run(range(2)),
    "the source itself": lambda: harness.fan_out(sleeps, source_that_fails_at_its_end()),
}


@pytest.mark.parametrize("form", FORMS)
async def test_an_error_beside_a_cancel_from_outside_comes_out(
    autojump_clock: MockClock, form: str
) -> None:
    """As from a plain nursery. It was lost where the fan-out had still something to start."""
    with pytest.raises(FanOutError) as caught:
        with trio.move_on_after(1):
            await FORMS[form]()
    assert {type(entry) for entry in caught.value.exceptions} == {Boom}
    assert len(caught.value.exceptions) == (1 if form == "the source itself" else 2)


async def test_a_cancel_from_outside_alone_passes(autojump_clock: MockClock) -> None:
    with trio.move_on_after(1) as scope:
        await harness.fan_out(sleeps, range(5), limit=2)
    assert scope.cancelled_caught


@pytest.mark.parametrize("how", ["cancel", "grace", "stop", "while it runs"])
async def test_a_cleanup_block_lets_a_fan_out_do_its_work(
    autojump_clock: MockClock, how: str
) -> None:
    """It closes what is open: to skip that because of the very cancel would leave it open."""
    closed: list[int] = []

    async def close(item: int) -> None:
        if how == "while it runs" and item == 0:
            run.cancel("bye")
        await trio.sleep(0.1)
        closed.append(item)

    async with harness.open_run("service") as run:
        if how == "cancel":
            run.cancel("bye")
        elif how == "grace":
            run.cancel("bye", grace=3)
        elif how == "stop":
            run.stop("bye")
        with harness.cleanup():
            results = await harness.fan_out(close, range(4), limit=2)
    assert statuses(results) == ["ok"] * 4
    assert sorted(closed) == [0, 1, 2, 3]


async def test_a_stop_inside_of_a_cleanup_block_still_counts(autojump_clock: MockClock) -> None:
    async def close(item: int) -> None:
        if item == 0:
            fan_out = harness.current_run().parent
            assert fan_out is not None
            fan_out.stop("enough")
        await trio.sleep(0.1)

    with harness.cleanup():
        results = await harness.fan_out(close, range(4), limit=1)
    assert statuses(results) == ["ok", "skipped", "skipped", "skipped"]


async def test_a_cleanup_ends_a_fan_out_at_its_deadline(autojump_clock: MockClock) -> None:
    async with harness.open_run("service") as run:
        run.cancel("bye")
        with harness.cleanup(max_seconds=1):
            await harness.fan_out(trio.sleep, [0.3] * 100, limit=1)
    assert trio.current_time() == 1


@pytest.mark.parametrize("policy", [harness.FailFast(), harness.BestEffort()])
async def test_a_stop_cancels_nothing_and_fails_nothing(
    autojump_clock: MockClock, policy: Any
) -> None:
    """With FailFast, an item whose retry was given up used to fail and take the others along."""

    async def body(item: int) -> int:
        if item == 0:
            raise Boom(item)
        await trio.sleep(10)
        return item

    each = harness.Attempt(retry=harness.Retry(5, first_delay=5, jitter=0))
    async with harness.open_run("job") as run, trio.open_nursery() as nursery:

        async def stop() -> None:
            await trio.sleep(1)
            run.stop("enough")

        nursery.start_soon(stop)
        results = await harness.fan_out(body, [0, 1, 2], each=each, policy=policy)
    assert statuses(results) == ["cancelled", "ok", "ok"]
    error = results[0].error
    assert isinstance(error, RunCancelled)
    assert isinstance(error.__cause__, Boom)
    assert trio.current_time() == 10


@pytest.mark.parametrize("items", [range(1_000_000), (1,) * 1_000_000], ids=["range", "tuple"])
async def test_what_was_never_started_takes_no_memory_and_no_time(items: Any) -> None:
    """A million results took 230 MiB and a second and a half that no cancel could reach."""

    async def body(item: int) -> int:
        await trio.lowlevel.checkpoint()
        return item

    tracemalloc.start()
    try:
        results = await harness.fan_out(body, items, policy=harness.FirstSuccess())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * 1024 * 1024
    assert len(results) == 1_000_000
    assert not results.complete
    assert results.summary().skipped == 1_000_000 - len(results.values()) - sum(
        one.status == "cancelled" for one in results[:200]
    )
    last = results[-1]
    assert (last.index, last.status, last.item) == (999_999, "skipped", items[-1])
    assert isinstance(last.error, ItemSkipped)
    assert last == results[999_999]


async def test_results_that_are_made_when_looked_at_are_like_others() -> None:
    async def body(item: str) -> str:
        await trio.lowlevel.checkpoint()
        return item

    items = [f"item-{number}" for number in range(8)]
    results = await harness.fan_out(
        body, items, limit=2, policy=harness.FirstSuccess(), key=lambda item: item[-1]
    )
    items.clear()  # The list is its owner's again.
    assert [one.item for one in results] == [f"item-{number}" for number in range(8)]
    assert [one.key for one in results] == list("01234567")
    assert len(results.gaps) + len(results.values()) == 8
    assert [one.index for one in results[5:]] == [5, 6, 7]
    again = pickle.loads(pickle.dumps(results))
    assert statuses(again) == statuses(results)
    assert again.summary() == results.summary()
    with pytest.raises(IndexError):
        results[8]


async def test_a_stream_counts_what_was_never_started_without_making_it() -> None:
    async def body(item: int) -> int:
        await trio.lowlevel.checkpoint()
        return item

    async with harness.open_fan_out(body, range(1_000_000), limit=3) as stream:
        async for _ in stream:
            break
    tracemalloc.start()
    try:
        summary = stream.summary()
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()
    assert summary.total == len(stream.results) + 1 == 1_000_000


@pytest.mark.parametrize("limit", [1, 10])
async def test_a_list_that_grows_meanwhile_is_refused_whatever_the_limit(limit: int) -> None:
    work = [3]

    async def grows(item: int) -> int:
        await trio.lowlevel.checkpoint()
        work.append(item - 1)
        return item

    with pytest.raises(FanOutError, match="the added ones are not run") as caught:
        await harness.fan_out(grows, work, limit=limit)
    assert caught.value.results.values() == [3]


async def test_a_channel_is_left_open(autojump_clock: MockClock) -> None:
    """As ``async for`` leaves it: whoever opened it may go on."""
    send, receive = trio.open_memory_channel[int](5)
    async with send, receive:
        for item in range(4):
            await send.send(item)
        async with harness.open_fan_out(trio.sleep, receive, limit=1) as stream:
            async for _ in stream:
                break
        await send.send(7)


class Value:
    """Something that can be watched."""


async def made(item: int) -> Value:
    await trio.lowlevel.checkpoint()
    return Value()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["fan_out", "open_fan_out", "pipeline", "priority"])
async def test_the_values_go_with_the_results_and_no_garbage_is_left(form: str) -> None:
    """With the collector off: a service that turned it off would leak each batch."""
    await harness.fan_out(made, range(2), priority=abs)  # What is loaded when used, is loaded.
    gc.collect()
    gc.disable()
    try:
        if form == "open_fan_out":
            async with harness.open_fan_out(made, range(50), keep=True) as stream:
                _ = [result async for result in stream]
            results = stream.results
            del stream, _
        elif form == "pipeline":
            results = await Pipeline(made).run(range(50))
        else:
            priority = abs if form == "priority" else None
            results = await harness.fan_out(made, range(50), priority=priority)
        alive = [weakref.ref(value) for value in results.values()]
        del results
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        assert [one for one in alive if one() is not None] == []
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        ours = [one for one in gc.garbage if str(type(one).__module__).startswith("harness")]
        assert ours == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.strays
@pytest.mark.slow
async def test_a_stream_raises_on_entry_what_a_fan_out_raises() -> None:
    """Bare: not in a group."""

    async def stray() -> None:
        await trio.sleep(1)
        with pytest.raises(RunEndedError):
            async with harness.open_fan_out(trio.sleep, [1]):
                pass

    async with trio.open_nursery() as nursery:
        async with harness.open_run("short"):
            nursery.start_soon(stray)


async def test_a_dropped_item_wins_no_race(autojump_clock: MockClock) -> None:
    async def drop() -> Any:
        return DROP

    async def late() -> str:
        await trio.sleep(1)
        return "late"

    assert await harness.race(drop, late) == "late"
    with pytest.raises(FanOutError, match="can't win a race"):
        await harness.race(drop)
