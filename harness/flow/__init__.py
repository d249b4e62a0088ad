"""Take items through stages, or along the track that suits each.

A `Pipeline` is a fan-out with gates between its stages, a `Router` is one that chooses the
function. Both take the same policies and give the same results as `harness.fan_out`.
"""

from harness.fanout import DROP, Drop
from harness.flow._pipeline import Pipeline, PipelineStream
from harness.flow._places import failed_at
from harness.flow._router import Classifier, Router, RouterStream
from harness.flow._speedup import speedup
from harness.flow._stage import AnyStage, Batch, EachItem, Stage, StageFunction, stage
from harness.flow._statistics import (
    PipelineStatistics,
    RouterStatistics,
    StageStatistics,
    TrackStatistics,
)
from harness.flow._track import Track, TrackFunction, track

__all__ = [
    "DROP",
    "AnyStage",
    "Batch",
    "Classifier",
    "Drop",
    "EachItem",
    "Pipeline",
    "PipelineStatistics",
    "PipelineStream",
    "Router",
    "RouterStatistics",
    "RouterStream",
    "Stage",
    "StageFunction",
    "StageStatistics",
    "Track",
    "TrackFunction",
    "TrackStatistics",
    "failed_at",
    "speedup",
    "stage",
    "track",
]
