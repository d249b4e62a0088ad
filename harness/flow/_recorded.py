"""Record the steps of a pipeline or a router that runs with a journal. Else this isn't loaded.

How that is done is in `harness.fanout._journal_steps`; here is what the steps are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.fanout._journal_steps import StepJob
from harness.fanout._steps import Steps
from harness.flow._gate import Walker
from harness.flow._places import what_classifies, what_escalates, what_stage, what_track
from harness.flow._stage import AnyStage, distinct
from harness.flow._track import Track


class RecordedJob(StepJob, Walker):
    """An item that is itself on its way, and whose steps are recorded."""


class SpreadJob(RecordedJob):
    """An item of a pipeline in which a stage yields several outputs."""

    several = True


def steps_of_pipeline(pipeline: Any, stages: Sequence[AnyStage]) -> Steps:
    """Return the steps of a pipeline: its stages."""
    functions: dict[str, tuple[str | None, Callable[..., Any]]] = {}
    before: str | None = None
    for name, given in zip(distinct([one.name for one in stages]), stages, strict=True):
        functions[what_stage(name)] = before, given.function
        before = what_stage(name)
    several = any(one.gives_several for one in stages)
    new_job = SpreadJob if several else RecordedJob
    return Steps("harness.flow.Pipeline", pipeline, functions, before, new_job, several)


def steps_of_router(
    router: Any, classify: Callable[..., Any], tracks: Mapping[str, Track[Any, Any]]
) -> Steps:
    """Return the steps of a router: the choice, the tracks, and the tracks after others."""
    choice = what_classifies(classify)
    functions: dict[str, tuple[str | None, Callable[..., Any]]] = {choice: (None, classify)}
    for name, given in tracks.items():
        functions[what_track(name)] = choice, given.function
    for name, given in tracks.items():
        if given.escalate is not None:
            after = what_escalates(name, given.escalate)
            functions[after] = what_track(name), tracks[given.escalate].function
    return Steps("harness.flow.Router", router, functions, None, RecordedJob, several=False)
