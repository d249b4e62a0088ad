"""What a database can't hold fails its item, and never the batch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
import trio

import harness
from harness.errors import JournalError, JournalValueError
from harness.fanout import Ending
from harness.journal import _batch, _codec, _writer, open_journal, read_journal
from harness.journal._backend import Backend, Rows
from harness.journal._schema import COLUMNS
from harness.journal._writer import Writer
from harness.shared import DefaultKey, open_once


@pytest.mark.parametrize("letter", ["x", "\u00e9"])
async def test_a_value_that_is_too_long_fails_its_item_alone(
    journal_path: str, monkeypatch: pytest.MonkeyPatch, letter: str
) -> None:
    """Seen first as "string or blob too big", which ended the batch, and every session after it."""
    monkeypatch.setattr(_codec, "VALUE_BYTES_AT_MOST", 1_000)

    async def work(item: int) -> str:
        return letter * 2_000 if item == 1 else letter

    async with open_journal(journal_path) as journal:
        results = await harness.fan_out(
            work, range(3), journal=journal, key=str, policy=harness.BestEffort()
        )
    assert [result.status for result in results] == ["ok", "failed", "ok"]
    assert isinstance(results[1].error, JournalValueError)
    assert "a database holds 1,000; keep it in a file" in str(results[1].error)


async def test_an_error_that_says_too_much_is_cut(
    journal_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some quote all that they were given."""
    monkeypatch.setattr(_codec, "WORDS_AT_MOST", 10)

    async def work(item: int) -> str:
        raise ValueError("0123456789" * 2)

    async def effect(_: str) -> None:
        raise ValueError("0123456789" * 2)

    async with open_journal(journal_path) as journal:
        await harness.fan_out(
            work, [1], journal=journal, key=str, name="b", policy=harness.BestEffort()
        )
        async with open_once(journal) as once:
            with pytest.raises(ValueError, match="01234"):
                await once("mail", effect)
    with read_journal(journal_path) as reader:
        [item] = reader.items("b")
        assert item.error_message == "0123456789... (10 more characters)"
        [[words]] = reader._backend.fetch("SELECT value FROM harness_effects")
        assert len(words) < 50


async def test_more_tokens_than_a_database_counts_cost_no_batch(journal_path: str) -> None:
    async with open_journal(journal_path) as journal:
        batch = await journal.open_batch("b", target="t", settings={})
        entry = batch.find(1, 0)
        [number] = await batch.begin([entry])
        await batch.end(entry, number, Ending(status="ok", value="1", tokens=10**30))
        assert (await batch.totals()).tokens == 10**15


