"""Who writes to a journal, so that an error can name them.

A journal has one writer at a time. Each draws a random token when it opens the journal, leaves it
there, and checks for it in every transaction: a process that was stopped, and wakes up after
another one took over the journal, finds a token that isn't its own.
"""

from __future__ import annotations

import json
import os
import socket
import time

import attrs

if hasattr(time, "CLOCK_BOOTTIME"):  # On Linux; the other one pauses during suspend.

    def _steady_seconds() -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    _steady_seconds = time.monotonic


class SteadyClock:
    """Seconds since the epoch by the machine's clock when this was made, counted on from there.

    A machine's clock may be set while programs run, by hours if it started without a battery. Even
    so, what one session records stays in order, and a second in it is a second.
    """

    __slots__ = ("_offset", "made_at")

    def __init__(self) -> None:
        self.made_at: float = time.time()
        """When it was made."""
        self._offset = self.made_at - _steady_seconds()

    def now(self) -> float:
        """Return the time, which is never less than before."""
        return self._offset + _steady_seconds()


@attrs.frozen
class Owner:
    """One opening of a journal for writing."""

    token: str
    pid: int
    host: str
    since: float
    """When it opened the journal, in seconds since the epoch."""
    text: str = attrs.field(
        init=False, default=attrs.Factory(lambda owner: _as_json(owner), takes_self=True)
    )
    """What is left in the journal: all of this as JSON. Made once: every transaction needs it."""

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host}, since {since}"


def _as_json(owner: Owner) -> str:
    fields = {"token": owner.token, "pid": owner.pid, "host": owner.host, "since": owner.since}
    return json.dumps(fields, sort_keys=True)


def this_process() -> Owner:
    """Return a new owner: this process, now."""
    return Owner(os.urandom(16).hex(), os.getpid(), socket.gethostname(), time.time())


def owner_from_json(text: str | None) -> Owner | None:
    """Return who left the text; None if no owner would leave it."""
    try:
        fields = json.loads(text or "")
        return Owner(
            str(fields["token"]), int(fields["pid"]), str(fields["host"]), float(fields["since"])
        )
    except (ValueError, KeyError, TypeError):
        return None


def words_for(text: str | None) -> str:
    """Return who left the text, in words that fit in a sentence."""
    return str(owner_from_json(text) or "a process that left no name")
