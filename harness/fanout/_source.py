"""Where the items of a fan-out come from: any iterable or async iterable.

A source is read lazily, by the engine only, and closed when the fan-out ends early: generators
always, and of async iterators whatever has an ``aclose``. Files and other plain iterators belong
to whoever opened them.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Generator, Iterable, Iterator, Sized
from typing import Any


class Exhausted(Exception):
    """There are no more items. Not `StopAsyncIteration`, which a coroutine can't raise."""


class SyncSource:
    """Items of a plain iterable."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.size: int | None = _size_of(items)
        self.iterator: Iterator[Any] = iter(items)

    def close(self) -> None:
        """Let a generator run its ``finally`` clauses."""
        if isinstance(self.iterator, Generator):
            self.iterator.close()


class AsyncSource:
    """Items of an async iterable. All methods are to be called by one task."""

    def __init__(self, items: AsyncIterable[Any]) -> None:
        self.size: int | None = _size_of(items)
        self._iterator: AsyncIterator[Any] = aiter(items)

    async def next(self) -> Any:
        """Return the next item.

        Raises:
          Exhausted: if there is none.
        """
        _waiting_for = "the next item of its source"
        try:
            return await anext(self._iterator)
        except StopAsyncIteration:
            raise Exhausted from None

    async def close(self) -> None:
        """Let the source clean up. The caller says for how long, with a scope from before the first
        pull: one that is entered here would not nest with those a generator holds open."""
        close = getattr(self._iterator, "aclose", None)
        if close is not None:
            await close()


def _size_of(items: object) -> int | None:
    try:
        return len(items) if isinstance(items, Sized) else None
    except OverflowError:  # range(10**20) has a length that can't be told.
        return None


Source = SyncSource | AsyncSource


def open_source(call: str, items: Any) -> Source:
    """Return the source for what the caller gave as items.

    Raises:
      TypeError: if it can't be iterated.
    """
    if isinstance(items, AsyncIterable):
        return AsyncSource(items)
    # Asked beforehand: a TypeError of the caller's own ``__iter__`` is not about what may be given.
    if isinstance(items, Iterable) or hasattr(type(items), "__getitem__"):
        return SyncSource(items)
    advice = "call it" if callable(items) else "for a single item write [item]"
    raise TypeError(f"{call} takes items as an iterable or async iterable, not {items!r}; {advice}")
