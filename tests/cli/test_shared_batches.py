"""``harness batch`` in several processes: those that join one journal, and workers of a cluster."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import attrs
import pytest

from harness.cli import _workers, main
from harness.cluster._worker import LogsToDriver
from harness.errors import ClusterError
from harness.journal import read_journal
from harness.observe import read_trace
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

MODEL = """
import logging
import harness
from harness.agents import Agent, tool
from harness.models import FunctionModel, ModelResponse, Price, ToolCall, Usage

@tool
async def look_up(card: str) -> str:
    "Look a card up."
    run = harness.current_run()
    logging.getLogger("cards").info("looking %s up", card)
    run.emit_nowait({"seen": card})
    run.keep("card.txt", card)
    if card == "3":
        raise OSError("no such card")
    return f"{card} is lost"

@tool(approve=True)
async def block(card: str) -> str:
    "Block a card."
    return f"{card} is blocked"

PRICE = Price(input_usd_per_million_tokens=10, output_usd_per_million_tokens=20)

def answer(request, name="look_up"):
    last = request.messages[-1]
    usage = Usage(20, 5)
    if last.role == "tool":
        return ModelResponse(last.content, usage=usage)
    call = ToolCall("c", name, {"card": last.content})
    return ModelResponse("", tool_calls=[call], usage=usage)

class Opened(FunctionModel):
    "A model that has to be opened."
    is_open = False
    async def __aenter__(self):
        self.is_open = True
        return self
    async def __aexit__(self, *error):
        self.is_open = False
        with open("closed", "a") as file:
            file.write("x")
    async def _ask(self, request):
        assert self.is_open
        return await super()._ask(request)

cards = Agent("cards", model=Opened(answer, name="m", price=PRICE), tools=[look_up])
blocking = lambda request: answer(request, "block")
blocker = Agent("blocker", model=FunctionModel(blocking, name="m"), tools=[block])
"""


@pytest.fixture(autouse=True)
def folder(clean_imports: Path) -> Path:
    (clean_imports / "agent.py").write_text(AGENT)
    (clean_imports / "model.py").write_text(MODEL)
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
    assert {path.suffix for path in Path().iterdir()} == {".py", ".jsonl"}
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

    def make(address: str | None, **given: Any) -> FakeCluster:
        made.append(FakeCluster(**given, **options))
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


def agents(target: str, name: str, *arguments: str) -> int:
    Path("prompts.txt").write_text("1\n2\n3\n4\n")
    given = ["--input", "prompts.txt", "--output", f"{name}.jsonl", "--journal", f"{name}.db"]
    return main(["batch", f"model.py:{target}", *given, "--keep-logs", *arguments])


def told(name: str) -> Any:
    """Return what a batch's files say, but for its times and ids."""
    with read_journal(f"{name}.db") as reader:
        items = sorted(reader.items("batch", details=True), key=lambda item: str(item.key))
        kept = [
            sorted(
                (one.kind, one.name, one.run_path, one.text, one.content)
                for one in reader.kept("batch", item.key)
            )
            for item in items
        ]
        used = [
            (one.key, one.status, one.model, one.tokens, one.cost_usd, one.input_tokens, one.error)
            for one in items
        ]
        totals = attrs.evolve(reader.totals("batch"), seconds=0, run_seconds=0)
    summary = json.loads(Path(f"{name}.json").read_text())
    for field in ("output", "journal", "seconds", "items_per_second", "totals"):
        del summary[field]
    for field in ("used", "use"):
        summary["limits"]["requests"].pop(field)
    trace = list(read_trace(f"{name}.trace"))
    paths = {one["run_id"]: one["path"] for one in trace if one["type"] == "run_started"}
    first, last = trace[0]["time"], trace[-1]["time"]
    for one in trace:
        one["run_id"], one["parent"] = paths[one["run_id"]], paths.get(one.get("parent", ""))
        assert first <= one.pop("time") <= last
        assert 0 <= one.pop("seconds", 0) <= last - first
        assert one.get("settled", first) <= last
        for field in ("unix", "process", "wait", "settled", "in_flight", "limiter", "on"):
            one.pop(field, None)
    trace.sort(key=json.dumps)
    return lines(f"{name}.jsonl"), kept, used, totals, summary, trace


@pytest.mark.slow
def test_an_agent_in_workers_leaves_what_one_without_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its calls, tools, limits, logs, notes, messages, files, tokens, costs and spans."""
    made = use_fakes(monkeypatch)
    monkeypatch.setattr(logging.getLogger(), "handlers", [LogsToDriver()])
    for name, workers in (("alone", []), ("out", ["--workers", "2"])):
        files = ("--summary", f"{name}.json", "--trace", f"{name}.trace")
        assert agents("cards", name, *files, "--rpm", "6000", *workers) == 0
    [cluster] = made
    assert [connection.calls for connection in cluster.connections] == [2, 2]
    assert told("out") == told("alone")
    assert Path("closed").read_text() == "xxx"


@pytest.mark.slow
def test_calls_of_an_agent_in_a_worker_wait_for_approval(monkeypatch: pytest.MonkeyPatch) -> None:
    use_fakes(monkeypatch)
    assert agents("blocker", "out", "--workers", "1") == 3
    assert [line["status"] for line in lines("out.jsonl")] == ["cancelled"] * 4
    with read_journal("out.db") as reader:
        keys = [str(item.key) for item in reader.waiting("batch")]
    for key in keys:
        assert main(["journal", "approve", "out.db", key]) == 0
    assert agents("blocker", "out", "--workers", "1", "--resume") == 0
    assert lines("out.jsonl")[0]["value"] == "1 is blocked"


@pytest.mark.slow
def test_what_an_agent_lacks_in_a_worker_is_said_as_it_is_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    use_fakes(monkeypatch)
    assert agents("cards", "out", "--workers", "1", "--model", "openai:m") == 2
    assert "in a worker: --model openai:m: " in capsys.readouterr().err
    on_others = ("--cluster", "auto", "--rpm", "9", "--workers", "2")
    assert agents("cards", "out", *on_others) == 2
    assert "add --fleet redis://" in capsys.readouterr().err


def test_workers_that_cannot_be_had_are_said_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Unreachable(FakeCluster):
        def _transport(self) -> Any:
            raise ClusterError("no cluster at 'ray://nowhere'")

    monkeypatch.setattr(_workers, "RayCluster", lambda address, **_: Unreachable())
    assert batch("--output", "out.jsonl", "--cluster", "ray://nowhere") == 2
    assert "the workers can't be started: no cluster at" in capsys.readouterr().err
    assert not Path("out.jsonl").exists()
