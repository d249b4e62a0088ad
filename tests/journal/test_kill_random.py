"""``kill -9`` at any moment of a large batch on the command line, and again while it is resumed."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scale import scaled
from tests.support.killed_sessions import Sessions, open_sessions

pytestmark = [
    pytest.mark.real_clock,
    pytest.mark.skipif(os.name != "posix", reason="forks and kills processes"),
]

ITEMS = scaled(600, full=2_000)
KILLS = scaled(5, full=50)
LIMIT = 20
WINDOW = 2 * LIMIT
INTERRUPTED = 130

AGENT = """
import os
import trio

def log(line):
    file = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, (line + "\\n").encode())
    os.close(file)

async def work(record):
    log(record["id"])
    await trio.sleep(0.005)
    if record["id"] == "bad":
        raise ValueError("bad")
    return {"of": record["id"]}

async def slow(record):
    log(record["id"])
    await trio.sleep(0.3)
    return record["id"]
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Sessions]:
    with open_sessions() as started:
        yield started


@pytest.fixture
def sessions(server: Sessions, tmp_path: Path) -> Sessions:
    server.folder = tmp_path
    (tmp_path / "agent.py").write_text(AGENT)
    write_input(tmp_path, ITEMS)
    return server


def write_input(folder: Path, count: int) -> None:
    rows = [f"item-{number}" for number in range(count)]
    (folder / "in.csv").write_text("\n".join(["id", *rows]) + "\n")


def command(*more: str, target: str = "work") -> list[str]:
    return [
        *("batch", f"agent.py:{target}", "--input", "in.csv", "--key", "id", "--limit", str(LIMIT)),
        *("--journal", "run.db", "--output", "out.jsonl", "--quiet", *more),
    ]


def lines(path: Path) -> list[dict[str, object]]:
    """Return what is in an output, of which even a killed process leaves whole lines."""
    text = path.read_text() if path.exists() else ""
    assert not text or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def started(folder: Path) -> list[str]:
    log = folder / "log.txt"
    return log.read_text().split() if log.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(scaled(1, full=6)))
