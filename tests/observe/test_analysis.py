"""`analyse`: an exact ledger, the critical path, and what binds."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.limits import Limiter
from harness.models import Message, ModelRequest, ScriptedModel
from harness.observe import (
    Analysis,
    analyse,
    export_chrome,
    plan,
    record,
    speedup,
    write_report,
)
from harness.observe._files import hold
from harness.observe._runs import load
from harness.observe._walk import ledger_of, ledgers, walk_back
from harness.policies import Attempt, Hedge, Retry
from tests.observe.programs import random_program, recorded
from tests.scale import scaled


def random_trace(draw: random.Random) -> list[dict[str, Any]]:
    """Return the lines of a trace as no program would write it: runs and waits at random times."""
    lines: list[dict[str, Any]] = []
    count = draw.randint(1, 30)
    names = [f"r-{number}" for number in range(count)]
    for number, name in enumerate(names):
        start = draw.random()
        line = {"type": "run_started", "time": start, "run_id": name, "path": name}
        if number and draw.random() < 0.9:
            line["parent"] = draw.choice(names[:number])
        if number and draw.random() < 0.4:
            line["by"] = draw.choice(names[:number])
        if draw.random() < 0.3:
            line["inline"] = True
        lines.append(line)
        if draw.random() < 0.9:
            ended = start + draw.choice([0.0, draw.random()])
            lines.append({"type": "run_ended", "time": ended, "run_id": name, "status": "ok"})
        for _ in range(draw.randint(0, 3)):
            wait = len(lines)
            reason = draw.choice(["limiter", "model", "tool", "retry", "cleanup", "queue", "new"])
            began = draw.random()
            common = {"run_id": name, "wait": wait, "reason": reason}
            lines.append({"type": "wait", "time": began, "on": "x", **common})
            if draw.random() < 0.8:
                wake = {"type": "wake", "time": began + draw.random() / 3, **common}
                if draw.random() < 0.5:
                    wake["by"] = draw.choice(names[: number + 1])
                lines.append(wake)
        if number and draw.random() < 0.2:
            hedge = {"attempt": f"r-{number + 1}", "beside": draw.choice(names[: number + 1])}
            lines.append({"type": "hedge", "time": start, "run_id": names[0], **hedge})
    return lines


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_parts_add_up_exactly_whatever_the_trace_is_like(tmp_path: Path) -> None:
    """Of the whole and of every run, in whole nanoseconds; and the path has no gap."""
    for seed in range(scaled(60, full=3_000)):
        lines = random_trace(random.Random(seed))
        analysis = analyse(write(tmp_path / "trace.jsonl", lines))
        times = [round(line["time"] * 1e9) for line in lines]
        assert sum(analysis.nanoseconds.values()) == max(times) - min(times), seed
        assert min(analysis.nanoseconds.values()) >= 0, seed
        for run in analysis.runs.values():
            whole = round(run.ended * 1e9) - round(run.started * 1e9)
            assert sum(run.nanoseconds.values()) == max(0, whole), (seed, run.run_id)
        for number, step in enumerate(analysis.steps[1:]):
            assert step.started == analysis.steps[number].ended, seed
        assert analysis.steps[-1].ended == max(times) / 1e9
        assert analysis.constraint


def test_the_critical_path_is_that_of_brute_force(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    for seed in range(scaled(12, full=1_000)):
        program = random_program(random.Random(seed), depth=3)
        recorded(program, str(path))
        found: list[tuple[str, float]] = []
        for step in analyse(path).steps:
            if step.ended > step.started:
                found.append((step.path, step.ended - step.started))
        expected = program.path_back()[::-1]
        assert merged(found) == [(one, pytest.approx(s, abs=1e-8)) for one, s in merged(expected)]


def test_a_ledger_made_of_others_is_the_same_as_one_made_piece_by_piece(tmp_path: Path) -> None:
    for seed in range(scaled(5, full=1_000)):
        recorded(random_program(random.Random(seed), depth=3), str(tmp_path / "t"))
        runs = load(tmp_path / "t").runs.values()
        assert ledgers(runs) == {run: ledger_of(walk_back(run)) for run in runs}, seed


def merged(steps: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return the steps, those next to each other in one run as one."""
    found: list[tuple[str, float]] = []
    for path, seconds in steps:
        if found and found[-1][0] == path:
            found[-1] = path, found[-1][1] + seconds
        else:
            found.append((path, seconds))
    return found


