"""What a guide to parallel work of agents shows and asks for, each as a program of this library."""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Collection
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError, RunTimedOut
from harness.fanin import Fold, coverage, merge, resolve
from harness.flow import Pipeline, Router, speedup, stage, track
from harness.limits import Limiter, ProviderPool, parse_rate_limit_headers
from harness.shared import AppendLog, Counter, open_cache, open_once
from harness.testing import (
    Chaos,
    Recording,
    all_failure_combinations,
    assert_consistent,
    assert_stable_under_load,
)

# Why ----------------------------------------------------------------------------------------------


async def test_five_searches_at_once_take_as_long_as_one(autojump_clock: MockClock) -> None:
    async def search(database: int) -> int:
        await trio.sleep(1.2)
        return database

    for database in range(5):
        await search(database)
    assert trio.current_time() == pytest.approx(6)
    assert (await harness.fan_out(search, range(5))).values() == [0, 1, 2, 3, 4]
    assert trio.current_time() == pytest.approx(7.2)


def test_what_is_sequential_bounds_the_speedup() -> None:
    assert speedup(0.7, math.inf) == pytest.approx(3.33, abs=0.01)
    assert speedup(1, 5) == 5


# Patterns -----------------------------------------------------------------------------------------


async def test_fan_in_handles_the_workers_that_failed(autojump_clock: MockClock) -> None:
    async def search(source: str) -> str:
        await trio.sleep(1)
        if source == "c":
            raise OSError("no connection")
        return f"found in {source}"

    results = await harness.fan_out(search, "abcd", policy=harness.BestEffort(), key=str)
    assert [one.value for one in merge(results)] == ["found in a", "found in b", "found in d"]
    assert str(coverage(results)) == "3 of 4 ok; missing: 'c' failed: OSError: no connection"


async def test_a_stage_works_on_the_next_item_meanwhile_and_waits_for_a_slow_one(
    autojump_clock: MockClock,
) -> None:
    began: list[tuple[str, int, float]] = []

    async def quick(item: int) -> int:
        began.append(("quick", item, trio.current_time()))
        await trio.sleep(1)
        return item

    async def slow(item: int) -> int:
        began.append(("slow", item, trio.current_time()))
        await trio.sleep(3)
        return item

    pipeline = Pipeline(stage(quick, limit=1), stage(slow, limit=1), buffer=1)
    assert (await pipeline.run(range(6))).values() == [0, 1, 2, 3, 4, 5]
    at = {(name, item): moment for name, item, moment in began}
    assert at["quick", 1] == at["slow", 0] == 1
    assert at["quick", 5] >= at["slow", 3], "a fast stage runs ahead of a slow one"


async def test_a_router_gives_simple_and_complex_tasks_a_track_each(
    autojump_clock: MockClock,
) -> None:
    async def fast(task: str) -> str:
        await trio.sleep(1)
        return f"fast {task}"

    async def thorough(task: str) -> str:
        parts = await harness.fan_out(fast, [f"{task} {part}" for part in "ab"])
        return ", ".join(parts.values())

    router = Router(
        lambda task: "fast" if task.startswith("simple") else "full",
        tracks={"fast": track(fast, limit=50), "full": track(thorough, limit=5)},
    )
    results = await router.run(["simple 1", "complex 2"])
    assert results.values() == ["fast simple 1", "fast complex 2 a, fast complex 2 b"]


# Limits -------------------------------------------------------------------------------------------


async def test_no_more_than_ten_calls_are_under_way(autojump_clock: MockClock) -> None:
    active = Counter(0, maximum=10)
    completed = Counter()

    async def call(number: int) -> int:
        active.add(1)  # Raises above its maximum.
        await trio.sleep(1)
        active.add(-1)
        completed.add(1)
        return number

    assert (await harness.fan_out(call, range(95), limit=10)).values() == list(range(95))
    assert (active.value, completed.value, trio.current_time()) == (0, 95, 10)


