"""What the command line of pytest asks of schedules, and what tests tell it that fails nothing.

``pytest --schedules=N``, ``--schedule=STRING`` and the like are for every test of a session, so
they are kept in one place of the process, written once when the session starts. What a test tells
is taken out when it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import attrs

from harness._arguments import check_count


@attrs.frozen(kw_only=True)
class Wishes:
    """What was asked for; None if nothing was."""

    schedules: int | None = None
    """How many schedules each test tries, overriding what the test says."""

    search: str | None = None
    """How `explore_schedules` searches, overriding what the test says."""

    schedule: str | None = None
    """The one schedule to replay, instead of a search."""

    debugger: bool = False
    """Whether a debugger opens at a failure, so that what stops there is worth keeping."""


PER_RUN = "isolated per run, not per call"
DRAWN = "random numbers drawn from a shared generator"
EXPLORED = "explored"
IN_EVERY_ORDER = "explored in every order"
CANCELLED = "cancelled"
NOT_EXPLORED = "not explored"

_asked = Wishes()  # harness: shared (one command line per process, read before the first test)


# harness: shared (taken out by pytest after each test)
_told: deque[tuple[str, str]] = deque(maxlen=100)


def tell(about: str, words: str = "") -> None:
    """Tell the session something that fails no test; outside pytest nobody asks for it."""
    _told.append((about, words))


def told() -> list[tuple[str, str]]:
    """Take out what was told, each with what it is about."""
    words = list(_told)
    _told.clear()
    return words


def asked() -> Wishes:
    """Return what the session was asked for."""
    return _asked


# harness: shared (an entry goes with its error)
_stops: WeakKeyDictionary[BaseException, Callable[[], Any]] = WeakKeyDictionary()


def keep_stop(error: BaseException, stop: Callable[[], Any]) -> None:
    """Keep what replays a failure up to the switch that matters, if a debugger was asked for.

    Args:
      error: The error that the failure is reported with.
      stop: Returns a context manager: in its block the replay stands still.
    """
    if _asked.debugger:
        _stops[error] = stop


def kept_stop(error: BaseException) -> Callable[[], Any] | None:
    """Return what was kept for an error."""
    return _stops.get(error)


def ask(
    *,
    schedules: int | None = None,
    search: str | None = None,
    schedule: str | None = None,
    debugger: bool = False,
) -> None:
    """Ask for it from now on.

    Raises:
      ValueError: if ``schedules`` is below 1.
    """
    global _asked
    if schedules is not None:
        check_count("--schedules", schedules, advice="it is how many each test tries")
    _asked = Wishes(schedules=schedules, search=search, schedule=schedule, debugger=debugger)
