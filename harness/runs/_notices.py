"""Define what harness itself tells observers about runs: plain frozen records.

Each is the payload of an `Event`, handed to the ``notice`` method of an observer that has one. What
a program emits goes to all observers and subscribers; these go only to who asks for them, and
while nobody does, none is made. Higher floors add records of their own.

Written out by hand: each class that attrs or `typing.NamedTuple` makes shows in ``import harness``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn


class Notice:
    """What all of them have in common: they are made of values, and don't change."""

    __slots__: tuple[str, ...] = ()

    def __init__(self, *values: Any) -> None:
        for name, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__}.{name} can't be changed: it tells what was")

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({values})"


class RunBegan(Notice):
    """A run has begun."""

    __slots__ = ("by", "inline", "item", "tags")

    by: str | None
    """The id of the run whose end, or failure, let it begin; None for its parent's own code."""

    inline: bool
    """Whether it is in its parent's own task, which therefore waits for it."""

    item: int | None
    """Which item of its parent it is an attempt at."""

    tags: Mapping[str, Any]
    """The tags it was opened with."""


class RunOver(Notice):
    """A run has ended."""

    __slots__ = ("status", "error")

    status: str
    """The status it ended with."""

    error: BaseException | None
    """What ended it, unless that was its return or its cancel."""


class WaitBegan(Notice):
    """Code of the run waits for something."""

    __slots__ = ("wait", "reason", "on", "held_by")

    wait: int
    """Tells it from all other waits of this process."""

    reason: str
    """``"limiter"``, ``"queue"``, ``"retry"``, ``"model"``, ``"tool"`` or ``"cleanup"``; more may
    be added."""

    on: str
    """What it waits for, by name."""

    held_by: tuple[str, ...]
    """The ids of the runs that have what it waits for, as far as they are known."""


class WaitOver(Notice):
    """That wait is over, however it ended."""

    __slots__ = ("wait", "reason", "by", "facts")

    wait: int
    """Which one."""

    reason: str
    """As when it began."""

    by: str | None
    """The id of the run whose code ended it; None for the clock, or an answer from outside."""

    facts: Mapping[str, Any]
    """More about it, for instance what a limiter has granted: strings and numbers."""
