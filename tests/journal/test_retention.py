"""A journal that is written to every night doesn't grow for ever."""

import math
import time
from pathlib import Path

import pytest

from harness.errors import JournalError
from harness.fanout import Ending
from harness.journal import edit_journal, open_journal, read_journal

DAY = 86_400.0


async def night(path: str, name: str, *keys: str, value: str = "1", ends: bool = True) -> None:
    async with open_journal(path) as journal:
        batch = await journal.open_batch(name, target="t", settings={})
        entries = [batch.find(key, 0) for key in keys]
        numbers = await batch.begin(entries)
        ended = [
            (entry, number, Ending(status="ok", value=value))
            for entry, number in zip(entries, numbers, strict=True)
        ]
        if ends:
            batch.end_nowait(ended, lambda _: None)
        await batch.flush()


@pytest.mark.slow
async def test_what_ended_before_a_moment_is_forgotten(
    journal_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 100 * DAY)
    await night(journal_path, "old", "a", "b")
    await night(journal_path, "unfinished", "a", ends=False)
    await night(journal_path, "both", "a", "b")
    monkeypatch.undo()
    await night(journal_path, "both", "c")
    await night(journal_path, "new", "a")
    before = time.time() - 90 * DAY
    with edit_journal(journal_path) as editor:
        with pytest.raises(JournalError, match="has no batch 'nightly'"):
            editor.forget_before(before, "nightly")
        with pytest.raises(ValueError, match="90 days ago"):
            editor.forget_before(math.nan)
        assert editor.forget_before(before, "new") == 0
        assert editor.forget_before(before) == 4
        assert editor.forget_before(before) == 0
    with read_journal(journal_path) as reader:
        assert {one.name: reader.counts(one.name) for one in reader.batches()} == {
            "unfinished": {"in_flight": 1},
            "both": {"ok": 1},
            "new": {"ok": 1},
        }
        assert reader.totals("both").attempts == 1
    # Numbers aren't given out again, and what is forgotten is new.
    await night(journal_path, "old", "a")
    with read_journal(journal_path) as reader:
        assert reader.counts("old") == {"ok": 1}


async def test_a_vacuum_makes_the_file_smaller(tmp_path: Path) -> None:
    """What was forgotten left its room in the file, which never shrank."""
    path = tmp_path / "run.db"
    await night(str(path), "large", *(str(number) for number in range(300)), value="1" * 10_000)
    await night(str(path), "small", "a")
    large = path.stat().st_size
    with edit_journal(path) as editor:
        assert editor.vacuum() < 100_000
        editor.forget("large")
        freed = editor.vacuum()
    assert freed > 2_900_000
    assert path.stat().st_size < 100_000 < large
    await night(str(path), "small", "b")
    with read_journal(path) as reader:
        assert reader.counts("small") == {"ok": 2}


@pytest.mark.slow
async def test_a_server_gives_the_room_back(postgres_path: str) -> None:
    keys = [str(number) for number in range(300)]
    await night(postgres_path, "large", *keys, value=" ".join(str(n) for n in range(3_000)))
    with edit_journal(postgres_path) as editor:
        editor.forget("large")
        assert editor.vacuum() > 300_000
