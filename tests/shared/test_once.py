"""One effect per key, whoever asks, leaves or dies; and never silently twice."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

import harness
from harness.budgets import budget_left, reserve_budget
from harness.errors import (
    BudgetExceeded,
    CircularWaitError,
    EffectUnknownError,
)
from harness.shared import OnceStatistics, open_once
from tests.shared.bank import Bank
from tests.shared.stores import Disk
from tests.support.context import planted, third_party, unchanged_context


@pytest.mark.parametrize("durable", [False, True])
async def test_a_thousand_calls_on_ten_keys_make_ten_effects(
    autojump_clock: MockClock, durable: bool
) -> None:
    began: list[int] = []

    async def effect(key: int, idempotency_key: str) -> int:
        began.append(key)
        await trio.sleep(1)
        return key * 10

    async with open_once(Disk() if durable else None) as once:
        results = await harness.fan_out(
            lambda item: once(item % 10, partial(effect, item % 10)), range(1_000), limit=1_000
        )
        assert list(results.values()) == [item % 10 * 10 for item in range(1_000)]
        assert sorted(began) == list(range(10))
        assert await once(3, partial(effect, 3)) == 30
        assert once.statistics() == OnceStatistics(
            effects=10,
            failed=0,
            shared=990,
            remembered=1,
            unknown=0,
            in_flight=0,
            tasks_waiting=0,
        )
        once.check()


# The idempotency key -----------------------------------------------------------------------------


async def test_the_key_is_made_from_the_items_and_all_attempts_at_an_item_share_it(
    autojump_clock: MockClock,
) -> None:
    bank = Bank()
    bank.fails = True
    expected: list[str] = []

    async def refund(ticket: int) -> str:
        expected.append(harness.current_run().effect_key("refund 7"))
        if len(expected) == 3:
            bank.fails = False
        return await once(f"refund {ticket}", bank.pay)

    async with open_once() as once:
        results = await harness.fan_out(
            refund, [7], each=harness.Attempt(retry=harness.Retry(3, on=OSError))
        )
    assert len(set(expected)) == 1
    assert bank.asked == expected
    assert results[0].value == f"receipt {expected[0]}"


async def test_two_effects_of_one_run_have_two_keys(autojump_clock: MockClock) -> None:
    """A bank that honours keys would take the second for a repetition, and not pay."""
    bank = Bank()
    async with open_once() as once, harness.open_run("job") as run:
        await once("first", bank.pay)
        await once("second", bank.pay)
        await once("first", bank.pay)
        await once("third", bank.pay)
        assert bank.paid == [run.effect_key(name) for name in ("first", "second", "third")]


async def test_two_effects_of_one_item_have_two_keys_whatever_once_and_attempt_they_are_in(
    autojump_clock: MockClock,
) -> None:
    bank = Bank(seconds=0)
    seen: list[dict[str, str]] = []

    async def work(item: int) -> None:
        receipts = {}
        # Two for one receiver: one after the other, or side by side.
        async with open_once() as payments, open_once() as fees:
            if len(seen) != 1:
                receipts["payment"] = await payments(("payment", item), bank.pay)
            receipts["fee"] = await fees(("fee", item), bank.pay)
        async with open_once() as later:
            receipts["tip"] = await later(("tip", item), bank.pay)
        seen.append(receipts)
        if len(seen) < 3:
            raise OSError("once more")

    async with harness.open_run("job"):
        results = await harness.fan_out(work, [7], each=harness.Attempt(retry=harness.Retry(3)))
    results.raise_if_incomplete()
    assert len(set(seen[0].values())) == 3
    assert seen[2] == seen[0]
    assert seen[1].items() < seen[0].items(), "an attempt that asks in another order"
    assert len(bank.paid) == 3


async def test_a_given_key_is_used_and_the_first_one_is_kept(autojump_clock: MockClock) -> None:
    bank = Bank()
    bank.fails = True
    async with open_once() as once:
        with pytest.raises(OSError, match="closed"):
            await once("a", bank.pay, idempotency_key="mine")
        bank.fails = False
        assert await once("a", bank.pay, idempotency_key="another") == "receipt mine"
        await once("b", bank.pay)
        await once("c", bank.pay)
        assert bank.asked[:2] == ["mine", "mine"]
        assert len(set(bank.asked)) == 3, "outside of any run each has a random one"
        for wrong in ("", 5):
            with pytest.raises(TypeError, match="takes a string"):
                await once("d", bank.pay, idempotency_key=wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="an async function"):
            await once("d", "bank.pay")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="awaitable was expected"):
            await once("d", lambda key: 5)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("on_error", ["retry", "unknown"])
async def test_an_effect_without_a_parameter_for_the_key_never_began(
    autojump_clock: MockClock, on_error: Any
) -> None:
    """It was an unknown effect before, though nothing had been called."""

    async def pay() -> str:
        pytest.fail("it was called")

    bank = Bank()
    async with open_once(on_error=on_error) as once:
        with pytest.raises(TypeError, match=r"async def pay\(idempotency_key\)"):
            await once("refund", pay)  # type: ignore[arg-type]
        assert once.statistics().effects == 0
        assert (await once("refund", bank.pay)).startswith("receipt")


# Failures ----------------------------------------------------------------------------------------


async def test_a_failure_reaches_all_and_the_next_call_tries_again(
    autojump_clock: MockClock,
) -> None:
    bank = Bank()
    bank.fails = True
    async with open_once() as once:
        results = await harness.fan_out(
            lambda item: once("key", bank.pay),
            range(20),
            limit=20,
            policy=harness.BestEffort(),
        )
        assert {type(result.error) for result in results} == {OSError}
        assert len({id(result.error) for result in results}) == 20
        bank.fails = False
        assert await once("key", bank.pay) == f"receipt {bank.asked[0]}"
        assert bank.asked == [bank.asked[0]] * 2
        statistics = once.statistics()
        assert (statistics.effects, statistics.failed) == (2, 1)


@pytest.mark.parametrize("durable", [False, True])
async def test_a_failure_may_count_as_unknown(autojump_clock: MockClock, durable: bool) -> None:
    """For a receiver that may have done it all the same, and honours no key."""
    bank = Bank(honours_keys=False)
    bank.fails = True
    async with open_once(Disk() if durable else None, on_error="unknown") as once:
        with pytest.raises(OSError, match="closed"):
            await once("key", bank.pay)
        with pytest.raises(EffectUnknownError, match="no record of how it ended") as unknown:
            await once("key", bank.pay)
        assert unknown.value.key == "key"
        assert unknown.value.idempotency_key == bank.asked[0]
        assert len(bank.asked) == 1
        once.check()


async def test_an_unknown_effect_is_not_retried_by_a_policy(autojump_clock: MockClock) -> None:
    disk = Disk()
    disk.write('"key"', "unknown", "old")
    calls = 0

    async def work(item: int) -> None:
        nonlocal calls
        calls += 1
        await once("key", Bank().pay)

    async with open_once(disk) as once:
        results = await harness.fan_out(
            work,
            [1],
            each=harness.Attempt(retry=harness.Retry(5)),
            policy=harness.BestEffort(),
        )
    assert isinstance(results[0].error, EffectUnknownError)
    assert calls == 1


# Whose it is -------------------------------------------------------------------------------------


async def test_an_effect_belongs_to_no_run_and_has_the_context_of_the_call(
    autojump_clock: MockClock,
) -> None:
    seen: list[tuple[str, object]] = []

    async def effect(key: str) -> None:
        seen.append((third_party.get(), harness.current_run_or_none()))
        third_party.set("changed by the effect")

    async with open_once() as once:
        with unchanged_context():
            async with harness.open_run("first"):
                for number in (1, 2):
                    with planted(f"call {number}"):
                        await once(number, effect)
    assert seen == [("call 1", None), ("call 2", None)]


async def test_an_effect_spends_from_the_budget_of_whoever_started_it(
    autojump_clock: MockClock,
) -> None:
    keys: list[str] = []

    async def effect(key: str) -> str:
        keys.append(key)
        await trio.sleep(1)
        with reserve_budget(tokens=50):
            return "done"

    async with open_once() as once:

        async def poor() -> None:
            with pytest.raises(BudgetExceeded):
                async with harness.open_run("poor", budget=harness.Budget(tokens=10)):
                    await once("key", effect)

        async def rich() -> None:
            async with harness.open_run("rich", budget=harness.Budget(tokens=80)):
                await wait_all_tasks_blocked()
                assert await once("key", effect) == "done"
                assert budget_left().tokens == 30

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poor)
            nursery.start_soon(rich)
        assert len(keys) == 2
        assert len(set(keys)) == 1


async def test_every_call_is_a_checkpoint() -> None:
    async def effect(key: str) -> int:
        return 1

    async with open_once() as once:
        for _ in range(2):
            with assert_checkpoints():
                await once("key", effect)
        with trio.move_on_after(0) as scope:
            await once("other", effect)
        assert scope.cancelled_caught
        assert once.statistics().effects == 1


async def test_an_effect_that_waits_for_itself_is_refused(autojump_clock: MockClock) -> None:
    async with open_once() as once:

        async def again(key: str) -> None:
            await once("key", again)

        with pytest.raises(CircularWaitError, match="the effect 'key' would wait for itself"):
            await once("key", again)


@pytest.mark.parametrize(
    "arguments", [{"journal": 5}, {"on_unknown": "guess"}, {"on_error": "ignore"}]
)
async def test_arguments_are_checked(arguments: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(arguments))):
        async with open_once(**arguments):
            raise AssertionError


async def test_a_key_has_to_be_one() -> None:
    bank = Bank()
    async with open_once() as once:
        with pytest.raises(TypeError, match=r"such as a string or a tuple .* not \['refund', 7\]"):
            await once(["refund", 7], bank.pay)  # type: ignore[arg-type]
    assert bank.asked == []
