"""``harness batch module:agent``: an agent on every record, with the model that is asked for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.journal import read_journal
from harness.models import Message, ModelRequest
from harness.models._simulated import made_up, simulated

AGENT = """
from typing import Literal
import attrs
from harness.agents import Agent, tool
from harness.models import FunctionModel, ModelResponse, OpenAIModel, ScriptedModel, ToolCall
from harness.limits import Limiter

def loud(request):
    return request.messages[-1].content.upper()

@attrs.frozen
class Label:
    name: str
    sure: bool

@tool
def look_up(card: str, days: int) -> str:
    "Look a card up."
    return f"{card} for {days}"

agent = Agent("loud", model=FunctionModel(loud))
labels = Agent("labels", model=ScriptedModel(['{"name": "card", "sure": true}']), output_type=Label)
openai = Agent("openai", model=OpenAIModel("gpt-4o-mini"))
limited = Agent("limited", model=FunctionModel(loud, limiter=Limiter("own", concurrent=1)))
@tool(approve=True)
def block(card: str) -> str:
    "Block a card."
    return f"{card} is blocked"

def blocking(request):
    last = request.messages[-1]
    if last.role == "tool":
        return last.content
    card, _, also = last.content.partition(" ")
    calls = [ToolCall(str(n), "block", {"card": one}) for n, one in enumerate([card, also])]
    return ModelResponse(tool_calls=calls[: 1 if card == "late" else 2])

blocker = Agent("blocker", model=FunctionModel(blocking), tools=[block])
with_tool = Agent("with_tool", model=FunctionModel(loud), tools=[look_up])
called = 0

class Own:
    "A model of the user's own class."
    async def complete(self, request):
        return ModelResponse(request.messages[-1].content)
    def stream(self, request):
        raise NotImplementedError

own = Agent("own", model=Own())

class Opened(FunctionModel):
    "A model that has to be opened."
    is_open = False
    async def __aenter__(self):
        self.is_open = True
        return self
    async def __aexit__(self, *error):
        self.is_open = False
    async def _ask(self, request):
        assert self.is_open
        return await super()._ask(request)

def delegate(request):
    last = request.messages[-1]
    if last.role == "tool":
        return "the worker says: " + last.content
    return ModelResponse("", tool_calls=[ToolCall("c1", "worker", {"prompt": last.content})])

def seeing_by(request):
    last = request.messages[-1]
    return f"{last.text} {''.join(file.media_type for file in last.files)}"

seeing = Agent("seeing", model=FunctionModel(seeing_by))
nested = Agent("nested", model=FunctionModel(loud), output_type=tuple[tuple[int, Literal["one"]]])
worker = Agent("worker", model=Opened(loud))
boss = Agent("boss", model=FunctionModel(delegate), tools=[worker.as_tool()])
endless = Agent("endless", model=FunctionModel(delegate), tools=[worker.as_tool()], max_turns=1)

async def function(record):
    return record
