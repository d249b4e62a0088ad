"""State belongs to the call in code as people write it: small programs that once went wrong.

Each is a report: what somebody wrote, and the right answer. What agents do about keys of effects is
in `tests/agents/test_tools.py`, and all forms of calls are in one table in
`tests/runs/test_calls.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError, HarnessWarning, NoRunError
from harness.limits import AdaptiveCapacity, Limiter, current_reservation
from harness.testing import assert_isolated
from tests.scale import PATIENCE_SECONDS

messages: harness.RunLocal[list[str]] = harness.RunLocal(list, name="messages")

TICKETS = ["lost card", "wrong fee", "new pin"]
RIGHT = [f"{ticket} / about {ticket}" for ticket in TICKETS]


class Desk:
    """The fix with a `RunLocal` alone: right in a batch, and nowhere else."""

    async def answer(self, ticket: str) -> str:
        mine = messages.get()
        mine.append(ticket)
        await trio.sleep(1)
        mine.append(f"about {mine[0]}")
        return " / ".join(mine)


class CallDesk(Desk):
    """The fix with one line more."""

    @harness.open_run("desk")
    async def answer(self, ticket: str) -> str:
        return await super().answer(ticket)


DESK = CallDesk()


# Tests and loops ---------------------------------------------------------------------------------


@pytest.mark.harness_run(True)
@pytest.mark.parametrize("ticket", TICKETS)
async def test_a_test_needs_no_set_up_for_code_that_uses_a_run_local(
    ticket: str, autojump_clock: MockClock
) -> None:
    assert await Desk().answer(ticket) == f"{ticket} / about {ticket}"


async def test_the_serial_test_from_before_the_fix_passes_after_it(
    autojump_clock: MockClock,
) -> None:
    for ticket in TICKETS:
        assert await DESK.answer(ticket) == f"{ticket} / about {ticket}"
    with pytest.raises(NoRunError, match=r"put @harness.open_run\(\"name\"\) above the function"):
        await Desk().answer(TICKETS[0])


async def test_a_loop_and_a_nursery_in_one_run_are_not_crossed(autojump_clock: MockClock) -> None:
    answers: dict[str, str] = {}

    async def one(ticket: str) -> None:
        answers[ticket] = await DESK.answer(ticket)

    async with harness.open_run("server"):
        assert [await DESK.answer(ticket) for ticket in TICKETS] == RIGHT
        async with trio.open_nursery() as nursery:
            for ticket in TICKETS:
                nursery.start_soon(one, ticket)
    assert [answers[ticket] for ticket in TICKETS] == RIGHT


async def test_tasks_that_one_call_starts_share_its_state_and_calls_do_not() -> None:
    """Two tasks of one run share a `RunLocal`, as they should: they are one piece of work."""

    @harness.open_run("orchestrate")
    async def orchestrate(questions: list[str]) -> list[str]:
        async def note(question: str) -> None:
            messages.get().append(question)
            await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for question in questions:
                nursery.start_soon(note, question)
        return sorted(messages.get())

    async with harness.open_run("server"):
        assert await orchestrate(["a", "b"]) == ["a", "b"]
        assert await orchestrate(["c"]) == ["c"]


async def ask_twice(record: dict[str, str]) -> list[str]:
    return [await DESK.answer(record["first"]), await DESK.answer(record["second"])]


@pytest.mark.slow
async def test_a_function_that_asks_a_desk_twice_is_isolated() -> None:
    record = {"first": "lost card", "second": "wrong fee"}
    other = {"first": "new pin", "second": "lost card"}
    await assert_isolated(ask_twice, [record, other], schedules=50)


@pytest.mark.slow
def test_a_record_whose_function_asks_twice_gets_two_answers(tmp_path: Path) -> None:
    (tmp_path / "desk.py").write_text(
        "import harness, trio\n"
        "messages = harness.RunLocal(list, name='messages')\n"
        "@harness.open_run('desk')\n"
        "async def answer(ticket):\n"
        "    messages.get().append(ticket)\n"
        "    await trio.sleep(0)\n"
        "    return ' / '.join(messages.get())\n"
        "async def both(record):\n"
        "    return [await answer(record['q1']), await answer(record['q2'])]\n"
    )
    (tmp_path / "in.jsonl").write_text('{"q1": "lost card", "q2": "wrong fee"}\n')
    command = ["batch", "desk.py:both", "--input", "in.jsonl", "--output", "out.jsonl", "--quiet"]
    subprocess.run(
        [sys.executable, "-m", "harness", *command],
        cwd=tmp_path,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    (line,) = (tmp_path / "out.jsonl").read_text().splitlines()
    assert json.loads(line)["value"] == ["lost card", "wrong fee"]


# Generators --------------------------------------------------------------------------------------


@trio.as_safe_channel
async def run_stream(prompt: str) -> AsyncGenerator[tuple[str, list[str], str], None]:
    async with harness.open_run(f"run-{prompt}") as run:
        messages.get().append(prompt)
        for number in range(3):
            await trio.sleep(0.1)
            yield f"{prompt}:{number}", [*messages.get()], run.path


async def test_a_run_across_a_yield_is_noticed_when_it_is_entered() -> None:
    async def unrun_stream(prompt: str) -> AsyncGenerator[str, None]:
        async with harness.open_run(f"run-{prompt}"):
            yield prompt

    async with aclosing(unrun_stream("A")) as stream:
        with pytest.raises(HarnessWarning, match=r"held across a yield.*@trio\.as_safe_channel"):
            await anext(stream)


async def test_two_streams_read_in_turns_by_one_task_keep_their_state(
    autojump_clock: MockClock,
) -> None:
    async with harness.open_run("reader") as reader:
        async with run_stream("A") as first, run_stream("B") as second:
            for number in range(3):
                assert await anext(first) == (f"A:{number}", ["A"], "reader/run-A")
                assert await anext(second) == (f"B:{number}", ["B"], "reader/run-B")
                assert harness.current_run() is reader
        assert harness.current_run() is reader


async def test_the_reader_that_breaks_out_of_a_stream_is_in_its_own_run(
    autojump_clock: MockClock,
) -> None:
    async with harness.open_run("reader") as reader:
        async with run_stream("A") as stream:
            async for _ in stream:
                break
        assert harness.current_run() is reader
        assert reader.children == ()


async def test_ten_readers_of_ten_streams_each_see_their_own(autojump_clock: MockClock) -> None:
    seen: dict[str, list[list[str]]] = {}

    async def read(prompt: str) -> None:
        async with run_stream(prompt) as stream:
            seen[prompt] = [state async for _, state, _ in stream]

    async with trio.open_nursery() as nursery:
        for prompt in "ABCDEFGHIJ":
            nursery.start_soon(read, prompt)
    assert seen == {prompt: [[prompt]] * 3 for prompt in "ABCDEFGHIJ"}


# Limits and failures -----------------------------------------------------------------------------


class Refused(Exception):
    status_code = 429


async def capacity_after(calls: int, *, refused: set[int], **settled: int) -> tuple[int, float]:
    """Return what an adaptive capacity comes to, and the time that it took."""
    capacity = AdaptiveCapacity(minimum=1, start=32, maximum=64, cooldown=1)
    seen: set[int] = set()

    async def call(number: int) -> None:
        is_first = number not in seen
        seen.add(number)
        await trio.sleep(1)
        if is_first and number in refused:
            raise Refused
        if settled:
            current_reservation().settle(**settled)

    each = harness.Attempt(limiter=Limiter("any", concurrent=capacity), retry=harness.Retry(3))
    await harness.fan_out(call, range(calls), limit=100, each=each)
    return capacity.limit, trio.current_time()


@pytest.mark.slow
@pytest.mark.parametrize("settled", [{}, {"tokens": 5}])
async def test_a_function_that_just_returns_is_a_good_answer_for_an_adaptive_capacity(
    autojump_clock: MockClock, settled: dict[str, int]
) -> None:
    """It fell to 1 and stayed there, as it heard of refusals and of nothing else."""
    began = trio.current_time()
    refused = {40, 200, 400, 700, 900, 1000}
    returned, after = await capacity_after(3_000, refused=refused, **settled)
    told, ended = await capacity_after(3_000, refused=refused, status=200)
    assert min(returned, told) > 32
    assert after - began == pytest.approx(ended - after, rel=0.1)


async def test_a_batch_whose_every_item_fails_stops_by_itself() -> None:
    """With a wrong key all of 3,000 items were tried, twice each."""
    calls: list[int] = []

    async def call(number: int) -> None:
        calls.append(number)
        await trio.lowlevel.checkpoint()
        raise PermissionError("invalid API key")

    options: dict[str, Any] = {"max_failures": 0.5}
    with pytest.raises(FanOutError):
        await harness.fan_out(call, range(3_000), limit=10, policy=harness.BestEffort(**options))
    assert len(calls) < 50
