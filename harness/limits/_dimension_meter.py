"""One limited dimension: requests or tokens, over one period.

A meter puts together what bounds one dimension, and each bound has its own file: the pace
(`PacedBucket`), the exact window (`SlidingCap`), and what the provider last said
(`ProviderCount`).

**Headroom.** With a headroom below 1 the limiter may use that part of the limit. It is kept
in two ways at once: no more than ``headroom x limit`` in any period, and no more than the
limit in any stretch of ``period / headroom``. The second is for jitter: what is sent within
60 + 2 seconds may arrive within 60, and then it is still within the limit.

Clock-free: every method is told what time it is.
"""

from __future__ import annotations

from harness.limits._bucket import PacedBucket
from harness.limits._limiter_statistics import DimensionStatistics
from harness.limits._provider_count import ProviderCount
from harness.limits._rate import Rate
from harness.limits._responses._heard import RateLimitDimension
from harness.limits._window import SlidingCap

# The provider must have counted this part of its limit beyond our own use before we believe
# that somebody else uses it too; clocks and responses in flight make up less.
_OTHERS_SHARE = 0.05

# How long a request may be under way to the provider.
_UNDER_WAY_SECONDS = 5.0

# A reset that is this part of the time in which the used part would come back, or longer, is
# that of a count which refills all the time. One that begins anew each minute is reset soonest
# when most is used.
_REFILLING_SHARE = 0.9


