"""Read records in a thread, and hand them to a fan-out as an async source.

Reading blocks: a pipe may have nothing for minutes, and a network disk may be slow. So the whole
chain of iterators (bytes, lines, records, keys) runs in one worker thread, which hands over what it
has before every read that may block. A slow pipe's records therefore arrive one by one, a file's in
batches, and the thread waits when nothing takes them: the read-ahead is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TypeAlias

import attrs
import trio

from harness.cli._errors import InputError
from harness.cli._records import Record

_BATCH_RECORDS = 1_024

RecordReader: TypeAlias = Callable[[Callable[[], None]], Iterator[Record]]
"""Starts reading; it must call its argument before every read that may block."""

_Batch: TypeAlias = "list[Record] | Exception"


@attrs.define(eq=False)
class Reading:
    """How far the reading has come; written by the thread, read by the progress display."""

    size_bytes: int | None = None
    """How much there is to read, if that is known."""

    at_most: int | None = None
    """How many records are asked for, if that is limited."""

    bytes_read: int = 0
    """How much of it the records so far took up."""

    records: int = 0
    """How many records were read so far."""

    total: int | None = None
    """How many there are, once that is certain."""

    delimiter: str | None = None
    """What separates the columns, once the first row of CSV was read."""

    tokens: float = 0.0
    """How many tokens the records so far take, as far as they say, or it can be guessed."""

    @property
    def tokens_each(self) -> float | None:
        """How many tokens a record takes, on average; None if nobody knows."""
        return self.tokens / self.records if self.tokens else None

    def expected(self) -> int | None:
        """Return how many records there will be: certain, extrapolated, or None if unknown."""
        if self.total is not None:
            return self.total
        if not self.size_bytes or not self.bytes_read:
            return None  # Of a pipe, `at_most` may be far more than there are.
        expected = max(self.records, round(self.records * self.size_bytes / self.bytes_read))
        return expected if self.at_most is None else min(expected, self.at_most)


class RecordSource(AsyncIterator[Record]):
    """The records as an async iterator, for one reader at a time.

    Without an ``aclose``: a fan-out that stops early leaves the rest to whoever reads on.
    """

    error: Exception | None
    """What ended the reading early, if anything did."""

    def __init__(
        self, batches: trio.MemoryReceiveChannel[_Batch], *, is_fast: bool = False
    ) -> None:
        self._batches = batches
        self._harness_is_fast_ = is_fast
        self._harness_at_hand_: deque[Record] = deque()
        self.error = None

    def __aiter__(self) -> RecordSource:
        return self

    async def __anext__(self) -> Record:
        """Return the next record.

        Raises:
          InputError: in its turn, if the input can't be read further.
          StopAsyncIteration: at the end, or once the source is closed.

        Checkpoint: only when no record is ready.

        Cancellation: no record is lost.
        """
        while not self._harness_at_hand_:
            try:
                batch = await self._batches.receive()
            except (trio.EndOfChannel, trio.ClosedResourceError):
                raise StopAsyncIteration from None
            if isinstance(batch, Exception):
                self.error = batch
                raise batch
            self._harness_at_hand_.extend(batch)
        return self._harness_at_hand_.popleft()

    def close(self) -> None:
        """End the reading; whoever waits for a record finds that there are no more."""
        self._harness_at_hand_.clear()
        self._batches.close()


@asynccontextmanager
async def open_source(
    read: RecordReader, *, name: str, is_fast: bool = False
) -> AsyncIterator[RecordSource]:
    """Read records in a thread for the duration of a block.

    Args:
      read: The iterators to run in the thread.
      name: What to call the input in errors.
      is_fast: Whether reading takes hardly any time, as that of a file.

    Checkpoint: on leaving.

    Cancellation: a thread that waits for input is left behind; it ends when the input says
    anything or the program ends, and what it then reads goes nowhere.
    """
    batches, receiver = trio.open_memory_channel[_Batch](1)
    async with trio.open_nursery() as nursery:
        source = RecordSource(receiver, is_fast=is_fast)
        nursery.start_soon(_run_in_thread, read, batches, name)
        try:
            yield source
        finally:
            source.close()
            nursery.cancel_scope.cancel()


async def _run_in_thread(
    read: RecordReader, batches: trio.MemorySendChannel[_Batch], name: str
) -> None:
    with batches:
        # A limiter of its own: the default one's threads are for the user's functions.
        limiter = trio.CapacityLimiter(1)
        await trio.to_thread.run_sync(
            _read_all, read, batches, name, abandon_on_cancel=True, limiter=limiter
        )


def _read_all(read: RecordReader, batches: trio.MemorySendChannel[_Batch], name: str) -> None:
    """Hand over everything, and lastly the error that ended it; runs in the thread."""
    batch: list[Record] = []

    def hand_over() -> None:
        nonlocal batch
        if batch:
            full, batch = batch, []
            trio.from_thread.run(batches.send, full)

    try:
        try:
            for record in read(hand_over):
                batch.append(record)
                if len(batch) >= _BATCH_RECORDS:
                    hand_over()
            hand_over()
        except (InputError, OSError) as error:
            hand_over()
            trio.from_thread.run(batches.send, _as_input_error(error, name))
    except (trio.BrokenResourceError, trio.ClosedResourceError, trio.Cancelled):
        pass  # No more is wanted.
    except trio.RunFinishedError:
        pass  # This thread was left behind.


def _as_input_error(error: InputError | OSError, name: str) -> InputError:
    if isinstance(error, InputError):
        return error
    return InputError(f"reading {name} failed: {error.strerror or error}")
