"""``harness eval``: a file of samples, a function or an agent, and what it scores."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import harness.evals
from harness.cli import main

AGENT = """
import signal

import trio

from harness.agents import Agent
from harness.models import FunctionModel, ModelResponse

calls = []

async def last_word(question):
    await trio.lowlevel.checkpoint()
    calls.append(question)
    text = question if isinstance(question, str) else question["question"]
    if text.startswith("fail"):
        raise ValueError("no idea")
    return text.split()[-1]

async def forgets(question):
    return fields(question)

async def fields(record):
    await trio.lowlevel.checkpoint()
    return ",".join(sorted(record))

async def interrupted(question):
    if not calls:
        signal.raise_signal(signal.SIGINT)
    calls.append(question)
    await trio.sleep(0.01)
    return "blue"

async def interrupted_twice(question):
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    await trio.sleep_forever()

def length(sample, output):
    return len(output)

async def asked(sample, output):
    await trio.lowlevel.checkpoint()
    return output == sample.expected

async def says(request):
    await trio.lowlevel.checkpoint()
    text = request.messages[-1].text
    if "Answer:" in text:
        return ModelResponse("CORRECT" if "blue" in text else "INCORRECT")
    return ModelResponse(f"It is {text.split()[-1]}.")

desk = Agent("desk", model=FunctionModel(says))
reviewer = Agent("reviewer", model=FunctionModel(says))
"""

RECORDS = [
    {"id": "a", "question": "is it blue", "answer": "blue", "topic": "cold"},
    {"id": "b", "question": "is it red", "answer": "red", "topic": "warm"},
    {"id": "c", "question": "is it blue", "answer": "red", "topic": "warm"},
    {"id": "d", "question": "fail to be blue", "answer": "blue", "topic": "cold"},
]


@pytest.fixture(autouse=True)
def folder(clean_imports: Path) -> Path:
    (clean_imports / "agent.py").write_text(AGENT)
    write(RECORDS)
    return clean_imports


def write(records: list[dict[str, Any]]) -> None:
    Path("in.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))


def evaluate(*arguments: str, target: str = "last_word", file: str = "in.jsonl") -> int:
    common = ("--input", file, "--expected", "answer", "--key", "id", "--quiet")
    return main(["eval", f"agent.py:{target}", *common, *arguments])


PROMPT = ("--prompt", "question")


def test_means_are_told_by_group_with_their_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(*PROMPT, "--scorer", "exact", "--group", "topic", "--confusion") == 1
    told = capsys.readouterr()
    assert told.out.splitlines() == [
        "group  scorer   mean  95 %            calls",
        "all    exact   0.500  0.150 to 0.850      4  1 failed, counted as 0 (0.667 without them)",
        "cold   exact   0.500  0.095 to 0.905      2  1 failed, counted as 0 (1.000 without them)",
        "warm   exact   0.500  0.095 to 0.905      2",
        "expected  (failed)  blue  red",
        "blue             1     1    0",
        "red              0     1    1",
    ]
    assert told.err == "1 without a score: ValueError: no idea\n"


def test_a_function_gets_the_record_without_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate("--scorer", "exact", "--output", "out.jsonl", target="fields") == 0
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert {line["output"] for line in lines} == {"id,question,topic"}
    assert [line["key"] for line in lines] == ["a", "b", "c", "d"]


def test_scorers_of_the_users_own_and_an_agent_as_judge(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(RECORDS[:3])
    scorers = ("--scorer", "agent.py:length", "--scorer", "agent.py:asked", "--scorer", "contains")
    status = evaluate(
        *PROMPT,
        *scorers,
        "--judge",
        "agent.py:reviewer",
        "--json",
        "--group",
        "topic",
        target="desk",
    )
    found = json.loads(capsys.readouterr().out)
    means = {one["scorer"]: one["mean"] for one in found["means"]}
    assert means == {
        "length": pytest.approx(32 / 3),
        "asked": 0.0,
        "contains": pytest.approx(2 / 3),
        "judge": pytest.approx(2 / 3),
    }
    assert status == 0
    assert list(found["groups"]) == ["cold", "warm"]
    assert found["groups"]["cold"][0]["low"] is None  # One number has no interval.


def test_an_evaluation_is_compared_with_an_earlier_one(capsys: pytest.CaptureFixture[str]) -> None:
    write(RECORDS[:3])
    evaluate(*PROMPT, "--scorer", "exact", "--output", "old.jsonl")
    evaluate(*PROMPT, "--scorer", "contains", "--output", "contains.jsonl")
    capsys.readouterr()
    assert evaluate(*PROMPT, "--scorer", "exact", "--compare", "old.jsonl", "--json") == 0
    (compared,) = json.loads(capsys.readouterr().out)["compared"]
    assert (compared["test"], compared["p_value"], compared["pairs"]) == ("McNemar, exact", 1.0, 3)
    assert evaluate(*PROMPT, "--scorer", "exact", "--compare", "old.jsonl") == 0
    assert "compared with old.jsonl: exact: 0.667 -> 0.667" in capsys.readouterr().out
    other = ("--compare", "contains.jsonl", "--output", "new.jsonl")
    assert evaluate(*PROMPT, "--scorer", "exact", *other) == 2
    assert "has scores of other scorers only" in capsys.readouterr().err
    assert not Path("new.jsonl").exists()


def test_repeats_give_pass_at_k_and_a_mean_can_be_demanded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(RECORDS[:3])
    options = (*PROMPT, "--scorer", "exact", "--repeats", "3", "--pass-at", "2")
    assert evaluate(*options, "--at-least", "0.6") == 0
    assert "exact, pass@2: 0.667 (" in capsys.readouterr().out
    assert evaluate(*options, "--at-least", "0.7") == 1
    assert "the mean is below --at-least 0.7" in capsys.readouterr().err


@pytest.mark.slow
def test_with_a_journal_nothing_is_called_twice() -> None:
    options = (*PROMPT, "--scorer", "exact", "--judge", "agent.py:reviewer", "--journal", "run.db")
    for more in ((), ("--scorer", "contains")):
        assert evaluate(*options, *more) == 1
        # As in the next process: there it isn't loaded yet, and has the same name.
        assert len(sys.modules.pop("agent").calls) == (0 if more else 4)


def test_what_is_drawn_keeps_its_place_as_id() -> None:
    common = ("eval", "agent.py:last_word", "--input", "in.jsonl", "--expected", "answer")
    main([*common, *PROMPT, "--scorer", "exact", "--quiet", "--output", "all.jsonl"])
    main([*common, *PROMPT, "--scorer", "exact", "--quiet", "--sample", "2", "--output", "2.jsonl"])
    everything, drawn = (
        {
            line["key"]: line["input"]
            for line in map(json.loads, Path(name).read_text().splitlines())
        }
        for name in ("all.jsonl", "2.jsonl")
    )
    assert len(drawn) == 2
    assert drawn.items() <= everything.items()


@pytest.mark.slow
def test_samples_are_read_from_parquet(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow", reason="reading Parquet is tried where pyarrow is installed")
    table = importlib.import_module("pyarrow").Table.from_pylist(RECORDS[:3])
    importlib.import_module("pyarrow.parquet").write_table(table, "in.parquet")
    assert evaluate(*PROMPT, "--scorer", "exact", file="in.parquet") == 0
    assert "all    exact   0.667" in capsys.readouterr().out


def test_means_are_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    evaluate(*PROMPT, "--scorer", "exact", "--group", "topic", "--svg", "means.svg")
    texts = {one.text for one in ElementTree.parse("means.svg").iter()}
    assert {"cold", "warm", "exact"} <= texts


def test_an_evaluation_that_is_interrupted_tells_what_it_has(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = (*PROMPT, "--scorer", "exact", "--limit", "1")
    assert evaluate(*options, target="interrupted") == 130
    told = capsys.readouterr()
    assert re.search("[1-3] not run, left out", told.out)
    assert "stopping after Ctrl-C" in told.err
    assert evaluate(*options, target="interrupted_twice") == 130
    assert capsys.readouterr().out == ""


def test_plain_lines_are_inputs_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    Path("in.txt").write_text("is it blue\nis it red\n")
    common = ("eval", "agent.py:desk", "--input", "in.txt", "--quiet")
    assert main([*common, "--judge", "agent.py:reviewer"]) == 0
    assert "judge   0.500" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "nothing says how outputs are scored"),
        (("--scorer", "exakt"), "there is no scorer 'exakt'; there are exact"),
        (("--scorer", "agent.py:lenght"), "did you mean 'length'"),
        (("--scorer", "exact", "--pass-at", "2"), "add --repeats 2 or more"),
        (("--scorer", "exact", "--group", "topik"), "no field 'topik'; its fields are"),
        (("--scorer", "exact", "--compare", "none.jsonl"), "can't be compared with"),
        (("--scorer", "exact", "--svg", "in.jsonl"), "is the input itself"),
        (("--scorer", "exact", "--svg", "in.jsonl", "--overwrite"), "is the input itself"),
        (("--scorer", "exact", "--svg", "agent.py"), "already exists"),
        (("--scorer", "exact", "--svg", "."), "is a folder"),
        (("--scorer", "exact", "--svg", "a", "--output", "./a"), "--svg and --output both name"),
        (("--scorer", "exact", "--svg", "a", "--journal", "a"), "--svg and --journal both name"),
        (("--scorer", "exact", "--output", "no/out.jsonl"), "there is no folder 'no'"),
        (("--scorer", "exact", "--scorer", "exact"), "another scorer is called 'exact' too"),
        (("--scorer", "exact", "--at-least", "nan"), "nan is not a mean"),
        (("--scorer", "exact", "--confusion", "--json"), "leave one of them out"),
        (("--scorer", "exact", "--output", "-"), "--output - is no file"),
        (("--scorer", "exact", "--tokens", "5"), "give both or none"),
        (("--scorer", "exact", "--retry-failed"), "add --journal FILE"),
        (("--scorer", "exact", "--model", "sim"), "is for agents"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(*PROMPT, *arguments) == 2
    assert words in capsys.readouterr().err
    assert not Path("out.jsonl").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full disk at hand")
def test_means_are_told_even_if_the_disk_is_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(*PROMPT, "--scorer", "exact", "--output", "/dev/full") == 2
    told = capsys.readouterr()
    assert "all    exact   0.500" in told.out
    assert "Error: writing" in told.err


def test_an_input_that_is_no_set_of_samples_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    write([RECORDS[0], RECORDS[0]])
    assert evaluate(*PROMPT, "--scorer", "exact") == 2
    assert "two samples have the id 'a'" in capsys.readouterr().err
    Path("in.jsonl").write_text('{"id": 1\n')
    assert evaluate(*PROMPT, "--scorer", "exact") == 2
    assert "in.jsonl, line 1: expected one JSON value" in capsys.readouterr().err
    common = ("eval", "agent.py:last_word", "--input", "in.jsonl")
    assert main([*common, "--scorer", "exact"]) == 2
    assert "add --expected FIELD" in capsys.readouterr().err


def test_a_log_for_inspect_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = importlib.import_module("harness.cli._eval")
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert evaluate(*PROMPT, "--scorer", "exact", "--inspect-log", "a.eval") == 2
    assert "run: pip install inspect-ai" in capsys.readouterr().err


def test_without_the_extra_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(name: str) -> Any:
        raise ImportError(f"harness.evals.{name} needs scipy, which is not installed; run: ...")

    monkeypatch.setattr(harness.evals, "__getattr__", load)
    monkeypatch.delitem(sys.modules, "harness.cli._eval", raising=False)
    assert evaluate(*PROMPT, "--scorer", "exact") == 2
    assert "needs scipy, which is not installed" in capsys.readouterr().err


@pytest.mark.filterwarnings("error")
def test_a_forgotten_await_is_named_as_from_python(capsys: pytest.CaptureFixture[str]) -> None:
    Path("one.jsonl").write_text(json.dumps(RECORDS[0]))
    common = ("--input", "one.jsonl", "--expected", "answer", "--scorer", "exact")
    assert main(["eval", "agent.py:forgets", *common, "--quiet"]) == 1
    words = "forgets() returned the coroutine fields(), which nobody awaited; write `return await"
    assert words in capsys.readouterr().err
