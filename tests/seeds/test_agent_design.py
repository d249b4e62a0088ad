"""What a design for an agent that is called many times at once asks for, line by line.

The design is about one agent object whose calls share four fields: a flag that cancels, the current
stream, a queue of events, and what was injected. Its method is an async generator, `run_stream`,
whose signature has to stay. Here the object is written in plain code, with a run for each call; the
agents of harness have to do the same.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

import harness
from harness.agents import Agent, Reply
from harness.errors import RunCancelled
from harness.models import ModelRequest
from harness.testing import assert_isolated
from tests.agents.fakes import Fake, Script, calls


@attrs.define
class Context:
    """The four fields, of one call."""

    cancelled: bool = False
    current_stream: str | None = None
    events: list[str] = attrs.Factory(list)
    injected: list[str] = attrs.Factory(list)


contexts: harness.RunLocal[Context] = harness.RunLocal(Context, name="contexts")


class BaseAgent:
    """An agent whose calls share its name, its instructions and its files, and nothing else."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.instructions = "Be brief."
        self.files: dict[str, str] = {}

    @trio.as_safe_channel
    async def run_stream(self, *prompts: str, deps: Any = None) -> AsyncGenerator[str, None]:
        """Yield an event for each prompt, and for what was injected on the way."""
        async with harness.open_run(self.name, deps=deps) as run:
            mine = contexts.get()
            mine.current_stream = run.id
            for prompt in prompts:
                if mine.cancelled:
                    yield f"{prompt}: cancelled"
                    return
                await trio.sleep(1)
                mine.events.append(prompt)
                await self.tool(prompt)
                assert mine.current_stream == run.id
                yield f"{', '.join([*mine.events, *mine.injected])} for {run.deps}"

    async def tool(self, prompt: str) -> None:
        """Reach the call's state from somewhere that it isn't passed to."""
        await trio.sleep(0.1)
        if prompt.startswith("inject"):
            contexts.get().injected.append(f"word for {prompt}")
        elif prompt.startswith("stop"):
            self.interrupt()

    def interrupt(self) -> None:
        """Cancel the call that this is called in."""
        contexts.get().cancelled = True


async def read(agent: BaseAgent, *prompts: str, deps: Any = None) -> list[str]:
    async with agent.run_stream(*prompts, deps=deps) as events:
        return [event async for event in events]


async def at_once(count: int, one: Callable[[int], Awaitable[Any]]) -> list[Any]:
    """Return what the calls give, in order, all started at once in one nursery."""
    found: dict[int, Any] = {}

    async def note(number: int) -> None:
        found[number] = await one(number)

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(note, number)
    return [found[number] for number in range(count)]


# The signature, and serial calls -----------------------------------------------------------------


def test_the_signature_stays() -> None:
    signature = inspect.signature(BaseAgent.run_stream)
    assert [*signature.parameters] == ["self", "prompts", "deps"]
    assert signature.parameters["prompts"].kind is inspect.Parameter.VAR_POSITIONAL
    assert signature.parameters["deps"].default is None


async def test_serial_calls_work_as_before(autojump_clock: MockClock) -> None:
    agent = BaseAgent("a")
    first = await read(agent, "x", "y", deps=1)
    assert first == ["x for 1", "x, y for 1"]
    assert await read(agent, "x", "y", deps=1) == first
    assert await read(BaseAgent("a"), "x", "y", deps=1) == first


# Calls at once -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 10, 100])
async def test_calls_of_one_agent_at_once_each_see_their_own_events(
    autojump_clock: MockClock, count: int
) -> None:
    agent = BaseAgent("a")

    async def one(number: int) -> list[str]:
        return await read(agent, f"M{number}", f"inject {number}", deps=number)

    events = await at_once(count, one)
    assert events == [
        [f"M{n} for {n}", f"M{n}, inject {n}, word for inject {n} for {n}"] for n in range(count)
    ]


