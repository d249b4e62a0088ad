"""Make one call of an asyncio function: a trio task waits, an asyncio task works.

Two threads touch a call, and each field belongs to one of them. What crosses goes through
``TrioToken.run_sync_soon`` or ``loop.call_soon_threadsafe``, both of which keep the order.

Invariant: the trio side waits until the asyncio task has ended, and no trio function that it
called back is alive then. So nothing of a call outlives it.

However the asyncio task ended is what counts, even if the caller was cancelled meanwhile. So a trio
function that it called back never raises its cancel into the caller's nursery, which would hide
that end.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NoReturn, TypeVar

import attrs
import outcome
import trio
from trio.lowlevel import enable_ki_protection

from harness.errors import AsyncioBridgeError
from harness.runs._endings import is_only_cancelled, most_telling, without_cancelled
from harness.runs._functions import name_of
from harness.runs._run import CLEANUP_SECONDS

T = TypeVar("T")

CANCEL_AGAIN_SECONDS = 1.0
"""How often a task that outlives its cancel, and the time for its clean-up, is cancelled again."""

current_call: contextvars.ContextVar[Call[Any] | None] = contextvars.ContextVar(
    "harness.asyncio_call", default=None
)
"""In asyncio code: the call it is working for."""


@attrs.define(eq=False, repr=False)
class Call(Generic[T]):
    """An asyncio function called for a trio task."""

    _start: Callable[[], Awaitable[T]]
    _name: str
    loop: asyncio.AbstractEventLoop
    _working: dict[asyncio.Task[Any], Call[Any]]
    # Of the trio side.
    _token: trio.lowlevel.TrioToken = attrs.field(
        factory=trio.lowlevel.current_trio_token, init=False
    )
    _waiter: trio.lowlevel.Task | None = attrs.field(default=None, init=False)
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _outcome: outcome.Outcome[T] | None = attrs.field(default=None, init=False)
    _cancel_asked: bool = attrs.field(default=False, init=False)
    _closed_because: str | None = attrs.field(default=None, init=False)
    # Of the asyncio side.
    _task: asyncio.Task[outcome.Outcome[T]] | None = attrs.field(default=None, init=False)
    _cancel_again: asyncio.TimerHandle | None = attrs.field(default=None, init=False)

    # In trio's thread -------------------------------------------------------------------------

    @enable_ki_protection
    async def result(self) -> T:
        """Start it, wait until it has ended, and return its value or raise its error."""
        _waiting_for = self._in_words
        context = contextvars.copy_context()
        context.run(current_call.set, self)
        # If anyio started trio, it has noted that here, and wouldn't look for asyncio.
        if (sniffio := sys.modules.get("sniffio")) is not None:
            context.run(sniffio.current_async_library_cvar.set, None)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    # The task copies the context it is made in, whatever the task factory.
                    self.loop.call_soon_threadsafe(self._begin, context=context)
                except RuntimeError:  # The loop is closed, and its thread about to end.
                    self.abandon("its asyncio loop has ended")
                await self._ended()
                # What it called back but didn't wait for ends with it.
                self._nursery = None
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise most_telling(group) from None  # Such as a KeyboardInterrupt.
        result, self._outcome = self._outcome, None
        assert result is not None
        try:
            if isinstance(result, outcome.Error):
                await self._check_cancelled(result.error)
            return result.unwrap()
        finally:
            del result  # An error's traceback may hold this frame.

    async def _check_cancelled(self, error: BaseException) -> None:
        """Raise what an asyncio cancel means in trio; raise other errors unchanged.

        A loose `asyncio.CancelledError` isn't an `Exception`, and would end the program.
        """
        rest: BaseException | None = error
        if isinstance(error, BaseExceptionGroup):
            rest = error.split(asyncio.CancelledError)[1]
        elif isinstance(error, asyncio.CancelledError):
            rest = None
        try:
            if rest is error:
                return
            if rest is not None:
                raise rest
            if self._cancel_asked:
                await trio.lowlevel.checkpoint_if_cancelled()
            if self._closed_because is not None:
                raise AsyncioBridgeError(
                    f"{self._name}() was cut short, because {self._closed_because}"
                ) from error
            raise AsyncioBridgeError(
                f"{self._name}() was cancelled inside asyncio, by itself or by another asyncio "
                "task; catch asyncio.CancelledError there if that is intended"
            ) from error
        finally:
            del error, rest  # Their tracebacks hold this frame.

    async def _ended(self) -> None:
        """Wait for the asyncio task to end, even when cancelled: nothing is left behind."""
        if self._outcome is not None:
            return
        self._waiter = trio.lowlevel.current_task()

        def abort(raise_cancel: Callable[[], NoReturn]) -> trio.lowlevel.Abort:
            self._cancel_asked = True
            # The loop is closed: the task has ended, and `_end` is on its way.
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.cancel_task)
            return trio.lowlevel.Abort.FAILED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def close(self, because: str) -> None:
        """Note why something other than its caller will cancel it."""
        self._closed_because = self._closed_because or because

    def abandon(self, because: str) -> None:
        """End it if it never began: its loop has ended, so it never will."""
        self.close(because)
        if self._outcome is None:
            self._end(outcome.Error(asyncio.CancelledError()))

    def _end(self, result: outcome.Outcome[T]) -> None:
        self._outcome = result
        if self._waiter is not None:
            trio.lowlevel.reschedule(self._waiter)
            self._waiter = None

    def _in_words(self) -> str:
        if self._cancel_asked:
            return f"{self._name}() in asyncio to end after its cancel"
        return f"{self._name}() in asyncio"

    # In the loop's thread ---------------------------------------------------------------------

    def _begin(self) -> None:
        body = self._body()
        try:
            self._task = self.loop.create_task(body, name=self._name)
        except Exception as error:  # From a task factory.
            body.close()
            self._token.run_sync_soon(self._end, outcome.Error(error))
            return
        self._working[self._task] = self
        # Not at the end of the body: a task cancelled before its first step never gets there.
        self._task.add_done_callback(self._task_ended)

    async def _body(self) -> outcome.Outcome[T]:
        # Everything is caught here: what a task raises would end the loop (KeyboardInterrupt) or
        # be logged as never retrieved.
        try:
            awaitable = self._start()
            del self._start  # A task left behind keeps the call, but not its arguments.
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
        del self._working[task]
        if self._cancel_again is not None:
            self._cancel_again.cancel()
        result = outcome.Error(asyncio.CancelledError()) if task.cancelled() else task.result()
        try:
            self._token.run_sync_soon(self._end, result)
        except trio.RunFinishedError:  # pragma: no cover (trio broke down meanwhile)
            pass

    def cancel_task(self) -> None:
        """Cancel the asyncio task, and again if it takes too long; once, however many ask."""
        if self._cancel_again is None:
            self._cancel_until_ended(CLEANUP_SECONDS)

    def _cancel_until_ended(self, again_after_seconds: float) -> None:
        if self._task is not None:
            self._task.cancel()
            self._cancel_again = self.loop.call_later(
                again_after_seconds, self._cancel_until_ended, CANCEL_AGAIN_SECONDS
            )

    async def in_trio(
        self, fn: Callable[..., Awaitable[T]], args: tuple[Any, ...], context: contextvars.Context
    ) -> outcome.Outcome[T]:
        """Call a function in trio, and wait for its outcome; in the loop's thread."""
        ended: asyncio.Future[outcome.Outcome[T]] = self.loop.create_future()
        scope = trio.CancelScope()

        def tell(result: outcome.Outcome[T]) -> None:
            self.loop.call_soon_threadsafe(ended.set_result, result)

        async def called() -> None:
            result: outcome.Outcome[T] = outcome.Error(asyncio.CancelledError())
            try:
                with scope:
                    awaitable = fn(*args)
                    if not inspect.isawaitable(awaitable):
                        raise TypeError(
                            f"{name_of(fn)}() returned {awaitable!r}, which trio can't wait for; "
                            "give call_trio() an `async def` function"
                        )
                    result = outcome.Value(await awaitable)
            except BaseException as error:
                # A cancel ends here: the caller is cancelled too, and gets its own.
                if not is_only_cancelled(error):
                    rest = without_cancelled(error)
                    if not isinstance(rest, Exception):
                        raise
                    result = outcome.Error(rest)
            finally:
                tell(result)

        @enable_ki_protection
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
        result = ended.result()
        if cancelled is not None and not (
            isinstance(result, outcome.Error) and isinstance(result.error, Exception)
        ):
            raise cancelled
        return result  # Including an error in its clean-up.


def _ended_error(name: str) -> AsyncioBridgeError:
    return AsyncioBridgeError(
        f"call_trio() was called by an asyncio task that {name}() left behind when it ended; "
        "wait for the task before returning"
    )
