"""Name the run whose code holds trio's loop, while it holds it.

While a task computes, sleeps in `time.sleep` or waits for a lock of threads, no other task runs. An
instrument notes when each step of a task begins; a thread looks at that a few times per threshold.
When a step takes too long, the thread reads the frames of trio's thread and reports them. It says
so again each time the step has taken twice as long, so that the last report tells how bad it was.

Time here is the machine's, not trio's: a virtual clock doesn't run while a task holds the loop.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from harness._arguments import check_seconds
from harness._outside_trio import refuse_outside_trio
from harness.runs import current_run_or_none
from harness.runs._frames import is_plumbing

logger = logging.getLogger("harness.stalls")

LOOKS_PER_THRESHOLD = 4


@attrs.frozen
class Stall:
    """A task that holds the loop: nothing else in this ``trio.run`` can run until it waits."""

    run_id: str | None
    """The run that the code belongs to; None if it is in none."""

    run_path: str | None
    """That run's path."""

    task: str
    """The name of the task."""

    seconds: float
    """How long it has held the loop so far."""

    stack: str
    """Where it is, as Python prints a stack, without trio's own frames."""

    def __str__(self) -> str:
        whose = f"task {self.task!r}" if self.run_path is None else f"run {self.run_path!r}"
        return (
            f"{whose} has held trio's loop for {self.seconds:.2f} s, and nothing else runs "
            f"meanwhile; move this to trio.to_thread.run_sync, or let others run in between:\n"
            f"{self.stack}"
        )


def watching_stalls(
    threshold: float = 0.1, *, report: Callable[[Stall], object] | None = None
) -> AbstractContextManager[None]:
    """Report whose code holds the loop: ``with watching_stalls(): ...``, anywhere in trio.

    It watches all tasks of this ``trio.run``, from a thread of its own, until the block is left.

    Args:
      threshold: Seconds for which a task may hold the loop.
      report: Called with each `Stall`, in that thread. By default it is logged as a warning to
        ``harness.stalls``.

    Raises:
      TypeError: if ``threshold`` isn't a number, or ``report`` isn't a function.
      ValueError: if ``threshold`` is less than a millisecond.
      RuntimeError: outside trio.
    """
    check_seconds("watching_stalls(threshold)", threshold, least=0.001, advice="0.1 is the default")
    if report is not None and not callable(report):
        raise TypeError(
            f"watching_stalls(report=...) takes a function of a Stall, not {report!r}; None logs it"
        )
    refuse_outside_trio("watching_stalls() was called")
    return _watching(threshold, report or _log)


@contextmanager
@enable_ki_protection
def _watching(threshold: float, report: Callable[[Stall], object]) -> Iterator[None]:
    watch = _Watch(threshold, report)
    trio.lowlevel.add_instrument(watch)
    thread = threading.Thread(target=watch.look_on, name="harness: watching_stalls()", daemon=True)
    thread.start()
    try:
        yield
    finally:
        trio.lowlevel.remove_instrument(watch)
        watch.over.set()
        thread.join()


def _log(stall: Stall) -> None:
    logger.warning("%s", stall)


class _Watch(trio.abc.Instrument):
    """Notes the steps of tasks in trio's thread, and looks at them in another."""

    def __init__(self, threshold: float, report: Callable[[Stall], object]) -> None:
        self._threshold = threshold
        self._report = report
        self._thread_id = threading.get_ident()
        self._step: tuple[trio.lowlevel.Task, float] | None = None
        """The task that runs, and since when. One value, so that the thread reads a true pair."""
        self.over = threading.Event()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._step = task, time.perf_counter()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._step = None

    def look_on(self) -> None:
        """Report long steps until it is over. Runs in a thread of its own."""
        seen = None
        due = self._threshold
        while not self.over.wait(self._threshold / LOOKS_PER_THRESHOLD):
            step = self._step
            if step is None or step is not seen:
                seen, due = step, self._threshold
            if step is None:
                continue
            seconds = time.perf_counter() - step[1]
            if seconds < due:
                continue
            due = 2 * seconds
            frame = sys._current_frames().get(self._thread_id)
            if step is self._step:  # Else the frame may be another task's.
                try:
                    self._report(_stall(step[0], seconds, frame))
                except Exception:
                    logger.exception("reporting a stall failed; the watch goes on")
            del frame


def _stall(task: trio.lowlevel.Task, seconds: float, frame: FrameType | None) -> Stall:
    # A copy, because the context itself is in use by trio's thread.
    run = task.context.copy().run(current_run_or_none)
    stack = [one for one in traceback.extract_stack(frame) if not is_plumbing(one.filename)]
    return Stall(
        run_id=None if run is None else run.id,
        run_path=None if run is None else run.path,
        task=task.name,
        seconds=seconds,
        stack="".join(traceback.format_list(stack)).rstrip("\n"),
    )
