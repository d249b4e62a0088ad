"""What runs share on purpose is asked after every step whether it is in order."""

import pytest
import trio
import trio.lowlevel

from harness.errors import ScheduleError
from harness.shared import Counter
from harness.testing import assert_isolated

pytestmark = pytest.mark.slow


class Account:
    def __init__(self) -> None:
        self.left = 2


ACCOUNT = Account()


visits: list[str] = []


async def spend_too_much(text: str) -> str:
    visits.append(text)
    if ACCOUNT.left > 0:
        await trio.lowlevel.checkpoint()
        ACCOUNT.left -= 1
    return text


async def spend(text: str) -> str:
    await trio.lowlevel.checkpoint()
    if ACCOUNT.left > 0:
        ACCOUNT.left -= 1
    return text


SHARED = {f"{__name__}.ACCOUNT": lambda account: account.left >= 0}


async def test_a_check_then_act_is_found_though_every_output_is_right() -> None:
    await assert_isolated(spend_too_much, ["a", "b", "c"], schedules=10)
    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(spend_too_much, ["a", "b", "c"], shared=SHARED)
    text = str(caught.value)
    assert caught.value.objects == (f"{__name__}.ACCOUNT", f"{__name__}.ACCOUNT.left")
    assert "proof" not in text
    assert "  written by run 2 ('b') at spend_too_much (test_declared.py:" in text
    assert f"{__name__}.ACCOUNT is out of order after step" in text
    assert "its function returned false" in text
    assert "fix: change" in text
    again = caught.value.schedule
    with pytest.raises(ScheduleError, match="is out of order"):
        await assert_isolated(spend_too_much, ["a", "b", "c"], shared=SHARED, schedule=again)
    assert ACCOUNT.left == 2


async def test_what_stays_in_order_passes() -> None:
    await assert_isolated(spend, ["a", "b", "c"], shared=SHARED, schedules=50)


async def test_a_check_that_raises_counts_as_out_of_order() -> None:
    def check(account: Account) -> bool:
        return bool(1 / account.left)

    with pytest.raises(ScheduleError, match="its function raised ZeroDivisionError"):
        await assert_isolated(spend, ["a", "b"], shared={f"{__name__}.ACCOUNT": check})


SPENT = Counter(maximum=3)


async def try_to_spend(text: str) -> str:
    await trio.lowlevel.checkpoint()
    SPENT.try_spend(1)
    return text


async def test_a_counter_of_harness_can_be_declared_and_is_put_back() -> None:
    shared = {f"{__name__}.SPENT": lambda counter: 0 <= counter.value <= 3}
    seen = await assert_isolated(try_to_spend, ["a", "b", "c"], shared=shared, schedules=20)
    assert SPENT.value == 0
    assert seen.not_put_back == ()