async def test_three_delegated_calls_in_one_run_all_complete(autojump_clock: MockClock) -> None:
    """The report: of three tasks that one agent gave to another, two came back cut short."""
    helper = BaseAgent("helper")
    async with harness.open_run("main"):
        answers = await at_once(3, lambda number: read(helper, f"a{number}", f"b{number}"))
    assert [len(events) for events in answers] == [2, 2, 2]


async def test_a_call_that_is_cancelled_cancels_no_other(autojump_clock: MockClock) -> None:
    agent = BaseAgent("a")
    prompts = [("x", "y", "z"), ("stop", "y", "z"), ("x", "y", "z")]
    first, stopped, last = await at_once(3, lambda number: read(agent, *prompts[number]))
    assert stopped == ["stop for None", "y: cancelled"]
    assert first == last
    assert len(first) == 3


async def test_a_call_that_ends_normally_marks_nothing_as_cancelled(
    autojump_clock: MockClock,
) -> None:
    """It set the flag in a `finally`, and whatever was under way stopped with it."""
    agent = BaseAgent("a")
    async with agent.run_stream("short") as short, agent.run_stream("x", "y", "z") as long:
        assert [event async for event in short] == ["short for None"]
        assert [event async for event in long][-1] == "x, y, z for None"


async def test_calls_in_rapid_succession_are_isolated(autojump_clock: MockClock) -> None:
    """Each starts a little later than the one before, so all are at another place."""
    agent = BaseAgent("a")

    async def one(number: int) -> list[str]:
        await trio.sleep(number / 100)
        return await read(agent, f"M{number}", f"N{number}", deps=number)

    events = await at_once(50, one)
    assert events == [[f"M{n} for {n}", f"M{n}, N{n} for {n}"] for n in range(50)]


async def test_each_call_has_an_id_of_its_own() -> None:
    @harness.open_run("session")
    async def session() -> str:
        return harness.current_run().id

    assert len(set(await at_once(100, lambda _: session()))) == 100


async def test_what_is_shared_on_purpose_stays_shared(autojump_clock: MockClock) -> None:
    class Writer(BaseAgent):
        async def tool(self, prompt: str) -> None:
            self.files[prompt] = self.instructions

    agent = Writer("a")
    await at_once(3, lambda number: read(agent, f"file {number}"))
    assert agent.files == {f"file {number}": "Be brief." for number in range(3)}


async def test_a_subclass_reaches_the_state_of_its_call(autojump_clock: MockClock) -> None:
    class Impatient(BaseAgent):
        async def tool(self, prompt: str) -> None:
            await super().tool(prompt)
            if len(contexts.get().events) == 2:
                self.interrupt()

    agent = Impatient("a")
    events = await at_once(3, lambda _: read(agent, "x", "y", "z"))
    assert [one[-1] for one in events] == ["z: cancelled"] * 3


async def test_events_of_a_call_below_tell_which_call_they_are_from() -> None:
    """The design leaves open whether a subagent's events should carry the id of their call."""

    @harness.open_run("helper")
    async def helper(number: int) -> str:
        run = harness.current_run()
        await run.emit(number)
        return run.id

    heard: list[harness.Event] = []
    with harness.observing(heard.append):
        async with harness.open_run("main") as main:
            ids = await at_once(3, helper)
    assert {event.run_id: event.payload for event in heard} == {ids[n]: n for n in range(3)}
    assert {event.parent_id for event in heard} == {main.id}


@pytest.mark.slow
async def test_the_kit_finds_nothing_in_the_moved_agent() -> None:
    agent = BaseAgent("a")
    await assert_isolated(lambda prompt: read(agent, prompt, "y"), ["x", "inject"], schedules=50)


# The four options --------------------------------------------------------------------------------


async def test_a_lock_makes_calls_serial(autojump_clock: MockClock) -> None:
    agent, lock = BaseAgent("a"), trio.Lock()

    async def one(number: int) -> list[str]:
        async with lock:
            return await read(agent, str(number))

    await at_once(10, one)
    assert trio.current_time() == pytest.approx(11)


