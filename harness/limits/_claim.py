"""What a limiter knows of a reservation: what it charges, and how far it has got."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from harness.limits._charges import Charge
from harness.limits._dimension_meter import DimensionMeter
from harness.limits._provider_state import ProviderState
from harness.limits._turnstile import Waiter
from harness.runs._waits import Wait

Charges: TypeAlias = tuple[tuple[DimensionMeter, float], ...]
"""An amount for each meter of a limiter."""


@attrs.define(eq=False, repr=False)
class Claim(Waiter):
    """A place and an amount that are asked for, granted and given back."""

    charges: Charges
    planned: Charge
    model: str | None
    priority: float
    closed: bool = attrs.field(default=False, init=False)
    told: Wait | None = attrs.field(default=None, init=False)
    """What observers know of its wait, if there are any."""
    # Set when it is charged. Every request makes one of these, so nothing is set twice.
    asked_at: float = attrs.field(init=False)
    granted_at: float = attrs.field(init=False)
    epoch: int = attrs.field(init=False)
    state: ProviderState = attrs.field(init=False)