@contextmanager
def groups_of(writer: Writer, table: str = "harness_endings") -> Iterator[list[int]]:
    """Note how many rows of a table each transaction has."""
    backend: Any = writer._backend
    write = backend.write
    found: list[int] = []

    def noted(rows: Rows) -> None:
        write(rows)
        if values := rows.get(table):
            found.append(len(values) // len(COLUMNS[table]))

    backend.write = noted
    try:
        yield found
    finally:
        del backend.write


@pytest.mark.parametrize("together", [True, False], ids=["one record", "many"])
async def test_groups_are_bounded_in_bytes(
    journal_path: str, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """Seen first as 64 answers of 20 MB that ended together: more than a server takes at once."""
    for module in (_batch, _writer):
        monkeypatch.setattr(module, "GROUP_CHARACTERS_AT_MOST", 1_000)
    acknowledged: list[BaseException | None] = []
    async with open_journal(journal_path) as journal:
        batch = await journal.open_batch("b", target="t", settings={})
        entries = [batch.find(key, 0) for key in range(32)]
        numbers = await batch.begin(entries)
        ended = [
            (entry, number, Ending(status="ok", value=f'"{"x" * 300}"'))
            for entry, number in zip(entries, numbers, strict=True)
        ]
        with groups_of(journal._writer) as groups:
            for part in [ended] if together else [[one] for one in ended]:
                batch.end_nowait(part, acknowledged.append)
            await batch.flush()
        assert sum(groups) == 32
        # Three fit; a group ends with the record that takes it past the bound.
        assert max(groups) <= 6
    assert acknowledged == [None] * (1 if together else 32)
    with read_journal(journal_path) as reader:
        assert reader.counts("b") == {"ok": 32}


async def test_groups_are_bounded_in_what_items_were(
    journal_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (_batch, _writer):
        monkeypatch.setattr(module, "GROUP_CHARACTERS_AT_MOST", 1_000)
    async with open_journal(journal_path) as journal:
        batch = await journal.open_batch("b", target="t", settings={})
        entries = [batch.find(key, f"{key} {'x' * 300}") for key in range(32)]
        with groups_of(journal._writer, "harness_inputs") as groups:
            numbers = batch.begin_nowait(entries, lambda _: None)
            await batch.flush()
        assert len(set(numbers)) == 32
        assert sum(groups) == 32
        assert max(groups) <= 6
    with read_journal(journal_path) as reader:
        texts = [item.input_text for item in reader.items("b", details=True)]
    assert texts == [f'"{key} {"x" * 300}"' for key in range(32)]


async def test_an_encoding_that_cannot_hold_every_text_is_refused_when_it_is_opened(
    postgres_server: str,
) -> None:
    """Seen first as one answer with an emoji that ended the batch, in every session anew."""
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS harness_latin")
        connection.execute(
            "CREATE DATABASE harness_latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' "
            "LC_CTYPE 'C'"
        )
        address = postgres_server.rpartition("/")[0] + "/harness_latin"
        try:
            with pytest.raises(JournalError, match=r"has the encoding LATIN1.*--encoding UTF8"):
                async with open_journal(address):
                    pass
            with pytest.raises(JournalError, match="has the encoding LATIN1"):
                with read_journal(address):
                    pass
        finally:
            connection.execute("DROP DATABASE harness_latin")


# Effects -----------------------------------------------------------------------------------------


async def test_effects_share_their_commits(journal_path: str) -> None:
    """Each took two commits for itself: 116 a second, where 2,600 are possible."""
    commits = 0
    async with open_journal(journal_path) as journal, open_once(journal) as once:
        backend: Any = journal._writer._backend
        commit = backend.commit

        def counted() -> None:
            nonlocal commits
            commits += 1
            commit()

        async def effect(key: str) -> str:
            return key

        hold = trio.Event()

        async def have(number: int) -> None:
            await hold.wait()
            assert await once(number, effect, idempotency_key=f"k{number}") == f"k{number}"

        backend.commit = counted
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(have, number)
            hold.set()
        del backend.commit
        # Those that come while a commit is under way share the next one.
        assert commits <= 50

        # Known to all who ask, and one mistake among them is nobody else's.
        answers: list[str] = []

        async def ask(number: int) -> None:
            recorded = await journal.intend(number, "other")
            answers.append(f"{recorded.state} {recorded.idempotency_key} {recorded.value}")

        async def end_what_never_began() -> None:
            with pytest.raises(JournalError, match="was never intended"):
                await journal.complete("never", 1)

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(ask, number)
            nursery.start_soon(end_what_never_began)
        assert sorted(answers) == sorted(f"done k{number} k{number}" for number in range(200))
    with read_journal(journal_path) as reader:
        assert _count(reader._backend) == [("done", 200)]


def _count(backend: Backend) -> list[tuple[str, int]]:
    return backend.fetch("SELECT state, count(DISTINCT id) FROM harness_effects GROUP BY state")


async def test_of_one_group_no_two_effects_share_a_key_that_nobody_chose(journal_path: str) -> None:
    keys: list[str] = []
    async with open_journal(journal_path) as journal:

        async def intend(name: str) -> None:
            recorded = await journal.intend(name, DefaultKey("item"))
            keys.append(recorded.idempotency_key)

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(intend, str(number))
    assert "item" in keys
    assert len(set(keys)) == 20
