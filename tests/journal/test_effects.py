"""What the journal records of effects, for `open_once`."""

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import JournalKeyError, JournalLockedError, JournalValueError
from harness.journal import open_journal
from harness.shared import DefaultKey, EffectStore, open_once


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
        assert await journal.complete(key, {"paid": (1, 2)}) == {"paid": (1, 2)}
    assert await intend(journal_path, key, "fifth") == ("done", "first", {"paid": (1, 2)})
    assert await intend(journal_path, ("refund", 8), "other") == ("new", "other", None)
    assert await intend(journal_path, "refund", "text") == ("new", "text", None)


async def test_no_two_effects_have_an_idempotency_key_that_nobody_chose(journal_path: str) -> None:
    """In the next process another effect may be the first of its item to ask. Seen first as a
    payment that would have been taken for the one before it, and not been made."""
    assert await intend(journal_path, "first", DefaultKey("item")) == ("new", "item", None)
    state, made, _ = await intend(journal_path, "second", DefaultKey("item"))
    assert state == "new"
    assert made.startswith("item:")
    assert type(made) is str
    async with open_journal(journal_path) as journal:
        third = await journal.intend("third", DefaultKey(made))
        fourth = await journal.intend("fourth", DefaultKey(made))
        chosen = await journal.intend("fifth", "item")
    keys = {"item", made, third.idempotency_key, fourth.idempotency_key}
    assert len(keys) == 4
    assert chosen.idempotency_key == "item", "what somebody chose is taken as it is"


async def test_effects_of_an_item_keep_apart_in_the_next_process(
    journal_path: str, autojump_clock: MockClock
) -> None:
    asked: list[tuple[str, str]] = []

    async def session(*names: str) -> None:
        async def item(_: int) -> None:
            for name in names:

                async def effect(idempotency_key: str, name: str = name) -> None:
                    asked.append((name, idempotency_key))

                await once(name, effect)
            raise ValueError("and so it is tried again")

        async with open_journal(journal_path, retry_failed=True) as journal:
            async with open_once(journal) as once:
                policy = harness.BestEffort()
                await harness.fan_out(
                    item, [1], journal=journal, key=lambda one: one, policy=policy, name="b"
                )

    await session("a", "b")
    await session("b", "c")
    await session("d")
    assert [name for name, _ in asked] == ["a", "b", "c", "d"]
    assert len({key for _, key in asked}) == 4


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


async def test_an_item_that_failed_as_its_effect_is_unknown_says_how_it_runs_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The first advice alone was followed in vain: the kept failure came back with its words."""
    path = str(tmp_path / "run.db")
    await intend(path, "refund", "key")
    paid: list[str] = []

    async def pay(idempotency_key: str) -> str:
        paid.append(idempotency_key)
        return "receipt"

    async def session(on_unknown: Any, *, retry_failed: bool = False) -> harness.Results[str]:
        async with open_journal(path, retry_failed=retry_failed) as journal:
            async with open_once(journal, on_unknown=on_unknown) as once:

                async def item(_: int) -> str:
                    return await once("refund", pay)

                policy = harness.BestEffort()
                return await harness.fan_out(
                    item, [1], journal=journal, key=lambda one: one, policy=policy, name="b"
                )

    for on_unknown in ("raise", "retry"):
        (kept,) = await session(on_unknown)
        assert "runs again with retry_failed=True" in str(kept.error)
    assert paid == []
    assert (await session("retry", retry_failed=True)).values() == ["receipt"]
    assert paid == ["key"]


async def test_an_item_whose_effect_is_interrupted_is_not_done(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Seen first as an item that failed for good, though a Ctrl-C had only cut it off."""
    tried: list[str] = []

    async def send(idempotency_key: str) -> str:
        tried.append(idempotency_key)
        await trio.sleep(1)
        if len(tried) == 1:
            raise KeyboardInterrupt
        return "sent"

    async def session() -> list[Any]:
        async with (
            open_journal(tmp_path / "run.db") as journal,
            open_once(journal, on_unknown="retry") as once,
        ):

            async def mail(name: str) -> str:
                return await once(name, send)

            results = await harness.fan_out(
                mail, ["a"], policy=harness.BestEffort(), journal=journal, key=str, name="mails"
            )
            return results.values()

    with pytest.raises(KeyboardInterrupt):
        await session()
    assert await session() == ["sent"]
    assert len(tried) == 2
    assert len(set(tried)) == 1


@pytest.mark.parametrize("on_unknown", ["raise", "retry"])
async def test_two_onces_of_a_journal_do_not_have_an_effect_twice(
    tmp_path: Path, on_unknown: Any
) -> None:
    """One took the other's effect, which was under way, for one that a crash had cut off."""
    sent: list[str] = []
    began, may_end = trio.Event(), trio.Event()

    async def send(idempotency_key: str) -> int:
        sent.append(idempotency_key)
        number = len(sent)
        began.set()
        await may_end.wait()
        return number

    async with (
        open_journal(tmp_path / "run.db") as journal,
        open_once(journal, on_unknown=on_unknown) as one,
        open_once(journal, on_unknown=on_unknown) as other,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, "mail", send)
            await began.wait()
            with pytest.raises(JournalLockedError, match="in another open_once"):
                await other("mail", send)
            may_end.set()
            assert await other("another mail", send) == 2
        assert await other("mail", send) == 1
    assert len(sent) == 2


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
