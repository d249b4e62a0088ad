"""Several sessions share a journal on a server, and each item is one session's at a time."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio

import harness
from harness.errors import (
    FanOutError,
    JournaledError,
    JournalError,
    JournalLockedError,
)
from harness.fanout import Results
from harness.flow import Batch, Pipeline, stage
from harness.journal import Journal, open_journal, read_journal
from harness.journal._postgres import _backend
from harness.policies import BestEffort, Priority, Retry
from harness.shared import open_once
from tests.journal.test_reconnect import end_connections
from tests.scale import FULL, PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]


def join(path: str, **options: Any) -> Any:
    return open_journal(path, join=True, **options)


async def call(work: Callable[[Any], Awaitable[Any]], item: Any) -> Any:
    return await work(item)


def called(work: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    """Return a function that is the same to a journal whatever it calls."""
    return partial(call, work)


async def run_joined(
    path: str,
    work: Callable[[int], Awaitable[Any]],
    items: int = 20,
    *,
    limit: int = 3,
    each: Any = None,
    **options: Any,
) -> Results[Any]:
    async with join(path, **options) as journal:
        return await harness.fan_out(
            called(work),
            range(items),
            name="b",
            limit=limit,
            journal=journal,
            key=lambda item: item,
            policy=BestEffort(),
            **({} if each is None else {"each": each}),
        )


def change(path: str, statement: str) -> None:
    with psycopg.connect(path, autocommit=True) as connection:
        connection.execute(statement.encode())


async def count(path: str, query: str) -> Any:
    with psycopg.connect(path) as connection:
        return connection.execute(query.encode()).fetchall()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        while not await condition():  # noqa: ASYNC110  # Of a database.
            await trio.sleep(0.01)


@pytest.mark.slow
@pytest.mark.real_clock
async def test_each_item_runs_in_one_session_and_all_get_all_results(postgres_path: str) -> None:
    ran: list[tuple[int, int]] = []
    began: set[int] = set()
    divided = trio.Event()
    """Set once two sessions have items."""
    results: list[Results[Any]] = []

    async def session(number: int) -> None:
        async def work(item: int) -> int:
            ran.append((item, number))
            began.add(number)
            if len(began) > 1:
                divided.set()
            await divided.wait()
            await trio.sleep(0.002)
            return 2 * item

        results.append(await run_joined(postgres_path, work, 60))

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(session, number)
    assert sorted(item for item, _ in ran) == list(range(60))
    for one in results:
        assert [result.index for result in one] == list(range(60))
        assert one.values() == [2 * item for item in range(60)]
        assert [result.attempts for result in one] == [1] * 60
    assert await count(postgres_path, "SELECT count(*) FROM harness_leases") == [(0,)]
    assert await count(postgres_path, "SELECT count(*) FROM harness_holders") == [(0,)]
    with read_journal(postgres_path) as reader:
        assert reader.counts("b") == {"ok": 60}
    # Whoever comes later, alone or not, has nothing to do.
    alone = len(ran)
    async with open_journal(postgres_path) as journal:
        again = await harness.fan_out(
            called(never), range(60), name="b", journal=journal, key=lambda item: item
        )
    assert len(again) == 60
    await run_joined(postgres_path, never, 60)
    assert len(ran) == alone


async def never(item: int) -> int:
    raise AssertionError(f"{item} is done")


@pytest.mark.slow
async def test_one_writer_and_sessions_that_join_exclude_each_other(
    postgres_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_backend, "LOCK_SECONDS_AT_MOST", 0.0)
    async with open_journal(postgres_path):
        with pytest.raises(JournalLockedError, match="sessions that join write side by side"):
            async with join(postgres_path):
                pass
    async with join(postgres_path), join(postgres_path):
        with pytest.raises(JournalLockedError, match=f"written to by process {os.getpid()}"):
            async with open_journal(postgres_path):
                pass


def test_what_cannot_be_shared_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"join=True\) needs a server"):
        join(str(tmp_path / "run.db"))
    with pytest.raises(ValueError, match=r"lease=\.\.\.\) is 0.5"):
        join("postgresql://nowhere/", lease=0.5)


@pytest.mark.parametrize(
    "path",
    [
        "postgresql://me:hunter%2@host/db",
        "postgresql://me:hunter2@[::1/db",
        "postgresql://me:hunter2@host/db?hunter2=1",
    ],
)
async def test_an_address_that_cannot_be_read_is_refused_without_its_password(path: str) -> None:
    with pytest.raises(JournalError, match="can't be read") as refused:
        async with join(path):
            pass
    assert "hunter" not in str(refused.value)
    assert refused.value.__suppress_context__


@pytest.mark.slow
async def test_serial_by_is_refused(postgres_path: str) -> None:
    async with join(postgres_path) as journal:
        with pytest.raises(ValueError, match="serial_by= can't be kept"):
            await harness.fan_out(
                never,
                [1],
                journal=journal,
                key=lambda item: item,
                priority=Priority(serial_by=lambda item: item),
            )


Work = Callable[[Any], Awaitable[Any]]


async def run_pipeline(
    journal: Journal, items: int, *stages: Work, batch: Any = None
) -> Results[Any]:
    *before, last = [called(one) for one in stages]
    pipeline: Any = Pipeline(
        *(stage(one, name=f"s{number}", limit=3) for number, one in enumerate(before)),
        stage(last, name="last", batch=batch),
    )
    results: Results[Any] = await pipeline.run(
        range(items), journal=journal, key=lambda item: item, name="p"
    )
    return results


@pytest.mark.slow
@pytest.mark.real_clock
async def test_sessions_share_the_items_of_a_pipeline(postgres_path: str) -> None:
    """Each goes its whole way in one session, and all have all results."""
    ran: list[tuple[str, int, int]] = []
    results: list[Results[Any]] = []
    divided = trio.Event()

    async def session(number: int) -> None:
        async def first(item: int) -> int:
            ran.append(("first", item, number))
            if len({by for _, _, by in ran}) > 1:
                divided.set()
            await divided.wait()
            return 10 * item

        async def second(item: int) -> int:
            ran.append(("second", item // 10, number))
            await trio.sleep(0.002)
            return item + 1

        async with join(postgres_path) as journal:
            results.append(await run_pipeline(journal, 30, first, second))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(session, 0)
        nursery.start_soon(session, 1)
    assert sorted((what, item) for what, item, _ in ran) == [
        (what, item) for what in ("first", "second") for item in range(30)
    ]
    assert len({(item, by) for _, item, by in ran}) == 30
    for one in results:
        assert one.values() == [10 * item + 1 for item in range(30)]
        assert [result.attempts for result in one] == [1] * 30
    async with join(postgres_path) as journal:
        assert (await run_pipeline(journal, 30, never, never)).values() == results[0].values()
    async with open_journal(postgres_path) as alone:
        assert (await run_pipeline(alone, 30, never, never)).values() == results[0].values()


@pytest.mark.slow
@pytest.mark.real_clock
async def test_an_item_of_a_pipeline_is_taken_over_at_its_step(
    postgres_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a step that its first session records late is refused, as an end is."""
    began, goes_on = trio.Event(), trio.Event()
    firsts: list[int] = []

    async def first(item: int) -> str:
        firsts.append(item)
        return "first"

    async def slow(value: str) -> str:
        began.set()
        await goes_on.wait()
        return "late"

    async def quick(value: str) -> str:
        return f"{value}, quick"

    async def last(value: str) -> str:
        return f"{value}, last"

    async def stopped(journal: Journal) -> None:
        with pytest.raises(JournalLockedError, match="taken over by another session"):
            await run_pipeline(journal, 1, first, slow, last)

    async with join(postgres_path) as other:
        with pytest.raises(JournalLockedError, match="taken over by another session"):
            async with join(postgres_path) as journal, trio.open_nursery() as nursery:
                nursery.start_soon(stopped, journal)
                await began.wait()
                Stopped(postgres_path, monkeypatch).expire(journal)
                [result] = await run_pipeline(other, 1, first, quick, last)
                assert result.value == "first, quick, last"
                goes_on.set()
    assert firsts == [0]
    with read_journal(postgres_path) as reader:
        [item] = reader.items("p")
        assert item.plain_value() == "first, quick, last"
        assert [one.name for one in reader.steps("p", 0)].count("stage 's1'") == 1


