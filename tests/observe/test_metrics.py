"""The metrics equal what is worked out by hand, on fan-outs whose times are scripted."""

from __future__ import annotations

import gc
import math

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import harness
from harness.agents import Agent
from harness.flow import Pipeline, Router, stage, track
from harness.limits import Limiter
from harness.models import FunctionModel, ModelResponse, Price, ScriptedModel, Usage
from harness.observe import Metrics, Spent, _metrics
from harness.policies import Attempt, Hedge, Retry

BEST = harness.BestEffort()


async def test_a_fan_out_by_hand(autojump_clock: MockClock) -> None:
    """Two workers, items of 1, 2, 3 and 4 s: 0-1, 0-2, 1-4, 2-6."""
    metrics = Metrics()
    with harness.observing(metrics):
        await harness.fan_out(trio.sleep, [1, 2, 3, 4], limit=2)
    assert metrics.worker_utilization == pytest.approx(10 / 12)
    assert metrics.parallel_completion_time.p50 == 6
    assert metrics.parallel_completion_time.count == 1
    items = metrics.item_time
    assert (items.p50, items.p95, items.p99, items.mean, items.count) == (2, 4, 4, 2.5, 4)
    # The first has ended at 1 s, the last at 6 s; from 4 s on one of two slots was empty.
    assert metrics.aggregation_wait_time.p50 == 5
    assert metrics.aggregation_idle_time.p50 == 2
    assert metrics.worker_failure_rate == 0
    assert metrics.items == {"ok": 4}
    assert metrics.runs == {"running": 0, "ok": 5}


async def test_before_anything_ran() -> None:
    metrics = Metrics()
    assert metrics.worker_utilization == metrics.worker_failure_rate == 0
    assert metrics.queue_depth_by_priority == metrics.limits == {}
    assert (metrics.tokens, metrics.cost_usd, metrics.spent) == (0, 0, Spent())
    assert math.isnan(metrics.item_time.p99)


async def test_a_limit_above_the_items_counts_as_idle_slots(autojump_clock: MockClock) -> None:
    """That is what over-provisioning looks like."""
    metrics = Metrics()
    with harness.observing(metrics):
        await harness.fan_out(trio.sleep, [4, 4], limit=4)
    assert metrics.worker_utilization == 0.5
    assert metrics.aggregation_wait_time.p50 == 0
    assert metrics.aggregation_idle_time.p50 == 0


async def test_slots_that_no_item_ever_had_do_not_wait(autojump_clock: MockClock) -> None:
    """Two of four were in use; from 1 s to 3 s one of those was empty."""
    metrics = Metrics()
    with harness.observing(metrics):
        await harness.fan_out(trio.sleep, [1, 3], limit=4)
    assert metrics.aggregation_idle_time.p50 == 2


async def test_several_fan_outs_add_up(autojump_clock: MockClock) -> None:
    """1 slot for 1 s, all busy; 3 slots for 3 s, of which 3 s were busy."""
    metrics = Metrics()
    with harness.observing(metrics):
        await harness.fan_out(trio.sleep, [1], limit=1)
        await harness.fan_out(trio.sleep, [3], limit=3)
    assert metrics.worker_utilization == pytest.approx(4 / 10)
    times = metrics.parallel_completion_time
    assert (times.p50, times.p95, times.mean, times.count) == (1, 3, 2, 2)


async def test_failures_count_and_cancelled_items_do_not(autojump_clock: MockClock) -> None:
    async def work(item: str) -> None:
        await trio.sleep(1)
        if item == "fails":
            raise ValueError(item)
        if item == "hangs":
            await trio.sleep_forever()
        if item == "cancelled":
            harness.current_run().cancel()
            await trio.sleep_forever()

    metrics = Metrics()
    with harness.observing(metrics):
        await harness.fan_out(
            work,
            ["ok", "fails", "hangs", "cancelled", "ok"],
            policy=BEST,
            each=Attempt(timeout=5),
        )
    assert metrics.items == {"ok": 2, "failed": 1, "timed_out": 1, "cancelled": 1}
    assert metrics.worker_failure_rate == 0.5
    assert metrics.item_time.count == 4
    assert metrics.item_time.p99 == 5


async def test_an_aggregation_waits_for_what_it_needs_and_no_longer(
    autojump_clock: MockClock,
) -> None:
    """A quorum of two ends at 2 s; what it cuts short ends too, but nobody waited for that."""

    async def work(seconds: float) -> None:
        try:
            await trio.sleep(seconds)
        finally:
            with harness.cleanup():
                await trio.sleep(3)

    metrics = Metrics()
    with harness.observing(metrics):
        await harness.fan_out(work, [1, 2, 60], policy=harness.Quorum(2), name="quorum")
    assert metrics.aggregation_wait_time.p50 == 1
    assert metrics.parallel_completion_time.p50 == 8


