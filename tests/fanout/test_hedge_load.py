"""What hedges bring and cost, over a whole fan-out with a heavy tail of latencies."""

import math
import random
import statistics
from collections.abc import Iterable

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

import harness
from harness.fanout import Results
from harness.fanout._latency import SAMPLES_AT_LEAST, SAMPLES_AT_MOST, Latencies
from tests.fanout.probes import FakeLimiter

ITEMS = 3_000


@attrs.define(eq=False)
class HeavyTail:
    """A body that takes about a second, and one time in twenty far longer, as if by bad luck.

    An attempt's latency depends on its item and its number alone: so it is the same however the
    fan-out is scheduled, and the first attempt's is known also where it was cut.
    """

    seed: int = 1
    calls: dict[int, int] = attrs.field(factory=dict)

    def latency(self, item: int, attempt: int) -> float:
        """Return the seconds that this attempt takes."""
        rng = random.Random(f"{self.seed}/{item}/{attempt}")
        if rng.random() < 0.95:
            return rng.lognormvariate(0, 0.25)
        return 4 * rng.paretovariate(1.5)

    async def __call__(self, item: int) -> int:
        """Take that long."""
        attempt = self.calls.get(item, 0)
        self.calls[item] = attempt + 1
        await trio.sleep(self.latency(item, attempt))
        return item


