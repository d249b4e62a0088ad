"""Picture what a running program is doing: its runs, fan-outs, limits and failures.

A picture is made from the live tasks and from counts that fan-outs and limiters keep anyway, at the
moment when somebody asks. So a program that nobody looks at pays nothing, and one that is looked at
pays per picture, not per item. `Live.picture` also bounds that: whoever asks too soon gets the last
picture again.

A picture is plain data, ready for JSON: text in it is harmless (`harness.observe._plain`), and each
list says of how many it shows the first.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import trio

from harness._pace import Pace
from harness._root_errors import root_errors
from harness._words import error_in_words
from harness.fanout._watch import NOBODY, Counts, Watch, Watched, watched_by, watching
from harness.limits import Limiter, LimiterStatistics
from harness.observe._plain import plain
from harness.runs import Run
from harness.runs._current import current

RUNS_SHOWN = 200
"""How many runs a picture shows: those of each run from the oldest on."""

FAN_OUTS_SHOWN = 20

SHARE_AT_MOST = 0.01
"""The share of the time that pictures may take, however many are asked for."""

SECONDS_BETWEEN = 0.5
"""A picture younger than that is shown again."""

_DEPTH_SHOWN = 1000

_KINDS_AT_MOST = 50
_EXAMPLES_SHOWN = 3


def _unknown() -> None:
    return None


class _FanOut:
    """One fan-out that began while somebody could look."""

    def __init__(self, name: str, fan_out: Watched) -> None:
        self.name = name
        self.fan_out: Watched | None = fan_out  # None once it is over, to let go of its items.
        self.pace = Pace()
        self.pace.per_second(trio.current_time(), 0)
        self._last = fan_out.counts()

    def end(self) -> None:
        if self.fan_out is not None:
            self._last, self.fan_out = self.fan_out.counts(), None

    def counts(self) -> Counts:
        return self._last if self.fan_out is None else self.fan_out.counts()

    def picture(self, now: float, expected: Callable[[], int | None]) -> dict[str, Any]:
        counts = self.counts()
        total = expected() if counts.total is None else counts.total
        per_second = self.pace.per_second(now, counts.done)
        is_over = self.fan_out is None
        left = None
        if total is not None and per_second and not is_over:
            left = max(0, total - counts.done) / per_second
        return {
            "name": plain(self.name),
            "total": total,
            "done": counts.done,
            "failed": counts.failed,
            "in_flight": counts.in_flight,
            "per_second": per_second,
            "seconds_left": left,
            "over": is_over,
        }


class Live:
    """Watches a program, and pictures it for whoever asks.

    It is also the `Watch` that fan-outs tell of their beginning and their end.
    """

    def __init__(
        self,
        *,
        program: str | None = None,
        limiters: Collection[Limiter] = (),
        expected: Callable[[], int | None] = _unknown,
    ) -> None:
        """Picture a program.

        Args:
          program: What it is called; by default the name of its file.
          limiters: Whose limits are shown.
          expected: Says how many items a fan-out will have that doesn't know itself.
        """
        self._program = os.path.basename(sys.argv[0]) if program is None else program
        self._limiters = tuple(limiters)
        self._failed = 0
        self._kinds: Counter[str] = Counter()
        self._examples: list[str] = []
        self._expected = expected
        self._fan_outs: list[_FanOut] = []
        self._begun = 0
        self._also = watching.get()
        self._last: dict[str, Any] | None = None
        self._next_at = -1.0
        self._counted = 0

    # What fan-outs tell it ----------------------------------------------------------------------

    def begun(self, name: str, fan_out: Watched) -> None:
        """Hear that a fan-out begins."""
        self._begun += 1
        self._fan_outs.append(_FanOut(name, fan_out))
        over = [one for one in self._fan_outs if one.fan_out is None]
        for one in over[: max(0, len(self._fan_outs) - FAN_OUTS_SHOWN)]:
            self._fan_outs.remove(one)
        if (also := self._others()) is not None:
            also.begun(name, fan_out)

    def over(self, fan_out: Watched) -> None:
        """Hear that it is over."""
        for one in self._fan_outs:
            if one.fan_out is fan_out:
                one.end()
        if (also := self._others()) is not None:
            also.over(fan_out)

    def failed(self, key: Any, error: BaseException | None) -> None:
        """Hear that an item has failed."""
        self._failed += 1
        for root in root_errors(error)[:1] if error is not None else ():
            kind = type(root).__name__
            if kind not in self._kinds and len(self._kinds) >= _KINDS_AT_MOST:
                kind = "other errors"
            self._kinds[kind] += 1
            if len(self._examples) < _EXAMPLES_SHOWN:
                self._examples.append(plain(f"{key}: {error_in_words(root)}"))
        if (also := self._others()) is not None:
            also.failed(key, error)

    def _others(self) -> Watch | None:
        return None if self._also is NOBODY else self._also

    # What it shows ------------------------------------------------------------------------------

    def picture(self) -> dict[str, Any]:
        """Return what the program is doing now, or was doing when that was last worked out."""
        now = trio.current_time()
        if self._last is None or now >= self._next_at:
            began = time.perf_counter()
            self._last = self._taken(now)
            took = time.perf_counter() - began
            self._last["took_seconds"] = took
            self._next_at = now + max(SECONDS_BETWEEN, took / SHARE_AT_MOST)
        return self._last

    def seconds_to_next(self) -> float:
        """Return how long it is until `picture` returns another one."""
        return max(SECONDS_BETWEEN, self._next_at - trio.current_time())

    def _taken(self, now: float) -> dict[str, Any]:
        self._counted += 1
        limits = [limiter.statistics() for limiter in self._limiters]
        fan_outs = [one.picture(now, self._expected) for one in self._fan_outs[-FAN_OUTS_SHOWN:]]
        return {
            "number": self._counted,
            "pid": os.getpid(),
            "program": plain(self._program),
            "time": now,
            "fan_outs": {"total": self._begun, "shown": fan_outs},
            "runs": _runs(now),
            "limits": [_limits(one) for one in limits],
            "queue": {
                "to_start": sum(
                    max(0, one["total"] - one["done"] - one["in_flight"])
                    for one in fan_outs
                    if one["total"] is not None and not one["over"]
                ),
                "waiting_for_limits": sum(one.waiting for one in limits),
            },
            "failures": {
                "total": self._failed,
                "kinds": [(plain(kind), count) for kind, count in self._kinds.most_common()],
                "examples": self._examples,
            },
        }

    def find(self, run_id: str) -> Run | None:
        """Return the live run with that id, or None."""
        return next((run for run in _live_runs() if run.id == run_id), None)


@contextmanager
def pictured(call: str, limiters: Collection[Limiter]) -> Iterator[Live]:
    """Picture what happens inside the block.

    Args:
      call: What a refusal names.
      limiters: Whose limits are shown.

    Raises:
      TypeError: if one of ``limiters`` isn't a limiter.
    """
    for one in limiters:
        if not isinstance(one, Limiter):
            raise TypeError(f"{call} takes limiters=[limiter, ...], and {one!r} is none")
    live = Live(limiters=limiters)
    with watched_by(live):
        yield live


def _live_runs() -> Iterator[Run]:
    """Yield every live run, in no order: those that tasks carry, and those above them."""
    seen: set[Run] = set()
    root = trio.lowlevel.current_root_task()
    assert root is not None  # It is asked by a task.
    pending = [root]
    while pending:
        task = pending.pop()
        for nursery in task.child_nurseries:
            pending.extend(nursery.child_tasks)
        run = task.context.get(current)
        while run is not None and run.status == "running" and run not in seen:
            seen.add(run)
            yield run
            run = run.parent


def _runs(now: float) -> dict[str, Any]:
    below: dict[Run | None, list[Run]] = {}
    total = 0
    for run in _live_runs():
        total += 1
        below.setdefault(run.parent, []).append(run)
    shown: list[dict[str, Any]] = []
    # A stack and not recursion: chains of runs may be deeper than Python's.
    pending = [(run, 0) for run in _oldest_last(below.get(None, ()))]
    while pending and len(shown) < RUNS_SHOWN:
        run, depth = pending.pop()
        shown.append(_run(run, depth, now, len(below.get(run, ()))))
        pending.extend((one, depth + 1) for one in _oldest_last(below.get(run, ())))
    return {"total": total, "shown": shown}


def _oldest_last(runs: Collection[Run]) -> list[Run]:
    return sorted(runs, key=_age, reverse=True)


def _age(run: Run) -> tuple[float, int, str]:
    return run.started_at, len(run.id), run.id


def _run(run: Run, depth: int, now: float, children: int) -> dict[str, Any]:
    return {
        "id": run.id,
        "name": plain(run.name),
        "depth": min(depth, _DEPTH_SHOWN),
        "children": children,
        "state": "stopping" if run.stopping else "running",
        "seconds": now - run.started_at,
        "waits_for": plain(run.waiting_for),
    }


def _limits(limits: LimiterStatistics) -> dict[str, Any]:
    return {
        "name": plain(limits.name),
        "granted": limits.granted,
        "waiting": limits.waiting,
        "in_flight": limits.in_flight,
        "concurrent": limits.concurrent,
        "paused_seconds": limits.paused_seconds,
        "rate_limited": limits.rate_limited,
        "dimensions": [
            {"name": name, "used": one.used, "limit": one.limit, "use": one.use}
            for name, one in limits.dimensions.items()
        ],
    }
