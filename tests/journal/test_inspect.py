"""Looking into a journal from outside, and having the next session do something again."""

import gc
from typing import Any

import pytest

from harness.errors import JournalError
from harness.fanout import Ending
from harness.journal import JournalItem, edit_journal, open_journal, read_journal
from harness.journal._batch import JournalBatch


async def fill(path: str) -> None:
    """Record a batch with an item of each kind, and an empty one."""
    async with open_journal(path, version="3") as journal:
        await journal.open_batch("empty", target="m.f", settings={})
        batch = await journal.open_batch("nightly", target="m.f", settings={"model": "small"})
        await end(batch, "ok", Ending(status="ok", value='{"a":1}', seconds=1.5, degraded=True))
        await end(batch, 1, Ending(status="failed", error_type="ValueError", error_message="no"))
        await end(batch, "1", Ending(status="timed_out", tokens=5))
        await end(batch, "cancelled", Ending(status="cancelled"))
        await batch.begin([batch.find("lost", 0)])


async def end(batch: JournalBatch, key: Any, ending: Ending) -> None:
    entry = batch.find(key, 0)
    [number] = await batch.begin([entry])
    await batch.end(entry, number, ending)


async def state(path: str, key: Any) -> tuple[str, int]:
    async with open_journal(path, version="3") as journal:
        batch = await journal.open_batch("nightly", target="m.f", settings={"model": "small"})
        entry = batch.find(key, 0)
        return entry.state, entry.attempts


async def test_what_is_there_is_told(journal_path: str) -> None:
    """Status, failures with their errors, and everything for an export."""
    await fill(journal_path)
    with read_journal(journal_path) as reader:
        empty, nightly = reader.batches()
        assert (empty.name, nightly.name) == ("empty", "nightly")
        assert (nightly.target, nightly.version, nightly.settings) == (
            "m.f",
            "3",
            {"model": "small"},
        )
        assert nightly.sessions == 1
        assert nightly.last_session_at >= nightly.created_at
        assert reader.counts("empty") == {}
        assert reader.counts("nightly") == {
            "ok": 1,
            "failed": 1,
            "timed_out": 1,
            "open": 1,
            "in_flight": 1,
        }
        items = list(reader.items("nightly"))
        assert [item.key for item in items] == ["ok", 1, "1", "cancelled", "lost"]
        ended_at = items[0].ended_at
        assert ended_at is not None
        assert items[0] == JournalItem(
            key="ok",
            status="ok",
            value_text='{"a":1}',
            error_type=None,
            error_message=None,
            error_traceback=None,
            degraded=True,
            attempts=1,
            ended_at=ended_at,
            seconds=1.5,
        )
        [failed] = reader.items("nightly", ["failed"])
        assert (failed.key, failed.error_type, failed.error_message) == (1, "ValueError", "no")
        assert [item.key for item in reader.items("nightly", ["open", "in_flight"])] == [
            "cancelled",
            "lost",
        ]
        assert list(reader.items("nightly", [])) == []
        assert reader.totals("nightly").tokens == 5
        with pytest.raises(JournalError, match="no batch 'nightyl'; it has 'empty', 'nightly'"):
            reader.counts("nightyl")


async def test_an_item_that_is_retried_begins_anew(journal_path: str) -> None:
    """Its attempts count no more, so that ``max_attempts`` doesn't set it aside again at once."""
    await fill(journal_path)
    assert await state(journal_path, 1) == ("failed", 1)
    with edit_journal(journal_path) as editor:
        assert editor.retry("nightly", [1]) == 1
        assert editor.counts("nightly")["open"] == 2
        assert editor.totals("nightly").attempts == 3  # It was work all the same.
    assert await state(journal_path, 1) == ("open", 0)
    with edit_journal(journal_path) as editor:
        assert editor.retry("nightly") == 1  # The one that timed out is what is left.
        assert editor.retry("nightly") == 0
        assert editor.retry("nightly", ["ok", "lost"]) == 2
    assert await state(journal_path, "ok") == ("open", 0)
    assert await state(journal_path, "lost") == ("open", 0)


