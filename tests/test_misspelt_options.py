"""Type checkers find a misspelt option, stages that don't fit, and deps of another type."""

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

DEPS = """
from typing import Any, Protocol

import harness
from harness import Run, current_run
from harness.agents import Agent
from harness.models import Model


class Database:
    def rows(self) -> int:
        return 3


class Postgres(Database):
    def vacuum(self) -> None: ...


class HasRows(Protocol):
    def rows(self) -> int: ...


def works_with_any(run: Run) -> None: ...
def works_with_database(run: Run[Database]) -> None: ...
def works_with_rows(run: Run[HasRows]) -> int:
    run.deps.vacuum()  # planted
    return run.deps.rows()
def needs_number(run: Run[int]) -> None: ...
def agent_for_postgres(agent: Agent[str, Postgres]) -> None: ...


async def main(model: Model, inherited: Run[Postgres]) -> None:
    async with harness.open_run("typed", deps=Postgres()) as run:
        run.deps.vacuum()
        run.deps.vacum()  # planted
        works_with_any(run)
        works_with_database(run)
        needs_number(run)  # planted
    async with harness.open_run("any") as run_of_any:
        needs_number(run_of_any)
    current_run().deps.anything()
    current_run(Database).deps.rows()
    current_run(Database).deps.vacuum()  # planted
    current_run(Database).deps = Database()  # planted
    needs_number(current_run(Database))  # planted
    works_with_rows(inherited)
    widened: Run[Any] = current_run()
    needs_number(widened)

    agent = Agent("desk", model=model, deps_type=Database)
    await agent.run("hello", deps=Postgres())
    await agent.run("hello")
    await agent.run("hello", deps=3)  # planted
    agent.stream("hello", deps="a database")  # planted
    agent_for_postgres(agent)
    agent_for_any: Agent[str] = Agent("any", model=model)
    await agent_for_any.run("hello", deps=3)
    numbers = Agent("numbers", model=model, output_type=int, deps_type=Database)
    length: int = (await numbers.run("hello")).output
    agent_for_postgres(numbers)  # planted
    Agent("wrong", model=model, deps_type=Database())  # planted
"""

CHECKERS = {
    "mypy": ["-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context"],
    "pyright": ["-m", "pyright", "--pythonpath", sys.executable],
}


@pytest.mark.slow
@pytest.mark.parametrize("planted", [PLANTED, MISFIT, DEPS], ids=["options", "stages", "deps"])
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
