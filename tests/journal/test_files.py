"""What a journal says to files that it can't use, and that it leaves them as they are."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from harness.errors import JournalError, JournalFormatError, JournalLockedError
from harness.fanout import Ending
from harness.journal import _schema, _sqlite, edit_journal, open_journal, read_journal
from harness.journal._backend import Backend
from harness.journal._lock import FileLock
from harness.journal._owner import this_process
from tests.scale import PATIENCE_SECONDS
from tests.support.permissions import as_somebody, needs_permissions

FOREIGN_VERSION_1 = Path(__file__).parent / "version_1.sql"


async def make(path: Path, keys: int = 200) -> None:
    """Make a journal with items that are done, ending in a file without a WAL."""
    async with open_journal(path) as journal:
        batch = await journal.open_batch("nightly", target="t", settings={})
        entries = [batch.find(key, 0) for key in range(keys)]
        for entry, number in zip(entries, await batch.begin(entries), strict=True):
            ending = Ending(status="ok", value='"x"' * 9)
            batch.end_nowait([(entry, number, ending)], lambda _: None)
        await batch.flush()


async def read_all(path: Path, keys: int = 200) -> int:
    """Return how many items are done."""
    async with open_journal(path) as journal:
        batch = await journal.open_batch("nightly", target="t", settings={})
        return sum(batch.find(key, 0).state == "done" for key in range(keys))


def write_text(path: Path) -> None:
    path.write_text("Dear diary, today I was taken for a database.\n" * 50)


def write_foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE customers (id INTEGER)")
    connection.close()


def write_newer(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA application_id={_schema.APPLICATION_ID}")
    connection.execute("PRAGMA user_version=99")
    connection.close()


@pytest.mark.parametrize(
    ("write", "why"),
    [
        pytest.param(write_text, "is not a journal or any other database", id="a text"),
        pytest.param(write_foreign, "is a database of another program", id="another program's"),
        pytest.param(write_newer, "has version 99, and this harness reads up to", id="a newer one"),
    ],
)
async def test_what_is_no_journal_is_left_as_it_is(
    tmp_path: Path, write: Callable[[Path], None], why: str
) -> None:
    """A typed path can hit any file; it must not cost that file."""
    path = tmp_path / "run.db"
    write(path)
    before = path.read_bytes()
    with pytest.raises(JournalFormatError, match=why):
        async with open_journal(path):
            pass
    with pytest.raises(JournalFormatError, match=why):
        with read_journal(path):
            pass
    with pytest.raises(JournalFormatError, match=why):
        with edit_journal(path):
            pass
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["run.db", "run.db-lock"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes in the file system")
async def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    """A folder was told as a disk error, and a pipe was waited for."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, what in (("folder", "is a folder"), ("pipe", "is no regular file")):
        with pytest.raises(JournalFormatError, match=f"{what}, and a journal is a file"):
            async with open_journal(tmp_path / name):
                pass
        for look in (read_journal, edit_journal):
            with pytest.raises(JournalFormatError, match=what):
                with look(tmp_path / name):
                    pass
    assert sorted(os.listdir(tmp_path)) == ["folder", "pipe"]


