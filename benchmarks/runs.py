"""What does opening a run cost, and reaching its state?

The floors are an empty nursery, an empty cancel scope with a timeout, and a bare context variable.
All runs are opened inside another run, as most are, and do nothing. Reading and writing are
measured in a run at the top and in one ten runs deep.

Run: python -m benchmarks runs
"""

from collections.abc import Iterator
from contextvars import ContextVar

import trio

import harness
from benchmarks._measure import (
    Bench,
    Row,
    at_most,
    interleaved,
    rounds_of,
    timed_in_trio,
    timed_statement,
)

TIMEOUT_SECONDS = 60.0
DEPTHS = (1, 10)


def rows(*, quick: bool) -> Iterator[Row]:
    """Measure `open_run` and `RunLocal`."""
    rounds = rounds_of(45, quick=quick)
    samples = interleaved(BLOCKS, count=200 if quick else 1_000, rounds=rounds)
    for case, floor, budget in (
        ("open_run", "open_nursery", 0.8),
        ("open_run, timeout", "move_on_after", 1.7),
    ):
        yield at_most(
            f"{case} / {floor}",
            budget,
            samples.ratio(case, floor),
            note=samples.note(case, floor, per="block"),
        )
    for depth in DEPTHS:
        samples = interleaved(_accesses(depth), count=10_000 if quick else 20_000, rounds=rounds)
        for method, budget in (("get", 4.0), ("set", 1.5)):
            case, floor = f"RunLocal.{method}", f"ContextVar.{method}"
            yield at_most(
                f"{case} / {floor}, depth {depth}",
                budget,
                samples.ratio(case, floor),
                note=samples.note(case, floor, per="call"),
            )


async def open_runs(count: int) -> None:
    for _ in range(count):
        async with harness.open_run("run"):
            pass


async def open_runs_timeout(count: int) -> None:
    for _ in range(count):
        async with harness.open_run("run", timeout=TIMEOUT_SECONDS):
            pass


async def open_nurseries(count: int) -> None:
    for _ in range(count):
        async with trio.open_nursery():
            pass


async def move_on_after(count: int) -> None:
    for _ in range(count):
        with trio.move_on_after(TIMEOUT_SECONDS):  # noqa: ASYNC100 (as empty as the others)
            pass


BLOCKS: dict[str, Bench] = {
    "open_run": timed_in_trio(open_runs, depth=1),
    "open_run, timeout": timed_in_trio(open_runs_timeout, depth=1),
    "open_nursery": timed_in_trio(open_nurseries, depth=1),
    "move_on_after": timed_in_trio(move_on_after, depth=1),
}

local: harness.RunLocal[list[int]] = harness.RunLocal(list, name="benchmark")
variable: ContextVar[list[int]] = ContextVar("benchmark")


def _accesses(depth: int) -> dict[str, Bench]:
    """Return the benches that read and write at a depth, each in a run that has a value."""
    names = {"local": local, "variable": variable, "value": []}
    setup = "local.set(value); variable.set(value)"
    return {
        f"{kind}.{name}": timed_statement(call, names, setup=setup, depth=depth)
        for kind, target in (("RunLocal", "local"), ("ContextVar", "variable"))
        for name, call in (("get", f"{target}.get()"), ("set", f"{target}.set(value)"))
    }
