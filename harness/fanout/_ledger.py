"""What an engine asks of whoever keeps a record of its items.

A ledger is one of the parts an engine may be given. Most engines have none. The only kind writes
to a journal (`harness.fanout._journal_ledger`), and a program without a journal never loads it.
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

    def look(self) -> None:
        """Let go what waits for items that can no longer come."""

    @property
    def hand_on(self) -> Callable[[Result[Any]], None]:
        """Passes a result to whoever asked for it."""
        ...

    def kept(self, result: Result[Any], *, raises: bool) -> None:
        """Count an item that has its result without being run, and heed the policy.

        Args:
          result: The result.
          raises: Whether its failure may be raised, once everything else has run.
        """

    def skip(self, job: Job) -> Result[Any]:
        """Return the result of an item that is never started."""
        ...

    def start_no_more(self) -> None:
        """Start nothing more."""

    def start_nothing(self, why: str) -> None:
        """Start nothing at all, and give this as the items' reason."""

    def wake_owner(self) -> None:
        """Have the owner of an async source check again for room."""

    def in_words(self) -> str:
        """Return how many items are where."""
        ...


class Ledger(Protocol):
    """A record of one fan-out's items."""

    # The whole --------------------------------------------------------------------------------

    async def keep(self, host: Writing, drive: Callable[[], Awaitable[None]]) -> None:
        """Open the record, run everything with ``drive``, and close it once all is in it.

        Raises:
          Exception: if it can't be opened or written. Nothing more is started then.
        """

    def begin(self, host: Writing) -> None:
        """Start what works beside the items, in the host's nursery."""

    def give_up(self) -> None:
        """Stop opening the record: it is no longer wanted."""

    @property
    def waits_for_all(self) -> bool:
        """Whether all that is left starts only once nothing is in flight."""
        ...

    def looked(self) -> None:
        """Note that an item has ended or a result was read, and what could start was started."""

    def in_words(self) -> str:
        """Return what waits for the record, to append to other words; empty if nothing does."""
        ...

    def is_over(self) -> None:
        """Note that nothing more is started. Called in any task, even while trio cancels."""

    # Before a start, and between its attempts ---------------------------------------------------

    def recorded(self, function: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Any]:
        """Return what is called for an attempt: ``function``, once the attempt is recorded."""
        ...

    def metered(self, job: Job, fallback: Callable[[Any, Exception], Any]) -> Callable[..., Any]:
        """Return what is called for a fallback, so that its usage is counted."""
        ...

    def may_retry(self, job: Job, error: Exception) -> bool:
        """Return whether the record allows another try at all."""
        ...

    def retries(self, job: Job, error: Exception) -> None:
        """Record how a try ended, when another one follows."""

    # After an end -----------------------------------------------------------------------------

    def decide(self, job: Job, status: ResultStatus, value: Any) -> tuple[ResultStatus, Any, int]:
        """Return how an item ended, its value as the record has it, and its attempts."""
        ...

    def write(self, job: Job, result: Result[Any]) -> None:
        """Record the end of an item; the result is handed on once that is durable."""
