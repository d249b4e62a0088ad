"""The triage agent: what it answers, alone and in company, and what the demo reports."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
import triage
from simulated_model import Message, ModelOverloadedError, SimulatedModel
from tests.examples.headers import promised_output
from tests.scale import PATIENCE_SECONDS
from tests.support.same_as_alone import assert_same_as_alone

ROOT = Path(__file__).parents[2]
BANKING = ROOT.parent / "shared" / "data" / "banking77.csv"
BANKING_EXAMPLES = BANKING.with_name("banking77_train.csv")


@pytest.fixture(autouse=True)
def fresh_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a model that has seen nobody yet."""
    monkeypatch.setattr(triage, "MODEL", SimulatedModel(answer=triage.MODEL.answer))


def tickets(count: int) -> list[str]:
    """Return as many tickets as asked for, each another text."""
    with (ROOT / "examples" / "tickets.csv").open(newline="", encoding="utf-8") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    return [f"{texts[number % len(texts)]} [{number}]" for number in range(count)]


async def triage_alone(record: Any) -> triage.Answer:
    (result,) = await harness.fan_out(
        triage.triage, [record], policy=harness.BestEffort(), each=triage.EACH_TICKET
    )
    return result.value


# One ticket --------------------------------------------------------------------------------------


async def test_a_ticket_is_a_text_or_a_record(autojump_clock: MockClock) -> None:
    triage.MODEL.failure_rate = 0
    text = "The app crashes as soon as I open the graph."
    plain = await triage_alone(text)
    assert plain["category"] == "app_crash"
    assert plain["expected"] is None
    assert await triage_alone({"text": text, "id": 7}) == plain
    for field in ("category", "label"):
        labelled = await triage_alone({"text": text, field: "app_crash"})
        assert labelled == {**plain, "expected": "app_crash"}


async def test_an_unsure_model_is_shown_similar_tickets(autojump_clock: MockClock) -> None:
    triage.MODEL.failure_rate = 0
    seen: list[list[Message]] = []

    def hesitant(chat: Any) -> str:
        seen.append(list(chat))
        return json.dumps({"category": "billing", "confidence": 0.1 * len(seen)})

    triage.MODEL.answer = hesitant
    answer = await triage_alone("I was charged for a plan that I cancelled.")
    assert answer == {
        "category": "billing",
        "confidence": 0.2,
        "expected": None,
        "model_calls": 2,
    }
    assert [message["role"] for message in seen[-1]] == ["system", "user", "assistant", "user"]
    shown = json.loads(seen[-1][-1]["content"])["similar_tickets"]
    assert len(shown) == triage.SIMILAR_TICKETS_PER_CALL
    assert {"billing", "cancellation"} <= {ticket["category"] for ticket in shown}


async def test_a_model_that_is_never_sure_is_asked_three_times(autojump_clock: MockClock) -> None:
    triage.MODEL.failure_rate = 0
    shown: list[str] = []

    def clueless(chat: Any) -> str:
        question = json.loads(chat[-1]["content"])
        shown.extend(ticket["text"] for ticket in question.get("similar_tickets", ()))
        return '{"category": "login", "confidence": 0.0}'

    triage.MODEL.answer = clueless
    answer = await triage_alone("Please help me with my account and my plan")
    assert answer["model_calls"] == triage.MOST_MODEL_CALLS
    assert len(set(shown)) == len(shown) == 2 * triage.SIMILAR_TICKETS_PER_CALL


@pytest.mark.parametrize("record", ["", " \n", {"id": 3}, {"text": None}, {"text": 5}, 7])
async def test_a_ticket_without_a_text_is_refused(record: Any) -> None:
    with pytest.raises(ValueError, match="a ticket is a text with at least one word"):
        await triage_alone(record)


async def test_a_category_that_no_example_has_is_refused() -> None:
    """It is the wrong examples for this input, and would look like a bad model."""
    with pytest.raises(ValueError, match=r"'card_arrival'.*set TRIAGE_EXAMPLES to a CSV file"):
        await triage_alone({"text": "where is my card", "category": "card_arrival"})


async def test_a_retry_starts_with_no_messages(autojump_clock: MockClock) -> None:
    """What a failed attempt has said must not reach the next one."""
    triage.MODEL.failure_rate = 1
    seen: list[int] = []
    answer = triage.MODEL.answer

    def counting(chat: Any) -> str:
        seen.append(len(chat))
        return answer(chat)

    triage.MODEL.answer = counting
    (result,) = await harness.fan_out(
        triage.triage, ["App closes, please help"], each=triage.EACH_TICKET
    )
    assert result.attempts == 3
    assert seen[0] == 2


