"""Let the user's other programs look at this one, through a Unix socket that is theirs alone.

The socket is in a folder that only its owner can enter, and is named after the process. A request
is one line of JSON, and so is the answer; both have a largest size. Nothing that comes in changes
the program.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
import sys
import tempfile
from collections.abc import AsyncGenerator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio

from harness._outside_trio import refuse_outside_trio
from harness.errors import NotObservableError
from harness.limits import Limiter
from harness.observe._beside import beside
from harness.observe._live import Live, pictured
from harness.observe._plain import plain_lines
from harness.runs import dump

logger = logging.getLogger("harness.observe")

REQUEST_BYTES = 4096
ANSWER_BYTES = 64 * 1024 * 1024
CONNECTIONS = 8
"""How many may be open at once; more wait."""

PATIENCE_SECONDS = 10.0
"""How long the other side may take to read an answer, or to write one."""

DUMP_CHARACTERS = 8 * 1024 * 1024


def open_socket(*, limiters: Collection[Limiter] = ()) -> AbstractAsyncContextManager[Path]:
    """Let ``harness top`` and ``harness dump`` look at this program inside the block::

        async with harness.observe.open_socket(limiters=[limiter]):
            await harness.fan_out(classify, tickets)

    They show every run of the program, and the fan-outs that begin in the block. The socket can be
    used by this user alone; nothing that comes in by it changes the program. The body's error comes
    out unchanged, not in a group.

    Args:
      limiters: Whose limits are shown.

    Returns:
      An async context manager, which gives the socket's path.

    Raises:
      TypeError: on entry, if one of ``limiters`` isn't a limiter.
      NotObservableError: on entry, if there can be no such socket, or this process has one.

    Checkpoint: on exit.

    Cancellation: closes the socket.
    """
    return _open(limiters)


@asynccontextmanager
async def _open(limiters: Collection[Limiter]) -> AsyncGenerator[Path, None]:
    refuse_outside_trio("the block of open_socket() was entered")
    with pictured("open_socket()", limiters) as live:
        async with serving(live) as path:
            yield path


@asynccontextmanager
async def serving(live: Live) -> AsyncGenerator[Path, None]:
    """Do what `open_socket` says, with ``live``."""
    path = folder(make=True) / f"{os.getpid()}.sock"
    listening = _listening(path)
    try:
        async with beside(partial(_serve, live, listening), "harness socket"):
            yield path
    finally:
        listening.socket.close()
        path.unlink(missing_ok=True)


# The place --------------------------------------------------------------------------------------


def folder(*, make: bool = False) -> Path:
    """Return the folder of this user's sockets, which nobody else can enter.

    Args:
      make: Whether it is made if it isn't there.

    Raises:
      NotObservableError: if something else is in its place, or others can enter it.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise NotObservableError(f"there are no Unix sockets on {sys.platform}, so nothing to ask")
    path = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    path /= f"harness-{os.getuid()}"
    if make:
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise NotObservableError(f"{path} can't be made: {error.strerror}") from error
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return path
    # In a folder for everybody, such as /tmp, somebody else may have been here first.
    if (
        not stat.S_ISDIR(found.st_mode)
        or found.st_uid != os.getuid()
        or stat.S_IMODE(found.st_mode) & 0o077
    ):
        raise NotObservableError(
            f"{path} is not a folder that is yours alone, so no socket is opened or used in it; "
            f"remove it, or run: chmod 700 {path}"
        )
    return path


def _listening(path: Path) -> trio.SocketListener:
    """Return a socket that listens at ``path``.

    A file that is there was left behind by a process that was killed, unless it answers.
    """
    if _answers(path):
        raise NotObservableError(
            "this process has a socket for harness top already; open one around all that it is to "
            "show"
        )
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        listening.bind(os.fspath(path))
        os.chmod(path, 0o600)
        listening.listen(CONNECTIONS)
    except OSError as error:
        listening.close()
        raise NotObservableError(f"no socket can be opened at {path}: {error}") from error
    return trio.SocketListener(trio.socket.from_stdlib_socket(listening))


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.settimeout(1.0)
        try:
            one.connect(os.fspath(path))
        except (BlockingIOError, TimeoutError):
            return True  # It is there, and too busy to take one more.
        except OSError:
            return False
    return True


