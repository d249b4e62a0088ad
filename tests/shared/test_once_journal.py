"""With a journal an effect happens once over all processes, or nobody knows."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import (
    EffectUnknownError,
)
from harness.shared import (
    Done,
    open_once,
)
from tests.shared.bank import Bank
from tests.shared.stores import Crash, Disk


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
