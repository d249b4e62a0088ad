"""Open a run for each call of a function: `open_run` as a decorator.

State belongs to the call. A run around a batch keeps its items apart, but two calls inside one run
would still share a `RunLocal`; with this, each call has its own, wherever it comes from.

A plain function, and any function called outside trio, gets a run that owns only state: id, deps,
tags, budget and `RunLocal` values. Nothing could cancel it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import CoroutineType
from typing import Any, Protocol

from trio.lowlevel import current_task, disable_ki_protection, enable_ki_protection

from harness.runs._endings import cancelled_error
from harness.runs._functions import check_callable, name_of
from harness.runs._run import Run


class CallBlock(AbstractAsyncContextManager[Run, bool], Protocol):
    """The block of one call."""

    def plainly(self) -> AbstractContextManager[Run]:
        """Return the block of a run that owns only state."""
        ...

    def refuse_plain_function(self, name: str) -> None:
        """Raise if the run can't own only state, as a plain function's does."""
        ...


def run_each_call(fn: Any, make_block: Callable[[], CallBlock]) -> Any:
    """Return a function like ``fn``, each call of which is a run of its own.

    Raises:
      TypeError: if ``fn`` isn't a function, or is a generator function, whose body goes on after
        its call has returned.
    """
    if isinstance(fn, staticmethod | classmethod):
        raise TypeError(
            f"@open_run(...) is above a {type(fn).__name__}, which isn't a function yet; swap "
            f"the two lines, so that @{type(fn).__name__} comes first"
        )
    check_callable("@open_run(...)", fn)
    _refuse_generators(fn)
    if _is_async(fn):
        return _async_calls(fn, make_block)
    make_block().refuse_plain_function(name_of(fn))
    return _plain_calls(fn, make_block)


def _is_async(fn: Any) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


def _refuse_generators(fn: Any) -> None:
    body = inspect.unwrap(fn)
    while isinstance(body, functools.partial):
        body = body.func
    name = name_of(fn)
    if inspect.isasyncgenfunction(body):
        raise TypeError(
            f"@open_run(...) can't decorate {name}, whose body is an async generator: between two "
            "yields the run would be its reader's. Write `async with harness.open_run(...)` inside "
            f"it, with @trio.as_safe_channel above `async def {name}` and `async with {name}(...) "
            "as items: async for item in items` around its reader; or decorate an async function "
            "that sends what it has to a memory channel"
        )
    if inspect.isgeneratorfunction(body):
        raise TypeError(
            f"@open_run(...) can't decorate {name}, whose body is a generator: it goes on after "
            "its call has returned. Return a list, or decorate the function that iterates it"
        )


def _async_calls(fn: Any, make_block: Callable[[], CallBlock]) -> Any:
    async def body(*args: Any, **kwargs: Any) -> Any:
        return await fn(*args, **kwargs)

    @functools.wraps(fn)
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            in_trio = current_task() is not None
        except RuntimeError:
            in_trio = False
        if not in_trio:
            with make_block().plainly():
                return await body(*args, **kwargs)
        async with make_block() as run:
            return await body(*args, **kwargs)
        # The block was left quietly, so its own cancel took effect.
        raise cancelled_error(run)

    _protect(call, user=body)
    return call


def _plain_calls(fn: Any, make_block: Callable[[], CallBlock]) -> Any:
    def body(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        with make_block().plainly():
            returned = body(*args, **kwargs)
            if type(returned) is CoroutineType:
                returned.close()
                raise TypeError(
                    f"{name_of(fn)}() is a plain function under @open_run(...) and returned "
                    f"{returned.__qualname__}(), which would go on after its run has ended; "
                    "define it with `async def` and await that in it"
                )
            return returned

    _protect(call, user=body)
    return call


def _protect(call: Callable[..., Any], *, user: Callable[..., Any]) -> None:
    """Let Ctrl-C interrupt the user's function, but not our lines around it.

    Their results are used only if they don't wrap: older versions of trio do, and a wrapper isn't
    recognized as an async function. There our lines stay as they are.
    """
    enable_ki_protection(call)
    disable_ki_protection(user)
