"""Run an asyncio loop in a worker thread, with calls into it and back."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

import outcome
import trio

from harness._events import happened
from harness._outside_trio import refuse_outside_trio
from harness.asyncio_bridge._call import CANCEL_AGAIN_SECONDS, Call, current_call
from harness.errors import AsyncioBridgeError
from harness.runs._functions import check_callable, name_of
from harness.runs._run import CLEANUP_SECONDS

P = ParamSpec("P")
T = TypeVar("T")

STOPPED = (
    "asyncio code has stopped the loop, by loop.stop() or a KeyboardInterrupt in a task; its end "
    "is for open_asyncio() alone"
)

NAMES_AT_MOST = 5
"""How many asyncio tasks to name when somebody asks what the end of a loop is waiting for."""


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
      Its value. Any tasks it left behind have ended.

    Raises:
      TypeError: if ``fn`` isn't a function, or returns nothing to wait for.
      AsyncioBridgeError: if it was cancelled from inside asyncio.
      Exception: its own, as it raised it.

    Checkpoint: always.

    Cancellation: as for `AsyncioLoop.run`.
    """
    refuse_outside_trio(f"run_asyncio({name_of(fn)}) was called")
    async with open_asyncio() as loop:
        return await loop.run(fn, *args, **named)


def open_asyncio(*, debug: bool | None = None) -> AsyncioLoop:
    """Open an asyncio loop in a worker thread: ``async with open_asyncio() as loop:``.

    Args:
      debug: Whether the loop is in asyncio's debug mode; None: asyncio decides.

    Leaving the block cancels what is still running in the loop, waits for it and ends the thread.
    Whatever swallows the cancel is cancelled again after 5 s, and once a second from then on.
    """
    return AsyncioLoop(debug=debug)


