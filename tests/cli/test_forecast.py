"""The window of a batch, and its forecast: before it and while it runs."""

from __future__ import annotations

import io
import json
import math
import random
import re
import statistics
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

import harness
from harness.cli import _forecast, _run, main
from harness.cli._forecast import Forecaster, Terms, in_words
from harness.cli._option_values import duration
from harness.cli._progress import Progressed
from harness.cli._records import Record
from harness.cli._result_lines import ResultLines
from harness.cli._run import Work, policy_named, run_batch
from harness.cli._source import Reading, RecordSource
from harness.cli._summary import Report, summary_text
from harness.cli._watch import lines
from harness.cli._writer import LineWriter
from harness.limits import Limiter
from harness.models import FunctionModel, Message, ModelRequest, ModelResponse, Usage
from harness.observe._forecast import Forecast, Seen
from harness.policies import Attempt
from tests.cli.test_watch import progress
from tests.scale import scaled


@pytest.fixture(autouse=True)
def forecasts_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a tenth of a second of real time, and virtual hours are short."""
    monkeypatch.setattr(_forecast, "_LOOK_SECONDS", 200.0)


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
    own: Limiter | None = None,
    **terms: Any,
) -> Ran:
    """Run a batch on ``values``, which come from a file or else from a pipe."""
    own = own or (None if limiter is None else limiter())
    send, receive = trio.open_memory_channel[list[Record] | Exception](math.inf)
    records = [Record(i, i + 1, value, f"r{i}", tokens=100) for i, value in enumerate(values)]
    with send:
        for at in range(0, len(records), 50):
            send.send_nowait(records[at : at + 50])
    size = 10 * len(records)
    reading = Reading(
        size_bytes=size, bytes_read=size, records=len(records), tokens=100 * len(records)
    )
    if is_file:
        reading.total = len(records)
    else:
        reading.size_bytes = None
    work = Work(
        function=function,
        policy=policy_named("best-effort", skip_bad=False, max_failures=max_failures),
        limit=limit,
        attempt=Attempt() if "is_agent" in terms else Attempt(limiter=own, tokens=tokens),
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
    ran = trio.run(partial(batch, display=Shown(shown)), clock=MockClock(autojump_threshold=0))
    assert ran.report.tally.ok == 600
    return found[0], ran.report.seconds


@pytest.mark.long
@pytest.mark.parametrize(
    "limiter",
    [None, partial(Limiter, tokens_per_minute=40_000)],
    ids=["the limit binds", "tokens bind"],
)
def test_a_batch_knows_after_five_percent_when_it_will_be_over(
    limiter: Callable[[], Limiter] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With full counts in 18 of 20 seeds, and so do the forecasts of `harness.observe` always."""
    monkeypatch.setattr(_forecast, "_FIRST_LOOK_SECONDS", 2.0)
    seeds = scaled(3, full=20)
    held = 0
    off: list[float] = []
    for seed in range(seeds):
        found, took = forecast_and_truth(seed, limiter, monkeypatch)
        held += found.low <= took <= found.high
        off.append(abs(found.seconds / took - 1))
    middle = statistics.median(off)
    print(f"held {held} of {seeds}; the middle is off by {middle:.1%}, at most {max(off):.1%}")
    assert held >= 0.9 * seeds
    assert middle < 0.2


@pytest.mark.slow
async def test_progress_shows_the_forecast_and_the_summary_has_the_first(
    autojump_clock: MockClock,
) -> None:
    seen: list[str | None] = []
    display = Shown(lambda progressed: seen.append(progressed.forecast))
    ran = await run(nap, [30.0] * 200, display=display, within=7200.0)
    assert ran.report.seconds == 600
    assert seen[0] is None, "nothing has ended"
    assert seen[-1] == "10 min needed, 2 h given: the limit binds"
    assert ran.said == ["forecast: 10 min needed, 2 h given: the limit binds"]
    assert ran.report.forecast_seconds == pytest.approx(600, rel=0.01)


async def test_a_short_batch_without_a_window_is_told_no_forecast(
    autojump_clock: MockClock,
) -> None:
    ran = await run(nap, [1.0] * 200)
    assert ran.said == []
    assert ran.report.forecast_seconds == pytest.approx(20, rel=0.01)


@pytest.mark.slow
async def test_limits_are_known_before_any_item_has_ended(
    autojump_clock: MockClock,
) -> None:
    limiter = partial(Limiter, tokens_per_minute=600)
    ran = await run(
        nap, [1.0] * 120, limiter=limiter, tokens=lambda record: record.tokens, within=600.0
    )
    assert ran.said[0] == (
        "forecast: at least 20 min needed, 10 min given: tokens bind; "
        "6,000 tokens short, for 60 items"
    )


