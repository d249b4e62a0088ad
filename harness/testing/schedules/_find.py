"""Find a failing schedule of a program, and shrink it: search, judge, shrink."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs

from harness.errors import LivelockError, StarvationError
from harness.testing.schedules._choosers import Planned
from harness.testing.schedules._controlled import ScheduleRun
from harness.testing.schedules._kinds import check_kind, probable_kind
from harness.testing.schedules._orders_seen import OrdersSeen
from harness.testing.schedules._run_schedule import (
    MOST_STEPS,
    of_its_kind,
    refuse_inside_a_loop,
    run_probe,
)
from harness.testing.schedules._schedule import Schedule
from harness.testing.schedules._search import Probe, Search
from harness.testing.schedules._shrink import Shrinking
from harness.testing.schedules._starvation import STEPS_OF_OTHERS, starving
from harness.testing.schedules._strand import Kind, Observer
from harness.testing.schedules._thread_patches import adopting
from harness.testing.schedules._ways import (
    Drawn,
    PriorityBound,
    Way,
    check_way,
    search_for,
    seen_by,
)

LATER_AT_MOST = 4
"""How many decisions later a thread is left, to see whether this build of Python can do that."""

LEAST_STEPS = 10_000
"""The fewest steps that count as a livelock, however short the plain run was."""


@attrs.frozen(eq=False)
class Found:
    """A failure, in its simplest form."""

    run: ScheduleRun
    """The failing run, after shrinking."""

    error: BaseException
    """What the judge said about it."""

    schedules_run: int
    """How many schedules were run until it was found, not counting shrinking."""

    first: ScheduleRun
    """The failing run as it was found."""

    seen: OrdersSeen | None = None
    """What the schedules before showed; None if they weren't watched."""


@attrs.frozen(eq=False)
class NotFound:
    """What a search that found no failure can say."""

    schedules_run: int
    """How many schedules were run."""

    exhausted: bool
    """Whether every order of the program's steps was run, leaving faults aside. Never if a run
    waited for something that no schedule controls."""

    plain: ScheduleRun
    """The run without a switch."""

    seen: OrdersSeen | None = None
    """Which orders were distinct, and which lines raced; None if schedules weren't watched."""

    bound: PriorityBound | None = None
    """How likely a search by priorities was to find a fault; None for other ways."""

    @property
    def in_words(self) -> str:
        """What passing says; empty if no more was asked for than to search."""
        return "; ".join(str(one) for one in (self.seen, self.bound) if one is not None)


