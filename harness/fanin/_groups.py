"""Put results in input order, and group those that belong together.

Everything that is done with results after a fan-out shares this. It makes the answer independent of
the order in which they arrived, and so of the order in which they are given here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from harness.fanout import Result

T = TypeVar("T")


def in_input_order(call: str, results: Iterable[Result[T]]) -> list[Result[T]]:
    """Return the results as a list in input order.

    Results of several fan-outs can share an index. Those are ordered by the text of their keys or,
    if that is the same too, as given.

    Raises:
      TypeError: if anything in it isn't a result.
    """
    try:
        given = list(results)
    except TypeError:
        raise TypeError(
            f"{call} takes the results of a fan-out, not {results!r}; give it the Results, or an "
            "iterable of Result"
        ) from None
    for one in given:
        if not isinstance(one, Result):
            raise TypeError(
                f"{call} takes results, not values such as {one!r}; give it the Results that "
                "fan_out() returned, instead of their values()"
            )
    return sorted(given, key=lambda one: (one.index, str(one.key)))


def grouped(
    call: str, results: Iterable[Result[T]], key: Callable[[Result[T]], Any]
) -> dict[Hashable, list[Result[T]]]:
    """Return results by key, in the order in which keys first appear.

    Raises:
      TypeError: if a key can't be hashed.
    """
    groups: dict[Hashable, list[Result[T]]] = {}
    for one in results:
        name = key(one)
        try:
            groups.setdefault(name, []).append(one)
        except TypeError:
            raise TypeError(
                f"{call} is a function that must return something hashable, such as text or a "
                f"tuple, but returned {name!r} for item {one.key!r}"
            ) from None
    return groups
