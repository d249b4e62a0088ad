"""Find what runs of an agent function share, name it, and prove it."""

from typing import TYPE_CHECKING

from harness._lazy import lazy

# Explorations use parts of this folder, and `assert_isolated` uses parts of theirs.
if TYPE_CHECKING:
    from harness.testing.isolation._assert_isolated import Isolation, assert_isolated
else:
    __getattr__, __dir__ = lazy()

__all__ = ["Isolation", "assert_isolated"]
