"""How a batch is doing, told from its journal while another process writes to it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.errors import JournalError
from harness.fanout import Ending
from harness.journal import _queries, _watch, edit_journal, open_journal, read_journal
from harness.journal._watch import OLDEST_SHOWN
from tests.scale import PATIENCE_SECONDS

ENDINGS = [
    Ending(status="ok", value="1", tokens=3, cost_usd=0.5),
    Ending(status="failed", error_type="ValueError", error_message="no", tokens=1),
    Ending(status="failed", error_type="KeyError", error_message="no"),
    Ending(status="timed_out", error_type="AttemptTimeout", error_message="late"),
    Ending(status="cancelled"),
    Ending(status="unstarted"),
]


async def live_through(path: str, draw: random.Random, sessions: int) -> None:
    """Let several sessions do what sessions do, with another batch beside them."""
    for number in range(sessions):
        async with open_journal(path, retry_failed=draw.random() < 0.5) as journal:
            other = await journal.open_batch("other", target="m.f", settings={})
            batch = await journal.open_batch("nightly", target="m.f", settings={})
            for which, name in ((batch, "n"), (other, "o")):
                for key in range(12):
                    if draw.random() < 0.4:
                        continue
                    entry = which.find(f"{name}{key}", 0 if key < 9 else number)
                    if entry.state == "done" or (entry.state == "failed" and draw.random() < 0.5):
                        continue
                    [attempt] = await which.begin([entry])
                    if draw.random() < 0.85:
                        await which.end(entry, attempt, draw.choice(ENDINGS))
        with edit_journal(path) as editor:
            keys = [one.key for one in editor.items("nightly") if draw.random() < 0.1]
            editor.retry("nightly", keys)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.slow
async def test_a_quick_look_counts_what_counting_every_item_does(
    journal_path: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was retried, reopened, or has another input by now, in however many sessions."""
    monkeypatch.setattr(_watch, "WRITTEN_OUT_AT_MOST", 10_000 * (seed % 2))
    await live_through(journal_path, random.Random(seed), 1 + seed % 4)
    with read_journal(journal_path) as reader:
        for name in ("nightly", "other"):
            found, counts, totals = reader.progress(name), reader.counts(name), reader.totals(name)
            failed = list(reader.items(name, ["failed", "timed_out"]))
            assert found.items == sum(counts.values())
            assert found.ok == counts.get("ok", 0)
            assert found.failed == len(failed)
            kinds = sorted(str(item.error_type) for item in failed)
            assert sorted(kind for kind, n in found.failures.items() for _ in range(n)) == kinds
            assert (found.tokens, found.cost_usd) == (totals.tokens, totals.cost_usd)
            assert found.attempts == (
                totals.attempts + totals.cancelled_attempts + totals.lost_attempts
            )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
