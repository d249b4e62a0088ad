"""Kill sessions of a batch that waits for approvals, at every boundary; say what came of it.

``python -m tests.agents.approval_sessions FOLDER [ADDRESS]`` prints a line of JSON for each place.
A session is a fork that kills itself with SIGKILL before or after a write to the journal or a call
of a tool. With the address of a PostgreSQL server the journal is there, a batch for each place.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import trio

import harness
from harness.agents import Agent, tool
from harness.journal import edit_journal, open_journal, read_journal
from harness.journal._backend import Backend
from harness.journal._postgres import PostgresBackend
from harness.journal._sqlite import SqliteBackend
from tests.agents.fakes import Script, calls

PHASES = ("park", "approve", "go on")


class Sessions:
    """The sessions of one journal."""

    def __init__(self, folder: Path, journal: str | Path) -> None:
        self.folder = folder
        self.journal = journal
        self.name = folder.name
        self.left = 0
        """Boundaries until the process kills itself; none if it is below 1."""

    def boundary(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def note(self, line: str) -> None:
        with (self.folder / "log").open("a") as log:
            log.write(f"{line}\n")

    def noted(self, what: str) -> list[str]:
        lines = (self.folder / "log").read_text().splitlines()
        return [line for line in lines if line.startswith(what)]

    def agent(self) -> Agent[str]:
        @tool
        async def look(order: int) -> str:
            """Look an order up."""
            self.boundary()
            self.note(f"look {order}")
            await trio.lowlevel.checkpoint()
            return "12 dollars"

        @tool(approve=True)
        async def refund(order: int, usd: int) -> str:
            """Refund an order."""
            self.boundary()
            self.note(f"refund {order} {usd} {harness.current_run().effect_key()}")
            self.boundary()
            await trio.lowlevel.checkpoint()
            return "refunded"

        asked = calls(("look", {"order": 7}), ("refund", {"order": 7, "usd": 12}))
        script = Script(asked, "Done.")
        answer = script.answer

        def noting(request: Any) -> Any:
            said = answer(request)
            self.note("model first" if said is asked else "model last")
            return said

        script.answer = noting
        return Agent("desk", model=script, tools=[look, refund])

    async def batch(self) -> None:
        async with open_journal(self.journal) as journal:
            await harness.fan_out(
                self.agent(),
                ["order 7"],
                name=self.name,
                key=str,
                journal=journal,
                policy=harness.BestEffort(),
            )

    def approve(self) -> None:
        with edit_journal(self.journal) as editor:
            if any(editor.waiting(self.name)):
                editor.answer(self.name, "order 7", True)

    def fork(self, phase: str, kill_at: int) -> bool:
        """Run one session; return whether it was killed."""
        child = os.fork()
        if child == 0:
            self.left = kill_at
            if phase == "approve":
                self.approve()
            else:
                trio.run(self.batch)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) in (0, -9), status
        return os.WIFSIGNALED(status)

    def story(self, phase: str, kill_at: int) -> bool:
        """Park, approve and go on, one of them killed first; return whether anything was."""
        killed = False
        for one in PHASES:
            if one == phase:
                killed = self.fork(one, kill_at)
            self.fork(one, 0)
            if one == "park":
                self.note("parked")
        return killed


def kill_around(backend: type[Backend], name: str) -> Callable[[Sessions], None]:
    """Return what puts boundaries around a method of the backend, for some sessions."""
    method = getattr(backend, name)

    def put(sessions: Sessions) -> None:
        @wraps(method)
        def around(*args: Any, **named: Any) -> Any:
            sessions.boundary()
            result = method(*args, **named)
            sessions.boundary()
            return result

        setattr(backend, name, around)

    return put


def main(folder: Path, address: str | None = None) -> None:
    backend = SqliteBackend if address is None else PostgresBackend
    around = [kill_around(backend, "write"), kill_around(backend, "change")]
    for phase in PHASES:
        for kill_at in range(1, 100):
            here = folder / f"{phase} {kill_at}"
            here.mkdir()
            sessions = Sessions(here, address or here / "run.db")
            for put in around:
                put(sessions)
            killed = sessions.story(phase, kill_at)
            with read_journal(sessions.journal) as reader:
                (item,) = reader.items(sessions.name)
            log = (here / "log").read_text().splitlines()
            told = {
                "place": f"{phase} {kill_at}",
                "killed": killed,
                "status": item.status,
                "looked after": sum(line.startswith("look") for line in after(log)),
                "asked after": after(log).count("model first"),
                "refunds": sessions.noted("refund"),
                "refunded before approval": any("refund" in line for line in before(log)),
            }
            print(json.dumps(told), flush=True)
            if not killed:
                break


def before(log: list[str]) -> list[str]:
    return log[: log.index("parked")]


def after(log: list[str]) -> list[str]:
    return log[log.index("parked") :]


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
