"""Policies: frozen values that say what should happen. No clock, no ``await``."""

from harness.policies._attempt import Attempt, ReservingLimiter
from harness.policies._hedge import Hedge
from harness.policies._join import (
    BestEffort,
    Decision,
    FailFast,
    FirstSuccess,
    JoinPolicy,
    Judge,
    Quorum,
)
from harness.policies._priority import Priority
from harness.policies._retry import Retry, RetryOn
from harness.policies._retry_after import is_rate_limit, is_too_large, retry_after_seconds

__all__ = [
    "Attempt",
    "BestEffort",
    "Decision",
    "FailFast",
    "FirstSuccess",
    "Hedge",
    "JoinPolicy",
    "Judge",
    "Priority",
    "Quorum",
    "ReservingLimiter",
    "Retry",
    "RetryOn",
    "is_rate_limit",
    "is_too_large",
    "retry_after_seconds",
]
