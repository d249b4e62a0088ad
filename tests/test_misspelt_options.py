"""A misspelt option is found by type checkers, wherever it is between a call and the engine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PLANTED = """
from typing import Any

import harness
from harness.fanout._assemble import engine_for
from harness.fanout._attempts import Attempts
from harness.fanout._engine import Engine
from harness.fanout._fan_out import gather
from harness.fanout._plan import Plan
from harness.fanout._stream import FanOutStream
from harness.flow import Pipeline, Router, stage


async def function(item: int) -> int:
    return item


Pipe = Pipeline[int, int]


async def main(plan: Plan, parts: Any, pipeline: Pipe, router: Router[int, int]) -> None:
    await harness.fan_out(function, [1], witin=3)  # planted
    harness.open_fan_out(function, [1], orderd=True)  # planted
    await pipeline.run([1], polcy=harness.BestEffort())  # planted
    pipeline.open([1], widow=3)  # planted
    await router.run([1], prioritty=abs)  # planted
    router.open([1], kep=True)  # planted
    stage(function, limt=3)  # planted
    Plan(call="fan_out", function=function, jornal=None)  # planted
    await gather(plan, [1], wrk=parts)  # planted
    engine_for(plan, [1], jion=parts, sink=parts)  # planted
    Engine(plan, parts, fed=parts, work=parts, ledger=None, join=parts, sink=parts)  # planted
    FanOutStream[int](plan, [1], newjob=parts)  # planted
    Attempts[Any, Any](function, parts, items_startd=parts, closing=parts)  # planted
"""

MISFIT = """
from harness.flow import Pipeline, stage


async def fetch(address: str) -> bytes:
    return address.encode()


async def count(words: list[str]) -> int:
    return len(words)


Pipeline(fetch, count)  # planted
Pipeline(stage(fetch, limit=3), stage(count, limit=2))  # planted
"""

CHECKERS = {
    "mypy": ["-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context"],
    "pyright": ["-m", "pyright", "--pythonpath", sys.executable],
}


@pytest.mark.slow
@pytest.mark.parametrize("planted", [PLANTED, MISFIT], ids=["options", "stages"])
@pytest.mark.parametrize("checker", CHECKERS)
def test_each_planted_mistake_is_found(checker: str, planted: str, tmp_path: Path) -> None:
    """And nothing else in the file: its other lines are right."""
    pytest.importorskip(checker, reason="the type checkers are extras of `dev`")
    script = tmp_path / "planted.py"
    script.write_text(planted)
    told = subprocess.run(
        [sys.executable, *CHECKERS[checker], str(script)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = {int(line) for line in re.findall(r"planted\.py:(\d+):.*error", told.stdout)}
    expected = {
        number for number, line in enumerate(planted.splitlines(), 1) if "# planted" in line
    }
    assert found == expected, told.stdout + told.stderr
