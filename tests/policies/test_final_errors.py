"""An error that no retry can help is final, whatever `Retry` is told to try again."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import (
    BudgetExceeded,
    EffectUnknownError,
    FanOutError,
    HarnessError,
    QuorumError,
    QuotaExhaustedError,
    RateLimitedError,
)
from harness.fanout import Results
from harness.policies import RetryOn


@pytest.mark.parametrize("on", [Exception, QuotaExhaustedError, lambda error: True])
def test_a_quota_that_is_used_up_is_never_retried(on: RetryOn) -> None:
    """It is full again tomorrow; waiting for that would hold up a whole batch until then."""
    assert not harness.Retry(3, on=on).applies_to(QuotaExhaustedError("50 a day"))


@pytest.mark.parametrize("error", [BudgetExceeded("spent"), EffectUnknownError("perhaps")])
def test_what_somebody_has_to_decide_is_never_retried(error: HarnessError) -> None:
    assert not harness.Retry(3, on=type(error)).applies_to(error)


def test_a_group_is_final_if_all_that_is_in_it_is() -> None:
    """An item that makes several calls at once may have several refused."""
    refused = BudgetExceeded("spent")
    unmet = QuorumError("0 of 2")
    retry = harness.Retry(3)
    assert not retry.applies_to(ExceptionGroup("two", [refused, ExceptionGroup("one", [refused])]))
    assert not retry.applies_to(FanOutError("two", [refused, unmet], Results([])))
    assert retry.applies_to(ExceptionGroup("two", [refused, ValueError()]))
    assert retry.applies_to(ExceptionGroup("unmet", [unmet]))


def test_other_errors_of_limits_are_retried() -> None:
    retry = harness.Retry(3, on=(HarnessError, OSError))
    assert retry.applies_to(RateLimitedError("slow down"))
    assert not retry.applies_to(ValueError())


async def test_an_item_whose_quota_is_used_up_fails_at_once(autojump_clock: MockClock) -> None:
    calls = 0

    async def work(item: int) -> None:
        nonlocal calls
        calls += 1
        raise QuotaExhaustedError("50 a day", resets_after=80_000.0)

    began = trio.current_time()
    results = await harness.fan_out(
        work,
        range(3),
        each=harness.Attempt(retry=harness.Retry(5), fallback=lambda item, error: str(error)),
        policy=harness.BestEffort(),
    )
    assert results.values() == ["50 a day"] * 3
    assert calls == 3
    assert trio.current_time() == began


class StatusError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status_code = status


@pytest.mark.parametrize(
    ("status", "retried"),
    [
        *((status, False) for status in (400, 401, 403, 404, 413, 422)),
        *((status, True) for status in (408, 409, 429, 500, 503, 529)),
    ],
)
def test_what_only_another_request_can_change_is_not_retried_unless_told(
    status: int, retried: bool
) -> None:
    """Three attempts with a wrong key are three refusals, and a provider may lock the account."""
    error = StatusError(status)
    assert harness.Retry().applies_to(error) is retried
    assert harness.Retry().applies_to(ExceptionGroup("both", [error, error])) is retried
    assert harness.Retry().applies_to(ExceptionGroup("both", [error, ValueError()]))
    assert "on=may_succeed)" in repr(harness.Retry())
    for told in (StatusError, Exception, lambda error: True):
        assert harness.Retry(on=told).applies_to(error)
