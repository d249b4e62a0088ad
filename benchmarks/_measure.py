"""Measure a benchmark, and give its row to the table.

Method: one process, no I/O, CPU time. In each round every case runs once, in turn, and in reverse
order every other round; so a machine that slows down meanwhile slows all of them. A ratio is taken
inside a round, and the median over all rounds is what counts. Many short rounds are better than a
few long ones. Garbage is collected before each measurement, and what was alive before the first is
excluded from all collections, so that a case pays only for its own garbage.

A median of rounds is only known to be in an interval (`Measured.of`), and a row is over its budget
only if the whole interval is. So a row near its budget isn't over by chance: in a hundred runs of
code that exactly meets its budget, fewer than one is.

Compare ratios; don't compare two machines.
"""

import asyncio
import gc
import math
import statistics
import time
import timeit
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Literal

import attrs
import trio

import harness

Bench = Callable[[int], float]
"""Does something ``count`` times and returns the CPU seconds it took."""


CONFIDENCE = 0.99

rounds_divisor = 1
"""How many times fewer rounds than usual are measured, for a first look."""


def rounds_of(number: int, *, quick: bool) -> int:
    """Return how many rounds to measure where this number gives a narrow interval."""
    return 1 if quick else max(3, number // rounds_divisor)


@attrs.frozen
class Measured:
    """A number, and the interval it is known to be in."""

    middle: float
    low: float
    high: float

    @classmethod
    def exactly(cls, number: float) -> "Measured":
        """Return what was counted, or is measured only once."""
        return cls(number, number, number)

    @classmethod
    def of(cls, rounds: Iterable[float]) -> "Measured":
        """Return the median of many rounds, with an interval for the true median.

        Each round is as likely to be below the true median as above, however rounds are
        distributed. So the number below is that of heads among as many coins, and outermost rounds
        can be left out on both sides: as many as keep the chance of being wrong at one in a
        hundred.
        """
        ordered = sorted(rounds)
        count = len(ordered)
        left_out, tail = 0, 2 * 0.5**count
        while tail + (more := 2 * math.comb(count, left_out + 1) * 0.5**count) <= 1 - CONFIDENCE:
            left_out, tail = left_out + 1, tail + more
        return cls(statistics.median(ordered), ordered[left_out], ordered[-1 - left_out])

    def __truediv__(self, number: float) -> "Measured":
        return Measured(self.middle / number, self.low / number, self.high / number)

    def __mul__(self, number: float) -> "Measured":
        return Measured(self.middle * number, self.low * number, self.high * number)

    def __str__(self) -> str:
        return f"{self.middle:.2f}"

    def interval(self) -> str:
        """Return the interval in words; empty if there is none."""
        return "" if self.low == self.high else f"{self.low:.2f}–{self.high:.2f}"


@attrs.frozen
class Row:
    """One line of the table."""

    what: str
    """What is compared with what."""

    measured: Measured | None
    """The ratio; None if it can't be measured, because a peer isn't installed."""

    sign: Literal["≤", "≥", ""] = ""
    """Which way the budget holds; empty for a row that is only shown."""

    limit: float = 0.0
    """The budget."""

    note: str = ""
    """The numbers behind the ratio, with their units; or why there are none."""

    unit: str = "×"
    """The unit of the budget and the measured number; by default, times the floor."""

    @property
    def budget(self) -> str:
        """What was promised, in words such as ``"≤ 1.5 ×"``; ``"–"`` if nothing was."""
        return f"{self.sign} {self.limit:g} {self.unit}" if self.sign else "–"

    def keeps(self, *, margin: float = 0.0) -> bool | None:
        """Return whether it keeps the budget: False only if the whole interval is beyond it.

        Args:
          margin: By what share of itself the budget may be missed.

        Returns:
          None if there is no budget, or nothing was measured.
        """
        if not self.sign or self.measured is None:
            return None
        # As printed. No measurement here is good for a third digit.
        if self.sign == "≤":
            return round(self.measured.low, 2) <= self.limit * (1 + margin)
        return round(self.measured.high, 2) >= self.limit * (1 - margin)


def at_most(
    what: str, budget: float, measured: Measured, *, note: str = "", unit: str = "×"
) -> Row:
    """Return a row whose measured number must not exceed its budget."""
    return Row(what, measured, "≤", budget, note, unit)


def at_least(
    what: str, budget: float, measured: Measured, *, note: str = "", unit: str = "×"
) -> Row:
    """Return a row whose measured number must reach its budget."""
    return Row(what, measured, "≥", budget, note, unit)


def for_comparison(what: str, measured: Measured, *, note: str = "", unit: str = "×") -> Row:
    """Return a row that promises nothing, to show next to those that do."""
    return Row(what, measured, note=note, unit=unit)


def not_installed(what: str, *, at_most: float | None = None) -> Row:
    """Return the row of a peer that is missing."""
    note = "not installed: pip install 'trio-harness[bench]'"
    return Row(what, None, "≤", at_most, note) if at_most else Row(what, None, note=note)


@attrs.frozen
class Samples:
    """What interleaved rounds measured."""

    seconds: Mapping[str, list[float]]
    """CPU seconds by case, a number per round."""

    count: int
    """How often each case did its work in a round."""

    def ratio(self, case: str, floor: str) -> Measured:
        """Return the median, over all rounds, of the case's time over the floor's."""
        pairs = zip(self.seconds[case], self.seconds[floor], strict=True)
        return Measured.of(mine / its for mine, its in pairs)

    def each(self, case: str) -> float:
        """Return the median CPU seconds of one repetition of the case."""
        return statistics.median(self.seconds[case]) / self.count

    def note(self, case: str, floor: str, *, per: str) -> str:
        """Return in words what one repetition takes, for the case and the floor."""
        return f"{in_words(self.each(case))} against {in_words(self.each(floor))} per {per}"


def interleaved(benches: Mapping[str, Bench], *, count: int, rounds: int) -> Samples:
    """Run all benches ``rounds`` times in turn, after each has run once to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in benches}
    for bench in benches.values():
        bench(max(1, count // 10))
    order = list(benches)
    with own_garbage_only():
        for _ in range(rounds):
            for name in order:
                seconds[name].append(benches[name](count))
            order.reverse()
    return Samples(seconds, count)


@contextmanager
def own_garbage_only() -> Iterator[None]:
    """Exclude what is alive now from collections in the block, such as what peers imported."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def timed_in_trio(function: Callable[[int], Awaitable[object]], *, depth: int = 0) -> Bench:
    """Return the bench that times ``await function(count)``, without trio's start.

    Args:
      function: What is timed.
      depth: How many nested runs it is called in.
    """

    async def main(count: int) -> float:
        async with nested_runs(depth):
            with cpu_time() as spent:
                await function(count)
            return spent()

    return lambda count: trio.run(main, count)


def timed_statement(
    statement: str, names: Mapping[str, object], *, setup: str = "pass", depth: int = 0
) -> Bench:
    """Return the bench that times a statement too short for a call around it.

    It is repeated ten times, so the loop around it hardly counts. It can't be charged for garbage:
    `timeit` turns the collector off.

    Args:
      statement: What is timed.
      names: What it can refer to.
      setup: What is done once first, untimed.
      depth: How many nested runs it is executed in.
    """

    async def main(count: int) -> float:
        async with nested_runs(depth):
            timer = timeit.Timer("; ".join([statement] * 10), setup, time.process_time, dict(names))
            return timer.timeit(count // 10)

    return lambda count: trio.run(main, count)


@asynccontextmanager
async def nested_runs(depth: int) -> AsyncIterator[None]:
    """Open this many nested runs."""
    async with AsyncExitStack() as stack:
        for level in range(depth):
            await stack.enter_async_context(harness.open_run(f"level-{level}"))
        yield


def timed_in_asyncio(function: Callable[[int], Coroutine[Any, Any, object]]) -> Bench:
    """Return the bench that does the same for an asyncio function."""

    async def main(count: int) -> float:
        with cpu_time() as spent:
            await function(count)
        return spent()

    return lambda count: asyncio.run(main(count))


@contextmanager
def cpu_time() -> Iterator[Callable[[], float]]:
    """Time a block: ``with cpu_time() as spent: ...``, then ``spent()`` gives CPU seconds."""
    gc.collect()
    ended_at: float | None = None
    started_at = time.process_time()
    try:
        yield lambda: (time.process_time() if ended_at is None else ended_at) - started_at
    finally:
        ended_at = time.process_time()


def in_words(seconds: float) -> str:
    """Return a short time in the unit that suits it: ``"31 ns"``, ``"4.2 µs"``, ``"1.3 s"``."""
    unit, size = next(
        (unit, size)
        for unit, size in (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0))
        if seconds < 1_000 * size or unit == "s"
    )
    amount = seconds / size
    return f"{amount:.{0 if amount >= 100 else 1}f} {unit}"
