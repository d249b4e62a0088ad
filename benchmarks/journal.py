"""What does it cost to have every result on disk?

Records per second, each awaited until durable, with 1, 8 and 64 runs that each wait for one at a
time; against one commit per record on the same disk, the same row written with SQLite in a plain
loop. It is a ratio because disks differ by a factor of a hundred. A record is the end of an attempt
with a small value.

With one run there is nothing to share, so that row shows the cost of going to the thread and back:
two threads are woken, which takes 55 µs in total if the processors are awake, and 110 µs if they
sleep between two records, as on an otherwise idle machine. The faster the disk, the more of the
time that is. So one run has its budget against just that round trip: a thread that makes each row
of a queue durable, and tells trio.

With 64, the time that one record takes is shown too: 99 of 100 take less. A record that comes
during a commit waits for that one and its own, so the time of two commits (99 of 100 of the floor's
take less than that) is due to the disk and is subtracted.

Effects (`open_once` with a journal) are measured against the same floor: each is recorded before it
begins and after it has come back, so it waits for two commits, which it shares with others.

And the whole: `fan_out` at limit 100, with a journal and without. What a journal costs there is CPU
time: it shows as longer waiting only if the processor has nothing to spare. So what it takes beyond
a fan-out without one is compared with the CPU time of the same rows in plain SQLite: for each item,
the row that begins an attempt and the one that ends it, in commits of a hundred. The machine
cancels out, and so does the disk. There is a budget for the time of a batch with items of 100 ms,
which should hold even if the processor is half as fast as ours or busy with something else; for
items of 10 ms, which keep a processor busy more than half the time, it is only shown.

Method: wall time except for that, in a temporary folder (set TMPDIR to measure another disk), cases
interleaved, medians of the ratios.

Run: python -m benchmarks journal
"""

import json
import queue
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import attrs
import trio

import harness
from benchmarks._measure import (
    Measured,
    Row,
    at_least,
    at_most,
    for_comparison,
    in_words,
    own_garbage_only,
    rounds_of,
)
from harness.fanout import Ending
from harness.journal import open_journal
from harness.shared import open_once

RUNS = (1, 8, 64)
VALUE = '{"label": "billing", "confidence": 0.93}'
SHORT_SECONDS, LONG_SECONDS = 0.01, 0.1
LIMIT = 100

BUDGETS = {8: 3.1, 64: 7.8}
"""20,000 and 50,000 records a second, on a disk that makes 6,400 single commits a second."""

BARE_BUDGET = 0.8
"""Encoding the value, the journal's own bookkeeping and its check of the file may cost a fifth."""

CPU_BUDGET = 8.0
"""Measured: 6.8, with 48 µs against 7 µs per item; the first wave of a batch of 2,000 is in it."""

EFFECTS_BUDGET = 0.8
"""5,000 effects a second with 64 runs, on such a disk. Alone, each would take two commits."""

INSERT = f"INSERT INTO endings VALUES ({', '.join('?' * 14)})"


@attrs.frozen
class Recorded:
    """One round of one case."""

    per_second: float
    slowest: float
    """The most seconds that 99 of 100 records took."""


def rows(*, quick: bool) -> Iterator[Row]:
    """Compare shared commits with single ones, and a fan-out with a journal with one without."""
    seconds = 0.05 if quick else 0.25
    rounds = rounds_of(15, quick=quick)
    with tempfile.TemporaryDirectory() as folder:
        fresh = _fresh_paths(Path(folder))
        ratios: dict[int, list[float]] = {runs: [] for runs in RUNS}
        rates: dict[int, list[float]] = {runs: [] for runs in RUNS}
        floors: list[float] = []
        bare: list[float] = []
        slowest: list[float] = []
        late: list[float] = []
        effects: list[float] = []
        for _ in range(rounds):
            single = commit_each(next(fresh), seconds)
            floor = single.per_second
            floors.append(floor)
            bare.append(trio.run(by_a_bare_thread, next(fresh), seconds).per_second)
            for runs in RUNS:
                measured = trio.run(partial(awaited, next(fresh), runs=runs, seconds=seconds))
                ratios[runs].append(measured.per_second / floor)
                rates[runs].append(measured.per_second)
                if runs == RUNS[-1]:
                    slowest.append(measured.slowest)
                    late.append(max(0.0, measured.slowest - 2 * single.slowest))
            effects.append(trio.run(effects_a_second, next(fresh), RUNS[-1], seconds) / floor)
        for runs in RUNS:
            them = f"{runs} runs" if runs > 1 else "1 run"
            what = f"journal, awaited records a second, {them} / one commit each"
            ratio = Measured.of(ratios[runs])
            mine, its = statistics.median(rates[runs]), statistics.median(floors)
            note = f"{mine:,.0f} against {its:,.0f} a second"
            if runs in BUDGETS:
                yield at_least(what, BUDGETS[runs], ratio, note=note)
            else:
                yield for_comparison(what, ratio, note=note)
        yield at_least(
            "journal, awaited records a second, 1 run / by a bare thread",
            BARE_BUDGET,
            Measured.of(mine / its for mine, its in zip(rates[1], bare, strict=True)),
            note=f"{statistics.median(rates[1]):,.0f} against {statistics.median(bare):,.0f} "
            "a second",
        )
        yield at_most(
            f"journal, 99 of 100 records with {RUNS[-1]} runs, beyond two commits",
            5.0,
            Measured.of(late) * 1e3,
            unit="ms",
            note=f"{in_words(statistics.median(slowest))} in all",
        )
        yield at_least(
            f"journal, effects a second, {RUNS[-1]} runs / one commit each",
            EFFECTS_BUDGET,
            Measured.of(effects),
            note="each waits for two commits",
        )
        yield from fan_out_beside(fresh, quick=quick)


