"""Pass what pytest's command line asks for on to the code that explores schedules.

``pytest --schedules=N`` and ``--schedule=STRING`` apply to every test of a session, so they are
kept in one place in the process, written once when the session starts.
"""

from __future__ import annotations

import attrs

from harness._arguments import check_count


@attrs.frozen(kw_only=True)
class Wishes:
    """What was asked for; None if nothing was."""

    schedules: int | None = None
    """How many schedules each test tries, overriding what the test says."""

    schedule: str | None = None
    """The one schedule to replay, instead of a search."""


_asked = Wishes()  # harness: shared (one command line per process, read before the first test)


def asked() -> Wishes:
    """Return what the session was asked for."""
    return _asked


def ask(*, schedules: int | None = None, schedule: str | None = None) -> None:
    """Ask for it from now on.

    Raises:
      ValueError: if ``schedules`` is below 1.
    """
    global _asked
    if schedules is not None:
        check_count("--schedules", schedules, advice="it is how many each test tries")
    _asked = Wishes(schedules=schedules, schedule=schedule)