async def test_a_run_for_each_call_makes_them_take_as_long_as_one(
    autojump_clock: MockClock,
) -> None:
    agent = BaseAgent("a")
    await at_once(10, lambda number: read(agent, str(number)))
    assert trio.current_time() == pytest.approx(1.1)


async def test_a_pool_of_agents_runs_as_many_at_once_as_it_has(autojump_clock: MockClock) -> None:
    """In this library a pool is a `limit`: the agent has no state, so there can be one of it."""
    agent = BaseAgent("a")
    results = await harness.fan_out(lambda n: read(agent, str(n)), range(20), limit=5)
    assert results.values() == [[f"{n} for None"] for n in range(20)]
    assert trio.current_time() == pytest.approx(4 * 1.1)


@pytest.mark.speed
async def test_a_serial_call_costs_microseconds_more() -> None:
    """The design allows 10 % of a call; a call asks a model, which takes a tenth of a second."""

    async def plain() -> None:
        await trio.lowlevel.checkpoint()

    decorated = harness.open_run("call")(plain)
    began = time.process_time()
    for _ in range(1_000):
        await decorated()
    assert (time.process_time() - began) / 1_000 < 0.001


# Agents of harness -------------------------------------------------------------------------------


def echo(request: ModelRequest) -> str:
    return request.messages[-1].text


async def test_an_agent_at_once_gives_what_it_gives_alone(autojump_clock: MockClock) -> None:
    agent = Agent("a", model=Fake(echo, seconds=1))
    replies: list[Reply[str]] = await at_once(100, lambda number: agent.run(f"M{number}"))
    assert [reply.output for reply in replies] == [f"M{number}" for number in range(100)]
    assert trio.current_time() == 1


async def test_an_agent_that_is_cancelled_cancels_no_other(autojump_clock: MockClock) -> None:
    agent = Agent("a", model=Script("hi", seconds=5))
    async with agent.stream("x") as first, agent.stream("y") as second:
        first.run.cancel("not needed")
        assert [event async for event in second][-1].run_id == second.run.id
        assert second.reply.output == "hi"
    assert (first.run.status, second.run.status) == ("cancelled", "ok")


async def test_what_is_injected_reaches_one_call(autojump_clock: MockClock) -> None:
    agent = Agent("a", model=Fake(echo, seconds=5))
    async with agent.stream("x") as first, agent.stream("y") as second:
        first.inject("and be quick")
        for stream in (first, second):
            async for _ in stream:
                pass
    assert [message.content for message in second.reply.messages] == ["y", "y"]
    assert "and be quick" in (*[m.content for m in first.reply.messages], *first.reply.undelivered)


async def test_three_tasks_given_to_one_helper_at_once_all_come_back(
    autojump_clock: MockClock,
) -> None:
    helper = Agent("helper", model=Fake(echo, seconds=3))
    tasks = calls(*[("helper", {"task": f"task {number}"}) for number in range(3)])
    main = Agent("main", model=Script(tasks, "done"), tools=[helper.as_tool()])
    reply = await main.run("go")
    assert [one.content for one in reply.messages if one.role == "tool"] == [
        f"task {number}" for number in range(3)
    ]
    assert trio.current_time() == 3


async def test_a_conversation_is_shared_only_by_those_who_are_given_it(
    autojump_clock: MockClock,
) -> None:
    """The design leaves open whether history is shared; here nobody shares it by accident."""
    agent = Agent("a", model=Fake(echo))
    first, second = await agent.run("x"), await agent.run("y")
    assert [message.content for message in first.messages] == ["x", "x"]
    assert [message.content for message in second.messages] == ["y", "y"]


async def test_a_cancelled_agent_says_which_call_it_was() -> None:
    ids: list[str] = []

    def cancel(request: ModelRequest) -> Any:
        ids.append(harness.current_run().id)
        harness.current_run().cancel("not needed")
        return calls(("unknown", {}))

    with pytest.raises(RunCancelled) as caught:
        await Agent("a", model=Fake(cancel)).run("x")
    assert [caught.value.run_id] == ids
