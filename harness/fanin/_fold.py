"""Combine results into one value while they arrive.

A fold holds one value, however many results there are: `open_fan_out` uses constant memory for a
million items, and so does a fold over it. For the same answer whatever the order of arrival, it
needs results in input order, or a function for which the order makes no difference; you have to say
which.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Generic, TypeVar

from harness.fanout import Result

T = TypeVar("T")
S = TypeVar("S")


class Fold(Generic[S, T]):
    """A fold in progress::

        async with harness.open_fan_out(count_words, pages, ordered=True) as stream:
            fold = Fold(stream, lambda total, result: total + result.value, 0)
            total = await fold.run()

    Meanwhile, `partial` is what the results so far combine to.
    """

    def __init__(
        self,
        stream: AsyncIterator[Result[T]],
        function: Callable[[S, Result[T]], S | Awaitable[S]],
        initial: S,
        *,
        commutative: bool = False,
    ) -> None:
        """Make a fold; `run` runs it.

        Args:
          stream: An open stream of results, such as that of `open_fan_out`. It must be
            ``ordered=True``, unless the fold is commutative.
          function: ``function(partial, result)``, plain or async, returns the next partial value.
            It gets every result, even those without a value: it decides what they mean.
          initial: The partial value before the first result.
          commutative: Whether the order of results makes no difference to the function. If so, they
            are taken as they arrive. (Sums of floats differ in their last digits.)

        Raises:
          TypeError: if an argument has the wrong type.
          ValueError: if the stream isn't ordered and the fold isn't commutative.
        """
        if not hasattr(stream, "__anext__"):
            raise TypeError(
                f"Fold() takes a stream of results, not {stream!r}; for results that are all "
                "there use functools.reduce"
            )
        if not callable(function):
            raise TypeError(
                "Fold() takes a function of the partial value and a result, not "
                f"{function!r}; write Fold(stream, lambda total, result: ..., initial)"
            )
        if not commutative and not getattr(stream, "ordered", False):
            raise ValueError(
                "Fold() over results as they arrive can give another answer every time; open the "
                "stream with ordered=True, or say commutative=True if the order makes no difference"
            )
        self._stream = stream
        self._function = function
        self._partial = initial
        self._count = 0
        self._in_hand: Result[T] | None = None
        self._started = False

    @property
    def partial(self) -> S:
        """What the results so far combine to; may be read at any time, by any task."""
        return self._partial

    @property
    def count(self) -> int:
        """How many results are in `partial`."""
        return self._count

    @property
    def in_hand(self) -> Result[T] | None:
        """The result that was taken from the stream but isn't in `partial`: the function is working
        on it, or raised or was cut short there; else None."""
        return self._in_hand

    async def run(self) -> S:
        """Take all results of the stream, and return what they combine to.

        Raises:
          RuntimeError: if it was called before.
          FanOutError: from the stream, if its policy is broken; `partial` is kept.
          Exception: what the function raises.

        Checkpoint: as the stream's iteration does.

        Cancellation: `partial` has every result taken from the stream except the one whose function
        was cut short; that is `in_hand`.
        """
        if self._started:
            raise RuntimeError("a fold runs once; make another Fold for another stream")
        self._started = True
        async for result in self._stream:
            self._in_hand = result
            combined: Any = self._function(self._partial, result)
            # harness: shared (a fold runs once, in one task: `run` refuses a second call)
            self._partial = await combined if isinstance(combined, Awaitable) else combined
            self._count += 1
            self._in_hand = None
        return self._partial
