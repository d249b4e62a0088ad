"""Where the items of a fan-out come from: any iterable or async iterable.

Only the engine reads a source, lazily, and closes it when the fan-out ends early: generators
always, and async iterators that have an ``aclose``. Files and other plain iterators, memory
channels and trio's other resources belong to whoever opened them, and are left open.
"""

from __future__ import annotations

from collections import deque
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
from typing import Any, Protocol, TypeVar

import trio
from trio.lowlevel import disable_ki_protection

from harness._arguments import check_seconds
from harness.fanout._result import Sink
from harness.runs import Run

ItemT = TypeVar("ItemT")

AT_HAND = "_harness_at_hand_"
"""An attribute of an iterator of our own: a `deque` of what it would give without waiting."""

IS_FAST = "_harness_is_fast_"
"""An attribute of such an iterator: whether more comes soon, until it ends."""

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
            "items as a harness.Backlog"
        )

    @disable_ki_protection
    def close(self) -> None:
        """Let a generator run its ``finally`` clauses."""
        if isinstance(self.iterator, Generator):
            self.iterator.close()


class Pulled(Protocol):
    """The fan-out that a source belongs to."""

    hand_on: Sink
    """Takes the result of each item that was pulled, once."""

    @property
    def run(self) -> Run:
        """Its run."""
        ...

    @property
    def has_journal(self) -> bool:
        """Whether later sessions have the results of this one."""
        ...

    def is_read(self) -> bool:
        """Return whether the reader, if there is one, has read all results and asks for more."""
        ...


class AsyncSource:
    """Items of an async iterable. One task must make all the calls but `wake`."""

    next_within: float | None = None
    """Seconds that the next item may take; None for no limit."""

    def __init__(self, items: AsyncIterable[Any]) -> None:
        self.size: int | None = _size_of(items)
        self._iterator: AsyncIterator[Any] = aiter(items)
        at_hand: deque[Any] | None = getattr(self._iterator, AT_HAND, None)
        self.at_hand: deque[Any] = deque() if at_hand is None else at_hand
        """The items that came and weren't taken."""
        self.is_fast: bool = getattr(self._iterator, IS_FAST, False)
        """Whether the next item comes soon, until there are no more."""

    def begin(self, host: Pulled) -> None:
        """Hear whose items these are, before the first is pulled."""

    def wake(self) -> None:
        """Hear that an item has ended, or that the reader has taken a result or asks for more."""

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


class OwnSource(AsyncIterable[ItemT]):
    """Items that make their own source. Only a fan-out can iterate over them."""

    def _open(self, call: str) -> Source:
        """Return the source."""
        raise NotImplementedError

    def __aiter__(self) -> AsyncIterator[ItemT]:
        raise TypeError(f"{self!r} is for a fan-out, a pipeline or a router: pass it as the items")


class TimedSource(OwnSource[ItemT]):
    """An async iterable whose next item may only take so long.

    ``fan_out(handle, TimedSource(queue, 30))`` ends if it has room for an item and none comes for
    30 seconds: what came before is still run, and then a `FanOutError` says that the items can't be
    read further, with a `trio.TooSlowError`. The time in which nothing is wanted doesn't count.

    Args:
      items: The items. A cancel ends the wait for the next, and the items are closed.
      seconds: How long the next may take.

    Raises:
      TypeError: if the items aren't an async iterable: nothing can interrupt a plain one.
      ValueError: if ``seconds`` is negative.
    """

    def __init__(self, items: AsyncIterable[ItemT], seconds: float) -> None:
        if not isinstance(items, AsyncIterable):
            raise TypeError(
                f"TimedSource(items) takes an async iterable, not {items!r}: a plain one blocks "
                "every task while it waits"
            )
        self._items = items
        self._seconds = check_seconds(
            "TimedSource(seconds)", seconds, advice="without a limit, leave TimedSource out"
        )

    def __repr__(self) -> str:
        return f"TimedSource({self._items!r}, {self._seconds:g})"

    def _open(self, call: str) -> Source:
        source = open_source(call, self._items)
        assert isinstance(source, AsyncSource)
        source.next_within = self._seconds
        return source


def open_source(call: str, items: Any) -> Source:
    """Return the source for what the caller gave as items.

    Raises:
      TypeError: if it can't be iterated.
      RuntimeError: if it is a backlog that another fan-out has.
    """
    if isinstance(items, OwnSource):
        return items._open(call)
    if isinstance(items, AsyncIterable):
        return AsyncSource(items)
    # Checked first: a TypeError from the caller's ``__iter__`` is not about what may be given.
    if isinstance(items, Iterable) or hasattr(type(items), "__getitem__"):
        return SyncSource(items)
    advice = "call it" if callable(items) else "for a single item write [item]"
    raise TypeError(f"{call} takes items as an iterable or async iterable, not {items!r}; {advice}")