async def test_items_are_the_same_in_one_stretch_and_in_many(
    journal_path: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await live_through(journal_path, random.Random(seed), 3)
    with read_journal(journal_path) as reader:
        whole = list(reader.items("nightly"))
        assert len({item.key for item in whole}) == len(whole) > 4
        for stretch in (1, 2, 5):
            monkeypatch.setattr(_queries, "FIRST_STRETCH", stretch)
            assert list(reader.items("nightly")) == whole


async def test_what_is_in_flight_is_told_with_its_time(journal_path: str) -> None:
    async with open_journal(journal_path) as journal:
        batch = await journal.open_batch("nightly", target="m.f", settings={})
        await batch.begin([batch.find(key, key) for key in range(OLDEST_SHOWN + 3)])
        with read_journal(journal_path) as reader:
            found = reader.progress()
            assert (found.name, found.state) == ("nightly", "running")
            assert found.writer is not None
            assert f"process {os.getpid()} on " in found.writer
            assert found.in_flight == OLDEST_SHOWN + 3
            assert [key for key, _ in found.oldest] == list(range(OLDEST_SHOWN))
            assert all(0 <= found.at - begun_at < 60 for _, begun_at in found.oldest)
            entry = batch.find("more", 0)
            [attempt] = await batch.begin([entry])
            await batch.end(entry, attempt, ENDINGS[0])
            assert reader.progress().per_second > 0


async def test_the_pace_is_that_of_this_session_alone(journal_path: str) -> None:
    """However much ended just before it: else the time left would be far too short."""
    for keys in (range(9), range(9, 10)):
        async with open_journal(journal_path) as journal:
            batch = await journal.open_batch("nightly", target="m.f", settings={})
            for key in keys:
                entry = batch.find(key, 0)
                [attempt] = await batch.begin([entry])
                with read_journal(journal_path) as reader:
                    pace = reader.progress().per_second
                await batch.end(entry, attempt, ENDINGS[0])
    assert pace == 0


async def test_it_says_whether_a_batch_that_is_over_is_done(journal_path: str) -> None:
    async with open_journal(journal_path) as journal:
        batch = await journal.open_batch("nightly", target="m.f", settings={})
        for key, ending in enumerate((ENDINGS[0], ENDINGS[-1])):
            entry = batch.find(key, 0)
            [attempt] = await batch.begin([entry])
            await batch.end(entry, attempt, ending)
    with read_journal(journal_path) as reader:
        assert reader.progress().state == "stopped", "one was cancelled"
        with pytest.raises(JournalError, match="no batch 'other'"):
            reader.progress("other")
    async with open_journal(journal_path) as journal:
        batch = await journal.open_batch("nightly", target="m.f", settings={})
        entry = batch.find(1, 0)
        [attempt] = await batch.begin([entry])
        await batch.end(entry, attempt, ENDINGS[0])
    with read_journal(journal_path) as reader:
        found = reader.progress()
        assert (found.state, found.done, found.in_flight) == ("ended", 2, 0)
    async with open_journal(journal_path) as journal:
        batch = await journal.open_batch("nightly", target="m.f", settings={})
        await batch.begin([batch.find(2, 0)])
    with read_journal(journal_path) as reader:
        assert reader.progress().state == "dead", "an attempt has no ending"


async def test_what_a_batch_expects_is_known_until_its_next_session(journal_path: str) -> None:
    async with open_journal(journal_path) as journal:
        await journal.open_batch("nightly", target="m.f", settings={})
        identified = journal.identified(
            target="m.f", settings={}, content=None, function=None, tell=None
        )
        for expected in (7, 8):
            await identified.note_outlook(
                "nightly",
                expected=expected,
                limits="limits: all",
                forecast="9 h needed",
                timings=[[1.5, 2, None]],
            )
        with read_journal(journal_path) as reader:
            found = reader.progress()
            assert (found.expected, found.limits) == (8, "limits: all")
            assert found.forecast == "9 h needed"
    with read_journal(journal_path) as reader:
        found = reader.progress()
        assert (found.expected, found.limits, found.state) == (8, None, "stopped")
    async with open_journal(journal_path) as journal:
        await journal.open_batch("nightly", target="m.f", settings={})
        with read_journal(journal_path) as reader:
            assert reader.progress().expected is None
            assert reader.progress().forecast is None
            assert reader.timings("nightly") == [[1.5, 2, None]], "for this one's forecast"


WRITER = """
import sys, trio
from harness.journal import open_journal

async def main():
    async with open_journal(sys.argv[1]) as journal:
        await journal.open_batch("nightly", target="m.f", settings={})
        print("ready", flush=True)
        sys.stdin.read()

trio.run(main)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only there is it told that one is stopped")
def test_running_paused_and_dead_are_told_apart(tmp_path: Path) -> None:
    """Even if nothing was in flight when it was killed."""
    path = tmp_path / "run.db"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == b"ready\n"
        with read_journal(path) as reader:

            def wait_for(state: str) -> None:
                deadline = time.monotonic() + PATIENCE_SECONDS
                while reader.progress().state != state:
                    assert time.monotonic() < deadline, reader.progress().state

            wait_for("running")
            writer.send_signal(signal.SIGSTOP)
            wait_for("paused")
            writer.send_signal(signal.SIGCONT)
            wait_for("running")
            writer.kill()
            writer.wait()
            wait_for("dead")
    finally:
        writer.kill()
        writer.communicate()
