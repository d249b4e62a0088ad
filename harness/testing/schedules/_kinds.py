"""Tell what kind of program a target is: one for trio, one for asyncio, or one of threads.

A plain function is one of threads, unless what it returns has to be awaited.

What a test says in a marker or as ``backend=`` counts. Else its code may name one of the two, and
not the other. Else it is taken for what its surroundings are, which is right for code that works in
both, such as anyio's. If that was wrong, the first wait of the other kind says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from types import CodeType
from typing import Any

from harness.testing.schedules import _step_backends
from harness.testing.schedules._asyncio_backend import AsyncioBackend
from harness.testing.schedules._backend import Backend
from harness.testing.schedules._strand import RETURNED_AWAITABLE, Kind
from harness.testing.schedules._thread_backend import ThreadBackend

BACKENDS: Mapping[Kind, Callable[[], Backend]] = {
    "trio": lambda: _step_backends.backend(),
    "asyncio": AsyncioBackend,
    "threads": ThreadBackend,
}

_FOREIGN: Mapping[Kind, tuple[str, ...]] = {
    "asyncio": (
        "no running event loop",
        "no current event loop",
        "unrecognized yield message",
    ),
    "trio": (
        "must be called from async context",
        "Cannot be used outside of a run context",
        "'RunContext' object has no attribute",
        "Task got bad yield: <class 'trio",
        "outside trio",
    ),
}
"""By kind, what the errors say that its waits give in a loop of the other kind."""

_FAR = 4
"""From how far away a target's kind is told: what it names, what that names, and so on."""

surroundings: ContextVar[Kind] = ContextVar("harness.testing.surroundings", default="trio")
"""The kind of the loop around the code that checks something."""


def check_kind(where: str, kind: str | None) -> Kind | None:
    """Return what was given as ``backend=``.

    Raises:
      ValueError: if there is no such kind.
    """
    for known in BACKENDS:
        if kind == known:
            return known
    if kind is None:
        return None
    raise ValueError(
        f"{where} takes one of {', '.join(map(repr, BACKENDS))}, not {kind!r}; leave it out to "
        "have it told from the code"
    )


def probable_kind(target: object) -> Kind:
    """Return what kind a target seems to be."""
    if (marked := kind_by_marker(target)) is not None:
        return marked
    return "threads" if is_plain(target) else probable_loop(target)


def probable_loop(target: object) -> Kind:
    """Return which loop a target seems to be for."""
    # A test often names only what it tests. So what that names counts too, and so on.
    named = list(globals_used(target))
    seen: set[int] = set()
    for _ in range(_FAR):
        if (kind := by_names(named)) is not None:
            return kind
        further = [thing for thing in named if id(thing) not in seen]
        seen.update(map(id, further))
        named = [
            one for thing in further for code in _functions_in(thing) for one in globals_used(code)
        ]
    return surroundings.get()


def _functions_in(thing: object) -> Iterator[Any]:
    """Yield a function, or those of a class; none of anyio's, which works with either kind."""
    if str(getattr(thing, "__module__", "")).partition(".")[0] == "anyio":
        return
    if inspect.isfunction(thing):
        yield thing
    elif inspect.isclass(thing):
        for member in vars(thing).values():
            function = getattr(member, "__func__", member)
            if inspect.isfunction(function):
                yield function


def is_plain(target: object) -> bool:
    """Tell whether a target looks like a plain function, which nobody awaits."""
    function = _function_of(target)
    return inspect.isfunction(function) and not (
        inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    )


def kind_by_marker(target: object) -> Kind | None:
    """Return the kind that a test's pytest markers name, if they do."""
    marks = getattr(target, "pytestmark", ())
    names = {getattr(mark, "name", "") for mark in (marks if isinstance(marks, list) else [marks])}
    return next((kind for kind in BACKENDS if kind in names), None)


def other_kind(kind: Kind, errors: Iterable[BaseException | None]) -> Kind | None:
    """Return the kind that code is, if errors show that it isn't of the kind it was taken for."""
    if kind == "threads":
        returned = [error for error in errors if RETURNED_AWAITABLE in str(error)]
        return surroundings.get() if returned else None
    for other, words in _FOREIGN.items():
        if other != kind:
            for error in errors:
                if error is not None and any(
                    word in str(one) for one in _with_causes(error) for word in words
                ):
                    return other
    return None


def by_names(things: Iterable[Any]) -> Kind | None:
    """Return the kind that things in code belong to, if they are of one kind only."""
    found: set[Kind] = set()
    for thing in things:
        name = thing.__name__ if inspect.ismodule(thing) else getattr(thing, "__module__", None)
        for kind in BACKENDS:
            if isinstance(name, str) and name.partition(".")[0] == kind:
                found.add(kind)
    return found.pop() if len(found) == 1 else None


def globals_used(target: object) -> Iterator[Any]:
    """Yield what a function's code names in its module, and in what it closes over."""
    function = _function_of(target)
    if not inspect.isfunction(function):
        return
    pending: list[CodeType] = [function.__code__]
    while pending:
        code = pending.pop()
        pending += [const for const in code.co_consts if isinstance(const, CodeType)]
        for name in code.co_names:
            if name in function.__globals__:
                yield function.__globals__[name]


def _function_of(target: object) -> Any:
    """Return the function that is called in the end."""
    function: Any = inspect.unwrap(target) if callable(target) else target
    while isinstance(function, partial):
        function = inspect.unwrap(function.func)
    function = getattr(function, "__func__", function)
    if not inspect.isfunction(function) and callable(function):
        call = type(function).__call__
        function = inspect.unwrap(getattr(call, "__func__", call))
    return function


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        pending += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            pending += one.exceptions
