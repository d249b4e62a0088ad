"""One agent, many streams at once: each has its own events, queue, cancel and messages.

The nine tests that a proposal for concurrent runs of one agent would ask for, at its scale and
beyond. Each run is told apart by its number, which is in everything that belongs to it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.agents import (
    Agent,
    Reply,
    RunEnded,
    TextDelta,
    ToolCalled,
    ToolReturned,
    TurnStarted,
    UsageReported,
    tool,
)
from harness.models import ModelRequest, ModelResponse
from tests.agents.fakes import Fake, calls, last_user, said
from tests.scale import scaled

LOTS = scaled(1_000, full=10_000)


@tool
async def look_up(number: str) -> str:
    """Look a number up."""
    await trio.sleep(1)
    return f"found {number}"


def answer(request: ModelRequest) -> ModelResponse:
    """Look up what the user said, then repeat it with everything the user said meanwhile."""
    words = [one.text for one in request.messages if one.role == "user"]
    found = [one.text for one in request.messages if one.role == "tool"]
    if found:
        return said(f"{found[0]} for {' and '.join(words)}")
    return calls(("look_up", {"number": last_user(request)}), text=f"looking for {words[0]}")


def make_agent() -> Agent[str]:
    return Agent("one for all", model=Fake(answer, seconds=1, seconds_per_word=1), tools=[look_up])


def attributes(agent: Agent[str]) -> dict[str, object]:
    names = ("name", "model", "instructions", "tools", "max_turns", "output_type")
    return {name: getattr(agent, name) for name in names}


EXPECTED = [
    TurnStarted(1),
    TextDelta("looking "),
    TextDelta("for "),
    TextDelta("N "),
    UsageReported(calls().usage),
    ToolCalled("c1", "look_up", {"number": "N"}),
    ToolReturned("c1", "look_up", "found N", True),
    TurnStarted(2),
    TextDelta("found "),
    TextDelta("N "),
    TextDelta("for "),
    TextDelta("N "),
    UsageReported(said("").usage),
    RunEnded("ok"),
]


def generalised(payloads: Iterable[object], number: str) -> list[str]:
    return [repr(payload).replace(number, "N") for payload in payloads]


async def read(
    agent: Agent[str], number: str, into: dict[str, list[harness.Event]], *, pause: float = 0
) -> Reply[str]:
    """Read the stream of one run, and check that it has its own events and nothing else."""
    events = into[number] = []
    async with agent.stream(number) as stream:
        async for event in stream:
            events.append(event)
            await trio.sleep(pause)
    assert {event.run_id for event in events} == {stream.run.id}
    assert [event.sequence for event in events] == list(range(len(events)))
    return stream.reply


async def read_many(agent: Agent[str], count: int) -> dict[str, Reply[str]]:
    events: dict[str, list[harness.Event]] = {}
    replies: dict[str, Reply[str]] = {}

    async def one(number: str) -> None:
        replies[number] = await read(agent, number, events)

    async with trio.open_nursery() as nursery:
        for index in range(count):
            nursery.start_soon(one, f"#{index}#")
    expected = generalised(EXPECTED, "N")
    for number, of_one in events.items():
        assert generalised((event.payload for event in of_one), number) == expected
    return replies


async def test_serial_baseline_and_a_single_call(autojump_clock: MockClock) -> None:
    agent = make_agent()
    before = attributes(agent)
    for count in (1, 1, 1):
        replies = await read_many(agent, count)
        assert replies["#0#"].output == "found #0# for #0#"
    assert attributes(agent) == before


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 10, 100, LOTS])
async def test_streams_of_one_agent_at_once_see_what_each_sees_alone(
    autojump_clock: MockClock, count: int
) -> None:
    """Event isolation: each stream has exactly the events of its own run, in order."""
    agent = make_agent()
    before = attributes(agent)
    replies = await read_many(agent, count)
    assert len(replies) == count
    for number, reply in replies.items():
        assert reply.output == f"found {number} for {number}"
        assert [one.content for one in reply.messages if one.role == "user"] == [number]
    assert len({reply.run_id for reply in replies.values()}) == count
    assert attributes(agent) == before


async def test_queue_isolation(autojump_clock: MockClock) -> None:
    """A reader that is slow, or reads nothing at all, holds up its own run and no other."""
    agent = make_agent()
    events: dict[str, list[harness.Event]] = {}
    ended_at: dict[str, float] = {}

    async def one(number: str, pause: float) -> None:
        await read(agent, number, events, pause=pause)
        ended_at[number] = trio.current_time()

    async with agent.stream("#never read#", buffer=1) as unread:
        async with trio.open_nursery() as nursery:
            for index in range(20):
                nursery.start_soon(one, f"#{index}#", 1_000 if index == 7 else 0)
        assert unread.run.status == "running", "it waits for its reader"
    assert ended_at.pop("#7#") > 10_000
    assert set(ended_at.values()) == {10}
    expected = generalised(EXPECTED, "N")
    for number, of_one in events.items():
        assert generalised((event.payload for event in of_one), number) == expected


@pytest.mark.slow
async def test_cancellation_isolation(autojump_clock: MockClock) -> None:
    """Cancel run 2 of 100: the other 99 have all their events and replies."""
    agent = make_agent()
    events: dict[str, list[harness.Event]] = {}
    replies: dict[str, Reply[str]] = {}

    async def one(number: str) -> None:
        replies[number] = await read(agent, number, events)

    async def second() -> None:
        async with agent.stream("#2#") as stream:
            async for event in stream:
                events.setdefault("#2#", []).append(event)
                if isinstance(event.payload, ToolCalled):
                    canceller.start_soon(cancel, stream.run)
        assert stream.run.status == "cancelled"
        assert not stream.reply.complete

    async def cancel(run: harness.Run) -> None:
        run.cancel("not needed any more")

    async with trio.open_nursery() as canceller, trio.open_nursery() as nursery:
        for index in range(100):
            if index == 2:
                nursery.start_soon(second)
            else:
                nursery.start_soon(one, f"#{index}#")
    assert len(replies) == 99
    assert all(reply.complete for reply in replies.values())
    assert events["#2#"][-1].payload == RunEnded("cancelled")
    del events["#2#"]
    expected = generalised(EXPECTED, "N")
    for number, of_one in events.items():
        assert generalised((event.payload for event in of_one), number) == expected


async def test_injection_isolation(autojump_clock: MockClock) -> None:
    """A message for one run is in the history of that run and of no other."""
    agent = make_agent()
    replies: dict[int, Reply[str]] = {}

    async def one(index: int) -> None:
        async with agent.stream(f"#{index}#") as stream:
            async for event in stream:
                if index % 2 and isinstance(event.payload, ToolCalled):
                    stream.inject(f"extra {index}")
        replies[index] = stream.reply

    async with trio.open_nursery() as nursery:
        for index in range(100):
            nursery.start_soon(one, index)
    for index, reply in replies.items():
        users = [message.text for message in reply.messages if message.role == "user"]
        assert users == [f"#{index}#", *([f"extra {index}"] if index % 2 else [])]
        assert reply.output == f"found #{index}# for {' and '.join(users)}"
        assert reply.undelivered == ()


async def test_rapid_fire(autojump_clock: MockClock) -> None:
    """Streams that are opened and left in quick succession, at every stage of their life."""
    agent = make_agent()
    outputs: list[str] = []

    async def run(number: str) -> None:
        outputs.append((await agent.run(number)).output)

    async with trio.open_nursery() as nursery:
        for read_at_most in range(100):
            async with agent.stream(f"#{read_at_most}#") as stream:
                count = 0
                async for event in stream:
                    assert event.run_id == stream.run.id
                    count += 1
                    if count > read_at_most % 16:
                        break
            assert stream.run.status != "running"
            nursery.start_soon(run, f"#{read_at_most}#")
    assert sorted(outputs) == sorted(f"found #{n}# for #{n}#" for n in range(100))


async def test_parallel_speed_up(autojump_clock: MockClock) -> None:
    """A hundred at once take as long as one."""
    agent = make_agent()
    began = trio.current_time()
    await read_many(agent, 1)
    alone = trio.current_time() - began
    began = trio.current_time()
    await read_many(agent, 100)
    assert trio.current_time() - began == alone == 10


@pytest.mark.speed
def test_serial_overhead() -> None:
    """A stream with a tool turn costs well under a millisecond of CPU time."""
    agent = Agent("quick", model=Fake(answer), tools=[look_up])

    async def main(count: int) -> float:
        began = time.process_time()
        for index in range(count):
            await read(agent, f"#{index}#", {})
        return (time.process_time() - began) / count

    def measure() -> float:
        return trio.run(main, 200, clock=MockClock(autojump_threshold=0))

    measure()
    assert min(measure() for _ in range(5)) < 1.5e-3
