"""Plain scorers: they compare an output with what was expected, and ask nobody.

A scorer is anything that is called with a sample and an output and returns a bool or a number. Each
of these is a value with options, and shows what it looks for in its docstring, since two libraries
rarely mean the same by "exact".
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import attrs

from harness.evals._sample import Sample

Scorer: TypeAlias = Callable[[Sample, Any], Any]
"""Called with a sample and the output for it; returns a bool, a number, or None for no score. It
may be async."""

_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def _texts(given: Iterable[str]) -> tuple[str, ...]:
    return tuple(given)


def as_text(value: Any) -> str:
    """Return a value as the text that it is compared by."""
    return (value if isinstance(value, str) else str(value)).strip()


@attrs.frozen
class Exact:
    """Whether output and expected are equal; as texts, without space around, if one is a text."""

    ignore_case: bool = False
    """Whether ``Yes`` and ``yes`` are the same."""

    def __call__(self, sample: Sample, output: Any) -> bool:
        """Return whether they are the same."""
        if not isinstance(output, str) and not isinstance(sample.expected, str):
            return bool(output == sample.expected)
        given, wanted = as_text(output), as_text(sample.expected)
        return given.casefold() == wanted.casefold() if self.ignore_case else given == wanted


@attrs.frozen
class Contains:
    """Whether the text of expected is somewhere in the output, whatever the case."""

    def __call__(self, sample: Sample, output: Any) -> bool:
        """Return whether it is there."""
        return as_text(sample.expected).casefold() in as_text(output).casefold()


@attrs.frozen
class Number:
    """Whether the last number in the output is the expected one; without a number it isn't.

    Commas between digits are left out.
    """

    relative: float = 1e-9
    """How far off it may be, as a share of the expected number."""

    absolute: float = 0.0
    """How far off it may be in any case."""

    def __call__(self, sample: Sample, output: Any) -> bool:
        """Return whether it is near enough.

        Raises:
          ValueError: if there is no number in what is expected.
        """
        wanted = last_number(sample.expected)
        if wanted is None:
            raise ValueError(f"there is no number in what is expected, {sample.expected!r}")
        given = last_number(output)
        return given is not None and math.isclose(
            given, wanted, rel_tol=self.relative, abs_tol=self.absolute
        )


def last_number(value: Any) -> float | None:
    """Return the last number in a text, or a number itself; None if there is none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    found = _NUMBER.findall(as_text(value))
    return float(found[-1].replace(",", "")) if found else None


@attrs.frozen
class Choice:
    """Whether the output chooses what is expected, of several choices.

    The choice is the whole text, or what comes first after the last "answer", or the only one that
    is in the text. With several, or none, it is wrong. Single letters count in this case only, so
    that "a" is no choice of A; whole words count in any.
    """

    choices: tuple[str, ...] = attrs.field(default=tuple("ABCDE"), converter=_texts)
    """What there is to choose from."""

    def __call__(self, sample: Sample, output: Any) -> bool:
        """Return whether it is the right choice.

        Raises:
          ValueError: if what is expected is no choice.
        """
        wanted = as_text(sample.expected)
        if wanted.casefold() not in map(str.casefold, self.choices):
            raise ValueError(
                f"{wanted!r} is expected, and the choices are {', '.join(self.choices)}"
            )
        chosen = self._chosen(as_text(output))
        return chosen is not None and chosen.casefold() == wanted.casefold()

    def _chosen(self, text: str) -> str | None:
        whole = text.strip(" .()[]*\"'`").casefold()
        for choice in self.choices:
            if choice.casefold() == whole:
                return choice
        told = re.split(r"\banswer\b", text, flags=re.IGNORECASE)
        if len(told) > 1 and (named := self._named(told[-1])):
            return named[0]
        named = self._named(text)
        return named[0] if len(set(named)) == 1 else None

    def _named(self, text: str) -> list[str]:
        """Return the choices in a text, in their order."""
        # The longer first, or "card" would be found in "card arrival".
        ahead = sorted(self.choices, key=len, reverse=True)
        patterns = [re.escape(one) if len(one) == 1 else f"(?i:{re.escape(one)})" for one in ahead]
        found = re.findall(rf"(?<!\w)(?:{'|'.join(patterns)})(?!\w)", text)
        known = {one.casefold(): one for one in self.choices}
        return [known[one.casefold()] for one in found]


