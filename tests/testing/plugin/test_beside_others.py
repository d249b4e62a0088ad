"""The plugin beside others: a real pytest with each, and the command that a failure prints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scale import PATIENCE_SECONDS
from tests.testing.plugin.conftest import ROOT, Ran, RunPytest

ASYNCIO = """\
import asyncio
import pytest
from harness.testing import assert_isolated, explore_schedules

class Account:
    left = 100

    async def spend(self, amount):
        left = self.left
        await asyncio.sleep(0)
        self.left = left - amount

@pytest.fixture
async def account():
    await asyncio.sleep(0)
    return Account()

@explore_schedules
async def test_marked(account):
    await asyncio.gather(account.spend(10), account.spend(20))
    assert account.left == 70

async def test_in_a_suite(account):
    await account.spend(10)
    assert account.left == 90

async def echo(number):
    await asyncio.sleep(1)
    return number

async def test_isolated():
    await assert_isolated(echo, [1, 2], schedules=20)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plugin", "ini"),
    [
        pytest.param("pytest_asyncio.plugin", "asyncio_mode = auto", id="pytest-asyncio"),
        pytest.param("anyio", "anyio_mode = auto", id="anyio"),
    ],
)
def test_beside_plugins_for_asyncio(
    run_pytest: RunPytest, run_as_given: RunPytest, plugin: str, ini: str
) -> None:
    ran = run_pytest(ASYNCIO, "--explore", "-k not [trio]", plugins=(plugin,), ini=ini)
    ended = {name.partition("[")[0]: how for name, how in ran.outcomes.items()}
    assert ended == {
        "test_marked": "FAILED",
        "test_in_a_suite": "PASSED",
        "test_isolated": "PASSED",
    }, ran.text
    assert "1 test passed under other schedules, too; 1 in every order" in ran.text
    again = run_as_given(*ran.printed, "-rA")
    assert list(again.outcomes.values()) == ["FAILED"], again.text
    assert "test_marked fails under the schedule that was given" in again.text


TRIO = """\
import random
import trio
from harness.testing import explore_schedules

@explore_schedules
async def test_wrong():
    order = []
    names = random.sample(range(1000), 3)

    async def add(name):
        for _ in range(name % 3):
            await trio.lowlevel.checkpoint()
        order.append(name)

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(add, name)
    assert order == names or order == names[::-1], names

async def test_right():
    await trio.sleep(1)
"""
INI = "trio_mode = true\n"


@pytest.mark.slow
def test_beside_xdist(run_pytest: RunPytest, run_as_given: RunPytest) -> None:
    """Reports cross from one process to the other; the command is for a single one."""
    ran = run_pytest(TRIO, "--explore", "-n2", plugins=("trio", "xdist.plugin"), ini=INI)
    assert ran.text.count(">       assert order == names or ") == 1, ran.text
    assert "- under this schedule -" in ran.text
    assert "1 test passed under other schedules, too; 1 in every order" in ran.text
    assert not any(argument.startswith("-n") for argument in ran.printed)
    ran = run_pytest(
        TRIO.replace("random.sample(range(1000), 3)", "[0, 1, 2]"),
        "-n2",
        plugins=("trio", "xdist.plugin"),
        ini=INI,
    )
    again = run_as_given(*ran.printed)
    assert "test_wrong fails under the schedule that was given" in again.text


@pytest.mark.slow
def test_beside_randomly(run_pytest: RunPytest, run_as_given: RunPytest) -> None:
    """What a test draws depends on the seed of the session, so the command has that too."""
    plugins = ("trio", "pytest_randomly")
    ran = run_pytest(TRIO, "-p", "no:cacheprovider", plugins=plugins, ini=INI)
    assert ran.outcomes == {"test_wrong": "FAILED", "test_right": "PASSED"}, ran.text
    assert any(argument.startswith("--randomly-seed=") for argument in ran.printed)
    again = run_as_given(*ran.printed)
    assert "test_wrong fails under the schedule that was given" in again.text
    assert "diverged" not in again.text
    assert _drawn(again) == _drawn(ran)


def _drawn(ran: Ran) -> str:
    return ran.text.partition("AssertionError: ")[2].partition("\n")[0]


GIVEN = """\
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from harness.testing import explore_schedules

@settings(max_examples=50, deadline=None, database=None)
@given(numbers=st.lists(st.integers(0, 9), max_size=3))
@explore_schedules(schedules=20)
async def test_wrong(numbers):
    order = []

    async def add(number):
        await trio.lowlevel.checkpoint()
        order.append(number)

    async with trio.open_nursery() as nursery:
        for number in numbers:
            nursery.start_soon(add, number)
    assert order == numbers
"""


@pytest.mark.slow
def test_beside_given(run_pytest: RunPytest, run_as_given: RunPytest) -> None:
    """A schedule belongs to one example; the others don't fail because it isn't theirs."""
    ran = run_pytest(GIVEN, ini=INI)
    assert ran.outcomes == {"test_wrong": "FAILED"}, ran.text
    assert ">       assert order == numbers" in ran.text
    assert "numbers=[0, 1]" in ran.text
    again = run_as_given(*ran.printed)
    assert "test_wrong fails under the schedule that was given" in again.text, again.text
    assert "numbers=[0, 1]" in again.text
    assert "diverged" not in again.text


@pytest.mark.slow
def test_beside_coverage(tmp_path: Path) -> None:
    """What only some schedules reach is measured, in whatever thread they run."""
    (tmp_path / "desk.py").write_text(
        "import trio\n\nasync def answer(order, number):\n    await trio.sleep(0)\n"
        "    if not order and number == 2:\n        order.append('first')\n"
        "    order.append(number)\n"
    )
    (tmp_path / "test_desk.py").write_text(
        "import trio\nfrom desk import answer\nfrom harness.testing import explore_schedules\n\n"
        "@explore_schedules\nasync def test_it():\n    order = []\n"
        "    async with trio.open_nursery() as nursery:\n"
        "        for number in (1, 2):\n            nursery.start_soon(answer, order, number)\n"
        "    assert len(order) in (2, 3)\n"
    )
    arguments = ["-ppytest_trio.plugin", "-pharness_pytest", "-otrio_mode=true"]
    done = subprocess.run(
        [
            sys.executable,
            *["-m", "coverage", "run", "--include=desk.py", "-m", "pytest"],
            *arguments,
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    coverage = [sys.executable, *["-m", "coverage", "json", "-o", "told.json"]]
    subprocess.run(coverage, cwd=tmp_path, check=True, capture_output=True)
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["files"]["desk.py"]["missing_lines"] == []
