"""When the time for a cleanup starts: with the cancel, whoever's it is and whenever it comes."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import RunTimedOut


async def clean(seconds: float, *, max_seconds: float | None = None) -> None:
    """Clean up for this long; the default for ``max_seconds`` is harness's own."""
    with harness.cleanup() if max_seconds is None else harness.cleanup(max_seconds=max_seconds):
        await trio.sleep(seconds)


# When the clock starts -------------------------------------------------------------------------


async def test_without_a_cancel_there_is_no_limit(autojump_clock: MockClock) -> None:
    async with harness.open_run("job") as run:
        await clean(100, max_seconds=1)
    assert (run.status, run.ended_at) == ("ok", 100)


async def test_a_cancel_that_comes_during_the_cleanup_starts_the_clock(
    autojump_clock: MockClock,
) -> None:
    async with harness.open_run("job") as run:
        async with trio.open_nursery() as nursery:

            async def cancel_later() -> None:
                await trio.sleep(30)
                run.cancel()

            nursery.start_soon(cancel_later)
            await clean(100, max_seconds=2)
            await trio.lowlevel.checkpoint()
    assert (run.status, run.ended_at) == ("cancelled", 32)


async def test_a_cancel_that_comes_during_nested_cleanups_starts_one_clock(
    autojump_clock: MockClock,
) -> None:
    async with harness.open_run("job") as run:
        async with trio.open_nursery() as nursery:

            async def cancel_later() -> None:
                await trio.sleep(30)
                run.cancel()

            nursery.start_soon(cancel_later)
            with harness.cleanup(max_seconds=2):
                async with harness.open_run("child"):
                    with harness.cleanup(max_seconds=2):
                        await clean(100, max_seconds=2)
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
    assert (run.status, run.ended_at) == ("cancelled", 32)


async def test_the_own_deadline_starts_the_clock(autojump_clock: MockClock) -> None:
    with pytest.raises(RunTimedOut):
        async with harness.open_run("job", timeout=3) as run:
            try:
                await trio.sleep_forever()
            finally:
                await clean(60)
    assert (run.status, run.ended_at) == ("timed_out", 8)


async def test_a_deadline_that_comes_during_the_cleanup_starts_the_clock(
    autojump_clock: MockClock,
) -> None:
    with pytest.raises(RunTimedOut):
        async with harness.open_run("job", timeout=3) as run:
            await clean(60, max_seconds=2)
            await trio.lowlevel.checkpoint()
    assert (run.status, run.ended_at) == ("timed_out", 5)


async def test_the_cleanup_time_starts_where_the_grace_expires(autojump_clock: MockClock) -> None:
    async with harness.open_run("job") as run:
        run.cancel(grace=3)
        try:
            await trio.sleep_forever()
        finally:
            await clean(60)
    assert (run.status, run.ended_at) == ("cancelled", 8)


async def test_the_clock_starts_with_the_cancel_not_with_the_cleanup(
    autojump_clock: MockClock,
) -> None:
    async with harness.open_run("job") as run:
        run.cancel()
        with trio.CancelScope(shield=True):
            await trio.sleep(3)
        await clean(60)
        await trio.lowlevel.checkpoint()
    assert (run.status, run.ended_at) == ("cancelled", 5)


async def test_a_parents_cancel_starts_the_childs_clock(autojump_clock: MockClock) -> None:
    async with harness.open_run("parent") as parent:
        async with harness.open_run("child") as child:
            parent.cancel()
            try:
                await trio.sleep_forever()
            finally:
                await clean(60)
    assert (child.status, child.ended_at) == ("cancelled", 5)
    assert (parent.status, parent.ended_at) == ("cancelled", 5)


async def test_the_cancel_of_the_outermost_run_is_the_one_that_counts(
    autojump_clock: MockClock,
) -> None:
    async with harness.open_run("parent") as parent:
        async with harness.open_run("child") as child:
            child.cancel()
            with trio.CancelScope(shield=True):
                await trio.sleep(2)
                parent.cancel()
                await trio.sleep(1)
            try:
                await trio.lowlevel.checkpoint()
            finally:
                await clean(60)
    assert (child.status, child.ended_at) == ("cancelled", 7)
    assert (parent.status, parent.ended_at) == ("cancelled", 7)


async def test_a_childs_cancel_is_no_matter_of_its_parents(autojump_clock: MockClock) -> None:
    async with harness.open_run("parent") as parent:
        async with harness.open_run("child") as child:
            child.cancel()
            try:
                await trio.sleep_forever()
            finally:
                await clean(60)
        assert child.ended_at == 5
        await clean(60)
    assert (parent.status, parent.ended_at) == ("ok", 65)


# Under a cancel that is not a run's ------------------------------------------------------------


async def test_under_a_foreign_cancel_the_clock_starts_at_the_first_cleanup(
    autojump_clock: MockClock,
) -> None:
    with trio.CancelScope() as foreign:
        async with harness.open_run("job") as run:
            foreign.cancel()
            with trio.CancelScope(shield=True):
                await trio.sleep(4)
            await clean(60)
            await trio.lowlevel.checkpoint()
    assert foreign.cancelled_caught
    assert (run.status, run.ended_at) == ("cancelled", 9)


async def test_under_a_foreign_cancel_nested_cleanups_share_the_clock(
    autojump_clock: MockClock,
) -> None:
    async def nested(levels: int) -> None:
        with harness.cleanup(max_seconds=1):
            async with harness.open_run(f"level-{levels}"):
                try:
                    await trio.sleep(60)
                finally:
                    if levels:
                        await nested(levels - 1)

    with trio.CancelScope() as foreign:
        async with harness.open_run("job"):
            await trio.sleep(10)
            foreign.cancel()
            try:
                await trio.sleep_forever()
            finally:
                await nested(5)
    assert foreign.cancelled_caught
    assert trio.current_time() == 11


async def test_a_foreign_cancel_inside_a_run_is_forgotten_when_it_is_left(
    autojump_clock: MockClock,
) -> None:
    """The next scope's cleanup starts afresh, or it would have no time at all."""
    async with harness.open_run("job") as run:
        for expected in (1, 21):
            with trio.CancelScope() as scope:
                scope.cancel()
                await clean(60, max_seconds=1)
            assert trio.current_time() == expected
            await trio.sleep(19)
    assert run.status == "ok"