@pytest.mark.slow
async def test_earlier_nights_say_how_long_it_takes_before_it_begins(
    autojump_clock: MockClock,
) -> None:
    earlier = tuple(Seen(30.0) for _ in range(50))
    ran = await run(nap, [30.0] * 200, earlier=earlier, within=300.0)
    assert ran.said[0] == (
        "forecast: 10 min needed, 5 min given: the limit binds; 100 items won't fit"
    )


@pytest.mark.slow
async def test_an_agents_calls_are_forecast_by_what_they_really_used(
    autojump_clock: MockClock,
) -> None:
    """Two calls an item; its time has waits for the limiter in it, which will be others later."""
    limiter = partial(Limiter, tokens_per_minute=6_000)
    own = limiter()

    async def answer(request: ModelRequest) -> ModelResponse:
        await trio.sleep(2)
        return ModelResponse("yes", usage=Usage(150, 50))

    model = FunctionModel(answer, name="it", limiter=own)

    async def work(item: int) -> None:
        for _ in range(2):
            await model.complete(ModelRequest([Message("user", "is it so? " * 60)]))

    made: list[str] = []
    display = Shown(lambda progressed: made.append(progressed.forecast or ""))
    ran = await run(
        work, list(range(300)), limit=10, limiter=limiter, own=own, display=display, is_agent=True
    )
    told = next(words for words in made if words and "at least" not in words)
    assert ran.report.seconds == pytest.approx(1_200, rel=0.05)
    assert re.fullmatch(r"(19 to )?(19|20) min needed: tokens bind", told)


def forecasted(**given: Any) -> Forecast:
    known: dict[str, Any] = {
        "seconds": 9 * 3600.0,
        "low": 9 * 3600.0,
        "high": 9 * 3600.0,
        "binding": "tokens",
        "per_second": 350 / 3600,
        "tokens_each": 2_000.0,
    }
    return Forecast(**(known | given))


def test_a_forecast_says_what_binds_and_what_is_short() -> None:
    given = 6 * 3600.0
    words = "9 h needed, 6 h given: tokens bind; 2.1 M tokens short, for 1,050 items"
    assert in_words(forecasted(), given=given) == words
    ranged = in_words(forecasted(low=8.7 * 3600, high=9.3 * 3600), given=given)
    assert ranged == f"8.7 to 9.3 h{words.removeprefix('9 h')}"
    assert in_words(forecasted(is_least=True), given=given) == f"at least {words}"
    assert in_words(forecasted(), given=10 * 3600.0) == "9 h needed, 10 h given: tokens bind"
    assert in_words(forecasted(), given=None) == "9 h needed: tokens bind"
    requests = in_words(forecasted(binding="requests", calls_each=2.0), given=given)
    assert requests.endswith(": requests bind; 2,100 requests short, for 1,050 items")


# The window ------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_what_does_not_fit_into_the_window_is_skipped_and_named(
    autojump_clock: MockClock,
) -> None:
    ran = await run(nap, [10.0] * 400, limit=10, within=105.0)
    assert ran.report.seconds == pytest.approx(100)
    status = [line["status"] for line in ran.lines]
    assert status.count("ok") == 100
    assert status.count("skipped") == 300 == ran.report.did_not_fit
    assert status.count("cancelled") == 0, "what is started can still end"
    assert sorted(line["index"] for line in ran.lines) == list(range(400)), "each is named"
    skipped = next(line for line in ran.lines if line["status"] == "skipped")
    assert skipped["error"].endswith("never started: the window of 1.8 min is over")
    assert ran.report.exit_status == 1
    words = summary_text(ran.report, output="out.jsonl", journal="run.db")
    assert "the window of 1.8 min is over, and 300 records didn't fit: r100, r101, r102, ..." in (
        words
    )
    assert "unfinished: run the same command with --resume to go on; run.db has the rest" in words


@pytest.mark.slow
async def test_the_window_cuts_what_takes_longer_than_any_before(
    autojump_clock: MockClock,
) -> None:
    ran = await run(nap, [10.0] * 45 + [1_000.0] * 5 + [10.0] * 50, limit=10, within=105.0)
    assert ran.report.seconds == pytest.approx(105), "not a second more"
    cut = {line["index"] for line in ran.lines if line["status"] == "cancelled"}
    assert cut == {45, 46, 47, 48, 49}


async def test_what_is_in_flight_is_not_asked_to_stop_before_the_end(
    autojump_clock: MockClock,
) -> None:
    """An agent that is asked to ends after its turn, and its answer is lost."""
    asked: list[bool] = []

    async def work(seconds: float) -> None:
        await trio.sleep(seconds)
        asked.append(harness.current_run().stopping)

    ran = await run(work, [10.0] * 100, limit=10, within=55.0)
    assert asked == [False] * 50
    assert ran.report.tally.ok == 50


