"""Bound what runs at once to what the provider allows.

Start with `Limiter`; `ProviderPool` puts several in a chain, `JointLimiter` applies several
together.
"""

from harness.limits._adaptive import AdaptiveCapacity
from harness.limits._estimates import requested_output_tokens
from harness.limits._feasible import Feasible
from harness.limits._limiter import Limiter
from harness.limits._limiter_statistics import DimensionStatistics, LimiterStatistics
from harness.limits._notices import LimiterUsed, ReservationOver
from harness.limits._pool import JointLimiter, ProviderPool
from harness.limits._rate import Rate
from harness.limits._reservation import Reservation, current_reservation
from harness.limits._responses._headers import parse_rate_limit_headers
from harness.limits._responses._heard import RateLimitDimension, RateLimitHeaders
from harness.limits._responses._profiles import ProviderProfile

__all__ = [
    "AdaptiveCapacity",
    "DimensionStatistics",
    "Feasible",
    "JointLimiter",
    "Limiter",
    "LimiterStatistics",
    "LimiterUsed",
    "ProviderPool",
    "ProviderProfile",
    "Rate",
    "RateLimitDimension",
    "RateLimitHeaders",
    "Reservation",
    "ReservationOver",
    "current_reservation",
    "parse_rate_limit_headers",
    "requested_output_tokens",
]
