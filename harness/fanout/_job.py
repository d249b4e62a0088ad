"""One item between its start and its result."""

from __future__ import annotations

from typing import Any

from harness.fanout._tries import ONE_ATTEMPT, Tries
from harness.policies import Attempt
from harness.runs._run import Ending

Ended = tuple[Ending, Any]
"""How a try ended, and the value if that is ok, else the error."""


class Job(Tries):
    """One item on its way to its result."""

    __slots__ = (
        "attempt",
        "degraded",
        "failure",
        "index",
        "item",
        "key",
        "name",
        "problem",
        "run_id",
        "started_at",
        "started_by",
    )

    started_by: str | None
    """The id of the run whose end made room for it, if it has one; set when it is started."""

    def __init__(self, index: int, item: Any) -> None:
        # Set here as `Tries` would: there is one job per item, and another call costs time.
        self.attempts: int = 0
        self.before: int = 0
        self.failures: int = 0
        self.rate_limits: int = 0
        self.rate_limit_seconds: float = 0.0
        self.owed: bool = False
        self.index: int = index
        self.item: Any = item
        self.key: Any = index
        self.name: str = ""
        """The name of its runs; empty until its key is asked for."""
        self.attempt: Attempt = ONE_ATTEMPT
        """What happens to it."""
        self.problem: Exception | None = None
        """What the caller's function raised for it before its start, if anything."""
        self.started_at: float = 0.0
        """When its first attempt began."""
        self.run_id: str | None = None
        """The run of its latest attempt; at the end, of the one that decided."""
        self.degraded: bool = False
        """Whether the fallback gave the value."""
        self.failure: Ended | None = None
        """How the previous try failed."""