def test_killed_at_random_moments(sessions: Sessions, tmp_path: Path, seed: int) -> None:
    draw = random.Random(ITEMS + seed)
    acknowledged: set[object] = set()
    seen = 0
    for kill in range(KILLS):
        more = ["--resume"] if kill else []
        before = set(started(tmp_path))
        moment = (draw.randrange(ITEMS // 4), draw.uniform(0, 0.01), signal.SIGKILL)
        ended = sessions.run(command=command(*more), signals=[moment])
        assert ended in (0, -signal.SIGKILL), (tmp_path / "stderr.txt").read_text()
        log = started(tmp_path)
        session, seen = log[seen:], len(log)
        assert not acknowledged & set(session), "an acknowledged result was computed again"
        assert len(session) == len(set(session))
        assert len(before & set(session)) <= WINDOW, "more than what was in flight ran again"
        for path in (tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"):
            acknowledged |= {line["key"] for line in lines(path)}
    assert sessions.run(command=command("--resume", "--summary", "sum.json")) == 0
    assert not acknowledged & set(started(tmp_path)[seen:])
    output = lines(tmp_path / "out.jsonl")
    assert sorted(str(line["key"]) for line in output) == sorted(
        f"item-{number}" for number in range(ITEMS)
    ), "every key once"
    assert all(line["value"] == {"of": line["key"]} for line in output)
    assert not (tmp_path / "out.jsonl.part").exists()
    totals = json.loads((tmp_path / "sum.json").read_text())["totals"]
    assert totals["ok"] == totals["items"] == ITEMS
    assert totals["attempts"] == ITEMS
    assert totals["lost_attempts"] >= len(started(tmp_path)) - ITEMS


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_leaves_a_journal_to_resume(
    sessions: Sessions, tmp_path: Path, number: signal.Signals
) -> None:
    write_input(tmp_path, 60)
    loud = [word for word in command(target="slow") if word != "--quiet"]
    assert sessions.run(command=loud, signals=[(LIMIT + 1, 0, number)]) == INTERRUPTED
    first = started(tmp_path)
    assert 0 < len(first) < 60
    done = lines(tmp_path / "out.jsonl")
    statuses = {line["status"] for line in done}
    assert statuses <= {"ok", "skipped"}, "what was in flight may finish"
    said = (tmp_path / "stderr.txt").read_text()
    assert "interrupted: run the same command with --resume to go on; run.db has the rest" in said
    assert sessions.run(command=command("--resume", target="slow")) == 0
    assert sorted(started(tmp_path)) == sorted(f"item-{number}" for number in range(60))
    assert len(lines(tmp_path / "out.jsonl")) == 60


@pytest.mark.slow
def test_a_second_ctrl_c_gives_attempts_back(sessions: Sessions, tmp_path: Path) -> None:
    write_input(tmp_path, 30)
    twice = [(LIMIT + 1, 0, signal.SIGINT), (0, 0.05, signal.SIGINT)]
    assert sessions.run(command=command(target="slow"), signals=twice) == INTERRUPTED
    assert {line["status"] for line in lines(tmp_path / "out.jsonl")} >= {"cancelled"}
    assert sessions.run(command=command("--resume", target="slow")) == 0
    assert {line["attempts"] for line in lines(tmp_path / "out.jsonl")} == {1}


@pytest.mark.slow
def test_a_resumed_batch_that_is_interrupted_leaves_the_old_output(
    sessions: Sessions, tmp_path: Path
) -> None:
    write_input(tmp_path, 60)
    sessions.run(command=command(target="slow"), signals=[(LIMIT + 1, 0, signal.SIGTERM)])
    old = (tmp_path / "out.jsonl").read_bytes()
    resumed = [word for word in command("--resume", target="slow") if word != "--quiet"]
    assert sessions.run(command=resumed, signals=[(1, 0, signal.SIGTERM)]) == INTERRUPTED
    assert (tmp_path / "out.jsonl").read_bytes() == old
    assert not (tmp_path / "out.jsonl.part").exists()
    said = (tmp_path / "stderr.txt").read_text()
    assert "results: run.db has them; out.jsonl is written when the batch is over" in said


@pytest.mark.slow
def test_a_full_disk_ends_the_batch_and_keeps_what_was_acknowledged(
    sessions: Sessions, tmp_path: Path
) -> None:
    """A limit on the size of files stands for the disk: the journal is the file that grows."""
    ended = sessions.run(command=command("--limit", "5"), file_size_at_most=120_000)
    assert ended == 1
    said = (tmp_path / "stderr.txt").read_text()
    assert "Error: the journal 'run.db'" in said
    assert "what was acknowledged is kept" in said
    done = {line["key"] for line in lines(tmp_path / "out.jsonl") if line["status"] == "ok"}
    assert done
    before = len(started(tmp_path))
    assert sessions.run(command=command("--resume")) == 0
    assert not done & set(started(tmp_path)[before:])
    assert len(lines(tmp_path / "out.jsonl")) == ITEMS


@pytest.mark.long
def test_a_journal_that_is_written_to_is_locked_and_can_be_read(
    sessions: Sessions, tmp_path: Path
) -> None:
    """The second command is refused, and names the process that has the journal."""
    write_input(tmp_path, 60)
    (tmp_path / "twice.py").write_text(
        "import os, subprocess, sys\n"
        "async def work(record):\n"
        "    if record['id'] == 'item-30':\n"
        "        running = [subprocess.Popen([sys.executable, '-m', 'harness', *words],\n"
        "            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for words in (\n"
        "            ['batch', 'agent.py:work', '--input', 'in.csv', '--key', 'id', '--journal',\n"
        "             'run.db', '--resume', '--output', 'other.jsonl'],\n"
        "            ['journal', 'retry', 'run.db', '--failed'],\n"
        "            ['journal', 'show', 'run.db'],\n"
        "        )]\n"
        "        for one in running:\n"
        "            said, wrong = one.communicate()\n"
        "            print(one.returncode, said, wrong, os.getpid(), file=sys.stderr)\n"
        "    return record['id']\n"
    )
    words = [word.replace("agent.py", "twice.py") for word in command("--limit", "2")]
    assert sessions.run(command=words) == 0
    said = (tmp_path / "stderr.txt").read_text()
    assert said.count("2  Error: ") == 2
    assert said.count("process ") >= 2
    assert "1 batch: " in said, "reading works meanwhile"
    assert not (tmp_path / "other.jsonl").exists()
