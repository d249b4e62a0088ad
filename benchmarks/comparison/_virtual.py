"""Run asyncio programs on a clock that skips all waiting, as trio's MockClock does for trio."""

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any


class Skipping(selectors.DefaultSelector):
    """A selector for a loop without sockets: its waits take no time."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout:
            self.now += timeout
        return ready


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a program on such a clock, which `time.monotonic` shows, too."""
    selector = Skipping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = time.monotonic = lambda: selector.now  # type: ignore[method-assign]
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main)
