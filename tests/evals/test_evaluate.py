"""Evaluations: how calls are made and scored, and what doesn't depend on their order."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.agents import Agent
from harness.errors import FanOutError, JournalMismatchError
from harness.evals import Evaluation, Sample, evaluate, judge, read_evaluation, sweep
from harness.journal import open_journal
from harness.models import FunctionModel, ModelRequest, ModelResponse
from harness.testing import assert_isolated, explore_schedules

SAMPLES = [Sample(f"s{n}", n, str(n % 2), group="ab"[n % 2], cluster=n // 4) for n in range(12)]


async def parity(number: int) -> str:
    await trio.sleep(random.random())
    return str(number % 2)


def table(evaluation: Evaluation) -> list[tuple[Any, ...]]:
    return [(one.sample.id, one.repeat, one.status, one.scores) for one in evaluation.scores]


async def test_each_sample_is_called_and_scored(autojump_clock: MockClock) -> None:
    evaluation = await evaluate(parity, SAMPLES, scorers=["exact"], limit=3)
    assert [one.sample for one in evaluation.scores] == SAMPLES
    assert [one.output for one in evaluation.scores] == [one.expected for one in SAMPLES]
    assert evaluation.mean("exact") == evaluation.mean() == 1.0
    low, high = evaluation.interval("exact")
    assert 0 < low < high == 1.0
    assert autojump_clock.current_time() > 1
    assert repr(evaluation) == "<Evaluation of 'parity': 12 calls>"


async def test_a_sample_is_asked_several_times_each_with_its_own_input(
    autojump_clock: MockClock,
) -> None:
    """A call that changes what it was given must not change the next one's question."""

    async def empties(items: list[int]) -> int:
        await trio.sleep(random.random())
        taken = len(items)
        items.clear()
        return taken

    evaluation = await evaluate(
        empties, [{"input": [1, 2], "expected": 2}], scorers=["exact"], repeats=5
    )
    assert [one.repeat for one in evaluation.scores] == [0, 1, 2, 3, 4]
    assert evaluation.mean() == 1.0
    assert evaluation.mean_score().samples == 1


async def test_what_cannot_be_copied_is_handed_over_as_it_is(autojump_clock: MockClock) -> None:
    async def same(given: Any) -> bool:
        await trio.lowlevel.checkpoint()
        return given is lock

    lock = trio.lowlevel.current_trio_token()
    evaluation = await evaluate(same, [{"input": lock, "expected": True}], scorers=["exact"])
    assert evaluation.mean() == 1.0


async def test_a_failed_call_counts_as_wrong_and_is_told(autojump_clock: MockClock) -> None:
    async def sometimes(number: int) -> str:
        await trio.sleep(9 if number == 3 else 0)
        if number < 2:
            raise ValueError("no idea")
        return "1"

    samples = [Sample(n, n, "1") for n in range(8)]
    each = harness.Attempt(timeout=5)
    evaluation = await evaluate(sometimes, samples, scorers=["exact"], each=each)
    mean = evaluation.mean_score()
    assert (mean.mean, mean.failed, mean.calls, mean.mean_without_failed) == (5 / 8, 3, 8, 1.0)
    assert "3 failed, counted as 0 (1.000 without them)" in str(mean)
    assert evaluation.scores[0].error == "ValueError: no idea"
    assert evaluation.scores[3].status == "timed_out"

    left_out = await evaluate(sometimes, samples, scorers=["exact"], each=each, failed=None)
    mean = left_out.mean_score()
    assert (mean.mean, mean.failed, mean.calls) == (1.0, 3, 5)
    assert "3 failed, left out" in str(mean)

    with pytest.raises(FanOutError, match="no idea"):
        await evaluate(sometimes, samples, scorers=["exact"], policy=harness.FailFast())


