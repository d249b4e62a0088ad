"""Streams: what is read, what is kept for a slow reader, and what is left when one stops early."""

from __future__ import annotations

import gc
import json
import logging
import weakref
from collections.abc import AsyncIterator
from contextvars import copy_context
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

import harness
from harness.agents import (
    Agent,
    RunEnded,
    TextDelta,
    ToolCalled,
    ToolReturned,
    TurnStarted,
    tool,
)
from harness.agents._events import AGENT_EVENTS
from harness.agents._stream_buffer import StreamBuffer
from harness.errors import MaxTurnsError
from harness.limits import Limiter
from harness.models import FunctionModel, Message, ModelRequest, ModelResponse, ScriptedModel
from tests.agents.fakes import Fake, Script, calls, is_valid
from tests.scale import scaled, some_of
from tests.support.checkpoints import cancel_at_every_checkpoint
from tests.support.context import unchanged_context

MANY = scaled(2_000, full=10_000)


@tool
async def work(seconds: float) -> str:
    await trio.sleep(seconds)
    return "done"


def two_turns() -> Fake:
    return Script(
        calls(("work", {"seconds": 1}), ("work", {"seconds": 2}), text="let me see"),
        "here it is",
    )


async def read_all(stream: Any) -> list[harness.Event]:
    return [event async for event in stream]


def text_of(events: list[harness.Event]) -> str:
    return "".join(event.payload.text for event in events if type(event.payload) is TextDelta)


# Slow readers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("buffer", [1, 2, 7, 256])
async def test_the_end_is_never_lost_and_no_text_either(
    autojump_clock: MockClock, buffer: int
) -> None:
    """A slow reader with room for one, and 10,000 pieces."""
    words = " ".join(str(number) for number in range(MANY))
    events: list[harness.Event] = []
    async with Agent("a", model=Script(words)).stream("hi", buffer=buffer) as stream:
        async for event in stream:
            events.append(event)
            await trio.sleep(1)
    assert text_of(events).split() == words.split()
    assert events[-1].payload == RunEnded("ok")
    assert [event.sequence for event in events] == sorted({event.sequence for event in events})
    assert len(events) < 20 + buffer, "pieces of text were joined"
    assert stream.dropped == 0


async def test_events_that_can_not_be_joined_wait_for_the_reader_between_turns(
    autojump_clock: MockClock,
) -> None:
    """A thousand turns with tool calls: all of their events arrive, in order, with room for one."""
    turns = MANY // 7
    model = Script(*[calls(("work", {"seconds": 0}))] * turns, "done")
    agent = Agent("a", model=model, tools=[work], max_turns=turns + 1)
    async with agent.stream("hi", buffer=1) as stream:
        events: list[harness.Event] = []
        most = 0
        async for event in stream:
            events.append(event)
            assert stream._buffer is not None
            most = max(most, len(stream._buffer._buffer))
    assert [event.sequence for event in events] == list(range(4 * turns + 4))
    assert events[-1].payload == RunEnded("ok")
    assert most <= 5, "a turn's events at most"


async def test_an_agent_waits_for_its_reader_between_turns_only(autojump_clock: MockClock) -> None:
    """Never while it holds a reservation: others of the same limiter would wait for the reader."""
    limiter = Limiter("tiny", concurrent=1)
    first = ModelResponse("a b c d e f", tool_calls=calls(("work", {"seconds": 1})).tool_calls)
    model = ScriptedModel([first, "done"], limiter=limiter)
    agent = Agent("a", model=model, tools=[work])
    async with agent.stream("hi", buffer=1) as unread:
        await trio.sleep(100)
        assert unread.reply.turns == 1
        assert "the reader of the stream of a" in unread.run.waiting_for
        assert limiter.statistics().in_flight == 0
        # Others are served meanwhile.
        assert (await agent.run("hi")).output == "done"
        events = await read_all(unread)
    assert text_of(events) == "a b c d e fdone"
    assert unread.reply.output == "done"


async def test_who_holds_a_reservation_does_not_wait_for_a_reader(
    autojump_clock: MockClock,
) -> None:
    limiter = Limiter("account", concurrent=1)
    inner = Agent("inner", model=two_turns(), tools=[work])

    @tool(timeout=None)
    async def held() -> str:
        async with limiter.reserve():
            return (await inner.run("hi")).output

    agent = Agent("outer", model=Script(calls(("held", {})), "done"), tools=[held])
    async with agent.stream("hi", buffer=1) as unread:
        await trio.sleep(100)
        assert limiter.statistics().in_flight == 0, "the tool came to its end"
        events = await read_all(unread)
    assert events[-1].payload == RunEnded("ok")


