"""Bound what a run, and all below it, may spend: tokens, dollars or both.

Give `open_run` a `Budget`. Code that spends reserves before each call and settles after it, as all
models in `harness.models` do.
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
