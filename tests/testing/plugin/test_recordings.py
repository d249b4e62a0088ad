"""Failing schedules are kept in a file, and replayed from it while the program is the same."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.testing.plugin.conftest import RunPytest

PROGRAM = """\
import pytest
import trio
from harness.testing import assert_isolated, explore_schedules

async def race(steps):
    order = []

    async def add(number):
        for _ in range(steps):
            await trio.sleep(0)
        order.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(add, 1)
        nursery.start_soon(add, 2)
    return order

@pytest.mark.parametrize("steps", [1])
async def test_in_a_suite(steps):
    assert await race(steps) == [1, 2]

@explore_schedules
async def test_explored():
    assert await race(2) == [1, 2]

seen = []

async def agent(text):
    seen.append(text)
    return list(seen)

async def test_isolated():
    await assert_isolated(agent, ["a", "b"])

async def test_right():
    await trio.sleep(0)
"""
INI = "trio_mode = true\n"


@pytest.mark.slow
def test_failures_are_recorded_and_replayed_alone(run_pytest: RunPytest, tmp_path: Path) -> None:
    first = run_pytest(PROGRAM, "--explore", "--record-schedules=failed.json", ini=INI)
    assert "3 failing schedules recorded in failed.json" in first.text, first.text
    held = json.loads((tmp_path / "failed.json").read_text())
    assert held["version"] == 1
    assert [one["explore"] for one in held["failures"]] == [True, False, False]
    again = run_pytest(PROGRAM, "--replay-schedules=failed.json", ini=INI)
    assert again.outcomes == {
        "test_in_a_suite[1]": "FAILED",
        "test_explored": "FAILED",
        "test_isolated": "FAILED",
    }, again.text
    assert again.text.count("fails under the schedule that was given\n") == 2
    assert "1 deselected" in again.text
    assert len(set(re.findall(r"--schedule=(\S+)", again.text))) == 3
    mended = PROGRAM.replace("range(steps)", "range(0)")
    passed = run_pytest(mended, "--replay-schedules=failed.json", "-k not iso", ini=INI)
    assert passed.text.count(" diverged at decision ") == 2, passed.text
    assert "it was recorded with other code" in passed.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("held", "said"),
    [
        pytest.param(None, "can't be read: ", id="no file"),
        pytest.param("{", "can't be read: ", id="no JSON"),
        pytest.param("[]", "is no file that --record-schedules wrote", id="another file"),
        pytest.param(
            '{"format": "harness schedules", "version": 2}',
            "is of version 2, and this harness reads 1; record it again",
            id="another version",
        ),
        pytest.param(
            '{"format": "harness schedules", "version": 1, "failures": [{}]}',
            "is damaged (KeyError('test')); record it again",
            id="damaged",
        ),
        pytest.param(
            '{"format": "harness schedules", "version": 1, "failures": [{"test": "test_it.py::old",'
            ' "schedule": "h1:-:-:-", "explore": false, "error": ""}]}',
            "has tests that are not here: test_it.py::old; they have been renamed since",
            id="another test",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    run_pytest: RunPytest, tmp_path: Path, held: str | None, said: str
) -> None:
    if held is not None:
        (tmp_path / "failed.json").write_text(held)
    ran = run_pytest("def test(): pass", "--replay-schedules=failed.json", plugins=())
    assert ran.status == 4
    assert said in ran.text
