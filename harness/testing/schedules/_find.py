"""Find a failing schedule of a program, and shrink it: search, judge, shrink."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import attrs

from harness.testing.schedules._choosers import Planned
from harness.testing.schedules._controlled import ScheduleRun
from harness.testing.schedules._kinds import check_kind, probable_kind
from harness.testing.schedules._run_schedule import (
    MOST_STEPS,
    of_its_kind,
    refuse_inside_a_loop,
    run_probe,
)
from harness.testing.schedules._search import Probe, Search
from harness.testing.schedules._shrink import Shrinking
from harness.testing.schedules._strand import Kind, Observer

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


@attrs.frozen(eq=False)
class NotFound:
    """What a search that found no failure can say."""

    schedules_run: int
    """How many schedules were run."""

    exhausted: bool
    """Whether every order of the program's steps was run, leaving faults aside."""

    plain: ScheduleRun
    """The run without a switch."""


def find_schedule(
    async_fn: Callable[[], Awaitable[Any]],
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
) -> Found | NotFound:
    """Run a program under many schedules until it fails under one, and shrink that one.

    Blocks its thread, which must have no event loop.

    Args:
      async_fn: The program: an async function without arguments.
      schedules: How many schedules to run at most.
      seed: The seed of everything that the search draws.
      judge: Says what is wrong with a run, if anything is; by default what the program raised.
      prepare: Called before every run, even when shrinking: puts back what runs share.
      go_on: Called before every run of the search; raises to end it.
      cancels: Whether runs that faults can strike (see `faultable`) are cancelled, at each step.
      task_cancels: Whether single tasks are; the program must be one of `with_cancels`.
      arrivals_only: Whether to vary only the order in which replies arrive (see `arriving`).
      observers: Look on between the steps.
      shrink: Whether to shrink the failing schedule.
      backend: ``"trio"`` or ``"asyncio"``; by default it is told from the code. If only its first
        wait tells, the program is begun twice.

    Returns:
      The failure, or what can be said without one.

    Raises:
      ValueError: if ``schedules`` is less than 1, or there is no such backend.
      RuntimeError: if this thread has an event loop, or its steps can't be controlled.
    """
    if schedules < 1:
        raise ValueError(f"schedules must be at least 1, not {schedules}")
    fixed = check_kind("find_schedule(backend=...)", backend)
    refuse_inside_a_loop("find_schedule")
    judged = judge or (lambda run: run.error)
    most_steps = MOST_STEPS

    kind = fixed or probable_kind(async_fn)

    def run(probe: Probe) -> ScheduleRun:
        return run_as(kind, probe)

    def run_as(kind: Kind, probe: Probe) -> ScheduleRun:
        if prepare is not None:
            prepare()
        return run_probe(async_fn, probe, observers=observers, most_steps=most_steps, backend=kind)

    search = Search(seed, cancels, task_cancels, arrivals_only)
    plain: ScheduleRun | None = None
    schedules_run = 0
    for probe in search.probes():
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
                simplest = Shrinking(run, _fails_like(error, judged), made).shrink()
            return Found(simplest, judged(simplest) or error, schedules_run, made)
        if plain is None:
            plain = made
            # With far more steps than the plain run made, the program is assumed to go on forever.
            most_steps = max(LEAST_STEPS, 20 * made.steps)
        search.learn(probe, made)
    assert plain is not None
    return NotFound(schedules_run, search.exhausted, plain)


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
