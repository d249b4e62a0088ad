"""Test with repeatable faults, other orders of arrival and far more load."""

from harness.testing.chaos._chaos import Chaos, ChaosStatistics
from harness.testing.chaos._combinations import all_failure_combinations
from harness.testing.chaos._consistent import assert_consistent
from harness.testing.chaos._recording import Arrivals, Recording
from harness.testing.chaos._stress import StressReport, assert_stable_under_load

__all__ = [
    "Arrivals",
    "Chaos",
    "ChaosStatistics",
    "Recording",
    "StressReport",
    "all_failure_combinations",
    "assert_consistent",
    "assert_stable_under_load",
]
