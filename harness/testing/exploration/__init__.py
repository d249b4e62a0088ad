"""Run an async test under many schedules, and report the one that breaks it."""

from harness.testing.exploration._explore import (
    explore_arrivals,
    explore_cancellations,
    explore_if_possible,
    explore_schedules,
    exploring_with,
)

__all__ = [
    "explore_arrivals",
    "explore_cancellations",
    "explore_if_possible",
    "explore_schedules",
    "exploring_with",
]
