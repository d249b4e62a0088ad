"""In the kernel of a notebook: `trio.run` in a cell, `%autoawait trio`, and progress there."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.real_clock,
    pytest.mark.skipif(find_spec("nbclient") is None, reason="needs ipykernel and nbclient"),
]

EXECUTE = """
import json, sys
import nbclient, nbformat

cells = [nbformat.v4.new_code_cell(source) for source in json.load(sys.stdin)]
notebook = nbformat.v4.new_notebook(cells=cells)
nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
widgets = json.dumps(notebook.metadata.get("widgets"))
json.dump([*(cell.outputs for cell in notebook.cells), widgets], sys.stdout)
"""

CELLS = [
    """
import harness, trio

async def answer(question):
    await trio.sleep(0.01)
    return f"{question}: {harness.current_run().path}"

async def main():
    return (await harness.fan_out(answer, ["a", "b"], limit=2, key=str)).values()

trio.run(main)
""",
    "%autoawait trio",
    """
results = await harness.fan_out(answer, ["a", "b", "c"], limit=2, key=str)
results.values()
""",
    """
async with harness.open_run("cell") as run:
    print(run.path, harness.current_run() is run)
print(harness.current_run_or_none())
""",
    """
with harness.progress():
    await harness.fan_out(answer, "abc", limit=1, name="questions")
""",
    """
from harness.errors import FanOutError

async def fails(question):
    raise ValueError(question)

try:
    await harness.fan_out(fails, ["d"])
except FanOutError as error:
    print([str(one) for one in error.exceptions])
""",
]


def text_of(outputs: list[dict[str, Any]]) -> str:
    """Return what a cell shows: what was printed, and what is displayed, as text."""
    shown = [one.get("text") or one["data"].get("text/plain", "") for one in outputs]
    return "".join(shown)


def test_the_kernel_of_a_notebook() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", EXECUTE],
        input=json.dumps(CELLS),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    *cells, widgets = json.loads(ended.stdout)
    plain, _, awaited, block, _, failed = map(text_of, cells)
    assert plain == "['a: answer/a', 'b: answer/b']"
    assert awaited == "['a: answer/a', 'b: answer/b', 'c: answer/c']"
    assert block == "cell True\nNone\n"
    assert "questions: 3 of 3 done, 0 failed, 0 in flight" in widgets
    assert failed == "['d']\n"
