"""The limiter keeps its promises under every order of steps, and when any waiter is cancelled."""

from itertools import pairwise

import pytest
import trio

import harness
from harness.limits import Limiter
from harness.shared import Counter
from harness.testing import NotFound, ScheduleRun, explore_schedules, faultable, find_schedule
from tests.scale import scaled

pytestmark = pytest.mark.slow

SCHEDULES = scaled(60, full=400)


def nobody_is_held(limiter: Limiter) -> None:
    statistics = limiter.statistics()
    assert statistics.waiting == 0
    assert statistics.in_flight == 0


@explore_schedules(schedules=SCHEDULES)
async def test_never_more_at_once_than_may_be() -> None:
    limiter = Limiter("slots", concurrent=2)
    inside = most = 0

    async def use() -> None:
        nonlocal inside, most
        async with limiter.reserve():
            inside += 1
            most = max(most, inside)
            await trio.lowlevel.checkpoint()
            inside -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(use)
    assert most <= 2
    assert limiter.statistics().granted == 4
    nobody_is_held(limiter)


def test_no_slot_is_lost_whoever_is_cancelled_at_whatever_step() -> None:
    """A waiter that is cancelled right when it is granted must hand its slot on."""

    async def program() -> None:
        limiter = Limiter("slots", concurrent=1)
        served: list[int] = []

        async def use(number: int) -> None:
            with faultable(number):
                async with limiter.reserve():
                    await trio.lowlevel.checkpoint()
                    served.append(number)

        async with trio.open_nursery() as nursery:
            for number in (1, 2, 3):
                nursery.start_soon(use, number)
        assert len(served) >= 2, "a cancel of one costs at most that one"
        nobody_is_held(limiter)

    def judge(run: ScheduleRun) -> BaseException | None:
        # With two runs cancelled, only one needs to be served.
        return run.error if len({fault.run for fault in run.schedule.faults}) <= 1 else None

    found = find_schedule(program, schedules=3 * SCHEDULES, judge=judge)
    assert isinstance(found, NotFound), found.error


@explore_schedules(schedules=SCHEDULES)
async def test_a_rate_is_kept_in_every_order() -> None:
    limiter = Limiter("per minute", requests_per_minute=60)
    granted: list[float] = []

    async def call() -> None:
        async with limiter.reserve() as reservation:
            granted.append(trio.current_time())
            reservation.settle()

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(call)
    gaps = [later - earlier for earlier, later in pairwise(granted)]
    assert all(gap >= 1 - 1e-6 for gap in gaps), "one a second, after a burst of one"


@explore_schedules(schedules=SCHEDULES)
async def test_a_budget_is_never_overspent() -> None:
    budget = Counter(3)
    bought: list[int] = []

    async def buy(number: int) -> None:
        await trio.lowlevel.checkpoint()
        if budget.try_spend(1):
            bought.append(number)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(buy, number)
    assert len(bought) == 3
    assert budget.value == 0


@explore_schedules(schedules=SCHEDULES)
async def test_a_reservation_in_each_run_of_a_fan_out_is_given_back() -> None:
    limiter = Limiter("slots", concurrent=2)

    async def call(number: int) -> int:
        async with limiter.reserve():
            await trio.lowlevel.checkpoint()
            return number

    results = await harness.fan_out(call, range(4), limit=3)
    assert list(results.values()) == [0, 1, 2, 3]
    nobody_is_held(limiter)
