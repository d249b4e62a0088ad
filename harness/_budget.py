"""State how much a run and all below it may spend."""

from __future__ import annotations

from typing import Any

import attrs

from harness._arguments import check_count, check_dollars, says_near_options

_ADVICE = "None is for no limit, 0 spends nothing"


def _check_tokens(instance: object, attribute: object, value: Any) -> None:
    if value is not None:
        check_count("Budget(tokens=...)", value, least=0, advice=_ADVICE)


def _check_cost_usd(instance: object, attribute: object, value: Any) -> None:
    if value is not None:
        check_dollars("Budget(cost_usd=...)", value, advice=_ADVICE)


@says_near_options
@attrs.frozen(kw_only=True)
class Budget:
    """What a run and all runs below it may spend together: ``open_run("x", budget=Budget(...))``.

    Give ``tokens``, ``cost_usd`` or both. Calls reserve from it beforehand and settle afterwards,
    so concurrent callers can't overrun it together; what doesn't fit is refused at once with
    `harness.errors.BudgetExceeded`. The budgets of nested runs all apply.
    """

    tokens: int | None = attrs.field(default=None, validator=_check_tokens)
    """Tokens, input and output together; None for no limit."""

    cost_usd: float | None = attrs.field(default=None, validator=_check_cost_usd)
    """Dollars; None for no limit."""

    def __attrs_post_init__(self) -> None:
        if self.tokens is None and self.cost_usd is None:
            raise ValueError(
                "Budget takes tokens=, cost_usd= or both, and was given neither; write "
                "Budget(tokens=100_000) or Budget(cost_usd=5.0)"
            )
