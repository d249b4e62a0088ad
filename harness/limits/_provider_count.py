"""Bound our count by the provider's own: what it says is left.

A response may say how much of a limit remains. Others may use the same key, so that can be less
than our own count says; whatever we have sent without an answer yet comes off it as well. From then
on the count falls with each charge, rises at the rate of the limit, and is forgotten when the
provider said it would be full again.

If somebody else is using it up, charges are spaced once more than `SLOW_ABOVE` of the limit is
used: the less remains, the wider, so that others' use slows ours down before it hits the wall. The
limit is still used in full: a count that refills continuously settles where the spacing equals the
refill; one that starts over each minute is used evenly up to its reset. If the use is our own, our
own pace is the better guard, and nothing is spaced.

Clock-free: every method is told what time it is.
"""

from __future__ import annotations

import attrs

SLOW_ABOVE = 0.8
"""The used share of the provider's limit above which charges are spaced."""

NO_COUNT = (0.0,) * 8
"""What stands for a count, and the word before it that there is one, where there is none."""

_SLOWEST = 0.1  # Of the limit's own rate. The count itself is the wall; this is the brake.


@attrs.define(eq=False, kw_only=True, repr=False)
class ProviderCount:
    """The provider's count of one dimension, as of one response."""

    _remaining: float = attrs.field(alias="remaining")
    _limit: float = attrs.field(alias="limit")
    per_second: float
    _heard_at: float = attrs.field(alias="heard_at")
    forget_at: float
    _shared: bool = attrs.field(alias="shared")
    spaced_until: float = attrs.field(
        default=attrs.Factory(lambda count: count._heard_at, takes_self=True)
    )
    """Until when the last charge keeps the next one away; carried over to a newer count."""

    def numbers(self, shift: float) -> tuple[float, ...]:
        """Return its state, with times that are ``shift`` later, for `restored` elsewhere."""
        return (
            self._remaining,
            self._limit,
            self.per_second,
            self._heard_at + shift,
            self.forget_at + shift,
            self._shared,
            self.spaced_until + shift,
        )

    @classmethod
    def restored(cls, numbers: tuple[float, ...], shift: float) -> ProviderCount:
        """Make one that goes on from what `numbers` returned."""
        remaining, limit, per_second, heard_at, forget_at, shared, spaced_until = numbers
        return cls(
            remaining=remaining,
            limit=limit,
            per_second=per_second,
            heard_at=heard_at - shift,
            forget_at=forget_at - shift,
            shared=bool(shared),
            spaced_until=spaced_until - shift,
        )

    def available(self, now: float) -> float:
        """Return what may still be sent by this count; below zero if it was overrun."""
        refilled = self._remaining + max(0.0, now - self._heard_at) * self.per_second
        return min(refilled, self._limit)

    def slows(self, now: float) -> bool:
        """Return whether charges are spaced now, because others use the limit too."""
        scarce = self._limit * (1 - SLOW_ABOVE)
        return self._shared and now < self.forget_at and self.available(now) < scarce

    def free_at(self, amount: float, now: float) -> float:
        """Return when ``amount`` may be charged; ``now`` if it may be now."""
        if now >= self.forget_at:
            return now
        missing = min(amount, self._limit) - self.available(now)
        moment = now if missing <= self._limit * 1e-9 else now + missing / self.per_second
        return min(max(moment, self.spaced_until), self.forget_at)

    def take(self, amount: float, now: float) -> None:
        """Charge ``amount``, and space the next charge if little is left."""
        self._remaining -= amount
        if not self.slows(now):
            return
        available = self.available(now)
        share = max(available / (self._limit * (1 - SLOW_ABOVE)), _SLOWEST)
        speed = max(self.per_second * share, available / (self.forget_at - now))
        self.spaced_until = now + amount / min(speed, self.per_second)

    def give(self, amount: float) -> None:
        """Take back what was charged but not used; below zero, what was used beyond it."""
        self._remaining += amount
