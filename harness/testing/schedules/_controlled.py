"""Run a program once with its steps under control, in an event loop of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from types import MappingProxyType
from typing import Any

import attrs
import outcome

from harness.runs._yields import HeldBlocks, held_blocks
from harness.testing.schedules._backend import Backend
from harness.testing.schedules._blocked import BlockedTask, task_name
from harness.testing.schedules._choosers import Chooser
from harness.testing.schedules._control import Control, controlled
from harness.testing.schedules._ending import Ending
from harness.testing.schedules._schedule import Fault, Schedule
from harness.testing.schedules._strand import RETURNED_AWAITABLE, Kind, Observer, close_unawaited
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

    cancels: tuple[str, ...] = attrs.field(repr=False)
    """In words, which tasks were cancelled, and where (see `explore_cancellations`)."""

    waits: tuple[Wait, ...] = attrs.field(repr=False)
    """The steps after which these runs had to wait for others."""

    blocked: tuple[BlockedTask, ...]
    """In a deadlock or livelock: what each task is waiting for."""

    strangers: tuple[str, ...]
    """Tasks that mix this loop with another, by name."""

    uncontrolled: frozenset[str]
    """What the program waited for that no schedule controls: worker threads, sockets."""

    backend: Kind
    """What kind of program it is: ``"trio"``, ``"asyncio"`` or ``"threads"``."""

    unheard: tuple[str, ...]
    """Errors that nobody waited for: asyncio would only have logged them, a thread printed them."""

    labels: Mapping[Fault, str] = attrs.field(default=MappingProxyType({}), repr=False)
    """What the faults struck that struck a point with a label; see `faultable`."""

    unswitchable: tuple[str, ...] = ()
    """Where a thread was left for another although this build of Python doesn't do that there.

    Others do, such as free-threaded ones."""

    @property
    def switches_in_words(self) -> str:
        """Whether this build of Python could do what a run of threads did; empty for others."""
        if self.backend != "threads" or not self.schedule.switches:
            return ""
        if not self.unswitchable:
            return "this build of Python can switch threads at each of these places"
        return (
            "this build of Python doesn't switch threads right there, but free-threaded builds do, "
            f"and other versions may: {', '.join(self.unswitchable)}"
        )

    @property
    def error(self) -> BaseException | None:
        """What the program raised, if it did."""
        return self.outcome.error if isinstance(self.outcome, outcome.Error) else None


def run_controlled(
    target: Callable[[], Any],
    chooser: Chooser,
    *,
    backend: Backend,
    faults: tuple[Fault, ...] = (),
    plan: Schedule | None = None,
    observers: tuple[Observer, ...] = (),
    most_steps: int = 100_000,
    context: Context | None = None,
) -> ScheduleRun:
    """Run a program once, in this thread, which must have no event loop.

    Args:
      target: The program: an async function, or a plain one for threads.
      chooser: Makes the decisions.
      backend: What runs programs of this kind, and enforces the decisions.
      faults: What goes wrong.
      plan: The schedule being replayed, if any.
      observers: Look on between the steps.
      most_steps: How many steps make it a livelock.
      context: The context variables that the program starts with; by default a copy of ours.
    """
    ending = Ending(most_steps)
    control = Control(backend, chooser, most_steps, ending.for_steps, Targets(faults), plan)

    control.ending = ending

    async def program() -> Any:
        token = controlled.set(control)
        held = held_blocks.set(HeldBlocks())
        try:
            returned = target()
            if backend.kind != "threads":
                return await returned
            if inspect.isawaitable(returned):
                close_unawaited(returned)
                raise TypeError(RETURNED_AWAITABLE)
            return returned
        finally:
            held_blocks.reset(held)
            controlled.reset(token)

    program.__module__ = getattr(target, "__module__", None) or program.__module__
    program.__qualname__ = getattr(target, "__qualname__", None) or type(target).__qualname__
    result = backend.run(program, control, ending, observers, context or copy_context())
    targets = control.targets.by_number
    struck_tasks = control.targets.struck_tasks
    return ScheduleRun(
        outcome=ending.judge(result),
        schedule=control.schedule(),
        steps=control.steps,
        order=tuple(control.order),
        names=tuple(task_name(strand) for strand in control.numbers),
        choices=tuple(control.choices),
        widths=tuple(control.widths),
        picks=tuple(control.picks),
        arrivals=frozenset(control.arrivals),
        diverged_at=control.divergence(),
        target_steps={number: target.steps for number, target in targets.items()},
        target_calls={number: target.calls for number, target in targets.items()},
        cancels=tuple(struck_tasks.in_words() if struck_tasks is not None else ()),
        waits=tuple(control.targets.waits),
        blocked=tuple(ending.deadlocked or ending.busy),
        strangers=tuple(dict.fromkeys(ending.strangers)),
        uncontrolled=frozenset(ending.outside),
        backend=backend.kind,
        unheard=tuple(dict.fromkeys(ending.unheard)),
        labels=MappingProxyType(control.targets.labels),
        unswitchable=tuple(dict.fromkeys(ending.unswitchable)),
    )