async def test_what_tools_emit_is_dropped_and_counted_or_waited_for(
    autojump_clock: MockClock,
) -> None:
    """As with any subscription; the agent's own events are never dropped for it."""

    @tool
    async def hasty() -> None:
        for number in range(100):
            harness.current_run().emit_nowait(number)

    @tool
    async def patient() -> None:
        for number in range(100):
            await harness.current_run().emit(number)

    for one, heard in ((hasty, None), (patient, list(range(100)))):
        agent = Agent("a", model=Script(calls((one.name, {})), "done"), tools=[one])
        async with agent.stream("hi", buffer=5) as stream:
            await wait_all_tasks_blocked()
            payloads = [event.payload for event in await read_all(stream)]
        numbers = [payload for payload in payloads if isinstance(payload, int)]
        if heard is None:
            assert len(numbers) + stream.dropped == 100
            assert stream.dropped > 0
        else:
            assert numbers == heard
        assert payloads[-1] == RunEnded("ok")
        assert len([one for one in payloads if isinstance(one, TurnStarted)]) == 2


STEPS = ["text"] * 3 + ["turn", "emit_nowait", "emit"] + ["read"] * 2


@pytest.mark.slow
@settings(max_examples=scaled(150, full=5_000))
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from("aab"), st.sampled_from(STEPS)), min_size=5, max_size=60),
)
def test_whatever_the_order_nothing_of_an_agent_is_lost(
    size: int, steps: list[tuple[str, str]]
) -> None:
    """By run: the same text, and the same events between the same pieces, in the same order."""

    async def main() -> None:
        async with harness.open_run("top") as top:
            buffer = StreamBuffer(top, size)
            await buffer.__aenter__()
            told: dict[str, list[str]] = {"a": [], "b": []}
            read: dict[str, list[str]] = {"a": [], "b": []}
            last_number = {"a": -1, "b": -1}
            dropped = 0

            async def read_one() -> None:
                waiting = len(buffer._deliveries or ())
                event = await buffer.__anext__()
                assert len(buffer._deliveries or ()) == waiting or len(buffer._buffer) <= size
                assert type(event) is harness.Event
                assert event.sequence > last_number[event.run_id]
                last_number[event.run_id] = event.sequence
                text = getattr(event.payload, "text", f"[{event.sequence}]")
                read[event.run_id].append(text)
                assert not (buffer._deliveries and buffer.has_room)

            for number, (run_id, what) in enumerate(steps):
                if what == "read":
                    if buffer._buffer:
                        await read_one()
                    continue
                payload = {"text": TextDelta(f"{number} "), "turn": TurnStarted(1)}.get(what, what)
                event = harness.Event(run_id, None, run_id, 0, number, 0.0, payload)
                had_room = buffer.has_room
                if what == "emit":
                    delivery = buffer.offer(event, None)
                    assert (delivery is None) == had_room
                else:
                    buffer.offer_nowait(event)
                if what == "emit_nowait" and not had_room:
                    dropped += 1
                else:
                    told[run_id].append(f"{number} " if what == "text" else f"[{number}]")
            while buffer._buffer:
                await read_one()
            for run_id, own in told.items():
                assert "".join(read[run_id]) == "".join(own)
            assert buffer.dropped == dropped
            assert not buffer._last_text
            assert not buffer._deliveries
            await buffer.__aexit__(None, None, None)

    trio.run(main)


async def fill(buffer: StreamBuffer, count: int) -> None:
    for number in range(count):
        buffer.offer_nowait(harness.Event("a", None, "a", 0, number, 0.0, TurnStarted(number)))


async def test_who_waits_for_room_is_woken_when_there_is_some(autojump_clock: MockClock) -> None:
    """Not only when the reader has read everything."""
    passed: list[int] = []

    async def wait(number: int) -> None:
        await buffer.wait_for_room()
        passed.append(number)

    async with harness.open_run("top") as top, trio.open_nursery() as nursery:
        buffer = StreamBuffer(top, 3)
        async with buffer:
            await fill(buffer, 5)
            for number in range(4):
                nursery.start_soon(wait, number)
                await wait_all_tasks_blocked()
            for expected in ([], [], [], [0], [0, 1, 2]):
                assert sorted(passed) == expected, "in line, some of them at once"
                await anext(buffer)
                await wait_all_tasks_blocked()
            assert sorted(passed) == [0, 1, 2, 3]


