"""Say when a fan-out is over, and whether it succeeded.

A policy is a frozen value that any number of fan-outs share. What is counted during one fan-out is
in a `Judge`, which the policy makes when the fan-out begins. Neither has a clock or an `await`, so
a policy can be tested without running anything.

What counts as a failure everywhere: an item that failed or timed out. Cancelled and skipped items
never break a policy of harness.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import attrs

from harness._arguments import check_count, says_near_options
from harness._words import repr_of
from harness.errors import QuorumError, TooManyFailuresError

ITEMS_BEFORE_A_SHARE = 20
"""A share of failures says something only of so many items, or of all."""


class Decision(enum.Enum):
    """What a `Judge` makes of a result."""

    GO_ON = "go on"
    """The fan-out goes on as before."""

    STOP = "stop"
    """Nothing more is started, further attempts included; what is in flight ends."""

    CANCEL = "cancel"
    """Nothing more is started, and what is in flight is cancelled."""


class Judge:
    """Hears the results of one fan-out, and says when it is over; to be derived from.

    Its methods are called one at a time, in the context variables of the call of the fan-out, and
    never once `end` has been called for the last time. They are plain functions and must not block.
    An error that one of them raises cancels the fan-out, and is an entry of its `FanOutError`.
    """

    hears_successes: bool = True
    """Whether `heard` is called for items that are ok. Read once, after ``begin``; false
    makes a fan-out a little faster."""

    hears_kept: bool = True
    """Whether `heard` is also called, where successes are heard, for items whose result is read
    from a journal. If not, `kept_failure` is called for those of them that failed."""

    lists_failures: bool = True
    """Whether a `FanOutError` has an entry for each item that failed. If not, it has one only for
    the failures at which `heard` returned something else than ``GO_ON``."""

    why: str = ""
    """In words, why nothing more is needed, for skipped and cancelled items to say. Read after a
    decision other than ``GO_ON``; empty for words that name the policy and the item."""

    def heard(self, result: Any) -> Decision:
        """Take one result into account. Called as soon as an item has ended, before its reader.

        After a decision it is still called for the items that were in flight; ``STOP`` may
        become ``CANCEL``, and nothing else changes.

        Args:
          result: The `harness.Result`: its status is ok, failed, timed out or cancelled.

        Returns:
          What the fan-out has to do.
        """
        raise NotImplementedError

    def kept_failure(self, result: Any) -> bool:
        """Take into account an item that failed in an earlier session, as its journal has it.

        Whatever this returns, everything still to do runs first. Not called if the journal was
        opened with ``kept="return"``.

        Args:
          result: The `harness.Result`: its status is failed or timed out.

        Returns:
          Whether the fan-out is to end with a `FanOutError` that has it as an entry; then `end`
          must return an error.
        """
        return False

    def total_known(self, total: int) -> Decision:
        """Take into account how many items there are in all. Called at most once.

        Right after ``begin`` if the input has a length, else when it has been read to its
        end. What ends early is never read to its end.
        """
        return Decision.GO_ON

    def end(self) -> Exception | None:
        """Return the error that the fan-out is to raise, or None.

        Called when everything has ended, and after a decision, to know whether it is bad news. So
        it may be called several times, and must change nothing. Returning the own error of an item
        says that the failures are all there is to tell.
        """
        return None


@runtime_checkable
class JoinPolicy(Protocol):
    """When a fan-out is over, and whether it succeeded: anything that can begin a `Judge`."""

    def begin(self, total: int | None) -> Judge:
        """Return a new judge, for one fan-out.

        Args:
          total: How many items there are; None if the input has no length.
        """
        ...


def _check_critical(instance: object, attribute: object, value: Any) -> None:
    if value is not None and (not callable(value) or inspect.iscoroutinefunction(value)):
        raise TypeError(
            f"BestEffort(critical=...) takes a plain function of an item, not {value!r}; "
            "leave it out if no item is critical"
        )


def _check_max_failures(instance: object, attribute: object, value: Any) -> None:
    if value is None:
        return
    what = "BestEffort(max_failures=...)"
    if isinstance(value, float):
        if not 0 < value < 1:
            raise ValueError(
                f"{what} takes a share between 0 and 1 as a float, or a count as an int, not "
                f"{value!r}; write 0.1 for a tenth of the items, or 10 for ten of them"
            )
        return
    check_count(what, value, advice="a float such as 0.1 is a share of the items", least=0)


def _check_k(instance: object, attribute: object, value: Any) -> None:
    check_count("Quorum(k)", value, advice="say how many items have to succeed")


@attrs.frozen
class FailFast:
    """The first failure cancels the rest, and comes out as a `FanOutError`.

    A failure that a journal keeps from an earlier session cancels nothing: everything still to do
    runs first.
    """

    def begin(self, total: int | None) -> Judge:
        """Return a judge that cancels at a failure."""
        return _FailureJudge(self)


@says_near_options
@attrs.frozen
class BestEffort:
    """Failures are recorded alongside the successes; nothing is raised for an item."""

    critical: Callable[[Any], object] | None = attrs.field(default=None, validator=_check_critical)
    """If given, a failure of an item for which ``critical(item)`` is true acts as in `FailFast`."""

    max_failures: int | float | None = attrs.field(default=None, validator=_check_max_failures)
    """How many failures are acceptable: a count, or as a float a share of the items that ended ok,
    failed or timed out in this session. A share is judged from 20 such items on, and at the end.

    With more, nothing more is started, what is in flight ends, and `FanOutError` has the failures
    and a `TooManyFailuresError`. None: any number."""

    def begin(self, total: int | None) -> Judge:
        """Return a judge that counts failures."""
        return _FailureJudge(self) if self.max_failures is None else _CountingJudge(self)


@attrs.frozen
class Quorum:
    """``k`` successes are enough: what is in flight is then cancelled, the rest skipped.

    As soon as that can no longer be reached, a `FanOutError` is raised, with the failures and a
    `QuorumError` as its entries.
    """

    k: int = attrs.field(validator=_check_k)
    """How many items have to succeed."""

    def begin(self, total: int | None) -> Judge:
        """Return a judge that counts successes."""
        return _QuorumJudge(self.k)


@attrs.frozen
class FirstSuccess:
    """One success is enough; failures before it are ignored. A `Quorum` of one."""

    def begin(self, total: int | None) -> Judge:
        """Return a judge that waits for one success."""
        return _QuorumJudge(1)


class _FailureJudge(Judge):
    """Cancels at the first failure that counts."""

    hears_successes = False
    hears_kept = False
    lists_failures = False

    def __init__(self, policy: FailFast | BestEffort) -> None:
        self._policy = policy
        self._error: Exception | None = None

    def heard(self, result: Any) -> Decision:
        if not result.failed or not self._counts(result.item):
            return Decision.GO_ON
        self._error = self._error or result.error
        self.why = f"item {repr_of(result.key)} failed, and the policy is {repr_of(self._policy)}"
        return Decision.CANCEL

    def kept_failure(self, result: Any) -> bool:
        if counts := self._counts(result.item):
            self._error = self._error or result.error
        return counts

    def end(self) -> Exception | None:
        return self._error

    def _counts(self, item: Any) -> bool:
        policy = self._policy
        if isinstance(policy, FailFast):
            return True
        return policy.critical is not None and bool(policy.critical(item))


class _CountingJudge(_FailureJudge):
    """Stops at too many failures, too."""

    lists_failures = True

    def __init__(self, policy: BestEffort) -> None:
        super().__init__(policy)
        assert policy.max_failures is not None
        self._allowed: int | float = policy.max_failures
        self.hears_successes = isinstance(self._allowed, float)
        self._failed = 0
        self._judged = 0

    def heard(self, result: Any) -> Decision:
        if result.failed or result.ok:
            self._judged += 1
            self._failed += result.failed
        if super().heard(result) is Decision.CANCEL:
            return Decision.CANCEL
        share = isinstance(self._allowed, float)
        if (share and self._judged < ITEMS_BEFORE_A_SHARE) or not self._too_many():
            return Decision.GO_ON
        self.why = self._in_words()
        return Decision.STOP

    def end(self) -> Exception | None:
        if self._error is None and self._too_many():
            return TooManyFailuresError(self._in_words())
        return self._error

    def _too_many(self) -> bool:
        most = self._allowed
        return self._failed > (most * self._judged if isinstance(most, float) else most)

    def _in_words(self) -> str:
        of = f" of {self._judged:,}" if isinstance(self._allowed, float) else ""
        plural = "item" if self._failed == 1 and not of else "items"
        return f"{self._failed:,}{of} {plural} failed, with max_failures={self._allowed!r}"


_GO_ON = Decision.GO_ON
"""Looked up once: that takes a while in an enumeration, and is asked for each item."""


class _QuorumJudge(Judge):
    """Cancels when enough items are ok, or when that can't be reached."""

    def __init__(self, needed: int) -> None:
        self._needed = needed
        self._ok = 0
        self._ended = 0
        self._total: int | None = None

    def heard(self, result: Any) -> Decision:
        self._ended += 1
        self._ok += result.status == "ok"
        return self._decision()

    def total_known(self, total: int) -> Decision:
        self._total = total
        return self._decision()

    def end(self) -> Exception | None:
        needed = self._needed
        if self._ok >= needed:
            return None
        plural = "success was" if needed == 1 else "successes were"
        of = "" if self._total is None else f" of {self._total:,} items"
        return QuorumError(
            f"{needed:,} {plural} needed{of}; {self._ended:,} ended, and "
            f"{self._ok:,} of those succeeded"
        )

    def _decision(self) -> Decision:
        needed = self._needed
        if self._ok >= needed:
            self.why = f"{needed:,} {'item' if needed == 1 else 'items'} succeeded"
        elif self._total is not None and self._ok + self._total - self._ended < needed:
            self.why = f"{needed:,} successes can't be reached any more"
        else:
            return _GO_ON
        return Decision.CANCEL
