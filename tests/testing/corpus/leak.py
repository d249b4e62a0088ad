"""What a program of the corpus says of itself: whose report it is of, and what it shares."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import attrs

F = TypeVar("F", bound=Callable[..., Any])

INPUTS = ("ada", "bob", "cyd")
"""What the programs that take an input are called with."""


@attrs.frozen
class Leak:
    """A program with a fault that somebody reported."""

    wrong: Callable[..., Any]
    report: str
    """The repository and the number of the issue or pull request."""

    names: tuple[str, ...]
    """The objects that a report may name; it must name one of them, and no others."""

    seen: str
    """What the audit should call it, if it is a program of tasks that reading is enough for."""

    @property
    def right(self) -> Callable[..., Any]:
        """The same program, corrected as the report says."""
        module = sys.modules[self.wrong.__module__]
        return getattr(module, f"{self.wrong.__name__}_right")  # type: ignore[no-any-return]

    @property
    def takes_input(self) -> bool:
        """Whether it is called once for each input, and not a test of its own."""
        return bool(self.wrong.__code__.co_argcount)


def leaks_of() -> tuple[list[Leak], Callable[..., Callable[[F], F]]]:
    """Return a list, and the decorator that adds a program to it."""
    leaks: list[Leak] = []

    def leak(report: str, *names: str, seen: str = "") -> Callable[[F], F]:
        def add(wrong: F) -> F:
            leaks.append(Leak(wrong, report, names, seen))
            return wrong

        return add

    return leaks, leak


def deviations(schedule: str) -> int:
    """Return how often a schedule switches away from a task that could go on, or cancels one."""
    return len(re.findall(r"\d+x\d+|[cwtufd]\d+@\d+", schedule))
