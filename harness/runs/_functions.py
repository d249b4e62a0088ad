"""Name a function, and refuse what isn't one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CoroutineType
from typing import Any

from harness.runs._frames import caller

_INSTANCE_OF_CLASS = "it is a class: give an instance with an async __call__, or a method of one"


def name_of(fn: Any) -> str:
    """Return a name for people: of the function, the method, or a callable's class.

    For a callable with a name of its own, such as an agent, it is that. A journal keeps what a
    function returned under this name, and two agents are two functions.
    """
    while isinstance(fn, functools.partial):
        fn = fn.func
    if not hasattr(fn, "__qualname__") and (own := _own_name(fn)):
        return own
    owner = getattr(fn, "__self__", None)
    if callable(owner) and (own := _own_name(owner)):
        return f"{own}.{fn.__name__}"
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    return str(name).rpartition("<locals>.")[2]


def _own_name(thing: Any) -> str | None:
    name = getattr(thing, "name", None)
    return name if isinstance(name, str) and name else None


def check_callable(call: str, fn: Any) -> None:
    """Refuse what isn't a function.

    Raises:
      TypeError: if ``fn`` is a coroutine, or can't be called.
    """
    if inspect.iscoroutine(fn):
        fn.close()
        # A method is called on something, whose name nobody knows here.
        before = "..." if "." in fn.__qualname__.rpartition("<locals>.")[2] else ""
        raise TypeError(
            f"{call} takes an async function, not the coroutine {fn.__qualname__}(); in "
            f"{caller()} write {before}{fn.__name__} instead of {before}{fn.__name__}(...)"
        )
    if not callable(fn):
        raise TypeError(f"{call} takes an async function, not {fn!r}; see {caller()}")


def refuse_mismatch(call: str, fn: Any, given: str, parameters: str, *, advice: str = "") -> None:
    """Refuse a function that can't be called with these parameters, before it is called.

    Args:
      call: The caller, such as ``"fan_out()"``.
      fn: What it calls.
      given: What it is called with, in words.
      parameters: The names of the parameters it should have, separated by commas.
      advice: What else to do, added at the end.

    Raises:
      TypeError: naming ``call``.
    """
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return  # Some callables written in C don't tell their parameters.
    try:
        signature.bind(*[None for name in parameters.split(", ") if name])
    except TypeError as mismatch:
        name = name_of(fn)
        if isinstance(fn, type):
            do = _INSTANCE_OF_CLASS
        elif (owner := _class_of_unbound(fn, signature)) is not None:
            do = (
                f"it was taken from the class: take it from an instance, {owner}(...).{fn.__name__}"
            )
        elif name == "<lambda>":
            do = f"write `lambda {parameters}: ...`"
        else:
            do = f"define it as `async def {name}({parameters})`"
        raise TypeError(
            f"{call} calls {name} with {given}, which its parameters don't allow ({mismatch}); "
            f"{do}{advice}"
        ) from None


def _class_of_unbound(fn: Any, signature: inspect.Signature) -> str | None:
    """Return the name of the class whose method this is, if it was taken from the class itself."""
    if not inspect.isfunction(fn) or next(iter(signature.parameters), None) != "self":
        return None
    return fn.__qualname__.rpartition(".")[0].rpartition("<locals>.")[2] or None


def not_awaitable_error(function: Callable[..., Any], returned: Any) -> TypeError:
    """Return the error for a function that returned something that can't be awaited."""
    do = "define it with `async def`, or wrap it in a function that is"
    if isinstance(function, type):
        do = _INSTANCE_OF_CLASS
    return TypeError(
        f"{name_of(function)}() returned {returned!r} where an awaitable was expected; {do}"
    )


def forgotten_await_error(
    function: Callable[..., Any], returned: CoroutineType[Any, Any, Any]
) -> TypeError:
    """Return the error for an async function whose value is a coroutine that nobody awaited."""
    returned.close()
    return TypeError(
        f"{name_of(function)}() returned the coroutine {returned.__qualname__}(), which nobody "
        f"awaited; write `return await {returned.__name__}(...)`"
    )
