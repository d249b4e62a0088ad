"""One effect per key, whoever asks, leaves or dies; and never silently twice."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, Literal

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

import harness
from harness.errors import (
    BudgetExceeded,
    CircularWaitError,
    EffectUnknownError,
    SharedClosedError,
)
from harness.shared import (
    Done,
    OnceStatistics,
    budget_left,
    open_cache,
    open_once,
    reserve_budget,
)
from tests.shared.stores import Crash, Disk
from tests.support.checkpoints import cancel_at_every_checkpoint
from tests.support.context import planted, third_party, unchanged_context


class Bank:
    """A receiver of payments: what it was asked, and what it did."""

    def __init__(self, *, honours_keys: bool = True, seconds: float = 1.0) -> None:
        self.asked: list[str] = []
        self.paid: list[str] = []
        self.honours_keys = honours_keys
        self.seconds = seconds
        self.fails = False

    async def pay(self, idempotency_key: str) -> str:
        self.asked.append(idempotency_key)
        await trio.sleep(self.seconds)
        if self.fails:
            raise OSError("bank is closed")
        if not (self.honours_keys and idempotency_key in self.paid):
            self.paid.append(idempotency_key)
        await trio.sleep(self.seconds)
        return f"receipt {idempotency_key}"


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


async def test_the_key_is_the_runs_and_all_attempts_at_an_item_share_it(
    autojump_clock: MockClock,
) -> None:
    bank = Bank()
    bank.fails = True
    expected: list[str] = []

    async def refund(ticket: int) -> str:
        expected.append(harness.current_run().idempotency_key)
        if len(expected) == 3:
            bank.fails = False
        return await once(("refund", ticket), bank.pay)

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
        assert bank.paid == [
            run.idempotency_key,
            f"{run.idempotency_key}:2",
            f"{run.idempotency_key}:3",
        ]


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


# With a journal ----------------------------------------------------------------------------------


async def test_a_later_session_has_the_value_as_the_first_one_had_it(
    autojump_clock: MockClock,
) -> None:
    disk = Disk()
    calls = 0

    async def effect(key: str) -> Any:
        nonlocal calls
        calls += 1
        return {"pair": (1, 2)}

    for _ in range(2):
        async with open_once(disk) as once:
            for _ in range(2):
                assert await once("a", effect) == {"pair": [1, 2]}
    assert calls == 1
    assert disk.log == ["unknown", "done"], "intended before, done after"


OnUnknownName = Literal["raise", "retry", "check"]


@pytest.mark.parametrize("on_unknown", ["raise", "retry", "check"])
@pytest.mark.parametrize("honours_keys", [True, False])
def test_dying_at_every_boundary_pays_once_or_says_unknown(
    on_unknown: OnUnknownName, honours_keys: bool
) -> None:
    """The process dies at each step of the disk, and before and after the payment itself."""
    endings: set[str] = set()
    for dies_at in range(1, 30):
        disk = Disk()
        bank = Bank(honours_keys=honours_keys)
        disk.dies_at = dies_at
        first = _session(disk, bank, on_unknown)
        disk.dies_at = None
        later = [_session(disk, bank, on_unknown) for _ in range(2)]
        if first != "crash":
            assert first == "ok"
            assert later == ["ok", "ok"]
            assert len(bank.paid) == len(bank.asked) == 1
            break
        endings.update(later)
        assert later[0] == later[1], "nothing changes by asking once more"
        if on_unknown == "raise":
            assert len(bank.asked) <= 1, "never twice"
            assert len(bank.paid) <= 1
        elif on_unknown == "check" or honours_keys:
            assert later == ["ok", "ok"]
            assert len(bank.paid) == 1, "observed once"
        assert len(set(bank.asked)) <= 1, "one idempotency key over all sessions"
    else:
        raise AssertionError("it never got through")
    assert endings == ({"ok", "unknown"} if on_unknown == "raise" else {"ok"})


def _session(disk: Disk, bank: Bank, on_unknown: OnUnknownName) -> str:
    async def pay(idempotency_key: str) -> str:
        await disk.step()
        receipt = await bank.pay(idempotency_key)
        await disk.step()
        return receipt

    async def look(key: str, idempotency_key: str) -> Done | None:
        assert key == "key"
        await trio.lowlevel.checkpoint()
        return Done(f"receipt {idempotency_key}") if idempotency_key in bank.paid else None

    async def main() -> str:
        try:
            async with open_once(
                disk, on_unknown=look if on_unknown == "check" else on_unknown
            ) as once:
                async with harness.open_run("session"):
                    receipt = await once("key", pay)
                assert receipt == f"receipt {bank.asked[0]}"
                once.check()
                return "ok"
        except EffectUnknownError as error:
            told = error.idempotency_key
        except Crash:
            return "crash"
        assert told == disk.effects['"key"']["idempotency_key"]
        return "unknown"

    return trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_a_check_function_may_be_plain_and_may_not_know(autojump_clock: MockClock) -> None:
    disk = Disk()
    disk.write('"key"', "unknown", "old")
    bank = Bank()

    def cannot_tell(key: Any, idempotency_key: str) -> None:
        raise OSError("bank doesn't answer")

    async with open_once(disk, on_unknown=cannot_tell) as once:
        with pytest.raises(OSError, match="answer"):
            await once("key", bank.pay)
    async with open_once(disk, on_unknown=lambda key, idempotency_key: True) as once:  # type: ignore[arg-type, return-value]
        with pytest.raises(TypeError, match=r"return Done\(value\)"):
            await once("key", bank.pay)
    async with open_once(disk, on_unknown=lambda key, idempotency_key: Done(key)) as once:
        assert await once("key", bank.pay) == "key"
        assert once.statistics().unknown == 1
    assert bank.asked == []


async def test_an_effect_that_cannot_be_recorded_is_not_had_again(
    autojump_clock: MockClock,
) -> None:
    disk = Disk()
    bank = Bank()

    async def pay(key: str) -> str:
        disk.full = True
        return await bank.pay(key)

    async with open_once(disk) as once:
        for _ in range(2):
            with pytest.raises(OSError, match="No space left") as full:
                await once("key", pay)
            assert "took place and could not be recorded" in full.value.__notes__[0]
        assert len(bank.asked) == 1
        disk.full = False
        assert await once("key", pay) == f"receipt {bank.asked[0]}"
        disk.full = False
    async with open_once(disk) as once:
        await once("key", pay)
    assert len(bank.asked) == 1


async def test_a_failure_that_cannot_be_recorded_is_unknown(autojump_clock: MockClock) -> None:
    disk = Disk()

    async def pay(key: str) -> str:
        disk.full = True
        raise ValueError("refused")

    async with open_once(disk) as once:
        with pytest.raises(ValueError, match="refused") as refused:
            await once("key", pay)
        assert "No space left" in refused.value.__notes__[0]
        disk.full = False
        with pytest.raises(EffectUnknownError):
            await once("key", pay)
        once.check()


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


# Whatever is done --------------------------------------------------------------------------------


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

    What was answered once is answered the same for ever; a bank that honours keys paid no key
    twice; and the last session, in which nothing dies, brings every key to its end.
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
