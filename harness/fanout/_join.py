"""Hold a fan-out's results against its policy, and say when it is decided.

Plain counting, without a clock or an `await`. What it doesn't know is how many more items will
come; the engine tells it as soon as it does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness._words import repr_of
from harness.errors import FanOutError, QuorumError
from harness.fanout._result import Result, Results, by_index, fan_out_error
from harness.policies import BestEffort, FailFast, FirstSuccess, JoinPolicy, Quorum
from harness.runs._endings import try_note

FAILURES_IN_STREAM_ERROR = 1_000
"""Failures that a stream keeps for the error of a quorum; it is flat for a million items."""


class Join:
    """The state of one fan-out's policy."""

    def __init__(self, policy: JoinPolicy, run_path: str, *, keeps_all: bool) -> None:
        self.policy: JoinPolicy = policy
        self.run_path: str = run_path
        self.keeps_all: bool = keeps_all
        """Whether the results are kept anyway, so that remembering failures costs nothing more."""
        self.why: str | None = None
        """In words, why nothing more is needed; None until that is so."""
        self.broken: bool = False
        """Whether the policy can't be met any more."""
        self._failures: list[Result[Any]] = []
        self._failure_count = 0
        self._ok = 0
        self._ended = 0
        self._total: int | None = None
        self._extra: list[Exception] = []

    @property
    def counts_successes(self) -> bool:
        """Whether a success can decide anything; if not, it needn't be added."""
        return self._needed is not None

    @property
    def broken_by_failure(self) -> bool:
        """Whether an item failed that must not. A quorum can be missed for other reasons."""
        return self.broken and self._needed is None

    def add(self, result: Result[Any]) -> None:
        """Take one result into account."""
        self._ended += 1
        if result.status == "ok":
            self._ok += 1
        elif result.failed and self._counts(result):
            self._failure_count += 1
            if self.keeps_all or len(self._failures) < FAILURES_IN_STREAM_ERROR:
                self._failures.append(result)
            if isinstance(self.policy, (FailFast, BestEffort)):
                why = f"item {repr_of(result.key)} failed, and the policy is {repr_of(self.policy)}"
                self._decide(why, True)
        self._look_at_quorum()

    def expect(self, total: int) -> None:
        """Note how many items there are in all."""
        self._total = total
        self._look_at_quorum()

    def error(self, results: Callable[[], Results[Any]]) -> FanOutError[Exception] | None:
        """Return what the policy has to say in the end; None if it is met.

        Args:
          results: Gives all that was done; asked only if there is an error.
        """
        if self._needed is not None and self._ok < self._needed:
            plural = "success was" if self._needed == 1 else "successes were"
            of = "" if self._total is None else f" of {self._total:,} items"
            entry = QuorumError(
                f"{self._needed:,} {plural} needed{of}; {self._ended:,} ended, and "
                f"{self._ok:,} of those succeeded"
            )
            what = f"run {self.run_path!r} reached {self._ok:,} of {self._needed:,} successes"
            return fan_out_error(what, self._in_order(), results(), others=[entry])
        if not self.broken:
            return None
        count = self._failure_count
        what = f"{count:,} {'item' if count == 1 else 'items'} of run {self.run_path!r} failed"
        return fan_out_error(what, self._in_order(), results(), others=self._extra)

    def _in_order(self) -> list[Result[Any]]:
        return sorted(self._failures, key=by_index)

    @property
    def _needed(self) -> int | None:
        if isinstance(self.policy, Quorum):
            return self.policy.k
        return 1 if isinstance(self.policy, FirstSuccess) else None

    def _counts(self, result: Result[Any]) -> bool:
        if not isinstance(self.policy, BestEffort):
            return True
        if self.policy.critical is None:
            return False
        try:
            return bool(self.policy.critical(result.item))
        except Exception as error:
            # Whether it is critical can't be known, and carrying on could hide that for hours.
            try_note(error, f"raised by critical() for item {repr_of(result.key)}, which failed")
            self._extra.append(error)
            return True

    def _look_at_quorum(self) -> None:
        needed = self._needed
        if needed is None:
            return
        if self._ok >= needed:
            self._decide(f"{needed:,} {'item' if needed == 1 else 'items'} succeeded", False)
        elif self._total is not None and self._ok + self._total - self._ended < needed:
            self._decide(f"{needed:,} successes can't be reached any more", True)

    def _decide(self, why: str, broken: bool) -> None:
        if self.why is None:
            self.why = why
            self.broken = broken