def fan_out_beside(fresh: Iterator[Path], *, quick: bool) -> Iterator[Row]:
    """Compare a fan-out with a journal with one without, by processor time and by the clock."""
    items = 300 if quick else 2_000
    rounds = rounds_of(15, quick=quick)
    beyond: list[float] = []
    floors: list[float] = []
    longer: list[float] = []
    with own_garbage_only():
        for _ in range(rounds):
            plain = trio.run(fan_out_spent, items, SHORT_SECONDS, None)
            journaled = trio.run(fan_out_spent, items, SHORT_SECONDS, next(fresh))
            beyond.append((journaled.cpu - plain.cpu) / items)
            floors.append(rows_in_plain_sqlite(next(fresh), items) / items)
            longer.append(journaled.seconds / plain.seconds)
    yield at_most(
        "fan_out with a journal, CPU time beyond one without / plain SQLite",
        CPU_BUDGET,
        Measured.of(mine / its for mine, its in zip(beyond, floors, strict=True)),
        note=f"{in_words(statistics.median(beyond))} against "
        f"{in_words(statistics.median(floors))} per item",
    )
    yield for_comparison(
        f"fan_out of {SHORT_SECONDS * 1e3:g} ms items at limit {LIMIT}, with / without a journal",
        Measured.of(longer),
    )
    longer = []
    items = min(items, 1_000)
    for _ in range(rounds):
        plain = trio.run(fan_out_spent, items, LONG_SECONDS, None)
        journaled = trio.run(fan_out_spent, items, LONG_SECONDS, next(fresh))
        longer.append(journaled.seconds / plain.seconds)
    yield at_most(
        f"fan_out of {LONG_SECONDS * 1e3:g} ms items at limit {LIMIT}, with / without a journal",
        1.05,
        Measured.of(longer),
    )


@attrs.frozen
class Spent:
    """What a fan-out took."""

    seconds: float
    cpu: float


async def fan_out_spent(count: int, body_seconds: float, path: Path | None) -> Spent:
    """Return what a fan-out over this many items takes, with or without a journal."""
    items = [{"id": number, "text": "My card has not arrived."} for number in range(count)]

    async def classify(item: dict[str, object]) -> dict[str, object]:
        await trio.sleep(body_seconds)
        return {"label": "billing", "confidence": 0.93}

    fan_out = partial(harness.fan_out, classify, items, limit=LIMIT, key=lambda item: item["id"])
    if path is None:
        started_at, cpu_before = time.perf_counter(), time.process_time()
        await fan_out()
        return Spent(time.perf_counter() - started_at, time.process_time() - cpu_before)
    async with open_journal(path) as journal:
        started_at, cpu_before = time.perf_counter(), time.process_time()
        await fan_out(journal=journal)
        return Spent(time.perf_counter() - started_at, time.process_time() - cpu_before)


