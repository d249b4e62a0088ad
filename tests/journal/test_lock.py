"""One process at a time writes to a journal, and whoever comes second hears who is first."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from harness.errors import JournalError, JournalLockedError
from harness.fanout import Ending
from harness.journal import edit_journal, open_journal, read_journal

WRITER = """
import sys, trio
from harness.errors import JournalError
from harness.fanout import Ending
from harness.journal import open_journal

async def main():
    async with open_journal(sys.argv[1]) as journal:
        batch = await journal.open_batch("nightly", target="t", settings={})
        for line in iter(sys.stdin.readline, ""):
            # The pipe is read without a thread: nothing else is to go on here meanwhile.
            key = line.strip() or "first"
            entry = batch.find(key, 0)
            (number,) = await batch.begin([entry])
            await batch.end(entry, number, Ending(status="ok", value="1"))
            print("recorded", key, flush=True)

try:
    trio.run(main)
except JournalError as error:
    print(f"{type(error).__name__}: {error}", flush=True)
"""


class Writer:
    """Another process that has the journal open, and records what it is told."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def record(self, key: str) -> str:
        """Return what it says to that, a line."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{key}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()


@contextmanager
def writing(path: str) -> Iterator[Writer]:
    """Start one, and end it in any case."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Writer(process)
        finally:
            process.kill()


async def keys_done(path: str, keys: str) -> str:
    async with open_journal(path) as journal:
        batch = await journal.open_batch("nightly", target="t", settings={})
        return "".join(key for key in keys if batch.find(key, 0).state == "done")


@pytest.mark.slow
@pytest.mark.real_clock
async def test_a_second_process_is_refused_and_reads_meanwhile(journal_path: str) -> None:
    """Two writers would each overwrite what the other counts; reading harms nobody."""
    with writing(journal_path) as writer:
        assert writer.record("a") == "recorded a\n"
        with pytest.raises(JournalLockedError) as caught:
            async with open_journal(journal_path):
                pass
        pid = str(writer.process.pid)
        assert re.search(rf"process {pid} on \S+, since \d{{4}}-", str(caught.value))
        with pytest.raises(JournalLockedError, match=pid):
            with edit_journal(journal_path):
                pass
        with read_journal(journal_path) as reader:
            assert reader.counts("nightly") == {"ok": 1}
        assert writer.record("b") == "recorded b\n"
        writer.process.kill()
        writer.process.wait()
    # The lock goes with the process, however that ended.
    assert await keys_done(journal_path, "abc") == "ab"


@pytest.mark.slow
@pytest.mark.real_clock
async def test_a_process_that_was_stopped_and_taken_over_from_is_refused(tmp_path: Path) -> None:
    """It wakes up and believes it is alone. Its lock file had been removed by somebody helpful."""
    path = str(tmp_path / "run.db")
    with writing(path) as writer:
        assert writer.record("a") == "recorded a\n"
        os.kill(writer.process.pid, signal.SIGSTOP)
        try:
            os.remove(f"{path}-lock")
            assert await keys_done(path, "ab") == "a"
        finally:
            os.kill(writer.process.pid, signal.SIGCONT)
        said = writer.record("b")
    assert said.startswith("JournalLockedError")
    assert f"was taken over by process {os.getpid()} on " in said
    assert await keys_done(path, "ab") == "a"


@pytest.mark.slow
@pytest.mark.real_clock
async def test_a_server_connection_that_was_ended_takes_no_more_records(
    postgres_path: str,
) -> None:
    """An administrator ends the connection, and another process takes the free lock."""
    with writing(postgres_path) as writer:
        assert writer.record("a") == "recorded a\n"
        with psycopg.connect(postgres_path, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' "
                "AND objid = (hashtext(current_schema())::bigint & 4294967295)::oid"
            )
        assert await keys_done(postgres_path, "ab") == "a"
        said = writer.record("b")
    assert said.startswith("JournalLockedError")
    assert f"was taken over by process {os.getpid()} on " in said
    assert "what was acknowledged is kept" in said
    assert await keys_done(postgres_path, "ab") == "a"


async def test_the_token_is_looked_for_in_every_transaction(journal_path: str) -> None:
    """Whatever became of the locks: two processes never write in turn."""
    with pytest.raises(JournalLockedError, match="taken over by process 7 on far"):
        async with open_journal(journal_path) as journal:
            batch = await journal.open_batch("nightly", target="t", settings={})
            entry, other = batch.find("a", 0), batch.find("b", 0)
            [number] = await batch.begin([entry])
            stranger = '{"token": "x", "pid": 7, "host": "far", "since": 1e9}'
            change = ("UPDATE harness_meta SET value = ? WHERE name = 'owner'", (stranger,))
            await journal._writer.ask(lambda backend: backend.change([change]))
            with pytest.raises(JournalLockedError, match="taken over by process 7 on far"):
                await batch.end(entry, number, Ending(status="ok", value="1"))
            # From then on nothing is recorded, and that is said at once.
            with pytest.raises(JournalLockedError, match="process 7"):
                await batch.begin([other])
            with pytest.raises(JournalLockedError, match="process 7"):
                await batch.totals()
    assert await keys_done(journal_path, "ab") == ""


async def test_links_to_one_file_have_one_lock(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    link = tmp_path / "link.db"
    link.symlink_to(path)
    async with open_journal(path):
        with pytest.raises(JournalLockedError, match=f"process {os.getpid()} "):
            async with open_journal(link):
                pass
    async with open_journal(link):
        pass


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"lock file .*missing.*can't be opened"):
        async with open_journal(tmp_path / "missing" / "run.db"):
            pass


async def test_names_that_no_database_can_hold_are_told(tmp_path: Path) -> None:
    """Python reads names of files that aren't UTF-8 as halves of characters."""
    with pytest.raises(JournalError, match=r"caf\\udce9.*another name or folder"):
        async with open_journal(tmp_path / "caf\udce9" / "run.db"):
            pass
    async with open_journal(tmp_path / "run.db") as journal:
        with pytest.raises(JournalError, match=r"half a character"):
            await journal.open_batch("caf\udce9", target="t", settings={})
        await journal.open_batch("caf\u00e9", target="t", settings={})
