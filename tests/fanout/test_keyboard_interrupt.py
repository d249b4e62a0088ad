"""A Ctrl-C at any line of a fan-out, a pipeline or a limiter ends the program; nothing hangs."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import trio

import harness
from harness.flow import Batch, Pipeline, Router, stage, track
from harness.limits import Limiter
from harness.shared import open_cache, open_once
from tests.scale import FULL
from tests.support.keyboard_interrupts import strike_each_line
from tests.support.memory_journal import MemoryJournal

PLACES = ["fanout", "flow", "runs/_carry.py", "limits", "shared"]


async def body(item: int) -> int:
    await trio.sleep(item)
    return item


async def flaky(item: int) -> int:
    await trio.sleep(1)
    if item == 1:
        raise ValueError(item)
    return item


async def source() -> AsyncIterator[int]:
    for item in range(3):
        yield item
        await trio.sleep(0.1)


async def several(item: int) -> AsyncIterator[int]:
    for output in range(2):
        yield item + output


async def together(items: list[int]) -> list[int]:
    await trio.sleep(1)
    return items


async def gathered() -> None:
    await harness.fan_out(body, [1, 2, 1], limit=2)


async def from_an_async_source() -> None:
    await harness.fan_out(body, source(), limit=2)


async def by_priority() -> None:
    await harness.fan_out(body, [1, 2, 1], limit=1, priority=lambda item: item)


async def with_attempts() -> None:
    each = harness.Attempt(
        timeout=30,
        retry=harness.Retry(2, first_delay=1),
        hedge=harness.Hedge(after=0.5),
        fallback=lambda item, error: -1,
        limiter=Limiter("l", requests_per_minute=600, concurrent=2),
    )
    await harness.fan_out(flaky, [0, 1], each=each, policy=harness.BestEffort())


async def decided_early() -> None:
    await harness.fan_out(body, [1, 5, 1], limit=2, policy=harness.FirstSuccess())


async def streamed() -> None:
    async with harness.open_fan_out(body, [1, 2, 1], limit=2, window=2) as stream:
        async for _ in stream:
            pass


async def streamed_in_order() -> None:
    async with harness.open_fan_out(body, [2, 1, 1], limit=3, ordered=True) as stream:
        async for _ in stream:
            break


async def through_a_pipeline() -> None:
    pipeline = Pipeline(
        stage(body, limit=1), stage(several, limit=1), stage(body, limit=1), buffer=1
    )
    await pipeline.run([0, 1])


async def through_batches() -> None:
    await Pipeline(body, stage(together, batch=Batch(2, within=5))).run([1, 2, 1])


async def along_tracks() -> None:
    each = harness.Attempt(timeout=9, retry=harness.Retry(2, first_delay=1))
    router = Router(
        lambda item: "a", tracks={"a": track(flaky, each=each, escalate="b"), "b": track(body)}
    )
    await router.run([0, 1])
    await router(0)


async def in_line_at_a_limiter() -> None:
    limiter = Limiter("l", requests_per_minute=60, tokens_per_minute=600, concurrent=1)

    async def call() -> None:
        async with limiter.reserve(tokens=5) as reservation:
            await trio.sleep(1)
            reservation.settle(tokens=3)

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(call)


async def shared_state() -> None:
    async def load() -> int:
        await trio.sleep(1)
        return 1

    async def effect(key: str) -> int:
        await trio.sleep(1)
        return 1

    async with open_cache() as cache, open_once() as once, trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(cache.get, "key", load)
            nursery.start_soon(once, "key", effect)


async def in_a_journal() -> None:
    """Two sessions: the second has one item of the first that failed, and one that is done."""
    journal = MemoryJournal(retry_failed=True)
    options: dict[str, Any] = {"journal": journal, "key": str, "policy": harness.BestEffort()}
    retry = harness.Attempt(retry=harness.Retry(2, first_delay=1))
    for items in ([1, 2], [1, 2, 3]):
        await harness.fan_out(flaky, items, each=retry, limit=2, name="b", **options)


PROGRAMS: list[Callable[[], Awaitable[Any]]] = [
    gathered,
    from_an_async_source,
    by_priority,
    with_attempts,
    decided_early,
    streamed,
    streamed_in_order,
    through_a_pipeline,
    through_batches,
    along_tracks,
    in_line_at_a_limiter,
    shared_state,
    in_a_journal,
]


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_at_any_line(program: Callable[[], Awaitable[Any]]) -> None:
    """The interrupt comes out bare, nothing hangs, and trio is not broken."""
    step = 1 if FULL else 13
    assert strike_each_line(program, PLACES, step=step) > 50
    gc.collect()


def test_what_is_the_users_is_not_protected() -> None:
    """Ctrl-C has to end a loop of the user's, whoever called it."""
    protected: dict[str, bool] = {}

    def note(name: str, value: Any = None) -> Any:
        protected[name] = trio.lowlevel.currently_ki_protected()
        return value

    def numbers() -> Iterator[int]:
        for item in range(3):
            yield note("source", item)

    async def later_numbers() -> AsyncIterator[int]:
        for item in range(3):
            yield note("async source", item)

    async def item(number: int) -> int:
        note("item")
        await trio.lowlevel.checkpoint()
        if number == 1:
            raise ValueError(number)
        return number

    async def outputs(number: int) -> AsyncIterator[int]:
        yield note("outputs", number)

    async def listed(items: list[int]) -> list[int]:
        note("batch")
        return items

    async def called(number: int) -> int:
        note("called")
        return number

    each = harness.Attempt(
        retry=harness.Retry(2, first_delay=0, on=lambda error: note("on", True)),
        hedge=harness.Hedge(after=9),
        fallback=lambda number, error: note("fallback", number),
    )

    async def main() -> None:
        await harness.fan_out(
            item,
            numbers(),
            key=lambda number: note("key", number),
            each=lambda number: note("each", each),
            priority=lambda number: note("priority", number),
        )
        policy = harness.BestEffort(critical=lambda number: note("critical", False))
        await harness.fan_out(item, later_numbers(), policy=policy)
        await Pipeline(stage(item, each=each), outputs, stage(listed, batch=Batch(2)), called).run(
            numbers()
        )
        router = Router(lambda number: note("classify", "only"), tracks={"only": called})
        await router.run(numbers())
        await router(0)
        await Pipeline(called)(0)

    trio.run(main)
    assert len(protected) == 13
    assert [name for name, held in protected.items() if held] == []
