"""Share a few clients of a provider's library among all calls of one model.

One client for all calls is slow with a thousand in flight, and one per call would open a thousand
connections a second. So there are a few: a call takes the one with the fewest calls in flight, and
another is opened when all are busy.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from math import ceil
from typing import Any

import attrs
import trio
from trio.lowlevel import enable_ki_protection

MOST_CLIENTS = 4
BUSY = 50
"""How many calls each client has in flight before another is opened."""

# What the libraries let a client open; a call beyond that would wait inside it, for minutes.
_CALLS_PER_CLIENT = 1_000
_CLOSING_SECONDS = 5.0


@attrs.define(eq=False)
class _Shared:
    client: Any
    in_flight: int = 0


class SharedClients:
    """The clients of one model, open until `close`.

    Args:
      make: Makes one.
      concurrent: How many calls the limiter allows at once; None if it doesn't say.
    """

    def __init__(self, make: Callable[[], Any], concurrent: int | None) -> None:
        self._make = make
        self._most = max(MOST_CLIENTS, ceil((concurrent or 0) / _CALLS_PER_CLIENT))
        self._places = trio.CapacityLimiter(self._most * _CALLS_PER_CLIENT)
        self._shared: list[_Shared] = [_Shared(make())]

    @property
    def clients(self) -> tuple[Any, ...]:
        """The clients that are open."""
        return tuple(shared.client for shared in self._shared)

    @property
    def in_flight(self) -> int:
        """Calls that hold one."""
        return sum(shared.in_flight for shared in self._shared)

    @asynccontextmanager
    @enable_ki_protection
    async def lease(self) -> AsyncGenerator[Any]:
        """Lend the client with the fewest calls in flight."""
        borrower = object()  # A task may hold two at once: a stream, and a call inside it.
        await self._places.acquire_on_behalf_of(borrower)
        try:
            shared = min(self._shared, key=lambda shared: shared.in_flight)
            if shared.in_flight >= BUSY and len(self._shared) < self._most:
                shared = _Shared(self._make())
                self._shared.append(shared)
            shared.in_flight += 1
            try:
                yield shared.client
            finally:
                shared.in_flight -= 1
        finally:
            self._places.release_on_behalf_of(borrower)

    @enable_ki_protection
    async def close(self) -> None:
        """Close all connections, even when cancelled."""
        with trio.CancelScope(deadline=trio.current_time() + _CLOSING_SECONDS, shield=True):
            async with trio.open_nursery() as nursery:
                for shared in self._shared:
                    nursery.start_soon(shared.client.close)