async def test_back_off_and_waiting_for_a_limit_is_no_work(autojump_clock: MockClock) -> None:
    async def flaky(item: int) -> None:
        await trio.sleep(2)
        if harness.current_run().attempt == 1:
            raise ConnectionError

    metrics = Metrics()
    with harness.observing(metrics):
        started = trio.current_time()
        await harness.fan_out(flaky, [1], limit=1, each=Attempt(retry=Retry(2)))
        seconds = trio.current_time() - started
    assert seconds > 4
    assert metrics.worker_utilization == pytest.approx(4 / seconds)
    assert metrics.item_time.p50 == pytest.approx(seconds)
    assert metrics.retries == 1

    # One request a second: the second and third of 3 s each wait 1 and 2 s for it.
    metrics = Metrics()
    limiter = Limiter("openai", requests_per_minute=60)
    with harness.observing(metrics):
        each = Attempt(limiter=limiter)
        await harness.fan_out(trio.sleep, [3, 3, 3], limit=3, each=each)
    assert metrics.parallel_completion_time.p50 == pytest.approx(5)
    assert metrics.worker_utilization == pytest.approx(9 / 15)
    assert metrics.limiter_wait_time.count == 3
    assert metrics.limiter_wait_time.total == pytest.approx(3)
    assert metrics.limits["openai"].waits == 2


async def test_a_hedge_occupies_one_slot_not_two(autojump_clock: MockClock) -> None:
    async def slow(item: int) -> None:
        await trio.sleep(10 if harness.current_run().attempt == 1 else 1)

    metrics = Metrics()
    with harness.observing(metrics):
        each = Attempt(hedge=Hedge(after=4, budget=1))
        await harness.fan_out(slow, [1], limit=1, each=each)
    assert metrics.parallel_completion_time.p50 == 5
    assert metrics.worker_utilization == 1
    assert metrics.hedges == 1
    assert metrics.items == {"ok": 1}


async def test_a_limit_that_changes_counts_as_what_it_was(autojump_clock: MockClock) -> None:
    """2 slots for 4 s, then 4 for 4 s: 24 slot seconds, and 2 x 4 + 4 x 4 s of work."""
    limit = harness.Limit(2)
    metrics = Metrics()

    async def raise_it() -> None:
        await trio.sleep(4)
        limit.change(4)

    with harness.observing(metrics):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(raise_it)
            await harness.fan_out(trio.sleep, [4] * 6, limit=limit)
    assert metrics.parallel_completion_time.p50 == 8
    assert metrics.worker_utilization == pytest.approx(1)


async def test_a_pipeline_by_hand(autojump_clock: MockClock) -> None:
    """Parse takes 1 s and has 2 slots; store takes 2 s and has 1: 3 items end at 3, 5 and 7 s.

    Of 3 slots for 7 s, 3 x 1 + 3 x 2 s are work. Waiting before a stage is none.
    """

    async def parse(item: int) -> int:
        await trio.sleep(1)
        return item

    async def store(item: int) -> int:
        await trio.sleep(2)
        if item == 2:
            raise ValueError(item)
        return item

    metrics = Metrics()
    with harness.observing(metrics):
        pipeline = Pipeline(stage(parse, limit=2), stage(store, limit=1), buffer=3)
        await pipeline.run(range(3), policy=BEST)
    assert metrics.parallel_completion_time.p50 == 7
    assert metrics.worker_utilization == pytest.approx(9 / 21)
    assert metrics.worker_failure_rate == pytest.approx(1 / 3)
    assert metrics.aggregation_wait_time.p50 == 4
    assert metrics.item_time.p50 == 5


async def test_a_router_by_hand(autojump_clock: MockClock) -> None:
    """The deep track takes one at a time, so its second item waits 3 s, in which it isn't work."""

    async def quick(item: str) -> str:
        await trio.sleep(1)
        return item

    async def deep(item: str) -> str:
        await trio.sleep(3)
        return item

    metrics = Metrics()
    with harness.observing(metrics):
        router = Router(lambda item: item, tracks={"quick": quick, "deep": track(deep, limit=1)})
        await router.run(["quick", "deep", "deep"], limit=3)
    assert metrics.parallel_completion_time.p50 == 6
    assert metrics.worker_utilization == pytest.approx(7 / 18)
    assert metrics.aggregation_wait_time.p50 == 5
    assert metrics.items == {"ok": 3}


