"""Policies: frozen values that say what should happen. No clock, no `await`."""

from harness.policies._asks import asked_seconds, is_rate_limit
from harness.policies._attempt import Attempt, Hedge, ReservingLimiter, Retry
from harness.policies._join import (
    BestEffort,
    FailFast,
    FirstSuccess,
    JoinPolicy,
    Quorum,
    check_policy,
)

__all__ = [
    "Attempt",
    "BestEffort",
    "FailFast",
    "FirstSuccess",
    "Hedge",
    "JoinPolicy",
    "Quorum",
    "ReservingLimiter",
    "Retry",
    "asked_seconds",
    "check_policy",
    "is_rate_limit",
]
