"""Meter and pause as a limiter of one process does, and report what others have to know.

The rules of a shared limit run where its state is, in the script on the server. A process keeps its
own count beside it: for the time in which the server can't be asked, and to tell the server what it
doesn't know then.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from harness.limits._dimension_meter import DimensionMeter
from harness.limits._pauses import Pauses
from harness.limits._rate import Rate
from harness.limits._responses._heard import RateLimitDimension
from harness.limits._window import SlidingCap

Report = Callable[..., None]
"""Takes what has happened, as the script calls it, with its numbers."""

_MARGIN_SHARE = 0.004
_MARGIN_SECONDS = 0.02
_COARSE_CELLS = 64


def margin_seconds(period: float) -> float:
    """Return how much longer than the period a charge counts.

    The clocks of processes are compared through the network, and a process may be held up between
    its grant and its request.
    """
    return min(period * _MARGIN_SHARE, _MARGIN_SECONDS)


def _ignore(*_: object) -> None:
    pass


class ReportingMeter(DimensionMeter):
    """The bounds on one dimension in this process, and what the others have to know of it."""

    report: Report = staticmethod(_ignore)
    changed: Callable[[], None] = staticmethod(_ignore)
    """Called when the limit in force has changed."""
    _share = 1.0

    @property
    def words(self) -> str:
        """The limits in force, in the words of the script."""
        numbers: list[float] = [self.stated.amount, self.rate.per_second * self._headroom]
        numbers += [self._burst(self.rate), self._cap.limit]
        numbers += [self._cap.period + margin_seconds(self._cap.period)]
        reserve = self._reserve_cap
        numbers += [0, 0] if reserve is None else [reserve.limit, reserve.period]
        words = [f"{self.kind}/{self.rate.period!r}", str(self.kind), *map(repr, numbers)]
        return " ".join(words)

    @property
    def windows(self) -> int:
        """How many windows it has."""
        return 1 if self._reserve_cap is None else 2

    def adopt(self, words: list[str], now: float) -> None:
        """Change the limits to those of `words`."""
        self.stated = Rate(float(words[2]), self.rate.period)
        self._resize(float(words[5]) / self._headroom, now)

    def keep_share(self, share: float, now: float) -> None:
        """Let out only this share of the limit from now on, beginning with nothing saved up."""
        self._share = share
        self._resize_bucket(now)
        self._bucket.drain_until(now, now, keep=0)

    def sent_since(self, moment: float) -> list[tuple[float, float]]:
        """Return what was charged after ``moment``: when, and how much, in a few parts."""
        cap = self._cap
        assert isinstance(cap, SlidingCap)
        width = cap.period / _COARSE_CELLS
        recent = [cell for cell in cap.charges() if cell[0] > moment]
        parts = [list(part) for _, part in groupby(recent, lambda cell: cell[0] // width)]
        # The latest moment of each part, which is on the safe side.
        return [(part[-1][0], sum(amount for _, amount in part)) for part in parts]

    def settle(self, charged: float, used: float, *, taken_at: float, now: float) -> None:
        """Replace a charge made at ``taken_at`` with what was really used."""
        super().settle(charged, used, taken_at=taken_at, now=now)
        if used != charged:
            self.report("settled", used - charged, taken_at)

    def postpone(self, amount: float, *, taken_at: float, now: float) -> None:
        """Move a charge made at ``taken_at`` to now."""
        super().postpone(amount, taken_at=taken_at, now=now)
        if amount:
            self.report("late", amount, taken_at, now)

    def hear(self, dimension: RateLimitDimension, now: float) -> None:
        """Apply what a response said about this dimension, here and everywhere."""
        rate = self.rate
        super().hear(dimension, now)
        if self.rate != rate:
            self.changed()
        if dimension.remaining is not None:
            reset = dimension.reset_seconds
            seconds = self.rate.period if reset is None else min(reset, self.rate.period)
            self.report("heard", dimension.remaining, dimension.limit or self.rate.amount, seconds)

    def _resize(self, amount: float, now: float) -> None:
        super()._resize(amount, now)
        if self._share != 1:
            self._resize_bucket(now)

    def _resize_bucket(self, now: float) -> None:
        self._bucket.resize(
            per_second=self.rate.per_second * self._headroom * self._share,
            burst=max(1.0, self._burst(self.rate) * self._share),
            now=now,
        )


class ReportingPauses(Pauses):
    """The pause of a shared limit as this process knows it, and what the others have to know."""

    __slots__ = ("_is_refused", "report")

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.report = report
        self._is_refused = False

    def begin(self, seconds: float, *, now: float, draw: float) -> None:
        """Pause for ``seconds`` from now."""
        super().begin(seconds, now=now, draw=draw)
        if not self._is_refused:
            self.report("paused", seconds, self.closed_until - now)

    def refused(self, seconds: float | None, *, epoch: int | None, now: float, draw: float) -> bool:
        """Record that the provider refused a request; return whether that began a pause."""
        was = self.epoch
        self._is_refused = True
        try:
            began = super().refused(seconds, epoch=epoch, now=now, draw=draw)
        finally:
            self._is_refused = False
        if began:
            told = -1 if epoch is None else was
            self.report("refused", -1 if seconds is None else seconds, told, draw)
        return began

    def got_through(self, *, epoch: int) -> None:
        """Record that a request granted in ``epoch`` wasn't refused."""
        if self.streak:
            super().got_through(epoch=epoch)
            self.report("through", epoch)

    def quota_used_up(self, seconds: float | None, *, now: float) -> None:
        """Close until the quota is back."""
        super().quota_used_up(seconds, now=now)
        self.report("quota", self.quota_until - now, self.quota_reset_known)
