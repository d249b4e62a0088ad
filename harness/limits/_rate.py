"""State how much a provider allows in how long."""

from __future__ import annotations

import attrs

from harness.limits._numbers import checked_positive


def _positive(instance: object, attribute: attrs.Attribute[float], value: float) -> None:
    checked_positive(f"the {attribute.name} of a rate", value)


@attrs.frozen
class Rate:
    """An amount per period, such as 600 requests in 6 seconds: ``Rate(600, 6)``.

    It means: never more than `amount` in *any* stretch of `period` seconds.
    """

    amount: float = attrs.field(validator=_positive)
    """How much may be used in one period."""

    period: float = attrs.field(validator=_positive)
    """How long the period is, in seconds."""

    @property
    def per_second(self) -> float:
        """The amount that comes back each second."""
        return self.amount / self.period

    def __str__(self) -> str:
        return f"{self.amount:g} per {self.period:g} s"
