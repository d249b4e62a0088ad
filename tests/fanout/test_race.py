"""`race` answers with the first success and leaves nothing of the others."""

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError
from tests.fanout.probes import Boom, nothing_left_behind


async def slow() -> str:
    """Answer after 5 s."""
    await trio.sleep(5)
    return "slow"


async def slower() -> str:
    """Answer after 50 s."""
    await trio.sleep(50)
    return "slower"


async def fails() -> str:
    """Fail after 1 s."""
    await trio.sleep(1)
    raise Boom("fails")


async def test_the_first_success_wins_past_a_fast_failure(autojump_clock: MockClock) -> None:
    begin = trio.current_time()
    with nothing_left_behind():
        assert await harness.race(fails, slower, slow) == "slow"
    assert trio.current_time() - begin == 5


async def test_none_is_an_answer(autojump_clock: MockClock) -> None:
    async def nothing() -> None:
        await trio.sleep(1)

    begin = trio.current_time()
    assert await harness.race(slow, nothing) is None
    assert trio.current_time() - begin == 1


async def test_all_run_at_once_however_many(autojump_clock: MockClock) -> None:
    """A race with a limit would not be one."""
    begin = trio.current_time()
    assert await harness.race(*[slower] * 300, slow) == "slow"
    assert trio.current_time() - begin == 5


async def test_the_losers_have_ended_with_their_cleanup(autojump_clock: MockClock) -> None:
    cleaned: list[str] = []

    async def loser() -> str:
        try:
            return await slower()
        finally:
            with harness.cleanup():
                await trio.sleep(1)
            cleaned.append("loser")

    with nothing_left_behind():
        assert await harness.race(loser, slow, loser) == "slow"
        assert cleaned == ["loser", "loser"]


async def test_when_all_fail_one_group_has_all(autojump_clock: MockClock) -> None:
    async def fails_too() -> str:
        await trio.sleep(2)
        raise Boom("fails too")

    with nothing_left_behind(), pytest.raises(FanOutError) as caught:
        await harness.race(fails, fails_too)
    booms = [str(error) for error in caught.value.exceptions if isinstance(error, Boom)]
    assert sorted(booms) == ["fails", "fails too"]


async def test_every_racer_is_a_run_of_its_own(autojump_clock: MockClock) -> None:
    local: harness.RunLocal[list[int]] = harness.RunLocal(list, name="local")
    runs: list[harness.Run] = []

    async def racer() -> int:
        run = harness.current_run()
        runs.append(run)
        assert local.get() == []
        local.get().append(1)
        await trio.sleep(1)
        return 1

    async with harness.open_run("outer"):
        await harness.race(racer, racer)
        assert local.get() == []
    assert len({run.id for run in runs}) == 2
    assert all(run.path.startswith("outer/") for run in runs)


async def test_an_outer_cancel_passes_through_a_race(autojump_clock: MockClock) -> None:
    with nothing_left_behind(), trio.move_on_after(3) as scope:
        await harness.race(slow, slower)
    assert scope.cancelled_caught
