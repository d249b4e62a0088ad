"""Say what a group of errors comes down to."""

from __future__ import annotations

from collections import Counter

from harness._words import WORDS_AT_MOST, error_in_words
from harness.errors import BudgetExceeded, QuorumError

ROOT_WORDS_AT_LEAST = 60
"""How many characters each error of a large group gets."""


def root_errors(error: BaseException) -> list[BaseException]:
    """Return what a group of errors holds, however deep; for any other error, the error itself.

    That too few items succeeded is left out: the other errors say why.
    """
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    roots = [root for inner in error.exceptions for root in root_errors(inner)]
    return [root for root in roots if not isinstance(root, QuorumError)]


def roots_in_words(error: BaseException, *, at_most: int = WORDS_AT_MOST) -> str:
    """Return an error in words; of a group, each error in it, however deep, and equal ones once.

    Args:
      error: The error.
      at_most: How many characters are wanted. Many errors get some more, so that each is named.
    """
    roots = root_errors(error)
    if not isinstance(error, BaseExceptionGroup) or not roots:
        return error_in_words(error, at_most=at_most)
    each = max(at_most // len(roots), ROOT_WORDS_AT_LEAST)
    counts = Counter(error_in_words(root, at_most=each) for root in roots)
    held = [f"{root} ({times} times)" if times > 1 else root for root, times in counts.items()]
    return f"{error_in_words(error, at_most=at_most // 2)}: {'; '.join(held)}"


def budget_refusals(error: BaseException | None) -> list[BudgetExceeded]:
    """Return the budget refusals that an error is, or that a group of errors consists of.

    None if there is any other error in it, because then something else was wrong, too.
    """
    roots = [] if error is None else root_errors(error)
    refusals = [root for root in roots if isinstance(root, BudgetExceeded)]
    return refusals if len(refusals) == len(roots) else []
