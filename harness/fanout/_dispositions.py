"""Decide what becomes of an item that a journal may know: a plain function of what is known.

`max_attempts` is for items that never reach an end: one that kills its process, or hangs until
somebody does. When a process dies, every item in flight is a suspect, though perhaps only one is to
blame. So a suspect makes its last attempt alone: if the process dies again, it is to blame.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from harness.fanout._journal import Entry

Disposition: TypeAlias = Literal["kept", "run", "alone", "set aside"]
"""What becomes of an item: taken from the journal, run, run with nothing else in flight, or ended
as failed without being run."""

KEPT = ("done", "failed")
"""The states of items whose results are taken from the journal."""


def disposition(entry: Entry, *, max_attempts: int | None) -> Disposition:
    """Return what becomes of an item.

    Args:
      entry: What the journal knows of it.
      max_attempts: How many attempts before it is set aside; None: it never is.
    """
    if entry.state in KEPT:
        return "kept"
    if max_attempts is None:
        return "run"
    suspect = entry.state == "in_flight"
    if entry.attempts < max_attempts:
        # Not for a first attempt, since nothing bad is known yet.
        return "alone" if suspect and entry.attempts + 1 >= max_attempts else "run"
    # At the limit, perhaps because of others: every crash so far had more in flight.
    return "alone" if suspect and not entry.alone else "set aside"


def set_aside_words(entry: Entry, *, max_attempts: int) -> str:
    """Return why an item is set aside, and what to do about it."""
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
        "the item start from scratch with: harness journal retry"
    )
