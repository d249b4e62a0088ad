"""Refuse, where policies are given, what isn't one or can't be carried out there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from harness.policies._attempt import Attempt
from harness.policies._join import JoinPolicy, Quorum
from harness.policies._priority import Priority


def check_attempt(where: str, attempt: Attempt) -> None:
    """Refuse an attempt that would reserve tokens from nobody, where it is to be carried out.

    Not when it is made, because it may get its limiter later, with ``attrs.evolve``.

    Raises:
      ValueError: naming ``where``.
    """
    if attempt.tokens is not None and attempt.limiter is None:
        raise ValueError(
            f"{where} is given Attempt(tokens={attempt.tokens!r}) without a limiter, so nothing "
            "would be reserved or limited; write Attempt(limiter=limiter, tokens=...), or leave "
            "tokens= out"
        )


def check_policy(call: str, policy: object) -> None:
    """Refuse anything but a join policy.

    Raises:
      TypeError: if ``policy`` is anything else, such as a class where an instance belongs.
    """
    if isinstance(policy, type) and hasattr(policy, "begin"):
        example = "Quorum(3)" if policy is Quorum else f"{policy.__name__}()"
        raise TypeError(
            f"{call} takes a policy, not the class {policy.__name__}; write policy={example}"
        )
    if not isinstance(policy, JoinPolicy):
        raise TypeError(
            f"{call} takes FailFast(), BestEffort(), Quorum(k), FirstSuccess() or a JoinPolicy of "
            f"your own, with a method begin(total), not {policy!r}"
        )


def as_priority(call: str, given: Any) -> Priority:
    """Return the priority, given as a `Priority` or as just a function.

    Raises:
      TypeError: if it is neither.
    """
    if isinstance(given, Priority):
        return given
    if not callable(given) or isinstance(given, type):
        raise TypeError(
            f"{call} takes a function of an item that returns a number, or a Priority, not "
            f"{given!r}; write priority=lambda item: item.urgency"
        )
    return Priority(cast("Callable[[Any], float]", given))