@pytest.mark.slow
@pytest.mark.real_clock
async def test_a_stage_that_gathers_items_doesnt_wait_for_those_of_others(
    postgres_path: str,
) -> None:
    """Those may wait for ours."""
    both = trio.Event()
    began: set[int] = set()

    async def session(number: int) -> None:
        async def first(item: int) -> int:
            began.add(number)
            if len(began) > 1:
                both.set()
            await both.wait()
            return item

        async def together(items: list[int]) -> list[int]:
            return items

        async with join(postgres_path) as journal:
            results = await run_pipeline(journal, 5, first, together, batch=Batch(50))
            assert results.values() == list(range(5))

    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session, 0)
            nursery.start_soon(session, 1)


@pytest.mark.slow
@pytest.mark.real_clock
async def test_a_slow_reader_keeps_no_item_from_others(postgres_path: str) -> None:
    """What was done elsewhere took the places of items claimed here, so that these waited."""
    read = trio.Event()
    ran: list[int] = []

    async def work(item: int) -> int:
        ran.append(item)
        await trio.sleep(0.002)
        return item

    async with trio.open_nursery() as nursery, join(postgres_path) as journal:
        async with harness.open_fan_out(
            called(work),
            range(40),
            name="b",
            limit=3,
            journal=journal,
            key=lambda item: item,
            policy=BestEffort(),
        ) as stream:
            await anext(aiter(stream))

            async def others() -> None:
                assert len(await run_joined(postgres_path, work, 40)) == 40
                read.set()

            nursery.start_soon(others)
            with trio.fail_after(PATIENCE_SECONDS):
                await read.wait()
            assert len([result async for result in stream]) == 39
    assert sorted(ran) == list(range(40))


