"""What the command line of pytest asks of schedules, for the code that explores them.

``pytest --schedules=N`` and ``--schedule=STRING`` speak to every test of a session, so they stand
in one place of the process, written once when the session starts.
"""

from __future__ import annotations

import attrs

from harness._arguments import check_count


@attrs.frozen(kw_only=True)
class Wishes:
    """What was asked; None where nothing was."""

    schedules: int | None = None
    """How many schedules each test tries, in the place of what the test says."""

    schedule: str | None = None
    """The one schedule to replay, in the place of a search."""


_asked = Wishes()  # harness: shared (one command line per process, read before the first test)


def asked() -> Wishes:
    """Return what the session was asked."""
    return _asked


def ask(*, schedules: int | None = None, schedule: str | None = None) -> None:
    """Ask it, from now on.

    Raises:
      ValueError: if ``schedules`` is below 1.
    """
    global _asked
    if schedules is not None:
        check_count("--schedules", schedules, advice="it is how many each test tries")
    _asked = Wishes(schedules=schedules, schedule=schedule)
