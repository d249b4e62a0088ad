"""A budget outlives a process along with the journal."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.budgets import budget_left, reserve_budget
from harness.errors import (
    BudgetExceeded,
    JournaledError,
)
from tests.fanout.journaled import run
from tests.fanout.probes import Boom
from tests.support.memory_journal import MemoryJournal


async def spend(item: int) -> int:
    with reserve_budget(tokens=10) as spending:
        await trio.sleep(1)
        spending.settle(tokens=10, cost_usd=0.25)
    return item


async def test_each_attempt_is_recorded_with_what_was_used_below_it(
    autojump_clock: MockClock,
) -> None:
    journal = MemoryJournal()
    await run(journal, spend, range(3))
    endings = [one.ending for kept in journal.order for one in kept.attempts]
    assert [(one.tokens, one.cost_usd) for one in endings if one] == [(10, 0.25)] * 3


@pytest.mark.parametrize("called", [True, False])
async def test_what_the_fallback_used_is_recorded_too(
    called: bool, autojump_clock: MockClock
) -> None:
    """A cheaper model is one that costs; and its mails go out once, like those of any attempt."""
    journal, keys = MemoryJournal(), list[str]()

    async def fail(item: int) -> int:
        keys.append(harness.current_run().idempotency_key)
        await spend(item)
        raise Boom(item)

    async def fall_back(item: int, error: Exception) -> int:
        keys.append(harness.current_run().idempotency_key)
        return await spend(item)

    limiter = None if called else _Refuses()
    each = harness.Attempt(limiter=limiter, fallback=fall_back)
    [result] = await run(journal, fail, [7], each=each)
    assert (result.value, result.degraded) == (7, True)
    ending = journal.order[0].ending
    assert ending is not None
    assert (ending.tokens, ending.cost_usd) == ((20, 0.5) if called else (10, 0.25))
    assert set(keys) == {"memory:0"}


class _Refuses:
    """A limiter that lets nobody through."""

    def reserve(self, *, tokens: int | None = None) -> Any:
        raise Boom("no")


async def test_a_resumed_batch_goes_on_with_what_is_left_of_its_budget(
    autojump_clock: MockClock,
) -> None:
    journal = MemoryJournal()
    async with harness.open_run("night", budget=harness.Budget(tokens=30)):
        first = await run(journal, spend, range(10), limit=1)
        assert len(first.values()) == 3
        assert budget_left().tokens == 0
        assert isinstance(first.failed[0].error, BudgetExceeded)

        # Once more within the same budget, which has heard of it all: nothing is counted twice.
        await run(journal, spend, range(3), limit=1)
    async with harness.open_run("night", budget=harness.Budget(tokens=50)):
        second = await run(journal, spend, range(10), limit=1)
        assert len(second.values()) == 5, "what found the budget used up was not done, and ran"
        assert budget_left().tokens == 0
        await run(journal, spend, range(3), limit=1)
    async with harness.open_run("night", budget=harness.Budget(tokens=1_000)):
        assert (await run(journal, spend, range(10), limit=1)).complete
        assert budget_left().tokens == 900


async def test_a_budget_of_the_items_own_is_its_own_failure(autojump_clock: MockClock) -> None:
    async def greedy(item: int) -> int:
        async with harness.open_run("inside", budget=harness.Budget(tokens=5)):
            await spend(item)
        return item

    journal = MemoryJournal()
    await run(journal, greedy, [1])
    [result] = await run(journal, greedy, [1])
    assert isinstance(result.error, JournaledError)
    assert result.error.type_name == "BudgetExceeded"
