"""Hostile names, errors, values and messages reach every way out of a program as harmless text.

One program has them wherever a user's text can be; what each exporter makes of it is looked at.
"""

from __future__ import annotations

import io
import json
import logging

import pytest
import trio
from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console
from trio.testing import MockClock

import harness
from harness.agents import Agent, tool
from harness.cli._top import drawn
from harness.limits import Limiter
from harness.models import ModelResponse, ScriptedModel, ToolCall
from harness.observe import (
    Metrics,
    PrometheusCollector,
    analyse,
    export_chrome,
    exporting,
    plan,
    record,
    write_report,
)
from harness.observe._live import Live, pictured
from harness.policies import Attempt, BestEffort, Retry
from tests.support.otlp import collecting

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("hostile")]

KEY = "sk-proj-abcdefghijklmnopqrst"
CONTROLS = "\x1b]0;own\x07\x1b[31m\x00\x7f\x9b\u202e\r\n\ud800"
HOSTILE = (
    f"</script><img src=x onerror=alert(1)>{CONTROLS}'\"`[bold] api_key={KEY} "
    f"Authorization: Bearer {KEY}x " + "x" * 1_000_000
)


class Refused(Exception):
    """An error as clients raise it, with the request's headers."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.headers = {"Authorization": f"Bearer {KEY}", "x-api-key": KEY}


Named = type(f"Refused\x1b[31m<b>{KEY}", (Refused,), {})


async def work(item: int) -> str:
    logging.getLogger("tests.hostile").warning("asking")
    await trio.sleep(0.01)
    if item == 1:
        raise Named(HOSTILE)
    if item == 2:
        raise ExceptionGroup(HOSTILE, [Refused({"Authorization": f"Bearer {KEY}"}), Named(HOSTILE)])
    return HOSTILE


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return all that a program with hostile text everywhere shows, by who shows it."""
    found: dict[str, str] = {}
    path = tmp_path_factory.mktemp("hostile")
    logged = io.StringIO()
    handler = logging.StreamHandler(logged)
    handler.addFilter(harness.LogFilter())
    handler.setFormatter(logging.Formatter("%(run_path)s: %(message)s"))
    logger = logging.getLogger("tests.hostile")
    metrics = Metrics()
    limiter = Limiter(HOSTILE[:2_000], requests_per_minute=6_000)

    async def look_up(x: str) -> str:
        raise Refused(HOSTILE)

    calls = (ToolCall(f"c{HOSTILE}", "look_up", {"x": HOSTILE}),)
    model = ScriptedModel([ModelResponse("", tool_calls=calls), HOSTILE], name=HOSTILE)
    agent = Agent(HOSTILE, model=model, tools=[tool(look_up)])

    async def program(live: Live) -> None:
        each = Attempt(limiter=limiter, retry=Retry(2))
        async with harness.open_run(HOSTILE, tags={HOSTILE: HOSTILE}):
            results = await harness.fan_out(
                work, range(3), name=HOSTILE, policy=BestEffort(), each=each
            )
            found["note"] = "\n".join(getattr(results[1].error, "__notes__", ()))
            await agent.run(HOSTILE)
            found["dump"] = harness.dump()
            picture = live.picture()
            found["picture"] = json.dumps(picture, ensure_ascii=False)
            console = Console(file=io.StringIO(), force_terminal=True, width=200)
            console.print(drawn(picture, rows=None, width=200))
            assert isinstance(console.file, io.StringIO)
            found["top"] = console.file.getvalue()

    async def main() -> None:
        with collecting() as collector, harness.observing(metrics):
            async with (
                record(path / "trace", values=True, messages=True),
                exporting(collector.url, metrics=metrics),
            ):
                with pictured("a test", [limiter]) as live:
                    await program(live)
        found["spans"] = b"".join(collector.raw).decode("latin-1")

    logger.addHandler(handler)
    trio.run(main, clock=MockClock(autojump_threshold=0))
    logger.removeHandler(handler)
    found["log"] = logged.getvalue()
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(metrics))
    found["metrics"] = generate_latest(registry).decode()
    found["trace"] = (path / "trace").read_text()
    write_report(path / "trace", path / "report")
    found["report"] = (path / "report").read_text()
    export_chrome(path / "trace", path / "chrome")
    found["chrome"] = (path / "chrome").read_text()
    found["analysis"] = analyse(path / "trace").constraint
    found["plan"] = "\n".join(plan(path / "trace", items=10, limit=2).doubts)
    return found


NAMES = (
    *("note", "dump", "picture", "top", "spans", "log", "metrics", "trace", "report"),
    *("chrome", "analysis", "plan"),
)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_shown_obeys_nobody_and_keeps_secrets(shown: dict[str, str], name: str) -> None:
    text = shown[name]
    assert KEY not in text
    assert "abcdefghijkl" not in text
    for harmful in ("\x1b]0;", "\x07", "\x00", "\x7f", "\u202e", "\r", "\ud800"):
        if name != "spans" or harmful == "\x1b]0;":  # Those are binary, but for their text.
            assert harmful not in text
    if name == "top":
        text = text.replace("\x1b[0m", "").replace("\x1b[1m", "").replace("\x1b[1;", "")
    if name != "spans":
        assert "\x1b[31m" not in text
        assert "\x9b" not in text
    assert len(text) < 200_000
