"""A virtual clock stands still while a thread works, and goes on when it doesn't."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from harness._clock_hold import ClockHold
from harness.testing import ThreadsHoldClock, hold_clock, run_schedule


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


def test_the_clock_of_a_controlled_schedule_is_held_as_well() -> None:
    """It moves that clock by itself, and took the program for one waiting for a timeout."""

    async def program() -> None:
        ready = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def work() -> None:
            time.sleep(0.02)
            token.run_sync_soon(ready.set)

        with hold_clock():
            thread = threading.Thread(target=work)
            thread.start()
            with trio.move_on_after(1) as scope:
                await ready.wait()
        thread.join()
        assert not scope.cancelled_caught
        await trio.sleep(60)

    run_schedule(program).outcome.unwrap()


async def test_patience_has_an_end(autojump_clock: MockClock) -> None:
    """A thread that waits for the clock ends a test late rather than never."""
    hold = ClockHold(patience_seconds=0.01)
    hold.begin()
    await trio.sleep(60)
    await trio.sleep(60)
    assert trio.current_time() == 120
    hold.end()


async def test_who_holds_without_end_is_not_overruled_by_the_patience_of_others(
    autojump_clock: MockClock,
) -> None:
    """An exploration may take minutes, in a test whose threads are given half a minute."""
    patient, endless = ClockHold(patience_seconds=0.001), ClockHold()
    patient.begin()
    endless.begin()
    ready = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def work() -> None:
        time.sleep(0.03)
        token.run_sync_soon(ready.set)

    threading.Thread(target=work).start()
    with trio.move_on_after(1) as scope:
        await ready.wait()
    assert not scope.cancelled_caught
    endless.end()
    await trio.sleep(60)
    patient.end()


async def test_a_clock_that_is_moved_by_hand_stays_so(mock_clock: MockClock) -> None:
    hold = ClockHold(patience_seconds=0.001)
    hold.begin()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 60)
            await trio.testing.wait_all_tasks_blocked()
            threading.Timer(
                0.02, trio.lowlevel.current_trio_token().run_sync_soon, [scope.cancel]
            ).start()
    assert trio.current_time() == 0
    hold.end()
