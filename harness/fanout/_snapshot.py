"""What a fan-out is busy with at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import attrs


@attrs.frozen(kw_only=True)
class FanOutStatistics:
    """How many items are where. A snapshot, cheap to take."""

    in_flight: int
    """Items that have been started and have not ended."""

    unread: int
    """Results waiting for their reader."""

    waiting: int = 0
    """Items read ahead and waiting for their turn; 0 without ``priority=``."""

    waiting_by_priority: Mapping[float, int] = MappingProxyType({})
    """How many of those wait by priority, the largest first."""
