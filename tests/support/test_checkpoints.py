"""The helper that cancels at every checkpoint finds what it was made to find."""

from __future__ import annotations

from contextvars import ContextVar

import pytest
import trio
from trio.testing import MockClock

from tests.support.checkpoints import cancel_at_every_checkpoint


def nothing_to_check() -> None:
    pass


async def test_a_function_is_cut_short_once_for_each_of_its_checkpoints(
    autojump_clock: MockClock,
) -> None:
    reached: list[int] = []

    async def three_waits() -> None:
        for wait in range(3):
            await trio.sleep(1)
            reached.append(wait)

    assert await cancel_at_every_checkpoint(three_waits, nothing_to_check) == 3
    assert reached.count(2) == 2, "it got through once for each of the two moments"


async def test_checkpoints_of_child_tasks_count(autojump_clock: MockClock) -> None:
    async def in_a_child() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)
            nursery.start_soon(trio.sleep, 2)

    assert await cancel_at_every_checkpoint(in_a_child, nothing_to_check) >= 3


async def test_a_slot_that_is_kept_after_a_cancel_while_waiting_is_found(
    autojump_clock: MockClock,
) -> None:
    held: list[str] = []

    async def leaky() -> None:
        await trio.sleep(1)
        held.append("slot")
        await trio.sleep(1)
        held.remove("slot")

    def check() -> None:
        assert held == []

    with pytest.raises(AssertionError) as caught:
        await cancel_at_every_checkpoint(leaky, check)
    assert "checkpoint 2, while waiting" in caught.value.__notes__[0]


async def test_a_grant_that_is_lost_when_the_cancel_comes_on_waking_is_found(
    autojump_clock: MockClock,
) -> None:
    """The wait is over and the slot is handed over, and only then comes the cancel."""
    free: list[str] = []

    async def leaky() -> None:
        free[:] = ["slot"]
        await trio.lowlevel.cancel_shielded_checkpoint()
        slot = free.pop()
        await trio.lowlevel.checkpoint_if_cancelled()
        free.append(slot)

    def check() -> None:
        assert free == ["slot"]

    with pytest.raises(AssertionError) as caught:
        await cancel_at_every_checkpoint(leaky, check)
    assert "the function was cancelled at checkpoint" in caught.value.__notes__[0]


async def test_a_changed_context_is_found(autojump_clock: MockClock) -> None:
    variable: ContextVar[str] = ContextVar("variable")

    async def forgetful() -> None:
        token = variable.set("inside")
        await trio.sleep(1)
        variable.reset(token)

    with pytest.raises(AssertionError, match="context"):
        await cancel_at_every_checkpoint(forgetful, nothing_to_check)


async def test_a_function_that_hangs_when_cancelled_is_found(autojump_clock: MockClock) -> None:
    async def stubborn() -> None:
        try:
            await trio.sleep(1)
        finally:
            with trio.CancelScope(deadline=trio.current_time() + 10_000, shield=True):
                await trio.sleep_forever()

    with pytest.raises(AssertionError, match="hangs"):
        await cancel_at_every_checkpoint(stubborn, nothing_to_check, patience_seconds=100)


async def test_an_error_of_the_function_comes_out_as_itself(autojump_clock: MockClock) -> None:
    async def broken() -> None:
        try:
            await trio.sleep(1)
        finally:
            raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        await cancel_at_every_checkpoint(broken, nothing_to_check)