async def test_what_a_scorer_cannot_score_is_left_out_and_told(autojump_clock: MockClock) -> None:
    def picky(sample: Sample, output: str) -> bool | None:
        if sample.input == 0:
            raise LookupError("not in the table")
        return None if sample.input == 1 else True

    evaluation = await evaluate(parity, SAMPLES, scorers=[picky, "exact"])
    mean = evaluation.mean_score("picky")
    assert (mean.mean, mean.unscored, mean.calls) == (1.0, 2, 10)
    assert "2 not scored, left out" in str(mean)
    assert evaluation.scores[0].unscored == {"picky": "LookupError: not in the table"}
    assert evaluation.scores[1].unscored == {"picky": "the scorer gave no score"}
    assert evaluation.mean_score("exact").unscored == 0


async def test_a_scorer_that_scored_nothing_has_no_mean(autojump_clock: MockClock) -> None:
    def broken(sample: Sample, output: str) -> Any:
        return "good"

    evaluation = await evaluate(parity, SAMPLES, scorers=[broken, "exact"])
    with pytest.raises(ValueError, match=r"'broken' gave no score for any of the 12 .* is a bool"):
        evaluation.mean("broken")
    with pytest.raises(ValueError, match="are 'broken', 'exact'; name one of them, not None"):
        evaluation.mean()
    assert "a score is a bool" in str(evaluation)


async def test_what_was_not_run_is_left_out_and_told(autojump_clock: MockClock) -> None:
    async def stops(number: int) -> str:
        await trio.sleep(0.1)
        if number == 4:
            parent = harness.current_run().parent
            assert parent is not None
            parent.stop("enough")
        return str(number % 2)

    evaluation = await evaluate(stops, SAMPLES, scorers=["exact"], limit=1)
    mean = evaluation.mean_score()
    assert (mean.calls, mean.not_run, mean.mean) == (5, 7, 1.0)
    assert "7 not run, left out" in str(mean)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"repeats": 0}, ValueError, "repeats= takes a whole number from 1"),
        ({"scorers": []}, ValueError, "there are no scorers"),
        ({"samples": []}, ValueError, "there are no samples"),
        ({"fn": 7}, TypeError, "7"),
        ({"limit": 0}, ValueError, "limit"),
    ],
)
async def test_bad_input_is_refused_before_anything_runs(
    change: dict[str, Any], error: type[Exception], words: str
) -> None:
    given: dict[str, Any] = {"fn": parity, "samples": SAMPLES, "scorers": ["exact"]} | change
    with pytest.raises(error, match=words):
        await evaluate(**given)


async def test_a_plain_function_is_refused_by_its_name() -> None:
    def plain(number: int) -> Any:
        return number

    with pytest.raises(TypeError, match="plain"):
        await evaluate(plain, SAMPLES, scorers=["exact"])


# The same at any limit, in any order -------------------------------------------------------------


@pytest.mark.slow
@explore_schedules(schedules=15)
async def test_scores_do_not_depend_on_the_schedule() -> None:
    """Under every schedule, and at every limit, they are those of one call after another."""

    async def answer(number: int) -> str:
        await trio.lowlevel.checkpoint()
        if number == 3:
            raise ValueError("no")
        return str(number % 2)

    async def says(prompt: str) -> bool:
        await trio.lowlevel.checkpoint()
        return "Answer:\n1" in prompt

    samples = SAMPLES[:4]
    scorers: list[Any] = ["exact", judge(says)]
    alone = await evaluate(answer, samples, scorers=scorers, limit=1)
    for limit in (2, 4):
        together = await evaluate(answer, samples, scorers=scorers, limit=limit)
        assert table(together) == table(alone)
        assert str(together) == str(alone)


async def evaluated_agent(question: str) -> str:
    await trio.lowlevel.checkpoint()
    return question.upper()


_asked: list[str] = []


async def leaking_agent(question: str) -> str:
    _asked.append(question)
    await trio.lowlevel.checkpoint()
    return _asked[-1].upper()


async def scores_of(name: str) -> list[tuple[Any, ...]]:
    agent = {"sound": evaluated_agent, "leaking": leaking_agent}[name]
    samples = [Sample(text, text, text.upper()) for text in ("a", "b", "c")]
    return table(await evaluate(agent, samples, scorers=["exact"]))


