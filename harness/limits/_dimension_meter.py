"""Meter one limited dimension: requests or tokens, over one period.

A meter combines the bounds on one dimension, each in its own file: the pace
(`PacedBucket`), the exact window (`SlidingCap`), and what the provider last said
(`ProviderCount`).

**Headroom.** With a headroom below 1, the limiter may use only that share of the limit. It is kept
in two ways at once: no more than ``headroom x limit`` in any period, and no more than the limit in
any stretch of ``period / headroom``. The second allows for jitter: requests sent over 62 seconds
may arrive within 60, and are still within the limit.

Clock-free: every method is told what time it is.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.limits._bucket import PacedBucket
from harness.limits._limiter_statistics import DimensionStatistics
from harness.limits._provider_count import NO_COUNT, ProviderCount
from harness.limits._rate import Rate
from harness.limits._responses._heard import RateLimitDimension
from harness.limits._window import SlidingCap, Window

# The provider must have counted this share of its limit beyond our own use before we believe that
# somebody else uses it too; clocks and responses in flight explain less than that.
_OTHERS_SHARE = 0.05

# How long a request may take to reach the provider.
_UNDER_WAY_SECONDS = 5.0

# A count refills continuously if its reset takes at least this share of the time in which the used
# part would come back. A count that starts over each minute resets soonest when most is used.
_REFILLING_SHARE = 0.9


METER_NUMBERS = 15
"""How many `DimensionMeter.numbers` returns."""


def sliding_cap(limit: float, period: float) -> Window:
    """Make a window that is this process's own."""
    return SlidingCap(limit=limit, period=period)


