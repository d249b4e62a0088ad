"""Keep a bounded list of messages that others leave for a run.

An accepted message is taken by the run or handed back as undelivered when the run ends; none is
lost in between. Messages may come from any thread, hence the lock: a message put while the run ends
is either among the undelivered ones or refused.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from trio.lowlevel import enable_ki_protection

from harness.errors import InboxFullError, RunEndedError

INBOX_CAPACITY = 256
"""How many messages an inbox holds: more than a run can act on, and more than steering needs."""


class Inbox:
    """Messages for one run, in the order in which they were left."""

    __slots__ = ("_lock", "_messages", "_open", "_run_path")

    def __init__(self, run_path: str, *, is_open: bool = True) -> None:
        self._run_path = run_path
        self._open = is_open
        self._messages: list[Any] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._messages)

    def __repr__(self) -> str:
        return f"<Inbox of run {self._run_path!r}: {len(self)} messages>"

    @enable_ki_protection  # Or the lock could stay taken.
    def put(self, message: Any) -> None:
        """Leave a message for the run. May be called from any task and any thread.

        Raises:
          RunEndedError: if the run has ended; nobody would read the message.
          InboxFullError: if the inbox is full.
        """
        with self._lock:
            if not self._open:
                raise RunEndedError(
                    f"run {self._run_path!r} has ended, so nobody would read this message; "
                    "send it to a run that is alive"
                )
            if len(self._messages) >= INBOX_CAPACITY:
                raise InboxFullError(
                    f"the inbox of run {self._run_path!r} already holds {INBOX_CAPACITY} messages "
                    "that the run has not taken; wait until it does, or send fewer"
                )
            self._messages.append(message)

    @enable_ki_protection
    def take_all(self) -> list[Any]:
        """Take out every waiting message, oldest first; an empty list if there are none."""
        with self._lock:
            messages, self._messages = self._messages, []
        return messages

    @enable_ki_protection
    def put_back(self, messages: Sequence[Any]) -> None:
        """Put messages that were taken out back to the front; there is always room for them."""
        with self._lock:
            self._messages[:0] = messages

    @enable_ki_protection
    def close(self) -> tuple[Any, ...]:
        """Refuse messages from now on, and return those that nobody took."""
        with self._lock:
            self._open = False
            messages, self._messages = self._messages, []
        return tuple(messages)
