"""Run asyncio programs on a clock that skips all waiting, as trio's MockClock does for trio."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any
from unittest import mock


class Skipping(selectors.DefaultSelector):
    """A selector for a loop without sockets: its waits take no time."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout:
            self.now += timeout
        return ready


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a program on such a clock, which `time.monotonic` shows meanwhile, too."""
    selector = Skipping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    with mock.patch("time.monotonic", loop.time):
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(main)
