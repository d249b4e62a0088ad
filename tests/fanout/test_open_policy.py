"""Anybody can write a policy: what its judge is told, what its words do, and what if it raises."""

from collections import Counter
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError, HarnessError
from harness.flow import Pipeline, Router
from harness.policies import Decision, JoinPolicy, Judge
from tests.fanout.probes import AsyncSource, Boom, Source, nap, nothing_left_behind, statuses


class NoMajorityError(Exception):
    """No value has more than half of the votes."""


class Votes(Judge):
    """Counts equal values."""

    def __init__(self, total: int | None) -> None:
        self.total = total
        self.votes: Counter[Any] = Counter()
        self.ended = 0

    def heard(self, result: Any) -> Decision:
        self.ended += 1
        if result.ok:
            self.votes[result.value] += 1
        return self._decision()

    def total_known(self, total: int) -> Decision:
        self.total = total
        return self._decision()

    def end(self) -> Exception | None:
        return None if self._most() * 2 > (self.total or 0) else NoMajorityError(dict(self.votes))

    def _most(self) -> int:
        return max(self.votes.values(), default=0)

    def _decision(self) -> Decision:
        if self.total is None or self._most() * 2 <= self.total:
            return Decision.GO_ON
        self.why = "more than half agree"
        return Decision.CANCEL


@attrs.frozen
class Majority:
    """More than half of the items have to return the same."""

    def begin(self, total: int | None) -> Judge:
        return Votes(total)


@attrs.define
class Scripted(Judge):
    """Does what a test says, and writes down what it is asked."""

    asked: list[Any] = attrs.field(factory=list)
    at: dict[Any, Any] = attrs.field(factory=dict)
    at_total: Any = Decision.GO_ON
    at_end: Any = None

    def heard(self, result: Any) -> Any:
        self.asked.append((result.key, result.status))
        return _said(self.at.get(result.key, Decision.GO_ON))

    def total_known(self, total: int) -> Any:
        self.asked.append(total)
        return _said(self.at_total)

    def end(self) -> Any:
        return self.at_end if isinstance(self.at_end, Boom) else _said(self.at_end)


def _said(what: Any) -> Any:
    if isinstance(what, type):
        raise what("by the policy")
    return what() if callable(what) else what


@attrs.frozen
class Given:
    """Begins one judge that a test has made."""

    judge: Any

    def begin(self, total: int | None) -> Any:
        return _said(self.judge)


async def parity(item: int) -> int:
    """Return 0 or 1 after as many seconds as the item says; fail if it is negative."""
    await trio.sleep(abs(item))
    if item < 0:
        raise Boom(item)
    return item % 2


def test_the_policies_of_harness_are_join_policies_like_any_other() -> None:
    for policy in (
        harness.FailFast(),
        harness.BestEffort(),
        harness.Quorum(2),
        harness.FirstSuccess(),
        Majority(),
    ):
        assert isinstance(policy, JoinPolicy)
        judge = policy.begin(3)
        assert isinstance(judge, Judge)
        assert policy.begin(3) is not judge


@pytest.mark.parametrize("kind", [list, Source, AsyncSource])
async def test_a_policy_of_ones_own_ends_a_fan_out_early(
    autojump_clock: MockClock, kind: Any
) -> None:
    items = [1, 3, 5, 60, 60] if kind is list else kind(5)
    with nothing_left_behind():
        results = await harness.fan_out(parity, items, policy=Majority())
    if kind is list:
        assert statuses(results) == ["ok", "ok", "ok", "cancelled", "cancelled"]
        assert "more than half agree" in str(results[3].error)
    else:
        assert [result.status for result in results].count("ok") == 5


async def test_what_its_end_returns_is_an_entry_beside_the_failures(
    autojump_clock: MockClock,
) -> None:
    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(parity, [1, 2, -3, 4, 5], policy=Majority(), name="vote")
    assert [type(entry) for entry in caught.value.exceptions] == [Boom, NoMajorityError]
    assert str(caught.value).startswith("run 'vote': NoMajorityError: {1: 2, 0: 2}; 1 item failed")
    assert len(caught.value.results) == 5


async def test_pipelines_routers_and_streams_take_it_too(autojump_clock: MockClock) -> None:
    pipeline = Pipeline(parity)
    assert statuses(await pipeline.run([1, 3, 60], policy=Majority())) == ["ok", "ok", "cancelled"]
    router: Router[int, int] = Router(lambda item: "all", tracks={"all": parity})
    assert statuses(await router.run([1, 3, 60], policy=Majority())) == ["ok", "ok", "cancelled"]
    async with harness.open_fan_out(parity, [1, 3, 60], policy=Majority(), ordered=True) as stream:
        assert [result.status async for result in stream] == ["ok", "ok", "cancelled"]


async def test_a_judge_hears_the_total_first_and_each_item_once(autojump_clock: MockClock) -> None:
    judge = Scripted(at={2: Decision.CANCEL})
    await harness.fan_out(nap, [1, 2, 3, 9, 9, 9], policy=Given(judge), limit=3)
    # The sixth was never started: that is no result to judge.
    assert judge.asked[:4] == [6, (0, "ok"), (1, "ok"), (2, "ok")]
    assert sorted(judge.asked[4:]) == [(3, "cancelled"), (4, "cancelled")]


