"""Compare the context variables of a task before and after something ran."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context

# A variable of some other library, which harness knows nothing about.
third_party: ContextVar[str] = ContextVar("third_party", default="unset")


@contextmanager
def unchanged_context() -> Iterator[None]:
    """Assert that the block, on whatever way it is left, puts every context variable back."""
    before = dict(copy_context())
    try:
        yield
    finally:
        assert dict(copy_context()) == before


@contextmanager
def planted(value: str) -> Iterator[None]:
    """Give the third-party variable a value while the block runs."""
    token = third_party.set(value)
    try:
        yield
    finally:
        third_party.reset(token)
