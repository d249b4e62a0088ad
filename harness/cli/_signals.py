"""What Ctrl-C and a termination signal do to a batch: stop it softly, then at once.

The first asks the batch to stop: nothing more is started, and what is in flight may finish. A
second Ctrl-C cancels that too. A third ends the process on the spot, in case a function blocks the
event loop and no gentler request can be met; the output keeps whole lines even then, since each is
a single write.

A termination signal counts as the first. A second one changes nothing: supervisors repeat it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import trio

from harness.cli._errors import EXIT_INTERRUPTED

_SHOW_CURSOR = b"\x1b[?25h"


class Interrupts:
    """Counts the interruptions, and says what each asks for."""

    def __init__(self, *, stop: Callable[[str], object], cancel: Callable[[str], object]) -> None:
        """Call ``stop`` for the first and ``cancel`` for the second, with what happened."""
        self._stop = stop
        self._cancel = cancel
        self._token = trio.lowlevel.current_trio_token()
        self.count = 0

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Act on a signal, between any two instructions of the main thread."""
        if number == signal.SIGTERM and self.count:
            return
        self.count += 1
        if self.count == 1:
            words = "Ctrl-C" if number == signal.SIGINT else "a termination signal"
            self._token.run_sync_soon(self._stop, words)
        elif self.count == 2:
            self._token.run_sync_soon(self._cancel, "a second Ctrl-C")
        else:
            if sys.stderr.isatty():  # A progress bar hides it.
                os.write(2, _SHOW_CURSOR)
            os.write(2, b"\nended at once, by a third Ctrl-C\n")
            os._exit(EXIT_INTERRUPTED)


@contextmanager
def interruptions(interrupts: Interrupts) -> Iterator[None]:
    """Let ``interrupts`` handle signals inside the block; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [(number, signal.signal(number, interrupts.handle)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
