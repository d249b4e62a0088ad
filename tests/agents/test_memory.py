"""What a run held can be freed when it is over, and a live run is small."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import tracemalloc
import weakref
from collections import deque
from collections.abc import MutableSequence
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import harness
from harness.agents import Agent, Conversation, tool
from harness.errors import MaxTurnsError, RunCancelled
from harness.models import Message, ModelRequest
from tests.agents.fakes import Fake, calls, said
from tests.scale import PATIENCE_SECONDS, scaled


class Deps:
    """Something to have a weak reference to."""


@tool
async def work() -> str:
    await trio.sleep(1)
    return str(harness.current_run().deps is not None)


def agent_that_notes(references: MutableSequence[weakref.ref[Any]], *tools: Any) -> Agent[str]:
    """Return an agent with a turn for tools, that notes weak references to all messages it sees."""

    def answer(request: ModelRequest) -> Any:
        references.append(weakref.ref(request))
        references.extend(weakref.ref(message) for message in request.messages)
        if request.messages[-1].role == "tool":
            return said("done")
        return calls(*[(one.name, {}) for one in tools])

    fake = Fake(answer)
    fake.requests = NoList()
    return Agent("a", model=fake, tools=tools)


class NoList(list[ModelRequest]):
    """Forgets what is appended; the model of these tests must not keep anything alive."""

    def append(self, item: ModelRequest) -> None:
        pass


@pytest.mark.long
@pytest.mark.parametrize("how", ["run", "stream", "stream, left early", "cancelled", "failed"])
async def test_messages_and_deps_are_dead_after_the_run(
    autojump_clock: MockClock, how: str
) -> None:
    """At once, by reference counting: otherwise an application with the collector off grows."""
    references: list[weakref.ref[Any]] = []

    @tool(on_error="run")
    async def fail() -> None:
        await trio.sleep(1)
        raise OSError("broken")

    agent = agent_that_notes(references, work, *([fail] if how == "failed" else []))

    async def one() -> None:
        deps = Deps()
        references.append(weakref.ref(deps))
        if how == "run":
            await agent.run("hi", deps=deps)
        elif how == "cancelled":
            async with harness.open_run("outer") as outer, trio.open_nursery() as nursery:

                async def cancel() -> None:
                    await trio.sleep(0.5)
                    outer.children[0].cancel()

                nursery.start_soon(cancel)
                with pytest.raises(RunCancelled):
                    await agent.run("hi", deps=deps)
        elif how == "failed":
            with pytest.raises(OSError, match="broken"):
                await agent.run("hi", deps=deps)
        else:
            async with agent.stream("hi", deps=deps) as stream:
                references.append(weakref.ref(stream.run))
                async for event in stream:
                    if how == "stream, left early" and event.sequence == 2:
                        break

    gc.collect()
    if how not in ("cancelled", "failed"):
        gc.disable()  # Errors keep their traceback, and frames that hold them, in a circle.
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
        # A task keeps what it last sent until it takes its next step.
        await trio.lowlevel.checkpoint()
        if how in ("cancelled", "failed"):
            gc.collect()
        assert len(references) >= 3
        assert [reference() for reference in references if reference() is not None] == []
    finally:
        gc.enable()


async def test_a_stream_that_is_kept_for_its_reply_lets_go_of_the_deps(
    autojump_clock: MockClock,
) -> None:
    """It kept its run's block, which kept what the run was given."""
    deps = Deps()
    reference = weakref.ref(deps)
    stream = Agent("a", model=Fake(lambda _: "done")).stream("hi", deps=deps)
    async with stream:
        async for _ in stream:
            pass
    del deps
    assert stream.reply.output == "done"
    assert reference() is None


async def test_an_error_with_a_partial_reply_is_freed_without_the_collector(
    autojump_clock: MockClock,
) -> None:
    agent = Agent("a", model=Fake(lambda request: calls(("work", {}))), tools=[work], max_turns=2)

    async def fail() -> weakref.ref[Any]:
        try:
            await agent.run("hi")
        except MaxTurnsError as error:
            return weakref.ref(error)
        raise AssertionError

    gc.disable()
    try:
        reference = await fail()
        await trio.lowlevel.checkpoint()
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.long
async def test_runs_leave_nothing_behind(autojump_clock: MockClock) -> None:
    """Even with an observer, a stream and a context that somebody copied."""
    agent = agent_that_notes(deque(maxlen=5), work)
    counted = 0

    def observe(event: harness.Event) -> None:
        nonlocal counted
        counted += 1

    async def runs(count: int) -> None:
        for _ in range(count):
            await agent.run("hi", deps=Deps())
            async with agent.stream("hi", deps=Deps()) as stream:
                async for _ in stream:
                    pass

    def objects() -> int:
        gc.collect()
        return len(gc.get_objects())

    with harness.observing(observe):
        await runs(20)
        before = objects()
        await runs(scaled(100, full=5_000))
        assert objects() - before < 100
    assert counted > 1_000


@pytest.mark.long
def test_a_live_run_is_small() -> None:
    """At most 12 KiB each, its task included, in the middle of a tool call."""
    # In a process of its own: in this one, what earlier tests left may allocate meanwhile.
    said = subprocess.run(
        [sys.executable, "-m", "tests.agents.test_memory", str(scaled(2_000, full=5_000))],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    assert float(said.stdout) < 12 * 1024


async def live_bytes_each(count: int) -> float:
    """Return what each of so many runs takes."""

    @tool(timeout=None)
    async def wait() -> str:
        await trio.sleep_forever()
        return ""

    agent = agent_that_notes(deque(maxlen=5), wait)

    async def start(many: int, nursery: trio.Nursery) -> None:
        for _ in range(many):
            nursery.start_soon(agent.run, "hi")

    async with trio.open_nursery() as nursery:
        await start(10, nursery)
        await wait_all_tasks_blocked()
        gc.collect()
        tracemalloc.start()
        try:
            await start(count, nursery)
            await wait_all_tasks_blocked()
            gc.collect()
            size, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        nursery.cancel_scope.cancel()
    return size / count


@pytest.mark.long
async def test_collecting_garbage_in_the_middle_of_runs_ends_nothing(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    @tool
    async def collect() -> str:
        gc.collect()
        await trio.sleep(1)
        gc.collect()
        return "collected"

    agent = agent_that_notes(deque(maxlen=5), collect, work)
    results = await harness.fan_out(agent, ["hi"] * 2)
    assert [reply.output for reply in results.values()] == ["done"] * 2
    assert caplog.records == []


@pytest.mark.slow
async def test_a_conversation_holds_messages_only(autojump_clock: MockClock) -> None:
    conversation = Conversation()
    agent = agent_that_notes(deque(maxlen=5), work)
    deps = Deps()
    await agent.run("hi", conversation=conversation, deps=deps)
    reference = weakref.ref(deps)
    del deps
    await trio.lowlevel.checkpoint()
    gc.collect()
    assert reference() is None
    assert all(isinstance(one, Message) for one in conversation.messages)


if __name__ == "__main__":
    print(trio.run(live_bytes_each, int(sys.argv[1]), clock=MockClock(autojump_threshold=0)))
