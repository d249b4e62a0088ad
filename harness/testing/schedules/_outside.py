"""Say how long a program may wait for what no schedule controls, when nothing else can happen."""

from __future__ import annotations

from time import monotonic

import attrs

from harness.testing.schedules._control import Control

THREADS_MAX_SECONDS = 60.0
"""Real seconds a program may wait for a worker thread with nothing else to do."""

SOCKETS_MAX_SECONDS = 5.0
"""The same for a socket, when nothing else can happen either."""

SOCKETS_GLANCE_SECONDS = 0.05
"""The same for a socket when the clock could move instead. A server waits forever; what comes over
loopback comes at once."""

UNKNOWN_MAX_SECONDS = 1.0
"""The same if a thread exists that may or may not be of any help."""


@attrs.define(eq=False)
class OutsideWaits:
    """Counts real seconds since the last step."""

    _waiting_since: float = attrs.field(default=0.0, init=False)
    _steps: int = attrs.field(default=-1, init=False)

    def may_wait(self, control: Control, outside: set[str], *, clock_could_move: bool) -> bool:
        """Tell whether to go on waiting for these."""
        now = monotonic()
        if control.steps != self._steps:
            self._steps = control.steps
            self._waiting_since = now
        if outside & {"worker threads", "real time"}:
            most_seconds = THREADS_MAX_SECONDS
        elif "sockets" in outside:
            most_seconds = SOCKETS_GLANCE_SECONDS if clock_could_move else SOCKETS_MAX_SECONDS
        else:
            most_seconds = UNKNOWN_MAX_SECONDS
        return now - self._waiting_since < most_seconds
