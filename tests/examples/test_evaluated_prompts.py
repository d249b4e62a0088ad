"""The example of two prompts that a judge compares, and an evaluation of real messages."""

from __future__ import annotations

import csv

import pytest
import trio
from trio.testing import MockClock

import evaluated_prompts
from harness.evals import Evaluation, evaluate, read_samples
from nearest_example import LabelledExamples
from tests.examples.headers import promised_output
from tests.examples.test_triage import BANKING, BANKING_EXAMPLES
from tests.scale import scaled


@pytest.mark.slow
def test_it_prints_what_its_header_promises(capsys: pytest.CaptureFixture[str]) -> None:
    trio.run(evaluated_prompts.main, clock=MockClock(autojump_threshold=0))
    assert capsys.readouterr().out.splitlines() == promised_output(evaluated_prompts)


@pytest.mark.slow
@pytest.mark.skipif(not BANKING.exists(), reason="the bank's messages are not on this machine")
async def test_bank_messages_are_evaluated_per_category() -> None:
    """The same at any limit, with an interval for each of the 77 categories."""
    with BANKING_EXAMPLES.open(newline="", encoding="utf-8") as file:
        rows = [(row["text"], row["category"]) for row in csv.DictReader(file)]
    examples = LabelledExamples(rows[:: scaled(5, full=1)])
    answers: dict[str, str] = {}

    async def category(text: str) -> str:
        await trio.lowlevel.checkpoint()
        if text not in answers:
            similarities = examples.category_similarities(text)
            answers[text] = max(similarities, key=similarities.__getitem__)
        return answers[text]

    samples = read_samples(BANKING, input="text", expected="category", group="category")
    assert len(samples) == 3_080
    samples = samples[:: scaled(8, full=1)]

    async def evaluated(limit: int) -> Evaluation:
        return await evaluate(category, samples, scorers=["exact"], limit=limit)

    evaluation = await evaluated(50)
    groups = evaluation.by_group()
    assert len(groups) == 77
    low, high = evaluation.interval()
    assert 0.6 < low < evaluation.mean() < high < 0.9
    for group in groups.values():
        low, high = group.interval()
        assert 0 <= low <= group.mean() <= high <= 1
        assert low < high
    wrong = evaluation.confusion().mistakes()
    missed = sum(not one.scores["exact"] for one in evaluation.scores)
    assert sum(count for *_, count in wrong) == missed
    assert str(await evaluated(1)) == str(evaluation)
