"""Run a program once with its steps under control, in a ``trio.run`` of its own."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, copy_context
from typing import Any

import attrs
import outcome
import trio
from trio.testing import MockClock

from harness.errors import DeadlockError, LivelockError
from harness.runs._yields import HeldBlocks, held_blocks
from harness.testing.schedules._blocked import BlockedTask, blocked_tasks, task_name
from harness.testing.schedules._choosers import Chooser
from harness.testing.schedules._control import Control, Controlled, controlled
from harness.testing.schedules._idle import Idle
from harness.testing.schedules._schedule import Fault, Schedule
from harness.testing.schedules._step_backend import Guests, Observer, StepBackend
from harness.testing.schedules._targets import Targets, Wait


@attrs.frozen(eq=False)
class ScheduleRun:
    """What came of one run of a program under one schedule."""

    outcome: outcome.Outcome[Any]
    """What the program returned or raised; `DeadlockError` or `LivelockError` if it never did."""

    schedule: Schedule
    """What was decided, with the marks that a replay is checked against."""

    steps: int
    """How many steps the program's tasks made."""

    order: tuple[int, ...] = attrs.field(repr=False)
    """The task of every step, by its number in the order of starting."""

    names: tuple[str, ...] = attrs.field(repr=False)
    """The name of every task, by its number."""

    choices: tuple[int, ...] = attrs.field(repr=False)
    """The choice at every decision."""

    widths: tuple[int, ...] = attrs.field(repr=False)
    """How many tasks could go on at every decision."""

    picks: tuple[int, ...] = attrs.field(repr=False)
    """The task that went on at every decision, by number; below 0, the reply that arrived."""

    arrivals: frozenset[int] = attrs.field(repr=False)
    """The decisions about which reply arrives."""

    diverged_at: int | None
    """The decision, from 0, at which a replay met different code; None if it didn't."""

    target_steps: dict[int, int] = attrs.field(repr=False)
    """The steps of each run that faults can strike, by its number."""

    target_calls: dict[int, int] = attrs.field(repr=False)
    """The calls of each run that can be made to go wrong, by its number."""

    waits: tuple[Wait, ...] = attrs.field(repr=False)
    """The steps after which these runs had to wait for others."""

    blocked: tuple[BlockedTask, ...]
    """In a deadlock or livelock: what each task is waiting for."""

    strangers: tuple[str, ...]
    """Tasks that mix this ``trio.run`` with another, by name."""

    uncontrolled: frozenset[str]
    """What the program waited for that no schedule controls: worker threads, sockets."""

    @property
    def error(self) -> BaseException | None:
        """What the program raised, if it did."""
        return self.outcome.error if isinstance(self.outcome, outcome.Error) else None


@attrs.define(eq=False)
class _Ending:
    """Why a program was cut short, and the scope that does it."""

    most_steps: int
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    too_many_steps: bool = False
    busy: list[BlockedTask] = attrs.field(factory=list[BlockedTask])
    """What was going on when it had made too many steps."""

    error: BaseException | None = None

    def for_steps(self, control: Control) -> None:
        if not self.too_many_steps:
            self.too_many_steps = True
            self.busy = blocked_tasks(control)
            control.cut_short = True
            self.scope.cancel()

    def for_error(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
        self.scope.cancel()


def run_controlled(
    async_fn: Callable[[], Awaitable[Any]],
    chooser: Chooser,
    *,
    backend: StepBackend,
    faults: tuple[Fault, ...] = (),
    plan: Schedule | None = None,
    observers: tuple[Observer, ...] = (),
    most_steps: int = 100_000,
    context: Context | None = None,
) -> ScheduleRun:
    """Run a program once, in this thread, which must have no event loop.

    Args:
      async_fn: The program.
      chooser: Makes the decisions.
      backend: How the decisions are enforced.
      faults: What goes wrong.
      plan: The schedule being replayed, if any.
      observers: Look on between the steps.
      most_steps: How many steps make it a livelock.
      context: The context variables that the program starts with; by default a copy of ours.
    """
    ending = _Ending(most_steps)
    control = Control(chooser, most_steps, ending.for_steps, Targets(faults), plan)
    guests = Guests(control, ending.for_error)
    session = backend.session(control, guests, observers)
    clock = MockClock()
    idle = Idle(control, clock, ending.scope.cancel)
    result: list[outcome.Outcome[Any]] = []

    async def program() -> Any:
        token = controlled.set(Controlled(control, clock))
        held = held_blocks.set(HeldBlocks())
        try:
            return await async_fn()
        finally:
            held_blocks.reset(held)
            controlled.reset(token)

    async def drive() -> None:
        # When the main task ends, trio cancels all system tasks. The program's own still have to be
        # driven to their end then, so this one goes last.
        with trio.CancelScope(shield=True) as scope:
            idle.stop_driving = scope.cancel
            await session.drive(idle)

    async def main() -> None:
        trio.lowlevel.spawn_system_task(drive, name="harness: drives a schedule")
        with ending.scope:
            result.append(await outcome.acapture(session.run_main, program))
        idle.main_ended = True

    # trio names the main task after the function it is given.
    main.__module__ = getattr(async_fn, "__module__", None) or main.__module__
    main.__qualname__ = getattr(async_fn, "__qualname__", None) or type(async_fn).__qualname__
    try:
        with session():
            (context or copy_context()).run(
                functools.partial(trio.run, main, clock=clock, instruments=session.instruments())
            )
    except trio.TrioInternalError as exc:
        # A system task of the program failed, or was made to fail because it ignored its cancel.
        result[:] = [outcome.Error(exc)]
    return ScheduleRun(
        outcome=_what_came_of_it(result[0], ending, idle),
        schedule=control.schedule(),
        steps=control.steps,
        order=tuple(control.order),
        names=tuple(task_name(task) for task in control.numbers),
        choices=tuple(control.choices),
        widths=tuple(control.widths),
        picks=tuple(control.picks),
        arrivals=frozenset(control.arrivals),
        diverged_at=control.divergence(),
        target_steps={number: target.steps for number, target in control.targets.by_number.items()},
        target_calls={number: target.calls for number, target in control.targets.by_number.items()},
        waits=tuple(control.targets.waits),
        blocked=tuple(idle.deadlocked or ending.busy),
        strangers=tuple(dict.fromkeys(guests.strangers)),
        uncontrolled=frozenset(idle.outside),
    )


def _what_came_of_it(
    result: outcome.Outcome[Any], ending: _Ending, idle: Idle
) -> outcome.Outcome[Any]:
    """Return how the program ended, or why it didn't end by itself."""
    raised = result.error if isinstance(result, outcome.Error) else None
    if isinstance(raised, KeyboardInterrupt | SystemExit):
        raise raised
    if ending.error is not None:
        return outcome.Error(ending.error)
    error: DeadlockError | LivelockError
    if idle.deadlocked is not None:
        error = DeadlockError(
            _in_lines("every task waits, and nothing can wake any", idle.deadlocked)
        )
    elif ending.too_many_steps:
        error = LivelockError(
            _in_lines(
                f"the program had not ended after {ending.most_steps} steps; a task that polls "
                "needs a sleep between two looks, as virtual time stands still while any task "
                "can go on; a program that just does so much is better explored in a smaller form",
                ending.busy,
            )
        )
    else:
        return result
    # What it raised while being ended comes second, but isn't lost.
    error.__context__ = raised if isinstance(raised, Exception) else None
    return outcome.Error(error)


def _in_lines(what: str, tasks: Sequence[BlockedTask]) -> str:
    return "\n".join([what + ":", *(f"  {task}" for task in tasks)])
