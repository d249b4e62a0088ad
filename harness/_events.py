"""Wait for an event, and start a task, where a Ctrl-C may come between any two lines.

trio protects its own waits from it, but not `trio.Event.wait`: struck there, the event keeps a task
that doesn't wait, and setting it breaks trio. Nor `trio.Nursery.start_soon`, which would leave a
task that never ends. So code that isn't protected itself calls neither.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio
from trio.lowlevel import enable_ki_protection


@enable_ki_protection
async def happened(event: trio.Event) -> None:
    """Return once ``event`` is set.

    Checkpoint: always.

    Cancellation: nothing is left behind.
    """
    await event.wait()


@enable_ki_protection
def start_task(
    nursery: trio.Nursery,
    function: Callable[..., Awaitable[object]],
    *arguments: Any,
    name: object = None,
) -> None:
    """Start ``function(*arguments)`` in the nursery; what it runs is not protected."""
    nursery.start_soon(function, *arguments, name=name)
