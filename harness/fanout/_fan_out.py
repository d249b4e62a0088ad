"""Run a function over many items at once, and return what came of each."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from typing import Any, TypeVar

from harness._arguments import check_count, check_seconds
from harness.fanout._by_priority import PriorityEngine
from harness.fanout._engine import Engine
from harness.fanout._join import Join
from harness.fanout._result import Result, Results
from harness.fanout._source import open_source
from harness.policies import Attempt, FailFast, JoinPolicy, Priority, as_priority, check_policy
from harness.runs import open_run
from harness.runs._frames import caller

ItemT = TypeVar("ItemT")
T = TypeVar("T")

FAIL_FAST = FailFast()
ONE_ATTEMPT = Attempt()
LIMIT = 100
"""Items in flight unless told otherwise: many for a provider, few for a machine."""


async def fan_out(
    fn: Callable[[ItemT], Awaitable[T]],
    items: Iterable[ItemT] | AsyncIterable[ItemT],
    *,
    policy: JoinPolicy = FAIL_FAST,
    limit: int = LIMIT,
    within: float | None = None,
    each: Attempt | Callable[[ItemT], Attempt] = ONE_ATTEMPT,
    key: Callable[[ItemT], Any] | None = None,
    priority: Priority | Callable[[ItemT], float] | None = None,
    name: str | None = None,
) -> Results[T]:
    """Run ``fn(item)`` for every item, at most ``limit`` at once, and return all results.

    The fan-out is a run, and so is every attempt of an item, in a task of its own: every `RunLocal`
    is fresh there, and the context variables are those of this call. The next item starts when any
    ends.

    Args:
      fn: Anything that returns an awaitable when called with an item.
      items: Any iterable or async iterable; pulled only as there is room, and closed early if the
        fan-out ends early.
      policy: When the fan-out is over, and whether it succeeded: `FailFast` (the default),
        `BestEffort`, `Quorum` or `FirstSuccess`.
      limit: Items in flight at most.
      within: Seconds after which the whole ends with what is there.
      each: What happens to one item: timeout, retries, hedge, fallback, limiter. Or a function
        that returns that for an item.
      key: The item's key, for results, names and dumps; by default its index.
      priority: A function that returns a number for an item, or a `Priority`: of the items that
        were read ahead, the one with the largest number is started first.
      name: The fan-out's name; by default the function's.

    Returns:
      One `Result` per item, in input order; for items that were never started too if the number
      of items is known beforehand.

    Raises:
      FanOutError: if the policy is broken, or the items can't be read further; with the results.
      TypeError: if an argument has the wrong type, or ``fn`` returns no awaitable.
      ValueError: if a number is out of range.
      RuntimeError: outside trio.

    Checkpoint: always.

    Cancellation: everything in flight is cancelled and has ended before the cancel goes on.
    Cancelling the fan-out's own run returns the results instead.
    """
    check_function("fan_out()", fn)
    check_options(
        "fan_out", policy=policy, limit=limit, within=within, each=each, key=key, name=name
    )
    order = None if priority is None else as_priority("fan_out(priority=...)", priority)
    return await gather(
        functools.partial(
            engine_for,
            order,
            fn,
            open_source("fan_out()", items),
            limit=limit,
            within=within,
            each=each,
            key=key,
        ),
        policy=policy,
        run_name=name_of(fn) if name is None else name,
    )


async def gather(
    make_engine: Callable[..., Engine], *, policy: JoinPolicy, run_name: str
) -> Results[Any]:
    """Run an engine to its end, in a run of its own, and return all results or raise its error.

    Args:
      make_engine: Makes the engine, when called with the ``join`` and ``sink`` for it.
      policy: What the results are held against.
      run_name: The name of the run.
    """
    kept: list[Result[Any]] = []
    join = Join(policy, run_name, keeps_all=True)
    engine = make_engine(join=join, sink=kept.append)

    def results(status: str = "failed") -> Results[Any]:
        kept.extend(engine.skipped())
        kept.sort(key=by_index)
        return Results(kept, name=run.path, status=status, hedges=engine.hedges)

    async with open_run(run_name) as run:
        join.run_path = run.path
        engine.begin(run)
        await engine.drive()
        if error := engine.error(results):
            raise error
    if run.status == "cancelled" and (error := engine.error(results)):
        raise error  # The block swallowed the run's own cancel; the policy still has its say.
    return results(run.status)


def engine_for(priority: Priority | None, *given: Any, **options: Any) -> Engine:
    """Return the engine, with a look-ahead if items have priorities; see `Engine` for the rest."""
    if priority is None:
        return Engine(*given, **options)
    return PriorityEngine(*given, **options, priority=priority)


by_index = operator.attrgetter("index")
"""Returns an item's place in the input."""


def name_of(fn: Any) -> str:
    """Return a name for people: of the function, the method, or the class of a callable."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    return str(name).rpartition("<locals>.")[2]


def check_callable(call: str, fn: Any) -> None:
    """Refuse what is no function.

    Raises:
      TypeError: if ``fn`` is a coroutine, or can't be called.
    """
    if inspect.iscoroutine(fn):
        fn.close()
        raise TypeError(
            f"{call} takes an async function, not the coroutine {fn.__qualname__}(); in "
            f"{caller()} write {fn.__name__} instead of {fn.__name__}(...)"
        )
    if not callable(fn):
        raise TypeError(f"{call} takes an async function, not {fn!r}; see {caller()}")


def check_function(call: str, fn: Any) -> None:
    """Refuse what can't be called with an item, before anything runs.

    Raises:
      TypeError: if ``fn`` is a coroutine, an async generator, not callable, or takes no argument.
    """
    check_callable(call, fn)
    if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
        raise TypeError(
            f"{call} takes an async function that returns a value, not the generator function "
            f"{name_of(fn)}; return a list, or use a pipeline stage to yield several"
        )
    try:
        inspect.signature(fn).bind(None)
    except TypeError as mismatch:
        raise TypeError(
            f"{call} calls {name_of(fn)} with one item, which its parameters don't allow "
            f"({mismatch}); define it as `async def {name_of(fn)}(item)`"
        ) from None
    except ValueError:
        pass  # Some callables written in C don't tell their parameters.


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
    if name is not None and (not isinstance(name, str) or not name):
        raise TypeError(
            f"{call}(name=...) takes a name for people, not {name!r}; "
            "leave it out for the function's name"
        )
    if key is not None and not callable(key):
        raise TypeError(
            f"{call}(key=...) takes a function of the item, not {key!r}; "
            "write key=lambda item: item.id"
        )
