"""`LogFilter` puts the run's id and path on standard log records."""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import structlog
import trio
from trio.testing import MockClock

import harness
from harness.flow import Pipeline, stage


class Records(logging.Handler):
    """Keep records and the lines a formatter makes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.lines: list[str] = []
        self.setFormatter(logging.Formatter("[%(run_id)s %(run_path)s] %(message)s"))
        self.addFilter(harness.LogFilter())

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.lines.append(self.format(record))


logger = logging.getLogger("tests.log_filter")


@pytest.fixture
def records() -> Iterator[Records]:
    handler = Records()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)


async def test_records_say_which_run_they_come_from(records: Records) -> None:
    async with harness.open_run("nightly") as outer:
        logger.info("one")
        async with harness.open_run("ticket-17") as inner:
            logger.info("two")
    assert records.lines == [f"[{outer.id} nightly] one", f"[{inner.id} nightly/ticket-17] two"]


async def test_outside_of_any_run_a_format_that_names_the_run_still_works(
    records: Records,
) -> None:
    logger.info("hello")
    assert len(records.lines) == 1
    assert records.lines[0].endswith("hello")
    assert hasattr(records.records[0], "run_id")
    assert hasattr(records.records[0], "run_path")
    assert hasattr(records.records[0], "run_attempt")


def test_outside_of_trio_too(records: Records) -> None:
    logger.info("hello")
    assert len(records.lines) == 1


async def test_records_of_tasks_side_by_side_are_not_mixed_up(
    records: Records, autojump_clock: MockClock
) -> None:
    async def job(name: str) -> None:
        async with harness.open_run(name):
            for _ in range(3):
                await trio.sleep(1)
                logger.info(name)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(job, f"job-{number}")
    assert len(records.records) == 30
    assert all(vars(record)["run_path"] == record.getMessage() for record in records.records)


async def test_a_record_of_a_worker_thread_says_the_run(records: Records) -> None:
    async with harness.open_run("job"):
        await trio.to_thread.run_sync(logger.info, "from the thread")
    assert vars(records.records[0])["run_path"] == "job"


@pytest.mark.strays
async def test_a_stray_logs_under_the_run_it_came_from(
    records: Records, autojump_clock: MockClock
) -> None:
    async def stray() -> None:
        await trio.sleep(1)
        logger.info("late")

    async with trio.open_nursery() as nursery:
        async with harness.open_run("job"):
            nursery.start_soon(stray)
    assert vars(records.records[0])["run_path"] == "job"


async def test_the_filter_on_a_logger_works_as_on_a_handler() -> None:
    log_filter = harness.LogFilter()
    record = logger.makeRecord("tests", logging.INFO, __file__, 1, "hello", (), None)
    async with harness.open_run("job") as run:
        assert log_filter.filter(record)
    assert (vars(record)["run_id"], vars(record)["run_path"]) == (run.id, "job")


async def test_records_say_which_attempt_they_come_from(
    records: Records, autojump_clock: MockClock
) -> None:
    """Of a retry, and of runs inside it; the log of three attempts is one story otherwise."""

    async def flaky(item: str) -> str:
        attempt = harness.current_run().attempt
        logger.info("asked")
        async with harness.open_run("inside"):
            logger.info("inside")
        if attempt < 3:
            raise ConnectionError("busy")
        return item

    each = harness.Attempt(retry=harness.Retry(3))
    await harness.fan_out(flaky, ["a"], each=each, name="batch")
    said = [(vars(one)["run_path"], vars(one)["run_attempt"]) for one in records.records]
    assert said == [(path, n) for n in (1, 2, 3) for path in ("batch/0", "batch/0/inside")]


async def test_records_say_which_attempt_at_a_stage_they_come_from(
    records: Records, autojump_clock: MockClock
) -> None:
    """There the attempts share a run, so the run alone doesn't tell them apart."""

    async def flaky(item: str) -> str:
        logger.info("asked")
        if harness.current_run().attempt < 2:
            raise ConnectionError("busy")
        return item

    async def steady(item: str) -> str:
        logger.info("steady")
        return item

    each = harness.Attempt(retry=harness.Retry(2))
    await Pipeline(stage(flaky, each=each), steady).run(["a"])
    said = [(one.getMessage(), vars(one)["run_attempt"]) for one in records.records]
    assert said == [("asked", 1), ("asked", 2), ("steady", 1)]


async def test_a_hedge_is_an_attempt_of_its_own(
    records: Records, autojump_clock: MockClock
) -> None:
    async def slow(item: str) -> str:
        logger.info("asked")
        await trio.sleep(5)
        return item

    each = harness.Attempt(hedge=harness.Hedge(after=1, budget=1))
    await harness.fan_out(slow, ["a"], each=each)
    assert [vars(one)["run_attempt"] for one in records.records] == [1, 2]


async def test_structlog_entries_say_the_run_too(autojump_clock: MockClock) -> None:
    entries: list[MutableMapping[str, Any]] = []

    def keep(logger: Any, name: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        entries.append(dict(entry))
        raise structlog.DropEvent

    log = structlog.wrap_logger(None, processors=[harness.runs.add_run, keep])
    log.info("outside")
    async with harness.open_run("job") as run:
        log.info("inside", run_path="the caller's own")
    assert entries[0] == {"event": "outside"}
    assert entries[1] == {
        "event": "inside",
        "run_id": run.id,
        "run_path": "the caller's own",
        "run_attempt": 1,
    }
