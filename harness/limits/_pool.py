"""Use the first provider of a chain that can serve now.

A pool has no limits of its own; each member keeps its own. A request goes to the first member
that works and has room at this moment; if none does, it waits in the pool's line until one does. So
a waiting request is never tied to one provider, and the first is used again as soon as it recovers.

A member is passed over while its limits are used up, it is paused, its quota is gone, it
rests after failures, or others wait in its own line. If all are resting, they are used all the
same: a provider that may fail is better than none.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import attrs
import trio

from harness._outside_trio import refuse_outside_trio
from harness.errors import QuotaExhaustedError, RateLimitedError, ReservationError
from harness.limits._limiter import Limiter
from harness.limits._limiter_statistics import LimiterStatistics
from harness.limits._reservation import Reservation, held_reservation, refuse_nested
from harness.limits._turnstile import Turnstile, Waiter


class ProviderPool:
    """A chain of providers, each with its limiter; the first is the one you prefer.

    Args:
      limiters: One per provider, in order of preference.

    Raises:
      TypeError, ValueError: if there are none, one isn't a limiter, or one is given twice.
    """

    def __init__(self, limiters: Sequence[Limiter]) -> None:
        self.limiters: tuple[Limiter, ...] = tuple(limiters)
        if not self.limiters:
            raise ValueError("a pool needs at least 1 limiter")
        for limiter in self.limiters:
            if not isinstance(limiter, Limiter):
                raise TypeError(f"a pool takes limiters, but got {limiter!r}")
        if len(set(map(id, self.limiters))) < len(self.limiters):
            raise ValueError("a limiter is in this pool twice; give each provider once")
        self._turnstile: Turnstile[PoolReservation] = Turnstile(self._free_at, self._take)
        self._listening = False

    def reserve(
        self,
        *,
        tokens: float | None = None,
        input_tokens: float | None = None,
        output_tokens: float | None = None,
        model: str | None = None,
        priority: float = 0,
    ) -> PoolReservation:
        """Return a request to enter with ``async with``, which gives a `Reservation`.

        Its `Reservation.provider` says which provider to call.

        Args:
          tokens: As in `Limiter.reserve`, as are the others.
          input_tokens: The input among them.
          output_tokens: The output among them.
          model: The model called; estimates are kept per limiter and model.
          priority: The larger goes first.

        Raises:
          TypeError, ValueError: as `Limiter.reserve`.

        Entering raises:
          RateLimitedError, QuotaExhaustedError: if no provider can be waited for.
          NestedReservationError: inside a held reservation of one of them, in a run.
          LimiterRunError: in another ``trio.run`` than the one that used them first.

        Checkpoint: entering always is one; leaving never.

        Cancellation: all or nothing, as `Limiter.reserve`.
        """
        reservations = tuple(
            limiter.reserve(
                tokens=tokens,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                model=model,
                priority=priority,
            )
            for limiter in self.limiters
        )
        return PoolReservation(self, reservations, priority)

    def statistics(self) -> tuple[LimiterStatistics, ...]:
        """Return the state of each provider's limiter, in order of preference."""
        return tuple(limiter.statistics() for limiter in self.limiters)

    @property
    def waiting(self) -> int:
        """How many tasks wait in the pool's line."""
        return self._turnstile.line.count

    async def admit(self, asked: PoolReservation) -> Reservation:
        """Grant one of the reservations, waiting for the first that can be granted."""
        refuse_nested(self.limiters)
        for limiter in self.limiters:
            limiter.check_run()
        line = self._turnstile.line
        if not line.count:
            await trio.lowlevel.checkpoint()
        now = trio.current_time()
        if not line.count and self._free_at(asked, now) <= now:
            self._take(asked, now)
        else:
            self._raise_if_closed(now)
            await self._wait(asked)
        granted = asked.reservation
        assert granted is not None
        return granted

    async def _wait(self, asked: PoolReservation) -> None:
        if not self._listening:
            for limiter in self.limiters:
                limiter.listen(self._member_changed)
            self._listening = True
        try:
            # Ends: a waiter that is turned away finds the chain closed, and raises.
            while not await self._turnstile.wait(asked, asked.priority):
                self._raise_if_closed(trio.current_time())
        finally:
            if not self._turnstile.line.count and self._listening:
                for limiter in self.limiters:
                    limiter.unlisten(self._member_changed)
                self._listening = False

    def _member_changed(self) -> None:
        now = trio.current_time()
        if self._closed_error(now) is not None:
            self._turnstile.turn_away()
        else:
            self._turnstile.admit()

    def _free_at(self, asked: PoolReservation, now: float) -> float:
        return min(self._moments(asked, now), default=inf)

    def _moments(self, asked: PoolReservation, now: float) -> list[float]:
        """Return when each provider can serve, in order; ``inf`` if that depends on others."""
        moments: list[float] = []
        all_rest = all(limiter.rests_until > now for limiter in self.limiters)
        for limiter, reservation in zip(self.limiters, asked.reservations, strict=True):
            if limiter.line.count:  # Those in its own line go first; it tells when they are gone.
                moments.append(inf)
                continue
            moment = limiter.free_at(reservation, now)
            moments.append(moment if all_rest else max(moment, limiter.rests_until))
        return moments

    def _take(self, asked: PoolReservation, now: float) -> None:
        moments = self._moments(asked, now)
        index = next(index for index, moment in enumerate(moments) if moment <= now)
        reservation = asked.reservations[index]
        self.limiters[index].take(reservation, now)
        asked.reservation = reservation

    def _closed_error(self, now: float) -> RateLimitedError | QuotaExhaustedError | None:
        """Return why there is nobody to wait for, or ``None``: the error that ends soonest."""
        errors = [limiter.closed_error(now) for limiter in self.limiters]
        limited = [error for error in errors if isinstance(error, RateLimitedError)]
        if any(error is None for error in errors):
            return None
        if limited:
            return min(limited, key=lambda error: error.retry_after or 0.0)
        return errors[0]

    def _raise_if_closed(self, now: float) -> None:
        error = self._closed_error(now)
        if error is not None:
            raise error


@attrs.define(eq=False, repr=False)
class PoolReservation(Waiter):
    """A request to a pool: entering it gives a `Reservation` of the provider that serves it."""

    _pool: ProviderPool
    reservations: tuple[Reservation, ...]
    priority: float
    reservation: Reservation | None = attrs.field(default=None, init=False)
    _entered: bool = attrs.field(default=False, init=False)

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Reservation:
        if self._entered:
            raise ReservationError(
                "this reservation of a pool was already entered, and works once; "
                "ask the pool for another one"
            )
        refuse_outside_trio("reserve() was entered")
        self._entered = True
        _waiting_for = "a provider of the pool"
        reservation = await self._pool.admit(self)
        reservation.enter_charged(held_reservation())
        return reservation

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self, error_type: object, error: BaseException | None, traceback: object
    ) -> None:
        if self.reservation is not None:
            await self.reservation.__aexit__(error_type, error, traceback)
