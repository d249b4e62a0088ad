"""The value that says an item is done and has nothing to keep."""

from __future__ import annotations

import enum
from typing import Final


class Drop(enum.Enum):
    """The type of `DROP`; an enumeration, so that it stays the same object through pickle."""

    DROP = "DROP"

    def __repr__(self) -> str:
        return "DROP"


DROP: Final = Drop.DROP
"""Returned by a stage, it ends the item there: its status is ok, and `Results.values` leaves it
out."""
