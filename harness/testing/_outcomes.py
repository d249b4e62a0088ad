"""Keep the outcome of a run, and tell whether two runs had the same."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Literal

import attrs

from harness._words import error_in_words, errors_in_words, repr_of

Equal = Callable[[Any, Any], bool]

ERROR_WORDS_AT_MOST = 5_000
"""How many characters of an error a report quotes: a deadlock's error names every task."""

_LOOKED_AT = 1_000
"""How many elements of an output are checked for what can't be compared."""


@attrs.frozen
class Outcome:
    """How a run ended."""

    kind: Literal["returned", "raised", "cancelled", "unfinished"]

    value: Any = None
    """What it returned, copied at once, so that nobody changes it later."""

    live: Any = None
    """The very object that it returned."""

    error: Exception | None = None

    where: str = ""
    """Where it is waiting, if it never ended."""

    def __str__(self) -> str:
        if self.kind == "returned":
            return repr_of(self.value)
        if self.kind == "raised":
            assert self.error is not None
            return f"raised {errors_in_words(self.error)}"
        if self.kind == "cancelled":
            return "was cancelled"
        return f"never ended{f'; it waits in {self.where}' if self.where else ''}"


def returned(value: Any) -> Outcome:
    """Return the outcome of a run that returned ``value``."""
    return Outcome("returned", value=copied(value), live=value)


def copied(value: Any) -> Any:
    """Return a deep copy of an output, or the output itself if it can't be copied."""
    if value is None or isinstance(value, str | bytes | int | float | bool):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


class IncomparableError(Exception):
    """Two outputs can't be compared; the message says why, and what to do."""


@attrs.frozen
class Comparison:
    """Compares outputs, using ``equal`` if given."""

    equal: Equal | None

    def same(self, one: Outcome, other: Outcome) -> bool:
        """Return whether two runs ended in the same way.

        Raises:
          IncomparableError: if that can't be told.
        """
        if one.kind != other.kind:
            return False
        if one.kind == "returned":
            return self.same_values(one.value, other.value)
        if one.kind == "raised":
            return errors_in_words(one.error or Exception()) == errors_in_words(
                other.error or Exception()
            )
        return True

    def same_values(self, one: Any, other: Any) -> bool:
        """Return whether two outputs are the same.

        Raises:
          IncomparableError: if that can't be told.
        """
        if self.equal is not None:
            answer: Any = self.equal(one, other)
        elif one is other:
            return True
        else:
            try:
                answer = comparable(one) == comparable(other)
            except Exception as error:
                raise IncomparableError(
                    f"comparing two outputs of type {type(one).__name__} raised "
                    f"{error_in_words(error)}; {_ADVICE}"
                ) from error
        try:
            return bool(answer)
        except Exception as error:
            raise IncomparableError(
                f"comparing two outputs of type {type(one).__name__} gave neither true nor false "
                f"but {repr_of(answer)}; {_ADVICE}"
            ) from error


def comparable(value: Any, levels: int = 3) -> Any:
    """Return an output in comparable form: a run's id is new each time, and NaN equals nothing."""
    cls = type(value)
    if cls is float and value != value:
        return repr(value)
    if levels and cls in (list, tuple):
        return cls(comparable(part, levels - 1) for part in value)
    if levels and cls is dict:
        return {key: comparable(part, levels - 1) for key, part in value.items()}
    if cls.__module__.startswith("harness.") and attrs.has(cls) and hasattr(value, "run_id"):
        return attrs.evolve(value, run_id="")
    return value


def first_difference(one: Any, other: Any, path: str = "", levels: int = 10) -> str:
    """Return in words where two outputs first differ; empty if they differ as a whole."""
    cls = type(one)
    parts: Iterator[tuple[str, Any, Any]] = iter(())
    if type(other) is cls and levels:
        if cls in (list, tuple) and len(one) == len(other):
            parts = ((f"[{i}]", a, b) for i, (a, b) in enumerate(zip(one, other, strict=True)))
        elif cls is dict and one.keys() == other.keys():
            parts = ((f"[{repr_of(key)}]", one[key], other[key]) for key in one)
        elif attrs.has(cls) or hasattr(cls, "__dataclass_fields__"):
            names = getattr(cls, "__match_args__", ())
            parts = (
                (f".{name}", getattr(one, name, None), getattr(other, name, None))
                for name in names
                if name != "run_id"
            )
    for step, a, b in parts:
        try:
            if a == b:
                continue
        except Exception:
            continue
        return first_difference(a, b, path + step, levels - 1)
    return f"at {path}: {repr_of(one)} and {repr_of(other)}" if path else ""


_ADVICE = "pass equal=, a function of two outputs that is true if they are the same"


def compared_by_identity(value: Any) -> type[Any] | None:
    """Return the class in an output whose instances are equal only to themselves, if any."""
    for index, part in enumerate(_parts(value)):
        if index >= _LOOKED_AT:
            return None
        cls = type(part)
        if _eq_of(cls) is object.__eq__ and not isinstance(part, type):
            return cls
    return None


def _eq_of(cls: type[Any]) -> Any:
    return cls.__eq__


def _parts(value: Any) -> Iterator[Any]:
    pending = [value]
    seen: set[int] = set()
    while pending:
        part = pending.pop()
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        if isinstance(part, Mapping):
            pending.extend(part.values())
        elif isinstance(part, list | tuple | AbstractSet):
            pending.extend(part)
        elif attrs.has(type(part)) or hasattr(part, "__dataclass_fields__"):
            pending.extend(getattr(part, "__dict__", {}).values())


def by_identity_words(cls: type[Any]) -> str:
    """Return what to say about outputs that are equal only to themselves."""
    what_to_do = f"define {cls.__qualname__}.__eq__ (a dataclass has one)"
    if cls.__module__ == "builtins":
        what_to_do = "return what it gives in its place"
    return (
        f"an output holds a {cls.__qualname__}, which is equal only to itself, so no two runs "
        f"can give the same; {what_to_do}, or {_ADVICE}"
    )
