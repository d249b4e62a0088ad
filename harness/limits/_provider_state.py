"""Learn from a provider's responses: pauses, used-up quotas, its health, its counts.

Every response that reaches a limiter passes through here once. It adjusts the meters, begins
pauses, and feeds the adaptive capacity; all the limiter has to do is look at its line afterwards.

Clock-free, apart from the adaptive capacity's own clock: it is given the time and a draw.
"""

from __future__ import annotations

import attrs

from harness.errors import QuotaExhaustedError, RateLimitedError
from harness.limits._adaptive import AdaptiveCapacity
from harness.limits._dimension_meter import DimensionMeter
from harness.limits._health import Health
from harness.limits._pauses import Pauses
from harness.limits._responses._headers import parse_rate_limit_headers
from harness.limits._responses._heard import LONGEST_WAIT_SECONDS, RateLimitHeaders
from harness.limits._responses._profiles import ProviderProfile
from harness.limits._responses._refusals import Response

# Which dimension of a response concerns which meter.
_HEARD_AS = {"project_tokens": "tokens"}

OK = 200
"""The status of a good answer, where nobody says one."""


@attrs.define(eq=False, repr=False)
class ProviderState:
    """What is known about one provider."""

    _name: str
    _profile: ProviderProfile
    _meters: tuple[DimensionMeter, ...]
    _adaptive: AdaptiveCapacity | None
    pauses: Pauses = attrs.field(factory=Pauses, init=False)
    health: Health = attrs.field(factory=Health, init=False)
    rate_limited: int = attrs.field(default=0, init=False)
    unreadable: int = attrs.field(default=0, init=False)

    def hear(
        self, response: Response, *, epoch: int | None, in_use: int, now: float, draw: float
    ) -> RateLimitHeaders:
        """Learn from one response.

        Args:
          response: Its status and headers, and its body if it is an error's.
          epoch: The pause after which its request was granted, or ``None`` if nobody knows.
          in_use: How many requests are in flight, this one included.
          now: The time.
          draw: A number above 0 and up to 1, for the jitter of a pause.
        """
        status, headers, body = response
        if not isinstance(status, int):
            status = None  # It came from outside, and no status should make this raise.
        heard = parse_rate_limit_headers(headers, provider=self._profile, status=status, body=body)
        self.unreadable += heard.unreadable
        for name, dimension in heard.dimensions.items():
            for meter in self._meters:
                if meter.name == _HEARD_AS.get(name, name):
                    meter.hear(dimension, now)
        if heard.too_large:
            return heard  # It says something of the request, and nothing of the provider.
        if heard.is_rate_limit:
            self.rate_limited += 1
            if heard.quota_exhausted:
                self.pauses.quota_used_up(heard.wait_seconds, now=now)
                self.apply_pause(now)
            elif self.pauses.refused(heard.wait_seconds, epoch=epoch, now=now, draw=draw):
                self.apply_pause(now)
        elif status is not None and status >= 500:
            self.health.failed(now)
        elif epoch is not None:
            self.health.good += 1
            self.pauses.got_through(epoch=epoch)
        if self._adaptive is not None:
            if status is not None:
                wait = heard.retry_after_seconds
                self._adaptive.record(status=status, in_use=in_use, retry_after=wait)
            elif epoch is not None:
                self._adaptive.record(status=OK, in_use=in_use)
        return heard

    def pause(self, seconds: float, *, now: float, draw: float) -> None:
        """Begin a pause that somebody asked for."""
        self.pauses.begin(seconds, now=now, draw=draw)
        self.apply_pause(now)

    def apply_pause(self, now: float) -> None:
        """Make the meters end the pause that has just begun with a trickle."""
        for meter in self._meters:
            meter.pause_until(self.pauses.closed_until, now)

    def closed_error(self, now: float) -> RateLimitedError | QuotaExhaustedError | None:
        """Return why nobody should wait for this provider now, or ``None`` if one may."""
        pauses = self.pauses
        if pauses.quota_until > now:
            seconds = pauses.quota_until - now if pauses.quota_reset_known else None
            back = "nobody said when it will be back"
            if seconds is not None:
                back = f"it will be back in {seconds:.0f} s"
            return QuotaExhaustedError(
                f"the quota of {self._name!r} is used up and {back}; retrying can't help, so "
                "give up, or use a ProviderPool with another provider",
                seconds,
            )
        if pauses.too_long(now):
            seconds = pauses.asked_until - now
            return RateLimitedError(
                f"{self._name!r} asked for a pause of {seconds:.0f} s, and no caller waits more "
                f"than {LONGEST_WAIT_SECONDS:.0f} s in line; come back later, or use a "
                "ProviderPool with another provider",
                seconds,
            )
        return None
