"""Tell what kind of program a target is: one for trio or one for asyncio.

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
from harness.testing.schedules._strand import Kind

BACKENDS: Mapping[Kind, Callable[[], Backend]] = {
    "trio": lambda: _step_backends.backend(),
    "asyncio": AsyncioBackend,
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
    return kind_by_marker(target) or by_names(globals_used(target)) or surroundings.get()


def kind_by_marker(target: object) -> Kind | None:
    """Return the kind that a test's pytest markers name, if they do."""
    marks = getattr(target, "pytestmark", ())
    names = {getattr(mark, "name", "") for mark in (marks if isinstance(marks, list) else [marks])}
    return next((kind for kind in BACKENDS if kind in names), None)


def other_kind(kind: Kind, errors: Iterable[BaseException | None]) -> Kind | None:
    """Return the kind that code is, if errors show that it isn't of the kind it was taken for."""
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
    function: Any = inspect.unwrap(target) if callable(target) else target
    while isinstance(function, partial):
        function = inspect.unwrap(function.func)
    function = getattr(function, "__func__", function)
    if not inspect.isfunction(function):
        function = getattr(type(function).__call__, "__func__", type(function).__call__)
    if not inspect.isfunction(function):
        return
    pending: list[CodeType] = [function.__code__]
    while pending:
        code = pending.pop()
        pending += [const for const in code.co_consts if isinstance(const, CodeType)]
        for name in code.co_names:
            if name in function.__globals__:
                yield function.__globals__[name]


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