async def test_a_damaged_journal_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    """Pages of noise in its middle: found when it is read, told as what it is, not repaired."""
    path = tmp_path / "run.db"
    await make(path)
    content = bytearray(path.read_bytes())
    for page in range(2, len(content) // 4096):
        content[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(content)
    with pytest.raises(JournalFormatError, match=r"is damaged .*nothing was repaired"):
        await read_all(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("page", [2, -3, "the end"])
async def test_one_damaged_page_is_found_before_anything_is_written(
    tmp_path: Path, page: int | str
) -> None:
    """Whoever opens a journal leaves their name and a session in it, which a damaged file must not
    get: appending to it can destroy what could still be saved."""
    path = tmp_path / "run.db"
    await make(path)
    content = bytearray(path.read_bytes())
    if isinstance(page, str):
        del content[-5_000:]
    else:
        start = page * 4096 % len(content)
        content[start : start + 64] = b"\xff" * 64
    path.write_bytes(content)
    with pytest.raises(JournalFormatError, match=r"is damaged .*nothing was repaired"):
        await read_all(path)
    assert path.read_bytes() == content


def change_version(content: bytearray) -> None:
    content[60:64] = (-3).to_bytes(4, "big", signed=True)


def change_format(content: bytearray) -> None:
    content[44:48] = (9).to_bytes(4, "big")


def change_schema(content: bytearray) -> None:
    at = content.index(b"CREATE TABLE harness_items")
    content[at + 7 : at + 9] = b"\xff\xfe"


@pytest.mark.parametrize("change", [change_version, change_format, change_schema])
async def test_a_damaged_beginning_is_damage_too(
    tmp_path: Path, change: Callable[[bytearray], None]
) -> None:
    """Seen first as a UnicodeDecodeError, an IndexError, and words without advice."""
    path = tmp_path / "run.db"
    await make(path, 3)
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)
    with pytest.raises(JournalFormatError, match="is damaged"):
        await read_all(path, 3)
    with pytest.raises(JournalFormatError, match="is damaged"):
        with read_journal(path):
            pass
    assert path.read_bytes() == content


async def test_damaged_words_inside_are_damage_too(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    await make(path, 3)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE harness_items SET key = '\"a' WHERE id = 1")
    connection.execute("UPDATE harness_endings SET status = CAST(x'ff6b' AS TEXT) WHERE item = 2")
    with read_journal(path) as reader, pytest.raises(JournalFormatError, match="in place of"):
        list(reader.items("nightly"))
    with pytest.raises(JournalError, match="damaged"):
        await read_all(path, 3)
    connection.execute("UPDATE harness_batches SET settings = '{' WHERE id = 1")
    connection.close()
    with read_journal(path) as reader, pytest.raises(JournalFormatError, match="in place of"):
        reader.batches()
    with pytest.raises(JournalFormatError, match="damaged"):
        await read_all(path, 3)


async def test_bytes_that_are_no_text_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    await make(path, 3)
    path.write_bytes(path.read_bytes().replace(b'"x""x"', b'"\xff""x"'))
    async with open_journal(path) as journal:
        batch = await journal.open_batch("nightly", target="t", settings={})
        with pytest.raises(JournalFormatError, match="is damaged"):
            await batch.read([batch.find(0, 0)])


async def test_the_working_directory_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents with a shell do that, and the journal was named from where they started."""
    monkeypatch.chdir(tmp_path)
    await make(Path("run.db"), 3)
    (tmp_path / "elsewhere").mkdir()
    async with open_journal("run.db") as journal:
        monkeypatch.chdir("elsewhere")
        batch = await journal.open_batch("nightly", target="t", settings={})
        assert batch.find(0, 0).state == "done"
    assert os.listdir(".") == []


@pytest.mark.parametrize("becomes", ["nothing", "another"])
async def test_a_journal_that_is_removed_while_it_is_written_to_ends_the_batch(
    tmp_path: Path, becomes: str
) -> None:
    """The system lets one write to a file without a name; in the end all of it would be gone."""
    path = tmp_path / "run.db"
    with pytest.raises(JournalError, match="was removed or replaced"):
        async with open_journal(path) as journal:
            batch = await journal.open_batch("nightly", target="t", settings={})
            await batch.begin([batch.find(0, 0)])
            path.unlink()
            if becomes == "another":
                path.write_bytes(b"")
            with pytest.raises(JournalError, match="was removed or replaced"):
                await batch.begin([batch.find(1, 0)])
            with pytest.raises(JournalError, match="was removed or replaced"):
                await journal.open_batch("weekly", target="t", settings={})


async def test_an_empty_file_becomes_a_journal(tmp_path: Path) -> None:
    """As ``mktemp`` makes them, and as a crash between making and filling leaves them."""
    path = tmp_path / "run.db"
    path.write_bytes(b"")
    await make(path, 3)
    assert await read_all(path, 3) == 3


def test_reading_makes_no_file(tmp_path: Path) -> None:
    """``show`` with a mistyped name must not answer that there are no batches."""
    with pytest.raises(JournalError, match="there is no journal"):
        with read_journal(tmp_path / "run.db"):
            pass
    with pytest.raises(JournalError, match="there is no journal"):
        with edit_journal(tmp_path / "run.db"):
            pass
    (tmp_path / "empty.db").touch()
    with pytest.raises(JournalFormatError, match="there is no journal in"):
        with read_journal(tmp_path / "empty.db"):
            pass
    assert [found.name for found in tmp_path.iterdir()] == ["empty.db"]


@needs_permissions
async def test_a_read_only_file_is_named(tmp_path: Path) -> None:
    """Before anything is run, not at the first result."""
    folder = tmp_path / "shared"
    folder.mkdir()
    path = folder / "run.db"
    await make(path, 3)
    (folder / "run.db-lock").chmod(0o666)
    path.chmod(0o444)
    before = path.read_bytes()
    with as_somebody(tmp_path):
        with pytest.raises(JournalError, match=r"can't be written to .*allow this user"):
            async with open_journal(path):
                pass
    folder.chmod(0o555)
    (folder / "run.db-lock").unlink()
    with as_somebody(tmp_path):
        with pytest.raises(JournalError, match=r"lock file .*write in its folder"):
            async with open_journal(path):
                pass
    folder.chmod(0o755)
    path.chmod(0o644)
    assert path.read_bytes() == before
    assert await read_all(path, 3) == 3


FILL = """
import sys, trio, resource
from harness.errors import JournalError
from harness.fanout import Ending
from harness.journal import open_journal

async def main(path, limit):
    acknowledged = []
    try:
        async with open_journal(path) as journal:
            batch = await journal.open_batch("nightly", target="t", settings={})
            if limit:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            async with trio.open_nursery() as nursery:
                async def record(key):
                    entry = batch.find(key, 0)
                    (number,) = await batch.begin([entry])
                    await batch.end(entry, number, Ending(status="ok", value='"' + "x" * 900 + '"'))
                    acknowledged.append(key)
                await record(0)  # However large the first group is: this one is on the disk.
                for key in range(1, 20_000):
                    nursery.start_soon(record, key)
                    if key % 50 == 0:
                        await trio.testing.wait_all_tasks_blocked()
    except* JournalError as group:
        error = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        print(type(error).__name__, error)
    print(*acknowledged)

import trio.testing
trio.run(main, sys.argv[1], int(sys.argv[2]))
"""


def fill(path: Path, *, limit: int = 0) -> tuple[str, list[int]]:
    """Record in another process until the disk is full; return the error and what was kept."""
    ended = subprocess.run(
        [sys.executable, "-c", FILL, path, str(limit)],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    said, keys = ended.stdout.splitlines()
    return said, [int(key) for key in keys.split()]


@pytest.mark.slow
@pytest.mark.real_clock
async def test_when_a_file_cannot_grow_what_was_acknowledged_stays(tmp_path: Path) -> None:
    """A limit on the size of files hits in the middle of a group: all of that one hear of it."""
    path = tmp_path / "run.db"
    said, acknowledged = fill(path, limit=1 << 20)
    assert said.startswith("JournalError the journal")
    assert "what was acknowledged is kept" in said
    assert acknowledged
    await _all_are_done(path, acknowledged)


@pytest.mark.slow
@pytest.mark.real_clock
@pytest.mark.skipif(sys.platform != "linux", reason="mounts a small disk of Linux's")
async def test_on_a_full_disk_what_was_acknowledged_stays(tmp_path: Path) -> None:
    """And with room again the same journal goes on."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if not mounted("-t", "tmpfs", "-o", "size=1m", "tmpfs", disk):
        pytest.skip("only root can mount a disk; the test above does without one")
    try:
        path = disk / "run.db"
        said, acknowledged = fill(path)
        assert said.startswith("JournalError the journal")
        assert "the disk is full" in said
        assert "make room, and resume" in said
        assert acknowledged
        assert mounted("-o", "remount,size=8m", disk)
        await _all_are_done(path, acknowledged)
    finally:
        unmount(disk)


def mounted(*arguments: str | Path) -> bool:
    """Return whether mounting worked."""
    command = ["mount", *map(str, arguments)]
    return not subprocess.run(command, capture_output=True, check=False).returncode


def unmount(disk: Path) -> None:
    subprocess.run(["umount", str(disk)], check=True)


async def _all_are_done(path: Path, keys: list[int]) -> None:
    async with open_journal(path) as journal:
        batch = await journal.open_batch("nightly", target="t", settings={})
        assert {batch.find(key, 0).state for key in keys} == {"done"}
        entry = batch.find("one more", 0)
        [number] = await batch.begin([entry])
        await batch.end(entry, number, Ending(status="ok", value="1"))


async def test_another_program_that_holds_the_file_is_waited_for_and_then_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell of SQLite with an open transaction knows nothing of our lock."""
    monkeypatch.setattr(_sqlite, "BUSY_SECONDS", 0.05)
    path = tmp_path / "run.db"
    await make(path, 3)
    shell = sqlite3.connect(path, isolation_level=None)
    shell.execute("BEGIN IMMEDIATE")
    with pytest.raises(JournalLockedError, match=r"held by another program for more than 0\.05 s"):
        async with open_journal(path):
            pass
    shell.execute("COMMIT")
    shell.close()
    assert await read_all(path, 3) == 3


@pytest.mark.usefixtures("synced")
async def test_every_commit_is_synced(tmp_path: Path) -> None:
    """What was acknowledged outlives a loss of power, as far as the disk keeps its word."""
    async with open_journal(tmp_path / "run.db") as journal:
        asked = ("PRAGMA synchronous", "PRAGMA journal_mode")
        found = [await journal._writer.ask(partial(_first, query)) for query in asked]
    assert found == [2, "wal"]


def _first(query: str, backend: Backend) -> object:
    return backend.fetch(query)[0][0]


# A file and its WAL ------------------------------------------------------------------------------


def copy_while_open(path: Path, copy: Path, *endings: str) -> None:
    for ending in endings:
        shutil.copyfile(f"{path}{ending}", f"{copy}{ending}")


async def test_a_copy_without_its_wal_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """Seen first as "there is no journal yet" when read, and as an empty journal when written to:
    everything was paid for a second time."""
    path, alone, whole = (tmp_path / name for name in ("run.db", "alone.db", "whole.db"))
    async with open_journal(path) as journal:
        batch = await journal.open_batch("nightly", target="t", settings={})
        copy_while_open(path, tmp_path / "early.db", "")
        entry = batch.find(0, 0)
        [number] = await batch.begin([entry])
        await batch.end(entry, number, Ending(status="ok", value="1"))
        copy_while_open(path, alone, "")
        copy_while_open(path, whole, "", "-wal")
    for copy in (alone, tmp_path / "early.db"):
        before = copy.read_bytes()
        for look in (read_journal, edit_journal):
            with pytest.raises(JournalError, match=r"isn't complete.*-wal.*Bring both"):
                with look(copy):
                    pass
        with pytest.raises(JournalError, match=rf"isn't complete.*process {os.getpid()} on"):
            async with open_journal(copy):
                pass
        assert copy.read_bytes() == before
        assert f"{copy.name}-wal" not in os.listdir(tmp_path)
    assert await read_all(whole, 1) == 1
    # As the message says, for whom the WAL is lost for good.
    (tmp_path / "alone.db-wal").touch()
    assert await read_all(alone, 1) == 0


async def test_a_journal_that_was_closed_is_complete_without_a_wal(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    await make(path, 3)
    with read_journal(path) as reader:
        assert reader.counts("nightly") == {"ok": 3}
    assert await read_all(path, 3) == 3
    assert sorted(os.listdir(tmp_path)) == ["run.db", "run.db-lock"]
    shutil.copyfile(path, tmp_path / "copy.db")
    assert await read_all(tmp_path / "copy.db", 3) == 3


async def test_a_reader_who_reads_on_delays_the_mark_and_not_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it reads can't be overwritten, so the mark waits, and comes with a later commit."""
    monkeypatch.setattr(_sqlite, "MARK_SECONDS", 0.01)
    path, copy = tmp_path / "run.db", tmp_path / "copy.db"
    await make(path, 3)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM harness_items").fetchone()
    async with open_journal(path) as journal:
        batch = await journal.open_batch("nightly", target="t", settings={})
        await batch.begin([batch.find("a", 0)])
        reader.execute("COMMIT")
        await batch.begin([batch.find("b", 0)])
        copy_while_open(path, copy, "")
        reader.close()
    with pytest.raises(JournalError, match="isn't complete"):
        await read_all(copy)


async def test_a_wal_that_is_removed_while_it_is_written_to_ends_the_batch(tmp_path: Path) -> None:
    """Seen first as 500 more results that were acknowledged, and in no file after a kill."""
    path = tmp_path / "run.db"
    with pytest.raises(JournalError, match=r"the -wal of the journal .* was removed or replaced"):
        async with open_journal(path) as journal:
            batch = await journal.open_batch("nightly", target="t", settings={})
            entry = batch.find(0, 0)
            [number] = await batch.begin([entry])
            await batch.end(entry, number, Ending(status="ok", value="1"))
            os.unlink(f"{path}-wal")
            with pytest.raises(JournalError, match="-wal of the journal"):
                await batch.begin([batch.find(1, 0)])
    # SQLite had it open, so what was acknowledged is in the file.
    assert await read_all(path, 1) == 1


# Reading without the right to write --------------------------------------------------------------


@needs_permissions
async def test_reading_needs_no_right_to_write(tmp_path: Path) -> None:
    """Seen first as "can't be written to", said to somebody who wanted to look."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    path = folder / "run.db"
    await make(path, 3)
    before = path.read_bytes()
    with as_somebody(tmp_path, folder):
        with read_journal(path) as reader:
            assert reader.counts("nightly") == {"ok": 3}
            assert [item.key for item in reader.items("nightly")] == [0, 1, 2]
    assert path.read_bytes() == before
    assert sorted(os.listdir(folder)) == ["run.db", "run.db-lock"]


@needs_permissions
async def test_what_changes_while_it_is_read_without_locks_is_not_believed(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    path = folder / "run.db"
    await make(path, 3)
    with as_somebody(tmp_path, folder):
        reading = read_journal(path)
        reader = reading.__enter__()
    await make(path, 4)
    with pytest.raises(JournalLockedError, match="opened for writing while it was read"):
        reader.counts("nightly")
    with pytest.raises(JournalLockedError, match="opened for writing while it was read"):
        list(reader.items("nightly"))
    reading.__exit__(None, None, None)


@needs_permissions
async def test_what_is_written_to_is_not_read_without_locks(tmp_path: Path) -> None:
    """By whom may not write beside it: what is in the WAL would be missing."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    path = folder / "run.db"
    await make(path, 3)
    copy_while_open(path, folder / "killed.db", "")
    (folder / "killed.db-wal").touch()
    with FileLock(str(path), this_process()), as_somebody(tmp_path, folder):
        with pytest.raises(JournalError, match=r"unable to open|readonly"):
            with read_journal(path):
                pass
    with as_somebody(tmp_path, folder):
        with pytest.raises(JournalError, match="newest records are in its -wal"):
            with read_journal(folder / "killed.db"):
                pass


@pytest.mark.skipif(sys.platform != "linux", reason="mounts as Linux does")
async def test_a_read_only_mount_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    await make(folder / "run.db", 3)
    if not mounted("--bind", folder, folder):
        pytest.skip("only root can mount")
    try:
        assert mounted("-o", "remount,bind,ro", folder)
        with read_journal(folder / "run.db") as reader:
            assert reader.counts("nightly") == {"ok": 3}
    finally:
        unmount(folder)


@needs_permissions
async def test_a_lock_file_of_another_user_locks_all_the_same(tmp_path: Path) -> None:
    """Root had looked after the batch once, and its own user was shut out from then on."""
    folder = tmp_path / "shared"
    folder.mkdir()
    path = folder / "run.db"
    await make(path, 3)
    path.chmod(0o666)
    folder.chmod(0o777)
    with as_somebody(tmp_path):
        assert await read_all(path, 3) == 3
        with FileLock(str(path), this_process()), pytest.raises(JournalLockedError):
            await read_all(path, 3)


# What is taken for a journal, or for its lock ----------------------------------------------------


async def test_a_hard_link_is_refused(tmp_path: Path) -> None:
    """Each name has a lock and a WAL of its own, so two would write at once."""
    path, link = tmp_path / "run.db", tmp_path / "link.db"
    await make(path, 3)
    os.link(path, link)
    for name in (path, link):
        with pytest.raises(JournalError, match=r"has 2 names.*hard link.*copy"):
            await read_all(name, 3)
    link.unlink()
    assert await read_all(path, 3) == 3


async def test_a_lock_file_that_is_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    lock = tmp_path / "run.db-lock"
    lock.write_text("My own notes on locks.\n")
    with pytest.raises(JournalError, match=r"run\.db-lock' is not a journal's lock file"):
        await make(tmp_path / "run.db", 3)
    assert lock.read_text() == "My own notes on locks.\n"
    lock.unlink()
    lock.mkdir()
    with pytest.raises(JournalError, match=r"run\.db-lock' can't be opened"):
        await make(tmp_path / "run.db", 3)


@pytest.mark.parametrize("address", ["mysql://h/db", "sqlite:///x.db"])
def test_an_address_of_no_known_server_is_named(address: str) -> None:
    """Seen first as a folder "mysql:" that is missing."""
    scheme = address.partition(":")[0]
    with pytest.raises(ValueError, match=rf"{scheme}://.*postgresql://"):
        open_journal(address)
    with pytest.raises(ValueError, match=rf"{scheme}://"):
        with read_journal(address):
            pass


# Versions ----------------------------------------------------------------------------------------


def test_version_1_is_what_it_was() -> None:
    """Journals of version 1 are on disks: a change to it has to become a migration."""
    script = _schema.FIRST.format(**_sqlite.SqliteBackend.types)
    assert script == FOREIGN_VERSION_1.read_text()


async def test_a_journal_of_an_older_version_is_brought_to_this_one(
    journal_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that is in it; and all of it or nothing, whatever goes wrong in between."""
    await make(journal_path, 5)  # type: ignore[arg-type]
    migrations = _schema.MIGRATIONS
    newest = len(migrations)
    broken = "ALTER TABLE harness_items ADD COLUMN note TEXT; SELECT * FROM missing"
    monkeypatch.setattr(_schema, "MIGRATIONS", (*_schema.MIGRATIONS, broken))
    with pytest.raises(JournalError, match="missing"):
        async with open_journal(journal_path):
            pass
    with pytest.raises(
        JournalFormatError, match=f"version {newest}, and is brought to version {newest + 1}"
    ):
        with read_journal(journal_path):
            pass
    second = "ALTER TABLE harness_items ADD COLUMN note TEXT"
    monkeypatch.setattr(_schema, "MIGRATIONS", (*migrations, second))
    assert await read_all(journal_path, 5) == 5  # type: ignore[arg-type]
    with read_journal(journal_path) as reader:
        assert reader._backend.fetch("SELECT count(*) FROM harness_items WHERE note IS NULL") == [
            (5,)
        ]
    monkeypatch.setattr(_schema, "MIGRATIONS", migrations)
    with pytest.raises(JournalFormatError, match=f"has version {newest + 1}, and this harness"):
        async with open_journal(journal_path):
            pass
