"""Write a trace: one line for each thing that happens, soon after it has.

Lines are made where things happen, and collected. A thread of its own writes them, half a second
later at most, or as soon as there are many. So an event costs microseconds; a disk that is slow
holds nobody up, until so much is collected that the next event has to wait for it; and a killed
process loses no more than that half second, and perhaps the end of its last line.

The thread, unlike a task, needs no clock of trio's: it makes no virtual time pass.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import AbstractContextManager
from types import TracebackType

import trio
from trio.lowlevel import enable_ki_protection

from harness._async_with import AsyncWithOnly
from harness._outside_trio import refuse_outside_trio
from harness.observe._files import hold, open_alone
from harness.observe._lines import Lines
from harness.runs import Event, observing

SECONDS = 0.5
"""How long a line may wait to be written."""

SOON_BYTES = 64 * 1024
"""So many are written at once."""

MOST_BYTES = 8 * 1024 * 1024
"""Beyond so many, whoever adds a line writes them."""

logger = logging.getLogger("harness.observe")


def record(
    path: str | os.PathLike[str], *, values: bool = False, messages: bool = False
) -> TraceRecording:
    """Record what the runs opened inside the block do: ``async with record("trace.jsonl"):``.

    A file that is already there is replaced.

    Args:
      path: The file to write; `harness.observe` says what is in it.
      values: Whether to write what attempts at items return, cut and with secrets masked.
      messages: Whether to write what models are asked and answer, and what tools are called with.

    Raises:
      TypeError: if ``path`` is no path.
      OSError: on entry, if the file can't be opened. If it can't be written later on, that is
        logged, and the program goes on without its trace.
      RuntimeError: on entry, outside trio, or the second time.

    Checkpoint: never. Leaving the block waits until everything is written.

    Cancellation: the trace is complete, whatever the block is left by.
    """
    return TraceRecording(os.fspath(path), values=values, messages=messages)


class TraceRecording(AsyncWithOnly):
    """The block that `record` returns, and the observer that it installs."""

    _written = "harness.observe.record(...)"

    def __init__(self, path: str | bytes, *, values: bool, messages: bool) -> None:
        self._path = path
        self._values = values
        self._messages = messages
        self._lines: Lines | None = None
        self._observing: AbstractContextManager[None] | None = None
        self._lock = threading.Lock()
        """Held while lines are written, so that they stay in order."""
        self._collected: list[str] = []
        self._size = 0
        self._file = -1
        self._wake = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._write_on, name="harness trace", daemon=True)

    @enable_ki_protection
    async def __aenter__(self) -> TraceRecording:
        """Open the file, and begin."""
        refuse_outside_trio("record() was entered")
        if self._lines is not None:
            raise RuntimeError(
                "the block of this recording was already entered; call record() for each block"
            )
        file = open_alone(self._path)
        try:
            hold(file)
            os.ftruncate(file, 0)
        except BaseException as error:
            os.close(file)
            if isinstance(error, BlockingIOError):
                raise OSError(
                    f"another program is writing the trace {self._path!r}; give each a file of "
                    "its own"
                ) from None
            raise
        self._file = file
        self._lines = Lines(trio.current_time(), values=self._values, messages=self._messages)
        self._thread.start()
        self._observing = observing(self)
        self._observing.__enter__()
        return self

    @enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Write what is left, and close the file."""
        assert self._observing is not None
        self._observing.__exit__(exc_type, exc, traceback)
        self._over = True
        self._wake.set()
        self._thread.join()
        with self._lock:
            file, self._file = self._file, -1
            if file >= 0:
                gone = not os.fstat(file).st_nlink
                os.close(file)
                if gone:
                    logger.error("the trace %r was removed while it was written", self._path)

    def flush(self) -> None:
        """Write what has been collected, now."""
        self._write()

    def __call__(self, event: Event) -> None:
        """Do nothing: what the program itself emits isn't written."""

    @enable_ki_protection  # Or a Ctrl-C in here would lose what is told only once.
    def notice(self, event: Event) -> None:
        """Collect the line for a notice."""
        assert self._lines is not None
        line = self._lines.line(event)
        if line is None or self._file < 0:
            return
        self._collected.append(line)
        self._size += len(line)
        if self._size > SOON_BYTES:
            if self._size > MOST_BYTES:
                self._write()
            else:
                self._wake.set()

    def _write_on(self) -> None:
        """Write until it is over; the thread's body."""
        while not self._over:
            self._wake.wait(SECONDS)
            self._wake.clear()
            self._write()
        self._write()

    def _write(self) -> None:
        """Write what has been collected."""
        with self._lock:
            # Taken one by one at most: others may add to the list meanwhile, in any thread.
            count = len(self._collected)
            data = "".join(self._collected[:count]).encode("ascii")
            del self._collected[:count]
            self._size = sum(map(len, self._collected))  # Anew: threads may have counted at once.
            try:
                while data and self._file >= 0:
                    data = data[os.write(self._file, data) :]
            except OSError as error:
                os.close(self._file)
                self._file = -1
                logger.error("the trace %r can't be written, and ends here: %s", self._path, error)