class AsyncioLoop:
    """An asyncio loop in a thread of its own, from `open_asyncio`.

    Any number of tasks may use it at once. It works only inside its block, in the ``trio.run`` it
    was opened in.
    """

    def __init__(self, *, debug: bool | None = None) -> None:
        self._debug = debug
        self._loop: asyncio.AbstractEventLoop | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._calls: set[Call[Any]] = set()
        # Both belong to the loop's thread; the other one only looks at the second.
        self._working: dict[asyncio.Task[Any], Call[Any]] = {}
        self._left_behind: tuple[str, ...] = ()
        self._stop: asyncio.Event | None = None
        self._left = False
        self._stopped = False
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
                "this asyncio loop was already opened; call open_asyncio() for each block"
            )
        refuse_outside_trio("open_asyncio() was called")
        token = self._token = trio.lowlevel.current_trio_token()
        started, self._thread_ended = trio.Event(), trio.Event()
        # An empty context: what is set where the loop happens to be opened isn't meant for every
        # call.
        self._thread = threading.Thread(
            target=contextvars.Context().run,
            args=(self._serve, token, started, self._thread_ended),
            name="harness asyncio loop",
            daemon=True,
        )
        self._thread.start()
        with trio.CancelScope(shield=True):  # Takes only a moment, and can't hang.
            await happened(started)
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

    async def __aexit__(self, *_: object) -> None:
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
          RuntimeError: outside the block, or in another ``trio.run``.
          AsyncioBridgeError: if it was cancelled from inside asyncio, or the loop was closed
            before it ended, or asyncio code has stopped the loop.
          Exception: its own, as it raised it.

        Checkpoint: always.

        Cancellation: the asyncio task is cancelled, and this waits until it has ended. If it
        takes longer than 5 s (its clean-up, or code that swallows the cancel), it is cancelled
        again, and once a second from then on. If it returns a value all the same, that value is
        returned. A function that blocks the loop's thread can't be cancelled.
        """
        check_callable("AsyncioLoop.run()", fn)
        loop = self._open_loop(name_of(fn))
        await trio.lowlevel.checkpoint_if_cancelled()
        call = Call(lambda: fn(*args, **named), name_of(fn), loop, self._working)
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
        if self._stopped:
            raise AsyncioBridgeError(
                f"{name} can't run in this asyncio loop: {STOPPED}"
            ) from self._failure
        return self._loop

    def _serve(
        self, token: trio.lowlevel.TrioToken, started: trio.Event, ended: trio.Event
    ) -> None:
        """Be the thread: run the loop until it is told to stop."""

        async def until_stopped() -> None:
            self._loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            token.run_sync_soon(started.set)
            while not self._stop.is_set():
                # Asyncio code may cancel every task it finds, including this one.
                with contextlib.suppress(asyncio.CancelledError):
                    await self._stop.wait()
            await self._cancel_all()

        try:
            with asyncio.Runner(debug=self._debug) as runner:
                try:
                    runner.run(until_stopped())
                finally:
                    if self._stop is not None and not self._stop.is_set():
                        # Asyncio code has stopped the loop, or raised a KeyboardInterrupt in it.
                        token.run_sync_soon(self._has_stopped)
                        self._stop.set()
        except BaseException as error:
            self._failure = error  # A thread has nobody to raise it to.
        finally:
            try:
                token.run_sync_soon(started.set)
                token.run_sync_soon(self._thread_has_ended, ended)
            except trio.RunFinishedError:  # pragma: no cover (trio broke down meanwhile)
                pass

    async def _cancel_all(self) -> None:
        """Cancel whatever is running in the loop until it has ended; in the loop's thread."""
        again_after_seconds = CLEANUP_SECONDS
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            self._left_behind = tuple(task.get_name() for task in tasks)
            for task in tasks:
                if (call := self._working.get(task)) is not None:
                    call.cancel_task()  # It may already be in its clean-up, and has time for that.
                else:
                    task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(tasks, timeout=again_after_seconds)
            again_after_seconds = CANCEL_AGAIN_SECONDS

    def _has_stopped(self) -> None:
        """Note that the loop ended before its block; in trio's thread."""
        self._stopped = True
        for call in self._calls:
            call.close(STOPPED)

    def _thread_has_ended(self, ended: trio.Event) -> None:
        """Tell everybody waiting for it; in trio's thread, after all else the thread had to say."""
        for call in self._calls:
            call.abandon(STOPPED)
        ended.set()

    async def _close(self) -> None:
        self._left = True
        assert self._thread_ended is not None
        for call in tuple(self._calls):
            call.close(
                "its asyncio loop was closed; keep the block of open_asyncio() open until all "
                "that uses it has ended"
            )
        if self._loop is not None and self._stop is not None:
            # Closed already, if asyncio code has stopped it.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)
        _waiting_for = self._end_in_words
        with trio.CancelScope(shield=True):
            await happened(self._thread_ended)
        self._thread.join()  # Telling us was the last thing it did.
        self._loop = None

    def _end_in_words(self) -> str:
        names = ", ".join(self._left_behind[:NAMES_AT_MOST])
        more = ", ..." if len(self._left_behind) > NAMES_AT_MOST else ""
        return "the asyncio loop's thread to end" + (
            f", with tasks: {names}{more}" if names else ""
        )


async def call_trio(fn: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Call a trio function from asyncio code that a run called, and wait for its value.

    The function runs in place of the trio task: in the caller's run, under its cancel scopes and
    deadline, with the context variables of the asyncio code. So tools, limits and inner runs work
    from inside an asyncio framework.

    Args:
      fn: The trio function.
      *args: What it is called with.

    Raises:
      TypeError: if ``fn`` isn't a function, or returns nothing to wait for.
      RuntimeError: outside code called by `AsyncioLoop.run` or `run_asyncio`.
      Exception: its own, as it raised it.

    Checkpoint: always, in asyncio; in trio as ``fn`` does.

    Cancellation: an asyncio cancel cancels the trio function and waits for its end. An error in its
      clean-up is raised instead of `asyncio.CancelledError`.
    """
    call = current_call.get()
    # What it calls in trio sees the variable too, but there is no loop.
    if call is None or asyncio._get_running_loop() is not call.loop:
        raise RuntimeError(
            f"call_trio({name_of(fn)}) was called outside what a run called in asyncio; it "
            "works in functions called by AsyncioLoop.run() or run_asyncio(), and in their tasks "
            "(docs/how-to/asyncio.md shows how)"
        )
    check_callable("call_trio()", fn)
    context = contextvars.copy_context()
    result: outcome.Outcome[T] = await call.in_trio(fn, args, context)
    return result.unwrap()
