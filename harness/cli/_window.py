"""End a batch with its window: a policy that starts nothing more once that is over.

What is in flight then isn't asked to stop, as it would be by a stop of the run: it may finish.
"""

from __future__ import annotations

from typing import Any

import attrs

from harness._pace import span
from harness.policies import Decision, JoinPolicy, Judge


@attrs.define(eq=False)
class Window:
    """The time that a batch is given."""

    seconds: float
    """How long it is."""

    is_over: bool = False
    """Whether what is started now could no longer end in it."""

    @property
    def words(self) -> str:
        """Why nothing more is started."""
        return f"the window of {span(self.seconds)} is over"


@attrs.frozen
class WithinWindow:
    """Another policy, for as long as a window lasts."""

    policy: JoinPolicy
    window: Window

    def begin(self, total: int | None) -> Judge:
        """Return a judge that also stops at the end of the window."""
        return _WindowJudge(self.policy.begin(total), self.window)


class _WindowJudge(Judge):
    def __init__(self, judge: Judge, window: Window) -> None:
        self._judge = judge
        self._window = window
        self.hears_kept = judge.hears_successes and judge.hears_kept
        self.lists_failures = judge.lists_failures

    def heard(self, result: Any) -> Decision:
        decision = Decision.GO_ON
        if self._judge.hears_successes or not result.ok:
            decision = self._judge.heard(result)
        if decision is not Decision.GO_ON:
            self.why = self._judge.why
        elif self._window.is_over:
            self.why = self._window.words
            return Decision.STOP
        return decision

    def kept_failure(self, result: Any) -> bool:
        return self._judge.kept_failure(result)

    def total_known(self, total: int) -> Decision:
        return self._judge.total_known(total)

    def end(self) -> Exception | None:
        return self._judge.end()
