"""What pytest shows of a failing schedule, the command it prints, and where ``--pdb`` stops."""

from __future__ import annotations

import re

import pytest

from tests.testing.plugin.conftest import RunPytest

PROGRAM = """\
import asyncio
import threading

import pytest
import trio

from harness.testing import assert_isolated, assert_linearizable, explore_schedules


class Account:
    def __init__(self):
        self.left = 100

    async def spend(self, amount):
        left = self.left
        await trio.lowlevel.checkpoint()
        self.left = left - amount


@pytest.mark.parametrize("name", ["a b"])
@explore_schedules
async def test_trio(name):
    account = Account()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(account.spend, 10, name="rent")
        nursery.start_soon(account.spend, 20, name="food")
    assert account.left == 70, "money is lost"


@explore_schedules
def test_threads():
    one, other = threading.Lock(), threading.Lock()

    def east():
        with one, other:
            pass

    def west():
        with other, one:
            pass

    threads = [threading.Thread(target=work) for work in (east, west)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Agent:
    async def answer(self, question):
        self.question = question
        await trio.sleep(0)
        return self.question


async def test_isolated():
    await assert_isolated(Agent().answer, ["a", "b"])


class Counter:
    count = 0

    async def increase(self):
        count = self.count
        await trio.sleep(0)
        self.count = count + 1
        return self.count


def test_linearizable():
    assert_linearizable(Counter, [Counter.increase])


async def test_as_it_is():
    order = []

    async def add(number):
        await trio.sleep(0)
        order.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(add, 1)
        nursery.start_soon(add, 2)
    assert order[0] == 1
"""

INI = "trio_mode = true\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "first", "then"),
    [
        pytest.param(
            "test_trio",
            (),
            r'>       assert account.left == 70, "money is lost"\nE       AssertionError: money',
            "'rent' goes on for 1 step, to Account.spend",
            id="trio",
        ),
        pytest.param(
            "test_threads",
            (),
            r">           thread.join\(\)\nE +harness.errors.DeadlockError: every thread",
            "for a lock that thread 'west' holds",
            id="threads",
        ),
        pytest.param(
            "test_isolated",
            (),
            r'>       await assert_isolated\(Agent\(\).answer, \["a", "b"\]\)\n'
            "E       harness.errors.ScheduleError: Agent.answer is not isolated",
            "read by run 1 ('a') at Agent.answer",
            id="isolation",
        ),
        pytest.param(
            "test_linearizable",
            (),
            r">       assert_linearizable\(Counter, \[Counter.increase\]\)\n"
            "E       harness.errors.ScheduleError: Counter is not linearizable",
            "increase() gives 1; then increase() gives 2",
            id="linearizability",
        ),
        pytest.param(
            "test_as_it_is",
            ("--explore", "--search-schedules=distinct"),
            r">       assert order\[0\] == 1\nE       assert 2 == 1",
            "'add #2' goes on for 2 steps",
            id="suite",
        ),
    ],
)
def test_a_failure_shows_the_test_and_its_error_first_and_a_command_that_works(
    run_pytest: RunPytest,
    run_as_given: RunPytest,
    name: str,
    options: tuple[str, ...],
    first: str,
    then: str,
) -> None:
    """Before, the line that failed came after pages of frames of the kit and of event loops."""
    ran = run_pytest(PROGRAM, f"-k{name}", *options, ini=INI)
    assert ran.status == 1
    found = re.search(first, ran.text)
    assert found is not None, ran.text
    assert then in ran.text[found.end() :]
    assert "Error" not in ran.text[: found.start()]
    assert "harness/" not in ran.text
    assert 'schedule="' not in ran.text
    again = run_as_given(*ran.printed, "-rA")
    assert re.search(first, again.text), again.text
    assert len(again.outcomes) == 1
    if name not in ("test_isolated", "test_linearizable"):
        assert "fails under the schedule that was given" in again.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "place", "shown"),
    [
        pytest.param("test_trio", "'rent' was left here, for 'food'", "left, 100", id="trio"),
        pytest.param("test_threads", "with one, other:", "", id="threads"),
        pytest.param("test_isolated", "'run 1' was left here, for 'run 2'", "", id="isolation"),
        pytest.param("test_linearizable", "await trio.sleep(0)", "", id="linearizability"),
    ],
)
def test_a_debugger_opens_where_a_task_was_left_for_the_wrong_other(
    run_pytest: RunPytest, name: str, place: str, shown: str
) -> None:
    """At the end of the test, where the error is raised, nothing of the race is left to see."""
    typed = "p f'left, {left}'\nc\n" if shown else "c\n"
    ran = run_pytest(PROGRAM, f"-k{name}", "--pdb", ini=INI, typed=typed)
    opened = ran.text.partition("PDB post_mortem")[2]
    assert "a replay stands still at the switch that matters" in opened, ran.text
    assert place in opened
    assert shown in opened
    assert ran.status == 1
