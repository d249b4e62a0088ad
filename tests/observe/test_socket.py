"""The socket by which the user's other programs look at this one."""

from __future__ import annotations

import io
import json
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
import trio
from rich.console import Console
from trio.testing import MockClock, wait_all_tasks_blocked

import harness
from harness.cli import main
from harness.cli._top import drawn, follow
from harness.errors import NotObservableError
from harness.observe import open_dashboard, open_socket
from harness.observe._live import Live, pictured
from harness.observe._socket import Connection, folder, observable


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / f"harness-{os.getuid()}"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


async def test_the_socket_is_the_users_alone_and_goes_with_the_block(own_folder: Path) -> None:
    old = os.umask(0)  # The worst that a user may have set.
    try:
        async with open_socket() as path:
            assert path == own_folder / f"{os.getpid()}.sock"
            assert (mode(own_folder), mode(path)) == (0o700, 0o600)
    finally:
        os.umask(old)
    assert not path.exists()


def spoil(folder: Path, how: str) -> None:
    if how == "open to others":
        folder.mkdir()
        folder.chmod(0o755)
    elif how == "a link":
        elsewhere = folder.with_name("elsewhere")
        elsewhere.mkdir(mode=0o700)
        folder.symlink_to(elsewhere)
    else:
        folder.touch(mode=0o600)


@pytest.mark.parametrize("spoiled", ["open to others", "a link", "a file"])
async def test_a_folder_that_is_not_the_users_alone_is_refused(
    spoiled: str, own_folder: Path, tmp_path: Path
) -> None:
    """In a folder for everybody, somebody else may have made it first, to read along."""
    spoil(own_folder, spoiled)
    with pytest.raises(NotObservableError, match="yours alone"):
        async with open_socket():
            raise AssertionError("it was opened")
    with pytest.raises(NotObservableError, match="yours alone"):
        Connection(os.getpid())
    assert not any(name.endswith(".sock") for _, _, names in os.walk(tmp_path) for name in names)


async def ask(pid: int) -> dict[str, object]:
    def look() -> dict[str, object]:
        with Connection(pid) as connection:
            return {"picture": connection.picture(), "dump": connection.dump(with_locals=True)}

    return await trio.to_thread.run_sync(look)


async def test_another_program_sees_the_runs_and_their_dump() -> None:
    async with open_socket(), harness.open_run("nightly\x1b[31m"):
        notes = harness.RunLocal(list, name="notes")
        notes.get().append("api_key=abcdef123456")
        answers = await ask(os.getpid())
    picture = answers["picture"]
    assert isinstance(picture, dict)
    assert picture["pid"] == os.getpid()
    assert [run["name"] for run in picture["runs"]["shown"]] == ["nightly\\x1b[31m"]
    text = str(answers["dump"])
    assert "nightly\\x1b[31m" in text
    assert "notes: ['api_key=[key]']" in text
    assert "\x1b" not in text


async def test_the_socket_keeps_no_run_from_ending_and_leaves_errors_bare() -> None:
    with pytest.raises(ValueError, match="mine"):
        async with harness.open_run("around"), open_socket():
            raise ValueError("mine")
    with trio.move_on_after(0) as scope:
        async with open_socket():
            await trio.sleep_forever()
    assert scope.cancelled_caught


@pytest.mark.parametrize(
    "request_",
    [b"{}\n", b"[]\n", b'{"ask": "cancel"}\n', b"no json\n", b"\xff\xfe\n", b"x" * 10_000],
)
@pytest.mark.slow
async def test_nonsense_does_not_hurt_the_program(request_: bytes) -> None:
    async with open_socket() as path:
        stream = await trio.open_unix_socket(os.fspath(path))
        async with stream:
            await stream.send_all(request_)
            await stream.send_eof()
            heard = b""
            try:
                async for chunk in stream:
                    heard += chunk
            except trio.BrokenResourceError:
                pass
        assert heard == b"" or "error" in json.loads(heard)
        assert (await ask(os.getpid()))["picture"]


async def test_a_second_socket_of_a_process_is_refused() -> None:
    async with open_socket():
        with pytest.raises(NotObservableError, match="has a socket"):
            async with open_socket():
                raise AssertionError("it was opened")
        assert observable() == [os.getpid()]
    assert observable() == []


