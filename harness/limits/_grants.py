"""Grant reservations: charge them, make them wait, settle them.

The inside of a `Limiter`; what users call has its own file. It holds a meter for each
limited dimension, a number of places, and a line.

Invariant, at every checkpoint: either nobody waits, or the head of the line can't be granted
yet. So whatever settles, frees a place, moves a limit or ends a pause must end with
`Grants._changed`.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from math import inf
from operator import itemgetter

import trio
from trio import current_time  # By name: `trio` has a `__getattr__`, so a look-up costs.
from trio.lowlevel import current_trio_token

from harness.errors import LimiterRunError, QuotaExhaustedError, RateLimitedError
from harness.limits._adaptive import AdaptiveCapacity
from harness.limits._charges import NO_TOKENS, Charge, learn_use, used_charge, with_maximum
from harness.limits._claim import Charges, Claim
from harness.limits._dimension_meter import DimensionMeter
from harness.limits._estimates import Estimates
from harness.limits._line import Line
from harness.limits._provider_state import ProviderState
from harness.limits._responses._headers import HeaderSource
from harness.limits._responses._heard import RateLimitHeaders
from harness.limits._responses._profiles import ProviderProfile
from harness.limits._responses._refusals import ANSWERED, Response, response_of
from harness.limits._stated import StatedRate
from harness.limits._turnstile import Turnstile

# A grant is charged again if its task runs this much later; less is within what clocks differ by.
_LATE_SECONDS = 0.0005


class Grants:
    """What a limiter has granted, and what it can grant.

    Args:
      name: The limiter's name.
      rates: The limits, as stated.
      places: How many reservations may be held at once, fixed or adaptive.
      profile: What the provider counts.
      headroom: The share of each limit to use.
      burst_seconds: How much may go at once, in seconds' worth of the limit.
    """

    def __init__(
        self,
        name: str,
        *,
        rates: tuple[StatedRate, ...],
        places: int | AdaptiveCapacity | None,
        profile: ProviderProfile,
        headroom: float,
        burst_seconds: float,
    ) -> None:
        self.name = name
        self._rates = rates
        self._profile = profile
        self._headroom = headroom
        self._burst_seconds = burst_seconds
        self._adaptive = places if isinstance(places, AdaptiveCapacity) else None
        self._places = None if isinstance(places, AdaptiveCapacity) else places
        kinds = [kind for kind, _, _ in rates]
        self._counts_tokens = any(kinds)
        self._total_is_enough = all(kind <= 1 for kind in kinds)
        self._amounts_of = itemgetter(*kinds) if len(kinds) > 1 else None
        self._listeners: list[Callable[[], None]] = []
        self._start()

    def _start(self) -> None:
        self._trio_token: trio.lowlevel.TrioToken | None = None
        self._meters = tuple(
            DimensionMeter(
                name,
                kind=kind,
                rate=rate,
                headroom=self._headroom,
                burst_seconds=self._burst_of(kind),
            )
            for kind, name, rate in self._rates
        )
        self._one_request = self._charges_of(NO_TOKENS)
        self._turnstile: Turnstile[Claim] = Turnstile(
            self.free_at, self._take_from_line, self._tell_pools
        )
        # Public only so that checking for anybody who waits costs no call.
        self.line: Line[Claim] = self._turnstile.line
        self._state = ProviderState(self.name, self._profile, self._meters, self._adaptive)
        self._pauses = self._state.pauses
        self._estimates = Estimates()
        # Reservations from an earlier `trio.run` keep their meters and their state: what they still
        # do goes there, and does no harm.
        self._in_flight = 0
        self._last_grant_at = 0.0
        self._waits = 0
        self._waited_seconds = 0.0
        self.granted = 0

    def _burst_of(self, kind: int) -> float:
        return 0.0 if kind == 0 and self._profile.requests_evenly_spaced else self._burst_seconds

    # What reservations call -------------------------------------------------------------------

    def admit_now(self, reservation: Claim) -> bool:
        """Charge the reservation if possible at once, and say whether it was."""
        if current_trio_token() is not self._trio_token:
            self.check_run()
        if self.line.count:
            return False
        now = current_time()
        if self.free_at(reservation, now) > now:
            return False
        self.take(reservation, now)
        return True

    def admit_later(self, reservation: Claim) -> Awaitable[bool]:
        """Wait in line until the reservation is charged, or nobody should wait any longer."""
        self.check_run()
        now = current_time()
        if self._pauses.closed_until > now:
            self.raise_if_closed()
        reservation.asked_at = now
        # Returned, not awaited: one coroutine fewer between trio and the sleeping task.
        return self._turnstile.wait(reservation, reservation.priority)

    def woken(self, reservation: Claim) -> None:
        """Charge a task that waited in line at the moment it runs, if that is late.

        In a busy loop that may be milliseconds after its grant, and the provider counts requests
        when they are sent, not when we meant to send them.
        """
        now = current_time()
        if now - reservation.granted_at > _LATE_SECONDS:
            for meter, amount in reservation.charges:
                meter.postpone(amount, taken_at=reservation.granted_at, now=now)
            reservation.granted_at = now

    def raise_if_closed(self) -> None:
        """Raise if nobody should wait for this limiter now."""
        error = self.closed_error(current_time())
        if error is not None:
            raise error

    def settled(
        self,
        reservation: Claim,
        tokens: float | None,
        input_tokens: float | None,
        output_tokens: float | None,
        headers: HeaderSource,
        status: int | None,
        body: object,
    ) -> None:
        """Replace a charge with the real use, and apply what the response says."""
        changed = False
        if tokens is input_tokens is output_tokens is None:
            for meter, charged in reservation.charges:
                meter.unsettled -= charged
        else:
            used = used_charge(reservation.planned, tokens, input_tokens, output_tokens)
            if self._profile.counts_requested_maximum:
                used = with_maximum(used, reservation.planned)
            for meter, charged in reservation.charges:
                really = used[meter.kind] or 0
                if really == charged:
                    meter.unsettled -= charged
                    continue
                changed = True
                now = current_time()
                meter.settle(charged, really, taken_at=reservation.granted_at, now=now)
            if self._counts_tokens:
                if input_tokens is output_tokens is reservation.planned[4] is None:
                    self._estimates.learn_total(reservation.model, used[1])
                else:
                    learn_use(
                        self._estimates,
                        reservation.model,
                        reservation.planned,
                        tokens,
                        input_tokens,
                        output_tokens,
                    )
        if status is None and headers is None and body is None:
            state = reservation.state
            state.health.good += 1
            if state.pauses.streak:
                state.pauses.got_through(epoch=reservation.epoch)
            if self._adaptive is not None:
                # Whoever knows what was used has had an answer.
                self._adaptive.record(status=200, in_use=self._in_flight)
                changed = True
        else:
            response = Response(status, headers, body)
            self._hear(reservation.state, response, epoch=reservation.epoch, in_use=self._in_flight)
        if changed and (self.line.count or self._listeners):
            self._changed()

    def _tell_pools(self) -> None:
        """Tell pools, which look elsewhere while anybody is in this limiter's own line."""
        for listener in tuple(self._listeners):
            listener()

    def refunded(self, reservation: Claim) -> None:
        """Take back a charge."""
        now = current_time()
        for meter, charged in reservation.charges:
            meter.settle(charged, 0, taken_at=reservation.granted_at, now=now)
        self._changed()

    def left(self, reservation: Claim, error: BaseException | None) -> None:
        """Free the reservation's place."""
        state = reservation.state
        if state is self._state:
            self._in_flight -= 1
        if not reservation.closed:
            for meter, charged in reservation.charges:
                meter.unsettled -= charged
            if error is None:
                # An answer, if nobody says otherwise.
                self._hear(state, ANSWERED, epoch=reservation.epoch, in_use=self._in_flight + 1)
            elif isinstance(error, Exception):
                response = response_of(error)
                if response is None:
                    now = current_time()
                    state.health.failed(now)
                    self._after_response(now)
                else:
                    self._hear(state, response, epoch=reservation.epoch, in_use=self._in_flight + 1)
        if self.line.count or self._listeners:
            self._changed()

    # What lines call --------------------------------------------------------------------------

    def free_at(self, reservation: Claim, now: float) -> float:
        """Return when the reservation can be granted; ``now`` if it can be now.

        It is ``inf`` while all places are taken: somebody has to leave first, and leaving calls
        again.
        """
        if self._places is not None or self._adaptive is not None:
            places = self._places if self._adaptive is None else self._adaptive.limit
            if places is not None and self._in_flight >= places:
                return inf
        moment = now
        if self._pauses.closed_until > now:
            moment = self._pauses.closed_until
        for meter, amount in reservation.charges:
            if not meter.fits(amount, now):
                free_at = meter.free_at(amount, now)
                if free_at > moment:
                    moment = free_at
        return moment

    def take(self, reservation: Claim, now: float) -> None:
        """Charge the reservation in all dimensions; `free_at` has just been asked."""
        for meter, amount in reservation.charges:
            meter.take(amount, now)
        self._in_flight += 1
        self._last_grant_at = now
        reservation.granted_at = now
        reservation.state = self._state
        reservation.epoch = self._pauses.epoch

    def _take_from_line(self, reservation: Claim, now: float) -> None:
        self.take(reservation, now)
        self._waits += 1
        self._waited_seconds += now - reservation.asked_at

    # What pools call --------------------------------------------------------------------------

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after every change, until `unlisten`."""
        self._listeners.append(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Stop calling ``listener``."""
        self._listeners.remove(listener)

    @property
    def rests_until(self) -> float:
        """Until when it should be passed over because it failed."""
        return self._state.health.rests_until

    def closed_error(self, now: float) -> RateLimitedError | QuotaExhaustedError | None:
        """Return why nobody should wait for this limiter now, or ``None`` if one may."""
        return self._state.closed_error(now)

    def check_run(self) -> None:
        """Bind to this ``trio.run``, or raise if bound to another one."""
        token = current_trio_token()
        if token is self._trio_token:
            return
        if self._trio_token is not None:
            raise LimiterRunError(
                f"limiter {self.name!r} was used in another trio run, and its times and places "
                "mean nothing in this one; make one limiter per run, or call "
                "`limiter.reset()` between them"
            )
        self._trio_token = token

    def _time_here(self) -> float:
        """Return the time by the clock of its run; after that run, the time of the last grant."""
        try:
            if current_trio_token() is self._trio_token:
                return current_time()
        except RuntimeError:  # Outside of trio.
            pass
        return self._last_grant_at

    # Inside -----------------------------------------------------------------------------------

    def _changed(self) -> None:
        self._turnstile.admit()
        if self._listeners:
            self._tell_pools()

    def _charges_of(self, charge: Charge) -> Charges:
        if self._amounts_of is None:
            return tuple([(meter, charge[meter.kind] or 0) for meter in self._meters])
        return tuple(zip(self._meters, self._amounts_of(charge), strict=True))

    def _hear(
        self, state: ProviderState, response: Response, *, epoch: int | None, in_use: int
    ) -> RateLimitHeaders:
        """Learn from one response, and act on it."""
        now = current_time()
        draw = 1 - random.random()
        heard = state.hear(response, epoch=epoch, in_use=in_use, now=now, draw=draw)
        self._after_response(now)
        return heard

    def _after_response(self, now: float) -> None:
        if self.line.count and self.closed_error(now) is not None:
            self._turnstile.turn_away()
        self._changed()
