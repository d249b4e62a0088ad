"""The endings table: what happens in a run, its status, and what the caller of the block sees."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import RunTimedOut
from tests.support.ways_out import WAYS_OUT, Boom, leave


@pytest.mark.parametrize("way", WAYS_OUT)
async def test_every_way_out_has_one_ending(way: str, autojump_clock: MockClock) -> None:
    seen_inside: list[str] = []

    async def look(run: harness.Run) -> None:
        seen_inside.append(run.status)
        assert run.ended_at is None

    run = await leave(way, look)
    assert seen_inside == ["running"]
    assert run.status == WAYS_OUT[way]
    assert run.ended_at is not None
    assert run.started_at <= run.ended_at <= trio.current_time()


@pytest.mark.parametrize("way", WAYS_OUT)
async def test_a_status_is_set_once(way: str, autojump_clock: MockClock) -> None:
    """A cancel after the end used to edit the record of a run that had completed."""
    run = await leave(way)
    ended_at, reason = run.ended_at, run.cancel_reason
    await trio.sleep(1)
    run.cancel("after the end")
    run.cancel("after the end", grace=1)
    run.stop("after the end")
    await trio.sleep(2)
    assert (run.status, run.ended_at, run.cancel_reason) == (WAYS_OUT[way], ended_at, reason)


# The body returns ------------------------------------------------------------------------------


async def test_a_body_that_returns_is_ok(autojump_clock: MockClock) -> None:
    async with harness.open_run("job", timeout=60) as run:
        await trio.sleep(1)
    assert run.status == "ok"
    assert run.cancel_reason is None


async def test_a_body_that_returns_late_is_ok(mock_clock: MockClock) -> None:
    """No checkpoint met the deadline, so the deadline took no effect."""
    async with harness.open_run("job", timeout=1) as run:
        mock_clock.jump(5)
    assert run.status == "ok"


async def test_a_body_that_returns_late_out_of_a_shield_is_ok(autojump_clock: MockClock) -> None:
    async with harness.open_run("job", timeout=1) as run:
        with trio.CancelScope(shield=True):
            await trio.sleep(5)
    assert run.status == "ok"
    assert run.ended_at == 5


async def test_a_body_that_swallows_the_cancel_and_returns_is_ok(autojump_clock: MockClock) -> None:
    async with harness.open_run("job") as run:
        run.cancel("not needed")
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            pass
    assert run.status == "ok"


async def test_a_body_that_swallows_an_outer_cancel_and_returns_is_ok(
    autojump_clock: MockClock,
) -> None:
    with trio.CancelScope() as outer:
        async with harness.open_run("job") as run:
            outer.cancel()
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                pass
        assert run.status == "ok"


# The body raises -------------------------------------------------------------------------------


async def test_a_body_that_raises_is_failed_and_the_exception_is_the_same() -> None:
    error = Boom("the disk is full")
    with pytest.raises(Boom) as caught:
        async with harness.open_run("job") as run:
            raise error
    assert caught.value is error
    assert run.status == "failed"


@pytest.mark.parametrize("error_type", [KeyboardInterrupt, SystemExit, BaseException])
async def test_a_base_exception_fails_the_run_and_comes_out_as_itself(
    error_type: type[BaseException],
) -> None:
    error = error_type()
    caught: BaseException | None = None
    try:
        async with harness.open_run("job") as run:
            raise error
    except BaseException as exc:
        caught = exc
    assert caught is error
    assert run.status == "failed"


async def test_an_error_raised_because_of_the_own_cancel_is_failed() -> None:
    error = Boom()
    with pytest.raises(Boom) as caught:
        async with harness.open_run("job") as run:
            run.cancel()
            try:
                await trio.sleep_forever()
            finally:
                raise error
    assert caught.value is error
    assert run.status == "failed"


async def test_an_error_raised_because_of_the_own_deadline_is_failed(
    autojump_clock: MockClock,
) -> None:
    with pytest.raises(Boom):
        async with harness.open_run("job", timeout=1) as run:
            try:
                await trio.sleep_forever()
            finally:
                raise Boom
    assert run.status == "failed"


async def test_an_error_beside_the_own_cancel_is_failed_and_seen_alone() -> None:
    """As with any cancel scope: its own `Cancelled` is taken out, the error stays."""
    with pytest.raises(ExceptionGroup) as caught:
        async with harness.open_run("job") as run:
            run.cancel()
            await raise_beside_cancelled(Boom())
    assert [type(leaf) for leaf in leaves(caught.value)] == [Boom]
    assert run.status == "failed"


async def test_an_error_beside_the_own_deadline_is_failed_and_seen_alone(
    autojump_clock: MockClock,
) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with harness.open_run("job", timeout=2) as run:
            await raise_beside_cancelled(Boom())
    assert [type(leaf) for leaf in leaves(caught.value)] == [Boom]
    assert run.status == "failed"
    assert trio.current_time() == 2


async def test_an_error_beside_an_outer_cancel_is_failed_and_the_cancel_is_kept() -> None:
    came_out: list[BaseException] = []
    with pytest.raises(ExceptionGroup) as caught:
        with trio.CancelScope() as outer:
            try:
                async with harness.open_run("job") as run:
                    outer.cancel()
                    await raise_beside_cancelled(Boom())
            except BaseException as exc:
                came_out.append(exc)
                raise
    assert {type(leaf) for leaf in leaves(came_out[0])} == {Boom, trio.Cancelled}
    assert [type(leaf) for leaf in leaves(caught.value)] == [Boom]
    assert outer.cancelled_caught
    assert run.status == "failed"


async def test_a_timeout_from_inside_is_just_a_failure(autojump_clock: MockClock) -> None:
    with pytest.raises(trio.TooSlowError) as caught:
        async with harness.open_run("job", timeout=60) as run:
            with trio.fail_after(1):
                await trio.sleep_forever()
    assert not isinstance(caught.value, RunTimedOut)
    assert run.status == "failed"
    assert trio.current_time() == 1


async def test_a_childs_timeout_that_nobody_catches_fails_the_parent(
    autojump_clock: MockClock,
) -> None:
    with pytest.raises(RunTimedOut) as caught:
        async with harness.open_run("parent", timeout=60) as parent:
            try:
                async with harness.open_run("child", timeout=1) as child:
                    await trio.sleep_forever()
            except RunTimedOut as exc:
                error = exc
                raise
    assert caught.value is error
    assert (child.status, parent.status) == ("timed_out", "failed")


# The run is cancelled --------------------------------------------------------------------------


async def test_a_cancelled_run_is_left_quietly_and_keeps_the_reason(
    autojump_clock: MockClock,
) -> None:
    async with harness.open_run("job") as run:
        run.cancel("the user went away")
        await trio.sleep_forever()
    assert run.status == "cancelled"
    assert run.cancel_reason == "the user went away"


async def test_the_own_cancel_as_a_group_of_only_cancelled_is_a_cancel(
    autojump_clock: MockClock,
) -> None:
    async with harness.open_run("job") as run:
        run.cancel("not needed")
        await raise_group_of_cancelled()
    assert run.status == "cancelled"


async def test_a_nursery_in_the_body_does_not_hide_the_own_cancel() -> None:
    async with harness.open_run("job") as run:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(trio.sleep_forever)
            run.cancel()
    assert run.status == "cancelled"


# The run's deadline ----------------------------------------------------------------------------


async def test_the_own_deadline_raises_run_timed_out(autojump_clock: MockClock) -> None:
    with pytest.raises(RunTimedOut) as caught:
        async with harness.open_run("nightly", timeout=2.5) as run:
            await trio.sleep_forever()
    assert isinstance(caught.value, trio.TooSlowError)
    assert run.path in str(caught.value)
    assert "2.5" in str(caught.value)
    assert run.status == "timed_out"
    assert run.ended_at == trio.current_time() == 2.5


async def test_the_own_deadline_as_a_group_of_only_cancelled_is_a_timeout(
    autojump_clock: MockClock,
) -> None:
    with pytest.raises(RunTimedOut):
        async with harness.open_run("job", timeout=2) as run:
            await raise_group_of_cancelled()
    assert run.status == "timed_out"


async def test_a_timeout_of_zero_fires_at_the_first_checkpoint() -> None:
    with pytest.raises(RunTimedOut):
        async with harness.open_run("job", timeout=0) as run:
            await trio.lowlevel.checkpoint()
            pytest.fail("the checkpoint let the body through")
    assert run.status == "timed_out"


async def test_a_timeout_of_zero_does_not_hurt_a_body_without_a_checkpoint() -> None:
    async with harness.open_run("job", timeout=0) as run:
        pass
    assert run.status == "ok"


async def test_an_inner_limit_at_the_same_instant_gives_way_to_the_runs_deadline(
    autojump_clock: MockClock,
) -> None:
    with pytest.raises(RunTimedOut):
        async with harness.open_run("job", timeout=2) as run:
            with trio.fail_after(2):
                await trio.sleep_forever()
    assert run.status == "timed_out"


# Cancel and deadline together ------------------------------------------------------------------


async def test_a_cancel_before_the_deadline_wins(autojump_clock: MockClock) -> None:
    async with harness.open_run("job", timeout=2) as run:
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
            run.cancel("first")
            await trio.sleep(2)
        await trio.sleep_forever()
    assert run.status == "cancelled"
    assert run.cancel_reason == "first"


async def test_a_deadline_before_the_cancel_wins(autojump_clock: MockClock) -> None:
    with pytest.raises(RunTimedOut):
        async with harness.open_run("job", timeout=1) as run:
            with trio.CancelScope(shield=True):
                await trio.sleep(2)
                run.cancel("second")
                await trio.sleep(1)
            await trio.sleep_forever()
    assert run.status == "timed_out"


async def test_a_deadline_that_passed_unnoticed_before_the_cancel_wins(
    mock_clock: MockClock,
) -> None:
    """The deadline was asked for at its own time, not when trio gets round to looking at it."""
    with pytest.raises(RunTimedOut):
        async with harness.open_run("job", timeout=1) as run:
            mock_clock.jump(2)
            run.cancel("second")
            await trio.sleep_forever()
    assert run.status == "timed_out"


# From outside ----------------------------------------------------------------------------------


async def test_an_outer_cancel_passes_untouched_and_the_run_is_cancelled() -> None:
    seen: list[BaseException] = []
    with trio.CancelScope() as outer:
        try:
            async with harness.open_run("job") as run:
                outer.cancel()
                try:
                    await trio.sleep_forever()
                except trio.Cancelled as exc:
                    seen.append(exc)
                    raise
        except trio.Cancelled as exc:
            seen.append(exc)
            raise
    assert outer.cancelled_caught
    assert seen[0] is seen[1]
    assert run.status == "cancelled"
    assert run.cancel_reason, "the reason names who"


async def test_an_outer_cancel_as_a_group_of_only_cancelled_is_still_a_cancel() -> None:
    """First seen as `failed`: the group isn't a `Cancelled`, so it was taken for an error."""
    seen: list[BaseException] = []
    with trio.CancelScope() as outer:
        try:
            async with harness.open_run("job") as run:
                outer.cancel()
                await raise_group_of_cancelled()
        except BaseException as exc:
            seen.append(exc)
            raise
    assert outer.cancelled_caught
    assert [type(leaf) for leaf in leaves(seen[0])] == [trio.Cancelled, trio.Cancelled]
    assert run.status == "cancelled"
    assert run.cancel_reason