@pytest.mark.slow
async def test_evaluations_side_by_side_are_isolated() -> None:
    assert await assert_isolated(scores_of, ["sound", "sound"], schedules=20)


@pytest.mark.slow
async def test_an_agent_that_leaks_scores_worse_together_than_alone() -> None:
    """One after another all are right: so it is the evaluation that has to be concurrent."""
    samples = [Sample(text, text, text.upper()) for text in ("a", "b", "c")]
    alone = await evaluate(leaking_agent, samples, scorers=["exact"], limit=1)
    together = await evaluate(leaking_agent, samples, scorers=["exact"])
    _asked.clear()
    assert alone.mean() == 1.0
    assert together.mean() == pytest.approx(1 / 3)
    with pytest.raises(AssertionError, match="_asked"):
        await assert_isolated(leaking_agent, ["a", "b", "c"], schedules=20)


# Agents, and judges ------------------------------------------------------------------------------


def desk(name: str, *replies: str) -> Agent[str]:
    """An agent that says by turns what it is given, or repeats its prompt."""
    said = list(replies)

    async def complete(request: ModelRequest) -> ModelResponse:
        await trio.lowlevel.checkpoint()
        text = said.pop(0) if replies else str(request.messages[-1].content)
        return ModelResponse(text)

    return Agent(name, model=FunctionModel(complete))


async def test_an_agents_output_is_scored_and_not_its_reply() -> None:
    samples = [Sample(1, "blue", "blue"), Sample(2, "red", "blue")]
    for fn in (desk("echo"), desk("echo").run):
        evaluation = await evaluate(fn, samples, scorers=["exact"])
        assert [one.output for one in evaluation.scores] == ["blue", "red"]
        assert evaluation.mean() == 0.5


async def test_an_agent_is_a_judge() -> None:
    verdicts = ["It may be CORRECT, but no: INCORRECT.", "Correct", "who knows"]
    judged = await evaluate(
        desk("echo"),
        [Sample(n, f"question {n}", "reference") for n in range(3)],
        scorers=[judge(desk("judge", *verdicts))],
        limit=1,
    )
    assert [one.scores for one in judged.scores] == [{"judge": False}, {"judge": True}, {}]
    assert "neither CORRECT nor INCORRECT" in judged.scores[2].unscored["judge"]
    assert judged.mean_score().unscored == 1


async def test_a_judge_sees_question_reference_and_answer(autojump_clock: MockClock) -> None:
    seen: list[str] = []

    async def says(prompt: str) -> str:
        await trio.lowlevel.checkpoint()
        seen.append(prompt)
        return "I give it a 4"

    marks = judge(says, scale=(1, 5), name="marks")
    evaluation = await evaluate(parity, [Sample(1, 7, "one")], scorers=[marks])
    assert evaluation.mean("marks") == 0.75
    assert seen[0].startswith("Question:\n7\n\nReference:\none\n\nAnswer:\n1\n\nReply with one num")
    evaluation = await evaluate(
        parity, [Sample(1, 7)], scorers=[judge(says, scale=(5, 9), question="Well?")]
    )
    assert "Reference" not in seen[1]
    assert seen[1].endswith("Well?")
    assert "not a number from 5 to 9" in evaluation.scores[0].unscored["judge"]
    with pytest.raises(ValueError, match="the lowest and the highest mark"):
        judge(says, scale=(5, 1))
    bad: Any = "agent"
    with pytest.raises(TypeError, match="takes an agent or an async function"):
        judge(bad)


# With a journal ----------------------------------------------------------------------------------


class Counting:
    """An agent and a judge that count how often they are asked."""

    def __init__(self) -> None:
        self.answered = self.judged = 0

    async def answer(self, number: int) -> str:
        await trio.lowlevel.checkpoint()
        self.answered += 1
        if number == 2 and self.answered < 6:
            raise ValueError("not today")
        return str(number % 2)

    async def judge(self, prompt: str) -> bool:
        await trio.lowlevel.checkpoint()
        self.judged += 1
        return True


