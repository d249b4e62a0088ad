"""Say what to write to whoever forgot the ``async`` of ``async with``."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar


class AsyncWithOnly:
    """The base of blocks that are entered with ``async with`` and nothing else."""

    __slots__ = ()

    _written: ClassVar[str]
    """The call as a caller writes it, after the words ``async with``."""

    # Hidden from type checkers, which then report by themselves that the method isn't there.
    if not TYPE_CHECKING:

        def __enter__(self):
            raise TypeError(f"this block is async; write `async with {self._written}:`, not `with`")

        def __exit__(self, *_):  # Python looks for it before it enters.
            pass
