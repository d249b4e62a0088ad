"""What does a run of an agent cost, without the model?

The model is scripted and answers after one checkpoint, so all that is measured is ours: the run,
the loop, the records, and in a tool turn the task, the validation and the result. The floor is a
bare loop that does the same by hand. The cost at 5,000 at once against 10 shows whether a run looks
at the others.

Run: python -m benchmarks agents
"""

import gc
import tracemalloc
from collections.abc import Iterator

import trio
from trio.testing import wait_all_tasks_blocked

from benchmarks._measure import (
    Bench,
    Measured,
    Row,
    at_most,
    for_comparison,
    interleaved,
    timed_in_trio,
)
from harness.agents import Agent, tool
from harness.models import Message, ModelRequest, ModelResponse, ScriptedModel, ToolCall

FEW = 10
KIB = 1024


def rows(*, quick: bool) -> Iterator[Row]:
    """Measure runs one after the other, many at once, and the size of a waiting one."""
    samples = interleaved(SERIAL, count=30 if quick else 250, rounds=3 if quick else 31)
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
    at_once = interleaved(AT_ONCE, count=many, rounds=1 if quick else 8)
    for what in ("runs", "streams"):
        yield at_most(
            f"agent {what}, many at once / {FEW} at once",
            2.0,
            at_once.ratio(f"{what}, all", f"{what}, few"),
            note=f"{many:,} at once: "
            + at_once.note(f"{what}, all", f"{what}, few", per=what.removesuffix("s")),
        )
    size = trio.run(live_bytes_each, 100 if quick else 2_000)
    yield at_most(
        "memory of a live agent run in a tool call",
        16,
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


async def runs_at_once(count: int) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(tool_turn.run, "What is twice 21?")


async def streams_at_once(count: int) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(stream_tool_turn)


async def few_runs_at_once(count: int) -> None:
    for _ in range(count // FEW):
        await runs_at_once(FEW)


async def few_streams_at_once(count: int) -> None:
    for _ in range(count // FEW):
        await streams_at_once(FEW)


SERIAL: dict[str, Bench] = {
    "one call": timed_in_trio(runs_one_call),
    "one call, bare": timed_in_trio(bare_one_call),
    "a tool turn": timed_in_trio(runs_tool_turn),
    "a tool turn, bare": timed_in_trio(bare_tool_turn),
    "a tool turn, streamed": timed_in_trio(streams_tool_turn),
}

AT_ONCE: dict[str, Bench] = {
    "runs, few": timed_in_trio(few_runs_at_once),
    "runs, all": timed_in_trio(runs_at_once),
    "streams, few": timed_in_trio(few_streams_at_once),
    "streams, all": timed_in_trio(streams_at_once),
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