def p99(seconds: Iterable[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98]


async def hedged(
    hedge: harness.Hedge | None, body: HeavyTail, *, items: int = ITEMS
) -> Results[int]:
    return await harness.fan_out(body, range(items), limit=50, each=harness.Attempt(hedge=hedge))


@pytest.mark.long
@pytest.mark.parametrize(
    "hedge",
    [
        harness.Hedge(percentile=0.95, budget=0.05),
        harness.Hedge(percentile=0.95),
        harness.Hedge(after=2.0, budget=0.05),
    ],
)
async def test_the_tail_is_cut_for_a_small_share_of_load(
    hedge: harness.Hedge, autojump_clock: MockClock
) -> None:
    body = HeavyTail()
    bare = [body.latency(item, 0) for item in range(ITEMS)]
    results = await hedged(hedge, body)
    summary = results.summary()
    assert results.complete
    assert p99(result.seconds for result in results) < 0.5 * p99(bare)
    assert sum(body.calls.values()) == ITEMS + summary.hedges == summary.attempts
    assert summary.hedges <= hedge.budget * ITEMS
    assert max(body.calls.values()) == 2


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_the_savings_are_an_honest_estimate(seed: int, autojump_clock: MockClock) -> None:
    """Here it is known what the cut attempts would have taken. Rather too low than too high."""
    body = HeavyTail(seed)
    results = await hedged(harness.Hedge(percentile=0.95), body)
    summary = results.summary()
    truth = sum(
        body.latency(result.index, 0) - result.seconds
        for result in results
        if result.attempts == 2 and result.seconds < body.latency(result.index, 0)
    )
    assert 0.5 * summary.hedges < summary.hedges_won <= summary.hedges
    assert 0.2 * truth < summary.hedge_seconds_saved < 1.1 * truth
    assert (
        f"{summary.hedges} hedges ({summary.hedges_won} answered first, saving about "
        f"{summary.hedge_seconds_saved:.1f} s)"
    ) in str(summary)
    assert (results.hedges.started, results.hedges.won) == (summary.hedges, summary.hedges_won)


@pytest.mark.slow
async def test_the_percentile_does_not_creep_down(autojump_clock: MockClock) -> None:
    """What hedges cut has to count as slow: left out, ever less is taken for late.

    A budget of one half would allow that; the 95th percentile asks for one in twenty.
    """
    body = HeavyTail()
    results = await hedged(harness.Hedge(percentile=0.95, budget=0.5), body)
    assert 0.03 * ITEMS < results.summary().hedges < 0.07 * ITEMS


@pytest.mark.slow
async def test_when_all_is_slow_the_budget_holds(autojump_clock: MockClock) -> None:
    """A provider that breaks down must not be asked twice by everybody."""
    calls = 0

    async def body(item: int) -> int:
        nonlocal calls
        calls += 1
        await trio.sleep(1 if item < 200 else 30)
        return item

    each = harness.Attempt(hedge=harness.Hedge(percentile=0.95, budget=0.05))
    results = await harness.fan_out(body, range(1_000), limit=20, each=each)
    assert results.complete
    assert calls - 1_000 <= 50


@pytest.mark.slow
async def test_what_the_budget_allows_later_goes_to_the_latest(
    autojump_clock: MockClock,
) -> None:
    """The worst straggler is one that came too early for the budget; it must not be forgotten."""
    calls: dict[int, int] = {}

    async def body(item: int) -> int:
        calls[item] = calls.get(item, 0) + 1
        if item < 11 and calls[item] == 1:
            await trio.sleep(10_000)
        await trio.sleep(1)
        return item

    begin = trio.current_time()
    each = harness.Attempt(hedge=harness.Hedge(after=2, budget=0.1))
    results = await harness.fan_out(body, range(400), limit=20, each=each)
    assert results.complete
    assert [calls[item] for item in range(11)] == [2] * 11
    assert trio.current_time() - begin < 100


@pytest.mark.slow
async def test_waiting_for_the_limiter_is_no_latency(autojump_clock: MockClock) -> None:
    """An attempt is late counted from the grant, so that is what has to be learned too."""
    calls: dict[int, int] = {}

    async def body(item: int) -> int:
        calls[item] = calls.get(item, 0) + 1
        await trio.sleep(60 if item == 100 and calls[item] == 1 else 1 + item % 10 / 100)
        return item

    each = harness.Attempt(
        hedge=harness.Hedge(percentile=0.95), limiter=FakeLimiter(wait_seconds=50)
    )
    results = await harness.fan_out(body, range(110), limit=10, each=each)
    assert calls[100] == 2
    assert results[100].seconds < 50 + 2 + 50 + 2


async def test_no_hedge_saves_nothing(autojump_clock: MockClock) -> None:
    """Also the ground the other tests stand on: bare, an item takes its first attempt's latency."""
    body = HeavyTail()
    results = await hedged(harness.Hedge(after=math.inf), body, items=300)
    assert [result.seconds for result in results] == pytest.approx(
        [body.latency(item, 0) for item in range(300)]
    )
    summary = results.summary()
    assert (summary.hedges, summary.hedges_won, summary.hedge_seconds_saved) == (0, 0, 0)
    assert "hedge" not in str(summary)


@pytest.mark.slow
async def test_a_stream_tells_its_hedges_too(autojump_clock: MockClock) -> None:
    each = harness.Attempt(hedge=harness.Hedge(after=2))
    async with harness.open_fan_out(HeavyTail(), range(300), each=each) as stream:
        async for _ in stream:
            pass
    assert stream.summary().hedges == stream.results.hedges.started > 0
    assert stream.summary().hedges_won == stream.results.hedges.won > 0


# What is learned ---------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0, 1e6), st.booleans()), max_size=60), st.floats(0, 1e6))
def test_seconds_left_is_the_area_under_the_survival_curve(
    samples: list[tuple[float, bool]], seconds: float
) -> None:
    """Against the curve as textbooks write it, moment by moment."""
    latencies = Latencies()
    for duration, cut in samples:
        latencies.add(duration, cut=cut)
    moments = sorted({duration for duration, _ in samples if duration > seconds})
    area, surviving, before = 0.0, 1.0, seconds
    for moment in moments:
        area += surviving * (moment - before)
        at_risk = sum(duration >= moment for duration, _ in samples)
        ended = sum(duration == moment and not cut for duration, cut in samples)
        surviving *= 1 - ended / at_risk
        before = moment
    assert latencies.seconds_left(seconds) == pytest.approx(area)


def test_nothing_seen_says_nothing() -> None:
    latencies = Latencies()
    assert latencies.seconds_left(1.0) == 0
    assert latencies.percentile(0.5) is None
    latencies.add(2.0)
    assert latencies.seconds_left(1.0) == 1.0
    assert latencies.seconds_left(2.0) == 0


def test_the_latest_count_and_the_memory_is_bounded() -> None:
    latencies = Latencies()
    for _ in range(5_000):
        latencies.add(1.0, cut=True)
    for number in range(SAMPLES_AT_MOST):
        latencies.add(10.0 + number / SAMPLES_AT_MOST)
    assert latencies.percentile(0.001) == 10.0
    assert len(latencies._sorted) == len(latencies._latest) == SAMPLES_AT_MOST
    assert SAMPLES_AT_LEAST < SAMPLES_AT_MOST
