"""A virtual clock stands still while a thread works, and goes on when it doesn't."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from harness.testing import ThreadsHoldClock, hold_clock


def run(main: Callable[[], Awaitable[object]], clock: trio.abc.Clock | None = None) -> None:
    clock = MockClock(autojump_threshold=0) if clock is None else clock
    trio.run(main, clock=clock, instruments=[ThreadsHoldClock()])


def test_a_thread_at_work_holds_the_clock() -> None:
    async def main() -> None:
        with trio.move_on_after(1) as scope:
            await trio.to_thread.run_sync(time.sleep, 0.02)
        assert not scope.cancelled_caught
        assert trio.current_time() == 0
        await trio.sleep(5)
        assert trio.current_time() == 5

    run(main)


def test_without_the_instrument_the_clock_jumps() -> None:
    """The trouble that this is for."""

    async def main() -> None:
        with trio.move_on_after(1):
            await trio.to_thread.run_sync(time.sleep, 0.1)
        assert trio.current_time() == 1

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("abandon", [False, True])
def test_a_thread_that_waits_for_trio_lets_the_clock_go(abandon: bool) -> None:
    def work() -> None:
        time.sleep(0.01)
        trio.from_thread.run(trio.sleep, 60)
        time.sleep(0.01)

    async def main() -> None:
        await trio.to_thread.run_sync(work, abandon_on_cancel=abandon)
        assert trio.current_time() == 60

    run(main)


def test_the_last_of_several_threads_lets_the_clock_go() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for seconds in (0.01, 0.02, 0.03):
                nursery.start_soon(trio.to_thread.run_sync, time.sleep, seconds)
            with trio.move_on_after(1) as scope:
                await trio.sleep(0.5)
            assert not scope.cancelled_caught
        assert trio.current_time() == 0.5

    run(main)


def test_a_thread_that_was_abandoned_holds_nothing() -> None:
    async def main() -> None:
        done = threading.Event()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    lambda: trio.to_thread.run_sync(done.wait, abandon_on_cancel=True)
                )
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        await trio.sleep(60)
        assert trio.current_time() == 60
        done.set()

    run(main)


def test_waiting_for_a_free_thread_holds_nothing() -> None:
    """A task in the line of a limiter has no thread yet."""

    async def main() -> None:
        limiter = trio.CapacityLimiter(1)
        async with limiter:
            with trio.move_on_after(60) as scope:
                await trio.to_thread.run_sync(time.sleep, 0, limiter=limiter)
            assert scope.cancelled_caught
            assert trio.current_time() == 60

    run(main)


async def test_other_threads_hold_the_clock_in_a_block(autojump_clock: MockClock) -> None:
    ready = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def work() -> None:
        time.sleep(0.02)
        token.run_sync_soon(ready.set)

    with hold_clock(), hold_clock():
        threading.Thread(target=work).start()
        with trio.move_on_after(1) as scope:
            await ready.wait()
    assert not scope.cancelled_caught
    assert autojump_clock.autojump_threshold == 0
    await trio.sleep(60)
    assert trio.current_time() == 60


async def test_what_the_test_sets_itself_stays(autojump_clock: MockClock) -> None:
    with hold_clock():
        autojump_clock.autojump_threshold = 0.5
    assert autojump_clock.autojump_threshold == 0.5


@pytest.mark.real_clock
def test_a_real_clock_is_left_alone() -> None:
    async def main() -> None:
        with hold_clock():
            await trio.to_thread.run_sync(time.sleep, 0)

    trio.run(main, instruments=[ThreadsHoldClock()])


def test_one_instrument_serves_one_run_after_another() -> None:
    instrument = ThreadsHoldClock()

    async def main() -> None:
        with trio.move_on_after(1) as scope:
            await trio.to_thread.run_sync(time.sleep, 0.01)
        assert not scope.cancelled_caught

    for _ in range(3):
        trio.run(main, clock=MockClock(autojump_threshold=0), instruments=[instrument])


def test_outside_trio_there_is_no_clock_to_hold() -> None:
    with pytest.raises(RuntimeError), hold_clock():
        pass
