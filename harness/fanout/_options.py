"""What every fan-out is given: the defaults, and what is refused before anything runs."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from harness._arguments import check_count, check_seconds
from harness.policies import Attempt, FailFast, check_attempt, check_policy
from harness.runs._current import current_run_or_none
from harness.runs._functions import check_callable, name_of, refuse_mismatch
from harness.runs._run import LASTING_KEY

FAIL_FAST = FailFast()
ONE_ATTEMPT = Attempt()
LIMIT = 100
"""Items in flight unless told otherwise: many for a provider, few for a machine."""


class DefaultName(str):
    """A batch's name that nobody chose: its function's.

    Two fan-outs of one function may be two batches or one that goes on, and only a name tells.
    """

    inside: frozenset[str] = frozenset()
    """The ids of the runs around it up to that of the next item with a journal; none if there is
    no such item."""


def check_function(call: str, fn: Any, *, items: int = 1) -> None:
    """Refuse what can't be called with so many items (one, or none), before anything runs.

    Raises:
      TypeError: if ``fn`` is a coroutine, an async generator, not callable, or takes no argument.
    """
    check_callable(call, fn)
    if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
        raise TypeError(
            f"{call} takes an async function that returns a value, not the generator function "
            f"{name_of(fn)}; return a list, or use a pipeline stage to yield several"
        )
    what, parameters = ("one item", "item") if items else ("no argument", "")
    refuse_mismatch(
        call, fn, what, parameters, advice=", or give it the others with functools.partial"
    )


def check_options(
    call: str,
    *,
    policy: object,
    limit: object,
    within: object,
    each: object,
    key: object,
    name: object,
) -> None:
    """Refuse options that make no sense, before anything runs.

    Raises:
      TypeError: if one has the wrong type.
      ValueError: if a number is out of range.
    """
    check_policy(f"{call}(policy=...)", policy)
    check_count(f"{call}(limit=...)", limit, advice="say how many items may be in flight at once")
    if within is not None:
        check_seconds(f"{call}(within=...)", within, advice="None is for no limit")
    if not isinstance(each, Attempt) and (not callable(each) or isinstance(each, type)):
        raise TypeError(
            f"{call}(each=...) takes an Attempt, or a function of the item that returns one, not "
            f"{each!r}; write each=harness.Attempt(...)"
        )
    if isinstance(each, Attempt):
        check_attempt(f"{call}(each=...)", each)
    if name is not None and (not isinstance(name, str) or not name):
        raise TypeError(
            f"{call}(name=...) takes a name for people, not {name!r}; "
            "leave it out for the function's name"
        )
    for option, function in (("key", key), ("each", each)):
        if inspect.iscoroutinefunction(function):
            raise TypeError(
                f"{call}({option}=...) takes a plain function of the item, not the async function "
                f"{name_of(function)}: it is asked before the item starts, which must not wait"
            )
    if key is not None and not callable(key):
        raise TypeError(
            f"{call}(key=...) takes a function of the item, not {key!r}; "
            "write key=lambda item: item.id"
        )


def journal_options(
    call: str, fn: Any, *, journal: object, key: object, name: str | None
) -> dict[str, Any]:
    """Return what a journal calls the batch of a fan-out; refuse what it couldn't be resumed with.

    Raises:
      TypeError: if there is no key, or ``journal`` is none.
    """
    if not hasattr(journal, "fan_out_engine"):
        raise TypeError(
            f"{call}(journal=...) takes an open journal, not {journal!r}; write "
            "async with harness.journal.open_journal(path) as journal:"
        )
    if key is None:
        raise TypeError(
            f"{call}(journal=...) needs key=: an item is found again by its key, and its place in "
            "the input may be another one next time; write key=lambda item: item.id"
        )
    inner = fn
    while isinstance(inner, functools.partial):
        inner = inner.func
    of = inner if hasattr(inner, "__qualname__") else type(inner)
    options: dict[str, Any] = {
        "batch_name": _default_name(fn) if name is None else name,
        "target": f"{of.__module__}.{of.__qualname__}",
        "settings": {},
    }
    for form in (inner, getattr(inner, "__self__", None)):  # An agent, or its method `run`.
        # Of its class: a mock has whatever it is asked for.
        if hasattr(type(form), "value_to_json") and hasattr(type(form), "value_from_json"):
            options["form"] = form
    return options


def _default_name(fn: Any) -> DefaultName:
    name = DefaultName(name_of(fn))
    run = current_run_or_none()
    inside: list[str] = []
    for one in () if run is None else (run, *run._ancestors()):
        inside.append(one.id)
        if one._locals is not None and LASTING_KEY in one._locals:
            name.inside = frozenset(inside)
            break
    return name
