"""``harness batch`` in several processes: those that join one journal, and workers of a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.cli import _workers, main
from harness.errors import ClusterError
from harness.journal import read_journal
from tests.cluster.fake_workers import FakeCluster
from tests.journal.conftest import postgres_path, postgres_server

__all__ = ["postgres_path", "postgres_server"]

AGENT = """
import harness
import trio

async def double(record):
    await trio.sleep(0.001)
    if record == 3:
        raise ValueError("three")
    return [2 * record, harness.current_run().path]
"""


@pytest.fixture(autouse=True)
def folder(clean_imports: Path) -> Path:
    (clean_imports / "agent.py").write_text(AGENT)
    (clean_imports / "in.jsonl").write_text("".join(f"{number}\n" for number in range(6)))
    return clean_imports


def batch(*arguments: str) -> int:
    return main(["batch", "agent.py:double", "--input", "in.jsonl", *arguments])


def lines(file: str) -> list[Any]:
    read = [json.loads(line) for line in Path(file).read_text().splitlines()]
    return [
        {name: line[name] for name in ("key", "index", "status", "value", "error", "attempts")}
        for line in sorted(read, key=lambda line: line["index"])
    ]


# Sessions that join -----------------------------------------------------------------------------


@pytest.mark.slow
def test_whoever_joins_goes_on_with_what_is_there(
    postgres_path: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    joined = ["--journal", postgres_path, "--join", "--lease", "5"]
    assert batch(*joined) == 1  # One record fails.
    first = capsys.readouterr().err
    assert "results: postgresql://" in first
    assert batch(*joined) == 1
    with read_journal(postgres_path) as reader:
        assert reader.counts("batch") == {"ok": 5, "failed": 1}
        assert reader.totals("batch").attempts == 6
    assert not [path for path in Path().iterdir() if path.name not in ("agent.py", "in.jsonl")]
    assert batch(*joined, "--dry-run") == 0
    assert "into    the journal, with all that join it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--output", "o", "--join"], "--join says how to go on with a journal, and none is given"),
        (["--join", "--journal", "run.db"], "needs a journal on a server, and run.db is a file"),
        (["--join", "--journal", "postgresql://h/d", "--output", "o"], "can't be written with"),
        (["--output", "o", "--lease", "3"], "--lease 3.0 is about sharing a journal"),
        (["--join", "--journal", "postgresql://h/d", "--lease", "0.5"], "0.5 is too short"),
        ([], "--output is missing"),
    ],
)
def test_what_does_not_go_with_joining_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert batch(*arguments) == 2
    assert words in capsys.readouterr().err


# Workers ----------------------------------------------------------------------------------------


def use_fakes(monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[FakeCluster]:
    made: list[FakeCluster] = []

    def make(address: str | None, *, workers: int) -> FakeCluster:
        made.append(FakeCluster(workers=workers, **options))
        return made[-1]

    monkeypatch.setattr(_workers, "RayCluster", make)
    return made


@pytest.mark.slow
def test_a_batch_in_workers_writes_what_one_without_does(monkeypatch: pytest.MonkeyPatch) -> None:
    made = use_fakes(monkeypatch)
    assert batch("--output", "alone.jsonl") == 1
    assert batch("--output", "out.jsonl", "--workers", "3", "--retry", "2") == 1
    [cluster] = made
    assert len(cluster.connections) == 3
    assert sum(connection.calls for connection in cluster.connections) == 7
    alone, out = lines("alone.jsonl"), lines("out.jsonl")
    assert out[3].pop("attempts") == 2
    assert alone[3].pop("attempts") == 1
    assert out == alone
    assert out[2]["value"] == [4, "batch/2"]


@pytest.mark.slow
def test_workers_that_are_gone_end_the_batch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what they had not done is open, not failed: it is done when the batch is resumed."""
    made = use_fakes(monkeypatch)
    real = FakeCluster.remote

    def remote(self: FakeCluster, fn: Any) -> Any:
        self.transport.die_at_start = 100
        for connection in self.connections:
            connection.kill()
        return real(self, fn)

    monkeypatch.setattr(FakeCluster, "remote", remote)
    given = ["--output", "out.jsonl", "--workers", "1", "--journal", "run.db"]
    assert batch(*given) == 1
    assert "3 workers in a row ended as they started" in capsys.readouterr().err
    monkeypatch.setattr(FakeCluster, "remote", real)
    assert batch(*given, "--resume") == 1
    assert [line["status"] for line in lines("out.jsonl")].count("ok") == 5
    assert len(made) == 2


def test_workers_that_cannot_be_had_are_said_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Unreachable(FakeCluster):
        def _transport(self) -> Any:
            raise ClusterError("no cluster at 'ray://nowhere'")

    monkeypatch.setattr(_workers, "RayCluster", lambda address, *, workers: Unreachable())
    assert batch("--output", "out.jsonl", "--cluster", "ray://nowhere") == 2
    assert "the workers can't be started: no cluster at" in capsys.readouterr().err
    assert not Path("out.jsonl").exists()