async def test_a_batch_that_fits_into_its_window_is_as_without(autojump_clock: MockClock) -> None:
    ran = await run(nap, [10.0] * 100, limit=10, within=105.0)
    assert ran.report.exit_status == 0
    assert (ran.report.window_over, ran.report.did_not_fit) == (None, None)


async def test_of_a_pipe_the_rest_is_not_read(autojump_clock: MockClock) -> None:
    """It may never end."""
    ran = await run(nap, [10.0] * 400, limit=10, within=105.0, is_file=False)
    assert {line["status"] for line in ran.lines} == {"ok"}
    assert ran.report.exit_status == 1
    words = summary_text(ran.report, output="-")
    assert "the window of 1.8 min is over, and what was not read didn't fit" in words


async def test_too_many_failures_stop_the_batch_and_are_told(autojump_clock: MockClock) -> None:
    async def work(number: int) -> None:
        await trio.sleep(1)
        if number % 10 == 0:
            raise ValueError(number)

    ran = await run(work, list(range(100)), limit=1, max_failures=0.05, within=1_000.0)
    assert ran.report.tally.done == 20, "judged from the 20th on"
    assert ran.report.exit_status == 1
    words = summary_text(ran.report, output="out.jsonl", journal="run.db")
    assert "nothing more was started: 2 of 20 items failed, with max_failures=0.05" in words
    assert "--resume" in words


# The command -----------------------------------------------------------------------------------

AGENT = """
import trio

async def answer(record):
    with open("calls.txt", "a") as calls:
        print(record["id"], file=calls)
    await trio.sleep(0.02)
    return record["id"]
"""


@pytest.fixture
def folder(clean_imports: Path) -> Path:
    (clean_imports / "agent.py").write_text(AGENT)
    rows = "".join(f"{number}\n" for number in range(40))
    (clean_imports / "in.csv").write_text(f"id\n{rows}")
    return clean_imports


def batch(*arguments: str) -> int:
    given = "batch agent.py:answer --input in.csv --key id --output out.jsonl --limit 1"
    return main([*given.split(), *arguments])


def test_a_dry_run_forecasts_without_a_call(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = ["--tpm", "1000", "--tokens", "500"]
    assert batch("--dry-run", "--within", "15m", *limits) == 0
    assert (
        "  time    at least 20 min needed, 15 min given: tokens bind; "
        "5,000 tokens short, for 10 items\n" in capsys.readouterr().out
    )
    assert not (folder / "calls.txt").exists()


@pytest.mark.slow
def test_a_window_that_is_too_short_is_gone_on_with(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next session runs only what is left, and its dry run knows what items take."""
    kept = ["--journal", "run.db", "--summary", "sum.json"]
    assert batch("--within", "0.3s", *kept) == 1
    summary = json.loads(Path("sum.json").read_text())
    assert summary["window_over"] == "the window of 0.3 s is over"
    assert summary["did_not_fit"] == 40 - summary["ok"] > 0
    assert "go on; run.db has the rest" in capsys.readouterr().err
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert len(lines) == 40
    assert batch("--resume", "--quiet", *kept) == 0
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [line["status"] for line in lines] == ["ok"] * 40
    calls = Path("calls.txt").read_text().split()
    assert len(calls) <= 41, "only one that the window cut short is called again"
    assert set(calls) == {f"{number}" for number in range(40)}
    with open("in.csv", "a") as rows:
        rows.write("40\n41\n")
    assert batch("--dry-run", "--resume", *kept) == 0
    assert "  time    " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--within", "6 hours"], "6 hours is not a time above 0"),
        (["--within", "0h"], "0h is not a time above 0"),
        (["--max-failures", "0.05"], "0.05 is neither a whole number"),
        (["--max-failures", "100%"], "100% is neither a whole number"),
        (["--max-failures", "5%", "--policy", "fail-fast"], "don't go together"),
    ],
)
def test_what_makes_no_sense_is_refused(
    given: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert batch(*given) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (folder / "calls.txt").exists()


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("6h", 21_600), ("90m", 5_400), ("1h30m", 5_400), ("45", 45), ("2d", 172_800)],
)
def test_a_time_is_given_with_units(given: str, seconds: float) -> None:
    assert duration(given) == seconds


def test_watching_shows_the_forecast() -> None:
    forecast = "8.7 to 9.3 h needed, 6 h given: tokens bind"
    assert f"forecast: {forecast}" in lines(progress(forecast=forecast), None)
