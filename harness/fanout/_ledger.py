"""What an engine asks of whoever keeps a record of its items.

A ledger is one of the parts that an engine may be given. Most engines have none; the only one
there is writes to a journal (`harness.fanout._journal_ledger`), and a program without a journal
never loads it.
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from harness.fanout._feed import Room
from harness.fanout._job import Job
from harness.fanout._result import Result, ResultStatus

if TYPE_CHECKING:
    from harness.runs import Run


class Writing(Room, Protocol):
    """The fan-out whose items are recorded."""

    @property
    def run(self) -> Run:
        """The fan-out's run."""
        ...

    @property
    def base(self) -> contextvars.Context:
        """What items are pulled and started in."""
        ...

    def fill(self) -> None:
        """Start what there is room for, and tell nobody."""

    @property
    def hand_on(self) -> Callable[[Result[Any]], None]:
        """Gives a result to whoever asked for it."""
        ...

    def kept(self, result: Result[Any]) -> None:
        """Count an item that has its result without being run, and hear what the policy says."""

    def skip(self, job: Job) -> Result[Any]:
        """Return the result of an item that is never started."""
        ...

    def start_no_more(self) -> None:
        """Start nothing more."""

    def start_nothing(self, why: str) -> None:
        """Start nothing at all, and say of the items that this is why."""

    def wake_owner(self) -> None:
        """Let the owner of an async source look again whether there is room."""

    def in_words(self) -> str:
        """Return how many items are where."""
        ...


class Ledger(Protocol):
    """A record of one fan-out's items."""

    # The whole --------------------------------------------------------------------------------

    async def keep(self, host: Writing, drive: Callable[[], Awaitable[None]]) -> None:
        """Open the record, run everything with ``drive``, and close it once all is in it.

        Raises:
          Exception: if it can't be opened or written. Then nothing more was started.
        """

    def begin(self, host: Writing) -> None:
        """Start what works beside the items, in the host's nursery."""

    def give_up(self) -> None:
        """Stop opening the record: nobody wants it any more."""

    def looked(self) -> None:
        """Hear that an item has ended or a result was read, after what could start was started."""

    def in_words(self) -> str:
        """Return what waits for the record, to follow other words; empty if nothing does."""
        ...

    def is_over(self) -> None:
        """Hear that nothing more is started. Called in any task, also while trio cancels."""

    # Before a start, and between its attempts ---------------------------------------------------

    def recorded(self, function: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Any]:
        """Return what is called for an attempt: ``function``, once the attempt is recorded."""
        ...

    def metered(self, job: Job, fallback: Callable[[Any, Exception], Any]) -> Callable[..., Any]:
        """Return what is called for a fallback, so that what it uses is counted."""
        ...

    def may_retry(self, job: Job, error: Exception) -> bool:
        """Return whether the record allows another try at all."""
        ...

    def retries(self, job: Job, error: Exception) -> None:
        """Record how a try ended that another one follows."""

    # After an end -----------------------------------------------------------------------------

    def decide(self, job: Job, status: ResultStatus, value: Any) -> tuple[ResultStatus, Any, int]:
        """Return how an item ended, with its value as the record has it and its attempts."""
        ...

    def write(self, job: Job, result: Result[Any]) -> None:
        """Record the end of an item; the result is handed on once that is durable."""