async def test_the_queue_by_priority(autojump_clock: MockClock) -> None:
    """Of six items two are under way, and four were read ahead; two requests are in line."""
    metrics = Metrics()
    limiter = Limiter("openai", requests_per_minute=1, concurrent=1)

    async def ask(priority: int) -> None:
        async with limiter.reserve(priority=priority):
            await trio.sleep(1)

    async def asks() -> None:
        async with harness.open_run("asks"), trio.open_nursery() as nursery:
            for priority in (5, 5, 7):
                nursery.start_soon(ask, priority)
                await wait_all_tasks_blocked()

    async def ten_seconds(item: int) -> None:
        await trio.sleep(10)

    async def batch() -> None:
        items = [1, 1, 1, 2, 2, 5]
        await harness.fan_out(ten_seconds, items, limit=2, priority=lambda item: item)

    with harness.observing(metrics):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(batch)
            nursery.start_soon(asks)
            await trio.sleep(0.5)
            assert metrics.queue_depth_by_priority == {7: 1, 5: 1, 2: 1, 1: 3}
            assert list(metrics.queue_depth_by_priority) == [7, 5, 2, 1]
            assert (metrics.working, metrics.workers) == (2, 2)
            assert metrics.limits["openai"].use == {"requests": 1}
            nursery.cancel_scope.cancel()
    assert metrics.queue_depth_by_priority == {}


async def test_tokens_and_cost_of_each_run_and_of_all(autojump_clock: MockClock) -> None:
    price = Price(input_usd_per_million_tokens=1, output_usd_per_million_tokens=2)
    reply = ModelResponse("yes", usage=Usage(1_000, 500))
    model = ScriptedModel([reply] * 5, name="small", price=price)
    agent = Agent("judge", model=model)
    metrics = Metrics()
    with harness.observing(metrics):
        async with harness.open_run("all") as run:
            results = await harness.fan_out(agent, ["a", "b"], limit=1)
            async with harness.open_run("more") as more:
                await agent.run("c")
                assert metrics.spent_in(more.id).calls == 1
    assert metrics.tokens == 4_500
    assert metrics.cost_usd == pytest.approx(0.006)
    assert metrics.spent_in(run.id) == metrics.spent
    assert [metrics.spent_in(result.run_id or "").tokens for result in results] == [1_500, 1_500]
    assert metrics.spent_in(more.id).cost_usd == pytest.approx(0.002)
    [((_, name), spent)] = metrics.spent_by_model.items()
    assert name == "small"
    assert spent == metrics.spent
    assert metrics.model_time.count == 3
    assert metrics.spent_in("nobody") == Spent()


async def test_what_runs_used_is_remembered_of_the_latest(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_metrics, "RUNS_REMEMBERED", 3)
    model = FunctionModel(lambda request: ModelResponse("yes", usage=Usage(10)))
    metrics = Metrics()
    with harness.observing(metrics):
        # Of each item its own run, and that of the agent in it; last the fan-out's.
        results = await harness.fan_out(Agent("judge", model=model), "abc", limit=1)
    used = [metrics.spent_in(result.run_id or "").tokens for result in results]
    assert used == [0, 0, 10]
    assert metrics.tokens == 30


async def test_what_is_under_way_counts_up_to_now(autojump_clock: MockClock) -> None:
    metrics = Metrics()
    with harness.observing(metrics):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: harness.fan_out(trio.sleep, [4, 10], limit=2))
            await trio.sleep(8)
            assert metrics.worker_utilization == pytest.approx(12 / 16)
            assert metrics.runs == {"running": 2, "ok": 1}


@pytest.mark.slow
async def test_nothing_is_kept_of_what_is_over(autojump_clock: MockClock) -> None:
    """10,000 runs, with limits and retries, leave a few numbers."""
    metrics = Metrics()
    limiter = Limiter("openai", requests_per_minute=600_000)
    flaky = set(range(0, 2_000, 100))

    async def work(item: int) -> None:
        await trio.sleep(1)
        if item in flaky and harness.current_run().attempt == 1:
            raise ConnectionError

    with harness.observing(metrics):
        each = Attempt(limiter=limiter, retry=Retry(2))
        await harness.fan_out(work, range(2_000), each=each)
    assert metrics.items == {"ok": 2_000}
    assert not metrics._runs
    assert not metrics._fan_outs
    assert not metrics._waits
    del limiter, each
    gc.collect()
    assert metrics.limits == {}


async def test_two_limiters_of_one_name_are_told_apart(autojump_clock: MockClock) -> None:
    metrics = Metrics()
    limiters = [Limiter(requests_per_minute=60 * n) for n in (1, 2)]
    with harness.observing(metrics):
        async with harness.open_run("asks"):
            for limiter in (*limiters, *limiters):
                async with limiter.reserve():
                    pass
    limits = metrics.limits
    assert [(name, one.dimensions["requests"].limit) for name, one in limits.items()] == [
        ("limiter", 60),
        ("limiter #2", 120),
    ]


async def test_observed_from_the_middle_it_counts_what_it_sees(autojump_clock: MockClock) -> None:
    """Items of a fan-out that nobody saw begin have nothing to be counted in."""
    metrics = Metrics()

    async def work(item: int) -> None:
        with harness.observing(metrics):
            await harness.fan_out(trio.sleep, [1, 3], limit=2)

    await harness.fan_out(work, [1], limit=1)
    assert metrics.worker_utilization == pytest.approx(4 / 6)
    assert metrics.items == {"ok": 2}
