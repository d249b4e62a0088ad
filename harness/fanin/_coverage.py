"""Say how much of what was asked for has a value, and why the rest has none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from harness._root_errors import roots_in_words
from harness.fanin._groups import in_input_order
from harness.fanout import Result

MISSING_IN_WORDS = 10
"""How many of the missing the text names; `Coverage.missing` has them all."""


@attrs.frozen
class Coverage:
    """How complete results are. Reads well as text: ``print(coverage(results))``."""

    total: int
    """Items that have a result."""

    ok: int
    """Items that have a value, even from the fallback."""

    missing: tuple[tuple[Any, str], ...]
    """The key of each item without a value, and why: its status and error, in input order."""

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing

    def __str__(self) -> str:
        text = f"{self.ok:,} of {self.total:,} ok"
        if not self.missing:
            return text
        named = [f"{key!r} {reason}" for key, reason in self.missing[:MISSING_IN_WORDS]]
        more = len(self.missing) - len(named)
        return f"{text}; missing: {'; '.join(named)}{f'; and {more:,} more' if more else ''}"


def coverage(results: Iterable[Result[Any]]) -> Coverage:
    """Return how many items have a value, and the key and the reason for each of the others.

    Args:
      results: The results of a fan-out, in any order.

    Raises:
      TypeError: if anything in it isn't a result.
    """
    ordered = in_input_order("coverage()", results)
    missing = tuple((one.key, _reason(one)) for one in ordered if not one.ok)
    return Coverage(len(ordered), len(ordered) - len(missing), missing)


def _reason(result: Result[Any]) -> str:
    assert result.error is not None
    return f"{result.status.replace('_', ' ')}: {roots_in_words(result.error)}"
