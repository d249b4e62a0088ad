"""Wait for what a real server does in its own time, where no event tells."""

from __future__ import annotations

from collections.abc import Callable

import trio

POLL_SECONDS = 0.01


async def until(condition: Callable[[], object], *, within_seconds: float = 60.0) -> None:
    """Return as soon as ``condition`` holds; fail if it doesn't in time."""
    with trio.fail_after(within_seconds):
        # The server counts for whoever asks, and tells nobody: its users look at the end.
        while not condition():  # noqa: ASYNC110
            await trio.sleep(POLL_SECONDS)
