"""One call's share of the budgets of its run: held before the call, counted after it.

What is held is the input and, if the model was given a ``max_output_tokens``, that: calls side by
side then can't overrun a budget. Without it the output is what the model's calls used on average,
and nothing until one has ended.
"""

from __future__ import annotations

import math
from types import TracebackType

from harness.errors import (
    ModelConnectionError,
    ModelError,
    ModelReplyError,
    ModelUnreachableError,
)
from harness.models._messages import Usage
from harness.models._price import Price
from harness.runs._accounts import NO_ACCOUNTS, current_accounts
from harness.shared import reserve_budget

_CALLS_REMEMBERED = 20


class Spend:
    """What one call holds of the budgets here, to be entered around it.

    Args:
      expected: What it will probably use; ``None`` if nobody counts.
      price: What that costs; ``None`` for nothing.
    """

    __slots__ = ("_open", "_price", "_spending")

    def __init__(self, expected: Usage | None, price: Price | None) -> None:
        self._price = price
        self._spending = None
        self._open = False
        if expected is not None:
            self._spending = reserve_budget(
                tokens=expected.total, cost_usd=self._cost_usd(expected)
            )

    def __enter__(self) -> Spend:
        if self._spending is not None:
            self._spending.__enter__()
            self._open = True
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._spending is not None:
            if self._open and error is not None and not _may_be_billed(error):
                self._spending.refund()
            self._spending.__exit__(error_type, error, traceback)

    def settle(self, usage: Usage) -> None:
        """Count what was used."""
        if self._spending is not None:
            self._open = False
            self._spending.settle(tokens=usage.total, cost_usd=self._cost_usd(usage))

    def _cost_usd(self, usage: Usage) -> float:
        return 0.0 if self._price is None else self._price.cost_usd(usage)


class AverageOutput:
    """What a model's calls gave lately: exact for the first few, then weighted to the newest."""

    __slots__ = ("_calls", "_mean")

    def __init__(self) -> None:
        self._calls = 0
        self._mean = 0.0

    @property
    def output_tokens(self) -> int:
        """The average; 0 as long as nothing is known."""
        return math.ceil(self._mean)

    def learn(self, output_tokens: int) -> None:
        """Take over what one call gave."""
        self._calls = min(self._calls + 1, _CALLS_REMEMBERED)
        self._mean += (output_tokens - self._mean) / self._calls


def somebody_counts() -> bool:
    """Return whether there is a budget here, or anybody else who hears what is spent."""
    return current_accounts()[0] is not NO_ACCOUNTS


def dollars_count() -> bool:
    """Return whether there is a budget in dollars here."""
    return any(budget.cost is not None for budget in current_accounts()[0].budgets)


def _may_be_billed(error: BaseException) -> bool:
    """Return whether a call that ended in ``error`` may have used anything."""
    if isinstance(error, ModelReplyError):
        return True
    if isinstance(error, ModelConnectionError):
        return not isinstance(error, ModelUnreachableError)
    return not isinstance(error, ModelError)