async def test_a_parents_cancel_ends_the_child_cancelled_and_the_reason_names_the_parent(
    autojump_clock: MockClock,
) -> None:
    async with harness.open_run("nightly") as parent:
        async with harness.open_run("ticket") as child:
            async with harness.open_run("step") as grandchild:
                parent.cancel("the shift is over")
                await trio.sleep_forever()
    assert [run.status for run in (parent, child, grandchild)] == ["cancelled"] * 3
    assert parent.cancel_reason == "the shift is over"
    for run in (child, grandchild):
        assert run.cancel_reason is not None
        assert "nightly" in run.cancel_reason


async def test_a_parents_deadline_ends_the_child_cancelled_and_the_parent_timed_out(
    autojump_clock: MockClock,
) -> None:
    with pytest.raises(RunTimedOut) as caught:
        async with harness.open_run("nightly", timeout=2) as parent:
            async with harness.open_run("ticket", timeout=60) as child:
                await trio.sleep_forever()
    assert (child.status, parent.status) == ("cancelled", "timed_out")
    assert child.cancel_reason is not None
    assert "nightly" in child.cancel_reason
    assert "nightly/ticket" not in str(caught.value)
    assert trio.current_time() == 2


async def test_when_both_deadlines_are_the_same_instant_the_parents_counts(
    autojump_clock: MockClock,
) -> None:
    """Otherwise the child's `RunTimedOut` would turn the parent's own deadline into a failure."""
    with pytest.raises(RunTimedOut):
        async with harness.open_run("parent", timeout=2) as parent:
            async with harness.open_run("child", timeout=2) as child:
                await trio.sleep_forever()
    assert (child.status, parent.status) == ("cancelled", "timed_out")


