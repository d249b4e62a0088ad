"""What a sweep came to: an evaluation for each combination of choices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import attrs

from harness.evals._evaluation import Evaluation, mean_table

Choices: TypeAlias = Mapping[str, Any] | Iterable[str]
"""What there is to choose for an argument: names, or names with values."""


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
