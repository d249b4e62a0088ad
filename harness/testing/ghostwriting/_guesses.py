"""Guess values for a parameter from its annotation, as source code.

Simple types have values that a reader can see and change. Classes are left to Hypothesis, which
knows how to make many of them. What neither knows becomes a TODO that says what is wanted.
"""

from __future__ import annotations

import collections.abc
import enum
import inspect
import itertools
import types
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st

COUNT = 3
"""How many values a parameter gets, all different if possible."""

_SIMPLE: Mapping[Any, tuple[str, ...]] = {
    str: ('"a"', '"b"', '"c"'),
    int: ("1", "2", "3"),
    float: ("1.0", "2.0", "3.0"),
    complex: ("1j", "2j", "3j"),
    bool: ("False", "True", "False"),
    bytes: ('b"a"', 'b"b"', 'b"c"'),
    None: ("None",) * COUNT,
    types.NoneType: ("None",) * COUNT,
}
_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_SETS = (set, collections.abc.Set, collections.abc.MutableSet)
_DICTS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


@attrs.frozen
class Guess:
    """What a parameter may be given."""

    values: tuple[str, ...] = ()
    """`COUNT` values as source code; none if Hypothesis draws them."""

    type_source: str = ""
    """The annotation as source code, if Hypothesis can make values of it."""

    imports: frozenset[tuple[str, str]] = frozenset()
    """Pairs of a module and a name in it that the source code needs."""

    todo: str = ""
    """What the user has to do, if this is no more than a stand-in."""


def parameters_of(function: Any, *, skip_first: bool = False) -> list[inspect.Parameter]:
    """Return the parameters that a call has to give.

    Args:
      function: Anything called like a function.
      skip_first: Whether the first is a method's object.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return []
    given = list(signature.parameters.values())[skip_first:]
    return [
        one
        for one in given
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]


def guesses_for(
    function: Any, parameters: Sequence[inspect.Parameter], hinted: Any = None
) -> list[Guess]:
    """Return a guess for each of these parameters.

    Args:
      function: Whose parameters they are.
      parameters: The parameters.
      hinted: What has the annotations; by default the function.
    """
    try:
        hints = get_type_hints(inspect.unwrap(hinted if hinted is not None else function))
    except Exception:
        hints = {}  # A name in them that exists for type checkers alone, for instance.
    return [_guess(one.name, hints.get(one.name, one.annotation)) for one in parameters]


def _guess(name: str, annotation: Any) -> Guess:
    if annotation in (inspect.Parameter.empty, Any, object):
        return Guess(_SIMPLE[str], todo=f"{name} has no annotation that says what it takes")
    known = _known(annotation)
    if known is not None:
        return known
    drawn = _drawn(annotation)
    if drawn is not None:
        return drawn
    words = inspect.formatannotation(annotation)
    return Guess(("None",) * COUNT, todo=f"{name} takes {words}, which nobody can make up here")


# Values that a reader can see --------------------------------------------------------------------


def _known(annotation: Any) -> Guess | None:
    """Return values of a simple type, or of a container of such; None for anything else."""
    if isinstance(annotation, collections.abc.Hashable) and annotation in _SIMPLE:
        return Guess(_SIMPLE[annotation])
    if isinstance(annotation, enum.EnumMeta) and "." not in annotation.__qualname__:
        members = [f"{annotation.__name__}.{name}" for name in annotation.__members__]
        return Guess(_repeated(members), imports=_import_of(annotation)) if members else None
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return Guess(_repeated([quoted(value) for value in inner]))
    if origin in (Union, types.UnionType):
        return next(filter(None, map(_known, sorted(inner, key=_is_none))), None)
    container = origin or annotation
    if container in _LISTS:
        return _of_parts("[{}]".format, inner[:1] or (str,))
    if container in _SETS:
        return _of_parts("{{{}}}".format, inner[:1] or (str,))
    if container in _DICTS:
        return _of_parts("{{{}: {}}}".format, inner or (str, str))
    if container is tuple:
        parts = tuple(part for part in inner if part is not Ellipsis) or (str,)
        return _of_parts(lambda *values: _tuple(values), parts)
    return None


def _is_none(annotation: Any) -> bool:
    return annotation in (None, types.NoneType)


def _tuple(values: Sequence[str]) -> str:
    return f"({values[0]},)" if len(values) == 1 else f"({', '.join(values)})"


def _of_parts(write: Any, annotations: Sequence[Any]) -> Guess | None:
    guesses = [_known(annotation) for annotation in annotations]
    if not guesses or None in guesses:
        return None
    parts = [guess for guess in guesses if guess is not None]
    return Guess(
        tuple(itertools.starmap(write, zip(*(one.values for one in parts), strict=True))),
        imports=frozenset().union(*(one.imports for one in parts)),
    )


def _repeated(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(itertools.islice(itertools.cycle(values), COUNT))


def quoted(value: Any) -> str:
    """Return a value as source code, a text in double quotes where that needs no more escapes."""
    text = repr(value)
    if isinstance(value, str) and text[0] == "'" and '"' not in text:
        return f'"{text[1:-1]}"'
    return text


# Values that Hypothesis makes --------------------------------------------------------------------


def _drawn(annotation: Any) -> Guess | None:
    """Return that Hypothesis makes the values, if it can; a value of each kind is made to see."""
    source = _source(annotation)
    if source is None:
        return None
    quick = settings(
        max_examples=10,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.filter_too_much,
            HealthCheck.data_too_large,
            HealthCheck.large_base_example,
        ],
    )
    try:
        find(st.from_type(annotation), lambda value: True, settings=quick)
    except Exception:  # It has no strategy, or its constructor refuses what it is given.
        return None
    return Guess(type_source=source[0], imports=source[1])


def _source(annotation: Any) -> tuple[str, frozenset[tuple[str, str]]] | None:
    """Return an annotation as source code, with what that needs; None if it can't be written."""
    if annotation in (None, types.NoneType):
        return "None", frozenset()
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is None:
        is_named = inspect.isclass(annotation) and "." not in annotation.__qualname__
        return (annotation.__name__, _import_of(annotation)) if is_named else None
    if origin in (Union, types.UnionType):
        write = " | ".join
    elif inspect.isclass(origin) and origin.__module__ == "builtins":
        write = partial(_subscript, origin.__name__)
    else:
        return None
    parts = [_source(part) for part in inner]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return write([text for text, _ in known]), frozenset().union(*(needs for _, needs in known))


def _subscript(name: str, parts: list[str]) -> str:
    return f"{name}[{', '.join(parts)}]"


def _import_of(cls: type[Any]) -> frozenset[tuple[str, str]]:
    if cls.__module__ == "builtins":
        return frozenset()
    return frozenset({(cls.__module__, cls.__qualname__)})
