"""Round what headers announce so that relying on it is safe.

Times are rounded up and amounts down, with room for the last bits of a float:
20 seconds must not come out as 21, nor 5 requests as 4.
"""

from __future__ import annotations

import math

_UNIT_TOLERANCE = 1e-6
_SECONDS_TOLERANCE = 1e-9


def whole_units(remaining: float) -> int:
    """Return what is left in whole units."""
    return math.floor(remaining + _UNIT_TOLERANCE)


def whole_seconds(seconds: float) -> int:
    """Return a time in whole seconds."""
    return math.ceil(seconds - _SECONDS_TOLERANCE)


def whole_milliseconds(seconds: float) -> int:
    """Return a time in whole milliseconds."""
    return math.ceil((seconds - _SECONDS_TOLERANCE) * 1000)
