"""Notice a block that an async generator holds across a ``yield``.

Between two yields the reader's code runs, in the reader's task: what the block has set there, the
current run or a cancel scope, is then the reader's. Two such generators read in turns by one task
leave their blocks in the wrong order.

With some readers that can't happen, and they are exempt: context managers and fixtures, which one
caller enters and leaves, `trio.as_safe_channel`, which iterates in a task of its own, and what
harness iterates. So the check looks at who iterates the generator when a block in it is entered;
only once for each position in the code, because it reads the bytecode.
"""

from __future__ import annotations

import contextlib
import dis
import inspect
import os
import warnings
from types import CodeType, FrameType

from harness.errors import HarnessWarning
from harness.runs._frames import is_ours, is_plumbing, place

ASYNC_GENERATOR = inspect.CO_ASYNC_GENERATOR
"""For callers to check ``frame.f_code.co_flags`` before calling: it is hardly ever set."""

_EXEMPT_PACKAGES = frozenset({"anyio", "pytest_trio", "pytest_asyncio", "_pytest"})
_CONTEXT_MANAGERS = contextlib.__file__

_decided: set[tuple[CodeType, int]] = set()
"""Positions already checked: as many as the program has blocks in generators."""


def look_for_yield(frame: FrameType, block: str) -> None:
    """Warn if a block that this frame is entering is held across a ``yield`` of its own.

    Args:
      frame: The frame of an async generator, in the ``async with`` of the block.
      block: The block, as a caller writes it, such as ``"open_run(...)"``.

    Raises:
      HarnessWarning: if warnings are errors.
    """
    code = frame.f_code
    position = code, frame.f_lasti
    if position in _decided:
        return
    _decided.add(position)
    if _is_exempt(frame.f_back) or not _yields_inside(code, frame.f_lasti):
        return
    warnings.warn_explicit(
        f"{block} is held across a yield of the async generator {place(code, frame.f_lineno)}: "
        "between two yields the run is its reader's, and two such generators in one task leave "
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
    """Return whether there is a ``yield`` in the block that the instruction ``entering`` enters.

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
