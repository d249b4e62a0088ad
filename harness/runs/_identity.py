"""Give runs short names that no other process gives out.

An id is a random prefix, drawn once per process, and a count: ``k3v9q2xw-17``. The counts of one
process grow with time (they don't sort as text: 9 comes after 10); ids of two processes don't
collide (40 random bits).
"""

from __future__ import annotations

import base64
import itertools
import os


def _draw_prefix() -> str:
    return base64.b32encode(os.urandom(5)).decode().lower() + "-"


prefix = _draw_prefix()
numbers = itertools.count(1)
"""An id is ``prefix + str(next(numbers))``, put together where needed, because a call would double
the cost. Read it through the module: a forked process has another prefix."""


_origin: str | None = None


def origin() -> str:
    """Return a random origin for keys that must be unique worldwide.

    An id is short enough to be read aloud, and so may collide with another some day.
    """
    global _origin
    if _origin is None:
        _origin = os.urandom(16).hex()
    return _origin


def _draw_again_after_fork() -> None:
    # A forked child would go on counting where its parent does, with the same prefix.
    global prefix, numbers, _origin
    _origin = None
    prefix = _draw_prefix()
    numbers = itertools.count(1)


if hasattr(os, "register_at_fork"):  # Not on Windows, which has no fork.
    os.register_at_fork(after_in_child=_draw_again_after_fork)
