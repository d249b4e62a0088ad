"""Hold one call's share of its run's budgets before the call, and count its use after it.

What is held is the input plus, if the model has one, its ``max_output_tokens``: concurrent calls
then can't overrun a budget. Without it, the output is what the model's calls used on average. Until
a call has ended, that is a guess: a generous one, or what is left if that is less. A call with no
room because of such guesses waits for them in `harness.models._guesses`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import attrs

from harness.budgets import Spending, budget_left, reserve_budget
from harness.errors import (
    BudgetExceeded,
    ModelConnectionError,
    ModelError,
    ModelReplyError,
    ModelUnreachableError,
)
from harness.models._messages import Usage
from harness.models._price import Price
from harness.runs._accounts import NO_ACCOUNTS, current_accounts

UNKNOWN_OUTPUT_TOKENS = 1_024
"""The output guessed for a model that nothing is known about yet; a limiter guesses the same.
"""

_CALLS_REMEMBERED = 20


@attrs.define(eq=False, repr=False)
class PastUse:
    """What a model's calls used lately: exact for the first few, then weighted to the newest."""

    _calls: int = 0
    _output: float = 0.0
    _input_beyond: float = 0.0

    @property
    def is_known(self) -> bool:
        """Whether any call has ended."""
        return self._calls > 0

    def expected(self, input_tokens: int, output_tokens: int | None = None) -> Usage:
        """Return what a call will probably use.

        Args:
          input_tokens: Its input, as estimated from the size of the text.
          output_tokens: Its output, if known.
        """
        if output_tokens is None:
            output_tokens = math.ceil(self._output) if self._calls else UNKNOWN_OUTPUT_TOKENS
        return Usage(max(0, math.ceil(input_tokens + self._input_beyond)), output_tokens)

    def learn(self, input_tokens: int, usage: Usage) -> None:
        """Learn what one call used, given the input estimated from its size."""
        self._calls = min(self._calls + 1, _CALLS_REMEMBERED)
        self._output += (usage.output_tokens - self._output) / self._calls
        beyond = usage.input_tokens - input_tokens
        self._input_beyond += (beyond - self._input_beyond) / self._calls


TellModel: TypeAlias = Callable[[str, tuple[int, int, int, int]], None]
"""How a meter of use is told which model used what, if it has a method ``called_model``: its name,
and the tokens of the input, of the output, and how many of the input's came from the provider's
cache and went into it. It was told of them by ``spent`` before, and mustn't raise."""


@attrs.define(eq=False, repr=False)
class Spend:
    """What one call holds of the budgets here, from `take` to the end of its block.

    Args:
      model: The name of the model.
      expected: What it will probably use; ``None`` if nobody counts.
      price: What that costs; ``None`` for nothing.
      past: What the model's calls used, if nothing is known yet: the output is then a guess, which
        takes no more than is left.
    """

    _model: str
    _expected: Usage | None
    _price: Price | None
    _past: PastUse | None = attrs.field(default=None, alias="past", kw_only=True)
    _spending: Spending | None = attrs.field(default=None, init=False)
    _told: tuple[TellModel, ...] = attrs.field(default=(), init=False)
    _open: bool = attrs.field(default=False, init=False)

    @property
    def is_guess(self) -> bool:
        """Whether it holds more than it will probably use."""
        return self._past is not None

    async def take(self) -> None:
        """Hold it, or raise `harness.errors.BudgetExceeded`.

        Checkpoint: if other processes share a budget here.

        Cancellation: nothing is held.
        """
        if self._expected is None:
            return
        accounts = current_accounts()[0]
        if not accounts.shared:
            self._spending = self._reservation(self._expected).__enter__()
        else:
            try:
                self._spending = await self._reservation(self._expected).__aenter__()
            except BudgetExceeded:
                if self._past is None:
                    raise
                # What others have left is known only now; a guess takes no more than that.
                self._spending = await self._reservation(self._expected).__aenter__()
        meters = accounts.meters
        told = (getattr(meter, "called_model", None) for meter in meters)
        self._told = tuple(one for one in told if one is not None)
        self._open = True

    def __enter__(self) -> Spend:
        return self

    def __exit__(self, error_type: object, error: BaseException | None, traceback: object) -> None:
        if self._spending is not None:
            if self._open and error is not None and not _may_be_billed(error):
                self._spending.refund()
            elif self._open and self._past is not None and self._expected is not None:
                # A call that broke off isn't billed for a guess.
                output_tokens = None if self._past.is_known else 0
                self.settle(self._past.expected(self._expected.input_tokens, output_tokens))
            self._spending.__exit__(error_type, error, traceback)

    def settle(self, usage: Usage) -> None:
        """Count what was used."""
        if self._spending is not None:
            self._open = False
            self._spending.settle(tokens=usage.total, cost_usd=self._cost_usd(usage))
            for called_model in self._told:
                called_model(
                    self._model,
                    (
                        usage.input_tokens,
                        usage.output_tokens,
                        usage.cached_input_tokens,
                        usage.cache_write_input_tokens,
                    ),
                )

    def _reservation(self, expected: Usage) -> Spending:
        if self._past is not None:
            expected = self._that_is_left(expected)
        return reserve_budget(tokens=expected.total, cost_usd=self._cost_usd(expected))

    def _cost_usd(self, usage: Usage) -> float:
        return 0.0 if self._price is None else self._price.cost_usd(usage)

    def _that_is_left(self, expected: Usage) -> Usage:
        left = budget_left()
        output_tokens = expected.output_tokens
        if left.tokens is not None:
            output_tokens = min(output_tokens, left.tokens - expected.input_tokens)
        price_usd = self._cost_usd(Usage(0, 1))
        if left.cost_usd is not None and price_usd:
            for_output_usd = left.cost_usd - self._cost_usd(Usage(expected.input_tokens))
            output_tokens = min(output_tokens, math.floor(for_output_usd / price_usd))
        return Usage(expected.input_tokens, max(0, output_tokens))


def somebody_counts() -> bool:
    """Return whether there is a budget here, or anything else that counts what is spent."""
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
