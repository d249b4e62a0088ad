"""The programs of the comparison, what they print, and the record of it.

A program prints lines of the form ``what: value``. A line that begins with ``~`` is measured in
real time, so it differs from one run to the next.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
RECORD = FOLDER / "record.json"

PLACES = {
    "here": ("harness", "harness", "trio-harness"),
    "on_trio": ("trio nurseries", "trio", "trio"),
    "on_anyio": ("anyio", "anyio", "anyio"),
    "on_aiometer": ("aiometer", "aiometer", "aiometer"),
    "on_asyncio": ("asyncio.TaskGroup", "asyncio", ""),
    "on_pydantic_ai": ("pydantic-ai", "pydantic_ai", "pydantic-ai-slim"),
    "on_openai_agents": ("openai-agents", "agents", "openai-agents"),
    "on_inspect_ai": ("inspect_ai", "inspect_ai", "inspect-ai"),
    "on_langgraph": ("LangGraph", "langgraph.graph", "langgraph"),
    "on_litellm": ("litellm", "litellm", "litellm"),
    "on_ray": ("Ray", "ray", "ray"),
    "on_dbos": ("DBOS", "dbos", "dbos"),
}
"""By the name of a program's file: the place's name, its module, and its distribution."""

FEATURES = (
    "isolation",
    "cancel",
    "shared_call",
    "failures",
    "limits",
    "resume",
    "workers",
    "approval",
    "source",
    "schedules",
    "seeing",
    "offers",
)

MEASURED = "≈ "

QUIET = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Its processes take a while to start on a busy machine.
    "RAY_raylet_start_wait_time_s": "200",
    # Else it fetches prices, and inspect_ai looks for a newer version of itself.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LANGSMITH_TRACING": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "PYTHONWARNINGS": "ignore",
}

Printed = dict[str, str]


def programs(feature: str) -> list[str]:
    """Return the places that have a program for a feature, in the order of the tables."""
    return [place for place in PLACES if (FOLDER / feature / f"{place}.py").exists()]


def parsed(output: str) -> Printed:
    """Return what a program printed, by what it is."""
    printed: Printed = {}
    for line in output.splitlines():
        what, colon, value = line.partition(": ")
        if colon and not line.startswith("\x1b"):  # Ray's own words are in colour.
            measured = what.startswith("~ ")
            printed[what.removeprefix("~ ")] = MEASURED * measured + value
    return printed


def run(feature: str, place: str, *, timeout: float = 240) -> Printed:
    """Run a program in a process of its own, and return what it printed."""
    module = f"benchmarks.comparison.{feature}.{place}"
    process = subprocess.run(
        [sys.executable, "-m", module],
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=FOLDER.parents[1],
    )
    if process.returncode:
        raise RuntimeError(f"{module} failed:\n{process.stderr[-3_000:]}")
    return parsed(process.stdout)


def fixed(printed: Mapping[str, str]) -> Printed:
    """Return the same without what was measured: its value isn't the same twice."""
    return {
        what: MEASURED if value.startswith(MEASURED) else value for what, value in printed.items()
    }


def read() -> dict[str, Any]:
    """Return the record."""
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


def write(record: Mapping[str, Any]) -> None:
    """Write the record."""
    text = json.dumps(record, indent=1, ensure_ascii=False, sort_keys=False)
    RECORD.write_text(text + "\n", encoding="utf-8")
