"""Every error that a user of harness may catch."""

from __future__ import annotations


class HarnessError(Exception):
    """The base of all errors that harness itself raises."""


# Limits -----------------------------------------------------------------------------------------


class RateLimitedError(HarnessError):
    """The provider asked for a pause that is too long to wait for in line.

    Waiting for a rate limit spends no retry: it isn't a failure of the call.
    """

    retry_after: float | None
    """Seconds until the provider may be asked again, or ``None`` if nobody knows."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[type[RateLimitedError], tuple[str, float | None]]:
        return type(self), (str(self), self.retry_after)


class QuotaExhaustedError(HarnessError):
    """A quota for a day, a month or an account is used up, so a retry can't help.

    It is no `RateLimitedError`, and has no ``retry_after``, on purpose: what waits for
    rate limits must not wait for this one. Fail, or go to another provider.
    """

    resets_after: float | None
    """Seconds until the quota is full again, or ``None`` if the provider didn't say."""

    def __init__(self, message: str, resets_after: float | None = None) -> None:
        super().__init__(message)
        self.resets_after = resets_after

    def __reduce__(self) -> tuple[type[QuotaExhaustedError], tuple[str, float | None]]:
        return type(self), (str(self), self.resets_after)


class NestedReservationError(HarnessError):
    """A limiter was asked for a reservation by code that runs inside one of its own.

    With enough such callers, each holds what another waits for. Reserve once per request
    to the provider, never around code that makes requests of its own.
    """


class ReservationError(HarnessError, RuntimeError):
    """A reservation was used in a way that its state doesn't allow.

    Settled or refunded twice, entered twice, settled before it was granted, or asked for
    where there is none.
    """


class LimiterRunError(HarnessError, RuntimeError):
    """A limiter that belongs to one ``trio.run`` was used in another one."""
