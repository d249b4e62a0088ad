"""Notice a block that an async generator holds across a ``yield``.

Between two yields the reader's code runs, in the reader's task: what the block has set there, the
current run or a cancel scope, is then the reader's. Two such generators read in turns by one task
leave their blocks in the wrong order.

With some readers that can't happen, and they are exempt: context managers and fixtures, which one
caller enters and leaves, `trio.as_safe_channel`, which iterates in a task of its own, and what
harness iterates. So the check looks who iterates the generator when a block in it is entered; once
for each position in the code, since it reads the bytecode.

The testing kit runs a program many times, so there a warning must not end one run and spare the
next. Under `held_blocks` it is an error only where two such generators are seen to cross.
"""

from __future__ import annotations

import contextlib
import dis
import inspect
import os
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import Protocol

import trio

from harness.errors import HarnessWarning
from harness.runs._current import current
from harness.runs._frames import is_ours, is_plumbing, place
from harness.runs._run import Run

ASYNC_GENERATOR = inspect.CO_ASYNC_GENERATOR
"""For callers to check ``frame.f_code.co_flags`` before calling: it is hardly ever set."""

_EXEMPT_PACKAGES = frozenset({"anyio", "pytest_trio", "pytest_asyncio", "_pytest"})
_CONTEXT_MANAGERS = contextlib.__file__

_decided: dict[tuple[CodeType, int], bool] = {}
"""Whether there is a yield inside, by position. They are as many as the blocks in generators."""


class Block(Protocol):
    """The block of a run, as far as this check knows it."""

    _name: str
    _run: Run | None


class HeldBlocks:
    """The blocks that suspended generators hold, to see two of them cross in one task."""

    def __init__(self) -> None:
        self._held: list[tuple[FrameType, Block]] = []

    def enter(self, frame: FrameType, block: Block) -> None:
        """Note that a generator enters a block that it holds across a ``yield``.

        Raises:
          HarnessWarning: if the run around it is that of another generator, suspended in this task.
        """
        task = trio.lowlevel.current_task()
        running = set(_frames_from(frame))
        around = set(_runs_from(current.get()))
        for other, held in self._held:
            run = held._run
            if run is not None and run in around and run._task is task and other not in running:
                raise HarnessWarning(
                    f"open_run({block._name!r}) in the async generator "
                    f"{place(frame.f_code, frame.f_lineno)} is entered while another one, "
                    f"{place(other.f_code, other.f_lineno)}, is suspended in the same task and "
                    f"holds the run {held._name!r}: from here on each has the other's run. "
                    "Decorate the generators with @trio.as_safe_channel, or leave the block before "
                    "the yield"
                )
        self._held = [
            (other, held)
            for other, held in self._held
            if held._run is not None and held._run._status == "running"
        ]
        self._held.append((frame, block))


held_blocks: ContextVar[HeldBlocks | None] = ContextVar("harness.runs.held_blocks", default=None)
"""Under the testing kit, the blocks that are held."""


def look_for_yield(frame: FrameType, what: str, block: Block | None = None) -> None:
    """Warn if a block that this frame enters now is held across a ``yield`` of its own.

    Args:
      frame: The frame of an async generator, in the ``async with`` of the block.
      what: The call that made the block, in words.
      block: The block, if it is that of a run. A stream's run has a task of its own, so only the
        stream's cancel scope is in the reader's.

    Raises:
      HarnessWarning: if warnings are errors; under the testing kit, if two such blocks cross.
    """
    code = frame.f_code
    position = code, frame.f_lasti
    kit = held_blocks.get()
    is_first = position not in _decided
    if is_first:
        _decided[position] = _yields_inside(code, frame.f_lasti)
    if not _decided[position] or not (is_first or kit) or _is_exempt(frame.f_back):
        return
    if is_first:
        try:
            _warn(frame, what, "the run" if block else "its cancel scope")
        except HarnessWarning:
            if kit is None:
                raise
    if kit is not None and block is not None:
        kit.enter(frame, block)


def _frames_from(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _runs_from(run: Run | None) -> Iterator[Run]:
    while run is not None:
        yield run
        run = run._parent


def _warn(frame: FrameType, what: str, held: str) -> None:
    code = frame.f_code
    warnings.warn_explicit(
        f"{what} is held across a yield of the async generator {place(code, frame.f_lineno)}: "
        f"between two yields {held} is its reader's, and two such generators in one task leave "
        "their blocks in the wrong order. Decorate the generator with @trio.as_safe_channel, which "
        "iterates it in a task of its own, and read it with `async with`; or leave the block "
        "before the yield",
        HarnessWarning,
        code.co_filename,
        frame.f_lineno,
    )


def _is_exempt(reader: FrameType | None) -> bool:
    if reader is None:
        return False
    filename = reader.f_code.co_filename
    return (
        filename == _CONTEXT_MANAGERS
        or is_ours(filename)
        or is_plumbing(filename)
        or not _EXEMPT_PACKAGES.isdisjoint(filename.split(os.sep))
    )


def _yields_inside(code: CodeType, entering: int) -> bool:
    """Return whether a ``yield`` is in the block that the instruction ``entering`` enters.

    A block is what the compiler covers with the handler that leaves it. What is inside a nested
    block is covered by that block's handler, which is itself covered by the outer one's.
    """
    instructions = [one for one in dis.get_instructions(code) if one.opname != "CACHE"]
    # Where the code goes on once the block is entered: that is the first of what it covers.
    sends = [one for one in instructions if one.opname == "SEND" and one.offset <= entering]
    begins = next(
        (
            one.offset
            for one in instructions
            if sends and one.offset >= sends[-1].argval and one.opname != "END_SEND"
        ),
        None,
    )
    handlers = _Handlers(code)
    own = None if begins is None else handlers.of(begins)
    if own is None:
        return False
    for one, before in zip(instructions[1:], instructions, strict=False):
        if one.opname == "YIELD_VALUE" and _wraps_for_reader(before):
            handler = handlers.of(one.offset)
            while handler is not None:
                if handler == own:
                    return True
                handler = handlers.of(handler)
    return False


def _wraps_for_reader(before: dis.Instruction) -> bool:
    """Return whether the next instruction is a ``yield`` rather than an ``await``."""
    if before.opname == "ASYNC_GEN_WRAP":  # Python 3.11
        return True
    return before.opname == "CALL_INTRINSIC_1" and "ASYNC_GEN_WRAP" in before.argrepr


class _Handlers:
    """Where the code continues after an exception, by the position that raised it."""

    def __init__(self, code: CodeType) -> None:
        self._ranges: list[tuple[int, int, int]] = []
        numbers = iter(_varints(code.co_exceptiontable))
        for start in numbers:
            length, target, _ = next(numbers), next(numbers), next(numbers)
            self._ranges.append((2 * start, 2 * (start + length), 2 * target))

    def of(self, offset: int) -> int | None:
        for start, end, target in self._ranges:
            if start <= offset < end and target != offset:
                return target
        return None


def _varints(table: bytes) -> list[int]:
    """Return the numbers of an exception table, each in groups of six bits, the highest first."""
    numbers: list[int] = []
    number = 0
    for byte in table:
        number = (number << 6) | (byte & 63)
        if not byte & 64:
            numbers.append(number)
            number = 0
    return numbers
