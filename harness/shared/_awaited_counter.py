"""Use a counter in one way, whether one process has it or several share it.

A change of a counter that is on a server takes a wait, so it can't have the calls of `Counter`,
which never wait. Here is the protocol that both can have.
"""

from __future__ import annotations

from typing import Protocol

import attrs
from trio.lowlevel import checkpoint

from harness.shared._counter import Counter


class AwaitedCounter(Protocol):
    """A `Counter` whose every call is awaited: `awaited` makes one, and so does a fleet's store.

    Each call checkpoints. A cancel there changes nothing; what has been changed is told.
    """

    async def read(self) -> int:
        """Return the value now."""
        ...

    async def add(self, n: int = 1) -> int:
        """Change the value by ``n``, as `Counter.add` does."""
        ...

    async def try_spend(self, n: int = 1) -> bool:
        """Take ``n`` away if that much is there, as `Counter.try_spend` does."""
        ...

    async def wait_for(self, n: int) -> int:
        """Wait until the value is at least ``n``, as `Counter.wait_for` does."""
        ...


def awaited(counter: Counter) -> AwaitedCounter:
    """Return a counter of this process as one whose every call is awaited.

    So the same function can be given it or `harness.cluster.FleetStore.counter`.

    Args:
      counter: What it counts with; its own calls can still be used.

    Raises:
      TypeError: if it isn't a `Counter`.
    """
    if not isinstance(counter, Counter):
        raise TypeError(f"awaited() takes a harness.shared.Counter, not {counter!r}")
    return _Awaited(counter)


@attrs.frozen
class _Awaited:
    _counter: Counter

    async def read(self) -> int:
        await checkpoint()
        return self._counter.value

    async def add(self, n: int = 1) -> int:
        await checkpoint()
        return self._counter.add(n)

    async def try_spend(self, n: int = 1) -> bool:
        await checkpoint()
        return self._counter.try_spend(n)

    async def wait_for(self, n: int) -> int:
        return await self._counter.wait_for(n)
