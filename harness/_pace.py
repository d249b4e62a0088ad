"""Put into words how many items are done, how fast they are, and how long the rest takes.

Plain text, for whatever shows it. Each display has another width, so the words come in forms that
get shorter and shorter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

_PACE_SECONDS = 30.0


class Pace:
    """How fast items end, over the last half minute."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()

    def per_second(self, now: float, done: int) -> float:
        """Note that ``done`` items have ended by ``now``, and return the rate."""
        marks = self._marks
        marks.append((now, done))
        # One mark from before the window stays, so that the window is full.
        while len(marks) > 2 and marks[1][0] <= now - _PACE_SECONDS:
            marks.popleft()
        since, done_then = marks[0]
        return (done - done_then) / (now - since) if now > since else 0.0


def forms(
    *,
    done: int,
    failed: int,
    in_flight: int,
    expected: str | None,
    per_second: float,
    seconds_left: float | None,
) -> list[str]:
    """Return how far the items have come: in full, and then in shorter and shorter forms.

    Args:
      done: Items that have ended.
      failed: Those of them that failed or timed out.
      in_flight: Items under way.
      expected: How many items there will be, as it is to be written; None if nobody knows.
      per_second: How many items ended per second of late.
      seconds_left: How long the rest takes; None if nobody knows.
    """
    fails, pace = f"{failed:,} failed", rate(per_second)
    left = [] if seconds_left is None else [clock(seconds_left)]
    short = f"{done:,}" if expected is None else f"{done:,}/{expected}"
    of = "" if expected is None else f" of {expected}"
    full = [f"{done:,}{of} done", fails, f"{in_flight:,} in flight", pace]
    return [
        ", ".join([*full, *(f"{one} left" for one in left)]),
        ", ".join([short, fails, f"{in_flight:,} in flight", pace, *left]),
        ", ".join([short, fails, *left]),
        short,
    ]


def first_that_fits(width: int, forms: Sequence[str]) -> str:
    """Return the first of ``forms`` that has no more than ``width`` characters, or the last."""
    return next((form for form in forms if len(form) <= width), forms[-1])


def clock(seconds: float) -> str:
    """Return a duration as people write it: ``0:07``, ``12:30``, ``3:05:00``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def rate(per_second: float) -> str:
    """Return a rate in the unit that needs no zeros in front: ``120/s``, ``2.5/s``, ``9/min``."""
    if per_second >= 10:
        return f"{per_second:,.0f}/s"
    return f"{per_second:.1f}/s" if per_second >= 0.5 else f"{per_second * 60:.0f}/min"


_UNITS = ((48 * 3600.0, 86_400.0, "days"), (5_400.0, 3600.0, "h"), (90.0, 60.0, "min"))
"""From how many seconds on a duration is told in which unit."""


def span(seconds: float) -> str:
    """Return a duration in the unit that suits it, to two digits: ``45 s``, ``12 min``, ``9.2 h``.

    See `clock` for one that is to be exact.
    """
    return spans(seconds, seconds)


def spans(low: float, high: float) -> str:
    """Return a range of durations in one unit: ``8.7 to 9.3 h``."""
    size, unit = next(((size, unit) for least, size, unit in _UNITS if high >= least), (1.0, "s"))
    first, last = _two_digits(low / size), _two_digits(high / size)
    return f"{last} {unit}" if first == last else f"{first} to {last} {unit}"


def _two_digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"
