"""One call of an asyncio function: the trio task that waits, and the asyncio task that works.

Two threads touch a call, and each field belongs to one of them. What crosses goes through
``TrioToken.run_sync_soon`` or ``loop.call_soon_threadsafe``, both of which keep the order.

Invariant: the trio side waits until the asyncio task has ended, and no trio function that it
called back is alive then. So nothing of a call outlives it.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NoReturn, TypeVar

import outcome
import trio

from harness.errors import AsyncioBridgeError
from harness.runs._run import CLEANUP_SECONDS

T = TypeVar("T")

CANCEL_AGAIN_SECONDS = 1.0
"""A task that outlived its cancel and the time for its clean-up is cancelled again this often."""

current_call: contextvars.ContextVar[Call[Any] | None] = contextvars.ContextVar(
    "harness.asyncio_call", default=None
)
"""In asyncio code: the call that it works for."""


class Call(Generic[T]):
    """An asyncio function that is called for a trio task."""

    def __init__(
        self, start: Callable[[], Awaitable[T]], name: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.loop = loop
        self._start = start
        self._name = name
        # Of the trio side.
        self._token = trio.lowlevel.current_trio_token()
        self._waiter: trio.lowlevel.Task | None = None
        self._nursery: trio.Nursery | None = None
        self._outcome: outcome.Outcome[T] | None = None
        self._cancel_asked = False
        self._closed = False
        # Of the asyncio side.
        self._task: asyncio.Task[outcome.Outcome[T]] | None = None
        self._cancel_again: asyncio.TimerHandle | None = None

    # In trio's thread -------------------------------------------------------------------------

    async def result(self) -> T:
        """Start it, wait until it has ended, and return its value or raise its error."""
        waiting_for = self._in_words  # noqa: F841 (read by `dump`)
        context = contextvars.copy_context()
        context.run(current_call.set, self)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self.loop.call_soon_threadsafe(self._begin, context)
            await self._ended()
            # What it called back and didn't wait for ends with it.
            self._nursery = None
            nursery.cancel_scope.cancel()
        result = self._outcome
        assert result is not None
        error = result.error if isinstance(result, outcome.Error) else None
        if isinstance(error, asyncio.CancelledError):
            if self._cancel_asked:
                await trio.lowlevel.checkpoint_if_cancelled()
            self._refuse_cancelled(error)
        return result.unwrap()

    def _refuse_cancelled(self, error: asyncio.CancelledError) -> NoReturn:
        if self._closed:
            raise AsyncioBridgeError(
                f"{self._name}() was cut short, because its asyncio loop was closed; keep the "
                "block of open_asyncio() open until all that uses it has ended"
            ) from error
        raise AsyncioBridgeError(
            f"{self._name}() was cancelled inside asyncio, by itself or by another asyncio task; "
            "catch asyncio.CancelledError there if that is meant"
        ) from error

    async def _ended(self) -> None:
        """Wait for the end of the asyncio task, also when cancelled: nothing is left behind."""
        if self._outcome is not None:  # pragma: no cover (it takes a turn of the loop at least)
            return
        self._waiter = trio.lowlevel.current_task()

        def abort(raise_cancel: Callable[[], NoReturn]) -> trio.lowlevel.Abort:
            self._cancel_asked = True
            self.cancel()
            return trio.lowlevel.Abort.FAILED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def cancel(self) -> None:
        """Cancel the asyncio task; from trio's thread."""
        self.loop.call_soon_threadsafe(self._cancel_task)

    def close(self) -> None:
        """Cancel it because the loop is about to be closed."""
        self._closed = True
        self.cancel()

    def _end(self, result: outcome.Outcome[T]) -> None:
        self._outcome = result
        if self._waiter is not None:
            trio.lowlevel.reschedule(self._waiter)

    def _in_words(self) -> str:
        if self._cancel_asked:
            return f"{self._name}() in asyncio to end after its cancel"
        return f"{self._name}() in asyncio"

    # In the loop's thread ---------------------------------------------------------------------

    def _begin(self, context: contextvars.Context) -> None:
        self._task = self.loop.create_task(self._body(), name=self._name, context=context)
        # Not at the end of the body: a task that is cancelled before its first step has none.
        self._task.add_done_callback(self._task_ended)

    async def _body(self) -> outcome.Outcome[T]:
        # Everything is caught here: what a task raises would end the loop (KeyboardInterrupt) or
        # be logged as never retrieved.
        try:
            awaitable = self._start()
            if not inspect.isawaitable(awaitable):
                raise TypeError(
                    f"{self._name}() returned {awaitable!r}, which asyncio can't wait for; "
                    "give an `async def` function"
                )
            return outcome.Value(await awaitable)
        except BaseException as error:
            return outcome.Error(error)

    def _task_ended(self, task: asyncio.Task[outcome.Outcome[T]]) -> None:
        self._task = None
        if self._cancel_again is not None:
            self._cancel_again.cancel()
        result = outcome.Error(asyncio.CancelledError()) if task.cancelled() else task.result()
        try:
            self._token.run_sync_soon(self._end, result)
        except trio.RunFinishedError:  # pragma: no cover (trio broke down meanwhile)
            pass

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()
            again_after = CANCEL_AGAIN_SECONDS if self._cancel_again else CLEANUP_SECONDS
            self._cancel_again = self.loop.call_later(again_after, self._cancel_task)

    async def in_trio(
        self, fn: Callable[..., Awaitable[T]], args: tuple[Any, ...], context: contextvars.Context
    ) -> outcome.Outcome[T]:
        """Have a function called in trio, and wait for how it ended; in the loop's thread."""
        ended: asyncio.Future[outcome.Outcome[T]] = self.loop.create_future()
        scope = trio.CancelScope()

        def tell(result: outcome.Outcome[T]) -> None:
            self.loop.call_soon_threadsafe(ended.set_result, result)

        async def called() -> None:
            result: outcome.Outcome[T] = outcome.Error(asyncio.CancelledError())
            try:
                with scope:
                    try:
                        result = outcome.Value(await fn(*args))
                    except Exception as error:
                        result = outcome.Error(error)
            finally:
                tell(result)

        def start() -> None:
            if self._nursery is None:
                tell(outcome.Error(_ended_error(self._name)))
            else:
                context.run(self._nursery.start_soon, called)

        self._token.run_sync_soon(start)
        cancelled: asyncio.CancelledError | None = None
        while not ended.done():
            try:
                await asyncio.wait((ended,))
            except asyncio.CancelledError as error:
                cancelled = error
                self._token.run_sync_soon(scope.cancel)
        if cancelled is not None:
            raise cancelled
        return ended.result()


def _ended_error(name: str) -> AsyncioBridgeError:
    return AsyncioBridgeError(
        f"call_trio() was called by an asyncio task that {name}() left behind when it ended; "
        "wait for the task before returning"
    )
