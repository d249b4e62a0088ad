"""Let a call wait for the model's first calls, which hold guesses of what they may use.

If such guesses leave a call no room in a budget, it waits for one of them to end, rather than fail
for what is only held. A whole answer ends by itself. A stream ends when its reader is done with it,
and the reader may be waiting for that very call; so a stream is waited for only while its reader
goes on reading.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar, Token

import trio


class Guesses:
    """The calls of one model in one ``trio.run`` that hold a guess and will end by themselves."""

    __slots__ = ("_line", "_under_way")

    def __init__(self) -> None:
        self._under_way = 0
        self._line = trio.lowlevel.ParkingLot()

    @contextmanager
    def held(self) -> Generator[None]:
        """Count the block as a call that ends by itself.

        When the last one has ended, all those in line try at once: nobody is left to wait for.
        """
        token = self._begin()
        try:
            yield
        finally:
            self._end(token)
            if self._under_way:
                self.let_next_try()
            else:
                self._line.unpark_all()

    @contextmanager
    def read(self) -> Generator[None]:
        """Count the block as one in which a call's reader waits for what comes next.

        If no other call is in progress, the first in line checks at its next step whether the
        reader has come back for more. If it hasn't, it isn't waited for.
        """
        token = self._begin()
        try:
            yield
        finally:
            self._end(token)
            if not self._under_way:
                self.let_next_try()

    def _begin(self) -> Token[tuple[Guesses, ...]]:
        self._under_way += 1
        return _within.set((*_within.get(), self))

    def _end(self, token: Token[tuple[Guesses, ...]]) -> None:
        self._under_way -= 1
        _within.reset(token)

    async def one_ended(self) -> bool:
        """Wait until one may have ended; return false if there is none to wait for.

        Checkpoint: if there is one to wait for.

        Cancellation: the task has left the line.
        """
        if not self._under_way:
            self._line.unpark_all()
            return False
        if self in _within.get():
            return False
        _waiting_for = "the first answers, which hold what is left of a budget"
        await self._line.park()
        return True

    def let_next_try(self) -> None:
        """Let the first in line try again: a call has ended, or the last to try found room.

        So the line moves as far as there is room. If everybody were woken each time, ten thousand
        would try a thousand times.
        """
        self._line.unpark()


_within: ContextVar[tuple[Guesses, ...]] = ContextVar("harness.models.within", default=())
"""The guesses that the current code is part of: a model may be a function that asks itself."""
