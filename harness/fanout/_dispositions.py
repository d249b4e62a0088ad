"""Decide what becomes of an item that a journal may know: a plain function of what is known.

`max_attempts` is for items that never get to an end: one that kills its process, or hangs until
somebody does. When a process dies, every item in flight is a suspect, and only one of them may be
to blame. So a suspect gets its last attempt alone. Then whatever dies with it is its own doing.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from harness.fanout._journal import Entry

Disposition: TypeAlias = Literal["kept", "run", "alone", "set aside"]
"""What becomes of an item: taken from the journal, run, run with nothing else in flight, or ended
as failed without being run."""


def disposition(entry: Entry, *, max_attempts: int | None) -> Disposition:
    """Return what becomes of an item.

    Args:
      entry: What the journal knows of it.
      max_attempts: After how many attempts it is set aside; None: never.
    """
    if entry.state in ("done", "failed"):
        return "kept"
    if max_attempts is None:
        return "run"
    suspect = entry.state == "in_flight"
    if entry.attempts < max_attempts:
        # Not for the first attempt, of which nothing bad is known.
        return "alone" if suspect and entry.attempts + 1 >= max_attempts else "run"
    # At the limit, maybe by what others did to it: every crash so far had more in flight.
    return "alone" if suspect and not entry.alone else "set aside"


def set_aside_words(entry: Entry, *, max_attempts: int) -> str:
    """Return why an item is set aside, and what can be done about it."""
    times = "once" if entry.attempts == 1 else f"{entry.attempts} times"
    if entry.state == "in_flight":
        why = (
            f"it was begun {times} and has no recorded ending, the last time with nothing else in "
            "flight: it ends its process, or hangs until somebody does"
        )
    else:
        why = f"it was tried {times} without success"
    return (
        f"item {entry.key!r} is set aside: {why}, and max_attempts is {max_attempts}; "
        "find out what is wrong with it, then open the journal with a larger max_attempts, or let "
        "the item begin anew with: harness journal retry"
    )
