"""Put what an exploration found into words."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

from harness._words import errors_in_words
from harness.errors import CancellationError, ScheduleError
from harness.testing._asked import keep_stop
from harness.testing._outcomes import ERROR_WORDS_AT_MOST
from harness.testing.exploration._timeline import Timeline
from harness.testing.objects import LocalsWatch, in_a_thread_of_its_own, local_suspects
from harness.testing.schedules import Found, ScheduleRun, run_schedule
from harness.testing.schedules._at_the_switch import (
    StopAtSwitch,
    Touched,
    racing_step,
    stopped_at_switch,
)
from harness.testing.schedules._other_loops import starts_a_loop, was_refused_by_loop
from harness.testing.schedules._permits import noted

RACES_SHOWN = 10
"""How many pairs of lines a report names."""


def failure(
    name: str,
    program: Callable[[], Any],
    found: Found,
    *,
    schedules: int,
    seed: int,
    decorator: str,
    put_back: Callable[..., None],
) -> ScheduleError:
    """Return an error that says that a test fails, under which schedule, and how to see it again.

    Args:
      name: The test's name.
      program: The test. It is run once more, to see what happens in it.
      found: The failure.
      schedules: How many schedules could have been run.
      seed: The seed of the search.
      decorator: The name of the decorator that runs it again.
      put_back: Puts back what the test shares with its other runs.
    """
    schedule = found.run.schedule
    replay = str(schedule)
    timeline = Timeline()
    locals_watch = LocalsWatch()
    again = in_a_thread_of_its_own(
        lambda: run_schedule(
            program, schedule, observers=(timeline, locals_watch), backend=found.run.backend
        )
    )
    suspects = local_suspects(locals_watch.accesses, [task.place for task in again.blocked])
    lines: list[str] = []
    if decorator == "explore_cancellations" and schedule.faults:
        lines.append(f"{name} fails under cancel {found.schedules_run}")
    elif schedule.size[0]:
        lines.append(
            f"{name} fails under schedule {found.schedules_run} of at most {schedules} "
            f"(seed {seed})"
        )
    else:
        lines.append(f"{name} fails without any switch: under the plain schedule")
    lines += what_went_wrong(found.run, found.error)
    if again.error is None or again.diverged_at is not None:
        lines += [
            "it did not fail again in the same way when this schedule was replayed: it depends on "
            "something that no schedule controls, such as state that outlives the test, "
            "randomness, the real time, a thread or a socket"
        ]
    else:
        story = timeline.lines()
        if story:
            lines += ["in this order:", *(f"  {line}" for line in story)]
        if suspects:
            lines.append("what tasks changed behind each other's back (suspected, not proven):")
        for suspect in suspects:
            lines += [f"  {suspect.path}", *(f"    {line}" for line in suspect.lines)]
    if found.seen is not None and found.seen.one_way:
        lines.append("lines that raced, and came in this order only before the failure:")
        lines += [f"  {race}" for race in found.seen.one_way[:RACES_SHOWN]]
    lines += [
        "to run only this schedule:",
        f'  @{decorator}(schedule="{replay}")',
    ]
    paths = list(dict.fromkeys(suspect.path for suspect in suspects))
    error = ScheduleError("\n".join(lines), replay, found.schedules_run, paths)
    context = copy_context()

    def up_to(switch: StopAtSwitch) -> None:
        put_back()
        try:
            with noted():
                run_schedule(
                    program,
                    schedule,
                    observers=(switch,),
                    context=context.copy(),
                    backend=found.run.backend,
                )
        finally:
            put_back(everything=True)

    touched = [
        Touched(access.thing, access.step, access.kind == "write")
        for access in locals_watch.accesses
        if access.path in paths
    ]
    step = racing_step(touched, again.order)
    keep_stop(error, partial(stopped_at_switch, up_to, schedule, step))
    return error


def what_went_wrong(run: ScheduleRun, error: BaseException) -> list[str]:
    """Return the lines about what a run failed with."""
    words = errors_in_words(error, at_most=ERROR_WORDS_AT_MOST)
    lines = [f"  {line}" for line in words.splitlines()]
    of_runs = [
        f"{run.labels[fault]!r} fails" if fault in run.labels else fault.in_words()
        for fault in run.schedule.faults
        if not fault.cancels_task
    ]
    of_tasks = () if isinstance(error, CancellationError) else run.cancels  # It says so itself.
    if of_runs or of_tasks:
        lines += ["what was made to go wrong:"]
        lines += [f"  {words}" for words in (*of_runs, *of_tasks)]
    for task in run.strangers:
        lines.append(
            f"task {task!r} mixes two event loops: something that was made outside the test "
            "(a nursery, an event, a lock, a channel) was used inside; make it in the test"
        )
    if not run.strangers and was_refused_by_loop(error):
        lines.append(
            "something that belongs to another event loop was used: an event, a lock or a channel "
            "that was made outside the test, or by another test; make it in the test"
        )
    if starts_a_loop(error):
        lines.append(
            f"the test is inside {run.backend} already: await the function, don't "
            f"{run.backend}.run it"
        )
    if run.switches_in_words:
        lines.append(run.switches_in_words)
    lines += [f"nobody waited for this error: {words}" for words in run.unheard]
    if run.uncontrolled:
        lines.append(f"not controlled by any schedule: {', '.join(sorted(run.uncontrolled))}")
    return lines
