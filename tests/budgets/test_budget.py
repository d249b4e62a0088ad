"""A budget holds over a whole tree of runs: reserved before, settled after, never negative."""

from __future__ import annotations

import math
import pickle
import sys
from functools import partial
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

import harness
from harness.budgets import (
    BudgetLeft,
    BudgetStatistics,
    Spending,
    budget_left,
    budget_statistics,
    charge_budget,
    reserve_budget,
)
from harness.errors import BudgetExceeded, ReservationError, RunEndedError
from harness.limits import Limiter
from harness.runs._accounts import add_meter
from harness.runs._run import Run


class Tape:
    """A meter that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, float]] = []

    def spent(self, tokens: int, cost_usd: float) -> None:
        self.heard.append((tokens, cost_usd))


def of_tokens(statistics: BudgetStatistics) -> tuple[float, float, float, float]:
    assert statistics.tokens is not None
    tokens = statistics.tokens
    return tokens.spent, tokens.reserved, tokens.left, tokens.overrun


# The value --------------------------------------------------------------------------------------


def test_a_budget_is_a_value() -> None:
    assert harness.Budget(tokens=5) == harness.Budget(tokens=5, cost_usd=None)
    assert pickle.loads(pickle.dumps(harness.Budget(cost_usd=1))) == harness.Budget(cost_usd=1.0)
    with pytest.raises(ValueError, match="given neither"):
        harness.Budget()
    for wrong in (-1, 1.5, "9", True):
        with pytest.raises((TypeError, ValueError), match=r"Budget\(tokens=\.\.\.\)"):
            harness.Budget(tokens=wrong)  # type: ignore[arg-type]
    for amount in (-0.1, math.nan, math.inf, "9", True):
        with pytest.raises((TypeError, ValueError), match=r"Budget\(cost_usd=\.\.\.\)"):
            harness.Budget(cost_usd=amount)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a Budget, not 5"):
        harness.open_run("x", budget=5)  # type: ignore[call-overload]


# Reserve and settle -----------------------------------------------------------------------------


async def test_what_is_reserved_is_held_and_what_was_used_is_spent() -> None:
    async with harness.open_run("job", budget=harness.Budget(tokens=100, cost_usd=1.0)):
        with reserve_budget(tokens=40, cost_usd=0.5) as spending:
            assert budget_left() == BudgetLeft(tokens=60, cost_usd=0.5)
            spending.settle(tokens=10)
            assert budget_left() == BudgetLeft(tokens=90, cost_usd=0.5)
        with reserve_budget(tokens=40) as spending:
            spending.refund()
        assert budget_left() == BudgetLeft(tokens=90, cost_usd=0.5)
        with reserve_budget(tokens=40):
            pass  # Nobody said: it may have been used.
        with pytest.raises(OSError, match="cut off"), reserve_budget(tokens=40):
            raise OSError("cut off")
        assert budget_left().tokens == 10


async def test_a_refusal_holds_nothing_and_says_what_there_is() -> None:
    async with harness.open_run("nightly", budget=harness.Budget(tokens=1_000, cost_usd=0.3)):
        async with harness.open_run("ticket", budget=harness.Budget(tokens=10_000)):
            with reserve_budget(tokens=700, cost_usd=0.1):
                before = budget_statistics()
                with pytest.raises(BudgetExceeded) as refused, reserve_budget(tokens=301):
                    raise AssertionError("it was refused")
                assert refused.value.run_path == "nightly"
                assert str(refused.value) == (
                    "run 'nightly/ticket' asked for 301 tokens, and the budget of run 'nightly' "
                    "has 300 tokens left of 1,000 tokens (0 tokens spent, 700 tokens reserved by "
                    "calls in progress); give open_run() a larger budget, ask for less at a time, "
                    "or end with what there is"
                )
                copy = pickle.loads(pickle.dumps(refused.value))
                assert (str(copy), copy.run_path) == (str(refused.value), "nightly")
                with pytest.raises(BudgetExceeded, match=r"0\.2 dollars left of 0\.3 dollars"):
                    with reserve_budget(tokens=1, cost_usd=0.21):
                        raise AssertionError("it was refused")
                outer, inner = budget_statistics()
                assert outer.refused == 2
                assert (outer.tokens, outer.cost_usd) == (before[0].tokens, before[0].cost_usd)
                assert inner == before[1]


async def test_every_level_holds() -> None:
    async with harness.open_run("outer", budget=harness.Budget(cost_usd=1)):
        async with harness.open_run("middle"):
            async with harness.open_run("inner", budget=harness.Budget(tokens=10)):
                with reserve_budget(tokens=4, cost_usd=0.25):
                    pass
                assert budget_left() == BudgetLeft(tokens=6, cost_usd=0.75)
                assert [budget.run_path for budget in budget_statistics()] == [
                    "outer",
                    "outer/middle/inner",
                ]
            async with harness.open_run("beside", budget=harness.Budget(tokens=10)):
                assert budget_left() == BudgetLeft(tokens=10, cost_usd=0.75)
            assert budget_left() == BudgetLeft(tokens=None, cost_usd=0.75)


async def test_more_than_was_reserved_takes_what_is_left_and_is_known() -> None:
    async with harness.open_run("job", budget=harness.Budget(tokens=100)):
        with reserve_budget(tokens=50) as first, reserve_budget(tokens=40) as second:
            first.settle(tokens=80)
            assert of_tokens(budget_statistics()[0]) == (80, 40, 0, 0)
            with pytest.raises(BudgetExceeded), reserve_budget(tokens=1):
                raise AssertionError("it was refused")
            second.settle(tokens=60)
        assert of_tokens(budget_statistics()[0]) == (140, 0, 0, 40)
        with pytest.raises(BudgetExceeded, match="a call of unknown size"), reserve_budget():
            raise AssertionError("it was refused")
        with reserve_budget(tokens=0):
            pass  # It uses none, and says so.


async def test_an_unknown_size_goes_ahead_while_anything_is_left() -> None:
    async with harness.open_run("job", budget=harness.Budget(tokens=100)):
        with reserve_budget() as spending:
            assert budget_left().tokens == 100
            spending.settle(tokens=100)
        with pytest.raises(BudgetExceeded), reserve_budget():
            raise AssertionError("it was refused")
    async with harness.open_run("free models only", budget=harness.Budget(cost_usd=0)):
        with reserve_budget(tokens=1_000_000, cost_usd=0):
            pass
        with pytest.raises(BudgetExceeded), reserve_budget(tokens=1):
            raise AssertionError("what it costs isn't known")


async def test_a_reservation_is_closed_once() -> None:
    async with harness.open_run("job", budget=harness.Budget(tokens=100)):
        spending = reserve_budget(tokens=10)
        with pytest.raises(ReservationError, match="not entered yet"):
            spending.settle(tokens=1)
        with spending:
            spending.settle(tokens=1)
            for again in (spending.settle, spending.refund, spending.__enter__):
                with pytest.raises(ReservationError, match="settled"):
                    again()
        with spending_left() as left:
            pass
        with pytest.raises(ReservationError, match="that is left"):
            left.refund()
        assert budget_left().tokens == 98
        with pytest.raises(ValueError, match="tokens"), reserve_budget(tokens=10) as spending:
            spending.settle(tokens=-1)
        assert budget_left().tokens == 88


def spending_left() -> Spending:
    return reserve_budget(tokens=1)


@pytest.mark.parametrize("wrong", [-1, 1.5, "1", True])
def test_amounts_are_checked(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="whole number"):
        reserve_budget(tokens=wrong)
    if wrong != 1.5:
        with pytest.raises((TypeError, ValueError), match="dollars"):
            reserve_budget(cost_usd=wrong)


async def test_without_a_budget_or_a_run_nothing_is_refused() -> None:
    with reserve_budget(tokens=10**9, cost_usd=10**9) as spending:
        spending.settle(tokens=1)
    assert budget_left() == BudgetLeft(tokens=None, cost_usd=None)
    async with harness.open_run("job") as run:
        with reserve_budget(tokens=10**9):
            pass
        assert budget_statistics() == ()
        assert run._locals is None, "a tree without a budget keeps nothing for one"


async def test_cents_add_up_exactly() -> None:
    """Fractions drift: three times 0.1 is more than 0.3, and a refund would leave crumbs."""
    async with harness.open_run("job", budget=harness.Budget(cost_usd=0.3)):
        for _ in range(3):
            with reserve_budget(cost_usd=0.1):
                pass
        assert budget_left().cost_usd == 0
    async with harness.open_run("job", budget=harness.Budget(cost_usd=1.0)):
        for cost_usd in (1 / 3, 1 / 7, 1 / 11):
            first = reserve_budget(cost_usd=cost_usd).__enter__()
            second = reserve_budget(cost_usd=cost_usd / 13).__enter__()
            first.refund()
            second.refund()
        assert budget_left().cost_usd == 1.0


@pytest.mark.parametrize("limit", [1e297, sys.float_info.max, 10**400])
async def test_any_finite_number_of_dollars_is_a_budget(limit: float) -> None:
    async with harness.open_run("job") as run:
        async with harness.open_run("rich", budget=harness.Budget(cost_usd=limit)):
            with reserve_budget(cost_usd=1e296) as spending:
                spending.settle(cost_usd=1.5)
            for _ in range(3):
                charge_budget(cost_usd=sys.float_info.max)
            (statistics,) = budget_statistics()
            assert statistics.cost_usd is not None
            assert statistics.cost_usd.spent == math.inf, "more than a float can say"
            left = budget_left().cost_usd
            assert left is not None
            assert left >= 0
        assert run.children == ()


# In a tree of runs ------------------------------------------------------------------------------


async def test_callers_side_by_side_cannot_overrun_it_together(autojump_clock: MockClock) -> None:
    """Each sees that enough is left before any has spent: the classic budget fault."""

    async def call(item: int) -> None:
        with reserve_budget(tokens=10) as spending:
            await trio.sleep(1)
            spending.settle(tokens=10)

    async with harness.open_run("job", budget=harness.Budget(tokens=105)):
        results = await harness.fan_out(call, range(100), limit=100, policy=harness.BestEffort())
        assert sum(result.status == "ok" for result in results) == 10
        assert of_tokens(budget_statistics()[0]) == (100, 0, 5, 0)


@pytest.mark.parametrize("depth", [5])
async def test_down_a_tree_beside_a_limiter_of_one_nothing_deadlocks(
    autojump_clock: MockClock, depth: int
) -> None:
    """Runs reserve per call, not while they wait for a child: so one place is enough for all."""
    limiter = Limiter("model", concurrent=1)
    calls = 0

    async def ask() -> None:
        nonlocal calls
        async with limiter.reserve() as place:
            with reserve_budget(tokens=10) as spending:
                calls += 1
                await trio.sleep(0.1)
                spending.settle(tokens=8)
            place.settle()

    async def agent(level: int) -> None:
        await ask()
        if level < depth:
            await harness.fan_out(agent, [level + 1] * 2, key=None, limit=2)
        await ask()

    with trio.fail_after(1_000):
        async with harness.open_run("root", budget=harness.Budget(tokens=10_000)):
            await agent(1)
            runs = 2**depth - 1
            assert calls == 2 * runs
            assert of_tokens(budget_statistics()[0]) == (16 * runs, 0, 10_000 - 16 * runs, 0)
        calls = 0
        async with harness.open_run("poor", budget=harness.Budget(tokens=100)):
            with pytest.raises(harness.errors.FanOutError) as failed:
                await agent(1)
            assert failed.group_contains(BudgetExceeded)
            (statistics,) = budget_statistics()
            assert of_tokens(statistics)[1:] == (0, statistics.tokens.left, 0)  # type: ignore[union-attr]
    assert limiter.statistics().in_flight == 0


async def test_a_refusal_is_never_retried_but_a_fallback_applies(
    autojump_clock: MockClock,
) -> None:
    attempts = 0

    async def call(item: int) -> str:
        nonlocal attempts
        attempts += 1
        with reserve_budget(tokens=10):
            return "asked"

    async with harness.open_run("job", budget=harness.Budget(tokens=25)):
        results = await harness.fan_out(
            call,
            range(4),
            limit=1,
            each=harness.Attempt(
                retry=harness.Retry(5, on=lambda error: True), fallback=lambda item, error: "guess"
            ),
        )
    assert list(results.values()) == ["asked", "asked", "guess", "guess"]
    assert [result.degraded for result in results] == [False, False, True, True]
    assert attempts == 4


async def test_every_attempt_counts_also_the_loser_of_a_hedge(autojump_clock: MockClock) -> None:
    async def call(item: int) -> None:
        with reserve_budget(tokens=10):
            await trio.sleep(5)

    async with harness.open_run("job", budget=harness.Budget(tokens=100)):
        await harness.fan_out(call, [1], each=harness.Attempt(hedge=harness.Hedge(after=1.0)))
        assert budget_left().tokens == 80


async def test_a_cancelled_call_keeps_its_estimate_and_holds_nothing(
    autojump_clock: MockClock,
) -> None:
    async with harness.open_run("job", budget=harness.Budget(tokens=100)):
        with trio.move_on_after(1):
            with reserve_budget(tokens=30):
                await trio.sleep_forever()
        assert of_tokens(budget_statistics()[0]) == (30, 0, 70, 0)


async def test_a_call_that_outlives_its_run_can_still_be_settled() -> None:
    async with harness.open_run("outer", budget=harness.Budget(tokens=100)):
        async with harness.open_run("inner"):
            spending = reserve_budget(tokens=50).__enter__()
        spending.settle(tokens=20)
        assert budget_left().tokens == 80


@pytest.mark.strays
async def test_an_ended_run_spends_nothing(autojump_clock: MockClock) -> None:
    """A stray that found no budget would spend without one."""

    async def stray() -> None:
        await trio.sleep(1)
        for use in (reserve_budget().__enter__, charge_budget, budget_left, budget_statistics):
            with pytest.raises(RunEndedError):
                use()

    async with trio.open_nursery() as outside:
        async with harness.open_run("job", budget=harness.Budget(tokens=100)):
            outside.start_soon(stray)


async def test_another_trio_in_a_thread_of_a_run_spends_from_the_same_budget() -> None:
    """Its runs are a tree of their own, and would be a way around the budget."""

    async def work() -> None:
        charge_budget(tokens=1)
        async with harness.open_run("there"):
            await harness.fan_out(spend, range(3))

    async def spend(item: int) -> None:
        with reserve_budget(tokens=10):
            await trio.lowlevel.checkpoint()

    async with harness.open_run("job", budget=harness.Budget(tokens=50)):
        await trio.to_thread.run_sync(trio.run, work)
        assert budget_left().tokens == 19


async def test_threads_of_a_run_spend_from_the_same_budget() -> None:
    def work() -> int:
        granted = 0
        for _ in range(200):
            try:
                with reserve_budget(tokens=1):
                    granted += 1
            except BudgetExceeded:
                pass
        return granted

    async with harness.open_run("job", budget=harness.Budget(tokens=500)):
        results = await harness.fan_out(
            lambda item: trio.to_thread.run_sync(work), range(4), limit=4
        )
        assert sum(results.values()) == 500
        assert of_tokens(budget_statistics()[0]) == (500, 0, 0, 0)


async def test_usage_from_before_is_charged_and_never_refused() -> None:
    async with harness.open_run("nightly", budget=harness.Budget(tokens=100, cost_usd=1)) as run:
        tape = Tape()
        add_meter(run, tape)
        charge_budget(tokens=90, cost_usd=0.25, earlier=True)
        assert budget_left() == BudgetLeft(tokens=10, cost_usd=0.75)
        assert tape.heard == [], "the session that used it has told"
        charge_budget(tokens=20)
        assert of_tokens(budget_statistics()[0]) == (110, 0, 0, 10)
        assert tape.heard == [(20, 0.0)]


# Meters -----------------------------------------------------------------------------------------


async def test_a_meter_hears_what_is_spent_in_its_run_and_below() -> None:
    outer, inner = Tape(), Tape()
    async with harness.open_run("outer") as run:
        add_meter(run, outer)
        async with harness.open_run("inner") as child:
            add_meter(child, inner)
            with reserve_budget(tokens=10, cost_usd=1) as spending:
                assert outer.heard == []
                spending.settle(tokens=3, cost_usd=0.5)
            with reserve_budget(tokens=4):
                pass
        with reserve_budget(tokens=5) as spending:
            spending.refund()
        charge_budget(cost_usd=0.25)
    assert inner.heard == [(3, 0.5), (4, 0.0)]
    assert outer.heard == [(3, 0.5), (4, 0.0), (0, 0.25)]


@pytest.mark.parametrize("budget", [None, harness.Budget(tokens=10)])
async def test_a_meter_may_be_given_to_a_run_before_it_begins(
    budget: harness.Budget | None,
) -> None:
    """Like the engine, which makes an attempt's run and lets it begin later."""
    history: harness.RunLocal[list[int]] = harness.RunLocal(list, fork=list.copy)
    tape = Tape()
    async with harness.open_run("outer", budget=budget) as run:
        history.get().append(1)
        made = Run("made", run, trio.current_time())
        add_meter(made, tape)
        made._fork_locals(run)  # As `carry` does.
        assert history.get_in(made) == [1]
        child = Run("child", made, trio.current_time())
        child._fork_locals(made)
        assert history.get_in(child) == [1]
        for forked in (child, made):
            assert forked._locals is not None
            (accounts,) = [v for k, v in forked._locals.items() if k is not history]
            assert accounts.meters == (tape,)
            assert [live.run_path for live in accounts.budgets] == ["outer"] * (budget is not None)
            forked._end("ok", trio.current_time())