@pytest.mark.slow
async def test_what_is_forgotten_was_never_there(journal_path: str) -> None:
    """Items, or a batch; the numbers they had are not given out again."""
    await fill(journal_path)
    with edit_journal(journal_path) as editor:
        assert editor.forget("nightly", ["lost", "cancelled", "1"]) == 3
        assert editor.counts("nightly") == {"ok": 1, "failed": 1}
        totals = editor.totals("nightly")
        assert (totals.items, totals.attempts, totals.tokens) == (2, 2, 0)
        assert (totals.lost_attempts, totals.cancelled_attempts) == (0, 0)
    assert await state(journal_path, "lost") == ("new", 0)
    async with open_journal(journal_path, version="3") as journal:
        batch = await journal.open_batch("nightly", target="m.f", settings={"model": "small"})
        await end(batch, "lost", Ending(status="ok", value="1"))
    assert await state(journal_path, "lost") == ("done", 1)
    with edit_journal(journal_path) as editor:
        assert editor.forget("nightly") == 3
        assert [info.name for info in editor.batches()] == ["empty"]
    assert await state(journal_path, "ok") == ("new", 0)


async def test_a_key_that_is_not_there_changes_nothing(journal_path: str) -> None:
    """Of ten keys one is mistyped: half of the work done would be worse than none."""
    await fill(journal_path)
    with edit_journal(journal_path) as editor:
        for change in (editor.retry, editor.forget):
            with pytest.raises(JournalError, match=r"no item 'x', 2, 'y' and 1 more "):
                change("nightly", ["ok", "x", 2, "y", "z"])
        assert editor.counts("nightly")["ok"] == 1
        assert editor.retry("nightly", []) == editor.forget("nightly", []) == 0


async def test_it_is_read_while_it_is_written(journal_path: str) -> None:
    """A batch runs for hours; whoever looks must not stop it, and sees what is durable."""
    async with open_journal(journal_path) as journal:
        batch = await journal.open_batch("nightly", target="m.f", settings={})
        with read_journal(journal_path) as reader:
            for number in range(1, 4):
                await end(batch, number, Ending(status="ok", value="1"))
                assert reader.counts("nightly") == {"ok": number}
            items = reader.items("nightly")
            next(items)  # In the middle of a long export.
            await end(batch, 4, Ending(status="ok", value="1"))
            assert len(list(items)) == 2


async def test_numbers_are_not_given_out_again(journal_path: str) -> None:
    """An export of last week and one of today must not call two items by one number."""
    await fill(journal_path)
    async with open_journal(journal_path) as journal:
        batch = await journal.open_batch("later", target="m.f", settings={})
        item = batch.find("a", 0).id
    with edit_journal(journal_path) as editor:
        editor.forget("nightly")
    async with open_journal(journal_path) as journal:
        batch = await journal.open_batch("later", target="m.f", settings={})
        entry = batch.find("a", 0)
        assert entry.id >= item
        assert await batch.begin([entry]) >= [6]  # Five attempts were begun before.


@pytest.mark.parametrize("keys", [[3], None])
async def test_what_is_forgotten_leaves_its_number_to_nobody(
    journal_path: str, keys: list[int] | None
) -> None:
    """An idempotency key is made of it: another item's payment must not be taken for this one's."""
    async with open_journal(journal_path) as journal:
        batch = await journal.open_batch("nightly", target="m.f", settings={})
        entries = [batch.find(key, key) for key in (1, 2, 3)]
        attempts = await batch.begin(entries)
    with edit_journal(journal_path) as editor:
        editor.forget("nightly", keys)
    async with open_journal(journal_path) as journal:
        batch = await journal.open_batch("nightly", target="m.f", settings={})
        entry = batch.find(4, 4)
        assert entry.id > entries[-1].id
        assert await batch.begin([entry]) > attempts[-1:]


@pytest.mark.slow
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
async def test_a_reader_may_be_left_in_the_middle(journal_path: str) -> None:
    """Taking the first failure and going is how one looks; nothing is to be said about it later."""
    await fill(journal_path)
    with read_journal(journal_path) as reader:
        items = reader.items("nightly")
        assert next(items).key is not None
    del items
    gc.collect()