class DimensionMeter:
    """The bounds on one dimension, and what was charged to it."""

    __slots__ = (
        "_bucket",
        "_burst_seconds",
        "_cap",
        "_count",
        "_headroom",
        "_plain",
        "_reserve_cap",
        "kind",
        "name",
        "rate",
        "stated",
        "unsettled",
    )

    def __init__(
        self, name: str, *, kind: int, rate: Rate, headroom: float, burst_seconds: float
    ) -> None:
        self.name = name
        self.kind = kind
        self.stated = rate
        """The rate the user gave, which is never exceeded."""
        self.rate = rate
        """The rate in force: the stated one, or a lower one that the provider told us of."""
        self.unsettled: float = 0
        """What reservations hold that were neither settled nor left."""
        self._headroom = headroom
        self._burst_seconds = burst_seconds
        self._bucket = PacedBucket(per_second=rate.per_second * headroom, burst=self._burst(rate))
        self._cap = SlidingCap(limit=rate.amount * headroom, period=rate.period)
        self._reserve_cap = (
            SlidingCap(limit=rate.amount, period=rate.period / headroom) if headroom < 1 else None
        )
        self._count: ProviderCount | None = None
        # Nothing but the bucket and the window bounds it: so it is, nearly always.
        self._plain = self._reserve_cap is None

    def fits(self, amount: float, now: float) -> bool:
        """Return whether ``amount`` may surely be charged now; "no" means to ask `free_at`."""
        cap = self._cap
        return not amount or (
            self._plain and self._bucket.has(amount, now) and cap.used_before + amount <= cap.limit
        )

    def free_at(self, amount: float, now: float) -> float:
        """Return the moment from which ``amount`` may be charged; ``now`` if it may be now."""
        if not amount:
            return now
        bucket = self._bucket
        seconds = bucket.wait_seconds(amount, now)
        # A wait too short for the clock to show is none; waking up for it would never end.
        moment = now + seconds if seconds else now
        window_moment = self._cap.free_at(amount, now)
        if self._reserve_cap is not None:
            window_moment = max(window_moment, self._reserve_cap.free_at(amount, now))
        moment = max(moment, window_moment)
        # Large requests leave gaps at the edges of the window that only a faster pace
        # afterwards can fill. Requests are all of one size, and leave none.
        bucket.saving = self.kind != 0 and window_moment > now
        if self._count is not None:
            moment = max(moment, self._count.free_at(amount, now))
        return moment

    def take(self, amount: float, now: float) -> None:
        """Charge ``amount``; the caller has asked `fits` or `free_at`, now, whether it may."""
        self.unsettled += amount
        if not amount:
            return
        if self._plain:
            bucket = self._bucket
            bucket.stock -= amount
            bucket.saving = False
            self._cap.take(amount, now)
        else:
            self._charge(amount, now)

    def settle(self, charged: float, used: float, *, taken_at: float, now: float) -> None:
        """Replace a charge made at ``taken_at`` by what was really used.

        More or less, it counts in the window of the charge, as the provider counts a request
        when it comes. The pace is that of now: an overrun is a debt, to be repaid before the
        next grant.
        """
        self.unsettled -= charged
        over = used - charged
        if over > 0:
            self._bucket.take(over, now)
        else:
            self._bucket.give(-over, now)
        self._cap.adjust(over, taken_at=taken_at, now=now)
        if self._plain:
            return
        if self._reserve_cap is not None:
            self._reserve_cap.adjust(over, taken_at=taken_at, now=now)
        if self._count is not None:
            self._count.give(-over)

    def postpone(self, amount: float, *, taken_at: float, now: float) -> None:
        """Move a charge that was made at ``taken_at`` to now; the pace has it already."""
        if not amount:
            return
        for cap in (self._cap, self._reserve_cap):
            if cap is not None:
                cap.adjust(-amount, taken_at=taken_at, now=now)
                cap.take(amount, now)

    def hear(self, dimension: RateLimitDimension, now: float) -> None:
        """Take over what a response said about this dimension.

        A reset time ends a bound sooner, and is never a wait. A limit is taken over only if
        it is over the same window, and only to go below the stated one.
        """
        limit, remaining = dimension.limit, dimension.remaining
        period, window = self.rate.period, dimension.window_seconds
        if limit and window is not None:
            self._resize(min(limit * period / window, self.stated.amount), now)
        if remaining is None:
            return
        available = remaining - self._uncounted(now)
        whole = limit or self.rate.amount
        shared = (window is None or window == period) and self._used_by_others(
            whole, whole - remaining, dimension.reset_seconds, now
        )
        if not shared and available >= self._cap.limit - self._cap.used(now):
            self._forget_count()  # Our own count is the stricter one.
            return
        until_reset = period if dimension.reset_seconds is None else dimension.reset_seconds
        self._plain = False
        self._count = ProviderCount(
            remaining=available,
            limit=whole,
            per_second=self._bucket.per_second,
            heard_at=now,
            forget_at=now + min(until_reset, period),
            shared=shared,
            spaced_until=None if self._count is None else self._count.spaced_until,
        )

    def _uncounted(self, now: float) -> float:
        """Return what we charged that the provider may not have counted yet.

        Tokens may be counted when a request has ended. A request is counted when it comes, and
        one that is still unsettled after some seconds has long come: taking calls of 20 s off
        once more left a sixth of each minute unused.
        """
        if self.kind:
            return self.unsettled
        return min(self.unsettled, self._cap.taken_since(now - _UNDER_WAY_SECONDS))

    def _used_by_others(
        self, whole: float, used: float, reset_seconds: float | None, now: float
    ) -> bool:
        """Return whether the provider has counted more than our own use explains.

        A count that refills all the time is full again when all that was used has come back,
        and knows of our last seconds only, because our pace is its refill. Any other count
        knows of our last window.
        """
        refills = reset_seconds is not None and (
            reset_seconds * whole / self.rate.period >= used * _REFILLING_SHARE
        )
        if refills:
            ours = self._bucket.burst - self._bucket.level(now) + self.unsettled
        else:
            ours = self._cap.used(now)
        return used > ours + whole * _OTHERS_SHARE

    def pause_until(self, moment: float, now: float) -> None:
        """Empty the bucket, so that a pause ends with one request and then the pace."""
        self._bucket.drain_until(moment, now, keep=1 if self.kind == 0 else 0)
        self._forget_count()

    def statistics(self, now: float) -> DimensionStatistics:
        """Return the use of this dimension now."""
        level = self._bucket.level(now)
        used = self._cap.used(now)
        return DimensionStatistics(
            limit=self.rate.amount,
            period_seconds=self.rate.period,
            used=used,
            debt=max(0.0, -level, used - self._cap.limit),
            unsettled=self.unsettled,
            provider_remaining=None if self._count is None else max(0, self._count.available(now)),
        )

    def _charge(self, amount: float, now: float) -> None:
        self._bucket.take(amount, now)
        self._bucket.saving = False
        self._cap.take(amount, now)
        if self._reserve_cap is not None:
            self._reserve_cap.take(amount, now)
        count = self._count
        if count is not None:
            if now >= count.forget_at:
                self._forget_count()
            else:
                count.take(amount, now)

    def _forget_count(self) -> None:
        self._count = None
        self._plain = self._reserve_cap is None

    def _resize(self, amount: float, now: float) -> None:
        if amount == self.rate.amount:
            return
        self.rate = rate = Rate(amount, self.rate.period)
        self._bucket.resize(
            per_second=rate.per_second * self._headroom, burst=self._burst(rate), now=now
        )
        self._cap.limit = rate.amount * self._headroom
        if self._reserve_cap is not None:
            self._reserve_cap.limit = rate.amount

    def _burst(self, rate: Rate) -> float:
        return min(max(1.0, rate.per_second * self._burst_seconds), rate.amount * self._headroom)