async def test_a_wake_up_that_a_cancelled_task_got_is_not_lost(autojump_clock: MockClock) -> None:
    """Two wait, and the one that is woken gives up: the other mustn't wait forever."""
    passed: list[str] = []
    scope = trio.CancelScope()

    async def give_up() -> None:
        with scope:
            await buffer.wait_for_room()
            await trio.sleep_forever()

    async def go_on() -> None:
        await buffer.wait_for_room()
        passed.append("went on")

    async def read() -> None:
        async for _ in buffer:
            pass

    async with harness.open_run("top") as top, trio.open_nursery() as nursery:
        buffer = StreamBuffer(top, 1)
        async with buffer:
            await fill(buffer, 1)
            nursery.start_soon(give_up)
            await wait_all_tasks_blocked()
            nursery.start_soon(go_on)
            await wait_all_tasks_blocked()
            await anext(buffer)
            scope.cancel()
            nursery.start_soon(read)
            await wait_all_tasks_blocked()
            assert passed == ["went on"]


async def test_an_agent_in_the_cleanup_of_a_tool_does_not_wait_for_a_reader_that_left(
    autojump_clock: MockClock,
) -> None:
    said: list[str] = []
    goodbye = Agent("goodbye", model=two_turns(), tools=[work])

    @tool
    async def tidy() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with harness.cleanup(max_seconds=50):
                said.append((await goodbye.run("bye")).output)

    agent = Agent("a", model=Script(calls(("tidy", {}))), tools=[tidy])
    async with agent.stream("hi", buffer=1):
        await wait_all_tasks_blocked()
    assert said == ["here it is"]
    assert trio.current_time() == 2
    async with agent.stream("hi", buffer=1) as stream:
        await wait_all_tasks_blocked()
        stream.run.cancel()
        await wait_all_tasks_blocked()
        assert said == ["here it is"], "it waits for the reader"
    assert said == ["here it is"] * 2
    assert trio.current_time() == 4


# Leaving early -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("read_at_most", some_of(range(16), one_in=3))
async def test_breaking_out_at_any_event_leaves_nothing_alive_and_logs_nothing(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, read_at_most: int
) -> None:
    caplog.set_level(logging.DEBUG)
    model = two_turns()
    task = trio.lowlevel.current_task()
    nurseries_before = task.child_nurseries
    with unchanged_context():
        async with harness.open_run("outer") as outer:
            async with Agent("a", model=model, tools=[work]).stream("hi") as stream:
                count = 0
                async for _ in stream:
                    count += 1
                    if count > read_at_most:
                        break
            assert stream.run.status in ("ok", "cancelled")
            assert outer.children == ()
            assert task.child_nurseries == nurseries_before
    assert is_valid(stream.reply.messages)
    assert model.open_streams == 0
    reference = weakref.ref(stream)
    del stream
    assert reference() is None
    gc.collect()
    assert caplog.records == []


async def test_an_error_of_the_reader_ends_the_run(autojump_clock: MockClock) -> None:
    with pytest.raises(ZeroDivisionError):
        async with Agent("a", model=two_turns(), tools=[work]).stream("hi") as stream:
            async for _ in stream:
                raise ZeroDivisionError
    assert stream.run.status == "cancelled"
    assert stream.run.cancel_reason == "the block of its stream was left"


async def test_a_cancel_of_the_reader_reaches_the_run(autojump_clock: MockClock) -> None:
    with trio.move_on_after(1.5) as scope:
        async with Agent("a", model=two_turns(), tools=[work]).stream("hi") as stream:
            await read_all(stream)
    assert scope.cancelled_caught
    assert stream.run.status == "cancelled"
    assert stream.run.cancel_reason is not None
    assert "cancel scope" in stream.run.cancel_reason
    assert is_valid(stream.reply.messages)


