"""A log of many runs reads the same, whoever came first."""

from __future__ import annotations

import random
from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

import harness
from harness.errors import NoRunError, RunEndedError
from harness.shared import AppendLog, AppendLogStatistics


def merged_with_delays(seed: int | None) -> list[str]:
    """Run a small program whose tasks take turns as the seed says, and return its log."""
    rng = random.Random(seed)
    log: AppendLog[str] = AppendLog()

    async def some_time() -> None:
        await trio.sleep(0 if seed is None else rng.random())

    async def step(name: str) -> None:
        async with harness.open_run(name):
            await some_time()
            log.append(f"{name} begins")
            await some_time()
            log.append(f"{name} ends")

    async def ticket(number: int) -> None:
        await some_time()
        log.append(f"ticket {number} begins")
        async with trio.open_nursery() as nursery:
            for name in ("read", "look up", "answer"):
                nursery.start_soon(step, name)
        await harness.fan_out(note, ["x", "y"], limit=2)
        log.append(f"ticket {number} ends")

    async def note(what: str) -> None:
        await some_time()
        log.append(f"note {what}")

    async def main() -> None:
        async with harness.open_run("nightly"):
            await harness.fan_out(ticket, range(12), limit=12, name="tickets")
            log.append("tickets are done")
            await harness.fan_out(note, ["a", "b"], name="late")
            for _ in range(2):
                async with harness.open_run("same name"):
                    await some_time()
                    log.append("a step")
        log.check()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    return list(log)


@pytest.mark.slow
@given(seed=st.integers(0, 2**32))
def test_the_merge_is_the_same_for_every_order_of_arrival(seed: int) -> None:
    merged = merged_with_delays(seed)
    assert merged == merged_with_delays(None)
    assert merged[0] == "tickets are done", "a run's own entries stand before those below it"
    assert [entry for entry in merged if entry.startswith("ticket ")] == [
        f"ticket {number} {what}" for number in range(12) for what in ("begins", "ends")
    ]


async def test_a_runs_entries_stand_together_by_the_items_place(
    autojump_clock: MockClock,
) -> None:
    log: AppendLog[tuple[int, int]] = AppendLog()

    async def work(item: int) -> None:
        for number in range(2):
            await trio.sleep(20 - item)
            log.append((item, number))

    async with harness.open_run("job"):
        await harness.fan_out(work, range(20), limit=20)  # 10 and 2: not in the order of text.
    assert log.merged() == tuple((item, number) for item in range(20) for number in range(2))
    assert len(log) == 40
    assert log.statistics() == AppendLogStatistics(entries=40, segments=20, running=0)
    first = log.segments()[0]
    assert first.run_path == "job/" + first.run_path.split("/")[1] + "/0"
    assert (first.status, first.entries) == ("ok", ((0, 0), (0, 1)))


async def test_attempts_stand_in_their_order_and_failed_ones_can_be_left_out(
    autojump_clock: MockClock,
) -> None:
    log: AppendLog[str] = AppendLog()
    tries: dict[int, int] = {}

    async def work(item: int) -> None:
        tries[item] = tries.get(item, 0) + 1
        log.append(f"{item}: try {tries[item]}")
        async with harness.open_run("below"):
            log.append(f"{item}: below try {tries[item]}")
        if tries[item] < 3 - item:
            raise OSError
        await trio.sleep(10)

    async with harness.open_run("job"):
        await harness.fan_out(work, [0, 1], each=harness.Attempt(retry=harness.Retry(3)), limit=2)
        assert log.merged() == (
            *("0: try 1", "0: below try 1", "0: try 2", "0: below try 2"),
            *("0: try 3", "0: below try 3"),
            *("1: try 1", "1: below try 1", "1: try 2", "1: below try 2"),
        )
        assert log.merged(ok_only=True) == (
            *("0: try 3", "0: below try 3"),
            *("1: try 2", "1: below try 2"),
        )
    log.check()


async def test_the_loser_of_a_hedge_can_be_left_out(autojump_clock: MockClock) -> None:
    log: AppendLog[str] = AppendLog()
    first = True

    async def work(item: int) -> None:
        nonlocal first
        slow, first = first, False
        log.append("slow" if slow else "quick")
        await trio.sleep(100 if slow else 1)

    await harness.fan_out(work, [0], each=harness.Attempt(hedge=harness.Hedge(after=2.0)))
    assert log.merged() == ("slow", "quick")
    assert log.merged(ok_only=True) == ("quick",)


async def test_what_ended_well_inside_a_failed_run_counts(autojump_clock: MockClock) -> None:
    log: AppendLog[str] = AppendLog()

    async def work(item: int) -> None:
        log.append(f"item {item}")
        if item == 2:
            raise OSError

    with pytest.raises(harness.errors.FanOutError):
        await harness.fan_out(work, range(3), limit=1)
    assert log.merged(ok_only=True) == ("item 0", "item 1")
    assert log.merged() == ("item 0", "item 1", "item 2")


async def test_a_running_run_is_read_as_far_as_it_is() -> None:
    log: AppendLog[int] = AppendLog()
    async with harness.open_run("job"):
        log.append(1)
        assert list(log) == [1]
        assert log.statistics().running == 1
        assert log.segments(ok_only=True)[0].status == "running"
        log.append(2)
        assert list(log) == [1, 2]


async def test_threads_of_a_run_append_to_its_segment() -> None:
    log: AppendLog[int] = AppendLog()

    def work() -> None:
        for number in range(500):
            log.append(number)

    async with harness.open_run("job"):
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(trio.to_thread.run_sync, work)
    assert log.statistics() == AppendLogStatistics(entries=2_000, segments=1, running=0)
    log.check()


@pytest.mark.strays
async def test_only_live_runs_append(autojump_clock: MockClock) -> None:
    log: AppendLog[int] = AppendLog()
    with pytest.raises(NoRunError, match="belongs to the run that appends it"):
        log.append(1)

    async def stray() -> None:
        await trio.sleep(1)
        with pytest.raises(RunEndedError, match="can't append to a log"):
            log.append(1)

    async with trio.open_nursery() as outside:
        async with harness.open_run("job"):
            outside.start_soon(partial(stray))
    assert len(log) == 0
    log.check()
