"""Say when a fan-out is over, and whether it succeeded.

Policies are plain values without an `await`: they can be compared, printed, and shared by any
number of fan-outs. Everywhere, a failure is an item that failed or timed out. Cancelled and skipped
items never break a policy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import attrs

from harness._arguments import check_count


def _check_critical(instance: object, attribute: object, value: Any) -> None:
    if value is not None and (not callable(value) or inspect.iscoroutinefunction(value)):
        raise TypeError(
            f"BestEffort(critical=...) takes a plain function of an item, not {value!r}; "
            "leave it out if no item is critical"
        )


def _check_k(instance: object, attribute: object, value: Any) -> None:
    check_count("Quorum(k)", value, advice="say how many items have to succeed")


@attrs.frozen
class FailFast:
    """The first failure cancels the rest, and comes out as a `FanOutError`."""


@attrs.frozen
class BestEffort:
    """Failures are recorded alongside the successes; nothing is raised for an item."""

    critical: Callable[[Any], object] | None = attrs.field(default=None, validator=_check_critical)
    """If given, a failure of an item for which ``critical(item)`` is true acts as in `FailFast`."""


@attrs.frozen
class Quorum:
    """``k`` successes are enough: what is in flight is then cancelled, the rest skipped.

    As soon as that can no longer be reached, a `FanOutError` is raised, with the failures and a
    `QuorumError` as its entries.
    """

    k: int = attrs.field(validator=_check_k)
    """How many items have to succeed."""


@attrs.frozen
class FirstSuccess:
    """One success is enough; failures before it are ignored. A `Quorum` of one."""


JoinPolicy = FailFast | BestEffort | Quorum | FirstSuccess
"""When a fan-out is over."""
