"""Calls that wait for a person in a journal, in a file and on a server, go on after a restart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import harness
from harness.agents import Agent, tool
from harness.errors import ApprovalPending
from harness.journal import edit_journal, open_journal, read_journal
from harness.models import File, Message
from tests.agents.fakes import Script, calls
from tests.models.files import PAPER, PICTURE, PICTURE_ELSEWHERE

RECEIPT = File(data=b"%PDF-1.4 paid back", name="receipt.pdf")


class Session:
    """One process's part: an agent that has seen nothing yet, and the journal opened anew."""

    def __init__(self, journal_path: str) -> None:
        self.path = journal_path
        self.keys: list[str] = []

        @tool
        async def scan(order: int) -> list[str | File]:
            """Scan an order."""
            await trio.lowlevel.checkpoint()
            return ["page 1", PICTURE]

        @tool(approve=True)
        async def refund(order: int) -> list[str | File]:
            """Refund an order."""
            await trio.lowlevel.checkpoint()
            self.keys.append(harness.current_run().effect_key())
            return ["refunded", RECEIPT]

        look, pay = ("scan", {"order": 7}), ("refund", {"order": 7})
        self.model = Script(calls(look), calls(look, pay), "Done.")
        self.agent = Agent("desk", model=self.model, tools=[scan, refund])

    async def handle(self, item: str) -> str:
        return (await self.agent.run([item, PAPER, PICTURE_ELSEWHERE])).output

    async def run(self) -> harness.Result[str]:
        async with open_journal(self.path) as journal:
            (result,) = await harness.fan_out(
                self.handle,
                ["order 7"],
                name="batch",
                key=str,
                journal=journal,
                policy=harness.BestEffort(),
            )
        return result


async def test_an_approved_call_goes_on_after_a_restart_with_the_files_around_it(
    journal_path: str,
) -> None:
    """Files of the prompt and of earlier calls are in the request after it, byte for byte."""
    first = Session(journal_path)
    assert isinstance((await first.run()).error, ApprovalPending)
    with read_journal(journal_path) as reader:
        (item,) = reader.waiting("batch")
        assert [(one.tool, one.arguments) for one in item.calls] == [("refund", {"order": 7})]
    with edit_journal(journal_path) as editor:
        editor.answer("batch", "order 7", True)

    second = Session(journal_path)
    assert (await second.run()).value == "Done."
    assert (len(first.keys), len(second.keys)) == (0, 1)
    assert len(second.model.requests) == 1, "the model isn't asked again for what it has said"
    (request,) = second.model.requests
    assert request.messages[: len(first.model.requests[-1].messages)] == (
        first.model.requests[-1].messages
    )
    *_, scanned, paid = request.messages
    assert scanned.content == ("page 1", PICTURE)
    assert paid == Message("tool", ("refunded", RECEIPT), tool_call_id="c2")
    assert request.messages[0].files == (PAPER, PICTURE_ELSEWHERE)


@pytest.mark.parametrize("reason", ["", "not before Monday"])
async def test_a_refusal_is_told_to_the_model_after_a_restart(
    journal_path: str, reason: str
) -> None:
    assert isinstance((await Session(journal_path).run()).error, ApprovalPending)
    with edit_journal(journal_path) as editor:
        editor.answer("batch", "order 7", reason)
    second = Session(journal_path)
    assert (await second.run()).value == "Done."
    assert not second.keys
    assert second.model.requests[0].messages[-1].text.endswith(reason)


@pytest.mark.slow
@pytest.mark.real_clock
@pytest.mark.skipif(os.name != "posix", reason="forks and kills processes")
def test_approvals_survive_a_kill_at_every_boundary(journal_path: str, tmp_path: Path) -> None:
    """A call that a killed session had made is made again with the same key, and none else is."""
    on_server = [journal_path] if journal_path.startswith("postgresql:") else []
    program = [sys.executable, "-m", "tests.agents.approval_sessions", str(tmp_path), *on_server]
    lines = subprocess.run(program, check=True, capture_output=True, text=True).stdout.splitlines()
    told = [json.loads(line) for line in lines]
    assert sum(one["killed"] for one in told) >= (15 if on_server else 20)
    assert {len(one["refunds"]) for one in told} == {1, 2}, "killed also between call and end"
    for one in told:
        assert one["status"] == "ok", one
        assert one["looked after"] == one["asked after"] == 0, one
        assert len(set(one["refunds"])) == 1, one
        assert not one["refunded before approval"], one