# Whatever is done -------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "settle", "refund", "leave", "cancel", "charge", "open"]),
        st.integers(0, 40),
    ),
    min_size=10,
    max_size=80,
)


@given(steps=STEPS, limits=st.lists(st.integers(0, 100), min_size=1, max_size=4))
def test_what_is_spent_is_what_was_used_whatever_is_done(
    steps: list[tuple[str, int]], limits: list[int]
) -> None:
    """An obvious model runs alongside a chain of runs with budgets: what is held, and was used."""
    trio.run(partial(_random_spending, steps, limits), clock=MockClock(autojump_threshold=0))


async def _random_spending(steps: list[tuple[str, int]], limits: list[int]) -> None:
    held: list[tuple[int, trio.CancelScope, trio.MemorySendChannel[tuple[str, int]]]] = []
    spent = 0

    async def call(
        amount: int, scope: trio.CancelScope, orders: trio.MemoryReceiveChannel[tuple[str, int]]
    ) -> None:
        with scope, reserve_budget(tokens=amount) as spending:
            order, used = await orders.receive()
            if order == "settle":
                spending.settle(tokens=used)
            elif order == "refund":
                spending.refund()

    async def at_level(level: int) -> None:
        nonlocal spent
        if level < len(limits):
            budget = harness.Budget(tokens=limits[level])
            async with harness.open_run(f"level {level}", budget=budget):
                await at_level(level + 1)
            return
        async with trio.open_nursery() as nursery:
            for kind, amount in steps:
                left = min(max(0, limit - spent - sum(h[0] for h in held)) for limit in limits)
                assert budget_left().tokens == left
                if kind in ("reserve", "open"):
                    if amount > left:
                        with pytest.raises(BudgetExceeded):
                            reserve_budget(tokens=amount).__enter__()
                    else:
                        scope = trio.CancelScope()
                        send, receive = trio.open_memory_channel[tuple[str, int]](1)
                        nursery.start_soon(call, amount, scope, receive)
                        held.append((amount, scope, send))
                elif kind == "charge":
                    charge_budget(tokens=amount)
                    spent += amount
                elif held:
                    estimate, scope, send = held.pop(amount % len(held))
                    if kind == "cancel":
                        scope.cancel()
                    else:
                        send.send_nowait((kind, amount))
                    spent += {"settle": amount, "refund": 0}.get(kind, estimate)
                await wait_all_tasks_blocked()
                for statistics, limit in zip(budget_statistics(), limits, strict=True):
                    holding = sum(h[0] for h in held)
                    assert of_tokens(statistics) == (
                        spent,
                        holding,
                        max(0, limit - spent - holding),
                        max(0, spent - limit),
                    )
            nursery.cancel_scope.cancel()

    await at_level(0)
