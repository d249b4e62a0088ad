"""Time limits and cuts that an engine puts around a call inside a run, and the run knows of."""

from __future__ import annotations

import math

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import RunTimedOut
from harness.runs._inner_scope import InnerScope, inner_scope


async def test_remaining_counts_the_time_that_a_call_inside_is_allowed(
    autojump_clock: MockClock,
) -> None:
    async with harness.open_run("item", timeout=50) as run, harness.open_run("other") as other:
        with InnerScope(run.id) as outer:
            assert run.remaining() == 50
            outer.allow(10)
            await trio.sleep(1)
            assert run.remaining() == 9
            assert other.remaining() == 9, "it is below the run"
            async with harness.open_run("child") as child:
                assert child.remaining() == 9
            with InnerScope(other.id) as inner:
                inner.allow(3)
                assert (other.remaining(), run.remaining()) == (3, 9)
                inner.allow(math.inf)
                assert other.remaining() == 9
        assert run.remaining() == 49
        assert inner_scope.get() is None


async def test_a_task_given_to_a_run_leaves_the_time_of_the_stage_behind(
    autojump_clock: MockClock,
) -> None:
    seen: list[float] = []

    async def note() -> None:
        seen.append(harness.current_run().remaining())

    async with trio.open_nursery() as nursery, harness.open_run("item") as run:
        with InnerScope(run.id) as scope:
            scope.allow(10)
            harness.start_soon(nursery, note, run=run)
            await trio.sleep(1)
    assert seen == [math.inf]


async def test_a_cut_starts_the_clock_of_a_cleanup_entered_before(
    autojump_clock: MockClock,
) -> None:
    """A losing hedge in its cleanup held back the winner for as long as that took."""

    async def loser() -> None:
        async with harness.open_run("below"):
            with harness.cleanup():
                await trio.sleep(3_600)

    async def cut(scope: InnerScope) -> None:
        await trio.sleep(2)
        scope.cancel("the other was first")
        scope.cancel("again")

    async with harness.open_run("item") as run, trio.open_nursery() as nursery:
        with InnerScope(run.id) as scope:
            nursery.start_soon(cut, scope)
            await loser()
        assert scope.scope.cancel_called
        assert trio.current_time() == 2 + 5
        assert scope._around.cleanups == []
    assert run.status == "ok"


async def test_cleanups_after_a_cut_share_its_time(autojump_clock: MockClock) -> None:
    async with harness.open_run("item") as run:
        with InnerScope(run.id) as scope:
            scope.cancel("the other was first")
            for _ in range(2):
                with harness.cleanup(3):
                    await trio.sleep(2)
        assert trio.current_time() == 3


async def test_a_timeout_names_the_time_that_was_allowed(autojump_clock: MockClock) -> None:
    with pytest.raises(RunTimedOut, match=r"after 1 s, in .*; it ended 4 s later$") as caught:
        async with harness.open_run("job", timeout=1):
            try:
                await trio.sleep(100)
            finally:
                with harness.cleanup():
                    await trio.sleep(4)
    assert caught.value.allowed_seconds == 1


async def test_a_timeout_that_comes_before_the_end_of_a_grace_wins(
    autojump_clock: MockClock,
) -> None:
    with pytest.raises(RunTimedOut):
        async with harness.open_run("job", timeout=5) as run:
            run.cancel("going down", grace=60)
            await trio.sleep(100)
    assert (run.status, trio.current_time()) == ("timed_out", 5)
    async with harness.open_run("server") as server:
        with pytest.raises(RunTimedOut):
            async with harness.open_run("job", timeout=5) as run:
                server.cancel("going down", grace=60)
                await trio.sleep(100)
    assert run.status == "timed_out"
    async with harness.open_run("job", timeout=60) as run:
        run.cancel("going down", grace=5)
        await trio.sleep(100)
    assert run.status == "cancelled"
