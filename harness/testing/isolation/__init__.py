"""Find what runs of an agent function share, name it, and prove it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.testing.isolation._assert_isolated import Isolation, assert_isolated

__all__ = ["Isolation", "assert_isolated"]


# Explorations use parts of this folder, and `assert_isolated` uses parts of theirs.
def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("harness.testing.isolation._assert_isolated"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
