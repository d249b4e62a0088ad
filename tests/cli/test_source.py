"""Reading in a thread."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from itertools import count

import pytest
import trio

from harness.cli._errors import InputError
from harness.cli._lines import LineReader
from harness.cli._records import Record, parse_records
from harness.cli._source import open_source


def record(index: int) -> Record:
    return Record(index, index + 1, index, str(index))


async def test_all_records_come_in_order() -> None:
    def read(before_read: Callable[[], None]) -> Iterator[Record]:
        for index in range(1_000):
            if index % 70 == 0:
                before_read()
            yield record(index)

    async with open_source(read, name="input") as source:
        assert [r.index async for r in source] == list(range(1_000))
    assert source.error is None


async def test_error_comes_in_its_turn_after_the_records_before_it() -> None:
    def read(before_read: Callable[[], None]) -> Iterator[Record]:
        yield record(0)
        yield record(1)
        raise InputError("line 3 is odd")

    seen = []
    async with open_source(read, name="input") as source:
        with pytest.raises(InputError, match="line 3 is odd"):
            async for r in source:
                seen.append(r.index)
    assert seen == [0, 1]
    assert isinstance(source.error, InputError)


async def test_disk_that_fails_is_bad_input() -> None:
    def read(before_read: Callable[[], None]) -> Iterator[Record]:
        yield record(0)
        raise OSError(5, "Input/output error")

    async with open_source(read, name="tickets.csv") as source:
        assert (await anext(source)).index == 0
        with pytest.raises(InputError, match=r"reading tickets\.csv failed: Input/output error"):
            await anext(source)


async def test_record_of_a_slow_pipe_does_not_wait_for_the_next() -> None:
    """And leaving does not wait for a pipe that never says anything again."""
    reading, writing = os.pipe()
    with io.FileIO(reading) as pipe, io.FileIO(writing, "wb") as other_end:

        def read(before_read: Callable[[], None]) -> Iterator[Record]:
            return parse_records(LineReader(pipe, before_read), "lines", source="pipe")

        async with open_source(read, name="pipe") as source:
            other_end.write(b"one\ntw")
            assert (await anext(source)).value == "one"
            other_end.write(b"o\nthree\n")
            assert (await anext(source)).value == "two"
            assert (await anext(source)).value == "three"
            with trio.move_on_after(0) as scope:
                await anext(source)
            assert scope.cancelled_caught


async def test_reading_ahead_is_bounded() -> None:
    """A million records must not pile up before a function that takes its time."""
    made = 0

    def read(before_read: Callable[[], None]) -> Iterator[Record]:
        nonlocal made
        for index in count():
            made = index + 1
            yield record(index)

    async with open_source(read, name="input") as source:
        for taken in range(2_000):
            await anext(source)
            assert made - taken <= 4 * 256


async def test_closed_source_has_no_more_records_and_its_thread_ends() -> None:
    ended = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def read(before_read: Callable[[], None]) -> Iterator[Record]:
        try:
            yield from map(record, count())
        finally:
            token.run_sync_soon(ended.set)

    async with open_source(read, name="input") as source:
        assert (await anext(source)).index == 0
        source.close()
        with pytest.raises(StopAsyncIteration):
            await anext(source)
        source.close()
        await ended.wait()