class Stopped:
    """A session that is stopped in the middle of its first item, as by Ctrl-Z."""

    def __init__(self, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.began = trio.Event()
        self.goes_on = trio.Event()
        self.keys: list[str] = []
        self.error: BaseException | None = None

    async def work(self, item: int) -> str:
        self.keys.append(harness.current_run().idempotency_key)
        self.began.set()
        await self.goes_on.wait()
        return "late"

    async def run(self, journal: Journal) -> None:
        try:
            await harness.fan_out(
                called(self.work), [0], name="b", journal=journal, key=lambda item: item
            )
        except JournalLockedError as error:
            self.error = error

    def expire(self, journal: Journal) -> None:
        assert journal._leases is not None
        # It gives no more signs of life.
        journal._leases.renew = lambda database: True  # type: ignore[method-assign]
        change(
            self.path,
            f"UPDATE harness_holders SET until = 0 WHERE token = '{journal._owner.token}'",
        )


@pytest.mark.slow
@pytest.mark.real_clock
@pytest.mark.filterwarnings("ignore:.*was recorded by other code:harness.errors.HarnessWarning")
@pytest.mark.parametrize("by", ["a record", "an effect"])
async def test_what_a_stopped_session_records_late_is_refused(
    postgres_path: str, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    stopped = Stopped(postgres_path, monkeypatch)
    keys: list[str] = []

    async def work(item: int) -> str:
        keys.append(harness.current_run().idempotency_key)
        return "in time"

    with pytest.raises(JournalLockedError, match="taken over by another session"):
        async with join(postgres_path) as journal:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stopped.run, journal)
                await stopped.began.wait()
                stopped.expire(journal)
                [result] = await run_joined(postgres_path, work, 1)
                # The attempt of the other session counts, and the effects keep their keys.
                assert (result.value, result.attempts) == ("in time", 2)
                assert keys == stopped.keys
                if by == "an effect":
                    with pytest.raises(JournalLockedError, match="taken over by another session"):
                        await journal.intend("mail", "key")
                stopped.goes_on.set()
    if by == "a record":
        assert isinstance(stopped.error, JournalLockedError)
    with read_journal(postgres_path) as reader:
        [item] = reader.items("b")
        assert (item.plain_value(), item.attempts) == ("in time", 2)


@pytest.mark.slow
@pytest.mark.real_clock
async def test_what_one_session_gives_up_another_takes_at_once(postgres_path: str) -> None:
    """An item that was cancelled isn't done, and its session may go on for hours."""
    began = trio.Event()
    others = trio.Event()

    async def first(item: int) -> str:
        if item == 0:
            began.set()
            await trio.sleep_forever()
        await others.wait()
        return "first"

    async def second(item: int) -> str:
        return "second"

    async with trio.open_nursery() as nursery:

        async def run_first() -> None:
            async with join(postgres_path) as journal:
                async with harness.open_fan_out(
                    called(first),
                    range(2),
                    name="b",
                    limit=2,
                    journal=journal,
                    key=lambda item: item,
                    policy=BestEffort(),
                ) as stream:
                    await began.wait()
                    assert stream.cancel(0)
                    ended = {result.key: result.status async for result in stream}
            assert ended == {0: "cancelled", 1: "ok"}

        nursery.start_soon(run_first)
        await began.wait()

        async def run_second() -> None:
            values = (await run_joined(postgres_path, second, 2)).values()
            assert values == ["second", "first"]

        nursery.start_soon(run_second)

        async def taken() -> bool:
            query = "SELECT count(*) FROM harness_endings WHERE final = 1"
            return bool(await count(postgres_path, query) == [(1,)])

        await until(taken)
        others.set()


@pytest.mark.slow
@pytest.mark.real_clock
async def test_a_failure_is_everybodys_and_nobody_tries_again(postgres_path: str) -> None:
    """With retry_failed too: it is for failures of earlier sessions."""
    ran: list[int] = []

    async def work(item: int) -> str:
        ran.append(item)
        await trio.sleep(0.01)
        raise ValueError("no")

    results: list[Results[Any]] = []

    async def session(journal: Journal) -> None:
        results.append(
            await harness.fan_out(
                called(work),
                range(6),
                name="b",
                limit=1,
                journal=journal,
                key=lambda item: item,
                policy=BestEffort(),
                each=harness.Attempt(retry=Retry(2, first_delay=0.001)),
            )
        )

    # Both are there before anything fails.
    async with (
        join(postgres_path, retry_failed=True) as one,
        join(postgres_path, retry_failed=True) as other,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(session, one)
        nursery.start_soon(session, other)
    assert Counter(ran) == dict.fromkeys(range(6), 2)
    for one in results:
        assert [result.status for result in one] == ["failed"] * 6
        assert [result.attempts for result in one] == [2] * 6
    kinds = {type(result.error) for one in results for result in one}
    assert kinds == {ValueError, JournaledError}
    ran.clear()
    await run_joined(postgres_path, work, 6, retry_failed=True)
    assert Counter(ran) == dict.fromkeys(range(6), 1)
    with pytest.raises(FanOutError):
        async with join(postgres_path) as journal:
            await harness.fan_out(
                called(work), range(6), name="b", journal=journal, key=lambda item: item
            )


@pytest.mark.slow
@pytest.mark.real_clock
async def test_effects_of_many_sessions_get_along(postgres_path: str) -> None:
    """Each has its number, and what one has done the other doesn't do again."""
    done: list[str] = []

    async def effect(key: str) -> str:
        done.append(key)
        return key

    async with join(postgres_path) as one, join(postgres_path) as other:
        async with open_once(one) as first, open_once(other) as second:
            for number in range(3):
                await first(f"a{number}", effect)
                await second(f"b{number}", effect)
                assert await second(f"a{number}", effect) in done
    assert len(done) == len(set(done)) == 6


@pytest.mark.slow
@pytest.mark.real_clock
async def test_a_lost_connection_loses_no_lease(postgres_path: str) -> None:
    ran: list[int] = []

    async def work(item: int) -> int:
        ran.append(item)
        if item % 5 == 0:
            await trio.to_thread.run_sync(end_connections, postgres_path)
        return item

    results = await run_joined(postgres_path, work, 12, limit=2)
    assert results.values() == list(range(12))
    assert sorted(ran) == list(range(12))


@pytest.mark.slow
@pytest.mark.real_clock
async def test_a_server_that_was_away_for_longer_than_a_lease_ends_none(
    postgres_path: str,
) -> None:
    """Nobody could renew meanwhile, and whoever was back first took over what others had."""
    began, goes_on = trio.Event(), trio.Event()
    ran: list[str] = []

    async def first(item: int) -> str:
        ran.append("first")
        began.set()
        await goes_on.wait()
        return "first"

    async def second(item: int) -> str:
        ran.append("second")
        return "second"

    async def run(journal: Journal, work: Callable[[int], Awaitable[str]]) -> None:
        results = await harness.fan_out(
            called(work), [0], name="b", journal=journal, key=lambda item: item
        )
        assert results.values() == ["first"]

    async with join(postgres_path) as one, join(postgres_path) as other:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, one, first)
            await began.wait()
            change(postgres_path, "UPDATE harness_holders SET until = 0")
            end_connections(postgres_path)
            nursery.start_soon(run, other, second)

            async def asked() -> bool:
                return len(ran) > 1 or any(batch.held for batch in other._shared)

            await until(asked)
            goes_on.set()
    assert ran == ["first"]


@pytest.mark.slow
@pytest.mark.real_clock
@pytest.mark.parametrize("of", ["_write", "commit"])
async def test_answers_that_are_lost_lose_nothing(postgres_path: str, of: str) -> None:
    """What was committed as the connection went away is neither claimed nor recorded twice."""
    ran: list[int] = []

    async def work(item: int) -> int:
        ran.append(item)
        return item

    async with join(postgres_path) as journal:
        backend: Any = journal._writer._backend

        def losing_every_other_answer(method: Callable[..., None]) -> Callable[..., None]:
            calls = itertools.count()

            def called(*given: Any) -> None:
                method(*given)
                if next(calls) % 2 == 0:
                    backend._connection.close()
                    raise psycopg.OperationalError("the connection is lost")

            return called

        setattr(backend, of, losing_every_other_answer(getattr(backend, of)))
        results = await harness.fan_out(
            called(work), range(6), name="b", limit=2, journal=journal, key=lambda item: item
        )
        delattr(backend, of)
    assert results.values() == list(range(6))
    assert sorted(ran) == list(range(6))
    with read_journal(postgres_path) as reader:
        assert reader.totals("b").attempts == 6


@pytest.mark.slow
async def test_the_locks_of_a_stopped_session_last_no_longer_than_its_lease(
    postgres_path: str,
) -> None:
    """One that was stopped in the middle of a transaction held up all others until it went on."""
    async with join(postgres_path, lease=7) as journal:
        ended_after = await journal._writer.ask(
            lambda backend: backend.fetch("SHOW idle_in_transaction_session_timeout")
        )
    assert ended_after == [("7s",)]


@pytest.mark.slow
@pytest.mark.real_clock
async def test_an_async_source_is_shared_too(postgres_path: str) -> None:
    async def source() -> AsyncIterator[int]:
        for item in range(8):
            await trio.lowlevel.checkpoint()
            yield item

    async def work(item: int) -> int:
        await trio.sleep(0.001)
        return item

    async def session() -> None:
        async with join(postgres_path) as journal:
            results = await harness.fan_out(
                work, source(), name="b", limit=2, journal=journal, key=lambda item: item
            )
        assert results.values() == list(range(8))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(session)
        nursery.start_soon(session)


# Processes that are killed -----------------------------------------------------------------------

WORKER = """
import json, os, sys
import trio, harness
from harness.journal import open_journal

async def work(item):
    key = harness.current_run().idempotency_key
    with open(sys.argv[2], "a") as log:
        log.write(json.dumps([item, os.getpid(), key]) + "\\n")
    await trio.sleep(0.004 * (1 + item % 3))
    return 2 * item

async def main():
    async with open_journal(sys.argv[1], join=True, lease=4) as journal:
        results = await harness.fan_out(work, range(int(sys.argv[3])), name="b", limit=3,
                                        journal=journal, key=lambda item: item)
    print(json.dumps(results.values()))

trio.run(main)
"""


@pytest.mark.slow
@pytest.mark.real_clock
@pytest.mark.parametrize("seed", range(12 if FULL else 1))
def test_workers_that_are_killed_lose_nothing(
    postgres_path: str, tmp_path: Path, seed: int
) -> None:
    """Each item ends once, under the same key in every process that tried it."""
    chance = random.Random(seed)
    items, workers = 60, 2
    program, log = tmp_path / "worker.py", tmp_path / "log.txt"
    program.write_text(WORKER)
    log.touch()

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, program, postgres_path, log, str(items)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def output_of(number: int) -> bytes:
        while True:
            output, words = running[number].communicate(timeout=PATIENCE_SECONDS)
            if running[number].returncode == 0:
                return output
            # On a machine so busy that it could give no sign of life, it was taken for dead.
            assert b"taken over by another session" in words, words
            running[number] = start()

    running = [start() for _ in range(workers)]
    killed = 0
    try:
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        for after in sorted(chance.sample(range(3, 45), 8 if FULL else 2)):
            while log.read_bytes().count(b"\n") < after:
                assert time.monotonic() < give_up_at
                time.sleep(0.002)
            time.sleep(chance.random() * 0.01)
            victim = chance.randrange(workers)
            running[victim].send_signal(signal.SIGKILL)
            killed += running[victim].wait() == -signal.SIGKILL
            running[victim].communicate()
            running[victim] = start()
        outputs = [output_of(number) for number in range(workers)]
    finally:
        for worker in running:
            worker.kill()
            worker.communicate()
    assert killed
    assert [json.loads(output) for output in outputs] == [[2 * item for item in range(items)]] * 2
    tried = [json.loads(line) for line in log.read_text().splitlines()]
    assert {item for item, _, _ in tried} == set(range(items))
    assert len({(item, key) for item, _, key in tried}) == items
    with psycopg.connect(postgres_path) as connection:
        rows = connection.execute(
            "SELECT item, count(*) FROM harness_endings WHERE final = 1 GROUP BY item"
        ).fetchall()
    assert [count for _, count in rows] == [1] * items
    with read_journal(postgres_path) as reader:
        # Whatever was called is on record: nothing runs that no other process could know of.
        recorded = {int(item.key): item.attempts for item in reader.items("b")}
    calls = Counter(item for item, _, _ in tried)
    assert all(recorded[item] >= calls[item] for item in calls)
