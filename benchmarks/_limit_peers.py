"""Ask other rate limiters, all on asyncio, written as their users would write it.

They do less: one limit each, no settling, no ordered line; and most of them return without letting
other tasks run when there is room. `installed` has those that are installed.
"""

from collections.abc import Callable, Coroutine, Mapping
from importlib import import_module
from typing import Any

PLENTY_PER_MINUTE = 10**9


def installed() -> Mapping[str, Callable[[int], Coroutine[Any, Any, None]] | None]:
    """Return the peers by name; None for one that isn't installed."""
    return {name: _find(module, peer) for name, (module, peer) in _PEERS.items()}


Peer = Callable[[Any, int], Coroutine[Any, Any, None]]


def _find(module: str, peer: Peer) -> Callable[[int], Coroutine[Any, Any, None]] | None:
    try:
        library = import_module(module)
    except ImportError:
        return None

    async def bench(count: int) -> None:
        await peer(library, count)

    return bench


async def _aiolimiter(library: Any, count: int) -> None:
    limiter = library.AsyncLimiter(PLENTY_PER_MINUTE, 60)
    for _ in range(count):
        async with limiter:
            pass


async def _pyrate_limiter(library: Any, count: int) -> None:
    limiter = library.Limiter(library.Rate(PLENTY_PER_MINUTE, 60_000))
    for _ in range(count):
        await limiter.try_acquire_async("bench")


async def _throttled(library: Any, count: int) -> None:
    quota = library.rate_limiter.per_min(PLENTY_PER_MINUTE)
    limiter = library.Throttled(key="bench", using="token_bucket", quota=quota)
    for _ in range(count):
        await limiter.limit()


async def _limits(library: Any, count: int) -> None:
    item = import_module("limits").RateLimitItemPerMinute(PLENTY_PER_MINUTE)
    storage = library.storage.MemoryStorage()
    limiter = library.strategies.SlidingWindowCounterRateLimiter(storage)
    for _ in range(count):
        await limiter.hit(item, "bench")


_PEERS: Mapping[str, tuple[str, Peer]] = {
    "aiolimiter": ("aiolimiter", _aiolimiter),
    "pyrate-limiter": ("pyrate_limiter", _pyrate_limiter),
    "throttled-py": ("throttled.asyncio", _throttled),
    "limits": ("limits.aio", _limits),
}
