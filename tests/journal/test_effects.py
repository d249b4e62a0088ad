"""What the journal records of effects, for `open_once`."""

from pathlib import Path
from typing import Any

import pytest
import trio

from harness.errors import JournalKeyError, JournalValueError
from harness.journal import open_journal
from harness.shared import EffectStore, open_once


async def intend(path: str, key: Any, offered: str) -> tuple[str, str, Any]:
    async with open_journal(path) as journal:
        store: EffectStore = journal
        recorded = await store.intend(key, offered)
        return recorded.state, recorded.idempotency_key, recorded.value


async def test_an_effect_goes_from_intended_to_done(journal_path: str) -> None:
    """Its first idempotency key is the one the receiver knows, whatever comes after a crash."""
    key = ("refund", 7)
    assert await intend(journal_path, key, "first") == ("new", "first", None)
    # The process ended before it came back.
    assert await intend(journal_path, key, "second") == ("unknown", "first", None)
    async with open_journal(journal_path) as journal:
        await journal.fail(key, ValueError("declined"))
    assert await intend(journal_path, key, "third") == ("failed", "first", None)
    assert await intend(journal_path, key, "fourth") == ("unknown", "first", None)
    async with open_journal(journal_path) as journal:
        assert await journal.complete(key, {"paid": (1, 2)}) == {"paid": [1, 2]}
    assert await intend(journal_path, key, "fifth") == ("done", "first", {"paid": [1, 2]})
    assert await intend(journal_path, ("refund", 8), "other") == ("new", "other", None)
    assert await intend(journal_path, "refund", "text") == ("new", "text", None)


@pytest.mark.parametrize("key", [None, "", (), {}, float("nan"), object(), b"a", {1, 2}])
async def test_what_names_no_effect_is_refused(tmp_path: Path, key: Any) -> None:
    """Two different payments under one key would be taken for one."""
    with pytest.raises(JournalKeyError):
        await intend(str(tmp_path / "run.db"), key, "key")


async def test_a_value_that_cannot_be_kept_is_said_so(tmp_path: Path) -> None:
    """It happened all the same: the effect stays intended, which is what unknown means."""
    path = str(tmp_path / "run.db")
    async with open_journal(path) as journal:
        await journal.intend("mail", "key")
        with pytest.raises(JournalValueError):
            await journal.complete("mail", object())
    assert await intend(path, "mail", "again") == ("unknown", "key", None)


async def test_a_durable_once_has_an_effect_once_over_sessions(journal_path: str) -> None:
    """The whole way, through `open_once`: a mail that was sent isn't sent by the next process."""
    sent: list[str] = []

    async def send(idempotency_key: str) -> str:
        sent.append(idempotency_key)
        return "sent"

    for _ in range(2):
        async with open_journal(journal_path) as journal:
            async with open_once(journal) as once:
                async with trio.open_nursery() as nursery:
                    for _ in range(10):
                        nursery.start_soon(once, ("mail", 7), send)
    assert len(sent) == 1
