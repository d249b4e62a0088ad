"""Fan-out, race and pipelines keep their promises under every order of steps."""

from collections.abc import AsyncGenerator

import pytest
import trio

import harness
from harness import BestEffort, FailFast, FirstSuccess, Quorum, RunLocal
from harness.errors import FanOutError
from harness.flow import Pipeline, stage
from harness.testing import NotFound, explore_schedules, faultable, find_schedule
from tests.scale import scaled

pytestmark = pytest.mark.slow

SCHEDULES = scaled(50, full=400)

note: RunLocal[list[int]] = RunLocal(list, name="note")


async def double(number: int) -> int:
    await trio.lowlevel.checkpoint()
    return 2 * number


@explore_schedules(schedules=SCHEDULES)
async def test_every_item_has_one_result_and_no_more_run_than_may() -> None:
    running = most = 0

    async def work(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.lowlevel.checkpoint()
        running -= 1
        return 2 * number

    results = await harness.fan_out(work, range(5), limit=2)
    assert list(results.values()) == [0, 2, 4, 6, 8]
    assert most <= 2


@explore_schedules(schedules=SCHEDULES)
async def test_what_a_run_keeps_is_its_own() -> None:
    async def work(number: int) -> list[int]:
        note.get().append(number)
        await trio.lowlevel.checkpoint()
        note.get().append(-number)
        await trio.lowlevel.checkpoint()
        return note.get()

    results = await harness.fan_out(work, [1, 2, 3])
    assert list(results.values()) == [[1, -1], [2, -2], [3, -3]]


@explore_schedules(schedules=SCHEDULES)
async def test_fail_fast_ends_all_siblings_before_its_error_is_seen() -> None:
    running = 0

    async def work(number: int) -> int:
        nonlocal running
        running += 1
        try:
            await trio.lowlevel.checkpoint()
            if number == 1:
                raise LookupError(number)
            await trio.sleep(number)
            return number
        finally:
            running -= 1

    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(work, range(4), policy=FailFast())
    assert running == 0
    assert len(caught.value.results) == 4


@explore_schedules(schedules=SCHEDULES)
async def test_best_effort_counts_in_what_it_counted_out() -> None:
    async def work(number: int) -> int:
        await trio.lowlevel.checkpoint()
        if number % 2:
            raise LookupError(number)
        return number

    results = await harness.fan_out(work, range(4), policy=BestEffort(), limit=3)
    assert [result.status for result in results] == ["ok", "failed", "ok", "failed"]


@explore_schedules(schedules=SCHEDULES)
async def test_a_quorum_and_a_first_success_end_early_and_leave_nothing_behind() -> None:
    alive = 0

    async def work(number: int) -> int:
        nonlocal alive
        alive += 1
        try:
            await trio.sleep(number)
            return number
        finally:
            alive -= 1

    results = await harness.fan_out(work, range(4), policy=Quorum(2))
    assert len(list(results.values())) >= 2
    results = await harness.fan_out(work, range(3), policy=FirstSuccess())
    assert list(results.values())[:1] == [0]
    assert alive == 0


@explore_schedules(schedules=SCHEDULES)
async def test_a_stream_that_is_left_early_closes_its_source() -> None:
    closed = False

    async def source() -> AsyncGenerator[int, None]:
        nonlocal closed
        try:
            for number in range(100):
                await trio.lowlevel.checkpoint()
                yield number
        finally:
            closed = True

    async with harness.open_fan_out(double, source(), limit=2) as stream:
        async for _ in stream:
            break
    assert closed


@explore_schedules(schedules=SCHEDULES)
async def test_a_pipeline_keeps_every_item_and_each_stages_limit() -> None:
    inside = most = 0

    async def narrow(number: int) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await trio.lowlevel.checkpoint()
        inside -= 1
        return number + 1

    pipeline = Pipeline(stage(double, limit=2), stage(narrow, limit=1), buffer=1)
    results = await pipeline.run(range(4))
    assert list(results.values()) == [1, 3, 5, 7]
    assert most == 1


@pytest.mark.parametrize("what", ["fan-out", "pipeline"])
def test_a_cancel_of_the_whole_at_any_step_leaves_nothing_alive(what: str) -> None:
    """The sweep cancels the task around it at each of its steps, in many orders."""

    async def program() -> None:
        alive = 0

        async def work(number: int) -> int:
            nonlocal alive
            alive += 1
            try:
                await trio.sleep(1)
                return number
            finally:
                alive -= 1

        with faultable(1):
            if what == "fan-out":
                await harness.fan_out(work, range(3), limit=2)
            else:
                await Pipeline(stage(work, limit=2), stage(work, limit=1)).run(range(3))
        assert alive == 0
        assert harness.current_run_or_none() is None

    found = find_schedule(program, schedules=3 * SCHEDULES)
    assert isinstance(found, NotFound), found.error
