"""The kit is for any program: it loads no agent and no model, and needs its own extra alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.scale import PATIENCE_SECONDS

PROGRAM = """\
import asyncio, importlib, sys, threading

# What other extras bring.
ABSENT = {
    "anthropic", "anyio", "click", "h11", "httpx", "mcp", "model2vec", "msgspec", "openai",
    "psycopg", "pydantic", "rich", "starlette", "xllamacpp",
}

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())

from harness.errors import ScheduleError
from harness.testing.audit import audit_source

for folder in ("", ".audit", ".ghostwriting", ".strategies"):
    module = importlib.import_module(f"harness.testing{folder}")
    for name in module.__all__:
        getattr(module, name)

from harness.testing import assert_isolated, assert_linearizable, explore_schedules

current = {}

async def answer(question):
    current["question"] = question
    await asyncio.sleep(0)
    return current["question"]

class Counter:
    count = 0
    def increase(self):
        self.count += 1
        return self.count

@explore_schedules
def explored():
    counter = Counter()
    threads = [threading.Thread(target=counter.increase) for _ in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert counter.count == 2

def fails(work):
    try:
        work()
    except ScheduleError:
        return True

assert fails(lambda: asyncio.run(assert_isolated(answer, ["a", "b"])))
assert fails(lambda: assert_linearizable(Counter, [Counter.increase]))
assert fails(explored)
assert audit_source("seen = []\\nasync def f(x):\\n    seen.append(x)\\n")
loaded = {".".join(name.split(".")[:2]) for name in sys.modules if name.startswith("harness.")}
print(*sorted(loaded & {f"harness.{part}" for part in ("agents", "models", "journal", "flow")}))
"""


@pytest.mark.slow
def test_the_kit_works_with_its_own_extra_and_loads_no_agent() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "\n"
