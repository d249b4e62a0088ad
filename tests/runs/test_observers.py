"""`observing`: a plain function gets every event of every run opened inside the block."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from tests.support.context import unchanged_context
from tests.support.ways_out import Boom


class Sink:
    """Keep the text payloads, with the path of the run that emitted them."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __call__(self, event: harness.Event) -> None:
        if isinstance(event.payload, str):
            self.seen.append((event.path, event.payload))


async def emitter(name: str, *words: str) -> None:
    async with harness.open_run(name) as run:
        for word in words:
            run.emit_nowait(word)


async def test_every_event_of_every_run_opened_inside_is_seen(autojump_clock: MockClock) -> None:
    sink = Sink()
    with harness.observing(sink):
        async with harness.open_run("nightly") as parent:
            parent.emit_nowait("start")
            await emitter("ticket-17", "one", "two")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(emitter, "ticket-18", "three")
    assert sink.seen == [
        ("nightly", "start"),
        ("nightly/ticket-17", "one"),
        ("nightly/ticket-17", "two"),
        ("nightly/ticket-18", "three"),
    ]


async def test_runs_opened_before_or_after_are_not_seen() -> None:
    sink = Sink()
    async with harness.open_run("before") as before:
        with harness.observing(sink):
            before.emit_nowait("not seen")
            await emitter("inside", "seen")
        await emitter("after", "not seen")
    assert sink.seen == [("before/inside", "seen")]


async def test_a_child_inherits_the_observers_of_its_parent(autojump_clock: MockClock) -> None:
    """Whatever task it is opened in: the observers come with the run, not with the task."""
    sink = Sink()

    async def service(jobs: trio.MemoryReceiveChannel[harness.Run]) -> None:
        async for run in jobs:
            harness.start_soon(nursery, emitter, "child", "seen", run=run)

    send, receive = trio.open_memory_channel[harness.Run](1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service, receive)
        async with send:
            with harness.observing(sink):
                async with harness.open_run("parent") as parent:
                    await send.send(parent)
                    await trio.sleep(1)
    assert sink.seen == [("parent/child", "seen")]


async def test_observers_nest(autojump_clock: MockClock) -> None:
    outer, inner = Sink(), Sink()
    with harness.observing(outer):
        await emitter("first", "a")
        with harness.observing(inner):
            await emitter("second", "b")
        await emitter("third", "c")
    assert outer.seen == [("first", "a"), ("second", "b"), ("third", "c")]
    assert inner.seen == [("second", "b")]


async def test_events_come_in_order_from_emit_too(autojump_clock: MockClock) -> None:
    sink = Sink()
    with harness.observing(sink):
        async with harness.open_run("job") as run:
            for number in range(5):
                await run.emit(f"waited {number}")
                run.emit_nowait(f"posted {number}")
    assert [word for _, word in sink.seen] == [
        f"{how} {number}" for number in range(5) for how in ("waited", "posted")
    ]


async def test_the_context_is_put_back() -> None:
    with unchanged_context():
        with pytest.raises(Boom):
            with harness.observing(Sink()):
                raise Boom
        with harness.observing(Sink()):
            pass


def test_observing_around_the_whole_program() -> None:
    sink = Sink()
    with harness.observing(sink):
        trio.run(emitter, "main", "hello")
    assert sink.seen == [("main", "hello")]


async def test_an_observer_that_raises_is_detached_and_reported_once(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    """A fault in the watcher must never hurt what is watched."""
    calls: list[Any] = []
    good = Sink()

    def broken(event: harness.Event) -> None:
        calls.append(event.payload)
        raise Boom("the disk of the log is full")

    with caplog.at_level(logging.WARNING):
        with harness.observing(good), harness.observing(broken):
            async with harness.open_run("nightly") as run:
                run.emit_nowait("one")
                run.emit_nowait("two")
                await run.emit("three")
                await emitter("child", "four")
            await emitter("another", "five")
    assert run.status == "ok"
    assert calls == ["one"]
    assert [word for _, word in good.seen] == ["one", "two", "three", "four", "five"]
    (record,) = [record for record in caplog.records if record.name.startswith("harness")]
    assert "broken" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], Boom)


async def test_an_observer_that_raised_may_be_used_again_later() -> None:
    """Detached means from that `observing` block, not for the life of the process."""
    seen: list[object] = []

    def moody(event: harness.Event) -> None:
        seen.append(event.payload)
        if event.payload == "bad":
            raise Boom

    with harness.observing(moody):
        await emitter("first", "bad", "lost")
    with harness.observing(moody):
        await emitter("second", "good")
    assert seen == ["bad", "good"]


async def test_an_observer_may_look_at_the_run_it_hears_of() -> None:
    seen: list[str] = []
    with harness.observing(lambda event: seen.append(harness.current_run().path)):
        await emitter("job", "hello")
    assert set(seen) == {"job"}


async def test_an_observer_that_opens_more_observers_hurts_nobody(
    autojump_clock: MockClock,
) -> None:
    inner = Sink()

    def nesting(event: harness.Event) -> None:
        with harness.observing(inner):
            pass

    with harness.observing(nesting):
        await emitter("job", "one", "two")
    assert inner.seen == []
