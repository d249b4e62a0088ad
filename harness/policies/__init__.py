"""Policies: frozen values that say what should happen. No clock, no `await`."""

from harness.policies._asks import asked_seconds, is_rate_limit
from harness.policies._attempt import Attempt, ReservingLimiter
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

__all__ = [
    "Attempt",
    "BestEffort",
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
    "asked_seconds",
    "check_policy",
    "is_rate_limit",
]
