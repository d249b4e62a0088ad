"""Give each trial worker threads of its own, so that it meets no other's thread-locals.

Trio keeps threads for later work, for as long as the process runs and whichever loop asks. asyncio
has them in each loop's executor, so there is nothing to do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE_SECONDS = 0.1
"""How long a thread waits for more work before it ends; hundreds of trials may follow."""


@contextmanager
def fresh_threads() -> Iterator[None]:
    """Let trio start worker threads afresh while the block lasts."""
    kept_by: Any = sys.modules.get("trio._core._thread_cache")
    cache = getattr(kept_by, "THREAD_CACHE", None)
    if kept_by is None or cache is None:  # pragma: no cover - a trio that keeps them elsewhere
        yield
        return
    patience = kept_by.IDLE_TIMEOUT
    kept_by.THREAD_CACHE = type(cache)()
    kept_by.IDLE_TIMEOUT = PATIENCE_SECONDS
    try:
        yield
    finally:
        kept_by.THREAD_CACHE = cache
        kept_by.IDLE_TIMEOUT = patience
