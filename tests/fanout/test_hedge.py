"""``Attempt(hedge=...)`` starts a second attempt for a straggler; the first answer wins."""

import math
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError
from tests.fanout.probes import Boom, FakeLimiter, nap, nothing_left_behind, statuses

BEST_EFFORT = harness.BestEffort()


class Plan:
    """A body whose first and second attempt take what the plan says, or fail after that time."""

    def __init__(self, *attempts: float) -> None:
        """Take seconds per attempt; a negative number fails after that time."""
        self.attempts = attempts
        self.starts: list[float] = []
        self.runs: list[harness.Run] = []
        self.begin = trio.current_time()

    async def __call__(self, item: Any) -> int:
        """Return the number of the attempt."""
        number = len(self.runs)
        self.runs.append(harness.current_run())
        self.starts.append(trio.current_time() - self.begin)
        await trio.sleep(abs(self.attempts[number]))
        if self.attempts[number] < 0:
            raise Boom(number)
        return number


HEDGE = harness.Attempt(hedge=harness.Hedge(after=2))


async def test_a_straggler_gets_a_second_attempt_and_the_first_answer_wins(
    autojump_clock: MockClock,
) -> None:
    body = Plan(10, 1)
    with nothing_left_behind():
        [result] = await harness.fan_out(body, ["x"], each=HEDGE)
    assert trio.current_time() - body.begin == 3
    assert body.starts == [0, 2]
    assert (result.status, result.value, result.attempts) == ("ok", 1, 2)
    assert result.run_id == body.runs[1].id
    assert (result.started_at, result.ended_at) == (body.begin, body.begin + 3)


async def test_the_loser_is_cancelled_with_a_reason(autojump_clock: MockClock) -> None:
    body = Plan(10, 1)
    await harness.fan_out(body, ["x"], each=HEDGE)
    loser, winner = body.runs
    assert (loser.status, winner.status) == ("cancelled", "ok")
    assert loser.cancel_reason
    body = Plan(5, 50)
    [result] = await harness.fan_out(body, ["x"], each=HEDGE)
    winner, loser = body.runs
    assert (result.value, result.attempts, result.run_id) == (0, 2, winner.id)
    assert (loser.status, winner.status) == ("cancelled", "ok")
    assert trio.current_time() - body.begin == 5


async def test_the_loser_has_ended_when_the_result_is_seen(autojump_clock: MockClock) -> None:
    cleaned: list[float] = []

    async def body(item: int) -> str:
        try:
            await trio.sleep(10 if first.pop() else 1)
        finally:
            with harness.cleanup():
                await trio.sleep(1)
            cleaned.append(trio.current_time())
        return "answer"

    first = [False, True]
    with nothing_left_behind():
        await harness.fan_out(body, [1], each=HEDGE)
        assert len(cleaned) == 2


async def test_a_quick_item_is_not_hedged(autojump_clock: MockClock) -> None:
    body = Plan(1.5)
    [result] = await harness.fan_out(body, ["x"], each=HEDGE)
    assert (result.attempts, body.starts) == (1, [0])


async def test_a_failure_of_one_attempt_leaves_the_other_its_chance(
    autojump_clock: MockClock,
) -> None:
    body = Plan(-3, 5)
    [result] = await harness.fan_out(body, ["x"], each=HEDGE)
    assert (result.status, result.value) == ("ok", 1)
    assert trio.current_time() - body.begin == 7
    body = Plan(9, -1)
    [result] = await harness.fan_out(body, ["x"], each=HEDGE)
    assert (result.status, result.value) == ("ok", 0)
    assert trio.current_time() - body.begin == 9


async def test_when_both_fail_the_item_fails_once(autojump_clock: MockClock) -> None:
    body = Plan(-5, -6)
    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        await harness.fan_out(body, ["x"], each=HEDGE)
    assert len(caught.value.exceptions) == 1
    assert isinstance(caught.value.exceptions[0], Boom)
    assert caught.value.results[0].attempts == 2


async def test_the_timeout_is_each_attempts_own(autojump_clock: MockClock) -> None:
    body = Plan(math.inf, 4)
    each = harness.Attempt(timeout=5, hedge=harness.Hedge(after=2))
    [result] = await harness.fan_out(body, ["x"], each=each)
    assert (result.status, result.value) == ("ok", 1)
    assert trio.current_time() - body.begin == 6
    assert body.runs[0].status == "timed_out"


async def test_a_hedge_takes_no_item_slot(autojump_clock: MockClock) -> None:
    """With two slots and two stragglers, both are hedged, and no third item starts early."""
    items: list[int] = []
    live: dict[int, int] = {}
    peak_items = peak_attempts = 0

    async def body(item: int) -> int:
        nonlocal peak_items, peak_attempts
        is_first = item not in items
        items.append(item)
        live[item] = live.get(item, 0) + 1
        peak_items = max(peak_items, sum(1 for count in live.values() if count))
        peak_attempts = max(peak_attempts, sum(live.values()))
        try:
            await trio.sleep(100 if is_first else 1)
        finally:
            live[item] -= 1
        return item

    begin = trio.current_time()
    results = await harness.fan_out(body, range(6), limit=2, each=HEDGE)
    assert statuses(results) == ["ok"] * 6
    assert trio.current_time() - begin == 9
    assert (peak_items, peak_attempts) == (2, 4)


