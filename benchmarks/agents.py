"""What does a run of an agent cost, without the model?

The model is scripted and answers after one checkpoint, so all that is measured is ours: the run,
the loop, the records, and in a tool turn the task, the validation and the result. The floor is a
bare loop that does the same by hand. The cost at 5,000 at once against 10 shows whether a run looks
at the others. Python's garbage collector does look at everything that is alive, whosever it is: the
rows with a budget are measured without it, and those after them say what it adds, to the bare loop
too.

Run: python -m benchmarks agents
"""

import gc
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import trio
from trio.testing import wait_all_tasks_blocked

from benchmarks._measure import (
    Bench,
    Measured,
    Row,
    at_most,
    for_comparison,
    interleaved,
    rounds_of,
    timed_in_trio,
)
from harness.agents import Agent, tool
from harness.models import Message, ModelRequest, ModelResponse, ScriptedModel, ToolCall

FEW = 10
KIB = 1024


def rows(*, quick: bool) -> Iterator[Row]:
    """Measure runs one after the other, many at once, and the size of a waiting one."""
    samples = interleaved(SERIAL, count=30 if quick else 250, rounds=rounds_of(31, quick=quick))
    for case, budget in (("one call", 5.0), ("a tool turn", 3.5)):
        yield at_most(
            f"agent run, {case} / a bare loop",
            budget,
            samples.ratio(case, f"{case}, bare"),
            note=samples.note(case, f"{case}, bare", per="run"),
        )
    yield for_comparison(
        "agent stream, a tool turn / agent run",
        samples.ratio("a tool turn, streamed", "a tool turn"),
        note=samples.note("a tool turn, streamed", "a tool turn", per="run"),
    )
    many = 300 if quick else 5_000
    together = interleaved(AT_ONCE, count=many, rounds=rounds_of(5, quick=quick))
    for what in ("agent runs", "agent streams"):
        many_uncollected, few_uncollected = f"{what}, all, uncollected", f"{what}, few, uncollected"
        yield at_most(
            f"{what}, many at once / {FEW} at once, without the collector",
            1.5,
            together.ratio(many_uncollected, few_uncollected),
            note=f"{many:,} at once: "
            + together.note(
                many_uncollected, few_uncollected, per=what.split()[1].removesuffix("s")
            ),
        )
    for what in ("agent runs", "agent streams", "bare loops"):
        yield for_comparison(
            f"{what}, many at once / {FEW} at once",
            together.ratio(f"{what}, all", f"{what}, few"),
            note=f"{many:,} at once: "
            + together.note(f"{what}, all", f"{what}, few", per=what.split()[1].removesuffix("s")),
        )
    size = trio.run(live_bytes_each, 100 if quick else 2_000)
    yield at_most(
        "memory of a live agent run in a tool call",
        12,
        Measured.exactly(size / KIB),
        unit="KiB",
        note="its task, its tool's task and its history included (tracemalloc)",
    )


@tool
async def double(number: int) -> int:
    """Double a number."""
    await trio.lowlevel.checkpoint()
    return 2 * number


@tool(timeout=None)
async def wait_for_ever() -> None:
    """Wait forever."""
    await trio.sleep_forever()


CALL = ModelResponse(tool_calls=[ToolCall("c1", "double", {"number": 21})])
WAIT = ModelResponse(tool_calls=[ToolCall("c1", "wait_for_ever")])
one_call = Agent("one call", model=ScriptedModel(["42"]))
tool_turn = Agent("a tool turn", model=ScriptedModel([CALL, "42"]), tools=[double])
waiting = Agent("waiting", model=ScriptedModel([WAIT]), tools=[wait_for_ever])


async def runs_one_call(count: int) -> None:
    for _ in range(count):
        await one_call.run("What is twice 21?")


async def runs_tool_turn(count: int) -> None:
    for _ in range(count):
        await tool_turn.run("What is twice 21?")


async def stream_tool_turn() -> None:
    async with tool_turn.stream("What is twice 21?") as stream:
        async for _ in stream:
            pass


async def streams_tool_turn(count: int) -> None:
    for _ in range(count):
        await stream_tool_turn()


async def bare_one_call(count: int) -> None:
    for _ in range(count):
        messages = [Message("user", "What is twice 21?")]
        response = await one_call.model.complete(ModelRequest(messages))
        messages.append(Message("assistant", response.content))


async def bare_tool_turn(count: int) -> None:
    """Do by hand what an agent does, in a nursery, and nothing else."""
    for _ in range(count):
        messages = [Message("user", "What is twice 21?")]
        while True:
            response = await tool_turn.model.complete(ModelRequest(messages))
            messages.append(Message("assistant", response.content, response.tool_calls))
            if not response.tool_calls:
                break
            results: dict[str, str] = {}

            async def call(wanted: ToolCall, results: dict[str, str]) -> None:
                results[wanted.id] = str(await double(**wanted.arguments))

            async with trio.open_nursery() as nursery:
                for wanted in response.tool_calls:
                    nursery.start_soon(call, wanted, results)
            for call_id, result in results.items():
                messages.append(Message("tool", result, tool_call_id=call_id))


async def at_once(count: int, body: Callable[[int], Awaitable[object]]) -> None:
    """Do the body once in each of so many tasks."""
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(body, 1)


async def few_at_once(count: int, body: Callable[[int], Awaitable[object]]) -> None:
    for _ in range(count // FEW):
        await at_once(FEW, body)


def uncollected(bench: Bench) -> Bench:
    """Return the bench with Python's garbage collector off."""

    def without_collector(count: int) -> float:
        gc.disable()
        try:
            return bench(count)
        finally:
            gc.enable()
            gc.collect()

    return without_collector


SERIAL: dict[str, Bench] = {
    "one call": timed_in_trio(runs_one_call),
    "one call, bare": timed_in_trio(bare_one_call),
    "a tool turn": timed_in_trio(runs_tool_turn),
    "a tool turn, bare": timed_in_trio(bare_tool_turn),
    "a tool turn, streamed": timed_in_trio(streams_tool_turn),
}

BODIES = {
    "agent runs": runs_tool_turn,
    "agent streams": streams_tool_turn,
    "bare loops": bare_tool_turn,
}
COLLECTED: dict[str, Bench] = {
    f"{what}, {size}": timed_in_trio(partial(spread, body=body))
    for what, body in BODIES.items()
    for size, spread in (("few", few_at_once), ("all", at_once))
}
AT_ONCE: dict[str, Bench] = {
    **COLLECTED,
    **{f"{name}, uncollected": uncollected(bench) for name, bench in COLLECTED.items()},
}


async def live_bytes_each(count: int) -> float:
    """Return the bytes per run that Python holds while all of them wait in a tool."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiting.run, "Wait.")  # What is made once for all isn't counted.
        await wait_all_tasks_blocked()
        gc.collect()
        tracemalloc.start()
        try:
            for _ in range(count):
                nursery.start_soon(waiting.run, "Wait.")
            await wait_all_tasks_blocked()
            gc.collect()
            size, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        nursery.cancel_scope.cancel()
    return size / count
