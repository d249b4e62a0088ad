"""Plan a tree of runs as a value, then run it to see whether it goes as planned."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import attrs
import trio

from harness.errors import RunTimedOut
from harness.runs import Run, RunStatus, open_run

Ending: TypeAlias = Literal["ok", "failed", "timed_out", "cancelled"]


class PlannedError(Exception):
    """Raised by a run of a `RunTree` that is planned to fail."""


def _together(trees: Iterable[RunTree]) -> tuple[RunTree, ...]:
    return tuple(trees)


@attrs.frozen
class RunTree:
    """A run, the runs below it, and how it should end once they have ended."""

    name: str
    """Its name, different from those of its siblings."""

    ending: Ending = "ok"
    """How it ends."""

    seconds: float = 0.0
    """How long its own body takes, alongside the runs below."""

    children: tuple[RunTree, ...] = attrs.field(default=(), converter=_together)
    """The runs that start with it, at once."""

    @property
    def total_seconds(self) -> float:
        """How long all of it takes."""
        inside = max([self.seconds, *(child.total_seconds for child in self.children)])
        return inside + (1.0 if self.ending == "timed_out" else 0.0)

    def statuses(self, above: str = "") -> dict[str, RunStatus]:
        """Return how each run is planned to end, by its path."""
        path = f"{above}/{self.name}" if above else self.name
        planned: dict[str, RunStatus] = {path: self.ending}
        for child in self.children:
            planned |= child.statuses(path)
        return planned

    async def play(self) -> dict[str, RunStatus]:
        """Open all the runs, let each end as planned, and return how each ended, by its path.

        Every ending stays with its run: the run above handles it and goes on. So the result equals
        `statuses`, in whatever order tasks take turns. It takes time on trio's clock; use a virtual
        one.

        Checkpoint: always.

        Cancellation: the runs are cancelled, and `trio.Cancelled` passes through.
        """
        ended: dict[str, RunStatus] = {}
        await self._play(ended)
        return ended

    async def _play(self, ended: dict[str, RunStatus]) -> None:
        timeout = self.total_seconds if self.ending == "timed_out" else None
        run: Run | None = None
        try:
            async with open_run(self.name, timeout=timeout) as run:
                async with trio.open_nursery() as nursery:
                    for child in self.children:
                        nursery.start_soon(child._play, ended)
                    await trio.sleep(self.seconds)
                if self.ending == "failed":
                    raise PlannedError(run.path)
                if self.ending == "cancelled":
                    run.cancel("planned")
                    await trio.lowlevel.checkpoint()
                if self.ending == "timed_out":
                    await trio.sleep_forever()
        except (PlannedError, RunTimedOut):
            pass
        if run is not None:
            ended[run.path] = run.status
