"""How a benchmark measures, and the row it adds to the table.

Method: one process, no I/O, CPU time. In each round every case runs once, in turn, and every other
round in reverse order, so a machine that slows down in the meantime slows all of them. Ratios are
taken within a round, and the median over all rounds counts. Many short rounds are better than a few
long ones. Garbage is collected before each measurement, and what was alive before the first is left
out of all collections, so that a case pays only for its own garbage.

Compare ratios; don't compare two machines.
"""

import asyncio
import gc
import statistics
import time
import timeit
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import attrs
import trio

import harness

Bench = Callable[[int], float]
"""Does something ``count`` times and returns the CPU seconds that it took."""


@attrs.frozen
class Row:
    """One line of the table."""

    what: str
    """What is compared with what."""

    budget: str
    """What was promised, in words such as ``"≤ 1.5 ×"``; ``"–"`` for a row that is only shown."""

    measured: float | None
    """The ratio; None where it can't be measured, as a peer is not installed."""

    ok: bool | None
    """Whether it keeps the budget; None if there is none, or nothing was measured."""

    note: str = ""
    """The numbers behind the ratio, with their units; or why there are none."""

    unit: str = "×"
    """What the budget and the measured number count; by default times the floor."""


def at_most(what: str, budget: float, measured: float, *, note: str = "", unit: str = "×") -> Row:
    """Return a row whose measured number, as it is printed, must not exceed its budget."""
    return Row(what, f"≤ {budget:g} {unit}", measured, _as_printed(measured) <= budget, note, unit)


def at_least(what: str, budget: float, measured: float, *, note: str = "", unit: str = "×") -> Row:
    """Return a row whose measured number, as it is printed, must reach its budget."""
    return Row(what, f"≥ {budget:g} {unit}", measured, _as_printed(measured) >= budget, note, unit)


def _as_printed(measured: float) -> float:
    """Round to what the table shows. No measurement here is good for a third digit."""
    return round(measured, 2)


def for_comparison(what: str, measured: float, *, note: str = "", unit: str = "×") -> Row:
    """Return a row that promises nothing, for comparison with those that do."""
    return Row(what, "–", measured, None, note, unit)


def not_installed(what: str, budget: str) -> Row:
    """Return the row of a peer that is missing."""
    return Row(what, budget, None, None, "not installed: pip install 'trio-harness[bench]'")


@attrs.frozen
class Samples:
    """What interleaved rounds measured."""

    seconds: Mapping[str, list[float]]
    """CPU seconds by case, a number per round."""

    count: int
    """How often each case did its work in a round."""

    def ratio(self, case: str, floor: str) -> float:
        """Return the median, over all rounds, of the case's time over the floor's."""
        pairs = zip(self.seconds[case], self.seconds[floor], strict=True)
        return statistics.median(mine / its for mine, its in pairs)

    def each(self, case: str) -> float:
        """Return the median CPU seconds that the case takes once."""
        return statistics.median(self.seconds[case]) / self.count

    def note(self, case: str, floor: str, *, per: str) -> str:
        """Return in words what the case and the floor take once."""
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
    """Keep the collector off whatever is alive already, such as what peers have imported."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def timed_in_trio(function: Callable[[int], Awaitable[object]], *, depth: int = 0) -> Bench:
    """Return the bench that times ``await function(count)``, the start of trio left out.

    Args:
      function: What is timed.
      depth: How many runs it is called in, one inside the other.
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

    It is repeated ten times in the source, so the loop around it hardly counts. It isn't charged
    for garbage: `timeit` switches the collector off.

    Args:
      statement: What is timed.
      names: What it can refer to.
      setup: What is done once before, not timed.
      depth: How many runs it is executed in, one inside the other.
    """

    async def main(count: int) -> float:
        async with nested_runs(depth):
            timer = timeit.Timer("; ".join([statement] * 10), setup, time.process_time, dict(names))
            return timer.timeit(count // 10)

    return lambda count: trio.run(main, count)


@asynccontextmanager
async def nested_runs(depth: int) -> AsyncIterator[None]:
    """Open this many runs, one inside another."""
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