"""


@pytest.fixture(autouse=True)
def folder(clean_imports: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    (clean_imports / "app.py").write_text(AGENT)
    (clean_imports / "in.csv").write_text("id,text\n1,late card\n2,lost card\n")
    (clean_imports / "in.txt").write_text("late card\nlost card\n")
    return clean_imports


def batch(target: str, *arguments: str, source: str = "in.csv") -> int:
    ways = ("--input", source, "--output", "out.jsonl", "--quiet")
    return main(["batch", f"app.py:{target}", *ways, *arguments])


def values() -> dict[str, Any]:
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    return {line["key"]: line["value"] for line in lines}


# What it is run with -----------------------------------------------------------------------------


def test_prompt_of_a_record_and_output_of_the_reply() -> None:
    assert batch("agent", "--prompt", "text", "--key", "id") == 0
    assert values() == {"1": "LATE CARD", "2": "LOST CARD"}


def test_a_file_goes_with_the_prompt_and_resuming_asks_nothing_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("card.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    Path("files.csv").write_text(
        "id,text,photo\n1,late card,card.png\n2,lost card,\n3,new,no.png\n"
    )
    options = ("--prompt", "text", "--key", "id", "--file", "photo", "--journal", "run.db")
    assert batch("seeing", *options, source="files.csv") == 1
    assert values() == {"1": "late card image/png", "2": "lost card ", "3": None}
    Path("no.png").write_bytes(b"GIF89a")
    assert batch("seeing", *options, "--resume", "--retry-failed", source="files.csv") == 0
    assert values()["3"] == "new image/gif"
    dry = (*options[:6], "--overwrite", "--dry-run")
    assert batch("seeing", *dry, source="files.csv") == 0
    assert "card.png" in capsys.readouterr().out
    assert batch("seeing", "--file", "photo", "--overwrite", source="files.csv") == 2
    assert "add --prompt FIELD" in capsys.readouterr().err


def test_plain_lines_and_json_strings_are_prompts() -> None:
    assert batch("agent", source="in.txt") == 0
    assert sorted(values().values()) == ["LATE CARD", "LOST CARD"]
    Path("in.jsonl").write_text('"a"\n"b"\n')
    assert batch("agent", "--overwrite", source="in.jsonl") == 0
    assert sorted(values().values()) == ["A", "B"]


def test_output_with_a_type_is_written_as_json() -> None:
    assert batch("labels", "--prompt", "text") == 0
    assert list(values().values()) == [{"name": "card", "sure": True}] * 2


def test_simulated_model_calls_each_tool_once() -> None:
    assert batch("with_tool", "--prompt", "text", "--key", "id", "--model", "sim") == 0
    assert values()["1"] == "simulated answer to: late card (the tools say: late card for 1)"


def test_the_simulated_model_costs_nothing() -> None:
    """Every item failed for want of a price, and a batch with a budget could not be tried out."""
    assert batch("with_tool", "--prompt", "text", "--model", "sim", "--budget-usd", "0.01") == 0


def test_limits_hold_per_call_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    """An item with a tool takes two calls, and both count."""
    arguments = ("--prompt", "text", "--model", "sim", "--rpm", "600", "--summary", "s.json")
    assert batch("with_tool", *arguments) == 0
    assert json.loads(Path("s.json").read_text())["limits"]["granted"] == 4


@pytest.mark.parametrize("target", ["agent", "own"])
def test_tokens_per_minute_need_no_count_for_an_agent(target: str) -> None:
    assert batch(target, "--prompt", "text", "--tpm", "100000", "--summary", "s.json") == 0
    limits = json.loads(Path("s.json").read_text())["limits"]
    assert limits["granted"] == 2
    assert limits["tokens"]["used"] > 0


def test_dry_run_shows_prompts_and_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert batch("agent", "--prompt", "text", "--model", "sim", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "app.py:agent on sim" in said
    assert '"late card"' in said


def test_resuming_with_another_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Half of the answers from one model and half from another are no batch of either."""
    journal = ("--prompt", "text", "--key", "id", "--journal", "run.db")
    assert batch("agent", *journal) == 0
    assert batch("agent", *journal, "--resume", "--model", "sim") == 2
    assert "--model" in capsys.readouterr().err


def test_the_journal_has_the_whole_record_and_what_the_model_used() -> None:
    """An agent gets only the prompt; who exports its answers wants the record they belong to."""
    journal = ("--prompt", "text", "--key", "id", "--journal", "run.db", "--with-input")
    assert batch("agent", *journal, "--model", "sim") == 0
    with read_journal("run.db") as reader:
        items = list(reader.items("batch", details=True))
    record = {"id": "1", "text": "late card"}
    assert [json.loads(item.input_text or "") for item in items if item.key == "1"] == [record]
    for item in items:
        assert item.model == "simulated"
        assert item.run_id
        assert item.tokens == (item.input_tokens or 0) + (item.output_tokens or 0) > 0
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert record in [line["input"] for line in lines]


