"""What a run leaves behind in the objects that its function can reach."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import trio

import harness
from harness.testing.audit import Finding, audit_function

WRONG = """\
import trio


class Agent:
    messages = []

    async def ask(self, question):
        self.messages.append(question)
        await trio.sleep(3600)
        return list(self.messages)


COUNTS = {"asked": 0}
LOG = []  # harness: shared (an append-only log)
SETTINGS = {"model": "m"}


async def agent(question):
    COUNTS["asked"] += 1
    LOG.append(question)
    return await Agent().ask(question), SETTINGS["model"]


async def failing(question):
    COUNTS["asked"] += 1
    raise ValueError(question)


async def hanging(question):
    await trio.Event().wait()


async def leaving(question):
    async with trio.open_nursery():
        raise SystemExit(3)
"""


PUT_RIGHT = """\
import harness

messages = harness.RunLocal(list, name="messages")


async def answer(question):
    messages.get().append(question)
    return harness.current_run().name, messages.get()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "audited_agents.py").write_text(WRONG)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield importlib.import_module("audited_agents")
    del sys.modules["audited_agents"]


def symbols(findings: list[Finding]) -> list[tuple[str, str]]:
    return sorted((one.rule, one.symbol) for one in findings)


def test_what_stays_is_named_with_the_line_that_makes_it(module: ModuleType) -> None:
    found = audit_function(module.agent, ["a", "b"])
    assert symbols(found) == [
        ("left-behind", "audited_agents.Agent.messages"),
        ("left-behind", "audited_agents.COUNTS"),
    ]
    lines = {one.symbol.rpartition(".")[2]: one.line for one in found}
    assert lines == {"messages": 5, "COUNTS": 13}
    assert all(Path(one.path).name == "audited_agents.py" for one in found)
    assert any("from [] to ['a']" in one.message for one in found)


def test_a_run_that_raises_is_a_finding_and_what_it_left_is_one_too(module: ModuleType) -> None:
    assert symbols(audit_function(module.failing, ["a"])) == [
        ("left-behind", "audited_agents.COUNTS"),
        ("run-failed", "failing"),
    ]


MESSAGES = harness.RunLocal(list, name="messages")


async def clean(question: str) -> list[str]:
    said: list[str] = []
    async with harness.open_run("clean"):
        MESSAGES.get().append(question)
        await trio.sleep(1)
        said.extend(MESSAGES.get())
    return said


def test_a_function_that_keeps_its_state_in_its_run_is_clean() -> None:
    assert audit_function(clean, ["a", "b"]) == []


def test_inputs_that_are_changed_are_named() -> None:
    async def spoil(record: dict[str, int]) -> None:
        await trio.lowlevel.checkpoint()
        record["seen"] = 1

    (found,) = audit_function(spoil, [{"id": 1}])
    assert found.symbol == "inputs[0]"
    assert Path(found.path).name == "test_left_behind.py"


@pytest.mark.parametrize(
    ("function", "words"),
    [("hanging", "every task waits, and nothing can wake any"), ("leaving", "SystemExit: 3")],
)
def test_a_run_that_never_ends_or_ends_the_process_is_a_finding(
    module: ModuleType, function: str, words: str
) -> None:
    """On a virtual clock, a run that waits for ever once kept the audit from ever ending."""
    (finding,) = audit_function(getattr(module, function), ["a"])
    assert finding.rule == "run-failed"
    assert words in finding.message


def test_code_with_the_recommended_fix_is_run_in_a_run_as_a_batch_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "right_agents.py").write_text(PUT_RIGHT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = importlib.import_module("right_agents")
    assert audit_function(module.answer, ["a", "b"]) == []
