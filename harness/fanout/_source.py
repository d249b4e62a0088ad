"""Where the items of a fan-out come from: any iterable or async iterable.

Only the engine reads a source, lazily, and closes it when the fan-out ends early: generators
always, and async iterators that have an ``aclose``. Files and other plain iterators, memory
channels and trio's other resources belong to whoever opened them, and are left open.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Generator,
    Iterable,
    Iterator,
    Sequence,
    Sized,
)
from itertools import islice
from typing import Any

import trio
from trio.lowlevel import disable_ki_protection

LASTING = (list, tuple, range, str, bytes)
"""Sequences whose items can be looked at by index at any time."""


class Exhausted(Exception):
    """There are no more items. Not `StopAsyncIteration`, which a coroutine can't raise."""


def ended(why: Exception) -> Exception:
    """Return what to raise for the end of a source that was noted earlier.

    A fresh `Exhausted`: a stored one and the frames it was raised in would keep each other alive.
    """
    return Exhausted() if isinstance(why, Exhausted) else why


class SyncSource:
    """Items of a plain iterable."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.size: int | None = _size_of(items)
        self.iterator: Iterator[Any] = iter(items)
        self.sequence: Sequence[Any] | None = None
        """The items, if any of them can be looked at later."""
        if isinstance(items, Sequence) and type(items) in LASTING:
            self.sequence = items
            self.iterator = islice(self.iterator, self.size)

    def changed(self) -> RuntimeError | None:
        """Return an error if the number of items has changed; else None.

        The number is fixed at the start, whatever the limit: a policy counts on it.
        """
        if self.sequence is None or len(self.sequence) == self.size:
            return None
        return RuntimeError(
            f"the list of items had {self.size:,} when the fan-out began and has "
            f"{len(self.sequence):,} now; the added ones are not run. If work adds work, give the "
            "items as an async iterable, such as a memory channel"
        )

    @disable_ki_protection
    def close(self) -> None:
        """Let a generator run its ``finally`` clauses."""
        if isinstance(self.iterator, Generator):
            self.iterator.close()


class AsyncSource:
    """Items of an async iterable. One task must make all the calls."""

    def __init__(self, items: AsyncIterable[Any]) -> None:
        self.size: int | None = _size_of(items)
        self._iterator: AsyncIterator[Any] = aiter(items)

    @disable_ki_protection
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

    @disable_ki_protection
    async def close(self) -> None:
        """Let the source clean up. The caller bounds it, with a scope from before the first pull:
        one entered here would not nest with those a generator holds open."""
        if isinstance(self._iterator, trio.abc.AsyncResource):
            return  # It belongs to whoever opened it, and ``async for`` leaves it open too.
        close = getattr(self._iterator, "aclose", None)
        if close is not None:
            await close()


def _size_of(items: object) -> int | None:
    try:
        return len(items) if isinstance(items, Sized) else None
    except OverflowError:  # range(10**20) has a length that `len` can't return.
        return None


Source = SyncSource | AsyncSource


def open_source(call: str, items: Any) -> Source:
    """Return the source for what the caller gave as items.

    Raises:
      TypeError: if it can't be iterated.
    """
    if isinstance(items, AsyncIterable):
        return AsyncSource(items)
    # Checked first: a TypeError from the caller's ``__iter__`` is not about what may be given.
    if isinstance(items, Iterable) or hasattr(type(items), "__getitem__"):
        return SyncSource(items)
    advice = "call it" if callable(items) else "for a single item write [item]"
    raise TypeError(f"{call} takes items as an iterable or async iterable, not {items!r}; {advice}")
