"""Every piece of state that outlives a call is listed once, with who uses it and its standing."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from harness.testing.audit import State, inventory_paths, inventory_report

PROGRAM = """\
import asyncio
import functools
import re
import harness
import trio

messages = []
LIMIT = 10
WORD = re.compile("w")
NAMES = {"a": 1}
ROUTES = {}  # harness: shared (filled at import | by plug-ins)
spent = harness.Counter("spent")
lock = trio.Lock()
notes = harness.RunLocal(list, name="notes")
_current = None


class Manager:
    def __init__(self):
        self.pending = []


class Agent:
    history = []

    def __init__(self, name):
        self.name = name
        self._cancelled = False
        self._current_stream_task = None
        self._event_queue = asyncio.Queue()
        self._injection_manager = Manager()

    async def run(self, prompts, seen=[]):
        global _current
        _current = self
        self._cancelled = False
        self._current_stream_task = asyncio.current_task()
        messages.append(prompts)
        self.history.append(prompts)
        seen.append(prompts)
        await self._event_queue.put(1)
        self._injection_manager.pending.append(1)
        if NAMES and not self._cancelled:
            return ROUTES, LIMIT, WORD, self._current_stream_task


@functools.cache
def settings():
    return {}


def counter():
    count = 0

    def count_up():
        nonlocal count
        count += 1

    def count_down():
        nonlocal count
        count -= 1

    return count_up, count_down
"""

STANDINGS = {
    "messages": "unknown",
    "NAMES": "constant",
    "ROUTES": "shared on purpose",
    "spent": "shared on purpose",
    "lock": "shared on purpose",
    "notes": "per call",
    "_current": "unknown",
    "Manager.pending": "unknown",
    "Agent.history": "unknown",
    "Agent.name": "constant",
    "Agent._cancelled": "unknown",
    "Agent._current_stream_task": "unknown",
    "Agent._event_queue": "unknown",
    "Agent._injection_manager": "unknown",
    "Agent.run(seen=)": "unknown",
    "settings()": "shared on purpose",
    "counter.count": "unknown",
}


def inventory(folder: Path, **files: str) -> dict[str, State]:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    found = inventory_paths([folder])
    by_symbol = {one.symbol: one for one in found}
    assert len(by_symbol) == len(found)
    return by_symbol


def test_all_that_outlives_a_call_is_there_once_and_nothing_else(tmp_path: Path) -> None:
    found = inventory(tmp_path, agents=PROGRAM)
    assert {symbol: one.standing for symbol, one in found.items()} == STANDINGS


def test_each_says_where_it_is_made_who_writes_it_and_who_reads_it(tmp_path: Path) -> None:
    found = inventory(tmp_path, agents=PROGRAM)
    flag = found["Agent._cancelled"]
    assert flag.kind == "instance attribute"
    assert PROGRAM.splitlines()[flag.line - 1].strip() == "self._cancelled = False"
    assert [use.function for use in flag.written_by] == ["Agent.run"]
    assert [use.function for use in flag.read_by] == ["Agent.run"]
    counted = found["counter.count"].written_by
    assert [use.function for use in counted] == ["counter.count_up", "counter.count_down"]
    assert found["NAMES"].written_by == ()
    assert found["ROUTES"].reason == "filled at import | by plug-ins"
    assert found["notes"].reason == "a RunLocal: one value for each run"


def test_other_files_are_seen_to_use_it(tmp_path: Path) -> None:
    found = inventory(
        tmp_path,
        desk="messages = []\nclass Desk:\n    def __init__(self):\n        self.open = True\n",
        app="""\
            import desk
            from desk import messages
            async def ask(question):
                messages.append(question)
            async def close(one):
                one.open = False
                return desk.messages
            """,
    )
    assert [use.function for use in found["messages"].written_by] == ["ask"]
    assert [use.function for use in found["messages"].read_by] == ["close"]
    assert [use.function for use in found["Desk.open"].written_by] == ["close"]
    assert {Path(use.path).name for use in found["Desk.open"].written_by} == {"app.py"}


def test_a_table_in_markdown_has_what_needs_a_look_first(tmp_path: Path) -> None:
    found = inventory(tmp_path, agents=PROGRAM)
    lines = inventory_report(list(found.values()), "markdown").splitlines()
    assert len(lines) == 2 + len(STANDINGS)
    assert lines[2].startswith("| `messages` | ")
    assert "shared on purpose: filled at import \\| by plug-ins |" in "\n".join(lines)
    with pytest.raises(ValueError, match="'text', 'json', 'markdown'"):
        inventory_report([], "sarif")  # type: ignore[arg-type]


def test_nothing_to_list_is_said(tmp_path: Path) -> None:
    found = inventory(tmp_path, bare="LIMIT = 1\nasync def ask(x): return x\n")
    assert inventory_report(list(found.values()), "text") == "no state outlives a call\n"