async def test_no_minute_has_more_than_100_000_tokens(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", tokens_per_minute=100_000)
    spent: list[float] = []

    async def call(number: int) -> None:
        async with limiter.reserve(tokens=4_000):
            spent.append(trio.current_time())

    await harness.fan_out(call, range(100))
    for start in spent:
        assert sum(4_000 for moment in spent if start <= moment < start + 60) <= 100_000


async def test_twenty_workers_share_one_limit_of_100_requests_a_minute(
    autojump_clock: MockClock,
) -> None:
    """A limiter in each worker would let 200 through."""
    limiter = Limiter("model", requests_per_minute=100)
    sent: list[float] = []

    async def worker(number: int) -> None:
        for _ in range(10):
            async with limiter.reserve():
                sent.append(trio.current_time())
                await trio.sleep(0.1)

    await harness.fan_out(worker, range(20))
    assert len(sent) == 200
    assert max(sum(start <= moment < start + 60 for moment in sent) for start in sent) <= 100


async def test_an_empty_provider_is_passed_over_for_the_next(autojump_clock: MockClock) -> None:
    pool = ProviderPool(
        [Limiter(name, requests_per_minute=60) for name in ("anthropic", "openai", "cohere")]
    )
    used: Tally[str] = Tally()

    async def call(number: int) -> None:
        async with pool.reserve() as reservation:
            used[reservation.provider] += 1
            await trio.sleep(0.01)

    await harness.fan_out(call, range(3))
    assert len(used) == 3


async def test_what_responses_say_adjusts_the_limit(autojump_clock: MockClock) -> None:
    limiter = Limiter("openai", tokens_per_minute=1_000_000)
    async with limiter.reserve(tokens=10) as reservation:
        reservation.settle(status=429, headers={"retry-after": "20"})
    async with limiter.reserve(tokens=10):
        assert trio.current_time() >= 20
    heard = parse_rate_limit_headers({"x-ratelimit-remaining-tokens": "0"}, provider="openai")
    assert heard.dimensions["tokens"].remaining == 0


# State --------------------------------------------------------------------------------------------


async def test_shared_counters_lose_no_update() -> None:
    tokens = Counter(1_000)

    async def spend(number: int) -> bool:
        await trio.lowlevel.checkpoint()
        return tokens.try_spend(30)

    results = await harness.fan_out(spend, range(100))
    assert sum(results.values()) == 33
    assert tokens.value == 10


async def test_an_effect_that_many_attempt_happens_once(autojump_clock: MockClock) -> None:
    sent: list[str] = []

    async def mail(idempotency_key: str) -> str:
        sent.append(idempotency_key)
        await trio.sleep(1)
        return "sent"

    async with open_once() as once:
        results = await harness.fan_out(lambda _: once("mail ada", mail), range(50))
    assert results.values() == ["sent"] * 50
    assert len(sent) == 1


async def test_what_many_contribute_is_appended_and_merged_when_it_is_read(
    autojump_clock: MockClock,
) -> None:
    memory: AppendLog[str] = AppendLog()

    async def contribute(number: int) -> None:
        await trio.sleep(10 - number)
        memory.append(f"from {number}")

    async with harness.open_run("job"):
        await harness.fan_out(contribute, range(10))
    assert list(memory) == [f"from {number}" for number in range(10)]


async def test_what_is_only_read_is_loaded_once_and_again_after_its_time(
    autojump_clock: MockClock,
) -> None:
    loads: list[float] = []

    async def load(name: str) -> str:
        loads.append(trio.current_time())
        await trio.sleep(1)
        return f"{name}, loaded"

    async with open_cache(ttl=60) as cache:
        await harness.fan_out(lambda _: cache.get("catalogue", load), range(20))
        await trio.sleep(61)
        assert await cache.get("catalogue", load) == "catalogue, loaded"
    assert loads == [0, 62]


# Errors -------------------------------------------------------------------------------------------


async def work(task: str) -> str:
    if task == "slow":
        await trio.sleep(100)
    await trio.sleep(1)
    if task == "bad":
        raise ValueError("bad task")
    return f"{task} done"


async def test_each_task_ends_as_one_result_with_its_output_or_its_error(
    autojump_clock: MockClock,
) -> None:
    results = await harness.fan_out(
        work,
        ["a", "slow", "bad", "b"],
        limit=10,
        each=harness.Attempt(timeout=30),
        policy=harness.BestEffort(),
        key=str,
    )
    assert [result.key for result in results] == ["a", "slow", "bad", "b"]
    assert [result.status for result in results] == ["ok", "timed_out", "failed", "ok"]
    assert isinstance(results[1].error, RunTimedOut)
    assert isinstance(results[2].error, ValueError)
    assert trio.current_time() == 30


async def test_fail_fast_cancels_the_others_and_raises(autojump_clock: MockClock) -> None:
    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(work, ["slow", "bad", "slow"], policy=harness.FailFast())
    assert [type(error) for error in caught.value.exceptions] == [ValueError]
    assert trio.current_time() == 1


async def test_retry_then_fail_and_a_fallback_when_that_fails(autojump_clock: MockClock) -> None:
    tried: list[str] = []

    async def unlucky(task: str) -> str:
        tried.append(task)
        raise ConnectionError

    retry = harness.Attempt(retry=harness.Retry(3))
    with pytest.raises(FanOutError):
        await harness.fan_out(unlucky, ["a"], each=retry)
    assert tried == ["a"] * 3
    instead = harness.Attempt(retry=harness.Retry(2), fallback=lambda task, error: "from a cache")
    (result,) = await harness.fan_out(unlucky, ["b"], each=instead)
    assert (result.value, result.degraded) == ("from a cache", True)


# Results ------------------------------------------------------------------------------------------


async def test_a_judge_decides_between_answers_that_differ(autojump_clock: MockClock) -> None:
    async def ask(model: str) -> str:
        await trio.sleep(1)
        return "no" if model == "c" else "yes"

    async def judge(question: Any, answers: Any) -> str:
        tally: Tally[str] = Tally(answer.value for answer in answers)
        return tally.most_common(1)[0][0]

    results = await harness.fan_out(ask, "abc", key=lambda _: "is it?")
    (resolution,) = await resolve(results, key="key", judge=judge)
    assert (resolution.value, resolution.conflict) == ("yes", True)
    assert len(resolution.answers) == 3


async def test_results_are_streamed_while_others_are_under_way(autojump_clock: MockClock) -> None:
    async def wait(seconds: int) -> int:
        await trio.sleep(seconds)
        return seconds

    seen: list[tuple[int, float]] = []
    async with harness.open_fan_out(wait, [5, 1, 3]) as stream:
        async for result in stream:
            seen.append((result.value, trio.current_time()))
    assert seen == [(1, 1), (3, 3), (5, 5)]
    async with harness.open_fan_out(wait, [5, 1, 3], ordered=True) as stream:
        assert await Fold(stream, lambda total, result: total + result.value, 0).run() == 9


# Tests --------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_results_hold_under_ten_times_the_load(autojump_clock: MockClock) -> None:
    report = await assert_stable_under_load(work, ["a", "b", "c"], expected=10)
    assert report is not None


@pytest.mark.parametrize("seed", range(5))
async def test_random_faults_leave_one_consistent_result_for_each_item(
    autojump_clock: MockClock, seed: int
) -> None:
    chaos = Chaos(seed, delay=(0, 10), fail=ConnectionError, cancel="the user left", rate=0.3)
    done = Counter()

    async def count(number: int) -> int:
        await trio.sleep(1)
        done.add(1)
        return number

    results = await harness.fan_out(
        chaos.wrap(count), range(50), policy=harness.BestEffort(), limit=10
    )
    assert_consistent(results, done, items=range(50))
    assert done.value == results.summary().ok


async def test_every_combination_of_failures_is_aggregated(autojump_clock: MockClock) -> None:
    for failing in all_failure_combinations(4):

        async def search(source: int, failing: Collection[int] = failing) -> int:
            await trio.sleep(1)
            if source in failing:
                raise OSError
            return source

        results = await harness.fan_out(search, range(4), policy=harness.BestEffort())
        assert {one.value for one in merge(results)} == {*range(4)} - {*failing}


async def test_recorded_outputs_aggregate_to_the_same_in_every_order(
    autojump_clock: MockClock,
) -> None:
    recording = Recording(await harness.fan_out(work, ["a", "b", "c", "d"]))
    orders = await recording.assert_order_independent(
        lambda results: [one.value for one in merge(results)]
    )
    assert orders == math.factorial(4)


# Figures ------------------------------------------------------------------------------------------


async def test_a_batch_says_how_busy_and_how_deep_its_queues_are(
    autojump_clock: MockClock,
) -> None:
    async def wait(item: int) -> None:
        await trio.sleep(1)

    async with harness.open_fan_out(
        wait, range(9), limit=2, priority=lambda item: item % 2
    ) as stream:
        await trio.sleep(0.5)
        statistics = stream.statistics()
        assert statistics.in_flight == 2
        assert dict(statistics.waiting_by_priority) == {1: 2, 0: 5}
    pipeline = Pipeline(stage(wait, limit=1, name="only"))
    await pipeline.run(range(4))
    assert pipeline.statistics().bottleneck == "only"


async def test_results_say_how_long_each_took_and_how_many_failed(
    autojump_clock: MockClock,
) -> None:
    async def wait(seconds: int) -> None:
        await trio.sleep(seconds)
        if seconds == 3:
            raise OSError

    results = await harness.fan_out(wait, range(1, 11), policy=harness.BestEffort())
    assert sorted(result.seconds for result in results) == list(range(1, 11))
    summary = results.summary()
    assert (summary.failed, summary.total, summary.seconds) == (1, 10, 10)
