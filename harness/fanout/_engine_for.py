"""Choose the engine of a fan-out.

Without a priority none of what is for priorities is loaded: most programs have none, and it would
be felt in ``import harness``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from harness.fanout._engine import Engine
from harness.policies import Priority

if TYPE_CHECKING:
    from harness.fanout._by_priority import PriorityEngine


def engine_for(priority: Priority | None, *given: Any, **options: Any) -> Engine:
    """Return the engine, with a look-ahead if items have priorities; see `Engine` for the rest."""
    if priority is None:
        return Engine(*given, **options)
    found: type[PriorityEngine] = import_module("harness.fanout._by_priority").PriorityEngine
    return found(*given, **options, priority=priority)
