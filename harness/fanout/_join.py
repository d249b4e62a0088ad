"""Tell the judge of a fan-out its results, and say what its answers mean for the fan-out.

The judge is somebody else's code, the caller's or that of `harness.policies`: it may raise, or
return nonsense. Either ends the fan-out, with an entry in its error, and no result is lost.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from harness._words import error_in_words, repr_of
from harness.errors import FanOutError, QuorumError
from harness.fanout._result import Result, Results, by_index, fan_out_error
from harness.policies import Decision, JoinPolicy, Judge
from harness.runs._endings import try_note

FAILURES_IN_STREAM_ERROR = 1_000
"""Failures a stream keeps for its error, so that memory stays flat for a million items."""


_GO_ON = Decision.GO_ON
"""Looked up once: an enumeration takes a while, and this is needed for each item."""


class Join:
    """One fan-out's side of its policy.

    Call all methods except `error` in the context of the fan-out's call.
    """

    def __init__(self, policy: JoinPolicy, run_path: str, *, keeps_all: bool) -> None:
        self.policy: JoinPolicy = policy
        self.run_path: str = run_path
        self.keeps_all: bool = keeps_all
        """Whether the results are kept anyway, so that remembering failures costs nothing."""
        self.decision: Decision = Decision.GO_ON
        self.why: str | None = None
        """Why nothing more is needed, in words; None until then."""
        self.broken: bool = False
        """Whether the policy ended the fan-out with an error to raise."""
        self.counts_successes: bool = False
        """Whether a success can decide anything; if not, it needn't be added. Set by `begin`."""
        self.broken_by_failure: bool = False
        """Whether a failed item caused that. A quorum can be missed for other reasons."""
        self._judge: Judge | None = None
        self._failures: list[Result[Any]] = []
        self._failure_count = 0
        self._kept_count = 0
        """How many of those are kept from earlier sessions."""
        self._extra: list[Exception] = []
        """What the policy itself raised."""

    def begin(self, total: int | None) -> None:
        """Let the policy begin; nothing has been started.

        Args:
          total: How many items there are; None if that isn't known yet.
        """
        try:
            judge = self.policy.begin(total)
            if not isinstance(judge, Judge):
                raise TypeError(_not_returned("begin()", "a Judge", judge))
            self.counts_successes = bool(judge.hears_successes)
        except Exception as error:
            self._raised(error, f"raised by begin() of the policy {repr_of(self.policy)}")
            return
        self._judge = judge
        if total is not None:
            self.expect(total)

    def add(self, result: Result[Any]) -> None:
        """Take one result into account. Successes may be left out unless they count."""
        if result.status == "skipped":
            return
        judge = self._judge
        asked = _GO_ON
        if judge is not None and (self.counts_successes or result.status != "ok"):
            try:
                asked = judge.heard(result)
                if asked is _GO_ON and result.status == "ok":
                    return
                if type(asked) is not Decision:
                    raise TypeError(_not_returned("heard()", "a Decision", asked))
            except Exception as error:
                asked = Decision.CANCEL
                what = f"for item {repr_of(result.key)}, which ended as {result.status}"
                self._raised(error, f"raised by the policy {repr_of(self.policy)} {what}")
        if result.failed and (judge is None or judge.lists_failures or asked is not _GO_ON):
            self._list(result)
        if asked is not _GO_ON:
            self._decide(asked, result)

    def _list(self, failure: Result[Any]) -> None:
        """Make a failure an entry of the error at the end."""
        self._failure_count += 1
        if self.keeps_all or len(self._failures) < FAILURES_IN_STREAM_ERROR:
            self._failures.append(failure)

    def add_kept(self, result: Result[Any], *, raises: bool) -> None:
        """Take into account a result that a journal has.

        Args:
          result: The result.
          raises: Whether its failure may be raised, once everything else has run.
        """
        judge = self._judge
        if judge is None:
            return
        if judge.hears_kept and self.counts_successes:
            self.add(result)
        elif result.failed and raises:
            try:
                if judge.kept_failure(result):
                    self._kept_count += 1
                    self._list(result)
            except Exception as error:
                what = f"for item {repr_of(result.key)}, kept as {result.status}"
                self._raised(error, f"raised by the policy {repr_of(self.policy)} {what}")

    def expect(self, total: int) -> None:
        """Note how many items there are in all."""
        if self._judge is None:
            return
        try:
            asked = self._judge.total_known(total)
            if type(asked) is not Decision:
                raise TypeError(_not_returned("total_known()", "a Decision", asked))
        except Exception as error:
            self._raised(error, f"raised by total_known() of the policy {repr_of(self.policy)}")
        else:
            if asked is not _GO_ON:
                self._decide(asked, None)

    def error(self, results: Callable[[], Results[Any]]) -> FanOutError[Exception] | None:
        """Return the policy's error at the end; None if the policy is met.

        Args:
          results: Returns all that was done; called only if there is an error.
        """
        verdict = self._verdict()
        failures = sorted(self._failures, key=by_index)
        others = list(self._extra)
        if verdict is not None and not any(one.error is verdict for one in failures):
            others.append(verdict)
        if verdict is None and not others:
            return None
        count, path = self._failure_count, repr_of(self.run_path)
        items = f"{count:,} {'item' if count == 1 else 'items'}"
        if not others:
            what = f"{items} of run {path} failed"
            if self._kept_count:
                which = "" if self._kept_count == count else f" {self._kept_count:,} of them"
                what += (
                    f",{which} in an earlier session or one beside this (open the journal with "
                    "retry_failed=True to try them again, or with kept='return' to have them among "
                    "the results)"
                )
            return fan_out_error(what, failures, results())
        what = f"run {path}: {error_in_words(others[0])}"
        if count:
            what += f"; {items} failed"
        return fan_out_error(what, failures, results(), others=others)

    def _verdict(self) -> Exception | None:
        """Ask the judge what to raise."""
        if self._judge is None:
            return None
        try:
            verdict: Any = self._judge.end()
            if verdict is not None and not isinstance(verdict, Exception):
                raise TypeError(_not_returned("end()", "an Exception or None", verdict))
        except Exception as error:
            self._raised(error, f"raised by end() of the policy {repr_of(self.policy)}")
            return None
        return verdict

    def _raised(self, error: Exception, note: str) -> None:
        """Note an error in the policy itself. It isn't asked again.

        Carrying on without a judge could hide for hours that nobody checks the results.
        """
        try_note(error, note)
        self._extra.append(error)
        self._judge = None
        self._decide(Decision.CANCEL, None)

    def _decide(self, asked: Decision, result: Result[Any] | None) -> None:
        if self.decision is Decision.CANCEL or self.decision is asked:
            return
        self.decision = asked
        judge = self._judge
        if judge is None:
            why = f"its policy raised {error_in_words(self._extra[0])}"
        elif not (why := judge.why):
            at = "" if result is None else f" at item {repr_of(result.key)}"
            why = f"its policy {repr_of(self.policy)} decided so{at}"
        if self.why is None:
            self.why = why
        verdict = self._verdict()
        self.broken = verdict is not None or bool(self._extra)
        self.broken_by_failure = (
            self.broken
            and result is not None
            and result.failed
            and not isinstance(verdict, QuorumError)
        )


def _not_returned(method: str, wanted: str, got: object) -> str:
    """Return the words for a policy's method that returned the wrong thing."""
    if inspect.iscoroutine(got):
        got.close()
        return f"{method} of a policy must be a plain function, but returned a coroutine; write def"
    return f"{method} of a policy must return {wanted}, but returned {repr_of(got)}"
