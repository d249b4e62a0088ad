"""Find what runs of an agent function share, name it, and prove it."""

from harness.testing.isolation._assert_isolated import Isolation, assert_isolated

__all__ = ["Isolation", "assert_isolated"]
