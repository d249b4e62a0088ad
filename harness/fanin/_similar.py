"""Find values that say nearly the same, by the angle between their embeddings.

Two values belong together if their cosine similarity reaches the threshold, and so do two that
are joined by a chain of such pairs: the groups are the connected components of the graph in which
every such pair is an edge. No other such grouping is independent of the order in which values come.
Its price is the chain: the ends of a long one may have little in common. If groups swallow what
should stay apart, raise the threshold.

Every pair is compared, in plain Python: a few thousand values take seconds. For more, give a key.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import attrs

ROUNDING = 1e-9
"""Rounding can put the similarity of equal vectors this far below 1."""


def _check_embed(instance: object, attribute: object, value: Any) -> None:
    if not callable(value):
        raise TypeError(
            f"Similar(embed) takes a function of a list of values that returns a vector for each, "
            f"not {value!r}; with model2vec write Similar(model.encode, threshold=0.9)"
        )


def _check_threshold(instance: object, attribute: object, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"Similar(threshold=...) takes a number, not {value!r}; 0.9 is usual")
    if not 0 < value <= 1:
        raise ValueError(
            f"Similar(threshold=...) takes a cosine similarity above 0 and up to 1, not {value!r}; "
            "0.9 is usual, and 1 joins only what points the same way"
        )


@attrs.frozen
class Similar:
    """Count values as the same if their embeddings point nearly the same way.

    Any embedding will do. A static model needs no graphics card, no server and less than a second:
    ``pip install 'trio-harness[similar]'``, then ``Similar(StaticModel.from_pretrained(...).encode,
    0.9)`` with ``model2vec.StaticModel``.
    """

    embed: Callable[[Any], Any] = attrs.field(validator=_check_embed)
    """A plain function, called once with the list of all values, which returns a vector for each:
    a list of lists of numbers, or a two-dimensional array of numpy. With ``batch=False``, a
    function of one value that returns its vector."""

    threshold: float = attrs.field(default=0.9, validator=_check_threshold)
    """The cosine similarity from which two values count as the same: 1 for the same direction, 0
    for nothing in common."""

    batch: bool = attrs.field(default=True, kw_only=True)
    """Whether ``embed`` takes the list of all values, rather than one value at a time."""

    def groups(self, values: Sequence[Any]) -> list[list[int]]:
        """Return groups of positions of values that belong together; all is sorted.

        Raises:
          TypeError: if ``embed`` returns anything but vectors.
          ValueError: if it returns a different number of vectors, or vectors that can't be
            compared.
        """
        directions = [_Direction(vector) for vector in self._vectors(values)]
        parents = list(range(len(directions)))
        for i, mine in enumerate(directions):
            for j in range(i):
                root, other = _root(parents, i), _root(parents, j)
                # Whether two values already in one group are similar changes nothing.
                if root != other and mine.is_near(directions[j], self.threshold - ROUNDING):
                    parents[max(root, other)] = min(root, other)
        groups: dict[int, list[int]] = {}
        for i in range(len(directions)):
            groups.setdefault(_root(parents, i), []).append(i)
        return list(groups.values())

    def _vectors(self, values: Sequence[Any]) -> list[list[float]]:
        """Return the embeddings as lists of numbers, all of the same length."""
        if not values:
            return []
        given = self.embed(list(values)) if self.batch else [self.embed(value) for value in values]
        if hasattr(given, "__await__"):
            getattr(given, "close", lambda: None)()
            raise TypeError(
                "Similar(embed) takes a plain function, and this one is async; compute embeddings "
                "in the fan-out, alongside the values, and give a function that looks them up"
            )
        rows = _as_list(given)
        if rows is None or (rows and all(_is_number(row) for row in rows)):
            raise TypeError(
                f"embed() was called with a list of {len(values):,} values and must return a "
                f"vector for each, not {_shape(given)}; if it takes one value at a time, write "
                "Similar(embed, threshold, batch=False)"
            )
        if len(rows) != len(values):
            raise ValueError(
                f"embed() was called with {len(values):,} values and returned {len(rows):,} "
                "vectors; it must return one for each, in order"
            )
        vectors = [_as_vector(row) for row in rows]
        lengths = {len(vector) for vector in vectors}
        if len(lengths) > 1:
            raise ValueError(
                f"embed() returned vectors of different lengths, {min(lengths):,} and "
                f"{max(lengths):,} among them; vectors of one model have one length"
            )
        return vectors


def _as_list(given: Any) -> list[Any] | None:
    """Return a sequence or an array as a list; None if it is neither."""
    if hasattr(given, "tolist"):
        given = given.tolist()  # An array gives plain numbers this way, and all at once.
    if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__"):
        return None
    return list(given)


def _as_vector(row: Any) -> list[float]:
    numbers = _as_list(row)
    if not numbers or not all(_is_number(number) for number in numbers):
        raise TypeError(
            f"embed() must return a vector of numbers for each value, but returned {_shape(row)} "
            "for one"
        )
    vector = [float(number) for number in numbers]
    if not all(map(math.isfinite, vector)):
        raise ValueError("embed() returned a vector with nan or infinity in it")
    return vector


def _is_number(value: Any) -> bool:
    # All but one of numpy's number types aren't subclasses of int or float, but convert like them.
    return hasattr(value, "__float__") and not hasattr(value, "__len__")


def _shape(given: Any) -> str:
    entries = _as_list(given)
    if entries is None:
        return f"a {type(given).__name__}"
    inner = type(entries[0]).__name__ if entries else "nothing"
    return f"a {type(given).__name__} of {len(entries):,} × {inner}"


class _Direction:
    """A vector scaled to length 1; the zero vector, which points nowhere, stays as it is.

    It is in two parts, because the cosine of two is at most what their heads give plus the product
    of their tails' lengths (Cauchy-Schwarz). So the heads alone rule out most pairs that are far
    apart.
    """

    __slots__ = ("head", "tail", "tail_length")

    def __init__(self, vector: list[float]) -> None:
        length = math.hypot(*vector) or 1.0
        unit = [number / length for number in vector]
        middle = len(unit) // 3
        self.head = unit[:middle]
        self.tail = unit[middle:]
        self.tail_length = math.hypot(*self.tail)

    def is_near(self, other: _Direction, threshold: float) -> bool:
        """Return whether the cosine of the angle between the two reaches the threshold."""
        cosine: float = sum(map(operator.mul, self.head, other.head))
        if cosine + self.tail_length * other.tail_length < threshold:
            return False
        cosine += sum(map(operator.mul, self.tail, other.tail))
        return cosine >= threshold


def _root(parents: list[int], i: int) -> int:
    while parents[i] != i:
        parents[i] = parents[parents[i]]
        i = parents[i]
    return i
