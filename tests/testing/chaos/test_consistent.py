"""What must hold after a run: count in is count out, nothing goes on, shared objects in order."""

from __future__ import annotations

import re
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.agents import Agent
from harness.fanout import Result
from harness.models import FunctionModel, ModelRequest
from harness.shared import Counter
from harness.testing.chaos import Chaos, assert_consistent, assert_stable_under_load


async def work(number: int) -> int:
    await trio.sleep(1)
    return number


def result(index: int, status: Any = "ok", ended_with: Any = 1, attempts: int = 1) -> Result[Any]:
    return Result(index, index, index, None, status, ended_with, attempts, 0.0, 1.0)


async def test_results_under_chaos_are_consistent(autojump_clock: MockClock) -> None:
    chaos = Chaos(2, delay=(0, 3), fail=ValueError, cancel=True, rate=0.6)
    items = list(range(50))
    for policy in (harness.BestEffort(), harness.Quorum(5)):
        results = await harness.fan_out(chaos.wrap(work), items, policy=policy)
        assert_consistent(results, items=items)


@pytest.mark.parametrize(
    ("results", "items", "said"),
    [
        pytest.param([result(0)], 2, "2 items went in, and 1 results came out", id="lost"),
        pytest.param([result(0), result(0)], None, "one per item", id="twice"),
        pytest.param([result(1), result(0)], None, "in input order", id="out of order"),
        pytest.param([result(0)], ["other"], "not its own", id="mixed up"),
        pytest.param([result(0, "gone")], None, "isn't an ending", id="no ending"),
        pytest.param([result(0, "failed", None)], None, "without an error", id="no error"),
        pytest.param([result(0, "skipped", ValueError(), 2)], None, "2 attempts", id="skipped"),
    ],
)
def test_results_that_are_wrong_are_named(results: Any, items: Any, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        assert_consistent(harness.Results(results), items=items)


async def test_a_run_that_goes_on_is_named() -> None:
    async with trio.open_nursery() as nursery:

        async def hold() -> None:
            async with harness.open_run("held"):
                await trio.sleep_forever()

        nursery.start_soon(hold)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(AssertionError, match="run 'held' goes on, in task"):
            assert_consistent()
        async with harness.open_run("mine"):
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
                assert_consistent()  # The run that asks, and those around it, may be alive.


@pytest.mark.strays
async def test_a_task_that_outlives_its_run_is_named() -> None:
    async with trio.open_nursery() as nursery:
        async with harness.open_run("gone"):
            nursery.start_soon(trio.sleep_forever)
            await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(AssertionError, match="its run 'gone' has ended"):
            assert_consistent()
        nursery.cancel_scope.cancel()


class Stock:
    """As the primitives of `harness.shared`: it can check itself."""

    def __init__(self, left: int) -> None:
        self.left = left

    def check(self) -> None:
        assert self.left >= 0, f"{self.left} left"


def test_shared_objects_check_themselves() -> None:
    assert_consistent(Stock(1), Stock(0), Counter(3))
    with pytest.raises(AssertionError, match="out of order: AssertionError: -1 left"):
        assert_consistent(Stock(1), Stock(-1))
    with pytest.raises(TypeError, match=r"check\(\)"):
        assert_consistent(3)


# Load --------------------------------------------------------------------------------------------


async def test_a_function_of_its_item_holds_under_load(autojump_clock: MockClock) -> None:
    report = await assert_stable_under_load(work, [1, 2, 3], expected=4)
    assert report.at_once == 40
    assert report.runs == 3 * (20 + 40)


async def test_an_agent_is_stable_under_load(autojump_clock: MockClock) -> None:
    """It was refused: no two replies have the same run."""
    agent = Agent("a", model=FunctionModel(lambda request: request.messages[-1].text))
    assert (await assert_stable_under_load(agent, ["1", "2"], expected=2, rounds=1)).runs == 30
    seen: list[str] = []

    def leaky(request: ModelRequest) -> str:
        seen.append(request.messages[-1].text)
        return seen[-1] if len(seen) <= 4 else seen[0]

    with pytest.raises(AssertionError, match="with 10 in flight"):
        await assert_stable_under_load(
            Agent("a", model=FunctionModel(leaky)), ["1", "2"], expected=2
        )


async def test_the_first_difference_is_reported_with_its_load(autojump_clock: MockClock) -> None:
    """Right for up to twenty at once: the expected load doesn't show it."""
    active: list[int] = []

    async def crowded(number: int) -> int:
        active.append(number)
        await trio.sleep(1)
        value = number if len(active) <= 20 else active[0]
        active.remove(number)
        return value

    with pytest.raises(AssertionError) as caught:
        await assert_stable_under_load(crowded, [1, 2, 3], expected=4)
    text = str(caught.value)
    assert "with 40 in flight (10 times what is expected)" in text
    alone = re.search(r"alone: +(\d)", text)
    loaded = re.search(r"under load: (\d)", text)
    assert alone is not None
    assert loaded is not None
    assert alone[1] != loaded[1]


async def test_errors_are_compared_too(autojump_clock: MockClock) -> None:
    async def failing(number: int) -> int:
        await trio.sleep(1)
        raise ValueError(number)

    await assert_stable_under_load(failing, [1, 2], expected=2, rounds=1)


async def test_what_is_not_the_same_alone_is_refused(autojump_clock: MockClock) -> None:
    calls: list[int] = []

    async def counting(number: int) -> int:
        calls.append(number)
        return len(calls)

    with pytest.raises(ValueError, match="the same alone twice: 1, then 2"):
        await assert_stable_under_load(counting, [1], expected=2)
    with pytest.raises(ValueError, match="no items"):
        await assert_stable_under_load(counting, [], expected=2)
    with pytest.raises(ValueError, match="expected"):
        await assert_stable_under_load(counting, [1], expected=0)