async def test_the_path_leads_from_the_root_to_the_run_that_ended_last(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def work(seconds: float) -> None:
        await trio.sleep(seconds)

    async with record(tmp_path / "t"):
        async with harness.open_run("root"):
            await harness.fan_out(work, [1, 3, 2, 4], limit=2, name="batch")
    analysis = analyse(tmp_path / "t")
    # 0 ends at 1 and lets 2 begin, which ends at 3 as 1 does; then 3 goes on until 7.
    assert [run.path for run in analysis.critical_path][:2] == ["root", "root/batch"]
    assert analysis.critical_path[-1].path == "root/batch/3"
    assert analysis.critical_path[-1].duration == pytest.approx(4)
    assert analysis.duration == pytest.approx(7)
    assert analysis.parts == pytest.approx({**dict.fromkeys(analysis.parts, 0), "own": 7})


async def test_every_wait_is_in_the_part_it_belongs_to(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    model = ScriptedModel(["yes"], delay=2)
    limiter = Limiter(requests_per_minute=60, burst_seconds=0)
    fails = [True]

    async def ask(_: int) -> None:
        async with limiter.reserve():
            pass
        async with limiter.reserve():  # 1 s after the other one.
            pass
        await model.complete(ModelRequest([Message("user", "really?")]))
        await trio.sleep(3)
        if fails:
            fails.pop()
            raise OSError

    async def tidy_up() -> None:
        async with harness.open_run("tidy"):
            with harness.cleanup():
                await trio.sleep(5)

    retry = Retry(attempts=2)
    async with record(tmp_path / "t"):
        async with harness.open_run("root"):
            results = await harness.fan_out(ask, [0], each=Attempt(retry=retry))
            await tidy_up()
    assert results[0].attempts == 2
    analysis = analyse(tmp_path / "t")
    assert analysis.parts["model"] == pytest.approx(4)
    assert analysis.parts["own"] == pytest.approx(6)
    assert analysis.parts["cleanup"] == pytest.approx(5)
    assert analysis.parts["limiter"] >= 2
    assert analysis.parts["retry"] > 0
    assert analysis.parts["queue"] == analysis.parts["hedge"] == 0


async def test_who_waits_for_a_place_is_held_up_by_who_has_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    limiter = Limiter(concurrent=1)

    async def work(seconds: int) -> None:
        await trio.sleep(1 / seconds)  # So that the longer one comes first.
        async with limiter.reserve():
            await trio.sleep(seconds)

    async with record(tmp_path / "t"):
        await harness.fan_out(work, [10, 2], name="batch")
    analysis = analyse(tmp_path / "t")
    steps = [(step.path, step.ended) for step in analysis.steps if step.ended > step.started]
    assert steps == [("batch/0", pytest.approx(10.1)), ("batch/1", pytest.approx(12.1))]
    assert analysis.parts["limiter"] == 0
    second = next(run for run in analysis.runs.values() if run.path == "batch/1")
    assert second.parts["limiter"] == pytest.approx(9.6)


async def test_whatever_is_done_during_cleanup_is_cleanup(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    model = ScriptedModel(["yes"], delay=3)
    async with record(tmp_path / "t"):
        async with harness.open_run("root"):
            with harness.cleanup():
                await model.complete(ModelRequest([Message("user", "bye")]))
    parts = analyse(tmp_path / "t").parts
    assert (parts["cleanup"], parts["model"]) == (pytest.approx(3), 0)


async def test_the_time_until_a_late_attempt_is_hedged_is_a_part_of_its_own(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    takes = [10, 1]

    async def work(_: int) -> None:
        await trio.sleep(takes.pop(0))

    async with record(tmp_path / "t"):
        await harness.fan_out(work, [0], each=Attempt(hedge=Hedge(after=2)), name="batch")
    analysis = analyse(tmp_path / "t")
    assert analysis.parts["hedge"] == pytest.approx(2)
    assert analysis.parts["own"] == pytest.approx(1)


def test_an_open_wait_is_pending_while_somebody_records_and_lost_afterwards(
    tmp_path: Path,
) -> None:
    found: list[Analysis] = []

    async def main() -> None:
        async with record(tmp_path / "t") as recording:
            async with harness.open_run("root"):
                with harness.cleanup():
                    await trio.sleep(1)
                    recording.flush()
                    found.append(analyse(tmp_path / "t"))

    trio.run(main, clock=MockClock(autojump_threshold=0))
    (during,) = found
    assert [(wait.reason, wait.state) for wait in during.open_waits] == [("cleanup", "pending")]
    assert {run.status for run in during.runs.values()} == {"running"}
    whole = (tmp_path / "t").read_text().splitlines(keepends=True)
    (tmp_path / "t").write_text("".join(whole[:2]))
    after = analyse(tmp_path / "t")
    assert [(wait.reason, wait.state) for wait in after.open_waits] == [("cleanup", "lost")]
    assert {run.status for run in after.runs.values()} == {"lost"}


def test_a_wait_for_what_an_ended_run_had_is_lost(tmp_path: Path) -> None:
    lines = [
        {"type": "run_started", "time": 0, "run_id": "p", "path": "p"},
        {"type": "run_started", "time": 1, "run_id": "a", "path": "p/a", "parent": "p"},
        {"type": "wait", "time": 2, "run_id": "p", "wait": 1, "reason": "limiter", "on": "x"},
        {"type": "run_ended", "time": 3, "run_id": "a", "status": "cancelled"},
    ]
    lines[2]["held_by"] = ["a"]
    path = write(tmp_path / "t", lines)
    with path.open("rb") as file:
        hold(file.fileno())
        assert [wait.state for wait in analyse(path).open_waits] == ["lost"]
        write(path, lines[:3])
        assert [wait.state for wait in analyse(path).open_waits] == ["pending"]


def test_a_circle_of_waits_is_named_as_a_deadlock(tmp_path: Path) -> None:
    lines = [
        {"type": "run_started", "time": 0, "run_id": "p", "path": "p"},
        {"type": "run_started", "time": 1, "run_id": "a", "path": "p/a", "parent": "p"},
        {"type": "run_started", "time": 1, "run_id": "b", "path": "p/b", "parent": "p"},
        {"type": "wait", "time": 2, "run_id": "a", "wait": 1, "reason": "limiter", "on": "x"},
        {"type": "wait", "time": 3, "run_id": "b", "wait": 2, "reason": "limiter", "on": "y"},
    ]
    lines[3]["held_by"], lines[4]["held_by"] = ["b"], ["a"]
    analysis = analyse(write(tmp_path / "t", lines))
    assert analysis.deadlocks == (("p/a", "p/b", "p/a"),)
    assert analysis.constraint == (
        "a deadlock binds: p/a waits for p/b waits for p/a; nothing will go on"
    )
    lines[4]["held_by"] = []
    assert not analyse(write(tmp_path / "t", lines)).deadlocks


async def test_the_limit_that_is_used_up_binds(tmp_path: Path, autojump_clock: MockClock) -> None:
    limiter = Limiter("it", requests_per_minute=6_000, tokens_per_minute=1_000)

    async def work(_: int) -> None:
        await trio.sleep(0.1)

    async with record(tmp_path / "t"):
        each = Attempt(limiter=limiter, tokens=100)
        await harness.fan_out(work, range(40), limit=20, each=each)
    analysis = analyse(tmp_path / "t")
    assert analysis.constraint == (
        "tokens per minute of limiter 'it' bind: 100% used; 20 more workers change nothing"
    )
    assert analysis.parts["limiter"] > 0.9 * analysis.duration
    requests = next(one for one in analysis.limits if one.dimension == "requests")
    assert requests.used < 0.02


async def test_a_full_fan_out_binds_and_so_does_a_straggler(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with record(tmp_path / "full"):
        await harness.fan_out(trio.sleep, [1] * 40, limit=4, name="batch")
    assert analyse(tmp_path / "full").constraint.startswith(
        "the limit of 4 items at once in 'batch' binds: it was full, with 40 items to do"
    )
    async with record(tmp_path / "slow"):
        await harness.fan_out(trio.sleep, [1.0] * 9 + [11.0], limit=10, name="batch")
    analysis = analyse(tmp_path / "slow")
    (found,) = analysis.stragglers
    assert analysis.constraint.startswith("a straggler binds: 'batch/9' took 11 s, and 'batch'")
    assert found.cost_seconds == pytest.approx(10)
    assert found.hedge_after_seconds == pytest.approx(3)
    assert found.hedge_saves_seconds == pytest.approx(7)
    async with record(tmp_path / "two"):
        await harness.fan_out(trio.sleep, [1.0] * 18 + [11.0] * 2, limit=4, name="batch")
    (found,) = analyse(tmp_path / "two").stragglers
    assert found.cost_seconds == pytest.approx(10)  # At once, not one after the other.
    assert len(found.run_ids) == 2


async def test_the_sequential_share_gives_the_ceiling(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with record(tmp_path / "t"):
        async with harness.open_run("root"):
            await trio.sleep(3)
            await harness.fan_out(trio.sleep, [1] * 7, limit=7)
    analysis = analyse(tmp_path / "t")
    assert analysis.sequential_share == pytest.approx(0.3)
    assert analysis.ceiling() == pytest.approx(1 / 0.3)
    assert analysis.ceiling(7) == speedup(analysis.parallel_share, 7)
    assert analysis.waiting_share == pytest.approx(0)
    assert math.isclose(sum(analysis.work.values()), 10)


async def test_the_share_of_waiting_in_a_sequential_program(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    model = ScriptedModel(["yes"], delay=3)
    async with record(tmp_path / "t"):
        async with harness.open_run("root"):
            for _ in range(4):
                await model.complete(ModelRequest([Message("user", "go on")]))
                await trio.sleep(1)
    analysis = analyse(tmp_path / "t")
    assert analysis.waiting_share == pytest.approx(0.75)
    assert "the model's answers, one after the other, bind" in analysis.constraint


def test_a_very_deep_tree_is_no_problem(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = []
    for depth in range(1_000):
        line = {"type": "run_started", "time": depth, "run_id": str(depth), "path": str(depth)}
        lines.append(line | ({"parent": str(depth - 1)} if depth else {}))
    for depth in reversed(range(1_000)):
        line = {"type": "run_ended", "time": 2_000 - depth, "run_id": str(depth), "status": "ok"}
        lines.append(line)
    analysis = analyse(write(tmp_path / "t", lines))
    assert len(analysis.critical_path) == 1_000
    assert analysis.duration == 2_000


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is nothing in the trace"):
        analyse(write(tmp_path / "t", []))
    (tmp_path / "t").write_text("no trace\n")
    with pytest.raises(ValueError, match="line 1 isn't JSON"):
        analyse(tmp_path / "t")
    (tmp_path / "t").write_text("[1]\n")
    with pytest.raises(ValueError, match="line 1 is no line of a trace"):
        analyse(tmp_path / "t")
    with pytest.raises(FileNotFoundError):
        analyse(tmp_path / "nothing")


STARTED = {"type": "run_started", "time": 0, "run_id": "a", "path": "a"}
WAIT = {"type": "wait", "time": 1, "run_id": "a", "wait": 1, "reason": "limiter", "on": "it"}
WAKE = {"type": "wake", "time": 2, "run_id": "a", "wait": 1, "in_flight": 0}


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ([{**STARTED, "time": "soon"}], "its time is 'soon'"),
        ([{**STARTED, "time": math.nan}], "its time is nan"),
        ([{**STARTED, "time": math.inf}], "its time is inf"),
        ([{**STARTED, "time": 1e308}], "its time is 1e\\+308"),
        ([{**STARTED, "run_id": [1]}], r"its run_id is \[1\]"),
        ([{**STARTED, "path": 7}], "its path is 7"),
        ([{**STARTED, "parent": {}}], "its parent is {}"),
        ([{"type": "run_started", "time": 0, "run_id": "a"}], "it has no path"),
        ([{"type": "run_ended", "time": 0, "status": "ok"}], "it has no run_id"),
        ([STARTED, {**WAIT, "held_by": [[1]]}], "in a list"),
        ([STARTED, WAIT, {**WAKE, "granted": {"requests": [1, 0, 60]}}], "in a list"),
        ([STARTED, WAIT, {**WAKE, "granted": {}, "places": 0}], "its places are 0"),
        ([STARTED, {**STARTED, "run_id": "b", "parent": "a"}, {**STARTED, "parent": "b"}], "twice"),
    ],
)
def test_every_reader_refuses_a_line_that_record_never_writes(
    tmp_path: Path, lines: list[dict[str, Any]], fault: str
) -> None:
    trace = write(tmp_path / "t", lines)
    for read in (
        lambda: analyse(trace),
        lambda: plan(trace, items=2, limit=1),
        lambda: write_report(trace, tmp_path / "page"),
        lambda: export_chrome(trace, tmp_path / "chrome"),
    ):
        with pytest.raises(ValueError, match=fault):
            read()
    assert list(tmp_path.iterdir()) == [trace]


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff\xfe", "{}".encode("utf-16")])
def test_bytes_that_are_no_json_in_utf_8_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t").write_bytes(content + b"\n")
    with pytest.raises(ValueError, match="line 1 isn't JSON"):
        analyse(tmp_path / "t")


async def test_one_place_is_called_one(tmp_path: Path, autojump_clock: MockClock) -> None:
    limiter = Limiter("desk", concurrent=1)

    async def work(item: int) -> None:
        async with limiter.reserve():
            await trio.sleep(1)

    async with record(tmp_path / "t"):
        await harness.fan_out(work, range(3))
    constraint = analyse(tmp_path / "t").constraint
    assert constraint.startswith("the only place of limiter 'desk' is taken: 100% used")


async def test_the_limiter_whose_line_took_longest_binds(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    desk, full = Limiter("desk", concurrent=2), Limiter("full", requests_per_minute=60)

    async def work(item: int) -> None:
        async with desk.reserve():
            await trio.sleep(2)
            async with full.reserve():  # As many as it allows, and nobody waits.
                pass

    async with record(tmp_path / "t"):
        await harness.fan_out(work, range(60))
    analysis = analyse(tmp_path / "t")
    assert {use.limiter: round(use.used, 1) for use in analysis.limits} == {"full": 1, "desk": 1}
    assert analysis.constraint.startswith("the 2 places of limiter 'desk' are taken")