@attrs.frozen
class Fields:
    """Which share of the expected fields the output has right, as `Exact` compares them.

    Both are dicts, or JSON objects as text. What is no such text has none right.
    """

    names: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    """The fields that count; none: all of the expected ones."""

    def __call__(self, sample: Sample, output: Any) -> float:
        """Return the share, from 0 to 1.

        Raises:
          ValueError: if what is expected isn't an object with such fields.
        """
        wanted = _object(sample.expected)
        names = self.names or tuple(wanted)
        if not names or not wanted.keys() >= set(names):
            raise ValueError(f"{sample.expected!r} is expected, which hasn't got the fields")
        given = _object(output)
        same = Exact()
        right = [
            name in given and same(attrs.evolve(sample, expected=wanted[name]), given[name])
            for name in names
        ]
        return sum(right) / len(right)


def _object(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}


BY_NAME: Mapping[str, Scorer] = MappingProxyType(
    {
        "exact": Exact(),
        "contains": Contains(),
        "number": Number(),
        "choice": Choice(),
        "fields": Fields(),
    }
)
"""The plain scorers that have a name, with their defaults."""


def named_scorers(
    given: Mapping[str, Scorer] | Iterable[Scorer | str],
) -> dict[str, Scorer]:
    """Return scorers by their names.

    Raises:
      TypeError: if one can't be called.
      ValueError: if there are none, two have the same name, or there is none of a name.
    """
    if isinstance(given, str) or callable(given):
        raise TypeError(f"scorers= takes a list of scorers, not {given!r}; write [{given!r}]")
    if not isinstance(given, Mapping):
        pairs: list[tuple[str, Scorer | str]] = [(_name_of(one), one) for one in given]
    else:  # To pyright, an iterable of scorers could be a mapping, too.
        pairs = list(cast(Mapping[str, Scorer], given).items())
    found: dict[str, Scorer] = {}
    for name, one in pairs:
        scorer = BY_NAME.get(one) if isinstance(one, str) else one
        if scorer is None:
            raise ValueError(
                f"there is no scorer {one!r}; there are {', '.join(BY_NAME)}, and functions of "
                "your own"
            )
        if not callable(scorer) or isinstance(scorer, type):
            raise TypeError(
                f"a scorer is called with a sample and an output, and {one!r} can't be; give a "
                f"function, or one of {', '.join(BY_NAME)}"
            )
        if name in found:
            raise ValueError(
                f"two scorers are called {name!r}; name them: scorers={{'name': scorer, ...}}"
            )
        found[name] = scorer
    if not found:
        raise ValueError("there are no scorers; give at least one, such as scorers=['exact']")
    return found


def _name_of(scorer: Scorer | str) -> str:
    if isinstance(scorer, str):
        return scorer
    while isinstance(scorer, partial):
        scorer = scorer.func
    own = getattr(scorer, "name", None)
    if isinstance(own, str):
        return own
    return getattr(scorer, "__name__", type(scorer).__name__.lower())


def is_async(scorer: Scorer) -> bool:
    """Return whether a scorer is awaited: it may ask somebody, and be paid for."""
    while isinstance(scorer, partial):
        scorer = scorer.func
    call = scorer if inspect.isroutine(scorer) else type(scorer).__call__
    return inspect.iscoroutinefunction(inspect.unwrap(call))


def checked_score(given: Any) -> float | bool | None:
    """Return a score as a bool, a number or None.

    Raises:
      TypeError: if it is anything else.
      ValueError: if it is nan or infinite.
    """
    if isinstance(given, Awaitable):
        close = getattr(given, "close", None)
        if close is not None:
            close()  # Or Python would warn that it was never awaited.
        raise TypeError("the scorer returned something to be awaited; define it with async def")
    if hasattr(given, "item") and not isinstance(given, int | float):
        given = given.item()  # A number of numpy's.
    if given is None or isinstance(given, bool):
        return given
    if not isinstance(given, int | float):
        raise TypeError(f"a score is a bool, a number or None, not {given!r}")
    if not math.isfinite(given):
        raise ValueError(f"a score is a finite number, not {given!r}; None says that there is none")
    return float(given)
