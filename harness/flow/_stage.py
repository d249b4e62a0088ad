"""Describe one stage of a pipeline: a function, its limit, what happens to each call."""

from __future__ import annotations

import inspect
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Generic, Literal, TypeVar, overload

import attrs

from harness._arguments import check_count, check_seconds, says_where_options_are
from harness.fanout import Drop
from harness.fanout._plan import ELSEWHERE, LIMIT, check_each
from harness.fanout._tries import ONE_ATTEMPT
from harness.policies import Attempt
from harness.runs._functions import check_callable, name_of, refuse_mismatch

In = TypeVar("In")
Out = TypeVar("Out")
In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)
Shape_co = TypeVar("Shape_co", covariant=True)

One = Literal["one"]
"""The shape of a stage that returns one value for an item."""

Several = Literal["several"]
"""The shape of a stage that yields several."""

OneFunction = Callable[[In], Awaitable[Out | Drop]]
"""What gives one value for an item."""

SeveralFunction = Callable[[In], AsyncIterator[Out | Drop]]
"""What gives several values for an item: an async generator function."""

StageFunction = Callable[[Any], Awaitable[Any]] | Callable[[Any], AsyncIterator[Any]]
"""What a stage calls."""

EachItem = Attempt | Callable[[Any], Attempt]
"""What happens to each call: an `Attempt`, or a function that returns it for an item."""


def _check_size(instance: object, attribute: object, value: Any) -> None:
    check_count("Batch(size)", value, advice="1 calls the stage for each item")


def _check_within(instance: object, attribute: object, value: Any) -> None:
    check_seconds("Batch(within=...)", value, advice="inf waits until the batch is full")


@attrs.frozen
class Batch:
    """How a stage gathers items, to be called with a list of them."""

    size: int = attrs.field(validator=_check_size)
    """The most items in a batch."""

    within: float = attrs.field(default=math.inf, validator=_check_within)
    """Seconds after which a batch starts for a waiting item, with those that came meanwhile. In any
    case a batch starts when nothing more can arrive."""


@attrs.frozen(kw_only=True)
class Stage(Generic[In_contra, Out_co, Shape_co]):
    """One stage of a pipeline; made by `stage`.

    Its types are what it takes, what it gives, and whether it gives one value for an item or
    several, ``Literal["one"]`` or ``Literal["several"]``. They are for type checkers.
    """

    function: StageFunction
    """What it calls."""

    name: str
    """For people: in errors, notes, dumps and statistics."""

    limit: int
    """Calls at once."""

    each: EachItem
    """What happens to each call."""

    batch: Batch | None
    """How it gathers items; None: it is called with one at a time."""

    @property
    def gives_several(self) -> bool:
        """Whether its function is an async generator, whose outputs go on one by one."""
        return is_async_generator(self.function)


AnyStage = Stage[Any, Any, Any]
"""A stage, whatever it takes and gives."""


@overload
def stage(
    fn: SeveralFunction[In, Out],
    *,
    name: str | None = None,
    limit: int | None = None,
    each: Attempt | Callable[[In], Attempt] = ONE_ATTEMPT,
) -> Stage[In, Out, Several]: ...
@overload
def stage(
    fn: Callable[[list[In]], Awaitable[Sequence[Out | Drop]]],
    *,
    name: str | None = None,
    limit: int | None = None,
    each: Attempt | Callable[[list[In]], Attempt] = ONE_ATTEMPT,
    batch: Batch,
) -> Stage[In, Out, One]: ...
@overload
def stage(
    fn: OneFunction[In, Out],
    *,
    name: str | None = None,
    limit: int | None = None,
    each: Attempt | Callable[[In], Attempt] = ONE_ATTEMPT,
    batch: None = None,
) -> Stage[In, Out, One]: ...
@says_where_options_are(ELSEWHERE)
def stage(
    fn: StageFunction,
    *,
    name: str | None = None,
    limit: int | None = None,
    each: EachItem = ONE_ATTEMPT,
    batch: Batch | None = None,
) -> Stage[Any, Any, Any]:
    """Describe one stage of a `Pipeline`.

    Args:
      fn: Called with what the stage before returned. Returns one value, or `DROP` to end the item
        here; as an async generator it yields several, each of which goes on as a run of its own.
      name: For people; by default the function's.
      limit: How many calls at once; by default 100, as for a fan-out, and 1 with ``batch``.
      each: What happens to each call: timeout, retries, hedge, fallback, limiter; or a function
        that returns an `Attempt` for an item.
      batch: If given, ``fn`` is called with a list of items and returns a value for each, in a list
        of equal length. ``limit`` and ``each`` then count batches.

    Raises:
      TypeError: if an argument has the wrong type.
      ValueError: if ``limit`` is less than 1, or ``each`` has tokens and no limiter.
    """
    check_callable("stage()", fn)
    if name is not None and (not isinstance(name, str) or not name):
        raise TypeError(
            f"stage(name=...) takes a readable name, not {name!r}; "
            "leave it out for the function's name"
        )
    named = name_of(fn) if name is None else name
    what = f"stage {named!r}"
    check_takes_one(what, fn)
    if limit is None:
        limit = LIMIT if batch is None else 1
    check_count(f"{what}: stage(limit=...)", limit, advice="say how many calls may be made at once")
    check_each(f"{what}: each=", each)
    if batch is not None:
        if not isinstance(batch, Batch):
            raise TypeError(
                f"{what}: stage(batch=...) takes a Batch, not {batch!r}; "
                "write batch=Batch(32, within=0.1)"
            )
        if is_async_generator(fn):
            raise TypeError(
                f"{what} is an async generator and has batch=; a stage that takes a list returns a "
                "list, so write it as an async function"
            )
    if is_async_generator(fn) and isinstance(each, Attempt) and each.hedge is not None:
        raise TypeError(
            f"{what} is an async generator and has each=Attempt(hedge=...); outputs that went on "
            "can't be taken back when another attempt wins, so leave the hedge out"
        )
    return Stage(function=fn, name=named, limit=limit, each=each, batch=batch)


def is_async_generator(fn: Any) -> bool:
    """Return whether calling ``fn`` gives an async generator."""
    call = getattr(type(fn), "__call__", None)  # noqa: B004 (the method is what is wanted)
    return inspect.isasyncgenfunction(fn) or inspect.isasyncgenfunction(call)


def check_takes_one(what: str, fn: Any) -> None:
    """Refuse what can't be called with one item, or yields without being async.

    Raises:
      TypeError: naming ``what``.
    """
    if isinstance(fn, type):
        raise TypeError(
            f"{what} takes an async function, not the class {fn.__name__}; "
            "give it a method, or an instance that can be called"
        )
    if inspect.isgeneratorfunction(fn):
        raise TypeError(
            f"{what} takes an async function, not the generator function {name_of(fn)}; "
            "define it with `async def`"
        )
    refuse_mismatch(what, fn, "one item", "item")


def distinct(names: Sequence[str]) -> list[str]:
    """Return the names, numbered if several are the same: ``["a", "b", "a-2"]``."""
    seen: dict[str, int] = {}
    found: list[str] = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return found
