"""A limiter that changes while it runs stays strict, loses nobody, and refuses what it can't do."""

from __future__ import annotations

import itertools
import random
from collections import deque
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from harness.errors import LimiterRunError
from harness.limits import AdaptiveCapacity, Limiter, Rate, Reservation
from tests.scale import scaled

MINUTE = 60.0


class Window:
    """An obvious count of what the last period holds, to hold a limiter's grants against."""

    def __init__(self, limit: float, period: float = MINUTE) -> None:
        self.limit = limit
        self.period = period
        self.total = 0.0
        self.over = 0
        self._charges: deque[list[float]] = deque()

    def granted(self, amount: float, now: float) -> list[float]:
        """Count a grant; the window that ends with it is within the limit, or only holds it."""
        charge = [now, amount]
        self._forget(now)
        alone = not self._charges
        self._charges.append(charge)
        self.total += amount
        if self.total > self.limit * (1 + 1e-9) and not alone:
            self.over += 1
        return charge

    def settled(self, charge: list[float], used: float, now: float) -> None:
        self._forget(now)
        if self._charges and charge[0] >= self._charges[0][0]:
            self.total += used - charge[1]
            charge[1] = used
        elif used > charge[1]:
            self._charges.append([now, used - charge[1]])
            self.total += used - charge[1]

    def _forget(self, now: float) -> None:
        while self._charges and now - self._charges[0][0] >= self.period:
            self.total -= self._charges.popleft()[1]


class Watched:
    """A limiter whose grants are counted when it makes them; their tasks run later."""

    def __init__(self, **limits: Any) -> None:
        self.limiter = Limiter(**limits)
        self.windows = {
            name: Window(one.limit * limits.get("headroom", 1))
            for name, one in self.limiter.statistics().dimensions.items()
        }
        self._charges: dict[Reservation, dict[str, list[float]]] = {}
        grants = self.limiter._grants
        take = grants.take

        def counted(reservation: Any, now: float) -> None:
            take(reservation, now)
            self._charges[reservation] = {
                meter.name: self.windows[meter.name].granted(amount, now)
                for meter, amount in reservation.charges
            }

        grants.take = counted  # type: ignore[method-assign]

    def settle(self, reservation: Reservation, **used: float) -> None:
        """Settle; the count first, because settling grants others what is free then."""
        charges = self._charges.pop(reservation)
        for name, amount in used.items():
            self.windows[name].settled(charges[name], amount, trio.current_time())
        reservation.settle(**used)  # type: ignore[arg-type]

    def over(self) -> dict[str, int]:
        return {name: window.over for name, window in self.windows.items() if window.over}


AMOUNTS = st.sampled_from([5, 20, 60, 137, 400])


@pytest.mark.slow
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["requests", "tokens", "both", "concurrent"]),
            AMOUNTS,
            st.sampled_from([0.0, 0.3, 7.0, 31.0, 61.0]),
        ),
        min_size=1,
        max_size=8,
    ),
    headroom=st.sampled_from([1.0, 60 / 62]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=scaled(40, full=400), deadline=None)
