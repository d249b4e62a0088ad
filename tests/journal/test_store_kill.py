"""SIGKILL at every boundary of the store, with a real process that resumes each time.

A boundary is the moment before and after each statement that changes anything: the tables, a group
of records, an effect. The process says what was acknowledged and what it was about to do; whatever
it said has to hold for the next one.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import JournalError
from harness.journal import open_journal, read_journal
from tests.scale import scaled

WORK = """
import os, signal, sys, trio
from harness.fanout import Ending
from harness.journal import open_journal
from harness.journal import _sqlite
from harness.journal._sqlite import SqliteBackend

# A killed process loses nothing that the kernel has; syncing is for a loss of power.
_sqlite.SYNCHRONOUS = "OFF"

def say(*words):
    # At once and past every buffer: the next moment may be the last.
    os.write(1, (" ".join(map(str, words)) + chr(10)).encode())

def boundary(now):
    global left
    if now == moment:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

execute = SqliteBackend.execute
def cut_execute(self, statement, arguments=()):
    reads = ("SELECT", "PRAGMA app", "PRAGMA user_version", " ", chr(10))
    changes = not statement.startswith(reads)
    if changes:
        boundary("before")
    cursor = execute(self, statement, arguments)
    if changes:
        boundary("after")
    return cursor
SqliteBackend.execute = cut_execute

async def main():
    async with open_journal(path) as journal:
        batch = await journal.open_batch("nightly", target="t", settings={})
        async with trio.open_nursery() as nursery:
            async def work(key):
                entry = batch.find(key, 0)
                if entry.state == "done":
                    return
                (number,) = await batch.begin([entry])
                say("start", key)
                await batch.end(entry, number, Ending(status="ok", value="1", tokens=1))
                say("done", key)
            for key in range(6):
                nursery.start_soon(work, key)
        effect = await journal.intend("mail", "key-1")
        say("effect", effect.state)
        if effect.state == "new":
            say("sent")
        if effect.state != "done":
            await journal.complete("mail", "sent")
            say("confirmed")
    say("end")

# Everything is imported once, and each life is a fork of that.
for line in iter(sys.stdin.readline, ""):
    path, number, moment = line.split()
    left = int(number)
    child = os.fork()
    if child == 0:
        trio.run(main)
        os._exit(0)
    say("exit", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


class Worker:
    """Lives and dies as often as it is told to."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def work(self, path: Path, boundary: int, moment: str) -> tuple[bool, list[str]]:
        """Work until the boundary; return whether it was reached, and what was said."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{path} {boundary} {moment}\n")
        self.process.stdin.flush()
        said: list[str] = []
        while not said or not said[-1].startswith("exit"):
            said.append(self.process.stdout.readline().strip())
            assert said[-1], "it died of something else"
        code = int(said.pop().split()[1])
        assert code in (0, -signal.SIGKILL)
        assert (code == 0) == ("end" in said)
        return code != 0, said


@pytest.fixture
def worker() -> Iterator[Worker]:
    with subprocess.Popen(
        [sys.executable, "-c", WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Worker(process)
        process.kill()


@pytest.mark.slow
@pytest.mark.real_clock
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_killed_at_every_boundary_nothing_acknowledged_is_lost(
    tmp_path: Path, worker: Worker, moment: str
) -> None:
    """Whatever is on disk at that moment, the next process reads it and goes on."""
    boundaries = 0
    while True:
        boundaries += scaled(3, full=1)
        path = tmp_path / f"{boundaries}.db"
        killed, said = worker.work(path, boundaries, moment)
        await _check(path, said)
        if not killed:
            break
        # What was said holds for the next process, which goes on to the end.
        _, more = worker.work(path, 10_000, moment)
        assert more[-1] == "end"
        await _check(path, said + more)
        twice = [line for line in more if line.startswith("done") and line in said]
        assert not twice, "what was acknowledged ran again"
        # A mail is sent once, or it is known that this isn't known.
        assert (said + more).count("sent") <= 1
        if "sent" in said:
            assert "effect unknown" in more or "effect done" in more
    assert boundaries > 25


async def _check(path: Path, said: list[str]) -> None:
    started = {int(line.split()[1]) for line in said if line.startswith("start")}
    done = {int(line.split()[1]) for line in said if line.startswith("done")}
    try:
        with read_journal(path) as reader:
            known = {item.key: item for item in reader.items("nightly")}
    except JournalError:
        assert not started, "a function ran before its journal was there"
        return
    for key in started:
        assert known[key].attempts >= 1
    for key in done:
        assert known[key].status == "ok"


@pytest.mark.long
@pytest.mark.real_clock
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
async def test_killed_while_it_writes_as_much_as_it_can(tmp_path: Path) -> None:
    """Groups of hundreds: all that was acknowledged of a group is there, at any moment."""
    path = tmp_path / "run.db"
    script = """
import os, sys, trio
from harness.fanout import Ending
from harness.journal import open_journal
async def main():
    async with open_journal(sys.argv[1]) as journal:
        batch = await journal.open_batch("nightly", target="t", settings={})
        async with trio.open_nursery() as nursery:
            async def work(first):
                for key in range(first, 10**9, 200):
                    entry = batch.find(key, 0)
                    if entry.state == "done":
                        continue
                    (number,) = await batch.begin([entry])
                    await batch.end(entry, number, Ending(status="ok", value="1"))
                    os.write(1, b"%d " % key)
            for first in range(200):
                nursery.start_soon(work, first)
trio.run(main)
"""
    acknowledged: set[int] = set()
    for _ in range(scaled(2, full=20)):
        new = _killed_after(script, path, 4_000)
        assert not new & acknowledged
        acknowledged |= new
    assert len(acknowledged) > 1_000
    async with open_journal(path) as journal:
        batch = await journal.open_batch("nightly", target="t", settings={})
        assert {batch.find(key, 0).state for key in acknowledged} == {"done"}


def _killed_after(script: str, path: Path, size: int) -> set[int]:
    """Run a script until it has acknowledged keys in so many bytes; kill it, and return them."""
    with subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = process.stdout.read(size)
        process.kill()
        said += process.stdout.read()
    return {int(word) for word in said.rpartition(b" ")[0].split()}
