"""Whose context does code see that a fan-out starts? That of the call, overlaid with the run.

trio gives a task the context of whoever called ``start_soon``. A finished item starts the next
one, so without care the next item would inherit what the finished one set. Each test is a row of
the table: a third-party variable is planted at the call, every item changes it, and every way in
which a fan-out starts code must still see what was planted.
"""

import contextvars
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from tests.fanout.probes import AsyncSource, Boom, FakeLimiter, Source, nothing_left_behind

third_party: contextvars.ContextVar[str] = contextvars.ContextVar("third_party", default="unset")


async def change(item: Any) -> str:
    """Return what is seen, after changing it for everybody who shares the context."""
    seen = third_party.get()
    third_party.set(f"changed by {item}")
    await trio.lowlevel.checkpoint()
    return seen


def plant() -> None:
    """Plant the variable in the calling test's own context."""
    third_party.set("planted")


@pytest.mark.parametrize("kind", ["list", "iterator", "async iterator"])
@pytest.mark.parametrize("limit", [1, 3, 100])
async def test_first_and_next_items_see_the_context_of_the_call(
    autojump_clock: MockClock, kind: str, limit: int
) -> None:
    plant()
    source: Any = {"list": range(12), "iterator": Source(12), "async iterator": AsyncSource(12)}
    with nothing_left_behind():
        results = await harness.fan_out(change, source[kind], limit=limit)
    assert list(results.values()) == ["planted"] * 12
    assert third_party.get() == "planted"


async def test_items_of_a_stream_see_the_context_of_the_call_not_of_the_reader(
    autojump_clock: MockClock,
) -> None:
    plant()
    seen: list[str] = []
    async with harness.open_fan_out(change, Source(12), limit=2, window=2) as stream:
        async for result in stream:
            third_party.set("changed by the reader")
            seen.append(result.value)
    assert seen == ["planted"] * 12


async def test_sources_see_the_context_of_the_call_and_the_fan_outs_run(
    autojump_clock: MockClock,
) -> None:
    plant()
    seen: list[tuple[str, str]] = []

    def look() -> None:
        seen.append((third_party.get(), harness.current_run().path))

    def numbers() -> Generator[int]:
        for number in range(6):
            look()
            yield number

    async def async_numbers() -> AsyncGenerator[int]:
        for number in range(6):
            look()
            await trio.lowlevel.checkpoint()
            look()
            yield number

    await harness.fan_out(change, numbers(), limit=2, name="nightly")
    assert seen == [("planted", "nightly")] * 6
    seen.clear()
    await harness.fan_out(change, async_numbers(), limit=2, name="nightly")
    assert seen == [("planted", "nightly")] * 12


async def test_key_each_and_critical_functions_see_the_context_of_the_call(
    autojump_clock: MockClock,
) -> None:
    plant()
    seen: list[tuple[str, str]] = []

    def look(kind: str, answer: Any) -> Any:
        seen.append((kind, third_party.get()))
        return answer

    async def fails(item: int) -> None:
        await change(item)
        raise Boom

    await harness.fan_out(
        fails,
        Source(4),
        limit=2,
        key=lambda item: look("key", item),
        each=lambda item: look("each", harness.Attempt()),
        policy=harness.BestEffort(critical=lambda item: look("critical", False)),
    )
    assert {kind for kind, _ in seen} == {"key", "each", "critical"}
    assert {value for _, value in seen} == {"planted"}


async def test_retries_see_the_context_of_the_call(autojump_clock: MockClock) -> None:
    """Attempts in one task would share variables: the second would begin with the first's."""
    plant()
    seen: list[str] = []

    async def body(item: int) -> None:
        seen.append(await change(item))
        if len(seen) < 4:
            raise Boom

    each = harness.Attempt(retry=harness.Retry(4, first_delay=1, jitter=0))
    await harness.fan_out(body, [1], each=each)
    assert seen == ["planted"] * 4


async def test_retries_after_a_timeout_see_the_context_of_the_call(
    autojump_clock: MockClock,
) -> None:
    plant()
    seen: list[str] = []

    async def body(item: int) -> None:
        seen.append(await change(item))
        if len(seen) < 3:
            await trio.sleep_forever()

    each = harness.Attempt(timeout=1, retry=harness.Retry(4, first_delay=1, jitter=0))
    await harness.fan_out(body, [1], each=each)
    assert seen == ["planted"] * 3