# The program that is looked at ------------------------------------------------------------------


async def _serve(live: Live, listening: trio.SocketListener) -> None:
    places = trio.CapacityLimiter(CONNECTIONS)

    async def answer(stream: trio.SocketStream) -> None:
        async with places, stream:
            try:
                await _answer_all(live, stream)
            except (OSError, trio.BrokenResourceError, trio.TooSlowError, ValueError):
                pass  # The other side is gone, or is none of ours.
            except Exception:  # To be looked at must not hurt the program.
                logger.exception("a request for a picture of this program failed")

    try:
        await trio.serve_listeners(answer, [listening])
    except OSError:
        logger.exception("this program can't be looked at any more")


async def _answer_all(live: Live, stream: trio.SocketStream) -> None:
    pending = b""
    while True:
        with trio.fail_after(60.0):  # `top` asks every second; what is silent makes room.
            received = await stream.receive_some(REQUEST_BYTES)
        pending += received
        if not received or len(pending) > REQUEST_BYTES:
            return
        while b"\n" in pending:
            line, _, pending = pending.partition(b"\n")
            text = json.dumps(_answer(live, json.loads(line)), ensure_ascii=True)
            with trio.fail_after(PATIENCE_SECONDS):
                await stream.send_all(f"{text}\n".encode())


def _answer(live: Live, request: Any) -> dict[str, Any]:
    match request:
        case {"ask": "picture"}:
            return {"picture": live.picture()}
        case {"ask": "dump", "locals": bool(with_locals)}:
            text = dump(locals=with_locals)
            return {"dump": plain_lines(text, at_most=DUMP_CHARACTERS)}
        case _:
            return {"error": "ask for a picture or for a dump"}


# The program that looks -------------------------------------------------------------------------


def observable() -> list[int]:
    """Return the processes of this user that can be looked at, the latest first.

    What a killed process left behind is removed.
    """
    found: list[tuple[float, int]] = []
    place = folder()
    for path in place.glob("*.sock") if place.is_dir() else ():
        if not path.stem.isdigit():
            continue
        try:
            since = path.stat().st_mtime
            if _answers(path):
                found.append((since, int(path.stem)))
            else:
                path.unlink()
        except FileNotFoundError:
            pass  # It has ended in between.
    return [pid for _, pid in sorted(found, reverse=True)]


class Connection:
    """A connection to a program that is looked at; closed by leaving its block."""

    def __init__(self, pid: int) -> None:
        """Connect to the program with that process id.

        Raises:
          NotObservableError: if it can't be looked at.
        """
        self._pid = pid
        path = folder() / f"{pid}.sock"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(PATIENCE_SECONDS)
        try:
            self._socket.connect(os.fspath(path))
        except OSError as error:
            self._socket.close()
            others = ", ".join(map(str, observable())) or "none"
            raise NotObservableError(
                f"process {pid} can't be looked at ({error.strerror or error}); harness batch can, "
                "and programs inside `async with harness.observe.open_socket():`; there are now: "
                f"{others}"
            ) from error
        self._reader = self._socket.makefile("rb")

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self._socket.close()

    def picture(self) -> dict[str, Any]:
        """Return what the program is doing.

        Raises:
          NotObservableError: if it has ended or doesn't answer.
        """
        picture: dict[str, Any] = self._ask({"ask": "picture"})["picture"]
        return picture

    def dump(self, *, with_locals: bool = False) -> str:
        """Return the tree of its runs as text; see `harness.dump`.

        Raises:
          NotObservableError: if it has ended or doesn't answer.
        """
        text: str = self._ask({"ask": "dump", "locals": with_locals})["dump"]
        return text

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            line = self._reader.readline(ANSWER_BYTES)
        except TimeoutError:
            raise NotObservableError(
                f"process {self._pid} hasn't answered for {PATIENCE_SECONDS:g} s: something holds "
                "its event loop, such as a call that blocks"
            ) from None
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            raise NotObservableError(f"process {self._pid} has ended, or has closed its socket")
        answer: dict[str, Any] = json.loads(line)
        return answer
