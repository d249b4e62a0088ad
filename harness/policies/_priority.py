"""Which of the items that wait is started first, and which may not run side by side."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from typing import Any

import attrs

from harness._arguments import check_count, says_near_options


def _check_function(instance: object, attribute: object, value: Any) -> None:
    if value is not None and (not callable(value) or isinstance(value, type)):
        raise TypeError(
            f"Priority(function) takes a function of an item that returns a number, not {value!r}; "
            "write Priority(lambda item: item.urgency)"
        )


def _check_lookahead(instance: object, attribute: object, value: Any) -> None:
    check_count(
        "Priority(lookahead=...)", value, advice="say among how many items the best is chosen"
    )


def _check_serial_by(instance: object, attribute: object, value: Any) -> None:
    if value is not None and (not callable(value) or inspect.iscoroutinefunction(value)):
        raise TypeError(
            "Priority(serial_by=...) takes a plain function of an item that returns what may be "
            f"worked on once at a time, not {value!r}; write "
            "Priority(serial_by=lambda item: item.customer)"
        )


@says_near_options
@attrs.frozen
class Priority:
    """Start the item with the largest number first, among those read ahead.

    Of two equal numbers the earlier item is first. Nothing starves: an item is overtaken by at
    most ``lookahead`` items that came after it, however large their numbers, and is then the next.
    With ``serial_by`` that counts from when nothing of its key is in flight or before it.
    """

    function: Callable[[Any], float] | None = attrs.field(default=None, validator=_check_function)
    """``function(item)`` returns the item's number; called once, when the item is read. None, with
    ``serial_by`` only: all are equal."""

    lookahead: int = attrs.field(default=100, validator=_check_lookahead)
    """How many items at most are read ahead and wait: the choice is among them."""

    serial_by: Callable[[Any], Hashable] | None = attrs.field(
        default=None, kw_only=True, validator=_check_serial_by
    )
    """``serial_by(item)`` returns a key, such as a customer's name. Items of one key run one after
    the other, in input order whatever their numbers; retries and waits between attempts belong to
    an item's turn. Items of other keys overtake those that wait for theirs, as far as they were
    read ahead. Called once, when the item is read. None: any may run side by side."""

    def __attrs_post_init__(self) -> None:
        if self.function is None and self.serial_by is None:
            raise TypeError(
                "Priority() takes a function of an item that returns a number, or serial_by=; "
                "write Priority(lambda item: item.urgency)"
            )
