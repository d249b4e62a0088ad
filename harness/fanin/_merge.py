"""Merge results that say the same, and keep where each came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, Literal, TypeVar

import attrs

from harness._content import content_hash
from harness.fanin._groups import grouped, in_input_order
from harness.fanin._similar import Similar
from harness.fanout import Result

T = TypeVar("T")


@attrs.frozen
class Merged(Generic[T]):
    """One value, and all the results that gave it."""

    value: T
    """The value of the first source."""

    sources: tuple[Result[T], ...]
    """The results with this value, in input order; at least one."""


def merge(
    results: Iterable[Result[T]],
    *,
    dedupe: Literal["content"] | Callable[[T], Any] | Similar = "content",
) -> list[Merged[T]]:
    """Return each value once, with the results that gave it, in input order.

    The answer is the same in whatever order the results arrived or are given. Items without a value
    are left out; `coverage` reports them.

    Args:
      results: The results of a fan-out.
      dedupe: What makes two values the same. ``"content"``: everything in them; see `content_hash`.
        A function: what it returns for a value, such as ``lambda finding: finding.url``. `Similar`:
        that their embeddings are close.

    Raises:
      TypeError: if ``dedupe`` is none of these, if a value has no content to compare, if a function
        returns something unhashable, or if an embedding isn't a vector.
      ValueError: if there isn't one embedding of the same length for each value.
    """
    ordered = [one for one in in_input_order("merge()", results) if one.ok and not one.dropped]
    if isinstance(dedupe, Similar):
        # Equal values need no embedding; and text with nothing that the model knows has none.
        distinct = list(grouped("dedupe=", ordered, _content_or_itself).values())
        joined = dedupe.groups([same[0].value for same in distinct])
        groups = [[one for i in positions for one in distinct[i]] for positions in joined]
    elif dedupe == "content":
        groups = list(grouped("dedupe=", ordered, _content).values())
    elif callable(dedupe) and not isinstance(dedupe, type):
        by = dedupe
        groups = list(grouped("merge(dedupe=...)", ordered, lambda one: by(one.value)).values())
    else:
        raise TypeError(
            'merge(dedupe=...) takes "content", a function of a value, or Similar(embed, '
            f"threshold), not {dedupe!r}"
        )
    merged = []
    for group in groups:
        sources = in_input_order("merge()", group)
        merged.append(Merged(sources[0].value, tuple(sources)))
    return merged


def _content(result: Result[Any]) -> str:
    try:
        return content_hash(result.value)
    except TypeError as error:
        error.add_note(f"this is the value of item {result.key!r}")
        raise


def _content_or_itself(result: Result[Any]) -> Any:
    try:
        return content_hash(result.value)
    except TypeError:
        return id(result)