@pytest.mark.slow
async def test_what_is_in_the_journal_is_not_paid_for_again(tmp_path: Path) -> None:
    asked = Counting()
    samples = SAMPLES[:4]

    async def run(*, retry_failed: bool = False, repeats: int = 1, more: Any = ()) -> Evaluation:
        path = tmp_path / "eval.db"
        async with open_journal(path, retry_failed=retry_failed, kept="return") as journal:
            return await evaluate(
                asked.answer,
                samples,
                scorers=[judge(asked.judge), *more],
                repeats=repeats,
                journal=journal,
                name="desk",
            )

    first = await run()
    assert (asked.answered, asked.judged) == (4, 3)
    again = await run(more=["exact"])
    assert (asked.answered, asked.judged) == (4, 3)
    assert [one.status for one in again.scores] == [one.status for one in first.scores]
    assert again.mean("judge") == first.mean("judge") == 0.75
    assert again.mean("exact") == 0.75
    retried = await run(retry_failed=True)
    assert (asked.answered, asked.judged) == (5, 3)
    assert retried.mean_score("judge").failed == 1
    repeated = await run(retry_failed=True, repeats=2)
    assert (asked.answered, asked.judged) == (10, 8)
    assert repeated.mean("judge") == 1.0


@pytest.mark.slow
async def test_another_expectation_has_only_the_judge_asked_again(tmp_path: Path) -> None:
    asked = Counting()
    for expected, judged in (("1", 1), ("one", 2)):
        async with open_journal(tmp_path / "eval.db") as journal:
            await evaluate(
                asked.answer,
                [Sample(1, 1, expected)],
                scorers=[judge(asked.judge)],
                journal=journal,
                name="desk",
            )
        assert (asked.answered, asked.judged) == (1, judged)


async def test_another_question_is_not_taken_for_the_judges_first(tmp_path: Path) -> None:
    asked = Counting()
    options: dict[str, Any] = {"name": "desk"}
    async with open_journal(tmp_path / "eval.db") as journal:
        options["journal"] = journal
        await evaluate(asked.answer, SAMPLES[:1], scorers=[judge(asked.judge)], **options)
        strict = judge(asked.judge, question="Be strict.")
        with pytest.raises(JournalMismatchError, match='question was "Reply with the one word'):
            await evaluate(asked.answer, SAMPLES[:1], scorers=[strict], **options)
        with pytest.raises(JournalMismatchError, match="the function was"):
            await evaluate(parity, SAMPLES[:1], scorers=["exact"], **options)


# Sweeps ------------------------------------------------------------------------------------------