def test_simulated_model_answers_in_the_form_that_is_asked_for() -> None:
    """A batch that is tried out without cost failed at every item of an agent with a type."""
    assert batch("labels", "--prompt", "text", "--key", "id", "--model", "sim") == 0
    assert values() == {
        "1": {"name": "late card", "sure": False},
        "2": {"name": "lost card", "sure": False},
    }
    assert batch("nested", "--prompt", "text", "--model", "sim", "--overwrite") == 0
    assert list(values().values()) == [[[1, "one"]]] * 2


@pytest.mark.parametrize("options", [[], ["--rpm", "600"], ["--model", "sim"]])
def test_agents_that_tasks_are_handed_to_have_an_open_model_too(options: list[str]) -> None:
    """Their model was not opened, or not exchanged, and the batch was fine all the same.

    With ``--model sim`` they would have asked the real one.
    """
    assert batch("boss", "--prompt", "text", "--key", "id", "--summary", "s.json", *options) == 0
    if options == ["--model", "sim"]:
        told = "simulated answer to: late card (the tools say: simulated answer to: late card)"
        assert values()["1"] == told
    else:
        assert values()["1"] == "the worker says: LATE CARD"
    if "--rpm" in options:
        assert json.loads(Path("s.json").read_text())["limits"]["granted"] == 6


def test_agent_out_of_turns_says_so_in_words() -> None:
    assert batch("endless", "--prompt", "text") == 1
    error = json.loads(Path("out.jsonl").read_text().splitlines()[0])["error"]
    assert error.startswith("MaxTurnsError: agent 'endless' used all its turns")


def test_name_that_is_not_there_is_answered_with_the_agents(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert batch("zzzz", "--prompt", "text") == 2
    assert "labels" in capsys.readouterr().err


# What is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "arguments", "words"),
    [
        ("agent", [], "add --prompt FIELD"),
        ("agent", ["--prompt", "body"], "no field 'body'"),
        ("agent", ["--prompt", "text", "--model", "gpt-4o"], "openai:NAME, anthropic:NAME"),
        ("agent", ["--prompt", "text", "--model", "openai:"], "names no model"),
        (
            "agent",
            ["--prompt", "text", "--model", "openai:m", "--budget-usd", "1"],
            "use --budget-tokens",
        ),
        (
            "agent",
            ["--prompt", "text", "--model", "openai:m", "--budget-usd", "1", "--prices", "p.toml"],
            "'openai:m' isn't in p.toml, dated 2026-01-31",
        ),
        ("agent", ["--prompt", "text", "--model", "sim", "--prices", "no.toml"], "no.toml"),
        ("agent", ["--prompt", "text", "--prices", "p.toml"], "add --model"),
        ("agent", ["--prompt", "text", "--tokens", "5", "--tpm", "9"], "counts its own tokens"),
        ("agent", ["--prompt", "text", "--model", "openai:gpt-4o"], "OPENAI_API_KEY"),
        ("agent", ["--prompt", "text", "--model", "anthropic:claude"], "ANTHROPIC_API_KEY"),
        ("openai", ["--prompt", "text"], "OPENAI_API_KEY"),
        ("agent", ["--prompt", "text", "--model", "local:none.gguf"], "none.gguf"),
        ("limited", ["--prompt", "text", "--rpm", "9"], "has a limiter of its own"),
        ("function", ["--prompt", "text"], "--prompt text is for agents"),
        ("function", ["--model", "sim"], "--model sim is for agents"),
        ("function", ["--tpm", "9"], "--tpm 9 needs --tokens"),
    ],
)
def test_what_cant_be_run_is_refused_before_anything_runs(
    target: str, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("p.toml").write_text("dated = 2026-01-31\n")
    assert batch(target, *arguments) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not Path("out.jsonl").exists()


def test_prompt_of_plain_lines_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert batch("agent", "--prompt", "text", source="in.txt") == 2
    assert "each line is a prompt" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["", "  ", "7", "null"])
def test_record_without_a_prompt_is_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = value if value in ("7", "null") else json.dumps(value)
    Path("in.jsonl").write_text(f'{{"text": {text}}}\n')
    assert batch("agent", "--prompt", "text", source="in.jsonl") == 2
    assert "line 1" in capsys.readouterr().err


