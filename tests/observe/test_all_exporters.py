"""With every exporter on, no end of a run is lost, and nothing is kept of what is over."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.observe import Metrics, exporting, read_trace, record
from harness.policies import Attempt, Retry
from tests.scale import FULL
from tests.support.otlp import collecting

COUNT = 10_000 if FULL else 1_000

ENDINGS = ("ok", "failed", "timed_out", "cancelled")


class Kept(logging.Handler):
    """Keeps all records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.mark.slow
async def test_no_end_of_a_run_is_lost(tmp_path: Path, autojump_clock: MockClock) -> None:
    """However runs end: each has its line, its span and its place in the metrics."""
    handler = Kept()
    handler.addFilter(harness.LogFilter())
    logger = logging.getLogger("tests.exporters")
    logger.addHandler(handler)
    metrics = Metrics()
    starts = 0

    async def work(item: int) -> None:
        nonlocal starts
        starts += 1
        logger.warning("item %d", item)
        ending = ENDINGS[item % len(ENDINGS)]
        await trio.sleep(0.05)
        if ending == "failed":
            raise ConnectionError("busy")
        if ending == "cancelled":
            harness.current_run().cancel()
        if ending != "ok":
            await trio.sleep_forever()

    with collecting() as collector, harness.observing(metrics):
        async with record(tmp_path / "trace.jsonl"), exporting(collector.url) as spans:
            each = Attempt(retry=Retry(2, on=ConnectionError), timeout=1)
            policy = harness.BestEffort()
            await harness.fan_out(work, range(COUNT), limit=100, each=each, policy=policy)
        assert not spans._live
    logger.removeHandler(handler)

    assert starts == COUNT * 5 / 4
    assert len({vars(one)["run_id"] for one in handler.records}) == starts
    began = [line for line in read_trace(tmp_path / "trace.jsonl") if line["type"] == "run_started"]
    ended = [line for line in read_trace(tmp_path / "trace.jsonl") if line["type"] == "run_ended"]
    ids = {line["run_id"] for line in began}
    assert ids == {line["run_id"] for line in ended}
    assert len(ids) == len(began) == len(ended) == starts + 1
    assert {span.attributes["harness.run.id"] for span in collector.spans} == ids
    assert len(collector.spans) == starts + 1
    assert all(span.end >= span.start for span in collector.spans)
    statuses = {line["run_id"]: line["status"] for line in ended}
    for span in collector.spans:
        attributes = span.attributes
        assert attributes["harness.run.status"] == statuses[attributes["harness.run.id"]]
    assert metrics.items == dict.fromkeys(ENDINGS, COUNT // 4)
    assert sum(metrics.runs.values()) == starts + 1
    assert metrics.retries == COUNT / 4
    assert not metrics._runs
    assert not metrics._fan_outs
    assert not metrics._waits
