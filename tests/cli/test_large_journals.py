"""A journal of a million items: the first answer comes soon, and memory doesn't grow with it."""

from __future__ import annotations

import json
import resource
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import harness
from harness.cli import main
from harness.cli._diff import Comparison, Pairing
from harness.cli._recorded import of_item, results_in
from harness.cli._where import Where
from harness.journal import open_journal, read_journal
from harness.journal._codec import Codec, digest_of_key, key_to_json
from tests.scale import scaled

ITEMS = scaled(20_000, full=1_000_000)
FIRST_SECONDS = 2.0
"""Of processor time: the machine may be busy with other things."""
BYTES_MORE_AT_MOST = 150_000_000
"""The caches of two files and of a temporary one, and what waits for its counterpart. A million
items in memory would be ten times that."""


async def begin(path: Path) -> None:
    async with open_journal(path) as journal:
        await journal.open_batch("batch", target="m.f", settings={})


def fill(path: Path, *, slow: int) -> None:
    """Write what a batch of so many items leaves; the last of them are in flight."""
    trio.run(begin, path)
    with sqlite3.connect(path) as journal:
        [(batch, session)] = journal.execute("SELECT batch, id FROM harness_sessions")

        def rows() -> Iterator[tuple[Any, ...]]:
            for at in range(1, ITEMS + 1):
                key = key_to_json(f"t{at}")
                yield at, batch, digest_of_key(batch, key), key, b"h"

        journal.executemany("INSERT INTO harness_items VALUES (?, ?, ?, ?, ?)", rows())
        journal.executemany(
            "INSERT INTO harness_attempts VALUES (?, ?, ?, 0, ?)",
            ((2 * at, at, session, at / 30) for at in range(1, ITEMS + 1)),
        )
        journal.executemany(
            f"INSERT INTO harness_endings VALUES (?, ?, ?, {session}, ?, 1, 0, ?, ?, ?, ?, ?, 9, "
            "0.1, NULL, NULL)",
            (
                (
                    2 * at + 1,
                    at,
                    2 * at,
                    *("ok", at / 30 + 1, 1.0, f'{{"n":{at % slow}}}', None, ""),
                )
                if at % 100
                else (2 * at + 1, at, 2 * at, *("timed_out", at / 30, 1.0, None, "Late", "no"))
                for at in range(1, ITEMS - 9)
            ),
        )
    journal.close()


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("large")
    paths = [folder / "a.db", folder / "b.db"]
    for path, slow in zip(paths, (7, 8), strict=True):
        fill(path, slow=slow)
    return paths


def peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1_024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@pytest.mark.slow
@pytest.mark.timeout(1_800)
class TestLargeJournals:
    """They share two journals, which take a while to write."""

    def test_where_finds_the_first_soon(self, journals: list[Path]) -> None:
        where, before, begun = Where('status == "timed_out"'), peak_bytes(), time.process_time()
        with read_journal(journals[0]) as reader:
            found = (one for one in reader.items("batch") if where.matches(of_item(one).field))
            assert next(found).key == "t100"
            assert time.process_time() - begun < FIRST_SECONDS
            assert 1 + sum(1 for _ in found) == (ITEMS - 10) // 100
        assert peak_bytes() - before < BYTES_MORE_AT_MOST

    def test_export_holds_few_rows_at_a_time(self, journals: list[Path], tmp_path: Path) -> None:
        parquet = pytest.importorskip("pyarrow.parquet")
        before = peak_bytes()
        with read_journal(journals[0]) as reader:
            assert reader.export(tmp_path / "all.parquet") == ITEMS
        assert peak_bytes() - before < 2 * BYTES_MORE_AT_MOST
        assert parquet.read_metadata(tmp_path / "all.parquet").num_rows == ITEMS

    def test_watch_counts_all_soon(self, journals: list[Path]) -> None:
        before, begun = peak_bytes(), time.process_time()
        with read_journal(journals[0]) as reader:
            found = reader.progress()
        assert time.process_time() - begun < FIRST_SECONDS
        assert (found.state, found.in_flight, found.done) == ("dead", 10, ITEMS - 10)
        assert peak_bytes() - before < BYTES_MORE_AT_MOST

    def test_diff_tells_the_first_soon(self, journals: list[Path]) -> None:
        before, begun = peak_bytes(), time.process_time()
        comparison = Comparison(slower=2, dearer=2)
        sides = [results_in(str(path), batch=None, without_key=lambda: None) for path in journals]
        pairing = Pairing(("a", "b"))
        told = (
            difference
            for one, other in pairing.pairs(*sides, exact=True)
            if one is not None and other is not None
            for difference in comparison.of_pair(one, other)
        )
        assert next(told).kind == "changed"
        assert time.process_time() - begun < FIRST_SECONDS
        assert sum(1 for _ in told) > ITEMS / 2
        pairing.close()
        assert comparison.found.after == ITEMS
        assert peak_bytes() - before < BYTES_MORE_AT_MOST


