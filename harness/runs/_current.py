"""Find the run that the calling code belongs to."""

from __future__ import annotations

import os
from contextvars import ContextVar
from typing import Any, TypeVar, overload

from harness._outside_trio import PAGE, in_asyncio
from harness._words import repr_of
from harness.errors import NoRunError
from harness.runs._frames import where_we_are
from harness.runs._run import Run

AskedT = TypeVar("AskedT")

current: ContextVar[Run | None] = ContextVar("harness.current_run", default=None)
"""The run that code belongs to. The only place where runs are ambient."""


@overload
def current_run() -> Run[Any]: ...
@overload
def current_run(deps_type: type[AskedT], /) -> Run[AskedT]: ...
def current_run(deps_type: Any = None, /) -> Run[Any]:
    """Return the run this code belongs to.

    In a task that outlived its run, this is the run that ended; using it raises `RunEndedError`.

    Args:
      deps_type: The class that the run's `Run.deps` must be of; type checkers then know what they
        are. None: whatever they are, and nothing is checked.

    Raises:
      NoRunError: outside of any run.
      TypeError: if the run's deps are no ``deps_type``, or it is nothing that can be checked.
      RunEndedError: with ``deps_type``, if the run has ended.
    """
    run = current.get()
    if run is None:
        raise no_run_error()
    if deps_type is not None:
        _check_deps(run, deps_type)
    return run


def _check_deps(run: Run[Any], asked: Any) -> None:
    deps = run.deps
    name = getattr(asked, "__qualname__", None) or repr_of(asked)
    try:
        # Of `dict[str, int]` only `dict` can be checked.
        fits = isinstance(deps, getattr(asked, "__origin__", asked))
    except TypeError as error:
        raise TypeError(
            f"current_run({name}) can't check the deps of run {run.path!r}: {error}; for type "
            f"checkers alone write `run: Run[{name}] = current_run()`"
        ) from None
    if not fits:
        given = "has no deps" if deps is None else f"has {repr_of(deps)} as its deps"
        raise TypeError(
            f"run {run.path!r} {given}, but the code in it asks for an instance of {name}; give "
            "it one, or a run above it, as in open_run(..., deps=...)"
        )


def current_run_or_none() -> Run | None:
    """Return the run this code belongs to, or None outside any."""
    return current.get()


def no_run_error(why: str = "") -> NoRunError:
    """Return the error that says how to get a run where this is called.

    Args:
      why: What needs one, if that isn't obvious; ends with a comma or "and".
    """
    where = where_we_are()
    return NoRunError(
        f"{why}{' ' if why else ''}there is no run here{where}; open one with "
        '`async with harness.open_run("name"):`, or put @harness.open_run("name") above the '
        f"function, for a run of its own for each call{_advice(in_trio=bool(where))}"
    )


def _advice(*, in_trio: bool) -> str:
    if in_trio:
        advice = (
            ". A task of a nursery outside the run's block is the run's if it is started with "
            "harness.start_soon(nursery, fn, run=run)"
        )
    elif in_asyncio():
        advice = f". In asyncio only the decorator will do: the block needs trio; see {PAGE}"
    else:
        advice = (
            ". In a plain function only the decorator will do; a thread has the run of whoever "
            "starts it with trio.to_thread.run_sync"
        )
    if "PYTEST_CURRENT_TEST" in os.environ:
        advice += (
            ". An async test has a run of its own, unless the setting or the marker harness_run "
            "turns that off; what a plain test or a fixture calls hasn't"
        )
    return advice
