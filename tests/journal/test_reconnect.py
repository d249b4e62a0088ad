"""A connection to a server that is lost costs nothing, as long as nobody else has written."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from harness.errors import JournalError
from harness.fanout import Ending
from harness.journal import Journal, open_journal, read_journal
from harness.journal._batch import JournalBatch
from harness.journal._postgres import _backend
from harness.shared import open_once


def backend_of(journal: Journal) -> Any:
    return journal._writer._backend


def end_connections(address: str) -> None:
    """As an administrator would, or the server when it is restarted."""
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory' "
            "AND objid = (hashtext(current_schema())::bigint & 4294967295)::oid"
        )


async def record(batch: JournalBatch, key: int) -> None:
    entry = batch.find(key, 0)
    [number] = await batch.begin([entry])
    await batch.end(entry, number, Ending(status="ok", value="1"))


@pytest.mark.slow
async def test_a_batch_goes_on_over_a_lost_connection(postgres_path: str) -> None:
    async def effect(key: str) -> str:
        return key

    async with open_journal(postgres_path) as journal:
        batch = await journal.open_batch("b", target="t", settings={})
        await record(batch, 0)
        end_connections(postgres_path)
        await record(batch, 1)
        end_connections(postgres_path)
        assert (await batch.totals()).ok == 2
        async with open_once(journal) as once:
            await once("a", effect)
            end_connections(postgres_path)
            await once("b", effect)
        end_connections(postgres_path)
        await journal.open_batch("c", target="t", settings={})
        # And nobody else can write meanwhile: the lock was taken again.
        with pytest.raises(JournalError, match="is being written to by process"):
            async with open_journal(postgres_path):
                pass
    with read_journal(postgres_path) as reader:
        assert reader.counts("b") == {"ok": 2}


def lost_after(backend: Any, work: Callable[..., Any], times: int = 1) -> Callable[..., Any]:
    """Return what does the work and loses the connection before it can be said that it is done."""
    left = times

    def done_and_lost(*given: Any) -> Any:
        nonlocal left
        done = work(*given)
        if left:
            left -= 1
            backend._connection.close()
            raise psycopg.OperationalError("the connection is lost")
        return done

    return done_and_lost


async def test_what_had_arrived_is_not_written_twice(postgres_path: str) -> None:
    """A commit whose answer is lost may have been done or not; both end the same."""
    async with open_journal(postgres_path) as journal:
        backend = backend_of(journal)
        batch = await journal.open_batch("b", target="t", settings={})
        backend._write = lost_after(backend, backend._write, times=2)
        await record(batch, 0)
        del backend._write
        backend.commit = lost_after(backend, backend.commit)
        # An effect that was new is new, and not unknown.
        recorded = await journal.intend("mail", "key")
        assert (recorded.state, recorded.idempotency_key) == ("new", "key")
        backend.commit = lost_after(backend, type(backend).commit.__get__(backend))
        await journal.complete("mail", 7)
        del backend.commit
        recorded = await journal.intend("mail", "other")
        assert (recorded.state, recorded.idempotency_key, recorded.value) == ("done", "key", 7)
        assert (await journal.intend("post", "other")).state == "new"
    with read_journal(postgres_path) as reader:
        assert reader.totals("b").attempts == 1
        assert reader._backend.fetch("SELECT count(*) FROM harness_effects") == [(2,)]


async def test_a_connection_that_ends_in_the_middle_of_statements_is_lost(
    postgres_path: str,
) -> None:
    """It isn't closed yet when the driver fails, while the server's last words are on their way."""
    async with open_journal(postgres_path) as journal:
        backend = backend_of(journal)
        batch = await journal.open_batch("b", target="t", settings={})

        def in_the_middle(rows: Any) -> None:
            del backend._write
            backend._connection.pgconn.enter_pipeline_mode()
            raise psycopg.OperationalError("cannot exit pipeline mode while busy")

        backend._write = in_the_middle
        await record(batch, 0)
    with read_journal(postgres_path) as reader:
        assert reader.counts("b") == {"ok": 1}


async def test_a_server_that_stays_away_ends_the_batch(
    postgres_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_backend, "RECONNECT_SECONDS_AT_MOST", 0.0)
    with pytest.raises(JournalError, match=r"can't be reached.*what was acknowledged is kept"):
        async with open_journal(postgres_path) as journal:
            batch = await journal.open_batch("b", target="t", settings={})
            await record(batch, 0)
            end_connections(postgres_path)
            monkeypatch.setattr(backend_of(journal), "_conninfo", "host=/nowhere")
            await record(batch, 1)
    monkeypatch.undo()
    with read_journal(postgres_path) as reader:
        assert reader.counts("b") == {"ok": 1}
