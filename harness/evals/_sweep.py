"""What a sweep came to: an evaluation for each combination of choices."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import attrs

from harness.evals._evaluation import Evaluation, mean_table
from harness.runs._functions import name_of

Choice: TypeAlias = str | int | float | bool | None
"""What can be chosen without a name: its text is the name."""

Choices: TypeAlias = Mapping[str, Any] | Iterable[Choice]
"""What there is to choose for an argument: texts and numbers, or names with values."""


def named_choices(argument: str, given: Choices) -> dict[str, Any]:
    """Return what there is to choose for an argument, by its name.

    Raises:
      TypeError: if a choice has no name that a journal could know it by.
      ValueError: if two have the same name.
    """
    if isinstance(given, str):
        raise TypeError(
            f"sweep(over=...) takes a list of choices for {argument!r}, not {given!r}; write "
            f"[{given!r}]"
        )
    pairs = given.items() if isinstance(given, Mapping) else [(one, one) for one in given]
    found: dict[str, Any] = {}
    for name, value in pairs:
        if not isinstance(name, Choice):
            raise TypeError(
                f"sweep(over=...) can't tell by what name to know {name!r} of {argument!r} again; "
                f"give names: over={{{argument!r}: {{'a name': ...}}}}"
            )
        if str(name) in found:
            raise ValueError(f"sweep(over=...) has two choices of {argument!r} named {name!s}")
        found[str(name)] = value
    return found


def check_takes(fn: Callable[..., Any], arguments: Iterable[str]) -> None:
    """Refuse a function that can't be called with an input and these keyword arguments.

    Raises:
      TypeError: saying how it would be called.
    """
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # It doesn't say what it takes.
        return
    try:
        signature.bind(None, **dict.fromkeys(arguments))
    except TypeError as error:
        named = ", ".join(f"{one}=..." for one in arguments)
        raise TypeError(
            f"sweep() calls {name_of(fn)}(input, {named}), but that is refused: {error}"
        ) from None


@attrs.frozen(repr=False)
class Sweep:
    """Evaluations by what was chosen. Readable as text: ``print(sweep)``."""

    name: str
    """What was evaluated."""

    over: tuple[str, ...]
    """The arguments that were chosen for."""

    evaluations: Mapping[tuple[str, ...], Evaluation]
    """By the name of what was chosen for each of them."""

    def __repr__(self) -> str:
        return f"<Sweep of {self.name!r} over {', '.join(self.over)}: {len(self.evaluations)}>"

    def __str__(self) -> str:
        named = {"/".join(chosen): one for chosen, one in self.evaluations.items()}
        return mean_table("/".join(self.over), named)

    def __getitem__(self, chosen: Choice | tuple[Choice, ...]) -> Evaluation:
        """Return the evaluation of a combination, as in ``sweep["small", "brief"]``."""
        given = chosen if isinstance(chosen, tuple) else (chosen,)
        name = tuple(str(one) for one in given)
        if name not in self.evaluations:
            there = ", ".join(map(repr, self.evaluations))
            raise KeyError(f"this sweep has no {name!r}; it has {there}")
        return self.evaluations[name]

    def best(self, scorer: str | None = None) -> tuple[str, ...]:
        """Return the combination with the highest mean; of equals, the first.

        The best of many is partly the luckiest: evaluate it on other samples before you believe its
        mean.

        Args:
          scorer: The name of the scorer; None: the only one's.
        """
        return max(self.evaluations, key=lambda chosen: self.evaluations[chosen].mean(scorer))