async def test_of_an_iterator_the_total_comes_last_or_never(autojump_clock: MockClock) -> None:
    judge = Scripted()
    await harness.fan_out(nap, iter([1, 2, 3]), policy=Given(judge), limit=1)
    assert judge.asked == [(0, "ok"), (1, "ok"), (2, "ok"), 3]
    judge = Scripted(at={1: Decision.STOP})
    await harness.fan_out(nap, iter([1, 2, 3]), policy=Given(judge), limit=1)
    assert judge.asked == [(0, "ok"), (1, "ok")]


async def test_a_stop_may_become_a_cancel_and_nothing_else(autojump_clock: MockClock) -> None:
    judge = Scripted(at={0: Decision.STOP, 1: Decision.GO_ON, 2: Decision.CANCEL})
    results = await harness.fan_out(nap, [1, 2, 3, 9, 9], policy=Given(judge), limit=4)
    assert statuses(results) == ["ok", "ok", "ok", "cancelled", "skipped"]
    assert "decided so at item 0" in str(results[4].error)


async def test_a_judge_that_needs_no_successes_hears_none(autojump_clock: MockClock) -> None:
    judge = Scripted()
    judge.hears_successes = False
    with nothing_left_behind():
        await harness.fan_out(parity, [1, -2, 3], policy=Given(judge))
    assert judge.asked == [3, (1, "failed")]


async def test_returning_an_items_own_error_tells_of_the_failures_alone(
    autojump_clock: MockClock,
) -> None:
    own = Boom("mine")

    async def body(item: int) -> None:
        raise own

    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(body, [1], policy=Given(Scripted(at_end=own)), name="x")
    assert caught.value.exceptions == (own,)
    assert str(caught.value).startswith("1 item of run 'x' failed; the first is item 0")


async def _coroutine() -> None:
    """Be what an async method returns."""


@pytest.mark.parametrize(
    "judge",
    [
        Boom,
        object(),
        _coroutine,
        Scripted(at_total=Boom),
        Scripted(at_total=None),
    ],
    ids=["raises", "no judge", "async", "total raises", "total says nothing"],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_policy_that_can_not_begin_ends_the_fan_out_before_anything_runs(
    autojump_clock: MockClock, judge: Any, streamed: bool
) -> None:
    started: list[int] = []

    async def body(item: int) -> None:
        started.append(item)

    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        if streamed:
            async with harness.open_fan_out(body, [1, 2], policy=Given(judge)) as stream:
                async for _ in stream:
                    pass
        else:
            await harness.fan_out(body, [1, 2], policy=Given(judge))
    assert started == []
    [entry] = caught.value.exceptions
    assert isinstance(entry, (Boom, TypeError))
    assert "the policy" in entry.__notes__[0]
    results = stream.results if streamed else caught.value.results
    assert statuses(results) == ["skipped", "skipped"]


@pytest.mark.parametrize(
    "said", [Boom, None, "stop", _coroutine], ids=["raises", "None", "text", "async"]
)
async def test_a_judge_that_raises_or_says_nothing_ends_the_fan_out_with_all_results(
    autojump_clock: MockClock, said: Any
) -> None:
    judge = Scripted(at={1: said})
    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        await harness.fan_out(parity, [1, -2, 3, 4, 5, 6], policy=Given(judge), limit=3)
    assert statuses(caught.value.results) == [
        "ok",
        "failed",
        "cancelled",
        "cancelled",
        "skipped",
        "skipped",
    ]
    assert [type(entry) for entry in caught.value.exceptions] == [
        Boom,
        Boom if said is Boom else TypeError,
    ]
    assert "for item 1, which ended as failed" in caught.value.exceptions[1].__notes__[0]
    # It isn't asked again: nobody knows what its state is worth.
    assert judge.asked == [6, (0, "ok"), (1, "failed")]


@pytest.mark.parametrize("said", [ValueError, 3], ids=["raises", "number"])
async def test_an_end_that_raises_fails_the_fan_out_with_all_results(
    autojump_clock: MockClock, said: Any
) -> None:
    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(parity, [1, 2], policy=Given(Scripted(at_end=said)))
    [entry] = caught.value.exceptions
    assert isinstance(entry, (ValueError, TypeError))
    assert statuses(caught.value.results) == ["ok", "ok"]


async def test_a_judge_sees_the_context_variables_of_the_call(autojump_clock: MockClock) -> None:
    seen: list[object] = []

    @attrs.define
    class Looks(Judge):
        def heard(self, result: Any) -> Decision:
            seen.append(harness.current_run().name)
            return Decision.GO_ON

        def total_known(self, total: int) -> Decision:
            seen.append(harness.current_run().name)
            return Decision.GO_ON

    await harness.fan_out(nap, [1, 2], policy=Given(Looks()), name="mine")
    await harness.fan_out(nap, iter([1, 2]), policy=Given(Looks()), name="mine")
    assert seen == ["mine"] * 6


@pytest.mark.parametrize("policy", [3, None, "fail", object(), lambda total: None])
async def test_what_can_not_begin_is_no_policy(policy: Any) -> None:
    with pytest.raises(TypeError, match=r"a JoinPolicy of your own, with a method begin\(total\)"):
        await harness.fan_out(nap, [1], policy=policy)


async def test_a_class_in_the_place_of_a_policy_is_refused() -> None:
    with pytest.raises(TypeError, match=r"not the class Majority; write policy=Majority\(\)"):
        await harness.fan_out(nap, [1], policy=Majority)  # type: ignore[arg-type]
    assert issubclass(harness.errors.TooManyFailuresError, HarnessError)
