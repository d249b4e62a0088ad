"""Leave a run in each of the ways there are.

Many promises hold "on every way out". A test that is parametrised with `WAYS_OUT` and calls
`leave` holds them to it. Needs a clock that jumps.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

import harness

Inside = Callable[[harness.Run], Awaitable[object]]


class Boom(Exception):
    """The error that the body of a failing run raises."""


async def do_nothing(run: harness.Run) -> None:
    """Do what the body of an uninteresting run does."""


WAYS_OUT: dict[str, str] = {
    "returns": "ok",
    "returns although cancelled": "ok",
    "raises": "failed",
    "raises although cancelled": "failed",
    "is cancelled": "cancelled",
    "is cancelled with grace": "cancelled",
    "times out": "timed_out",
    "scope around it is cancelled": "cancelled",
    "parent is cancelled": "cancelled",
    "parent times out": "cancelled",
}
"""Each way out, and the status that the run ends with."""


async def leave(way: str, inside: Inside = do_nothing, *, name: str = "leaver") -> harness.Run:
    """Open a run, do ``inside`` in its body, leave it by the way named, and return its handle.

    Every way has at least one checkpoint after ``inside``; none lets an exception out.
    """
    handles: list[harness.Run] = []

    async def body(run: harness.Run) -> None:
        handles.append(run)
        await inside(run)
        await trio.lowlevel.checkpoint()

    if way == "returns":
        async with harness.open_run(name) as run:
            await body(run)
    elif way == "returns although cancelled":
        async with harness.open_run(name) as run:
            await body(run)
            run.cancel("too late")
    elif way == "raises":
        try:
            async with harness.open_run(name) as run:
                await body(run)
                raise Boom
        except Boom:
            pass
    elif way == "raises although cancelled":
        try:
            async with harness.open_run(name) as run:
                await body(run)
                run.cancel("no matter")
                try:
                    await trio.sleep_forever()
                finally:
                    raise Boom
        except Boom:
            pass
    elif way == "is cancelled":
        async with harness.open_run(name) as run:
            await body(run)
            run.cancel("not needed")
            await trio.sleep_forever()
    elif way == "is cancelled with grace":
        async with harness.open_run(name) as run:
            await body(run)
            run.cancel("not needed", grace=3)
            await trio.sleep_forever()
    elif way == "times out":
        try:
            async with harness.open_run(name, timeout=3) as run:
                await body(run)
                await trio.sleep_forever()
        except harness.errors.RunTimedOut:
            pass
    elif way == "scope around it is cancelled":
        with trio.CancelScope() as scope:
            async with harness.open_run(name) as run:
                await body(run)
                scope.cancel()
                await trio.sleep_forever()
    elif way == "parent is cancelled":
        async with harness.open_run("parent") as parent:
            async with harness.open_run(name) as run:
                await body(run)
                parent.cancel("not needed")
                await trio.sleep_forever()
    elif way == "parent times out":
        try:
            async with harness.open_run("parent", timeout=3):
                async with harness.open_run(name) as run:
                    await body(run)
                    await trio.sleep_forever()
        except harness.errors.RunTimedOut:
            pass
    else:
        raise AssertionError(f"there is no way out called {way!r}; see WAYS_OUT")
    return handles[0]
