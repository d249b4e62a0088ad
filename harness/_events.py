"""Wait for an event where a Ctrl-C may come between any two lines.

trio protects its own waits from it, but not `trio.Event.wait`: struck there, the event keeps a task
that doesn't wait, and setting it breaks trio. So nothing in the package calls that itself.
"""

from __future__ import annotations

import trio
from trio.lowlevel import enable_ki_protection


@enable_ki_protection
async def happened(event: trio.Event) -> None:
    """Return once ``event`` is set.

    Checkpoint: always.

    Cancellation: nothing is left behind.
    """
    await event.wait()