async def test_a_cancel_of_the_run_ends_the_iteration_and_not_the_reader(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        async with Agent("a", model=two_turns(), tools=[work]).stream("hi") as stream:

            async def cancel() -> None:
                await trio.sleep(1.5)
                stream.run.cancel("enough")

            nursery.start_soon(cancel)
            events = await read_all(stream)
            assert trio.current_time() == 1.5
            await trio.sleep(10)
            reader_went_on = True
    assert reader_went_on
    assert events[-1].payload == RunEnded("cancelled")
    assert stream.run.status == "cancelled"
    assert stream.run.cancel_reason == "enough"
    assert not stream.reply.complete
    assert stream.reply.turns == 1
    assert [one.content for one in stream.reply.messages if one.role == "tool"] == [
        "done",
        "this call was cut short before it had a result",
    ]


async def test_a_cancel_before_the_first_step(autojump_clock: MockClock) -> None:
    model = two_turns()
    async with Agent("a", model=model).stream("hi") as stream:
        stream.run.cancel("never mind")
        events = await read_all(stream)
    assert stream.run.status == "cancelled"
    assert events[-1].payload == RunEnded("cancelled")
    assert stream.reply.messages == (Message("user", "hi"),)


async def test_text_that_was_cut_short_is_in_the_partial_reply(autojump_clock: MockClock) -> None:
    model = Fake(lambda request: "one two three four", seconds_per_word=1)
    async with Agent("a", model=model).stream("hi") as stream:
        async for event in stream:
            if event.payload == TextDelta("two "):
                stream.run.cancel()
    assert stream.reply.output == "one two "
    assert stream.reply.messages == (Message("user", "hi"),), "what can be sent again"
    assert model.open_streams == 0


# Errors ------------------------------------------------------------------------------------------


async def test_an_error_of_the_run_comes_after_its_last_event(autojump_clock: MockClock) -> None:
    agent = Agent("a", model=two_turns(), tools=[work], max_turns=1)
    events: list[harness.Event] = []
    with pytest.raises(MaxTurnsError) as caught:
        async with agent.stream("hi") as stream:
            async for event in stream:
                events.append(event)
    last = events[-1].payload
    assert isinstance(last, RunEnded)
    assert last.status == "failed"
    assert "MaxTurnsError" in str(last.error)
    assert caught.value.partial == stream.reply
    assert stream.reply.turns == 1
    assert stream.run.status == "failed"


async def test_an_error_that_ends_loops_does_not_end_the_readers_quietly(
    autojump_clock: MockClock,
) -> None:
    """A model or tool calls `anext` on an exhausted iterator; the reader took that for the end."""

    async def ask(request: ModelRequest) -> str:
        empty: AsyncIterator[str] = aiter(EmptyIterator())
        return await anext(empty)

    with pytest.raises(RuntimeError, match="of 'a' raised StopAsyncIteration") as caught:
        async with Agent("a", model=FunctionModel(ask)).stream("hi") as stream:
            await read_all(stream)
    assert isinstance(caught.value.__cause__, StopAsyncIteration)
    assert stream.run.status == "failed"


class EmptyIterator:
    """One that ends at once."""

    def __aiter__(self) -> EmptyIterator:
        return self

    async def __anext__(self) -> str:
        raise StopAsyncIteration


async def test_an_error_that_nobody_read_comes_from_the_block(autojump_clock: MockClock) -> None:
    agent = Agent("a", model=two_turns(), tools=[work], max_turns=1)
    with pytest.raises(MaxTurnsError):
        async with agent.stream("hi"):
            await trio.sleep(10)
    with pytest.raises(ZeroDivisionError) as caught:
        async with agent.stream("hi"):
            await trio.sleep(10)
            raise ZeroDivisionError
    assert "had failed before" in caught.value.__notes__[0]


async def test_an_error_is_raised_once(autojump_clock: MockClock) -> None:
    agent = Agent("a", model=two_turns(), tools=[work], max_turns=1)
    async with agent.stream("hi") as stream:
        with pytest.raises(MaxTurnsError):
            await read_all(stream)
        assert await read_all(stream) == []


async def test_wrong_use_says_what_to_do(autojump_clock: MockClock) -> None:
    agent = Agent("a", model=two_turns(), tools=[work])
    stream = agent.stream("hi")
    for use in (lambda: stream.run, lambda: stream.reply, lambda: stream.inject("x")):
        with pytest.raises(RuntimeError, match=r"async with agent\.stream"):
            use()
    with pytest.raises(RuntimeError, match=r"async with agent\.stream"):
        await anext(stream)
    async with stream:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_all, stream)
            await wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError, match="another task"):
                await anext(stream)
    with pytest.raises(trio.ClosedResourceError, match="reply"):
        await anext(stream)
    with pytest.raises(RuntimeError, match="each block"):
        async with stream:
            pass


def test_a_stream_outside_trio_says_so() -> None:
    stream = Agent("a", model=two_turns(), tools=[work]).stream("hi")
    with pytest.raises(RuntimeError, match="outside trio"):
        stream.__aenter__().send(None)


# Context and order -------------------------------------------------------------------------------


async def test_in_the_block_the_current_run_is_the_readers(autojump_clock: MockClock) -> None:
    before = dict(copy_context())
    async with harness.open_run("reader") as reader:
        async with Agent("a", model=two_turns(), tools=[work]).stream("hi") as stream:
            assert harness.current_run() is reader
            assert stream.run.parent is reader
            async for _ in stream:
                assert harness.current_run() is reader
        assert harness.current_run() is reader
    assert dict(copy_context()) == before


