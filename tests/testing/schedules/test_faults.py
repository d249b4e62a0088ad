"""What goes wrong is part of the schedule: at the same step, every time."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from harness.errors import InjectedFault, ScheduleError
from harness.testing import (
    NotFound,
    explore_schedules,
    faultable,
    faulty,
    find_schedule,
    run_schedule,
)
from harness.testing.schedules import Fault, Found
from harness.testing.schedules._step_backend import StepBackend
from tests.testing.schedules.programs import each_backend, run_with


async def three_waits() -> list[str]:
    """Be one run with three waits, and say how far it got."""
    got: list[str] = []
    with faultable(1) as scope:
        for wait in range(3):
            # Unlike a sleep, its end is no cancel that another one could be mixed up with.
            await wait_all_tasks_blocked()
            got.append(f"wait {wait} over")
    got.append("cut" if scope.cancelled_caught else "whole")
    return got


@each_backend
def test_a_cancel_while_waiting_cuts_that_wait_short(backend: StepBackend) -> None:
    run = run_with(backend, three_waits, "h1:-:c1@1:-")
    assert run.outcome.unwrap() == ["cut"]
    assert run.schedule.faults == (Fault(1, 1, "cancel"),)
    assert run_with(backend, three_waits, "h1:-:c1@2:-").outcome.unwrap() == ["wait 0 over", "cut"]


@each_backend
def test_a_cancel_on_waking_is_met_one_checkpoint_later(backend: StepBackend) -> None:
    """The wait is over, but the task hasn't resumed: what was handed over mustn't be lost."""
    assert run_with(backend, three_waits, "h1:-:w1@2:-").outcome.unwrap() == ["wait 0 over", "cut"]
    assert run_with(backend, three_waits, "h1:-:w1@3:-").outcome.unwrap()[-2:] == [
        "wait 1 over",
        "cut",
    ]


@each_backend
def test_a_fault_that_never_strikes_is_not_in_the_record(backend: StepBackend) -> None:
    run = run_with(backend, three_waits, "h1:-:c1@99,c7@1:-")
    assert run.outcome.unwrap()[-1] == "whole"
    assert run.schedule.faults == ()


@each_backend
def test_steps_of_child_tasks_count_for_their_run(backend: StepBackend) -> None:
    async def program() -> None:
        with faultable(1):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.lowlevel.checkpoint)
        await trio.lowlevel.checkpoint()

    run = run_with(backend, program)
    assert run.target_steps[1] == 4, "two of the child, two of the parent that waited for it"


@each_backend
def test_a_wrapped_call_fails_or_takes_longer(backend: StepBackend) -> None:
    async def ask(question: str) -> str:
        return question.upper()

    asked = faulty(ask, error=LookupError, delay_seconds=7)

    async def program() -> list[object]:
        answers: list[object] = []
        for question in ("a", "b", "c"):
            began = trio.current_time()
            try:
                answers.append((await asked(question), trio.current_time() - began))
            except LookupError:
                answers.append("failed")
        return answers

    assert run_with(backend, program).target_calls == {0: 3}
    run = run_with(backend, program, "h1:-:f0@1,d0@3:-")
    assert run.outcome.unwrap() == ["failed", ("B", 0), ("C", 7)]


async def test_outside_of_a_schedule_nothing_is_struck() -> None:
    async def ask(question: str) -> str:
        await trio.lowlevel.checkpoint()
        return question.upper()

    with faultable(1) as scope:
        assert await faulty(ask)("a") == "A"
    assert not scope.cancelled_caught


def test_a_run_number_is_used_once() -> None:
    async def program() -> None:
        with faultable(1):
            await trio.lowlevel.checkpoint()
        with faultable(1):
            await trio.lowlevel.checkpoint()

    assert "use each number once" in str(run_schedule(program).error)
    with pytest.raises(ValueError, match="numbered from 1"):
        with faultable(0):
            pass


def test_the_sweep_finds_the_one_step_where_a_cancel_hurts() -> None:
    """A connection whose reply stays unread when its user is cancelled between send and receive."""

    async def program() -> None:
        replies: list[str] = []
        lock = trio.Lock()
        answers: dict[int, str] = {}

        async def call(number: int) -> None:
            with faultable(number):
                async with lock:
                    replies.append(f"reply to {number}")
                    await trio.lowlevel.checkpoint()
                    answers[number] = replies.pop(0)

        async with trio.open_nursery() as nursery:
            for number in (1, 2):
                nursery.start_soon(call, number)
        for number, answer in answers.items():
            assert answer == f"reply to {number}"

    without = find_schedule(program, cancels=False)
    assert isinstance(without, NotFound)
    assert without.exhausted, "no order shows it without a cancel"
    found = find_schedule(program)
    assert isinstance(found, Found)
    assert len(found.run.schedule.faults) == 1
    assert found.run.schedule.switches <= 1, "the schedule and the fault are shrunk together"
    again = run_schedule(program, str(found.run.schedule))
    assert isinstance(again.error, BaseExceptionGroup | AssertionError)


def test_failing_calls_are_searched_for_too() -> None:
    """A failed turn cuts the shared history back to where it was when the turn began."""

    async def program() -> None:
        history: list[str] = []

        async def work(who: str) -> str:
            await trio.lowlevel.checkpoint()
            return f"answer to {who}"

        worker = faulty(work)

        async def turn(who: str) -> None:
            began = len(history)
            history.append(who)
            try:
                history.append(await worker(who))
            except InjectedFault:
                del history[began:]
                return
            assert who in history, f"the turn of {who} was cut out of the history"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn, "a")
            nursery.start_soon(turn, "b")

    found = find_schedule(program)
    assert isinstance(found, Found)
    assert "fail" in [fault.kind for fault in found.run.schedule.faults]
    assert found.run.schedule.size[0] <= 3


async def order(notes: list[str]) -> None:
    notes.append("charged")
    await trio.lowlevel.checkpoint()
    try:
        faultable("save the order", error=lambda: ConnectionError("no database"))
    except ConnectionError:
        notes.append("left as it was")  # It should have given back the money.


def test_a_point_fails_by_name_and_the_report_calls_it_so() -> None:
    @explore_schedules
    async def test_orders() -> None:
        notes: list[str] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(order, notes)
            nursery.start_soon(order, notes)
        assert "left as it was" not in notes

    with pytest.raises(ScheduleError) as caught:
        trio.run(test_orders)
    said = str(caught.value)
    assert "what was made to go wrong:\n  'save the order' fails\n" in said
    assert ":f0@1:" in str(caught.value.schedule)


def test_points_work_in_plain_functions_and_threads() -> None:
    def program() -> str:
        faultable("read")
        try:
            faultable("write")
        except InjectedFault as error:
            return str(error)
        return "written"

    assert run_schedule(program).outcome.unwrap() == "written"
    assert run_schedule(program, "h1:-:f0@2:-").outcome.unwrap() == (
        "the schedule made this fail: write"
    )
    assert isinstance(run_schedule(program, "h1:-:f0@1:-").error, InjectedFault)


def test_a_point_does_nothing_where_no_schedule_runs_it() -> None:
    """Such points stay in programs that go into production."""
    faultable("save the order", error=AssertionError)
    with pytest.raises(ValueError, match="numbered from 1, not 0"):
        faultable(0)
