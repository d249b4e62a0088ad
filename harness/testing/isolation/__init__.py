"""Find what runs of an agent function share, name it, and prove it."""

from harness.testing.isolation._assert_isolated import Isolation, assert_isolated
from harness.testing.isolation._leakage import Leakage

__all__ = ["Isolation", "Leakage", "assert_isolated"]
