"""Tell observers what a run waits for, and who ended the wait; free if there are none."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import trio

from harness.runs._current import current
from harness.runs._notices import WaitBegan, WaitOver
from harness.runs._run import Run

_numbers = itertools.count(1)


class Wait:
    """A wait that is told to observers from its making until `over`."""

    __slots__ = ("_reason", "_run", "by", "facts", "number")

    def __init__(self, run: Run, reason: str, on: str, held_by: tuple[str, ...] = ()) -> None:
        self._run = run
        self._reason = reason
        self.number: int = next(_numbers)
        """Tells it from all other waits of this process."""
        self.by: str | None = None
        """The id of the run that ended it, once that is known."""
        self.facts: Mapping[str, Any] = {}
        """More about how it ended."""
        run._notice(WaitBegan(self.number, reason, on, held_by))

    @property
    def run_id(self) -> str:
        """The run that waits."""
        return self._run.id

    def woken(self) -> None:
        """Note that it is the running task that ends the wait."""
        by = id_here()
        self.by = None if by == self._run.id else by

    def over(self) -> None:
        """Tell that it is over."""
        self._run._notice(WaitOver(self.number, self._reason, self.by, self.facts))

    def tell(self, payload: object) -> None:
        """Tell what came of it later."""
        self._run._notice(payload)


def observed_run() -> Run | None:
    """Return the current run if anybody observes it."""
    run = current.get()
    return run if run is not None and run._observers else None


def id_here() -> str | None:
    """Return the id of the run of the running task, whatever context its code is in."""
    try:
        run = trio.lowlevel.current_task().context.get(current)
    except RuntimeError:  # Called by trio itself, for instance at a deadline.
        return None
    return None if run is None else run.id


@contextmanager
def waiting(reason: str, on: str) -> Iterator[None]:
    """Tell observers that the block is a wait of the current run."""
    run = observed_run()
    wait = None if run is None else Wait(run, reason, on)
    try:
        yield
    finally:
        if wait is not None:
            wait.over()
