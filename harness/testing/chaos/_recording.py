"""Replay a fan-out's results in other orders of arrival, and see whether the answer changes.

A recording holds only outcomes, so a replay calls no model and takes no time. It tests the code
after the fan-out: the merge, the fold, the vote, the report.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import attrs
import trio

from harness._arguments import check_count
from harness._words import error_in_words, repr_of
from harness.fanout import Result, Results
from harness.testing.chaos._orders import Order, arrival_orders
from harness.testing.chaos._recording_file import read, write

T = TypeVar("T")

ORDERS_AT_MOST = 1_000
"""How many orders are tried by default: all orders of up to 6 results."""

_PAIRS_OF_AT_MOST = 40


class Arrivals(Results[T]):
    """Results in the order in which they arrive in one replay.

    A sequence, like `Results`, and an async iterator, like a fan-out's stream.
    """

    __slots__ = ("_next",)

    ordered: bool = False
    """As a stream has it: these come as they come."""

    def __init__(self, results: Iterable[Result[T]], *, name: str = "replay") -> None:
        super().__init__(results, name=name)
        self._next = 0

    def __aiter__(self) -> AsyncIterator[Result[T]]:
        self._next = 0
        return self

    async def __anext__(self) -> Result[T]:
        await trio.lowlevel.checkpoint()
        if self._next >= len(self):
            raise StopAsyncIteration
        self._next += 1
        return self[self._next - 1]


@attrs.frozen
class _Answer:
    """What an aggregate returned or raised."""

    value: Any = None
    error: Exception | None = None

    def __str__(self) -> str:
        return repr_of(self.value) if self.error is None else f"raised {error_in_words(self.error)}"


class Recording(Generic[T]):
    """The outcomes of a fan-out, for replays::

        results = await harness.fan_out(ask, experts, policy=harness.BestEffort())
        await Recording(results).assert_order_independent(vote)

    ``vote`` is the code under test: a function of results, plain or async.
    """

    def __init__(self, results: Iterable[Result[T]]) -> None:
        """Keep results. If a stream is still open, read them first.

        Raises:
          TypeError: if there is anything else among them.
        """
        self.results: tuple[Result[T], ...] = tuple(results)
        """What was recorded, in the order given."""
        for result in self.results:
            if not isinstance(result, Result):
                raise TypeError(
                    f"Recording() takes the results of a fan-out, not {result!r}; for plain values "
                    "use Recording.of_values(values)"
                )

    @classmethod
    def of_values(cls, outcomes: Iterable[Any]) -> Recording[Any]:
        """Return a recording of made-up outcomes: values, and exceptions for failures."""
        results: list[Result[Any]] = []
        for index, outcome in enumerate(outcomes):
            status: Literal["ok", "failed"] = "failed" if isinstance(outcome, Exception) else "ok"
            results.append(Result(index, index, None, None, status, outcome, 1, 0.0, 0.0))
        return Recording(results)

    def save(self, path: str | Path, *, encode: Callable[[Any], Any] = lambda value: value) -> None:
        """Write the recording to a file, as JSON.

        Args:
          path: The file. It is replaced.
          encode: Makes plain data of items, keys and values that are none.

        Raises:
          TypeError: if one wouldn't come back from the file as it is.
          OSError: if the file can't be written.
        """
        write(path, self.results, encode)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        items: Iterable[Any] | None = None,
        decode: Callable[[Any], Any] = lambda value: value,
    ) -> Recording[Any]:
        """Return the recording that a file holds. Each error in it is a `JournaledError`.

        Args:
          path: What `save` wrote.
          items: The items that the program has now; None: whatever was recorded.
          decode: Reads what ``encode`` made.

        Raises:
          ValueError: if it is no recording, one of another version, or one of other items: the
            program has changed since, so record it again.
          OSError: if the file can't be read.
        """
        recording = cls(read(path, decode))
        if items is not None:
            pairs = itertools.zip_longest(items, (one.item for one in recording.results))
            for number, (now, then) in enumerate(pairs):
                if now != then:
                    raise ValueError(
                        f"the program has changed since {path} was recorded: item {number} is "
                        f"{repr_of(now)}, and was {repr_of(then)}; record it again"
                    )
        return recording

    def __len__(self) -> int:
        return len(self.results)

    def __repr__(self) -> str:
        return f"<Recording of {len(self):,} results>"

    def replays(self, *, orders: int = ORDERS_AT_MOST, seed: int = 0) -> Iterator[Arrivals[T]]:
        """Yield the results in different orders of arrival, first as recorded.

        Args:
          orders: How many at most. If there are no more than that, each comes once.
          seed: Another seed, other random orders.

        Raises:
          ValueError: if ``orders`` is below 1.
        """
        check_count("Recording.replays(orders=...)", orders, advice="it is how many to try")
        return map(self._in_order, arrival_orders(len(self), at_most=orders, seed=seed))

    def worker(self, order: Sequence[int] | None = None) -> Callable[[Any], Awaitable[T]]:
        """Return a worker that ends as recorded, to run the fan-out itself again.

        Called with a recorded item, it returns that item's value, or raises its error.

        Args:
          order: Which result comes first, second and so on, as indexes of `results`: the worker
            for the n-th takes n seconds (of a virtual clock). By default none takes time.

        Raises:
          ValueError: if ``order`` isn't all the indexes, each once.
        """
        if order is not None and sorted(order) != list(range(len(self))):
            raise ValueError(
                f"order={list(order)!r} must hold each index from 0 to {len(self) - 1} once"
            )
        arrives = {index: place for place, index in enumerate(order or ())}

        async def replayed(item: Any) -> T:
            for place, result in enumerate(self.results):
                if result.item is item or result.item == item:
                    await trio.sleep(arrives.get(place, -1) + 1)
                    return result.value
            raise KeyError(f"the recording has no item {item!r}")

        return replayed

    async def assert_order_independent(
        self,
        aggregate: Callable[[Arrivals[T]], Any],
        *,
        orders: int = ORDERS_AT_MOST,
        seed: int = 0,
        equal: Callable[[Any, Any], bool] | None = None,
    ) -> int:
        """Check that ``aggregate`` gives the same answer for every order of arrival.

        Args:
          aggregate: A function of the results, plain or async. It may iterate over them with
            ``for`` or ``async for``, or use them as `harness.Results`.
          orders: How many orders to try at most; if there are no more, all.
          seed: Another seed, other random orders.
          equal: Compares two answers; by default ``==``.

        Returns:
          How many orders were tried.

        Raises:
          AssertionError: if two orders give different answers. The message has the smallest case
            found: mostly two results that arrive one way or the other.

        Checkpoint: always.

        Cancellation: what the aggregate is doing is cancelled; the recording doesn't change.
        """
        same = _comparison(equal)
        await trio.lowlevel.checkpoint()
        first = await _ask(aggregate, self._in_order(range(len(self))))
        again = await _ask(aggregate, self._in_order(range(len(self))))
        if not same(first, again):
            raise AssertionError(
                f"{_name(aggregate)} gives a different answer every time, even for one order of "
                f"arrival: {first}, then {again}; it keeps something from one call to the next, "
                "or draws at random, so orders can't be compared"
            )
        tried = 0
        for order in arrival_orders(len(self), at_most=orders, seed=seed):
            tried += 1
            answer = await _ask(aggregate, self._in_order(order))
            if not same(first, answer):
                raise AssertionError(await self._difference(aggregate, order, first, answer, same))
        return tried

    def _in_order(self, order: Iterable[int]) -> Arrivals[T]:
        return Arrivals(self.results[index] for index in order)

    async def _difference(
        self,
        aggregate: Callable[[Arrivals[T]], Any],
        order: Order,
        first: _Answer,
        answer: _Answer,
        same: Callable[[_Answer, _Answer], bool],
    ) -> str:
        """Say that an order gives a different answer, using the smallest case there is."""
        one_way, other_way = tuple(range(len(self))), order
        for pair in itertools.combinations(range(min(len(self), _PAIRS_OF_AT_MOST)), 2):
            here = await _ask(aggregate, self._in_order(pair))
            there = await _ask(aggregate, self._in_order(pair[::-1]))
            if not same(here, there):
                one_way, other_way, first, answer = pair, pair[::-1], here, there
                break
        return (
            f"{_name(aggregate)} depends on the order of arrival\n"
            f"  arriving as {self._words(one_way)}: {first}\n"
            f"  arriving as {self._words(other_way)}: {answer}\n"
            "sort by result.index before combining, or combine with a function for which the order "
            "makes no difference"
        )

    def _words(self, order: Order) -> str:
        shown = [repr_of(self.results[index].key) for index in order[:20]]
        return ", ".join([*shown, "..."] if len(order) > 20 else shown)


async def _ask(aggregate: Callable[[Any], Any], arrivals: Any) -> _Answer:
    try:
        answer = aggregate(arrivals)
        if inspect.isawaitable(answer):
            answer = await answer
    except Exception as error:
        return _Answer(error=error)
    return _Answer(answer)


def _comparison(equal: Callable[[Any, Any], bool] | None) -> Callable[[_Answer, _Answer], bool]:
    def same(one: _Answer, other: _Answer) -> bool:
        if one.error is not None or other.error is not None:
            # The text may list what there was, in order of arrival; the type may not change.
            return type(one.error) is type(other.error)
        if equal is not None:
            return bool(equal(one.value, other.value))
        return bool(one.value == other.value)

    return same


def _name(fn: Any) -> str:
    return str(getattr(fn, "__qualname__", type(fn).__qualname__)).rpartition("<locals>.")[2]
