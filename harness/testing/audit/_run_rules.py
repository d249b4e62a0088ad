"""The rules on what a run leaves behind; apart, so that reading code needs nothing that runs it."""

from __future__ import annotations

from harness.testing.audit._finding import KEEP_IT_PER_CALL, Rule

LEFT_BEHIND = Rule(
    name="left-behind",
    title="what a run has changed in objects that outlive it",
    why="the next run finds what this one left, and runs side by side find each other's",
    fix=f"{KEEP_IT_PER_CALL}; what is shared on purpose belongs into harness.shared",
)

RUN_FAILED = Rule(
    name="run-failed",
    title="a run of the audited function that raised",
    why="what it would have left behind had it gone on can't be known",
    fix="give inputs that the function can work with, and a model that answers",
)