class DimensionMeter:
    """The bounds on one dimension, and what has been charged to it."""

    def __init__(
        self,
        name: str,
        *,
        kind: int,
        rate: Rate,
        headroom: float,
        burst_seconds: float,
        make_window: Callable[[float, float], Window] = sliding_cap,
    ) -> None:
        self.name = name
        self.kind = kind
        self.stated = rate
        """The rate the user gave, which is never exceeded."""
        self.rate = rate
        """The rate in force: the stated one, or a lower one that the provider reported."""
        self.unsettled: float = 0
        """What is held by reservations neither settled nor left."""
        self._headroom = headroom
        self._burst_seconds = burst_seconds
        self._bucket = PacedBucket(per_second=rate.per_second * headroom, burst=self._burst(rate))
        self._cap = make_window(rate.amount * headroom, rate.period)
        self._reserve_cap = (
            make_window(rate.amount, rate.period / headroom) if headroom < 1 else None
        )
        self._count: ProviderCount | None = None
        # Only the bucket and the window bound it, which is nearly always so.
        self._plain = self._reserve_cap is None

    def fits(self, amount: float, now: float) -> bool:
        """Return whether ``amount`` can certainly be charged now; if not, ask `free_at`."""
        cap = self._cap
        return not amount or (
            self._plain and self._bucket.has(amount, now) and cap.used_before + amount <= cap.limit
        )

    def free_at(self, amount: float, now: float) -> float:
        """Return when ``amount`` may be charged; ``now`` if it may be now."""
        if not amount:
            return now
        bucket = self._bucket
        seconds = bucket.wait_seconds(amount, now)
        # A wait too short for the clock to show counts as none; waking up for it would never end.
        moment = now + seconds if seconds else now
        window_moment = self._cap.free_at(amount, now)
        if self._reserve_cap is not None:
            window_moment = max(window_moment, self._reserve_cap.free_at(amount, now))
        moment = max(moment, window_moment)
        # Large charges leave gaps at the edges of the window that only a faster pace afterwards can
        # fill. In the dimension of requests all are the same size, and leave none.
        bucket.saving = self.kind != 0 and window_moment > now
        if self._count is not None:
            moment = max(moment, self._count.free_at(amount, now))
        return moment

    def take(self, amount: float, now: float) -> None:
        """Charge ``amount``; the caller has just asked `fits` or `free_at`."""
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
        """Replace a charge made at ``taken_at`` with what was really used.

        More or less, it counts in the window of the charge, because the provider counts a request
        when it arrives. The pace is changed now: an overrun is a debt, repaid before the next
        grant.
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
        """Move a charge made at ``taken_at`` to now; the pace has already counted it."""
        if not amount:
            return
        for cap in (self._cap, self._reserve_cap):
            if cap is not None:
                cap.adjust(-amount, taken_at=taken_at, now=now)
                cap.take(amount, now)

    def hear(self, dimension: RateLimitDimension, now: float) -> None:
        """Apply what a response said about this dimension.

        A reset time can end a bound sooner, but is never waited for. A limit is adopted only if it
        covers the same window, and only if it is below the stated one.
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
            spaced_until=now if self._count is None else self._count.spaced_until,
        )

    def _uncounted(self, now: float) -> float:
        """Return what we charged that the provider may not have counted yet.

        Tokens may be counted only once a request has ended. A request is counted when it arrives,
        and one still unsettled after some seconds arrived long ago: subtracting 20 s calls a second
        time left a sixth of each minute unused.
        """
        if self.kind:
            return self.unsettled
        return min(self.unsettled, self._cap.taken_since(now - _UNDER_WAY_SECONDS))

    def _used_by_others(
        self, whole: float, used: float, reset_seconds: float | None, now: float
    ) -> bool:
        """Return whether the provider has counted more than our own use explains.

        A count that refills continuously is full again once everything used has come back, and
        shows only our last seconds, because our pace is its refill rate. Any other count shows our
        last window.
        """
        refills = reset_seconds is not None and (
            reset_seconds * whole / self.rate.period >= used * _REFILLING_SHARE
        )
        if refills:
            ours = self._bucket.burst - self._bucket.level(now) + self.unsettled
        else:
            ours = self._cap.used(now)
        return used > ours + whole * _OTHERS_SHARE

    def change(self, rate: Rate, now: float) -> None:
        """Replace the stated rate, which has the same period, from now on.

        The window keeps what was charged before, so after the change nothing is granted that would
        make the period before it exceed the new limit. A lower limit that the provider reported
        stays in force until it reports another.
        """
        reported = self.rate.amount if self.rate.amount < self.stated.amount else rate.amount
        self.stated = rate
        self._resize(min(rate.amount, reported), now)

    def pause_until(self, moment: float, now: float) -> None:
        """Empty the bucket, so that a pause ends with one request, then the usual pace."""
        self._bucket.drain_until(moment, now, keep=1 if self.kind == 0 else 0)
        self._forget_count()

    def statistics(self, now: float) -> DimensionStatistics:
        """Return this dimension's current use."""
        level = self._bucket.level(now)
        used = self._cap.used(now)
        return DimensionStatistics(
            limit=self.rate.amount,
            period_seconds=self.rate.period,
            used=used,
            debt=max(0.0, -level, used - self._cap.limit),
            unsettled=self.unsettled,
            provider_remaining=None if self._count is None else max(0, self._count.available(now)),
            slowing=self._count is not None and self._count.slows(now),
        )

    def numbers(self, shift: float) -> tuple[float, ...]:
        """Return its state apart from its windows, with times that are ``shift`` later."""
        count = NO_COUNT if self._count is None else (1.0, *self._count.numbers(shift))
        own = (self.stated.amount, self.rate.amount, self.unsettled)
        return own + self._bucket.numbers(shift) + count

    def restore(self, numbers: tuple[float, ...], shift: float) -> None:
        """Go on from what `numbers` returned, of a meter of the same dimension."""
        stated, amount, self.unsettled, *_ = numbers
        if stated != self.stated.amount:
            self.stated = Rate(stated, self.rate.period)
        if amount != self.rate.amount:
            self._resize(amount, 0)
        self._bucket.restore(numbers[3:7], shift)
        known, *count = numbers[7:]
        self._count = ProviderCount.restored(tuple(count), shift) if known else None
        self._plain = self._reserve_cap is None and self._count is None

    def forget_times(self, now: float) -> None:
        """Count everything as charged now, because nobody knows when it was."""
        self._bucket.drain_until(now, now, keep=0)
        self._forget_count()

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
        if self._count is not None:
            self._count.per_second *= amount / self.rate.amount
        self.rate = rate = Rate(amount, self.rate.period)
        self._bucket.resize(
            per_second=rate.per_second * self._headroom, burst=self._burst(rate), now=now
        )
        self._cap.limit = rate.amount * self._headroom
        if self._reserve_cap is not None:
            self._reserve_cap.limit = rate.amount

    def _burst(self, rate: Rate) -> float:
        return min(max(1.0, rate.per_second * self._burst_seconds), rate.amount * self._headroom)
