"""Say which of the waiting items is started first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from harness._arguments import check_count


def _check_function(instance: object, attribute: object, value: Any) -> None:
    if not callable(value) or isinstance(value, type):
        raise TypeError(
            f"Priority(function) takes a function of an item that returns a number, not {value!r}; "
            "write Priority(lambda item: item.urgency)"
        )


def _check_lookahead(instance: object, attribute: object, value: Any) -> None:
    check_count(
        "Priority(lookahead=...)", value, advice="say among how many items the best is chosen"
    )


@attrs.frozen
class Priority:
    """Start the item with the largest number first, among those read ahead.

    If two numbers are equal, the earlier item is first. Nothing starves: an item is overtaken by at
    most ``lookahead`` items that came after it, however large their numbers, and is then next.
    """

    function: Callable[[Any], float] = attrs.field(validator=_check_function)
    """``function(item)`` returns the item's number; called once, when the item is read."""

    lookahead: int = attrs.field(default=100, validator=_check_lookahead)
    """How many items at most are read ahead and wait; the choice is among them."""