def find_schedule(
    target: Callable[[], Any],
    *,
    schedules: int = 500,
    seed: int = 0,
    judge: Callable[[ScheduleRun], BaseException | None] | None = None,
    prepare: Callable[[], None] | None = None,
    go_on: Callable[[], None] | None = None,
    cancels: bool = True,
    task_cancels: bool = False,
    arrivals_only: bool = False,
    observers: tuple[Observer, ...] = (),
    shrink: bool = True,
    backend: Kind | None = None,
    search: Way = "mixed",
    depth: int = 3,
    enough_below: float | None = None,
    starved_after: int | None = None,
) -> Found | NotFound:
    """Run a program under many schedules until it fails under one, and shrink that one.

    Blocks its thread, which must have no event loop.

    Args:
      target: The program: an async function without arguments, or a plain one with threads.
      schedules: How many schedules to run at most.
      seed: The seed of everything that the search draws.
      judge: Says what is wrong with a run, if anything is; by default what the program raised.
      prepare: Called before every run, even when shrinking: puts back what runs share.
      go_on: Called before every run of the search; raises to end it.
      cancels: Whether runs that faults can strike (see `faultable`) are cancelled, at each step.
      task_cancels: Whether single tasks are; the program must be one of ``with_cancels``.
      arrivals_only: Whether to vary only the order in which replies arrive (see `arriving`).
      observers: Look on between the steps.
      shrink: Whether to shrink the failing schedule.
      backend: ``"trio"`` or ``"asyncio"``; by default it is told from the code. If only its first
        wait tells, the program is begun twice.
      search: ``"distinct"`` runs each order that differs from the others for an assertion, and
        every one if there are few enough; ``"priorities"`` draws priorities for the tasks, which
        has a known chance to find any fault; ``"random"`` draws each choice; ``"mixed"`` takes
        turns. ``"distinct"`` watches what steps touch, so its schedules cost several times as much.
      depth: How many steps must come in one order for a fault that ``"priorities"`` looks for.
      enough_below: Watch the schedules of a search that draws them, and end it when the chance that
        one more shows a new order is below this, with 95 % confidence.
      starved_after: Watch the schedules, and fail if a task gets nowhere during so many steps of
        others, because they take what it waits for. Without it, only a livelock is looked into.

    Returns:
      The failure, or what can be said without one.

    Raises:
      ValueError: if ``schedules`` is less than 1, or there is no such backend or way to search.
      RuntimeError: if this thread has an event loop, or its steps can't be controlled.
    """
    if schedules < 1:
        raise ValueError(f"schedules must be at least 1, not {schedules}")
    fixed = check_kind("find_schedule(backend=...)", backend)
    check_way("find_schedule", search, depth, enough_below, starved_after)
    if search != "mixed" and (task_cancels or arrivals_only):
        raise ValueError(
            f"search={search!r} is about the order of steps alone; leave it out where tasks are "
            "cancelled, or only replies are varied"
        )
    refuse_inside_a_loop("find_schedule")
    judged = judge or (lambda run: run.error)
    most_steps = MOST_STEPS

    kind: Kind = fixed or probable_kind(target)

    def run(probe: Probe) -> ScheduleRun:
        return run_as(kind, probe)

    def run_as(kind: Kind, probe: Probe) -> ScheduleRun:
        if prepare is not None:
            prepare()
        if starved_after is not None:
            probe = starving(probe, starved_after)
        return run_probe(target, probe, observers=observers, most_steps=most_steps, backend=kind)

    with adopting(target):
        usual = Search(seed, cancels, task_cancels, arrivals_only)
        searching = search_for(
            search, usual, schedules=schedules, depth=depth, enough_below=enough_below
        )
        plain: ScheduleRun | None = None
        if search != "mixed" and not fixed:
            # Other searches learn from every probe, so none may be begun twice.
            fixed = kind = of_its_kind(kind, partial(run_as, probe=Probe(Planned({})))).backend
        schedules_run = 0
        uncontrolled = False
        for probe in searching.probes():
            if schedules_run >= schedules:
                break
            if go_on is not None:
                go_on()
            if schedules_run or fixed:
                made = run(probe)
            else:
                made = of_its_kind(kind, partial(run_as, probe=Probe(Planned({}))))
                kind = made.backend
            schedules_run += 1
            error = judged(made)
            if error is not None:
                simplest = made
                if shrink:
                    fails = _fails_like(error, judged)
                    simplest = Shrinking(run, fails, made).shrink()
                    simplest = _where_this_build_switches(run, fails, simplest)
                error = judged(simplest) or error
                if isinstance(error, LivelockError):
                    error = _looked_into(run, simplest, error)
                return Found(
                    simplest, error, schedules_run, made, seen_by(searching, not uncontrolled)
                )
            if plain is None:
                plain = made
                # With far more steps than the plain run, a program is assumed to go on forever.
                most_steps = max(LEAST_STEPS, 20 * made.steps)
            uncontrolled |= bool(made.uncontrolled)
            searching.learn(probe, made)
    assert plain is not None
    seen = seen_by(searching, not uncontrolled)
    exhausted = searching.exhausted and not uncontrolled
    return NotFound(
        schedules_run,
        exhausted if seen is None else seen.exhaustive,
        plain,
        seen,
        searching.bound() if isinstance(searching, Drawn) else None,
    )


def _looked_into(
    run: Callable[[Probe], ScheduleRun], endless: ScheduleRun, error: LivelockError
) -> BaseException:
    """Return who is starved in a program that doesn't end; what it failed with if nobody is."""
    again = Probe(Planned(endless.schedule.choices()), endless.schedule.faults)
    found = run(starving(again, STEPS_OF_OTHERS)).error
    return found if isinstance(found, StarvationError) else error


def _where_this_build_switches(
    run: Callable[[Probe], ScheduleRun], fails: Callable[[ScheduleRun], bool], simplest: ScheduleRun
) -> ScheduleRun:
    """Return a failure of threads that this build of Python could show, if there is one nearby.

    A thread may be left a little later, after a call, and the others do just the same.
    """
    for number in range(simplest.schedule.switches):
        for later in range(1, LATER_AT_MOST + 1):
            if not simplest.unswitchable:
                return simplest
            deviations = list(simplest.schedule.deviations)
            gap, choice = deviations[number]
            deviations[number] = (gap + later, choice)
            schedule = Schedule(tuple(deviations), simplest.schedule.faults)
            made = run(Probe(Planned(schedule.choices()), schedule.faults))
            if fails(made) and len(made.unswitchable) < len(simplest.unswitchable):
                simplest = made
                break
    return simplest


def _fails_like(
    error: BaseException, judge: Callable[[ScheduleRun], BaseException | None]
) -> Callable[[ScheduleRun], bool]:
    """Return a function that tells whether a run fails in the same way."""
    kind = kind_of(error)

    def fails(run: ScheduleRun) -> bool:
        said = judge(run)
        return said is not None and kind_of(said) == kind

    return fails


def kind_of(error: BaseException) -> frozenset[type[BaseException]]:
    """Return what makes two failures the same: the types of the errors, out of all groups."""
    if isinstance(error, BaseExceptionGroup):
        return frozenset().union(*map(kind_of, error.exceptions))
    return frozenset({type(error)})
