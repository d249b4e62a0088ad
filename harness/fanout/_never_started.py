"""The results of items that were never started: made when somebody looks at them.

A fan-out decided early may leave a million of them. They differ only in their items, so all that
is kept is where the items are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from harness.errors import ItemSkipped
from harness.fanout._result import Result


class NeverStarted:
    """The last items of a sequence, none of which was started."""

    __slots__ = ("_at", "_first", "_items", "_key", "_why")

    def __init__(
        self,
        items: Sequence[Any],
        first: int,
        *,
        key: Callable[[Any], Any] | None,
        why: str,
        at: float,
    ) -> None:
        """Keep them.

        Args:
          items: All items of the fan-out. A list is copied from ``first`` on, as its owner may
            change it later.
          first: The index of the first that was never started.
          key: Returns the key of an item; None: its index is its key.
          why: Why none was started, in words.
          at: When that became certain, as `trio.current_time`.
        """
        # Anything else is kept as it is: a range of a million takes no memory.
        self._items = items[first:] if isinstance(items, list) else _Tail(items, first)
        self._first = first
        self._key = key
        self._why = ItemSkipped(f"the item was never started: {why}")
        self._at = at

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, place: int) -> Result[Any]:
        return self._result(self._first + place, self._items[place])

    def __iter__(self) -> Iterator[Result[Any]]:
        for index, item in enumerate(self._items, self._first):
            yield self._result(index, item)

    def _result(self, index: int, item: Any) -> Result[Any]:
        key: Any = index
        if self._key is not None:
            try:
                key = self._key(item)
            except Exception:
                pass  # It has no key then; its index identifies it.
        return Result(index, key, item, None, "skipped", self._why, 0, self._at, self._at)


class _Tail(Sequence[Any]):
    """A sequence from some index on, without a copy."""

    __slots__ = ("_first", "_items")

    def __init__(self, items: Sequence[Any], first: int) -> None:
        self._items = items
        self._first = first

    def __len__(self) -> int:
        return max(0, len(self._items) - self._first)

    def __getitem__(self, place: Any) -> Any:
        return self._items[self._first + place]

    def __iter__(self) -> Iterator[Any]:
        for index in range(self._first, len(self._items)):
            yield self._items[index]
