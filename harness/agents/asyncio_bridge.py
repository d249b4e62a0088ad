"""Run code that only knows asyncio, from a run.

Many frameworks need an asyncio event loop. Here such a loop lives in a worker thread of its own,
and a coroutine is run there for a trio task that waits for it::

    async with open_asyncio() as loop:       # one thread and loop, for any number of runs
        results = await harness.fan_out(partial(loop.run, framework_agent.run), questions)

    answer = await run_asyncio(framework_agent.run, question)      # a loop for this call alone

To the run it is one call like any other. The asyncio code sees the caller's context variables, so
`harness.current_run` is the caller's run. A cancel or deadline of the caller cancels the
asyncio task, and the caller goes on when that has ended. Asyncio code can call back with
`call_trio`: the function runs in the caller's run, under the caller's scopes.

Whose is what: the loop belongs to the block of `open_asyncio` and to no run. A call belongs to its
caller. Tasks that asyncio code leaves behind belong to the loop: they are cancelled when the block
is left.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import outcome
import trio

from harness.agents._asyncio_call import Call, current_call
from harness.errors import AsyncioBridgeError
from harness.runs._functions import check_callable, name_of

__all__ = ["AsyncioLoop", "call_trio", "open_asyncio", "run_asyncio"]

P = ParamSpec("P")
T = TypeVar("T")


async def run_asyncio(
    fn: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **named: P.kwargs
) -> T:
    """Call an asyncio function in a loop of its own, in a worker thread, and wait for its value.

    For one call now and then. For many, or for clients that keep connections between calls, open
    one loop with `open_asyncio` and use its `AsyncioLoop.run`.

    Args:
      fn: The asyncio function.
      *args: What it is called with.
      **named: What it is called with, by name.

    Returns:
      Its value. Whatever tasks it left behind have ended.

    Raises:
      TypeError: if ``fn`` isn't a function, or returns nothing to wait for.
      AsyncioBridgeError: if it was cancelled from inside asyncio.
      Exception: its own, as it raised it.

    Checkpoint: always.

    Cancellation: as for `AsyncioLoop.run`.
    """
    async with open_asyncio() as loop:
        return await loop.run(fn, *args, **named)


def open_asyncio(*, debug: bool | None = None) -> AsyncioLoop:
    """Open an asyncio loop in a worker thread: ``async with open_asyncio() as loop:``.

    Args:
      debug: Whether the loop is in asyncio's debug mode; None: as asyncio decides.

    Leaving the block cancels what still runs in the loop, waits for it and ends the thread.
    """
    return AsyncioLoop(debug=debug)


class AsyncioLoop:
    """An asyncio loop in a thread of its own; what `open_asyncio` returns.

    Any number of tasks may use it at once. It is used inside its block only, in the ``trio.run``
    that it was opened in.
    """

    def __init__(self, *, debug: bool | None = None) -> None:
        self._debug = debug
        self._loop: asyncio.AbstractEventLoop | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._calls: set[Call[Any]] = set()
        self._stop: asyncio.Event | None = None
        self._left = False
        self._thread_ended: trio.Event | None = None
        self._thread: threading.Thread
        self._failure: BaseException | None = None

    async def __aenter__(self) -> AsyncioLoop:
        """Start the thread and its loop.

        Checkpoint: always.

        Cancellation: the thread has ended.
        """
        if self._token is not None:
            raise RuntimeError(
                "this asyncio loop was opened before; call open_asyncio() for each block"
            )
        token = self._token = trio.lowlevel.current_trio_token()
        started, self._thread_ended = trio.Event(), trio.Event()
        # An empty context: what is set where the loop happens to be opened isn't every call's.
        self._thread = threading.Thread(
            target=contextvars.Context().run,
            args=(self._serve, token, started, self._thread_ended),
            name="harness asyncio loop",
            daemon=True,
        )
        self._thread.start()
        with trio.CancelScope(shield=True):  # It takes a moment, and can't hang.
            await started.wait()
        try:
            if self._loop is None:
                raise AsyncioBridgeError(
                    "the asyncio loop could not be started; the cause says why"
                ) from self._failure
            await trio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Cancel what still runs in the loop, and wait until the thread has ended; shielded."""
        await self._close()

    async def run(
        self, fn: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **named: P.kwargs
    ) -> T:
        """Call an asyncio function in this loop, and wait for its value.

        Args:
          fn: The asyncio function. It sees the caller's context variables, and so its run.
          *args: What it is called with.
          **named: What it is called with, by name.

        Raises:
          TypeError: if ``fn`` isn't a function, or returns nothing to wait for.
          RuntimeError: outside of the block, or in another ``trio.run``.
          AsyncioBridgeError: if it was cancelled from inside asyncio, or the loop was closed
            before it ended.
          Exception: its own, as it raised it.

        Checkpoint: always.

        Cancellation: the asyncio task is cancelled, and this waits until it has ended. If it
        takes longer than 5 s (its clean-up, or code that swallows the cancel), it is cancelled
        again, and once a second from then on. If it returns a value in spite of that, the value
        is returned. A function that blocks the loop's thread can't be cancelled.
        """
        check_callable("AsyncioLoop.run()", fn)
        loop = self._open_loop(name_of(fn))
        await trio.lowlevel.checkpoint_if_cancelled()
        call = Call(lambda: fn(*args, **named), name_of(fn), loop)
        self._calls.add(call)
        try:
            return await call.result()
        finally:
            self._calls.discard(call)

    def _open_loop(self, name: str) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._left:
            state = "its block has been left" if self._left else "it isn't open"
            raise RuntimeError(
                f"{name} can't run in this asyncio loop: {state}; use it inside "
                "`async with open_asyncio() as loop:`"
            )
        if self._token is not trio.lowlevel.current_trio_token():
            raise RuntimeError(
                f"{name} can't run in this asyncio loop: it was opened in another trio.run; "
                "open one in each"
            )
        return self._loop

    def _serve(
        self, token: trio.lowlevel.TrioToken, started: trio.Event, ended: trio.Event
    ) -> None:
        """Be the thread: run the loop until it is told to stop."""

        async def until_stopped() -> None:
            self._loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            token.run_sync_soon(started.set)
            await self._stop.wait()

        try:
            with asyncio.Runner(debug=self._debug) as runner:
                runner.run(until_stopped())
        except BaseException as error:
            self._failure = error  # A thread has nobody to raise it to.
        finally:
            try:
                token.run_sync_soon(started.set)
                token.run_sync_soon(ended.set)
            except trio.RunFinishedError:  # pragma: no cover (trio broke down meanwhile)
                pass

    async def _close(self) -> None:
        self._left = True
        assert self._thread_ended is not None
        for call in tuple(self._calls):
            call.close()
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        waiting_for = "the asyncio loop's thread to end"  # noqa: F841 (read by `dump`)
        with trio.CancelScope(shield=True):
            await self._thread_ended.wait()
        self._thread.join()  # Telling us was the last thing it did.
        self._loop = None


async def call_trio(fn: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Call a trio function from asyncio code that a run called, and wait for its value.

    The function runs in the trio task's place: in the caller's run, under its cancel scopes and
    deadline, with the context variables of the asyncio code. So tools, limits and inner runs work
    from inside an asyncio framework.

    Args:
      fn: The trio function.
      *args: What it is called with.

    Raises:
      RuntimeError: outside of what `AsyncioLoop.run` or `run_asyncio` called.
      Exception: its own, as it raised it.

    Cancellation: an asyncio cancel cancels the trio function and waits for its end.
    """
    call = current_call.get()
    if call is None or asyncio.get_running_loop() is not call.loop:
        raise RuntimeError(
            f"call_trio({name_of(fn)}) was called outside of what a run called in asyncio; it "
            "works in functions called by AsyncioLoop.run() or run_asyncio(), and in their tasks"
        )
    check_callable("call_trio()", fn)
    context = contextvars.copy_context()
    result: outcome.Outcome[T] = await call.in_trio(fn, args, context)
    return result.unwrap()
