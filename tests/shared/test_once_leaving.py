"""Whoever leaves an effect that happens once, it happens once, or nobody knows."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

import harness
from harness.errors import (
    EffectUnknownError,
    SharedClosedError,
)
from harness.shared import (
    open_cache,
    open_once,
)
from tests.shared.bank import Bank
from tests.shared.stores import Crash, Disk
from tests.support.checkpoints import cancel_at_every_checkpoint

# Who leaves --------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
async def test_the_leader_cancelled_at_every_checkpoint_leaves_one_effect(
    autojump_clock: MockClock, durable: bool
) -> None:
    numbers = itertools.count()
    key = 0
    bank = Bank()
    served = 0
    rounds = 0
    async with open_once(Disk() if durable else None) as once:
        async with trio.open_nursery() as outside:

            async def follow() -> None:
                nonlocal served
                await wait_all_tasks_blocked()
                await once(key, bank.pay)
                served += 1

            async def lead() -> None:
                nonlocal key, rounds
                key = next(numbers)
                rounds += 1
                harness.start_soon(outside, follow, run=None)
                async with harness.open_run("leader"):
                    await once(key, bank.pay)

            async def one_effect() -> None:
                await trio.sleep(10)
                assert len(bank.paid) == len(bank.asked) == rounds
                assert once.statistics().tasks_waiting == once.statistics().in_flight == 0
                once.check()

            cut = await cancel_at_every_checkpoint(lead, one_effect)
        assert cut >= 1
        assert served == rounds


async def test_an_effect_goes_on_when_all_its_callers_left(autojump_clock: MockClock) -> None:
    bank = Bank()
    async with open_once() as once:
        async with harness.open_run("impatient"):
            with trio.move_on_after(0.5):
                await once("key", bank.pay)
        assert bank.paid == []
        await trio.sleep(5)
        assert len(bank.paid) == 1
        assert await once("key", bank.pay) == f"receipt {bank.paid[0]}"
        assert len(bank.asked) == 1


async def test_leaving_the_block_waits_for_effects(autojump_clock: MockClock) -> None:
    bank = Bank()

    async def two_payments(key: str) -> str:
        await bank.pay(key)
        return await once("second", bank.pay)

    with pytest.raises(ValueError, match="body"):
        async with open_once() as once:
            with trio.move_on_after(0.5):
                await once("first", two_payments)
            raise ValueError("body")
    assert len(bank.paid) == 2, "also those that an effect asks for"
    with pytest.raises(SharedClosedError, match="this once was left"):
        await once("second", bank.pay)


async def test_what_an_effect_asks_for_through_a_cache_is_had_though_the_block_was_left(
    autojump_clock: MockClock,
) -> None:
    """The block waits for the effect, which waits for the load, which waits for another effect."""
    bank = Bank()

    async with open_cache() as cache, trio.open_nursery() as services:
        async with open_once() as once:

            async def load() -> str:
                return await once("fee", bank.pay)

            async def unrelated() -> None:
                await trio.sleep(20)
                with pytest.raises(SharedClosedError):
                    await cache.get("unrelated", load)

            async def pay(key: str) -> str:
                await trio.sleep(5)
                return await cache.get("fee", load)

            services.start_soon(unrelated)
            with trio.move_on_after(1):
                await once("payment", pay)
        assert len(bank.paid) == 1
        statistics = once.statistics()
        assert (statistics.effects, statistics.failed) == (2, 0)


async def test_a_cancel_from_outside_reaches_effects_and_says_unknown_to_others(
    autojump_clock: MockClock,
) -> None:
    bank = Bank(seconds=100)
    disk = Disk()

    async def elsewhere(once: Any) -> None:
        with pytest.raises(EffectUnknownError, match="it was cancelled") as unknown:
            await once("key", bank.pay)
        assert unknown.value.idempotency_key == bank.asked[0]

    async with trio.open_nursery() as outside:
        with trio.move_on_after(5):
            async with open_once(disk) as once:
                outside.start_soon(elsewhere, once)
                try:
                    await once("key", bank.pay)
                finally:
                    with trio.CancelScope(shield=True):
                        await trio.sleep(1)
                    once.check()  # The effect has been cut off by now.
    assert disk.log == ["unknown"]
    async with open_once(disk) as once:
        with pytest.raises(EffectUnknownError, match="no record"):
            await once("key", bank.pay)
    assert len(bank.asked) == 1


async def test_an_effect_that_raises_because_it_was_cancelled_is_unknown(
    autojump_clock: MockClock,
) -> None:
    """Had it counted as failed, the next session would pay again."""
    bank = Bank(seconds=10)
    disk = Disk()

    async def pay(key: str) -> str:
        try:
            return await bank.pay(key)
        except trio.Cancelled:
            raise OSError("can't close the connection") from None

    async def elsewhere(once: Any) -> None:
        with pytest.raises(OSError, match="close the connection") as failed:
            await once("key", pay)
        assert "counts as unknown" in failed.value.__notes__[0]

    async with trio.open_nursery() as outside:
        with trio.move_on_after(15):
            async with open_once(disk) as once:
                outside.start_soon(elsewhere, once)
                await once("key", pay)
    async with open_once(disk) as once:
        with pytest.raises(EffectUnknownError):
            await once("key", pay)
    assert len(bank.paid) == 1


async def test_a_plain_function_as_an_effect_is_not_called_again(
    autojump_clock: MockClock,
) -> None:
    """It has paid before it is found out, so every retry would pay once more."""
    paid: list[str] = []

    async def refund(item: int) -> None:
        await once("key", paid.append)  # type: ignore[arg-type]

    async with open_once() as once:
        results = await harness.fan_out(
            refund,
            range(3),
            each=harness.Attempt(retry=harness.Retry(3)),
            policy=harness.BestEffort(),
        )
    assert {type(result.error) for result in results} == {EffectUnknownError}
    assert len(paid) == 1


async def test_a_cancel_that_comes_after_the_effect_still_finds_it_recorded(
    autojump_clock: MockClock,
) -> None:
    disk = Disk()
    scope = trio.CancelScope()

    async def pay(key: str) -> str:
        await trio.lowlevel.checkpoint()
        scope.cancel()
        return "paid"

    with scope:
        async with open_once(disk) as once:
            await once("key", pay)
    assert scope.cancelled_caught
    async with open_once(disk) as once:
        assert await once("key", pay) == "paid"
    assert disk.log == ["unknown", "done"]


# Whatever is done --------------------------------------------------------------------------------


@pytest.mark.slow
@given(
    sessions=st.lists(
        st.tuples(
            st.integers(1, 60),  # The step at which it dies.
            st.lists(
                st.tuples(st.integers(0, 3), st.sampled_from([None, 0.0, 0.5, 1.0, 2.5])),
                min_size=1,
                max_size=12,
            ),
        ),
        min_size=1,
        max_size=5,
    ),
    fails=st.sets(st.integers(1, 8)),
)
def test_paid_once_whatever_dies_fails_or_leaves(
    sessions: list[tuple[int, list[tuple[int, float | None]]]], fails: set[int]
) -> None:
    """Sessions that die at random, callers that leave at random, a bank that fails at random.

    What was answered once is answered the same forever; a bank that honours keys paid no key twice;
    and the last session, in which nothing dies, brings every key to its end.
    """
    disk = Disk()
    bank = Bank(seconds=0.5)
    answers: dict[int, str] = {}
    attempts = itertools.count(1)

    async def pay(idempotency_key: str) -> str:
        await disk.step()
        if next(attempts) in fails:
            raise OSError("bank is closed")
        receipt = await bank.pay(idempotency_key)
        await disk.step()
        return receipt

    async def session(calls: list[tuple[int, float | None]]) -> None:
        async def ask(key: int, patience_seconds: float | None) -> None:
            with trio.move_on_after(patience_seconds or 10_000):
                try:
                    answer = await once(key, pay)
                except OSError:
                    return
                assert answers.setdefault(key, answer) == answer

        async with open_once(disk, on_unknown="retry") as once:
            async with harness.open_run("session"), trio.open_nursery() as nursery:
                for key, patience_seconds in calls:
                    nursery.start_soon(ask, key, patience_seconds)
            once.check()

    for dies_at, calls in sessions:
        disk.steps, disk.dies_at = 0, dies_at
        left: BaseException | None = None
        try:
            trio.run(session, calls, clock=MockClock(autojump_threshold=0))
        except BaseExceptionGroup as group:
            left = group.split(Crash)[1]
        except Crash:
            pass
        assert left is None
    disk.dies_at = None
    fails.clear()
    everything: list[tuple[int, float | None]] = [(key, None) for key in range(4)]
    trio.run(session, everything, clock=MockClock(autojump_threshold=0))
    assert len(answers) == 4
    assert len(bank.paid) == len(set(bank.paid)) == 4
    assert sorted(answers.values()) == sorted(f"receipt {key}" for key in bank.paid)