async def test_hedges_see_the_context_of_the_call(autojump_clock: MockClock) -> None:
    plant()
    seen: list[str] = []

    async def body(item: int) -> None:
        seen.append(await change(item))
        await trio.sleep(10 if len(seen) == 1 else 1)

    await harness.fan_out(body, [1], each=harness.Attempt(hedge=harness.Hedge(after=2)))
    assert seen == ["planted"] * 2


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_fallbacks_see_the_context_of_the_call_and_a_run_of_the_fan_out(
    autojump_clock: MockClock, kind: str
) -> None:
    plant()
    seen: list[tuple[str, bool]] = []

    def plain(item: int, error: BaseException) -> None:
        seen.append((third_party.get(), harness.current_run().path.startswith("nightly")))
        third_party.set(f"changed by the fallback of {item}")

    async def slow(item: int, error: BaseException) -> None:
        await trio.lowlevel.checkpoint()
        plain(item, error)

    async def fails(item: int) -> None:
        await change(item)
        raise Boom

    fallback: Any = plain if kind == "plain" else slow
    each = harness.Attempt(fallback=fallback)
    results = await harness.fan_out(fails, Source(4), limit=1, each=each, name="nightly")
    assert results.complete
    assert seen == [("planted", True)] * 4
    values = await harness.fan_out(change, [1])
    assert list(values.values()) == ["planted"]


async def test_limiters_see_the_context_of_the_call(autojump_clock: MockClock) -> None:
    plant()
    seen: list[str] = []

    class Looks(FakeLimiter):
        def reserve(self, *, tokens: int | None = None, priority: float = 0) -> Any:
            seen.append(third_party.get())
            return super().reserve(tokens=tokens, priority=priority)

    await harness.fan_out(change, range(6), limit=2, each=harness.Attempt(limiter=Looks()))
    assert seen == ["planted"] * 6


async def test_racers_see_the_context_of_the_call(autojump_clock: MockClock) -> None:
    plant()

    async def first() -> str:
        seen = third_party.get()
        third_party.set("changed by a racer")
        await trio.sleep(1)
        return seen

    assert await harness.race(first, first) == "planted"
    assert third_party.get() == "planted"


async def test_what_an_item_starts_sees_the_items_context(autojump_clock: MockClock) -> None:
    """A nursery, a thread or an inner fan-out of an item inherits what the item set."""
    seen: dict[int, list[str]] = {}

    async def inner(item: int) -> None:
        seen[item].append(third_party.get())

    def in_thread(item: int) -> None:
        seen[item].append(third_party.get())

    async def body(item: int) -> None:
        third_party.set(f"item {item}")
        seen[item] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(inner, item)
        await trio.to_thread.run_sync(in_thread, item)
        await harness.fan_out(inner, [item])

    await harness.fan_out(body, range(3), limit=1)
    assert seen == {item: [f"item {item}"] * 3 for item in range(3)}


async def test_every_item_sees_its_own_run_at_every_step(autojump_clock: MockClock) -> None:
    async def body(item: int) -> None:
        run = harness.current_run()
        for _ in range(5):
            await trio.sleep(item % 3)
            assert harness.current_run() is run
        assert run.name == str(item)

    with nothing_left_behind():
        await harness.fan_out(body, range(20), limit=5)


async def test_run_locals_are_fresh_for_each_item(autojump_clock: MockClock) -> None:
    messages: harness.RunLocal[list[int]] = harness.RunLocal(list, name="messages")

    async def body(item: int) -> list[int]:
        for step in range(3):
            messages.get().append(item * 10 + step)
            await trio.sleep(item % 2)
        return list(messages.get())

    results = await harness.fan_out(body, range(30), limit=7)
    assert list(results.values()) == [[n * 10, n * 10 + 1, n * 10 + 2] for n in range(30)]


async def test_a_forked_local_starts_as_it_was_in_the_callers_run(
    autojump_clock: MockClock,
) -> None:
    history: harness.RunLocal[list[str]] = harness.RunLocal(
        list, name="history", fork=lambda value: list(value)
    )

    async def body(item: int) -> list[str]:
        history.get().append(str(item))
        await trio.lowlevel.checkpoint()
        return history.get()

    async with harness.open_run("outer"):
        history.get().append("outer")
        results = await harness.fan_out(body, range(4), limit=1)
        assert history.get() == ["outer"]
    assert list(results.values()) == [["outer", str(n)] for n in range(4)]


async def test_deps_are_inherited_by_items(autojump_clock: MockClock) -> None:
    deps = object()

    async def body(item: int) -> bool:
        return harness.current_run().deps is deps

    async with harness.open_run("outer", deps=deps):
        results = await harness.fan_out(body, range(3))
    assert list(results.values()) == [True] * 3
