"""Tell whether code is handling an exception where it is suspended: in `except`, `finally`, `with`.

CPython says so in the table of a function's exception handlers: while one is at work, what would
end it early leads to three instructions that put the exception back (``COPY``, ``POP_EXCEPT``,
``RERAISE``). The table also covers the whole body of a coroutine, by other instructions.
"""

from __future__ import annotations

import dis
import functools
from types import CodeType, FrameType
from typing import Any


def is_handling(frame: FrameType) -> bool:
    """Return whether a suspended frame is in a handler of an exception."""
    return any(frame.f_lasti in inside for inside in _handlers(frame.f_code))


@functools.lru_cache(maxsize=1_000)
def _handlers(code: CodeType) -> tuple[range, ...]:
    bytecode: Any = dis.Bytecode(code)
    names = {one.offset: one.opname for one in bytecode}
    return tuple(
        range(entry.start, entry.end)
        for entry in bytecode.exception_entries
        if entry.lasti and names.get(entry.target) == "COPY"
    )