async def test_hedges_have_a_bound_of_their_own(autojump_clock: MockClock) -> None:
    """When the provider is slow for all, hedging everything for ever would double the load."""
    live = peak = 0

    async def body(item: int) -> int:
        nonlocal live, peak
        live += 1
        peak = max(peak, live)
        try:
            await trio.sleep(20)
        finally:
            live -= 1
        return item

    results = await harness.fan_out(body, range(40), limit=10, each=HEDGE)
    assert results.complete
    assert peak <= 20


async def test_all_attempts_share_one_idempotency_key_and_no_locals(
    autojump_clock: MockClock,
) -> None:
    local: harness.RunLocal[list[int]] = harness.RunLocal(list, name="local")
    keys: set[str] = set()
    body = Plan(10, 1)

    async def watches(item: str) -> int:
        keys.add(harness.current_run().idempotency_key)
        assert local.get() == []
        local.get().append(1)
        return await body(item)

    await harness.fan_out(watches, ["x"], each=HEDGE, name="nightly", key=str)
    assert len(keys) == 1
    assert [run.path for run in body.runs] == ["nightly/x"] * 2
    assert body.runs[0].id != body.runs[1].id


async def test_a_percentile_hedges_what_is_slower_than_most(autojump_clock: MockClock) -> None:
    """Without knowing beforehand how long an item takes."""
    calls: dict[int, int] = {}

    async def body(item: int) -> int:
        calls[item] = calls.get(item, 0) + 1
        if item == 200 and calls[item] == 1:
            await trio.sleep(10_000)
        await trio.sleep(1 + item % 10 / 100)
        return item

    begin = trio.current_time()
    each = harness.Attempt(hedge=harness.Hedge(percentile=0.95))
    with nothing_left_behind():
        results = await harness.fan_out(body, range(240), limit=10, each=each)
    assert results.complete
    assert calls[200] == 2
    assert trio.current_time() - begin < 60
    assert sum(calls.values()) - 240 <= 24 + 10


async def test_a_percentile_hedges_nothing_before_it_knows_anything(
    autojump_clock: MockClock,
) -> None:
    calls: list[int] = []

    async def body(item: int) -> int:
        calls.append(item)
        await trio.sleep(item)
        return item

    each = harness.Attempt(hedge=harness.Hedge(percentile=0.9))
    await harness.fan_out(body, [50, 60], limit=2, each=each)
    assert sorted(calls) == [50, 60]


async def test_a_hedge_reserves_for_itself(autojump_clock: MockClock) -> None:
    limiter = FakeLimiter()
    body = Plan(10, 1)
    each = harness.Attempt(hedge=harness.Hedge(after=2), limiter=limiter, tokens=50)
    await harness.fan_out(body, ["x"], each=each)
    assert limiter.asked == [50, 50]
    assert (limiter.granted, limiter.returned) == (2, 2)


async def test_cancelling_one_attempt_leaves_the_other_its_chance(
    autojump_clock: MockClock,
) -> None:
    """Each attempt is a run, and cancelling one run never touches another."""
    runs: list[harness.Run] = []

    async def body(item: int) -> str:
        runs.append(harness.current_run())
        if len(runs) == 1:
            await trio.sleep(5)
            runs[0].cancel("not needed")
        await trio.sleep(10)
        return "answer"

    begin = trio.current_time()
    with nothing_left_behind():
        [result] = await harness.fan_out(body, [1], each=HEDGE)
    assert (result.status, result.value) == ("ok", "answer")
    assert trio.current_time() - begin == 12
    assert [run.status for run in runs] == ["cancelled", "ok"]


async def test_when_both_attempts_cancel_themselves_the_item_is_cancelled(
    autojump_clock: MockClock,
) -> None:
    async def body(item: int) -> None:
        await trio.sleep(5)
        harness.current_run().cancel("not needed")
        await trio.sleep(10)

    with nothing_left_behind():
        [result] = await harness.fan_out(body, [1], each=HEDGE)
    assert (result.status, result.attempts) == ("cancelled", 2)


async def test_ending_the_fan_out_ends_the_hedges(autojump_clock: MockClock) -> None:
    body = Plan(100, 100)
    with nothing_left_behind():
        results = await harness.fan_out(body, ["x"], each=HEDGE, within=5, policy=BEST_EFFORT)
    assert statuses(results) == ["cancelled"]
    assert [run.status for run in body.runs] == ["cancelled", "cancelled"]
    body = Plan(100, 100)
    with nothing_left_behind(), trio.move_on_after(5):
        await harness.fan_out(body, ["x"], each=HEDGE)
    assert [run.status for run in body.runs] == ["cancelled", "cancelled"]


async def test_a_hedged_batch_still_gives_every_item_one_result(
    autojump_clock: MockClock,
) -> None:
    async def body(item: int) -> int:
        return int(await nap(item % 7))

    results = await harness.fan_out(body, range(70), limit=6, each=HEDGE)
    assert list(results.values()) == [item % 7 for item in range(70)]
