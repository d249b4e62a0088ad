"""Refuse bad arguments in one voice: what was given, what is allowed, what to do."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

_T = TypeVar("_T")
_CallT = TypeVar("_CallT", bound=Callable[..., Any])
_NOWHERE: Mapping[str, str] = MappingProxyType({})

UNKNOWN = "unknown"
"""The parameter in which a function collects options that it doesn't have, to refuse them."""


def check_seconds(
    name: str, value: Any, *, advice: str, least: float = 0.0, zero: bool = True
) -> float:
    """Return ``value`` as seconds, or refuse it.

    Args:
      name: The argument as the caller wrote it, such as ``open_run(timeout=...)``.
      value: What was given.
      advice: What to do instead, as the end of a sentence.
      least: The smallest value allowed.
      zero: Whether 0 is allowed, if ``least`` is 0.

    Raises:
      TypeError: if ``value`` isn't a number.
      ValueError: if it is nan, smaller than ``least``, or 0 where that isn't allowed.
    """
    if (
        type(value) is float and value >= least and (zero or value)
    ):  # As most are: the rest would slow `open_run`.
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} takes a number of seconds, not {value!r}; {advice}")
    if not value >= least or not (zero or value):  # Written so that nan fails too.
        allowed = f"from {least:g} upwards" if zero else "above 0"
        raise ValueError(f"{name} takes seconds {allowed}, not {value!r}; {advice}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} takes seconds, and 10 ** 308 are too many; {advice}") from None


def check_count(name: str, value: Any, *, advice: str, least: int = 1) -> int:
    """Return ``value`` as a whole number, or refuse it.

    Raises:
      TypeError: if ``value`` is not an ``int``.
      ValueError: if it is smaller than ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(
            f"{name} takes a whole number from {least} upwards, not {value!r}; {advice}"
        )
    if value < least:
        raise ValueError(f"{name} takes a whole number from {least} upwards, not {value}; {advice}")
    return value


def check_whole(name: str, value: Any, *, advice: str) -> int:
    """Return ``value`` as a whole number of any size, negative too, or refuse it.

    Raises:
      TypeError: if ``value`` is not an ``int``.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} takes a whole number, not {value!r}; {advice}")
    return value


def check_dollars(name: str, value: Any, *, advice: str) -> float:
    """Return ``value`` as dollars from 0 upwards, or refuse it.

    Raises:
      TypeError: if ``value`` is not a number.
      ValueError: if it is nan, negative or infinite.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} takes a number of dollars, not {value!r}; {advice}")
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} takes dollars from 0 upwards, not {value!r}; {advice}")
    return value


def check_key(call: str, key: Any) -> None:
    """Refuse what can't be used as a key.

    Raises:
      TypeError: if ``key`` isn't hashable.
    """
    try:
        hash(key)
    except TypeError as error:
        raise TypeError(
            f"{call} takes a key that can be hashed, such as a string or a tuple of them, not "
            f"{key!r} ({error})"
        ) from None


def check_fraction(name: str, value: Any, *, advice: str) -> float:
    """Return ``value`` as a number from 0 to 1, or refuse it.

    Raises:
      TypeError: if ``value`` is not a number.
      ValueError: if it is nan, negative or above 1.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} takes a number from 0 to 1, not {value!r}; {advice}")
    if not 0 <= value <= 1:
        raise ValueError(f"{name} takes a number from 0 to 1, not {value!r}; {advice}")
    return float(value)


# Misspelt options -------------------------------------------------------------------------------


def says_near_options(cls: type[_T]) -> type[_T]:
    """Have a class name the nearest option where it is called with one that it doesn't have.

    A decorator, outside of attrs' own. The call costs a frame more, which is little for what is
    made once and used for many items.
    """
    takes: Callable[..., None] = cls.__init__

    @functools.wraps(takes)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        try:
            takes(self, *arguments, **options)
        except TypeError:
            words = unknown_option(cls.__name__, takes, options)
            if words is None:
                raise
            raise TypeError(words) from None

    setattr(cls, "__init__", __init__)  # noqa: B010  # mypy refuses the plain assignment.
    return cls


def says_where_options_are(elsewhere: Mapping[str, str]) -> Callable[[_CallT], _CallT]:
    """Have a function do the same, where what was meant may belong to one of its arguments.

    Args:
      elsewhere: What to write instead, by the option that the function doesn't have.
    """

    def decorate(takes: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            try:
                return takes(*arguments, **options)
            except TypeError:
                words = unknown_option(takes.__qualname__, takes, options, elsewhere)
                if words is None:
                    raise
                raise TypeError(words) from None

        if not inspect.iscoroutinefunction(takes):
            return functools.wraps(takes)(call)

        @functools.wraps(takes)
        async def call_and_wait(*arguments: Any, **options: Any) -> Any:
            return await call(*arguments, **options)

        return call_and_wait

    return decorate


def unknown_option(
    name: str,
    takes: Callable[..., Any],
    options: Iterable[str],
    elsewhere: Mapping[str, str] = _NOWHERE,
) -> str | None:
    """Say which of ``options`` there isn't, and what was meant; None if there are all."""
    parameters = inspect.signature(takes).parameters.values()
    if any(one.kind is one.VAR_KEYWORD and one.name != UNKNOWN for one in parameters):
        return None
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    there_are = [one.name for one in parameters if one.kind in named]
    unknown = next((option for option in options if option not in there_are), None)
    if unknown is None:
        return None
    # The first is the object itself, or what a function is about.
    known = [
        one.name
        for at, one in enumerate(parameters)
        if one.kind is one.KEYWORD_ONLY or (at and one.kind is one.POSITIONAL_OR_KEYWORD)
    ]
    near = _nearest(unknown, known)
    if unknown in elsewhere or near is None:
        found = unknown if unknown in elsewhere else _nearest(unknown, tuple(elsewhere))
        do = f"it takes {', '.join(known)}" if found is None else f"write {elsewhere[found]}"
    else:
        do = f"did you mean {near!r}?"
    return f"{name}() has no option {unknown!r}; {do}"


def _nearest(option: str, known: Sequence[str]) -> str | None:
    """Return what ``option`` is short for, or misspells; None if nothing is near."""
    for name in known:
        if option == "".join(word[:1] for word in name.split("_")):
            return name
    begun = [name for name in known if name.startswith(option)]
    if len(begun) == 1:
        return begun[0]
    likeness = {name: _likeness(option, name) for name in known}
    nearest = max(known, key=likeness.__getitem__, default="")
    return nearest if likeness.get(nearest, 0) >= 0.5 else None


def _likeness(one: str, other: str) -> float:
    """Return how many pairs of letters two names share, from 0 to 1.

    `difflib` does it better, and would show in ``import harness``.
    """
    if sorted(one) == sorted(other):
        return 1.0  # Letters changed places.
    pairs = [{name[at : at + 2] for at in range(len(name) - 1)} for name in (one, other)]
    return 2 * len(pairs[0] & pairs[1]) / max(1, len(pairs[0]) + len(pairs[1]))
