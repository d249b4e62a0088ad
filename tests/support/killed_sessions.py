"""Run sessions of a batch in processes of their own, and kill them where a test says.

A process that only waits for orders imports harness once, and forks a child for each session. So a
session costs what it does, and not the start of an interpreter, and a test can afford a kill at
every boundary there is. The points at which a child kills itself are patched into its copy of the
program; nothing in harness knows of them.

This file is both: the test imports `Sessions`, which runs it as a script for the other side.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 500.0


class Sessions:
    """Starts sessions, one after another, and says how they ended."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.folder = Path()
        """Where they run."""

    def run(self, **order: Any) -> int:
        """Run a session; return its exit status, or minus the signal that ended it.

        See `one_session` for what may be ordered. ``signals`` are sent to it from outside: each is
        the number of lines that it has to write into ``log.txt`` first, the seconds to wait after
        that, and the signal.
        """
        order["folder"] = str(self.folder)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the process that runs the sessions has gone"
        return int(answer)


@contextmanager
def open_sessions() -> Iterator[Sessions]:
    """Start the process that forks."""
    process = subprocess.Popen(
        [sys.executable, __file__],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Sessions(process)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(PATIENCE_SECONDS)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


# The other side ----------------------------------------------------------------------------------


def serve() -> None:
    """Fork a child for each order, and answer how it ended."""
    import harness.cli  # noqa: PLC0415  # Only this side needs it, once for all children.
    import harness.journal  # noqa: F401, PLC0415

    for line in sys.stdin:
        order = json.loads(line)
        signals = order.pop("signals", [])
        log_file = Path(order["folder"], "log.txt")
        lines_before = _lines_in(log_file)
        child = os.fork()
        if not child:
            os._exit(_status_of(order))
        for lines, seconds, number in signals:
            while _lines_in(log_file) < lines_before + lines and not _has_ended(child):
                time.sleep(0.001)
            time.sleep(seconds)
            os.kill(child, number)  # Also if it has ended: it is waited for only now.
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _lines_in(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def _has_ended(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _status_of(order: dict[str, Any]) -> int:
    try:
        os.chdir(order.pop("folder"))
        random.seed(order.pop("seed", 0))
        if "file_size_at_most" in order:
            size = order.pop("file_size_at_most")
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        # Standard output is for answers.
        log = os.open("stderr.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if "point" in order:
            kill_at(*order.pop("point"))
        if "command" in order:
            return harness_main(order["command"])
        if "pipeline" in order:
            pipeline_session(order["pipeline"], order["items"])
        else:
            one_session(**order)
        return 0
    except BaseException:
        traceback.print_exc()
        return 70
    finally:
        sys.stderr.flush()
        sys.stdout.flush()


def harness_main(command: list[str]) -> int:
    """Run the command line."""
    from harness.cli import main  # noqa: PLC0415

    return main(command)


def one_session(
    *,
    items: list[Any],
    limit: int = 3,
    window: int | None = None,
    sleep_seconds: float = 0.001,
    deadly: list[Any] | None = None,
    hanging: list[Any] | None = None,
    on_unknown: Literal["raise", "retry"] | None = None,
    **journal_options: Any,
) -> None:
    """Run a batch over ``items`` with the journal in ``run.db``, and log what it does.

    Each line of ``log.txt`` is one write to the system: ``start`` and ``end`` of the function,
    ``result`` when a result was read, each with the key, and ``session`` at the begin. With
    ``on_unknown`` each call of the function has one ``effect``, logged with its idempotency key.
    """
    import trio  # noqa: PLC0415

    import harness  # noqa: PLC0415
    from harness.journal import open_journal  # noqa: PLC0415
    from harness.shared import Once, open_once  # noqa: PLC0415

    once: Once

    async def work(item: Any) -> Any:
        log("start", item)
        if on_unknown is not None:

            async def effect(key: str) -> None:
                await trio.lowlevel.checkpoint()
                log("effect", f"{item} {key}")

            await once(f"effect of {item}", effect)
        if item in (deadly or ()):
            await trio.sleep(sleep_seconds)
            os.kill(os.getpid(), signal.SIGKILL)
        if item in (hanging or ()):
            await trio.sleep_forever()
        await trio.sleep(sleep_seconds * random.random())
        log("end", item)
        return {"item": item}

    async def session() -> None:
        log("session", "")
        nonlocal once
        async with (
            open_journal("run.db", **journal_options) as journal,
            open_once(journal=journal, on_unknown=on_unknown or "raise") as once,
        ):
            async with harness.open_fan_out(
                work,
                items,
                policy=harness.BestEffort(),
                limit=limit,
                window=window,
                journal=journal,
                key=str,
                name="batch",
            ) as stream:
                async for result in stream:
                    log("result", f"{result.key} {result.status} {result.attempts}")
        log("done", "")

    trio.run(session)


def pipeline_session(seed: int, items: list[Any]) -> None:
    """Run the pipeline or router of a seed over ``items``, and log what it does."""
    import trio  # noqa: PLC0415

    import harness  # noqa: PLC0415
    from harness.journal import open_journal  # noqa: PLC0415
    from tests.support.random_pipelines import flow_of, line_of  # noqa: PLC0415

    async def session() -> None:
        log("session", "")
        flow = flow_of(seed, log)
        async with (
            open_journal("run.db", kept="return") as journal,
            flow.open(
                items, key=lambda item: item[0], journal=journal, policy=harness.BestEffort()
            ) as stream,
        ):
            async for result in stream:
                log("result", line_of(result))
        log("done", "")

    trio.run(session)


_counts: dict[str, int] = {}
_point: tuple[str, int] | None = None


def log(what: str, about: Any) -> None:
    """Write a line, and die if this is the place."""
    die_at(f"before {what}")
    file = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{what} {about}\n".encode())
    os.close(file)
    die_at(f"after {what}")


def die_at(place: str) -> None:
    """Count how often the program came to a place; kill it if that is the point."""
    _counts[place] = _counts.get(place, 0) + 1
    if (place, _counts[place]) == _point:
        os.kill(os.getpid(), signal.SIGKILL)


def kill_at(place: str, count: int) -> None:
    """Die when the program comes to a place for the n-th time.

    The places: ``before`` and ``after`` each kind of line in the log, and ``before commit``,
    ``in transaction`` and ``after commit`` of the journal's file.
    """
    from harness.journal._schema import COLUMNS  # noqa: PLC0415
    from harness.journal._sqlite import SqliteBackend  # noqa: PLC0415

    global _point
    _point = (place, count)

    def dying_in_transaction(rows: Any) -> Callable[[str], None]:
        # What was written and is not committed yet. A statement is traced before it is run, and
        # one that has triggers again before each of them: the last row's come last.
        triggers = 0
        if isinstance(rows, Mapping):
            lengths = [len(values) // len(COLUMNS[table]) for table, values in rows.items()]
            triggers = sum(lengths) * (len(COLUMNS) + 1)
        traced = 0

        def trace(sql: str) -> None:
            nonlocal traced
            traced += sql.startswith("INSERT INTO harness_group")
            if sql.startswith("COMMIT") or (triggers and traced == triggers):
                die_at("in transaction")

        return trace

    def dying(write: Callable[..., Any]) -> Callable[..., Any]:
        def write_and_die(self: Any, *given: Any) -> Any:
            die_at("before commit")
            self._connection.set_trace_callback(dying_in_transaction(*given))
            written = write(self, *given)
            die_at("after commit")
            return written

        return write_and_die

    # Of attempts and endings, and of effects.
    SqliteBackend.write = dying(SqliteBackend.write)  # type: ignore[method-assign]
    SqliteBackend.change = dying(SqliteBackend.change)  # type: ignore[method-assign]


if __name__ == "__main__":
    serve()
