"""Find what runs of an agent function share, name it, and prove it."""

from harness.testing.isolation._assert_isolated import Isolation, assert_isolated
from harness.testing.isolation._leakage import Leakage, LeakageAtOnce, LeakageThrough

__all__ = ["Isolation", "Leakage", "LeakageAtOnce", "LeakageThrough", "assert_isolated"]
