"""Go beyond one process: keep one limit, and other state, in several, or run a batch in them.

`FleetLimiter` is a `harness.limits.Limiter` whose state is in a file that the processes of a
machine share, or on a Redis server for those of several machines. `FleetStore` keeps budgets,
counters, effects and what was loaded on such a server. `RayCluster` runs the items of a fan-out in
the processes of a Ray cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness._lazy import lazy

if TYPE_CHECKING:
    from harness.cluster._fleet_budget import FleetBudget
    from harness.cluster._fleet_limiter import FleetLimiter
    from harness.cluster._fleet_store import FleetCache, FleetCounter, FleetEffects, FleetStore
    from harness.cluster._ray_cluster import RayCluster
else:
    __getattr__, __dir__ = lazy()

__all__ = [
    "FleetBudget",
    "FleetCache",
    "FleetCounter",
    "FleetEffects",
    "FleetLimiter",
    "FleetStore",
    "RayCluster",
]
