"""Policies: frozen values that say what should happen. No clock, no `await`."""

from harness.policies._attempt import Attempt, ReservingLimiter, check_attempt
from harness.policies._budget import Budget, budget_refusals
from harness.policies._hedge import Hedge
from harness.policies._join import (
    BestEffort,
    FailFast,
    FirstSuccess,
    JoinPolicy,
    Quorum,
    check_policy,
)
from harness.policies._priority import Priority, as_priority
from harness.policies._retry import Retry, RetryOn
from harness.policies._retry_after import is_rate_limit, retry_after_seconds

__all__ = [
    "Attempt",
    "BestEffort",
    "Budget",
    "FailFast",
    "FirstSuccess",
    "Hedge",
    "JoinPolicy",
    "Priority",
    "Quorum",
    "ReservingLimiter",
    "Retry",
    "RetryOn",
    "as_priority",
    "budget_refusals",
    "check_attempt",
    "check_policy",
    "is_rate_limit",
    "retry_after_seconds",
]
