"""Take items through stages, or along the track that suits each.

A `Pipeline` is a fan-out with gates between its stages, a `Router` one that chooses the function.
Both take the same policies and give the same results as `harness.fan_out`.
"""

from harness.fanout._drop import DROP, Drop
from harness.flow._pipeline import Pipeline, PipelineStream
from harness.flow._places import failed_at
from harness.flow._speedup import speedup_ceiling
from harness.flow._stage import Batch, Stage, stage
from harness.flow._statistics import PipelineStatistics, StageStatistics

__all__ = [
    "DROP",
    "Batch",
    "Drop",
    "Pipeline",
    "PipelineStatistics",
    "PipelineStream",
    "Stage",
    "StageStatistics",
    "failed_at",
    "speedup_ceiling",
    "stage",
]
