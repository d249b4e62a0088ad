"""One item of a journaled fan-out, with the attempts at it that are on disk.

A call of the function uses up a recorded attempt, whatever comes of it. The exception is a call
that only met a rate limit: the attempt goes on with the next call, since a rate limit costs none.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import attrs

from harness._approvals import ParkedRuns
from harness.fanout._job import Job
from harness.fanout._journal import AttemptStatus, Ending, Entry, LastStep, ModelUsage
from harness.fanout._result import ResultStatus


@attrs.define(eq=False)
class Encoded:
    """A value in the form the journal keeps."""

    text: str

    value: Any
    """The value that comes back from the text."""


@attrs.define(eq=False)
class Recorded:
    """A recorded attempt; also the meter of its run."""

    number: int
    """Its number in the journal."""

    called: bool = False
    """Whether the function was called for it."""

    answered: bool = False

    failed: bool = False
    """Whether the function raised."""

    tokens: int = 0

    cost_usd: float = 0.0

    run_id: str | None = None

    usage: ModelUsage | None = None
    """What the models that were called used, by kind."""

    def spent(self, tokens: int, cost_usd: float) -> None:
        """Note what was used in the attempt's run or below it."""
        self.tokens += tokens
        self.cost_usd += cost_usd

    def called_model(self, model: str, tokens: tuple[int, int, int, int]) -> None:
        """Note what a call of a model used."""
        self.used(ModelUsage({model: None}, tokens))

    def used(self, usage: ModelUsage | None) -> None:
        """Note what models used by kind, besides what is noted."""
        if self.usage is None or usage is None:
            self.usage = self.usage or usage
        else:
            self.usage = self.usage + usage

    def ending(self, status: AttemptStatus, **more: Any) -> Ending:
        """Return how this attempt ended, with what it used."""
        return Ending(
            status=status,
            tokens=self.tokens,
            cost_usd=self.cost_usd,
            run_id=self.run_id,
            usage=self.usage,
            **more,
        )


class Verdict(NamedTuple):
    """What an item's end comes to in the journal."""

    done: bool
    """Whether the item is done: no later session runs it again."""

    decided: Recorded | None
    """The attempt that decided; None if the function was never called."""

    text: str | None
    """The value in the form the journal keeps; for the status ok."""


class JournaledJob(Job):
    """An item on its way, with what the journal knows of it."""

    __slots__ = (
        "alone",
        "attempts_before",
        "by_fallback",
        "entry",
        "is_begun",
        "keeper",
        "open",
        "parked",
        "verdict",
    )

    def __init__(self, index: int, item: Any, key: Any, entry: Entry) -> None:
        super().__init__(index, item)
        self.key = key
        self.name: str = str(key)
        self.entry = entry
        self.open = []
        self.is_begun = self.alone = False
        self.attempts_before = 0
        self.by_fallback = None
        self.parked = None
        self.verdict = None
        self.keeper: Any = None
        """What keeps things with it; None before its function is called."""

    entry: Entry
    """The item in the journal."""

    is_begun: bool
    """Whether its first attempt of this session is on disk."""

    alone: bool
    """Whether nothing else may be in flight with it."""

    by_fallback: Recorded | None
    """The meter of the fallback, which is no attempt; None if it wasn't called."""

    open: list[Recorded]
    """The attempts with no ending, oldest first."""

    parked: ParkedRuns | None
    """What is known of its agents' runs, in case they wait; None before its function is called."""

    attempts_before: int
    """Attempts in earlier processes."""

    verdict: Verdict | None
    """What its end comes to in the journal; None before that."""

    @property
    def further(self) -> int:
        """Attempts beyond the first at the steps that it has, over all processes."""
        return 0

    @property
    def at(self) -> str | None:
        """The name of the step that it is at; None if it has none."""
        return None

    def set_out(self, records: Any, attempt: Recorded) -> None:
        """Note what records its steps, the `Records` of its fan-out, if it has any."""

    def last_step(self, status: ResultStatus, value: Any) -> LastStep | None:
        """Return the step it ends with; None if it has none."""
        return None

    def spare(self) -> Recorded | None:
        """Return a recorded attempt that no call has used; None if there is none."""
        for one in self.open:
            if not one.called:
                return one
        return None

    def counted(self) -> int:
        """Return how many attempts will count once the try that just failed is recorded.

        Of the attempts side by side in a try, one counts.
        """
        return self.entry.attempts - max(0, len(self.open) - 1)

    def take_open(self, status: ResultStatus) -> tuple[Recorded | None, list[Recorded]]:
        """Take out the attempts with no ending: the one that decided, and those beside it.

        Args:
          status: How their try ended.
        """
        if len(self.open) == 1 and self.open[0].called:  # The usual case.
            [only], self.open = self.open, []
            return only, []
        called = [one for one in self.open if one.called]
        decided: Recorded | None = None
        if status == "ok":
            decided = next((one for one in called if one.answered), None)
        if decided is None and called:
            decided = next((one for one in called if one.failed), called[0])
        beside = [one for one in self.open if one is not decided]
        self.open = []
        return decided, beside