async def test_each_call_has_its_return_and_each_turn_its_usage(autojump_clock: MockClock) -> None:
    async with Agent("a", model=two_turns(), tools=[work]).stream("hi") as stream:
        payloads = [event.payload for event in await read_all(stream)]
    called = [one.call_id for one in payloads if isinstance(one, ToolCalled)]
    returned = [one.call_id for one in payloads if isinstance(one, ToolReturned)]
    assert sorted(called) == sorted(returned) == ["c1", "c2"]
    assert payloads[0] == TurnStarted(1)
    assert payloads[-1] == RunEnded("ok")


@tool
async def leave_a_task(_: int = 0) -> None:
    nursery: trio.Nursery = harness.current_run().deps
    run = harness.current_run()

    async def later() -> None:
        await trio.sleep(5)
        run.emit_nowait("from the task")

    harness.start_soon(nursery, later, run=run)


async def test_payloads_can_be_written_as_json(autojump_clock: MockClock) -> None:
    child = Agent("child", model=Script("hello"))
    agent = Agent(
        "a",
        model=Script(calls(("work", {"seconds": 1}), ("child", {"task": "go"})), "done"),
        tools=[work, child.as_tool()],
    )
    async with agent.stream("hi") as stream:
        events = await read_all(stream)
    kinds = {type(event.payload) for event in events}
    assert kinds == set(AGENT_EVENTS)
    for event in events:
        record = event._asdict() | {"payload": attrs.asdict(event.payload)}
        assert json.loads(json.dumps(record)) == record
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            event.payload.text = "x"


async def test_the_last_event_comes_after_those_of_tasks_that_tools_left_behind(
    autojump_clock: MockClock,
) -> None:
    agent = Agent("a", model=Script(calls(("leave_a_task", {})), "done"), tools=[leave_a_task])
    async with trio.open_nursery() as nursery:
        async with agent.stream("hi", deps=nursery) as stream:
            payloads = [event.payload for event in await read_all(stream)]
    assert payloads[-2:] == ["from the task", RunEnded("ok")]


async def test_the_last_event_of_a_failed_run_comes_after_those_of_its_tasks(
    autojump_clock: MockClock,
) -> None:
    @tool(on_error="run")
    async def leave_a_task_and_fail() -> None:
        run = harness.current_run()

        async def later() -> None:
            try:
                await trio.sleep_forever()
            finally:
                run.emit_nowait("from the task")

        harness.start_soon(run.deps, later, run=run)
        await trio.sleep(1)
        raise OSError("broken")

    agent = Agent(
        "a", model=Script(calls(("leave_a_task_and_fail", {}))), tools=[leave_a_task_and_fail]
    )
    payloads: list[Any] = []
    async with trio.open_nursery() as nursery:
        with pytest.raises(OSError, match="broken"):
            async with agent.stream("hi", deps=nursery) as stream:
                async for event in stream:
                    payloads.append(event.payload)
    assert payloads[-2:] == ["from the task", RunEnded("failed", "OSError: broken")]


async def test_who_only_subscribes_does_not_make_the_model_stream(
    autojump_clock: MockClock,
) -> None:
    model = two_turns()
    texts: list[str] = []
    async with harness.open_run("outer") as outer:
        async with outer.subscribe(children=True) as events:
            await Agent("a", model=model, tools=[work]).run("hi")
            async for event in events:
                if isinstance(event.payload, TextDelta):
                    texts.append(event.payload.text)
                if isinstance(event.payload, RunEnded):
                    break
    assert model.streamed == 0
    assert texts == ["let me see", "here it is"]


async def test_with_instead_of_async_with_says_what_to_write(autojump_clock: MockClock) -> None:
    stream = Agent("a", model=Script("hello")).stream("hi")
    with pytest.raises(TypeError, match=r"async with agent\.stream\(\.\.\.\) as stream"):
        with stream:  # type: ignore[attr-defined]
            pytest.fail("the block was entered")


async def test_a_stream_can_be_cancelled_at_every_checkpoint(autojump_clock: MockClock) -> None:
    model = two_turns()
    agent = Agent("a", model=model, tools=[work])
    runs: list[harness.Run] = []
    replies: list[Any] = []

    async def use() -> None:
        async with agent.stream("hi", buffer=2) as stream:
            runs.append(stream.run)
            try:
                async for _ in stream:
                    pass
            finally:
                replies.append(stream)

    def check() -> None:
        assert all(run.status != "running" for run in runs)
        assert all(is_valid(stream.reply.messages) for stream in replies)
        assert model.open_streams == 0

    assert await cancel_at_every_checkpoint(use, check) > 10
