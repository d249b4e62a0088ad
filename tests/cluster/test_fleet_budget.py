"""A budget that processes share on a server is kept as one of a single process. On a virtual clock.

Each test is over a server that the test runs itself, but for one over a real server.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import trio
from trio.testing import MockClock

import harness
from benchmarks._lua_redis import LuaLink, LuaRedis
from harness.agents import Agent
from harness.budgets import BudgetLeft, budget_left, charge_budget, reserve_budget
from harness.cluster import FleetBudget, FleetStore
from harness.errors import BudgetExceeded, ReservationError, SharedClosedError
from harness.models import FunctionModel, ModelRequest, ModelResponse, Price, Usage
from tests.support.redis_server import RedisServer


@pytest.fixture
def redis(autojump_clock: MockClock) -> LuaRedis:
    return LuaRedis(lambda: 1_790_000_000 + autojump_clock.current_time())


def store_on(
    redis: LuaRedis,
    *,
    delay: Callable[[], float] = lambda: 0.001,
    link: type[LuaLink] = LuaLink,
) -> FleetStore:
    store = FleetStore("redis://user:secret@lua:1", "s")
    store._make_link = lambda: link(redis, delay)
    return store


async def spend(budget: FleetBudget, reserved: int, used: int | None = None) -> None:
    async with (
        harness.open_run("spender", budget=budget),
        reserve_budget(tokens=reserved) as spending,
    ):
        await trio.sleep(0.1)
        if used is not None:
            spending.settle(tokens=used)


async def test_processes_together_never_hold_more_than_there_is(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    chance = random.Random(1)
    held = most = used = 0
    refused: list[str] = []

    async with store_on(redis) as one, store_on(redis) as other:
        budgets = [store.budget("b", tokens=100) for store in (one, other)]

        async def work(number: int) -> None:
            nonlocal held, most, used
            await trio.sleep(chance.random())
            async with harness.open_run("item", budget=budgets[number % 2]):
                try:
                    async with reserve_budget(tokens=10) as spending:
                        held += 10
                        most = max(most, held)
                        await trio.sleep(chance.random() / 2)
                        held -= 10
                        spending.settle(tokens=1)
                        used += 1
                except BudgetExceeded as error:
                    refused.append(str(error))

        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(work, number)
        await trio.sleep(1)  # Until both have told the server what was settled.
        assert 50 <= most <= 100
        assert refused
        assert "the budget of run 'item' has " in refused[0]
        assert await budgets[0].left() == BudgetLeft(tokens=100 - used, cost_usd=None)
        assert await budgets[1].left() == BudgetLeft(tokens=100 - used, cost_usd=None)


async def test_an_agent_keeps_to_it_as_to_any_budget(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    async def answer(request: ModelRequest) -> ModelResponse:
        await trio.sleep(1)
        return ModelResponse("yes", usage=Usage(30, 20))

    price = Price(input_usd_per_million_tokens=1, output_usd_per_million_tokens=1)
    agent = Agent("a", model=FunctionModel(answer, price=price))
    async with store_on(redis) as one, store_on(redis) as other:
        for store in (one, other):
            async with harness.open_run("day", budget=store.budget("june", cost_usd=0.000_210)):
                await agent.run("?")
                await agent.run("?")
        assert await one.budget("june", cost_usd=1).left() == BudgetLeft(
            tokens=None, cost_usd=0.9998
        )
        async with harness.open_run("late", budget=one.budget("june", cost_usd=0.000_210)):
            with pytest.raises(BudgetExceeded, match=r"1e-05 dollars left of 0\.00021 dollars"):
                await agent.run("? " * 100)
        # A model that nothing is known about guesses, but no more than is left.
        new = Agent("new", model=FunctionModel(answer, price=price))
        async with harness.open_run("next", budget=one.budget("june", cost_usd=0.000_300)):
            await new.run("?")


async def test_all_budgets_around_a_call_are_held_or_none(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    async with store_on(redis) as store:
        small, large = store.budget("small", tokens=5), store.budget("large", tokens=50)
        async with (
            harness.open_run("a", budget=harness.Budget(tokens=20)),
            harness.open_run("b", budget=large),
            harness.open_run("c", budget=small),
        ):
            with pytest.raises(BudgetExceeded, match="budget of run 'a/b/c' has 5 tokens left"):
                async with reserve_budget(tokens=10):
                    raise AssertionError
            with pytest.raises(BudgetExceeded, match="budget of run 'a' has 20 tokens left"):
                async with reserve_budget(tokens=30):
                    raise AssertionError
            assert await large.left() == BudgetLeft(tokens=50, cost_usd=None)
            charge_budget(tokens=7)  # Never refused.
            assert budget_left() == BudgetLeft(tokens=0, cost_usd=None)
            assert await small.left() == BudgetLeft(tokens=0, cost_usd=None)
            assert await large.left() == BudgetLeft(tokens=43, cost_usd=None)


async def test_it_counts_once_where_a_run_below_is_given_it_again(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    async with store_on(redis) as store:
        budget = store.budget("b", tokens=50)
        async with harness.open_run("a", budget=budget), harness.open_run("b", budget=budget):
            async with reserve_budget(tokens=10):
                pass
            assert await budget.left() == BudgetLeft(tokens=40, cost_usd=None)


async def test_a_thread_settles_it(autojump_clock: MockClock, redis: LuaRedis) -> None:
    async with store_on(redis) as store:
        budget = store.budget("b", tokens=50)
        async with harness.open_run("a", budget=budget), reserve_budget(tokens=10) as spending:
            await trio.to_thread.run_sync(lambda: spending.settle(tokens=1))
        await trio.sleep(0.1)
        assert await budget.left() == BudgetLeft(tokens=49, cost_usd=None)


async def test_without_a_wait_it_says_what_to_write(redis: LuaRedis) -> None:
    async with (
        store_on(redis) as store,
        harness.open_run("a", budget=store.budget("b", tokens=50)),
    ):
        with (
            pytest.raises(ReservationError, match="write `async with reserve_budget"),
            reserve_budget(tokens=1),
        ):
            raise AssertionError


async def test_a_call_cancelled_while_the_server_is_asked_holds_nothing(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    async with store_on(redis, delay=lambda: 0.2) as store:
        budget = store.budget("b", tokens=50)
        for seconds in (0, 0.1, 0.3, 0.39):
            with trio.move_on_after(seconds):
                await spend(budget, 10)
        await trio.sleep(1)
        assert await budget.left() == BudgetLeft(tokens=50, cost_usd=None)


async def test_what_a_dead_process_held_counts_as_spent(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    async with store_on(redis) as store:
        dead = store_on(redis)
        await dead.__aenter__()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(spend, dead.budget("b", tokens=50), 30)
            await trio.sleep(0.05)
            dead._make_link = lambda: LuaLink(LuaRedis(lambda: 0.0))
            dead._closing.set()
        await trio.sleep(1_000)
        assert await store.budget("b", tokens=50).left() == BudgetLeft(tokens=20, cost_usd=None)


async def test_a_change_whose_answer_is_lost_is_made_once(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    calls: list[int] = []

    class LosesAnswers(LuaLink):
        async def run(
            self, script: str, keys: Sequence[str], arguments: Sequence[str]
        ) -> list[str]:
            answer = await super().run(script, keys, arguments)
            calls.append(1)
            if len(keys) == 2 and len(calls) % 3:
                raise ConnectionError("the answer is lost")
            return answer

    async with store_on(redis, link=LosesAnswers) as store:
        budget = store.budget("b", tokens=100)
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(spend, budget, 10, number)
        assert await budget.left() == BudgetLeft(tokens=100 - sum(range(8)), cost_usd=None)
    assert len(calls) > 6


@pytest.mark.parametrize("seconds", [0.5, 60, 1_000])
async def test_while_the_server_is_gone_nothing_is_lent_and_nothing_is_lost(
    seconds: float, autojump_clock: MockClock, redis: LuaRedis
) -> None:
    async with store_on(redis) as store:
        budget = store.budget("b", tokens=50)
        async with harness.open_run("a", budget=budget), reserve_budget(tokens=10) as spending:
            redis.is_down = True
            spending.settle(tokens=3)
        if seconds > 10:
            began = trio.current_time()
            with pytest.raises(ConnectionError, match=r"redis://lua:1: .*down"):
                await spend(budget, 5)
            assert 10 <= trio.current_time() - began < 11
        await trio.sleep(seconds)
        redis.is_down = False
        await trio.sleep(1)
        assert await budget.left() == BudgetLeft(tokens=47, cost_usd=None)


@pytest.mark.parametrize("what", ["everything", "the last changes"])
async def test_what_the_server_forgot_stays_spent_while_anybody_knows(
    what: str, autojump_clock: MockClock, redis: LuaRedis
) -> None:
    """A server that is started again has nothing, or what was last on its disk."""
    async with store_on(redis) as one, store_on(redis) as other:
        budgets = [store.budget("b", tokens=100) for store in (one, other)]
        await spend(budgets[0], 10)
        put_back = redis.snapshot()
        await spend(budgets[0], 20)
        await spend(budgets[1], 30)
        redis.clear() if what == "everything" else put_back()
        # The first has seen 30, the second 60.
        await spend(budgets[0], 5)
        assert (await budgets[1].left()).tokens == 35
        assert (await budgets[0].left()).tokens == 35
        async with store_on(redis) as third:
            assert (await third.budget("b", tokens=100).left()).tokens == 35


async def test_each_process_keeps_to_the_limit_that_it_states(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    async with store_on(redis) as store:
        await spend(store.budget("b", tokens=100), 80)
        with pytest.raises(BudgetExceeded, match="0 tokens left of 70 tokens"):
            await spend(store.budget("b", tokens=70), 1)
        await spend(store.budget("b", tokens=200), 100)


async def test_a_closed_store_lends_nothing(redis: LuaRedis) -> None:
    store = store_on(redis)
    budget = store.budget("b", tokens=100)
    for _ in range(2):
        with pytest.raises(SharedClosedError, match="is not open"):
            await spend(budget, 1)
        async with store:
            await spend(budget, 10)
    async with store:
        assert await budget.left() == BudgetLeft(tokens=80, cost_usd=None)


def test_bad_limits_are_refused() -> None:
    store = FleetStore("redis://lua:1", "s")
    with pytest.raises(ValueError, match="given neither"):
        store.budget("b")
    with pytest.raises(ValueError, match="too large a limit to be counted on a server"):
        store.budget("b", cost_usd=10_000_000)
    assert repr(store.budget("b", tokens=5)) == "FleetBudget(tokens=5, cost_usd=None)"


@pytest.mark.real_clock
async def test_a_real_server_keeps_it(redis_server: RedisServer, name: str) -> None:
    async with (
        FleetStore(redis_server.address, name) as one,
        FleetStore(redis_server.address, name) as other,
    ):
        async with trio.open_nursery() as nursery:
            for number in range(20):
                budget = (one, other)[number % 2].budget("b", tokens=1_000, cost_usd=1)
                nursery.start_soon(spend, budget, 10, number)
        left = BudgetLeft(tokens=1_000 - sum(range(20)), cost_usd=1.0)
        # The other store may not have told it everything yet.
        while await one.budget("b", tokens=1_000, cost_usd=1).left() != left:  # noqa: ASYNC110
            await trio.sleep(0.01)