def test_no_window_is_over_the_limit_in_force_whatever_changes(
    steps: list[tuple[str, int, float]], headroom: float, seed: int
) -> None:
    draws = random.Random(seed)

    async def main() -> None:
        watched = Watched(
            requests_per_minute=60,
            tokens_per_minute=6_000,
            concurrent=50,
            headroom=headroom,
            burst_seconds=draws.choice([0, 1, 20]),
        )
        limiter = watched.limiter
        places = 50

        async def call() -> None:
            size = draws.choice([1, 40, 100, 300])
            async with limiter.reserve(tokens=size, priority=draws.choice([0, 0, 1])) as mine:
                assert limiter.statistics().in_flight <= places
                await trio.sleep(draws.choice([0.0, 0.2, 5.0]))
                watched.settle(mine, tokens=int(size * draws.choice([0.5, 1, 1.4])))

        async with trio.open_nursery() as nursery:
            for what, amount, seconds in steps:
                for _ in range(amount // 5):
                    nursery.start_soon(call)
                await trio.sleep(seconds)
                given: dict[str, Any] = {}
                if what in ("requests", "both"):
                    given["requests_per_minute"] = amount
                    watched.windows["requests"].limit = amount * headroom
                if what in ("tokens", "both"):
                    given["tokens_per_minute"] = amount * 100
                    watched.windows["tokens"].limit = amount * 100 * headroom
                if what == "concurrent":
                    given["concurrent"] = amount
                    places = max(amount, limiter.statistics().in_flight)
                limiter.change(**given)
        assert watched.over() == {}
        statistics = limiter.statistics()
        assert (statistics.waiting, statistics.in_flight) == (0, 0)
        assert all(one.unsettled == 0 for one in statistics.dimensions.values())

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.slow
async def test_days_of_changes_without_a_window_over_and_with_full_use(
    autojump_clock: MockClock,
) -> None:
    """Three days in a full run: mixed dimensions, settles below and above what was reserved.

    Full use means that of the limit that binds; not in the minutes after a cut, in which what was
    granted before still counts.
    """
    draws = random.Random(3)
    hours = scaled(2, full=72)
    watched = Watched(
        requests_per_minute=300,
        tokens_per_minute=30_000,
        input_tokens_per_minute=10**6,
        concurrent=40,
    )
    used = {"requests": 0.0, "tokens": 0.0}

    async def call() -> None:
        while True:
            size = draws.randint(20, 140)  # 80 on average, settled to 80.
            async with watched.limiter.reserve(tokens=size, input_tokens=size // 2) as mine:
                await trio.sleep(draws.uniform(0.1, 0.6))
                real = size * draws.choice([0.6, 0.9, 1.2, 1.3])
                watched.settle(mine, tokens=real, input_tokens=size // 2)
                used["requests"] += 1
                used["tokens"] += real

    plans = itertools.cycle(
        [
            ("requests", 300, 60_000),
            ("tokens", 400, 21_000),
            ("requests", 200, 60_000),
            ("tokens", 900, 40_000),
        ]
    )
    shares: dict[str, list[float]] = {"requests": [], "tokens": []}
    async with trio.open_nursery() as nursery:
        for _ in range(12):
            nursery.start_soon(call)
        for binding, per_minute, tokens in itertools.islice(plans, 2 * hours):
            watched.windows["requests"].limit = per_minute
            watched.windows["tokens"].limit = tokens
            watched.limiter.change(requests_per_minute=per_minute, tokens_per_minute=tokens)
            await trio.sleep(120)
            before = used[binding]
            await trio.sleep(28 * 60)
            shares[binding].append((used[binding] - before) / (watched.windows[binding].limit * 28))
        nursery.cancel_scope.cancel()
    assert watched.over() == {}
    for binding, found in shares.items():
        assert sum(found) / len(found) >= 0.995, (binding, found)


async def test_a_raise_counts_at_once_for_those_in_line(autojump_clock: MockClock) -> None:
    limiter = Limiter(requests_per_minute=1)
    times: list[float] = []

    async def call() -> None:
        async with limiter.reserve():
            times.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(call)
        await trio.sleep(5)
        limiter.change(requests_per_minute=60)
    assert times == pytest.approx([0, 5.917, 6.917], abs=0.1)


async def test_a_cut_waits_for_what_was_granted_before_it(autojump_clock: MockClock) -> None:
    limiter = Limiter(requests_per_minute=60, burst_seconds=60)
    for _ in range(60):
        async with limiter.reserve():
            pass
    await trio.sleep(30)
    limiter.change(requests_per_minute=6)
    async with limiter.reserve():
        assert trio.current_time() == pytest.approx(60)


async def test_places_taken_away_are_not_given_out_again(autojump_clock: MockClock) -> None:
    limiter = Limiter(concurrent=4)
    at_once: list[int] = []

    async def call() -> None:
        async with limiter.reserve():
            at_once.append(limiter.statistics().in_flight)
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for _ in range(12):
            nursery.start_soon(call)
        await wait_all_tasks_blocked()
        limiter.change(concurrent=2)
        await trio.sleep(1.5)
        assert limiter.statistics().in_flight == 2
        limiter.change(concurrent=6)
        await wait_all_tasks_blocked()
        assert limiter.statistics().in_flight == 6
    assert max(at_once) == 6


async def test_a_lower_limit_that_the_provider_reported_outlives_a_change(
    autojump_clock: MockClock,
) -> None:
    limiter = Limiter("openai", requests_per_minute=600)
    heard = {"x-ratelimit-limit-requests": "60"}
    limiter.observe(status=200, headers=heard)
    limiter.change(requests_per_minute=900)
    assert limiter.statistics().dimensions["requests"].limit == 60
    limiter.observe(status=200, headers={"x-ratelimit-limit-requests": "1000"})
    assert limiter.statistics().dimensions["requests"].limit == 900
    limiter.change(requests_per_minute=30)
    assert limiter.statistics().dimensions["requests"].limit == 30


def test_what_cannot_be_changed_is_refused_and_changes_nothing() -> None:
    limiter = Limiter("model", requests_per_minute=60, requests=Rate(5, 1), concurrent=3)
    before = repr(limiter)
    with pytest.raises(ValueError, match="no limit on tokens per 60 s to change; it has requests"):
        limiter.change(requests_per_minute=30, tokens_per_minute=100)
    with pytest.raises(ValueError, match="no limit on requests per 10 s"):
        limiter.change(requests=Rate(5, 10))
    with pytest.raises(ValueError, match="above zero"):
        limiter.change(requests_per_minute=0)
    with pytest.raises(ValueError, match="at least 1"):
        limiter.change(requests_per_minute=30, concurrent=0)
    with pytest.raises(ValueError, match="adaptive"):
        Limiter(concurrent=AdaptiveCapacity()).change(concurrent=3)
    assert repr(limiter) == before
    limiter.change(requests_per_minute=30, requests=Rate(2, 1))
    assert "requests: 30 per 60 s, requests per 1 s: 2 per 1 s, 3 at once" in repr(limiter)


def test_it_is_changed_before_its_run_or_in_it_and_kept_by_a_reset() -> None:
    limiter = Limiter("model", requests_per_minute=60)
    limiter.change(requests_per_minute=30)

    async def use() -> Reservation:
        async with limiter.reserve() as reservation:
            limiter.change(requests_per_minute=20)
            with pytest.raises(LimiterRunError, match="from_thread"):
                await trio.to_thread.run_sync(lambda: limiter.change(requests_per_minute=10))
        return reservation

    trio.run(use, clock=MockClock())
    limiter.reset()
    assert limiter.statistics().dimensions["requests"].limit == 20