def rows_in_plain_sqlite(path: Path, items: int) -> float:
    """Return the CPU seconds of two rows per item, a hundred items in a commit."""
    connection = database(path)
    connection.execute("CREATE TABLE attempts (id INTEGER PRIMARY KEY, item INTEGER, key TEXT)")
    value = json.loads(VALUE)
    cpu_before = time.process_time()
    for first in range(0, items, LIMIT):
        numbers = range(first, min(first + LIMIT, items))
        connection.execute("BEGIN IMMEDIATE")
        for number in numbers:
            connection.execute(
                "INSERT INTO attempts VALUES (?, ?, ?)", (number, number, json.dumps(number))
            )
        connection.execute("COMMIT")
        connection.execute("BEGIN IMMEDIATE")
        for number in numbers:
            connection.execute(INSERT, row(number, json.dumps(value)))
        connection.execute("COMMIT")
    spent = time.process_time() - cpu_before
    connection.close()
    return spent


def _fresh_paths(folder: Path) -> Iterator[Path]:
    number = 0
    while True:
        number += 1
        yield folder / f"{number}.db"


def commit_each(path: Path, seconds: float) -> Recorded:
    """Make records durable in a plain loop, each in its own commit."""
    connection = database(path)
    count = 0
    took: list[float] = []
    started_at = time.perf_counter()
    while (began := time.perf_counter()) - started_at < seconds:
        count += 1
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(INSERT, row(count))
        connection.execute("COMMIT")
        took.append(time.perf_counter() - began)
    connection.close()
    return summed_up(took, time.perf_counter() - started_at)


def database(path: Path) -> sqlite3.Connection:
    """Return a new database that is as durable as a journal."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(
        "CREATE TABLE endings (id INTEGER PRIMARY KEY, item INTEGER, attempt INTEGER, "
        "session INTEGER, status TEXT, final INTEGER, degraded INTEGER, ended_at REAL, "
        "seconds REAL, value TEXT, error_type TEXT, error_message TEXT, tokens INTEGER, "
        "cost_usd REAL)"
    )
    return connection


def row(number: int, value: str = VALUE) -> tuple[object, ...]:
    """Return a row as a journal would write it."""
    when = time.time()
    return (number, number, number, 1, "ok", 1, 0, when, 0.0, value, None, None, 0, 0.0)


async def by_a_bare_thread(path: Path, seconds: float) -> Recorded:
    """Let a thread make records durable, one commit each, and wait for each."""
    token = trio.lowlevel.current_trio_token()
    to_thread: queue.SimpleQueue[tuple[tuple[object, ...], trio.lowlevel.Task] | None]
    to_thread = queue.SimpleQueue()
    connection = database(path)

    def work() -> None:
        while (record := to_thread.get()) is not None:
            connection.execute(INSERT, record[0])
            token.run_sync_soon(trio.lowlevel.reschedule, record[1])

    thread = threading.Thread(target=work)
    thread.start()
    took: list[float] = []
    started_at = time.perf_counter()
    while (began := time.perf_counter()) - started_at < seconds:
        to_thread.put((row(len(took)), trio.lowlevel.current_task()))
        await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        took.append(time.perf_counter() - began)
    elapsed = time.perf_counter() - started_at
    to_thread.put(None)
    thread.join()
    connection.close()
    return summed_up(took, elapsed)


def summed_up(took: list[float], elapsed: float) -> Recorded:
    """Summarize records by how long each took."""
    took.sort()
    return Recorded(len(took) / elapsed, took[len(took) * 99 // 100])


async def awaited(path: Path, *, runs: int, seconds: float) -> Recorded:
    """Return how many records a second this many tasks await, each one at a time."""
    took: list[float] = []
    async with open_journal(path) as journal:
        batch = await journal.open_batch("bench", target="bench", settings={})
        entries = [batch.find(number, number) for number in range(runs)]
        attempts = await batch.begin(entries)
        ending = Ending(status="ok", value=VALUE)
        started_at = time.perf_counter()

        async def record(number: int) -> None:
            entry, attempt = entries[number], attempts[number]
            while (began := time.perf_counter()) - started_at < seconds:
                await batch.end(entry, attempt, ending)
                took.append(time.perf_counter() - began)

        async with trio.open_nursery() as nursery:
            for number in range(runs):
                nursery.start_soon(record, number)
        return summed_up(took, time.perf_counter() - started_at)


async def effects_a_second(path: Path, runs: int, seconds: float) -> float:
    """Return how many effects a second this many tasks make, each one at a time."""
    count = 0

    async def effect(_: str) -> int:
        return 1

    async with open_journal(path) as journal, open_once(journal) as once:
        started_at = time.perf_counter()

        async def have(run: int) -> None:
            nonlocal count
            while time.perf_counter() - started_at < seconds:
                await once((run, count), effect)
                count += 1

        async with trio.open_nursery() as nursery:
            for run in range(runs):
                nursery.start_soon(have, run)
        return count / (time.perf_counter() - started_at)