# Many tickets ------------------------------------------------------------------------------------


class SharedMessages:
    """The fault of the case study: one list on the class, for every run there will ever be."""

    messages: list[Message] = []  # noqa: RUF012  # That it is shared is the point.

    def get(self) -> list[Message]:
        return self.messages


@pytest.mark.slow
@pytest.mark.parametrize("count", [10, 1_000])
async def test_together_as_alone(autojump_clock: MockClock, count: int) -> None:
    await assert_same_as_alone(triage.triage, tickets(count), each=triage.EACH_TICKET)


@pytest.mark.slow
@pytest.mark.parametrize("count", [10, 1_000])
async def test_the_comparison_catches_shared_messages(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The same agent function, only with messages that all runs share.

    One after another its runs are right, so it passes every test but this one.
    """
    monkeypatch.setattr(SharedMessages, "messages", [])
    monkeypatch.setattr(triage, "messages", SharedMessages())
    with pytest.raises(AssertionError, match=f"of {count} inputs gave something else together"):
        await assert_same_as_alone(triage.triage, tickets(count), each=triage.EACH_TICKET)


async def test_shared_messages_are_right_one_after_another(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the test above would catch a plainly broken agent, not a leak."""
    right = [await triage_alone(text) for text in tickets(50)]
    monkeypatch.setattr(SharedMessages, "messages", [])
    monkeypatch.setattr(triage, "messages", SharedMessages())
    assert [await triage_alone(text) for text in tickets(50)] == right


@pytest.mark.slow
async def test_every_failure_is_recovered(autojump_clock: MockClock) -> None:
    triage.MODEL.failure_rate = 0.5
    results = await harness.fan_out(triage.triage, tickets(200), each=triage.EACH_TICKET)
    assert results.complete
    assert sum(result.attempts > 1 for result in results) > 50


async def test_without_retries_the_failures_show(autojump_clock: MockClock) -> None:
    triage.MODEL.failure_rate = 0.5
    results = await harness.fan_out(triage.triage, tickets(200), policy=harness.BestEffort())
    assert 50 < len(results.failed) < 180
    assert {type(result.error) for result in results.failed} == {ModelOverloadedError}


def test_the_demo_prints_what_its_header_promises(capsys: pytest.CaptureFixture[str]) -> None:
    trio.run(triage.main, clock=MockClock(autojump_threshold=0))
    assert capsys.readouterr().out.splitlines() == promised_output(triage)


# From the command line ---------------------------------------------------------------------------


def harness_batch(input_file: Path, output: Path, *, examples: Path | None = None) -> list[Any]:
    """Run the command as docs/reference/command-line.md shows it, and return the lines it wrote."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop(triage.EXAMPLES_VARIABLE, None)
    if examples is not None:
        environment[triage.EXAMPLES_VARIABLE] = str(examples)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "harness", "batch", "examples/triage.py:triage"),
            *("--input", str(input_file), "--output", str(output), "--retry", "3"),
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]


def share_right(lines: list[Any]) -> float:
    values = [line["value"] for line in lines]
    right = [value for value in values if value["category"] == value["expected"]]
    return len(right) / len(values)


@pytest.mark.slow
@pytest.mark.real_clock
def test_our_tickets_by_the_command(tmp_path: Path) -> None:
    lines = harness_batch(ROOT / "examples" / "tickets.csv", tmp_path / "answers.jsonl")
    assert sorted(line["index"] for line in lines) == list(range(132))
    assert {line["status"] for line in lines} == {"ok"}
    assert share_right(lines) > 0.9


@pytest.mark.real_clock
@pytest.mark.skipif(not BANKING.exists(), reason="the bank's messages are not on this machine")
def test_3080_bank_messages_by_the_command(tmp_path: Path) -> None:
    """Real input: what people wrote, with all the quotes, line breaks and odd spacing."""
    lines = harness_batch(BANKING, tmp_path / "answers.jsonl", examples=BANKING_EXAMPLES)
    assert sorted(line["index"] for line in lines) == list(range(3_080))
    assert {line["status"] for line in lines} == {"ok"}
    assert any(line["attempts"] > 1 for line in lines)
    assert share_right(lines) > 0.86
