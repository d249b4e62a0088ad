"""``harness batch`` as a process: real signals, pipes and terminals. Short, on a real clock."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

import harness
from harness.journal import read_journal
from tests.scale import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.real_clock,
    pytest.mark.skipif(os.name != "posix", reason="sends signals"),
]

ROOT = Path(harness.__file__).parents[1]

AGENT = """
import time
import trio

async def nap(seconds):
    await trio.sleep(float(seconds))
    return seconds

async def nap_of(record):
    await trio.sleep(record["seconds"])

async def block(seconds):
    time.sleep(float(seconds))

async def echo(text):
    return text
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(AGENT)
    return tmp_path


@contextlib.contextmanager
def batch(
    target: str, *arguments: str, stderr: int = subprocess.PIPE, **given: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command; end it if the test doesn't."""
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", "batch", f"agent.py:{target}", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "120"},
        stderr=stderr,
        **given,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def until(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.01)


def line_count(path: str = "out.jsonl") -> int:
    with contextlib.suppress(FileNotFoundError):
        return Path(path).read_bytes().count(b"\n")
    return 0


def lines(path: str = "out.jsonl") -> list[dict[str, Any]]:
    content = Path(path).read_bytes()
    assert content.endswith(b"\n"), "half a line"
    return [json.loads(line) for line in content.splitlines()]


def said(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    return process.stderr.read().decode()


def inputs(*seconds: float) -> list[str]:
    Path("in.txt").write_text("".join(f"{s}\n" for s in seconds))
    return ["--input", "in.txt", "--output", "out.jsonl"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interruption_keeps_what_ended_and_what_is_in_flight(number: signal.Signals) -> None:
    arguments = inputs(0, 0, *[1.5] * 3, *[60] * 1_000)
    with batch("nap", *arguments, "--limit", "3") as process:
        until(lambda: line_count() == 2)
        process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) == 130
        assert "in flight may finish" in said(process)
    assert [line["status"] for line in lines()] == ["ok"] * 5


@pytest.mark.slow
def test_half_of_a_surrogate_pair_in_a_key_or_a_record_is_shown_as_an_escape() -> None:
    """Both commands died of it, on a terminal as in a pipe."""
    Path("in.jsonl").write_text('{"id": "k\\udcb2"}\n')
    Path("agent.py").write_text("async def fails(record):\n    raise ValueError(record['id'])\n")
    batch = ["batch", "agent.py:fails", "--input", "in.jsonl", "--key", "id", "--quiet"]
    batch += ["--output", "out.jsonl", "--journal", "run.db"]
    for words, status in (
        ([*batch, "--dry-run"], 0),
        (batch, 1),
        (["journal", "show", "run.db", "--failures"], 1),
    ):
        ended = subprocess.run(
            [sys.executable, "-m", "harness", *words],
            capture_output=True,
            timeout=PATIENCE_SECONDS,
            check=False,
            env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        )
        assert ended.returncode == status, ended.stderr.decode()
        assert words == batch or b"k\\udcb2" in ended.stdout


@pytest.mark.parametrize("loading", ["harness", "trio", "harness.fanout._engine", "click"])
def test_interruption_while_the_command_is_loading_ends_quietly(loading: str) -> None:
    """It showed a traceback out of whatever was being imported."""
    program = f"""
import sys

class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == {loading!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
from harness_command import main
sys.exit(main(["--version"]))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")


def test_interruption_of_the_import_of_the_users_module_ends_quietly() -> None:
    """A model that is loaded there may take a minute, and its frames tell nobody anything."""
    Path("agent.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(600)\n")
    with batch("nap", *inputs(0), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"importing\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130
        assert said(process).strip() == ""
    assert not Path("out.jsonl").exists()


@pytest.mark.slow
def test_second_interruption_ends_at_once_and_keeps_whole_lines() -> None:
    with batch("nap", *inputs(0, 0, *[600] * 1_000), "--grace", "600") as process:
        until(lambda: line_count() == 2)
        process.send_signal(signal.SIGINT)
        errors = process.stderr
        assert errors is not None
        until(lambda: b"in flight may finish" in errors.readline())
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130
    statuses = [line["status"] for line in lines()]
    assert statuses[:2] == ["ok", "ok"]
    assert set(statuses[2:]) == {"cancelled"}


@pytest.mark.slow
def test_interruption_of_a_resumed_batch_writes_what_standard_output_waits_for() -> None:
    """What the journal has comes first, and stands where the input was not read to."""
    records = [{"id": number, "seconds": 0 if number < 50 else 60} for number in range(1_000)]
    Path("in.jsonl").write_text(json.dumps(records[999]).replace("60", "0") + "\n")
    arguments = ["--input", "in.jsonl", "--key", "id", "--journal", "run.db", "--limit", "3"]
    with batch("nap_of", *arguments, "--output", "out.jsonl") as process:
        assert process.wait(PATIENCE_SECONDS) == 0
    Path("in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    resumed = [*arguments, "--resume", "--output", "-", "--grace", "0"]
    with batch("nap_of", *resumed, stdout=subprocess.PIPE) as process:
        until(lambda: done_in_journal("run.db") == 51)
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        out = process.stdout.read()
        assert process.wait(PATIENCE_SECONDS) == 130
    assert out.endswith(b"\n")
    ended = [json.loads(line) for line in out.splitlines()]
    assert sorted(line["index"] for line in ended if line["status"] == "ok") == list(range(50))


def done_in_journal(path: str) -> int:
    with read_journal(path) as reader:
        return reader.totals("batch").ok


@pytest.mark.slow
def test_interruption_while_standard_input_says_nothing_ends_at_once() -> None:
    """Neither the reading thread nor the interpreter's own end may wait for the pipe."""
    with batch("echo", "--input", "-", "--output", "out.jsonl", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        # Both are written although the pipe is still open.
        until(lambda: line_count() == 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130
        assert "Fatal" not in said(process)


@pytest.mark.slow
def test_third_interruption_ends_even_what_blocks_the_loop() -> None:
    with batch("block", *inputs(0, 600), "--limit", "1") as process:
        until(lambda: line_count() == 1)
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            time.sleep(0.05)  # Signals of one kind that come together count once.
        assert process.wait(PATIENCE_SECONDS) == 130
        assert "third Ctrl-C" in said(process)
    assert len(lines()) == 1


@pytest.mark.slow
def test_killed_process_has_written_whole_lines_of_all_that_ended() -> None:
    with batch("nap", *inputs(*[0.001] * 20_000)) as process:
        until(lambda: line_count() >= 500)
        process.kill()
        process.wait()
    assert len(lines()) >= 500


@pytest.mark.slow
def test_reader_of_standard_output_may_leave() -> None:
    Path("in.txt").write_text("x\n" * 100_000)
    with batch("echo", "--input", "in.txt", "--output", "-", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE_SECONDS) == 1
        errors = said(process)
    assert json.loads(first)["status"] == "ok"
    assert "whoever read the results has gone" in errors
    assert "Traceback" not in errors
    assert "Exception ignored" not in errors


@pytest.mark.slow
def test_pipe_to_pipe(folder: Path) -> None:
    content = "".join(f"{i}\n" for i in range(5_000)).encode()
    with batch(
        "echo",
        *["--input", "-", "--output", "-", "--ordered", "--quiet"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        out, err = process.communicate(content, timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert [json.loads(line)["value"] for line in out.splitlines()] == content.decode().split()
    assert err == b""


@pytest.mark.long
def test_plain_lines_of_progress_without_a_terminal() -> None:
    with batch("nap", *inputs(*[0.3] * 8), "--limit", "1") as process:
        assert process.wait(PATIENCE_SECONDS) == 0
        errors = said(process)
    assert " of 8 done, 0 failed, 1 in flight, " in errors
    assert "\x1b" not in errors


@pytest.mark.slow
def test_bar_on_a_terminal() -> None:
    """Drawn on standard error, and gone at the end; the summary stays."""
    pty = pytest.importorskip("pty")
    controller, terminal = pty.openpty()
    with batch("nap", *inputs(*[0.2] * 8), "--limit", "1", stderr=terminal) as process:
        os.close(terminal)
        with open(controller, "rb", buffering=0) as screen:
            drawn = read_all(screen)
        assert process.wait(PATIENCE_SECONDS) == 0
    text = drawn.decode()
    assert "8 done, 0 failed, 1 in flight" in text
    assert "\x1b[?25l" in text
    assert text.count("\x1b[?25h") == 1
    assert "8 items in" in text.rpartition("\x1b[?25h")[2]


def read_all(screen: IO[bytes]) -> bytes:
    """Read a terminal until the program behind it has ended; Linux calls that an error."""
    parts = []
    with contextlib.suppress(OSError):
        while part := screen.read(4096):
            parts.append(part)
    return b"".join(parts)
