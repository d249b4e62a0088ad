"""What a sweep came to: an evaluation for each combination of choices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import attrs

from harness.evals._evaluation import Evaluation, mean_table

Choices: TypeAlias = Mapping[str, Any] | Iterable[str]
"""What there is to choose for an argument: names, or names with values."""


def named_choices(over: Mapping[str, Choices]) -> dict[str, dict[str, Any]]:
    """Return what there is to choose for each argument, by name.

    Raises:
      TypeError: if these aren't choices, or a name isn't a text.
      ValueError: if there is nothing to choose from.
    """
    as_in = "as in over={'model': ['small', 'large'], 'temperature': {'cold': 0.0, 'warm': 1.0}}"
    if not isinstance(over, Mapping):
        raise TypeError(f"sweep(over=...) takes choices by argument, not {over!r}; {as_in}")
    found: dict[str, dict[str, Any]] = {}
    for argument, given in over.items():
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise TypeError(
                f"sweep(over=...) takes a list of choices for {argument!r}, not {given!r}; {as_in}"
            )
        found[argument] = dict(given if isinstance(given, Mapping) else {one: one for one in given})
        for name in found[argument]:
            if not isinstance(name, str):
                raise TypeError(
                    f"the choice {name!r} for {argument!r} needs a name, by which a journal knows "
                    f"it again; {as_in}"
                )
    if not found or not all(found.values()):
        raise ValueError(
            f"sweep(over=...) has nothing to choose from in {dict(over)!r}; give each argument at "
            f"least one value, {as_in}"
        )
    return found


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

    def __getitem__(self, chosen: str | tuple[str, ...]) -> Evaluation:
        """Return the evaluation of a combination, as in ``sweep["small", "brief"]``."""
        return self.evaluations[(chosen,) if isinstance(chosen, str) else chosen]

    def best(self, scorer: str | None = None) -> tuple[str, ...]:
        """Return the combination with the highest mean; of equals, the first.

        The best of many is partly the luckiest: evaluate it on other samples before you believe its
        mean.

        Args:
          scorer: The name of the scorer; None: the only one's.
        """
        return max(self.evaluations, key=lambda chosen: self.evaluations[chosen].mean(scorer))
