"""Bound what a run, and all below it, may spend: tokens, dollars or both.

`open_run` is given a `Budget`. Whoever spends reserves before each call and settles after it, as
all models of `harness.models` do.
"""

from harness._budget import Budget
from harness.budgets._spending import (
    BudgetDimension,
    BudgetLeft,
    BudgetStatistics,
    Spending,
    budget_left,
    budget_statistics,
    charge_budget,
    reserve_budget,
)

__all__ = [
    "Budget",
    "BudgetDimension",
    "BudgetLeft",
    "BudgetStatistics",
    "Spending",
    "budget_left",
    "budget_statistics",
    "charge_budget",
    "reserve_budget",
]
