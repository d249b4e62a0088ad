"""Cancel every task of a program at every checkpoint of its plain run, once each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from random import Random
from typing import Any

from harness.testing.schedules._choosers import Planned
from harness.testing.schedules._controlled import ScheduleRun
from harness.testing.schedules._find import LEAST_STEPS, Found, NotFound
from harness.testing.schedules._kinds import probable_kind
from harness.testing.schedules._run_schedule import of_its_kind, refuse_inside_a_loop, run_probe
from harness.testing.schedules._schedule import Fault
from harness.testing.schedules._search import Probe
from harness.testing.schedules._strand import Kind
from harness.testing.schedules._task_cancels import Usual
from harness.testing.schedules._thread_patches import adopting


def find_cancel(
    program: Callable[[], Awaitable[Any]],
    usual: Usual,
    *,
    cancels: int,
    seed: int,
    judge: Callable[[ScheduleRun], BaseException | None],
    prepare: Callable[[], None],
    go_on: Callable[[], None],
    backend: Kind | None = None,
) -> Found | NotFound:
    """Run a test once as it is, and then once for each cancel, until it fails.

    Args:
      program: The test, from `with_cancels`.
      usual: What that learns of it.
      cancels: How many cancels to try at most; if there are more, so many are drawn.
      seed: The seed of the draw.
      judge: Says what is wrong with a run, if anything is.
      prepare: Called before every run: puts back what runs share.
      go_on: Called before every run; raises to end it.
      backend: What runs it; by default it is told from the code.

    Returns:
      The first failure; ``schedules_run`` doesn't count the run without a cancel. Or, without one,
      how many cancels were tried, and whether these were all.
    """
    refuse_inside_a_loop("find_cancel")
    most_steps = LEAST_STEPS * 10

    def run_as(kind: Kind, faults: tuple[Fault, ...] = ()) -> ScheduleRun:
        go_on()
        prepare()
        probe = Probe(Planned({}), faults)
        return run_probe(program, probe, most_steps=most_steps, backend=kind)

    with adopting(program):
        plain = run_as(backend) if backend else of_its_kind(probable_kind(program), run_as)
        error = judge(plain)
        if error is not None:
            return Found(plain, error, 0, plain)
        kind = plain.backend
        most_steps = max(LEAST_STEPS, 20 * plain.steps)
        faults = list(_cancels(usual, kind))
        everything = len(faults) <= cancels
        if not everything:
            faults = Random(seed).sample(faults, cancels)
        for count, fault in enumerate(faults, 1):
            made = run_as(kind, (fault,))
            error = judge(made)
            if error is not None:
                return Found(made, error, count, made)
    return NotFound(len(faults), everything, plain)


def _cancels(usual: Usual, kind: Kind) -> Iterator[Fault]:
    """Yield every cancel of a task at a checkpoint.

    In asyncio a task can be cancelled after what it waits for has come, and then never gets it. In
    trio it would get it, and meet the cancel at its next checkpoint: the same as a cancel there.
    """
    for number, steps in sorted(usual.steps.items()):
        for step in range(1, steps):
            yield Fault(number, step, "cancel_task")
            if kind == "asyncio":
                yield Fault(number, step + 1, "cancel_task_waking")