async def test_a_childs_own_cancel_does_not_hide_that_of_its_parent(
    autojump_clock: MockClock,
) -> None:
    async with harness.open_run("parent") as parent:
        async with harness.open_run("child") as child:
            child.cancel("first")
            parent.cancel("second")
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        pytest.fail("the parent's cancel was lost")
    assert (child.status, parent.status) == ("cancelled", "cancelled")


# The note --------------------------------------------------------------------------------------


async def test_an_error_carries_a_note_that_names_the_runs_path() -> None:
    with pytest.raises(Boom) as caught:
        async with harness.open_run("nightly"):
            async with harness.open_run("ticket-17"):
                raise Boom
    assert any("nightly/ticket-17" in note for note in caught.value.__notes__)


async def test_an_error_that_passes_a_deep_tree_does_not_collect_a_note_for_each_run() -> None:
    """The innermost path names all the others already."""
    with pytest.raises(Boom) as caught:
        async with harness.open_run("a"):
            async with harness.open_run("b"):
                async with harness.open_run("c"):
                    async with harness.open_run("d"):
                        raise Boom
    assert len(caught.value.__notes__) == 1
    assert "a/b/c/d" in caught.value.__notes__[0]


@pytest.mark.slow
async def test_one_error_object_in_two_runs_names_both() -> None:
    error = Boom()
    for name in ("first", "second"):
        with pytest.raises(Boom):
            async with harness.open_run(name):
                raise error
    text = "\n".join(error.__notes__)
    assert "first" in text
    assert "second" in text


# Helpers ---------------------------------------------------------------------------------------


def leaves(exc: BaseException) -> list[BaseException]:
    """Return the exceptions that are not groups."""
    if isinstance(exc, BaseExceptionGroup):
        return [leaf for member in exc.exceptions for leaf in leaves(member)]
    return [exc]


async def raise_beside_cancelled(error: Exception) -> None:
    """Wait for a cancel, then raise it in a group with an error."""
    try:
        await trio.sleep_forever()
    except trio.Cancelled as cancelled:
        raise BaseExceptionGroup("two at once", [error, cancelled]) from None


async def raise_group_of_cancelled() -> None:
    """Wait for a cancel, then raise it the way a strict nursery may: as a group."""
    caught: list[BaseException] = []
    for _ in range(2):
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            caught.append(cancelled)
    raise BaseExceptionGroup("only cancelled", caught)