async def test_a_sweep_is_one_fan_out_over_all_combinations(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    calls: list[tuple[str, int]] = []
    running = most = 0

    async def answer(number: int, *, model: str, prompt: int) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(1)
        running -= 1
        calls.append((model, prompt))
        return str(number % 2) if (model, prompt) == ("large", 2) else "0"

    prompts = {"brief": 1, "long": 2}

    async def swept(models: list[str]) -> Any:
        async with open_journal(tmp_path / "sweep.db") as journal:
            return await sweep(
                answer,
                SAMPLES,
                over={"model": models, "prompt": prompts},
                scorers=["exact"],
                limit=20,
                journal=journal,
            )

    found = await swept(["small", "large"])
    assert (len(calls), most) == (48, 20)
    assert list(found.evaluations) == [
        ("small", "brief"),
        ("small", "long"),
        ("large", "brief"),
        ("large", "long"),
    ]
    assert found.best() == ("large", "long")
    assert found["large", "long"].mean() == 1.0
    assert found["small", "brief"].compare(found["large", "long"]).difference == 0.5
    assert str(found).splitlines()[0].split() == [
        "model/prompt",
        "scorer",
        "mean",
        "95",
        "%",
        "calls",
    ]
    assert [line.split()[0] for line in str(found).splitlines()[1:]] == [
        "small/brief",
        "small/long",
        "large/brief",
        "large/long",
    ]
    calls.clear()
    more = await swept(["small", "large", "huge"])
    assert {model for model, _ in calls} == {"huge"}
    assert len(more.evaluations) == 6
    assert more["large", "brief"].mean() == found["large", "brief"].mean()


async def test_a_sweep_over_one_argument_is_found_by_one_name(autojump_clock: MockClock) -> None:
    async def answer(number: int, model: str) -> str:
        await trio.lowlevel.checkpoint()
        return "0"

    found = await sweep(answer, SAMPLES, over={"model": ["a"]}, scorers=["exact"])
    assert found["a"].name == "a"
    assert repr(found) == "<Sweep of 'answer' over model: 1>"
    with pytest.raises(KeyError, match=r"has no \('b',\); it has \('a',\)"):
        found["b"]
    over: dict[str, Any]
    for over in ({}, {"model": []}):
        with pytest.raises(ValueError, match="nothing to choose from"):
            await sweep(answer, SAMPLES, over=over, scorers=["exact"])


async def test_a_sweep_over_numbers_names_them_by_their_text(autojump_clock: MockClock) -> None:
    async def answer(number: int, *, temperature: float, terse: bool) -> str:
        await trio.lowlevel.checkpoint()
        return str(number % 2) if temperature == 0.5 and terse is True else "x"

    over: dict[str, Any] = {"temperature": [0, 0.5], "terse": [True, False]}
    found = await sweep(answer, SAMPLES, over=over, scorers=["exact"])
    assert found.best() == ("0.5", "True")
    assert found[0.5, True] is found["0.5", "True"]
    assert "0.5/True" in str(found)


async def test_a_sweep_over_what_the_function_does_not_take_is_refused_before_a_call() -> None:
    called = False

    async def answer(number: int, *, model: str) -> str:
        nonlocal called
        await trio.lowlevel.checkpoint()
        called = True
        return "0"

    for over in ({"model": ["a"], "prompt": ["b"]}, {"prompt": ["b"]}):
        with pytest.raises(TypeError, match=r"sweep\(\) calls answer\(input, .*'(model|prompt)'"):
            await sweep(answer, SAMPLES, over=over, scorers=["exact"])
    assert not called


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ("large", r"takes a list of choices for 'model', not 'large'; write \['large'\]"),
        ([object()], "give names"),
        ([1, "1"], "two choices of 'model' named 1"),
    ],
)
async def test_choices_that_cannot_be_told_apart_are_refused_before_a_call(
    choices: Any, says: str
) -> None:
    called = False

    async def answer(number: int, *, model: Any) -> str:
        nonlocal called
        await trio.lowlevel.checkpoint()
        called = True
        return "0"

    with pytest.raises((TypeError, ValueError), match=says):
        await sweep(answer, SAMPLES, over={"model": choices}, scorers=["exact"])
    assert not called


async def test_what_is_written_is_read_back(autojump_clock: MockClock, tmp_path: Path) -> None:
    async def half(number: int) -> str:
        await trio.lowlevel.checkpoint()
        if number == 5:
            raise ValueError("no")
        return "1"

    evaluation = await evaluate(half, SAMPLES, scorers=["exact", lambda sample, output: None])
    path = tmp_path / "scores.jsonl"
    evaluation.write(path)
    assert read_evaluation(path) == evaluation
    assert str(read_evaluation(path)) == str(evaluation)
    path.write_text('{"key": 1}\n')
    with pytest.raises(ValueError, match="line 1: this is no score"):
        read_evaluation(path)
    path.write_text("")
    with pytest.raises(ValueError, match="has no scores"):
        read_evaluation(path)


async def test_outputs_that_json_does_not_know_are_written_as_text(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async def odd(number: int) -> Any:
        await trio.lowlevel.checkpoint()
        return {(1, 2): number} if number else {3}

    evaluation = await evaluate(odd, SAMPLES[:2], scorers={"any": lambda sample, output: True})
    evaluation.write(tmp_path / "scores.jsonl")
    read = read_evaluation(tmp_path / "scores.jsonl")
    assert [one.output for one in read.scores] == ["{3}", "{(1, 2): 1}"]