async def test_what_is_no_socket_in_its_place_is_told(own_folder: Path) -> None:
    place = folder(make=True) / f"{os.getpid()}.sock"
    place.mkdir()
    with pytest.raises(NotObservableError, match="no socket can be opened at"):
        async with open_socket():
            raise AssertionError("it was opened")


def test_what_a_killed_process_left_behind_is_removed(own_folder: Path) -> None:
    folder(make=True)
    left = own_folder / "4711.sock"
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(left))
    assert observable() == []
    assert not left.exists()


def test_a_program_that_is_too_busy_to_answer_keeps_its_socket(own_folder: Path) -> None:
    """Its line is full, because something holds its event loop."""
    folder(make=True)
    path = own_folder / "4711.sock"
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as first:
        busy.bind(str(path))
        busy.listen(0)
        first.connect(str(path))
        assert observable() == [4711]
        assert path.exists()


@pytest.mark.parametrize("open_one", [open_socket, open_dashboard])
async def test_what_is_no_limiter_is_refused(open_one: Any) -> None:
    with pytest.raises(TypeError, match="takes limiters"):
        async with open_one(limiters=["openai"]):
            raise AssertionError("it was opened")


async def test_failed_items_are_counted_by_what_came_up_first(autojump_clock: MockClock) -> None:
    async def fail(item: int) -> None:
        async with harness.open_run("inner"):
            raise (KeyError if item % 3 else ValueError)(f"token=abcdef{item} \x1b[0m")

    async with open_socket():
        await harness.fan_out(fail, range(9), policy=harness.BestEffort(), limit=1, name="batch")
        answers = await ask(os.getpid())
    picture = answers["picture"]
    assert isinstance(picture, dict)
    failures = picture["failures"]
    assert (failures["total"], failures["kinds"]) == (9, [["KeyError", 6], ["ValueError", 3]])
    assert failures["examples"][0] == "0: ValueError: token=[key] \\x1b[0m"
    assert len(failures["examples"]) == 3


# The commands -----------------------------------------------------------------------------------


async def test_top_and_dump_find_the_one_program_by_themselves(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def spin(item: int) -> None:
        await arrived.wait()

    arrived = trio.Event()
    async with open_socket(), trio.open_nursery() as nursery:
        nursery.start_soon(harness.fan_out, spin, range(3))
        await wait_all_tasks_blocked()
        assert await trio.to_thread.run_sync(main, ["top", "--once"]) == 0
        said = capsys.readouterr().out
        assert "3 in flight" in said
        assert "run (4 of 4)" in said
        assert await trio.to_thread.run_sync(main, ["dump", str(os.getpid())]) == 0
        assert "waits for 3 items in flight" in capsys.readouterr().out
        arrived.set()


async def test_top_says_of_how_many_it_shows_the_first(autojump_clock: MockClock) -> None:
    async def fail(item: int) -> None:
        raise OSError(f"{item}")

    with pictured("a test", []) as live:
        for _ in range(30):
            await harness.fan_out(fail, [1], policy=harness.BestEffort())
        console = Console(file=io.StringIO(), width=80)
        console.print(drawn(live.picture(), rows=None, width=80))
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert "(20 of 30 fan-outs)" in said
    assert "failures: 30 (30 OSError), 3 of them:" in said


async def test_top_draws_until_the_program_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    live = Live(program="[bold]nightly[/bold]")
    async with harness.open_run("[red]one"):
        picture = live.picture()
    later = iter([picture])

    class Ending:
        def picture(self) -> dict[str, Any]:
            for one in later:
                return one
            raise NotObservableError("process 1 has ended")

    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, height=12)
    follow(Ending(), picture, console, 2.5)  # type: ignore[arg-type]
    assert slept == [2.5, 2.5]
    said = screen.getvalue()
    assert "[bold]nightly[/bold] (process" in said  # As text, not as rich's markup.
    assert "[red]one" in said
    assert said.rstrip().endswith("process 1 has ended")


@pytest.mark.parametrize("command", ["top", "dump"])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "no program can be looked at"),
        (["99999999"], "can't be looked at"),
        (["../x"], "no process id"),
    ],
)
def test_a_program_that_cannot_be_looked_at_is_named(
    command: str, given: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, *given]) == 2
    assert words in capsys.readouterr().err
