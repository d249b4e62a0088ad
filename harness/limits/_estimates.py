"""Guess how many tokens a request will use from what earlier requests used.

Most requests stay far below the output they allow. Reserving that maximum leaves most of a limit
unused; reserving what the model gave lately, and settling, uses nearly all of it. The maximum is
the right reservation only where the provider itself counts it; see
`ProviderProfile.counts_requested_maximum`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

UNKNOWN_OUTPUT_TOKENS = 1024
"""The output assumed for a model that nothing is known about yet."""

_MODELS_KEPT = 256  # The most recently seen. Names come from outside, so there must be a bound.
_WEIGHT = 0.1  # The weight of the newest value, once there are a few.
_FIRST_FEW = 10

_CAP_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


class _Mean:
    """A moving average: exact for the first few values, then weighted to the newest."""

    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        self.count += 1
        count = self.count
        self.value += (value - self.value) * (1 / count if count < _FIRST_FEW else _WEIGHT)


class _ModelUse:
    """What one model's requests used."""

    __slots__ = ("input", "output", "total")

    def __init__(self) -> None:
        self.input = _Mean()
        self.output = _Mean()
        self.total = _Mean()


class Estimates:
    """Moving averages of real use, per model."""

    __slots__ = ("_models",)

    def __init__(self) -> None:
        self._models: dict[str | None, _ModelUse] = {}

    def learn(
        self,
        model: str | None,
        *,
        input_tokens: float | None,
        output_tokens: float | None,
        total_tokens: float | None,
    ) -> None:
        """Learn what a request really used; ``None`` for what isn't known."""
        use = self._use(model)
        if input_tokens is not None:
            use.input.add(input_tokens)
        if output_tokens is not None:
            use.output.add(output_tokens)
        if total_tokens is not None:
            use.total.add(total_tokens)

    def learn_total(self, model: str | None, total_tokens: float) -> None:
        """Learn what a request used when only the total is known."""
        use = self._models.get(model) or self._use(model)
        use.total.add(total_tokens)

    def input_tokens(self, model: str | None) -> int:
        """Return the expected input of a request whose input nobody counted."""
        use = self._models.get(model)
        return math.ceil(use.input.value) if use is not None else 0

    def output_tokens(self, model: str | None, *, input_tokens: float | None) -> int:
        """Return the expected output of a request with this much input."""
        use = self._models.get(model)
        if use is None:
            return UNKNOWN_OUTPUT_TOKENS
        if use.output.count:
            return math.ceil(use.output.value)
        if use.total.count:
            known_input = use.input.value if input_tokens is None else input_tokens
            return math.ceil(max(0.0, use.total.value - known_input))
        return UNKNOWN_OUTPUT_TOKENS

    def mean_tokens(self) -> float | None:
        """Return what requests used lately, over all models, or ``None`` if nobody said."""
        means = [use.total for use in self._models.values() if use.total.count]
        count = sum(mean.count for mean in means)
        return sum(mean.value * mean.count for mean in means) / count if count else None

    def _use(self, model: str | None) -> _ModelUse:
        use = self._models.get(model)
        if use is None:
            if len(self._models) >= _MODELS_KEPT:
                del self._models[next(iter(self._models))]
            use = self._models[model] = _ModelUse()
        return use


def requested_output_tokens(request: Mapping[str, object]) -> int | None:
    """Return the largest output that a request's body allows, or ``None`` if it names none.

    A request may have both an old and a new field for it; the provider may count the larger. Values
    that aren't numbers count as absent.

    Args:
      request: The body of a request to a model, as a mapping.
    """
    caps = [
        value
        for value in map(request.get, _CAP_FIELDS)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0
    ]
    if not caps:
        return None
    choices = request.get("n")
    several = choices if isinstance(choices, int) and not isinstance(choices, bool) else 1
    return max(caps) * max(1, several)
