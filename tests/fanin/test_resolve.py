"""`resolve` lets a judge decide; what it can't decide keeps every answer with its evidence."""

from collections import Counter
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from harness.errors import FanOutError
from harness.fanin import UNDECIDED, resolve
from harness.fanout import Result
from tests.fanin.made_results import arrivals, failed, ok
from tests.fanout.probes import Boom, nothing_left_behind

ANSWERS = [
    ok(0, {"city": "Rome", "people": 2.8}, key="atlas"),
    ok(1, {"city": "Oslo", "people": 0.7}, key="atlas"),
    ok(2, {"city": "Rome", "people": 4.3}, key="blog"),
    failed(3, Boom(), key="radio"),
    ok(4, {"city": "Rome", "people": 2.8}, key="census"),
]


def city(value: dict[str, Any]) -> Any:
    return value["city"]


def majority(key: Any, answers: tuple[Result[Any], ...]) -> Any:
    """Return what most say, if at least two say it."""
    [(people, count)] = Counter(answer.value["people"] for answer in answers).most_common(1)
    return people if count > 1 else UNDECIDED


async def slow_majority(key: Any, answers: tuple[Result[Any], ...]) -> Any:
    await trio.sleep(len(answers))
    return majority(key, answers)


@pytest.mark.parametrize("judge", [majority, slow_majority])
async def test_the_judge_decides_each_question(judge: Any, autojump_clock: MockClock) -> None:
    for order in arrivals(ANSWERS):
        with nothing_left_behind():
            rome, oslo = await resolve(order, key=city, judge=judge)
        assert (rome.key, rome.value, rome.decided) == ("Rome", 2.8, True)
        assert [answer.key for answer in rome.answers] == ["atlas", "blog", "census"]
        assert rome.conflict
        assert (oslo.key, oslo.value, oslo.decided) == ("Oslo", None, False)
        assert oslo.answers == (ANSWERS[1],)
        assert not oslo.conflict


async def test_undecided_keeps_every_answer_with_its_evidence() -> None:
    [one] = await resolve(
        [ok(0, "a", key="x"), ok(1, "b", key="y")],
        key=lambda value: "question",
        judge=lambda key, answers: UNDECIDED,
    )
    assert (one.value, one.decided, one.conflict) == (None, False, True)
    assert [(answer.key, answer.value, answer.run_id) for answer in one.answers] == [
        ("x", "a", "run 0"),
        ("y", "b", "run 1"),
    ]


async def test_none_is_a_decision() -> None:
    [one] = await resolve(ANSWERS[:1], key=city, judge=lambda key, answers: None)
    assert (one.value, one.decided) == (None, True)


async def test_judges_work_side_by_side(autojump_clock: MockClock) -> None:
    async def judge(key: Any, answers: Any) -> Any:
        await trio.sleep(10)
        return key

    begin = trio.current_time()
    results = [ok(index, index) for index in range(30)]
    resolved = await resolve(results, key=lambda value: value, judge=judge)
    assert [one.value for one in resolved] == list(range(30))
    assert trio.current_time() - begin == 10


async def test_the_results_own_keys_can_be_the_question() -> None:
    """Several models answer the same question: the values alone don't say which."""
    results = [ok(0, "yes", key="q1"), ok(1, "no", key="q2"), ok(2, "no", key="q1")]
    for order in arrivals(results):
        resolved = await resolve(order, key="key", judge=lambda key, answers: len(answers))
        assert [(one.key, one.value) for one in resolved] == [("q1", 2), ("q2", 1)]


@attrs.define
class Reply:
    output: Any


@attrs.define
class Agent:
    """An agent like this library's: called with one item, it returns a reply."""

    says: Any
    asked: list[str] = attrs.field(factory=list)

    async def __call__(self, item: str, *, deps: Any = None) -> Any:
        self.asked.append(item)
        await trio.lowlevel.checkpoint()
        return self.says


async def test_an_agent_is_asked_in_words() -> None:
    agent = Agent(Reply("about 2.8 million"))
    [one] = await resolve(ANSWERS[:1] + ANSWERS[2:3], key=city, judge=agent)
    assert (one.value, one.decided) == ("about 2.8 million", True)
    [question] = agent.asked
    for words in ("Rome", "2.8", "4.3", "atlas", "blog", "UNDECIDED"):
        assert words in question


@pytest.mark.parametrize("says", ["UNDECIDED", " undecided.\n", Reply("Undecided"), UNDECIDED])
async def test_an_agent_can_leave_it_undecided(says: Any) -> None:
    [one] = await resolve(ANSWERS[:1], key=city, judge=Agent(says))
    assert (one.value, one.decided) == (None, False)


async def test_nothing_to_judge_is_judged() -> None:
    assert await resolve([], key=city, judge=majority) == []
    assert await resolve([failed(0, Boom())], key=city, judge=majority) == []


async def test_values_without_visible_content_conflict_if_they_are_not_equal() -> None:
    one, other = object(), object()
    [same] = await resolve(
        [ok(0, one), ok(1, one)], key=lambda value: 1, judge=lambda key, answers: 1
    )
    [differ] = await resolve(
        [ok(0, one), ok(1, other)], key=lambda value: 1, judge=lambda key, answers: 1
    )
    assert (same.conflict, differ.conflict) == (False, True)


# Bad input ---------------------------------------------------------------------------------------


async def test_a_judge_that_fails_is_named_by_its_question() -> None:
    def judge(key: Any, answers: Any) -> Any:
        raise Boom(key)

    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        await resolve(ANSWERS[:1], key=city, judge=judge)
    assert "'Rome'" in str(caught.value)
    assert isinstance(caught.value.exceptions[0], Boom)


@pytest.mark.parametrize("judge", [None, "majority", str, lambda: 1, lambda a, b, c: 1])
async def test_what_can_not_judge_is_refused(judge: Any) -> None:
    with pytest.raises(TypeError, match="judge"):
        await resolve(ANSWERS, key=city, judge=judge)


async def test_what_is_no_key_is_refused() -> None:
    with pytest.raises(TypeError, match=r"resolve\(key=\.\.\.\) takes a function"):
        await resolve(ANSWERS, key="city", judge=majority)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"returned \['Rome'\] for item 'atlas'"):
        await resolve(ANSWERS, key=lambda value: [city(value)], judge=majority)


def test_undecided_reads_as_what_it_is() -> None:
    assert repr(UNDECIDED) == "UNDECIDED"
