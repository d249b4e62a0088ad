"""The window of a batch, and its forecast: before it and while it runs."""

from __future__ import annotations

import io
import json
import math
import random
import statistics
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from harness.cli import _forecast, _run, main
from harness.cli._forecast import Forecaster, Terms, in_words
from harness.cli._progress import Progressed
from harness.cli._records import Record
from harness.cli._result_lines import ResultLines
from harness.cli._run import Work, policy_named, run_batch
from harness.cli._source import Reading, RecordSource
from harness.cli._summary import Report, summary_text
from harness.cli._writer import LineWriter
from harness.limits import Limiter
from harness.observe._forecast import Forecast
from harness.policies import Attempt


@attrs.define(eq=False)
class Shown:
    """A display that hands each progress to whoever wants it."""

    shown: Callable[[Progressed], object] = lambda progressed: None
    said: list[str] = attrs.Factory(list)

    def show(self, progressed: Progressed) -> None:
        self.shown(progressed)

    def say(self, text: str) -> None:
        self.said.append(text)

    def intervals(self) -> Iterator[float]:
        while True:
            yield 1.0


@attrs.define(eq=False)
class Ran:
    report: Report
    lines: list[dict[str, Any]]
    said: list[str]


async def run(
    function: Callable[[Any], Awaitable[Any]],
    values: list[Any],
    *,
    limit: int = 10,
    limiter: Callable[[], Limiter] | None = None,
    tokens: Callable[[Record], int] | None = None,
    display: Shown | None = None,
    is_file: bool = True,
    max_failures: float | None = None,
    **terms: Any,
) -> Ran:
    """Run a batch on ``values``, which come from a file or else from a pipe."""
    own = None if limiter is None else limiter()
    send, receive = trio.open_memory_channel[list[Record] | Exception](math.inf)
    records = [Record(i, i + 1, value, f"r{i}", tokens=100) for i, value in enumerate(values)]
    with send:
        for at in range(0, len(records), 50):
            send.send_nowait(records[at : at + 50])
    size = 10 * len(records)
    reading = Reading(size_bytes=size, bytes_read=size, records=len(records), tokens=100.0)
    if is_file:
        reading.total = len(records)
    else:
        reading.size_bytes = None
    work = Work(
        function=function,
        policy=policy_named("best-effort", skip_bad=False, max_failures=max_failures),
        limit=limit,
        attempt=Attempt(limiter=own, tokens=tokens),
        ordered=False,
        grace=30.0,
        limiter=own,
        terms=Terms(limit=limit, limiter=limiter, tokens=tokens, **terms),
    )
    output, display = io.BytesIO(), display or Shown()
    lines = ResultLines(LineWriter(output))
    report = await run_batch(work, RecordSource(receive), reading, lines, display)
    return Ran(report, [json.loads(line) for line in output.getvalue().splitlines()], display.said)


async def nap(seconds: float) -> float:
    await trio.sleep(seconds)
    return seconds


# The forecast ----------------------------------------------------------------------------------


def forecast_and_truth(
    seed: int, limiter: Callable[[], Limiter] | None, monkeypatch: pytest.MonkeyPatch
) -> tuple[Forecast, float]:
    """Run 600 items on a virtual clock; return the forecast at 5 %, and how long they took."""
    draw = random.Random(seed)
    seconds = [draw.lognormvariate(3, 0.7) for _ in range(600)]
    used = [round(draw.lognormvariate(7, 0.5)) for _ in range(600)]
    made: list[Forecaster] = []
    found: list[Forecast] = []

    class Noted(Forecaster):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

        def _knows_enough(self) -> bool:
            if found or self._ended < 30:
                return False
            found.append(self.now)  # type: ignore[arg-type]  # Replaced below.
            return True

    monkeypatch.setattr(_run, "Forecaster", Noted)

    def shown(progressed: Progressed) -> None:
        if found and made[0].now is not None and found[0] is not made[0].now:
            found[:] = found if len(found) > 1 else [made[0].now, made[0].now]

    tokens = None if limiter is None else lambda record: used[record.index]
    batch = partial(run, nap, seconds, limit=20, limiter=limiter, tokens=tokens)
    ran = trio.run(
        partial(batch, display=Shown(shown)), clock=MockClock(autojump_threshold=0)
    )
    assert ran.report.tally.ok == 600
    return found[0], ran.report.seconds


@pytest.mark.long
@pytest.mark.parametrize(
    "limiter",
    [None, partial(Limiter, tokens_per_minute=40_000)],
    ids=["the limit binds", "tokens bind"],
)
def test_after_five_percent_the_range_holds_in_18_of_20_seeds(
    limiter: Callable[[], Limiter] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_forecast, "_FIRST_LOOK_SECONDS", 2.0)
    held = 0
    off: list[float] = []
    for seed in range(20):
        found, took = forecast_and_truth(seed, limiter, monkeypatch)
        held += found.low <= took <= found.high
        off.append(abs(found.seconds / took - 1))
    off.sort()
    print(f"{held} of 20; the middle is off by {statistics.median(off):.1%}, {off[-1]:.1%} at most")
    assert held >= 18
    assert statistics.median(off) < 0.15
