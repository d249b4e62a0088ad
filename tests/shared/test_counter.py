"""A counter stays within its bounds, loses no change, and forgets no waiter."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

import harness
from harness.errors import CounterBoundsError
from harness.shared import Counter, CounterStatistics
from tests.scale import scaled
from tests.support.checkpoints import cancel_at_every_checkpoint


def test_a_hundred_runs_that_spend_from_ten_get_ten_yes() -> None:
    async def main() -> None:
        left = Counter(10)

        async def spend(item: int) -> bool:
            await trio.lowlevel.checkpoint()
            return left.try_spend()

        results = await harness.fan_out(spend, range(100), limit=100)
        assert sum(results.values()) == 10
        assert left.value == 0
        left.check()

    trio.run(main)


def test_a_change_beyond_a_bound_is_refused_and_nothing_is_changed() -> None:
    counter = Counter(3, minimum=-1, maximum=5)
    assert counter.add(2) == 5
    with pytest.raises(CounterBoundsError, match=r"would make it 6, which is above its maximum"):
        counter.add()
    with pytest.raises(CounterBoundsError, match=r"would make it -2, which is below its minimum"):
        counter.add(-7)
    assert counter.try_spend(6)
    assert not counter.try_spend(1)
    assert counter.try_spend(0)
    assert counter.statistics() == CounterStatistics(
        value=-1, minimum=-1, maximum=5, added=2, spent=6, refused=3, tasks_waiting=0
    )
    counter.check()


def test_without_bounds_it_counts_any_way() -> None:
    counter = Counter(minimum=None)
    assert counter.add(-10) == -10
    assert counter.add(1_000_000_000_000) == 999_999_999_990


@pytest.mark.parametrize("wrong", [1.5, "1", None, True])
def test_amounts_are_whole_numbers(wrong: object) -> None:
    counter = Counter()
    for call in (Counter, counter.add, counter.try_spend):
        with pytest.raises(TypeError, match="whole number"):
            call(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="from 0 upwards"):
        counter.try_spend(-1)
    with pytest.raises(ValueError, match="fit each other"):
        Counter(-1)
    with pytest.raises(ValueError, match="fit each other"):
        Counter(0, minimum=2, maximum=1)


async def test_a_waiter_is_let_through_when_the_level_is_reached(
    autojump_clock: MockClock,
) -> None:
    counter = Counter()
    passed: list[tuple[int, int]] = []

    async def wait(level: int) -> None:
        passed.append((level, await counter.wait_for(level)))

    async with trio.open_nursery() as nursery:
        for level in (3, 1, 2):
            nursery.start_soon(wait, level)
            await wait_all_tasks_blocked()
        assert counter.statistics().tasks_waiting == 3
        counter.add(2)
        await wait_all_tasks_blocked()
        assert passed == [(1, 2), (2, 2)]
        counter.add(1)
    assert passed[-1] == (3, 3)
    assert counter.statistics().tasks_waiting == 0
    counter.check()


async def test_who_waited_can_spend_and_first_come_is_first_served(
    autojump_clock: MockClock,
) -> None:
    """All woken together would race: trio runs them in a random order, and all but one look twice.

    A value reached only for a moment is one that nobody could spend.
    """
    counter = Counter()
    served: list[int] = []

    async def take(number: int, amount: int) -> None:
        await counter.wait_for(amount)
        assert counter.try_spend(amount), "it was there when wait_for returned"
        served.append(number)

    async with trio.open_nursery() as nursery:
        for number, amount in enumerate([2, 5, 1, 1, 1]):
            nursery.start_soon(take, number, amount)
            await wait_all_tasks_blocked()
        counter.add(3)
        await wait_all_tasks_blocked()
        counter.check()
        assert served == [0, 2]
        counter.add(8)  # The large one came first, and what is left is for those behind it.
        nursery.start_soon(take, 5, 1)  # A newcomer finds it reached, and gives way.
    assert sorted(served) == [0, 1, 2, 3, 4, 5]
    assert served[2] == 1
    assert counter.value == 0
    counter.check()


async def test_a_newcomer_does_not_overtake_who_was_woken(autojump_clock: MockClock) -> None:
    """With several in line the newcomer may run between two of them."""
    counter = Counter()
    served: list[int] = []

    async def take(number: int) -> None:
        await counter.wait_for(1)
        if counter.try_spend():
            served.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(take, number)
            await wait_all_tasks_blocked()
        counter.add(20)
        nursery.start_soon(take, 20)
        await wait_all_tasks_blocked()
        assert served == list(range(20))
        counter.add(1)
    assert served == list(range(21))


async def test_a_waiter_cancelled_at_any_checkpoint_leaves_no_trace(
    autojump_clock: MockClock,
) -> None:
    counter = Counter()

    async def wait_beside_another() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(counter.wait_for, 2)
            nursery.start_soon(counter.wait_for, 1)
            await trio.sleep(1)
            counter.add(1)
            await trio.sleep(1)
            counter.add(1)

    def nothing_held() -> None:
        assert counter.statistics().tasks_waiting == 0
        counter.check()
        counter.add(-counter.value)

    cut = await cancel_at_every_checkpoint(wait_beside_another, nothing_held)
    assert cut >= 4


async def test_a_woken_waiter_that_is_cancelled_lets_the_next_one_look(
    autojump_clock: MockClock,
) -> None:
    counter = Counter()
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def gives_up() -> None:
            with scope:
                await counter.wait_for(1)
                await trio.sleep_forever()

        nursery.start_soon(gives_up)
        await wait_all_tasks_blocked()
        nursery.start_soon(counter.wait_for, 1)
        await wait_all_tasks_blocked()
        counter.add(1)
        scope.cancel()
    assert counter.statistics().tasks_waiting == 0


async def test_a_dump_says_what_is_waited_for(autojump_clock: MockClock) -> None:
    counter = Counter()
    async with harness.open_run("job") as run:
        async with trio.open_nursery() as nursery:

            async def look() -> None:
                await wait_all_tasks_blocked()
                assert run.waiting_for == "a counter to reach 3"
                counter.add(3)

            nursery.start_soon(look)
            await counter.wait_for(3)


async def test_a_wait_above_the_maximum_is_refused(autojump_clock: MockClock) -> None:
    with pytest.raises(ValueError, match="would never end"):
        await Counter(maximum=3).wait_for(4)
    assert await Counter(3, maximum=3).wait_for(3) == 3


async def test_a_wait_for_what_is_there_is_a_checkpoint(autojump_clock: MockClock) -> None:
    counter = Counter(1)
    with trio.move_on_after(0) as scope:
        await counter.wait_for(1)
    assert scope.cancelled_caught
    with assert_checkpoints():
        assert await counter.wait_for(1) == 1


async def test_worker_threads_lose_no_change_and_wake_waiters() -> None:
    counter = Counter()
    threads, changes = 4, 500

    def count() -> None:
        for _ in range(changes):
            counter.add(2)
            assert counter.try_spend()

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for level in range(0, threads * changes + 1, 100):
                nursery.start_soon(counter.wait_for, level)
            for _ in range(threads):
                nursery.start_soon(trio.to_thread.run_sync, count)
    assert counter.value == threads * changes
    counter.check()


class LockWithAMoment:
    """A lock that calls something once, directly after it is released."""

    def __init__(self, lock: threading.Lock) -> None:
        self.lock = lock
        self.moment: Callable[[], object] | None = None

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self.lock.release()
        moment, self.moment = self.moment, None
        if moment is not None:
            moment()


@pytest.mark.parametrize("cancel", [False, True])
async def test_a_thread_that_adds_just_when_a_waiter_has_looked_wakes_it_once(
    autojump_clock: MockClock, cancel: bool
) -> None:
    """The waiter runs at that moment: to wake it then would break trio itself."""
    counter = Counter()
    lock = LockWithAMoment(counter._lock)
    counter._lock = lock  # type: ignore[assignment]
    passed = False

    def add_in_a_thread() -> None:
        thread = threading.Thread(target=counter.add)
        thread.start()
        thread.join()

    async def wait() -> None:
        nonlocal passed
        await counter.wait_for(5)
        passed = True

    with trio.fail_after(1):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            counter.add(5)
            assert counter.try_spend()  # Before the one that was woken looks.
            lock.moment = add_in_a_thread
            await trio.lowlevel.checkpoint()
            if cancel:
                nursery.cancel_scope.cancel()
    assert passed is not cancel
    assert counter.value == 5
    counter.check()


def test_a_wait_of_a_dead_trio_does_not_bother_the_next() -> None:
    """A counter at module level outlives one ``trio.run`` and is used in the next."""
    counter = Counter()

    async def wait_a_moment() -> None:
        with trio.move_on_after(1):
            await counter.wait_for(1)

    for _ in range(2):
        trio.run(wait_a_moment, clock=MockClock(autojump_threshold=0))
        counter.check()
    thread = threading.Thread(target=counter.add)
    thread.start()
    thread.join()
    assert counter.value == 1


# Random operations -------------------------------------------------------------------------------

OPERATIONS = ["add", "spend", "wait", "wait and spend", "cancel", "step"]


@pytest.mark.slow
@settings(max_examples=scaled(10, full=20))
@given(
    seed=st.integers(0, 2**32),
    initial=st.integers(0, 20),
    maximum=st.none() | st.integers(20, 60),
    operations=st.lists(
        st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 12)), min_size=1, max_size=60
    ),
)
def test_never_negative_and_nobody_forgotten_whatever_is_done(
    seed: int, initial: int, maximum: int | None, operations: list[tuple[str, int]]
) -> None:
    """An obvious model runs alongside the counter: a plain integer, and who must have passed.

    What hypothesis draws is the pattern; it is repeated until 10,000 operations were made (fewer
    by default), with tasks that overlap from one repetition to the next.
    """
    count = scaled(1_500, full=10_000)
    trio.run(
        partial(_random_operations, seed, initial, maximum, operations, count),
        clock=MockClock(autojump_threshold=0),
    )


async def _random_operations(
    seed: int, initial: int, maximum: int | None, pattern: list[tuple[str, int]], count: int
) -> None:
    rng = random.Random(seed)
    counter = Counter(initial, maximum=maximum)
    expected = initial
    scopes: list[trio.CancelScope] = []

    async def wait(level: int, *, spend: bool, scope: trio.CancelScope) -> None:
        nonlocal expected
        with scope:
            assert await counter.wait_for(level) >= level
            assert counter.value >= level
            if spend:
                assert counter.try_spend(level)
                expected -= level

    async with trio.open_nursery() as nursery:
        for number in range(count):
            kind, amount = pattern[number % len(pattern)]
            amount = max(0, amount + rng.randint(-2, 2))
            if kind == "add":
                try:
                    counter.add(amount)
                    expected += amount
                except CounterBoundsError:
                    assert maximum is not None
                    assert expected + amount > maximum
            elif kind == "spend":
                fits = amount <= expected
                assert counter.try_spend(amount) == fits
                expected -= amount * fits
            elif kind.startswith("wait"):
                level = amount if maximum is None else min(amount, maximum)
                scopes.append(trio.CancelScope())
                nursery.start_soon(
                    partial(wait, level, spend=kind == "wait and spend", scope=scopes[-1])
                )
            elif kind == "cancel" and scopes:
                scopes.pop(rng.randrange(len(scopes))).cancel()
            else:
                await trio.lowlevel.checkpoint()
            assert counter.value == expected >= 0
            counter.check()
            if len(scopes) > 40:
                scopes.pop(0).cancel()
                await wait_all_tasks_blocked()
                counter.check()
        await wait_all_tasks_blocked()
        counter.check()
        nursery.cancel_scope.cancel()
    assert counter.statistics().tasks_waiting == 0
    counter.check()
