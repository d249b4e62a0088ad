"""The line: its order, what cancelling costs, and what a wait costs the scheduler."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from functools import partial

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

import harness
from harness.limits import Limiter, Rate
from tests.scale import scaled


class Steps(trio.abc.Instrument):
    """Count how often tasks run, and cancel a scope at a given step of one of them."""

    def __init__(self) -> None:
        self.total = 0
        self.of: Counter[str] = Counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.total += 1
        self.of[task.name] += 1


async def start_in_order(
    nursery: trio.Nursery, limiter: Limiter, served: list[str], who: str, **given: float
) -> None:
    async def ask() -> None:
        async with limiter.reserve(**given):  # type: ignore[arg-type]
            served.append(who)

    nursery.start_soon(ask)
    await wait_all_tasks_blocked()


async def test_grants_follow_arrival_inside_a_priority(mock_clock: MockClock) -> None:
    limiter = Limiter("model", requests_per_minute=60)
    served: list[str] = []
    async with trio.open_nursery() as nursery:
        for index in range(500):
            await start_in_order(nursery, limiter, served, f"{index:03}")
        mock_clock.autojump_threshold = 0
    assert served == sorted(served)
    assert trio.current_time() == pytest.approx(499)


async def test_the_larger_priority_goes_first(mock_clock: MockClock) -> None:
    limiter = Limiter("model", requests_per_minute=60)
    served: list[str] = []
    async with trio.open_nursery() as nursery:
        await start_in_order(nursery, limiter, served, "at once")
        for index in range(5):
            await start_in_order(nursery, limiter, served, f"low {index}", priority=-1)
        for index in range(5):
            await start_in_order(nursery, limiter, served, f"high {index}", priority=3)
        await start_in_order(nursery, limiter, served, "middle")
        mock_clock.autojump_threshold = 0
    assert served == [
        "at once",
        *(f"high {index}" for index in range(5)),
        "middle",
        *(f"low {index}" for index in range(5)),
    ]
    assert trio.current_time() == pytest.approx(11), "a new head has the deadline of the line"


@pytest.mark.slow
@pytest.mark.parametrize("arrivals_per_second", [1, 2, 10])
async def test_a_low_priority_is_granted_within_ten_minutes(
    autojump_clock: MockClock, arrivals_per_second: int
) -> None:
    """At 60 per minute, behind endless requests of a priority that is larger by ten."""
    limiter = Limiter("model", requests_per_minute=60)
    granted_at = None

    async def endless(nursery: trio.Nursery) -> None:
        async def ask() -> None:
            async with limiter.reserve(priority=10):
                pass

        while True:
            nursery.start_soon(ask)
            await trio.sleep(1 / arrivals_per_second)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(endless, nursery)
        await trio.sleep(5)
        started = trio.current_time()
        async with limiter.reserve(priority=0):
            granted_at = trio.current_time() - started
        nursery.cancel_scope.cancel()
    assert granted_at is not None
    assert granted_at <= 600
    if arrivals_per_second > 1:
        assert granted_at > 100, "priority means something until then"


@pytest.mark.slow
async def test_a_large_request_is_not_overtaken_for_ever(autojump_clock: MockClock) -> None:
    """80 units among a stream of single ones: within the queue before it and one bucket."""
    limiter = Limiter("model", tokens=Rate(100, 10), burst_seconds=10)

    async def endless(nursery: trio.Nursery) -> None:
        async def ask() -> None:
            async with limiter.reserve(tokens=1):
                pass

        while True:
            nursery.start_soon(ask)
            await trio.sleep(0.05)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(endless, nursery)
        await trio.sleep(30)
        ahead = limiter.statistics().waiting
        started = trio.current_time()
        async with limiter.reserve(tokens=80):
            waited = trio.current_time() - started
        nursery.cancel_scope.cancel()
    assert waited <= ahead / 10 + 10


async def test_a_cancelled_head_lets_the_next_one_through(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", tokens=Rate(100, 60), burst_seconds=60)
    served: list[tuple[str, float]] = []

    async def ask(who: str, tokens: int, patience: float) -> None:
        with trio.move_on_after(patience):
            async with limiter.reserve(tokens=tokens):
                served.append((who, trio.current_time()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, "first", 50, 1)
        await wait_all_tasks_blocked()
        nursery.start_soon(ask, "large", 100, 5)
        await wait_all_tasks_blocked()
        nursery.start_soon(ask, "small", 20, 60)
    assert served == [("first", 0), ("small", 5)]
    assert limiter.statistics().waiting == 0


async def test_settling_moves_the_deadline_of_the_head(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", tokens=Rate(100, 60), burst_seconds=60)
    async with limiter.reserve(tokens=100) as reservation:
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                async with limiter.reserve(tokens=40):
                    assert trio.current_time() == 7

            nursery.start_soon(ask)
            await trio.sleep(7)
            reservation.settle(tokens=60)


async def test_a_grant_and_a_cancel_in_one_step_lose_nothing(autojump_clock: MockClock) -> None:
    """A limiter lost its permit when the waiter was cancelled at the moment of the grant."""
    limiter = Limiter("model", concurrent=1)
    with trio.CancelScope() as scope:
        held = await limiter.reserve().__aenter__()
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                async with limiter.reserve():
                    pass

            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            await held.__aexit__(None, None, None)
            assert limiter.statistics().in_flight == 1, "granted, and not run yet"
            scope.cancel()
    statistics = limiter.statistics()
    assert (statistics.in_flight, statistics.waiting, statistics.granted) == (0, 0, 2)


def cancel_at_step(step: int) -> bool:
    """Cancel a caller at its n-th step; return whether it got that far."""
    limiter = Limiter("model", tokens=Rate(100, 10), concurrent=2, burst_seconds=5)
    scope = trio.CancelScope()
    finished: list[str] = []

    class CancelAt(trio.abc.Instrument):
        steps = 0

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            if task.name == "victim":
                self.steps += 1
                if self.steps == step:
                    scope.cancel()

    async def ask(name: str, tokens: int, priority: int) -> None:
        async with limiter.reserve(tokens=tokens, priority=priority) as reservation:
            await trio.sleep(1)
            reservation.settle(tokens=tokens // 2)
        finished.append(name)

    async def victim() -> None:
        with scope:
            await ask("victim", 30, 1)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for index in range(6):
                nursery.start_soon(ask, str(index), 20 + 10 * index, index % 3)
                await trio.lowlevel.checkpoint()
                if index == 2:
                    nursery.start_soon(victim, name="victim")
                    await trio.lowlevel.checkpoint()
        statistics = limiter.statistics()
        assert (statistics.waiting, statistics.in_flight) == (0, 0)
        assert statistics.dimensions["tokens"].unsettled == 0
        async with limiter.reserve(tokens=1):
            pass

    instrument = CancelAt()
    trio.run(main, clock=MockClock(autojump_threshold=0), instruments=[instrument])
    assert sorted(set(finished) - {"victim"}) == [str(index) for index in range(6)]
    return "victim" not in finished


def test_cancelling_at_every_checkpoint_costs_nothing() -> None:
    steps = 1
    while cancel_at_step(steps):
        steps += 1
        assert steps < 50
    assert steps >= 4, "it must have been cancelled in line, at the grant and in the block"


@pytest.mark.slow
@pytest.mark.parametrize("priorities", [1, 7])
def test_wake_ups_per_grant_do_not_depend_on_the_line(priorities: int) -> None:
    """A grant wakes the one that is served, and the next head to sleep on its own moment."""
    waiters, served = 10_000, 0
    limiter = Limiter("model", requests_per_minute=6_000)
    steps = Steps()
    counted: list[int] = []

    async def ask(priority: int) -> None:
        nonlocal served
        async with limiter.reserve(priority=priority):
            served += 1

    async def main() -> None:
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, MockClock)
        async with trio.open_nursery() as nursery:
            for index in range(waiters):
                nursery.start_soon(ask, index % priorities)
            await wait_all_tasks_blocked()
            assert limiter.statistics().waiting >= waiters - 100
            before = steps.total, served
            for _ in range(500):
                clock.jump(0.01)
                await wait_all_tasks_blocked()
            counted.append(steps.total - before[0])
            counted.append(served - before[1])
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(), instruments=[steps])
    steps_taken, grants = counted
    assert 480 <= grants <= 500
    # Besides the two: the driver of this test itself takes a step per jump.
    assert steps_taken <= 4 * grants


def test_waiting_costs_no_tasks_of_its_own() -> None:
    limiter = Limiter("model", requests_per_minute=60)

    async def ask() -> None:
        async with limiter.reserve():
            pass

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            before = trio.lowlevel.current_statistics().tasks_living
            for _ in range(50):
                nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            assert trio.lowlevel.current_statistics().tasks_living == before + 49
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock())


async def test_a_grant_is_not_lost_to_one_whose_cancel_is_under_way(
    autojump_clock: MockClock,
) -> None:
    """All are cancelled in one step: the first to run frees the line for the second.

    Seen first as a reservation in flight that nobody held: the second was granted after trio
    had ended its sleep with a cancel, and before it ran.
    """
    limiter = Limiter("model", concurrent=1)
    for _ in range(20):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def ask() -> None:
                    async with limiter.reserve():
                        await trio.sleep_forever()

                for _ in range(5):
                    nursery.start_soon(ask)
                await wait_all_tasks_blocked()
                scope.cancel()
        statistics = limiter.statistics()
        assert (statistics.in_flight, statistics.waiting) == (0, 0)


async def test_grants_are_charges(autojump_clock: MockClock) -> None:
    """After its wait a caller was admitted without a permit."""
    limiter = Limiter("model", requests_per_minute=6_000)
    entered = 0

    async def ask() -> None:
        nonlocal entered
        async with limiter.reserve():
            entered += 1

    with trio.move_on_after(5):
        async with trio.open_nursery() as nursery:
            for _ in range(1_000):
                nursery.start_soon(ask)
    statistics = limiter.statistics()
    assert entered == statistics.granted == statistics.dimensions["requests"].used
    assert statistics.in_flight == 0


@pytest.mark.slow
@pytest.mark.real_clock
@pytest.mark.parametrize("rate", [Rate(100, 1), Rate(6_000, 60)])
def test_full_use_on_a_real_clock(rate: Rate) -> None:
    """At 100 per second timers come late, and the small burst makes up for it.

    A window of a second is used up at once and then waited for; one of a minute is paced.
    """
    limiter = Limiter("model", requests=rate)
    stamps: list[float] = []
    count = scaled(300, full=1_000)

    async def ask() -> None:
        async with limiter.reserve():
            stamps.append(trio.current_time())

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(ask)

    trio.run(main)
    # A task that runs within half a millisecond of its grant is not charged anew.
    if rate.period == 1:
        for first, last in zip(stamps, stamps[100:], strict=False):
            assert last - first >= 1 - 0.001
    assert (count - 100) / (stamps[-1] - stamps[0]) >= 97


async def test_who_runs_late_is_charged_when_it_runs(mock_clock: MockClock) -> None:
    """In a busy loop a grant and its task are milliseconds apart, and requests go out late."""
    limiter = Limiter("model", tokens=Rate(10, 10), burst_seconds=10)

    async def ask() -> None:
        async with limiter.reserve(tokens=6) as reservation:
            assert trio.current_time() == pytest.approx(0.25)
            assert reservation.granted_at == trio.current_time()

    async with trio.open_nursery() as nursery:
        async with limiter.reserve(tokens=6) as first:
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            first.settle(tokens=4)  # It is granted now,
            mock_clock.jump(0.25)  # and runs after a quarter of a second.
    mock_clock.jump(9.8)
    assert limiter.statistics().dimensions["tokens"].used == 6
    mock_clock.jump(0.2)
    assert limiter.statistics().dimensions["tokens"].used == 0


async def test_a_pool_of_priorities_leaves_no_sleeper_behind(autojump_clock: MockClock) -> None:
    """Each newcomer is more urgent than the head that sleeps, and some give up."""
    limiter = Limiter("model", requests_per_minute=60)
    served: list[int] = []

    async def ask(index: int) -> None:
        with trio.move_on_after(30 if index % 4 else 2.5):
            async with limiter.reserve(priority=index):
                served.append(index)

    async with trio.open_nursery() as nursery:
        for index in range(40):
            nursery.start_soon(partial(ask, index))
            await trio.sleep(0.3)
    assert limiter.statistics().waiting == 0
    assert len(served) >= 30


async def test_statistics_tell_who_waits_by_priority(autojump_clock: MockClock) -> None:
    limiter = Limiter("model", concurrent=1)
    scope = trio.CancelScope()

    async def call(priority: float) -> None:
        async with limiter.reserve(priority=priority):
            pass

    async def call_until_cancelled() -> None:
        with scope:
            await call(5)

    async with trio.open_nursery() as nursery:
        async with limiter.reserve():
            assert limiter.statistics().waiting_by_priority == {}
            nursery.start_soon(call, 0)
            await wait_all_tasks_blocked()
            assert limiter.statistics().waiting_by_priority == {0: 1}
            for priority in (2, 0, -1.5):
                nursery.start_soon(call, priority)
            nursery.start_soon(call_until_cancelled)
            await wait_all_tasks_blocked()
            assert list(limiter.statistics().waiting_by_priority.items()) == [
                (5, 1),
                (2, 1),
                (0, 2),
                (-1.5, 1),
            ]
            scope.cancel()
            await wait_all_tasks_blocked()
            assert list(limiter.statistics().waiting_by_priority) == [2, 0, -1.5]
            assert "4 waiting (1 at 2, 2 at 0, 1 at -1.5);" in str(limiter.statistics())
    assert limiter.statistics().waiting_by_priority == {}


async def test_a_line_keeps_no_task_of_those_it_has_served(autojump_clock: MockClock) -> None:
    limiter = Limiter(concurrent=1)

    async def use() -> None:
        async with limiter.reserve():
            await trio.sleep(1)

    async with harness.open_run("server") as run, trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(use)
    server = weakref.ref(run)
    del run
    gc.collect()
    assert server() is None
