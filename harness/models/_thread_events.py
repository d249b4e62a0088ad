"""Read, in a trio task, what a plain function hands out while it runs in a worker thread.

There is no nursery between the two, because it would wrap the reader's errors in groups: whoever
opens it closes it, and closing waits for the thread. So the thread never outlives its block.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any

import outcome
import trio

from harness._events import happened


class ThreadEvents:
    """A function running in a thread, and what it has handed out.

    Args:
      function: Called with a function ``take``, which it calls with each thing it hands out;
        ``take`` returns true when no more are wanted.
      name: What the thread is called.
    """

    def __init__(self, function: Callable[[Callable[[Any], bool]], None], name: str) -> None:
        # Unbounded, because the thread can't be kept waiting; what comes is bounded by what was
        # asked for.
        self._send, self._receive = trio.open_memory_channel[Any](inf)
        self._token = trio.lowlevel.current_trio_token()
        self._stopped = False
        self._ended = trio.Event()
        self._result: outcome.Outcome[None] = outcome.Value(None)
        trio.lowlevel.start_thread_soon(lambda: function(self._take), self._deliver, name)

    async def receive(self) -> Any:
        """Return what was handed out next.

        Raises:
          trio.EndOfChannel: if the function has ended.
          Exception: what the function raised.
        """
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            self._result.unwrap()
            raise

    async def aclose(self) -> None:
        """Tell the function to end, and wait until it has.

        Cancellation: it waits all the same, until the function next hands something out.
        """
        self._stopped = True
        _waiting_for = "a worker thread, until it can be stopped"
        with trio.CancelScope(shield=True):
            await happened(self._ended)

    # In the thread -----------------------------------------------------------------------------

    def _take(self, value: Any) -> bool:
        if not self._stopped:
            try:
                self._token.run_sync_soon(self._send.send_nowait, value)
            except trio.RunFinishedError:
                self._stopped = True
        return self._stopped

    def _deliver(self, result: outcome.Outcome[None]) -> None:
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._end, result)

    def _end(self, result: outcome.Outcome[None]) -> None:
        self._result = result
        self._send.close()
        self._ended.set()
