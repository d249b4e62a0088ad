"""Say what a group of errors comes down to."""

from __future__ import annotations

from harness.errors import BudgetExceeded, QuorumError


def root_errors(error: BaseException) -> list[BaseException]:
    """Return what a group of errors holds, however deep; for any other error, the error itself.

    That too few items succeeded is left out: the other errors say why.
    """
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    roots = [root for inner in error.exceptions for root in root_errors(inner)]
    return [root for root in roots if not isinstance(root, QuorumError)]


def budget_refusals(error: BaseException | None) -> list[BudgetExceeded]:
    """Return the budget refusals that an error is, or that a group of errors consists of.

    None if there is any other error in it, because then something else was wrong, too.
    """
    roots = [] if error is None else root_errors(error)
    refusals = [root for root in roots if isinstance(root, BudgetExceeded)]
    return refusals if len(refusals) == len(roots) else []