RESUMING = """
import pathlib, time
calls = []
async def answer(record):
    if not calls and record["n"]:
        begun = time.process_time()
        calls.append((begun, pathlib.Path("out.jsonl.part").read_bytes().count(b"\\n")))
    return record["n"]
"""
KEPT = scaled(8_000, full=1_000_000)
WRITTEN_AT_MOST = scaled(1_500, full=10_000)
"""Results of the journal that are written before the first new record is called."""
FIRST_NEW_SECONDS = 5.0
"""Of processor time until a fan-out calls its first new item, after all that are done."""
FIRST_NEW_OF_COMMAND_SECONDS = 20.0
"""The same for the command, which parses every line; a million took 6.9."""


def record(number: int) -> dict[str, Any]:
    return {"n": number, "text": "where is my order?"}


def run_command(folder: Path) -> None:
    """Run a session over the input that is there, as another process would."""
    (folder / "agent.py").write_text(RESUMING)
    sys.modules.pop("agent", None)
    words = ["batch", "agent.py:answer", "--input", "in.jsonl", "--output", "out.jsonl"]
    words += ["--key", "n", "--journal", "run.db", "--resume", "--quiet"]
    assert main(words) == 0


@pytest.fixture
def resumable(clean_imports: Path) -> Path:
    """Leave a journal in which so many records are done, and an input with ten more."""
    Path("in.jsonl").write_text(json.dumps(record(0)) + "\n")
    run_command(clean_imports)
    codec = Codec()
    with sqlite3.connect("run.db") as journal:
        [(batch,)] = journal.execute("SELECT id FROM harness_batches")
        journal.executemany(
            "INSERT INTO harness_items VALUES (?, ?, ?, ?, ?)",
            (
                (at + 1, batch, digest_of_key(batch, key), key, codec.hash_input(content))
                for at in range(1, KEPT)
                for key, content in [(key_to_json(str(at)), [record(at), None])]
            ),
        )
        journal.executemany(
            "INSERT INTO harness_attempts VALUES (?, ?, 1, 0, 0)",
            ((2 * at + 2, at + 1) for at in range(1, KEPT)),
        )
        journal.executemany(
            "INSERT INTO harness_endings VALUES (?, ?, ?, 1, 'ok', 1, 0, 1, 1, ?, NULL, NULL, 0, "
            "0, NULL, NULL)",
            ((2 * at + 3, at + 1, 2 * at + 2, str(at)) for at in range(1, KEPT)),
        )
    journal.close()
    with Path("in.jsonl").open("w") as lines:
        lines.writelines(json.dumps(record(at)) + "\n" for at in range(KEPT + 10))
    return clean_imports


@pytest.mark.slow
def test_new_records_wait_for_none_of_those_kept(resumable: Path) -> None:
    begun = time.process_time()
    run_command(resumable)
    [(first, written)] = sys.modules["agent"].calls
    assert written <= WRITTEN_AT_MOST
    assert first - begun < FIRST_NEW_OF_COMMAND_SECONDS
    with Path("out.jsonl").open() as results:
        values = [json.loads(line)["value"] for line in results]
    assert values[:KEPT] == list(range(KEPT))
    assert sorted(values[KEPT:]) == list(range(KEPT, KEPT + 10))


@pytest.mark.slow
async def test_a_fan_out_calls_its_first_new_item_soon(resumable: Path) -> None:
    before, begun = peak_bytes(), time.process_time()
    called: list[tuple[int, float]] = []

    async def answer(item: list[Any]) -> int:
        called.append((item[0]["n"], time.process_time() - begun))
        await trio.lowlevel.checkpoint()
        return called[-1][0]

    # The content of the command's records, so that the journal knows them.
    items: Iterator[list[Any]] = ([record(at), None] for at in range(KEPT + 10))
    read: list[int] = []
    async with (
        open_journal("run.db", force=True) as journal,
        harness.open_fan_out(
            answer, items, journal=journal, key=lambda item: str(item[0]["n"]), name="batch"
        ) as stream,
    ):
        async for result in stream:
            read.append(result.value)
            if called:
                break
    first, seconds = called[0]
    assert first >= KEPT, "what is done ran again"
    assert seconds < FIRST_NEW_SECONDS
    assert len(read) < max(KEPT / 2, 1_000)
    assert peak_bytes() - before < BYTES_MORE_AT_MOST
