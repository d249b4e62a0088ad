"""Short names for runs that no other process gives out.

An id is a random prefix, drawn once per process, and a count: ``k3v9q2xw-17``. The counts of
one process grow with time (as text they don't sort: 9 stands after 10); ids of two processes don't
meet (40 random bits).
"""

from __future__ import annotations

import base64
import itertools
import os


def _draw_prefix() -> str:
    return base64.b32encode(os.urandom(5)).decode().lower() + "-"


prefix = _draw_prefix()
numbers = itertools.count(1)
"""An id is ``prefix + str(next(numbers))``, put together where it is needed: a call costs as much
again. To be read through the module, since a forked process has another prefix."""


_origin: str | None = None


def origin() -> str:
    """Return what keys are made of that the whole world must tell apart; drawn at random.

    An id is short enough to be read out, and so may meet another some day.
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