def test_key_is_never_shown(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nobody listens there, so the error is shown; the key must not stand in it, nor in the log."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-0123")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    arguments = ["--prompt", "text", "--model", "openai:gpt", "--log-level", "debug"]
    assert batch("agent", *arguments) == 1
    said = capfd.readouterr()
    assert "sk-secret" not in said.out + said.err + Path("out.jsonl").read_text()


@pytest.mark.slow
def test_plain_function_loads_no_agents() -> None:
    """A batch of a function must work without what agents need."""
    code = (
        "import sys, harness.cli; "
        "harness.cli.main(['batch', 'plain.py:echo', '--input', 'in.csv', '--output', '-']); "
        "sys.exit('msgspec' in sys.modules or 'openai' in sys.modules)"
    )
    Path("plain.py").write_text("async def echo(record):\n    return record\n")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


# The simulated model -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, "text"),
        ({"type": "integer"}, 1),
        ({"type": "string", "enum": ["a", "b"]}, "a"),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, 1.0),
        ({"type": "object", "properties": {"x": {"type": "boolean"}}}, {"x": False}),
        ({"default": [3]}, [3]),
        ({"const": "c"}, "c"),
        ({"type": "array", "prefixItems": [{"type": "integer"}]}, [1]),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "integer"}}}, 1),
        (
            {
                "$ref": "#/$defs/A",
                "$defs": {
                    "A": {"type": "object", "properties": {"b": {"$ref": "#/$defs/B"}}},
                    "B": {"type": "boolean"},
                },
            },
            {"b": False},
        ),
        ({}, "text"),
    ],
)
def test_arguments_are_made_up_from_the_schema(schema: dict[str, Any], value: Any) -> None:
    assert made_up(schema, "text") == value


def test_simulated_model_answers_without_tools() -> None:
    answer = simulated(ModelRequest([Message("user", "hello")]))
    assert answer.content == "simulated answer to: hello"
    assert not answer.tool_calls


@pytest.mark.slow
def test_what_waits_for_approval_is_shown_answered_and_resumed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ("--prompt", "text", "--key", "id", "--journal", "j.db")
    ways = ["--input", "in.csv", "--output", "out.jsonl", "--summary", "summary.json"]
    assert main(["batch", "app.py:blocker", *ways, *options]) == 3
    told = capsys.readouterr().err
    assert "2 items" in told
    assert "0 ok, 2 waiting for approval" in told
    assert "harness journal show j.db" in told
    assert json.loads(Path("summary.json").read_text())["waiting"] == 2

    assert main(["journal", "show", "j.db"]) == 3
    shown = capsys.readouterr().out
    assert "2 items (0 ok, 2 waiting for approval)" in shown
    calls = dict(re.findall(r'^    (\w{16}) block\({"card": "(\w+)"}\)$', shown, re.MULTILINE))
    assert list(calls.values()) == ["late", "lost", "card"]
    ids = list(calls)

    assert main(["journal", "approve", "j.db", "1"]) == 0
    assert f'approved: {ids[0]} block({{"card": "late"}})' in capsys.readouterr().out
    assert main(["journal", "approve", "j.db", "2"]) == 2
    assert (
        "2 calls of item '2' wait; say which, with --call ID, or --all" in capsys.readouterr().err
    )
    assert main(["journal", "approve", "j.db", "2", "--call", "0000"]) == 2
    assert "no call 0000 waits for approval" in capsys.readouterr().err
    assert main(["journal", "deny", "j.db", "2", "--call", ids[2], "--reason", "not ours"]) == 0
    assert batch("blocker", *options, "--resume") == 3
    assert main(["journal", "approve", "j.db", "2", "--all"]) == 0
    assert batch("blocker", *options, "--resume") == 0
    assert values() == {
        "1": "late is blocked",
        "2": "a person refused this call: not ours",
    }
    assert main(["journal", "show", "j.db"]) == 0
