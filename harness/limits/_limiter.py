"""Keep a provider's limits: reserve before a request, settle after it.

A `Limiter` holds a meter for each limited dimension and a number of places. A reservation
takes all it needs or nothing. Who can't be served at once stands in one line; see `Turnstile`
for how it sleeps, `Line` for its order, and `Meter` for the arithmetic.

Invariant, at every checkpoint: either nobody waits, or the head of the line can't be granted
yet. So whatever settles, frees a place, moves a limit or ends a pause must end with
`Limiter._changed`.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from math import ceil, inf, isfinite
from operator import itemgetter
from types import MappingProxyType

import trio

from harness.errors import LimiterRunError, QuotaExhaustedError, RateLimitedError
from harness.limits._adaptive import AdaptiveCapacity
from harness.limits._charges import NO_TOKENS, Charge, learn_use, planned_charge, used_charge
from harness.limits._estimates import Estimates
from harness.limits._headers import HeaderSource
from harness.limits._heard import RateLimitHeaders
from harness.limits._meter import Meter
from harness.limits._numbers import checked_amount, checked_count, checked_positive
from harness.limits._profiles import ProviderProfile
from harness.limits._provider_state import ProviderState
from harness.limits._rate import Rate
from harness.limits._reservation import Charges, Reservation, refuse_nested
from harness.limits._stated import stated_profile, stated_rates
from harness.limits._statistics import LimiterStatistics
from harness.limits._turnstile import Turnstile


class Limiter:
    """A provider's limits, shared by every task that calls it.

    Args:
      name: The provider, or the account at it. If it is the name of one that harness knows
        (``"openai"``, ``"azure"``, ``"anthropic"``, ``"gemini"``, ``"mistral"``, ``"cohere"``,
        ``"groq"``), its profile says what it counts.
      requests_per_minute: How many requests it grants in any minute.
      tokens_per_minute: How many tokens, input and output.
      input_tokens_per_minute: How many tokens of input.
      output_tokens_per_minute: How many tokens of output.
      requests: A limit on requests over another period, beside or instead of the minute's.
      tokens: A limit on tokens over another period.
      input_tokens: A limit on tokens of input over another period.
      output_tokens: A limit on tokens of output over another period.
      concurrent: How many reservations may be held at once.
      headroom: The part of each limit to use. With ``window / (window + jitter)`` the
        provider counts no violation though the network delays requests by up to ``jitter``.
      burst_seconds: How much may go at once after an idle time, in seconds' worth of the
        limit; at least one request.
      provider: The profile to use, or its name, if ``name`` doesn't say it.

    Raises:
      TypeError, ValueError: if a limit is no number, not above zero or not finite, if
        there is none at all, or if the headroom is not above 0 and at most 1.
    """

    def __init__(
        self,
        name: str,
        *,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        input_tokens_per_minute: float | None = None,
        output_tokens_per_minute: float | None = None,
        requests: Rate | None = None,
        tokens: Rate | None = None,
        input_tokens: Rate | None = None,
        output_tokens: Rate | None = None,
        concurrent: int | AdaptiveCapacity | None = None,
        headroom: float = 1.0,
        burst_seconds: float = 1.0,
        provider: str | ProviderProfile | None = None,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of a limiter is {name!r}, but must be a string")
        self.name = name
        self._profile = stated_profile(name, provider)
        self._headroom = checked_positive("headroom", headroom)
        if headroom > 1:
            raise ValueError(f"headroom is {headroom}, but must be at most 1: a part of the limit")
        self._burst_seconds = checked_amount("burst_seconds", burst_seconds)
        self._rates = stated_rates(
            (
                requests_per_minute,
                tokens_per_minute,
                input_tokens_per_minute,
                output_tokens_per_minute,
            ),
            (requests, tokens, input_tokens, output_tokens),
        )
        self._adaptive: AdaptiveCapacity | None = None
        self._places: int | None = None
        if isinstance(concurrent, AdaptiveCapacity):
            self._adaptive = concurrent
        elif concurrent is not None:
            self._places = checked_count("concurrent", concurrent)
        if not self._rates and concurrent is None:
            raise ValueError(
                f"limiter {name!r} limits nothing; give at least one of requests_per_minute, "
                "tokens_per_minute, input_tokens_per_minute, output_tokens_per_minute, "
                "requests, tokens, input_tokens, output_tokens, concurrent"
            )
        kinds = [kind for kind, _, _ in self._rates]
        self._counts_tokens = any(kinds)
        self._total_is_enough = all(kind <= 1 for kind in kinds)
        self._amounts_of = itemgetter(*kinds) if len(kinds) > 1 else None
        self._listeners: list[Callable[[], None]] = []
        self._start()

    def _start(self) -> None:
        self._trio_token: trio.lowlevel.TrioToken | None = None
        self._meters = tuple(
            Meter(
                name,
                kind=kind,
                rate=rate,
                headroom=self._headroom,
                burst_seconds=self._burst_of(kind),
            )
            for kind, name, rate in self._rates
        )
        self._one_request = self._charges_of(NO_TOKENS)
        self._turnstile: Turnstile[Reservation] = Turnstile(self.free_at, self._take_from_line)
        self.line = self._turnstile.line
        self._state = ProviderState(self.name, self._profile, self._meters, self._adaptive)
        self._pauses = self._state.pauses
        self._estimates = Estimates()
        # Reservations of an earlier `trio.run` keep their meters and their state: what they
        # still do goes there, and can't hurt.
        self._in_flight = 0
        self._waits = 0
        self._waited_seconds = 0.0
        self.granted = 0

    def _burst_of(self, kind: int) -> float:
        return 0.0 if kind == 0 and self._profile.requests_evenly_spaced else self._burst_seconds

    # What users call --------------------------------------------------------------------------

    def reserve(
        self,
        *,
        tokens: float | None = None,
        input_tokens: float | None = None,
        output_tokens: float | None = None,
        model: str | None = None,
        priority: float = 0,
    ) -> Reservation:
        """Return a reservation to enter with ``async with``, which waits for its turn.

        Args:
          tokens: Tokens the request will use. If nothing is given, the limiter estimates;
            an explicit 0 is 0. Input and output given alone make up the tokens.
          input_tokens: The input among them.
          output_tokens: The output among them; if only the input is given, the limiter
            estimates it.
          model: The model that is asked; estimates are kept per model.
          priority: The larger goes first. Nobody starves: after 300 later arrivals have
            gone before, a waiter gets every second place.

        Raises:
          TypeError, ValueError: if an amount is no number, is negative or not finite, or the
            priority is no finite number.

        Entering raises:
          RateLimitedError: if the provider asked for a pause of more than 120 s.
          QuotaExhaustedError: if a quota for a day or an account is used up.
          NestedReservationError: inside a held reservation of this limiter, in a run.
          LimiterRunError: in another ``trio.run`` than the one that used it first.
          ReservationError: the second time.

        Checkpoint: entering always is one; leaving never.

        Cancellation: all or nothing. If entering raises `trio.Cancelled`, nothing was charged
        and the task has left the line. Once entered, the charge stays.
        """
        if type(priority) is not int:
            _check_priority(priority)
        if not self._counts_tokens and tokens is input_tokens is output_tokens is None:
            return Reservation(self, self._one_request, NO_TOKENS, model, priority)
        planned: Charge
        if self._total_is_enough and (
            type(tokens) is int and tokens >= 0 and input_tokens is output_tokens is None
        ):
            # What `planned_charge` would return, in the path of nearly every request.
            planned = (1, tokens, None, None, None)
        else:
            planned = planned_charge(
                tokens,
                input_tokens,
                output_tokens,
                model=model,
                estimates=self._estimates,
                split_needed=not self._total_is_enough,
            )
        return Reservation(self, self._charges_of(planned), planned, model, priority)

    def reserve_nowait(
        self,
        *,
        tokens: float | None = None,
        input_tokens: float | None = None,
        output_tokens: float | None = None,
        model: str | None = None,
        priority: float = 0,
    ) -> Reservation:
        """Return a reservation that is charged already, or refuse.

        Leave it like any other: enter it with ``async with``, or `Reservation.refund` it.

        Args:
          tokens: As in `reserve`, as are the others.
          input_tokens: The input among them.
          output_tokens: The output among them.
          model: The model that is asked.
          priority: Taken for symmetry; it can't overtake anybody.

        Raises:
          trio.WouldBlock: if it can't be granted at once, or anybody is in line.
          RateLimitedError, QuotaExhaustedError, NestedReservationError, LimiterRunError,
            TypeError, ValueError: as in `reserve`.
        """
        reservation = self.reserve(
            tokens=tokens,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            model=model,
            priority=priority,
        )
        refuse_nested((self,))
        if not self.admit_now(reservation):
            self.raise_if_closed()
            raise trio.WouldBlock
        reservation.mark_charged()
        return reservation

    def estimate(
        self,
        *,
        model: str | None = None,
        input_tokens: float | None = None,
        max_output_tokens: float | None = None,
    ) -> int:
        """Return how many tokens a request will probably use.

        That is its input and a moving average of the output that the model really gave, not
        the output that the request allows itself: reserving that leaves most of a limit
        unused. Where the provider counts the allowed maximum, that is added instead.

        Args:
          model: The model that is asked.
          input_tokens: The request's input; if it isn't known, the model's average.
          max_output_tokens: The largest output that the request allows; see
            `requested_output_tokens`.

        Raises:
          TypeError, ValueError: if a number of tokens is none, or is negative.
        """
        known_input = (
            self._estimates.input_tokens(model)
            if input_tokens is None
            else checked_amount("input_tokens", input_tokens)
        )
        output = float(self._estimates.output_tokens(model, input_tokens=input_tokens))
        if max_output_tokens is not None:
            largest = checked_amount("max_output_tokens", max_output_tokens)
            output = largest if self._profile.counts_requested_maximum else min(output, largest)
        return ceil(known_input + output)

    def pause(self, seconds: float) -> None:
        """Grant nothing for ``seconds``, and a little longer; then begin with a trickle.

        Args:
          seconds: From now. A longer pause that is under way stays.

        Raises:
          TypeError, ValueError: if ``seconds`` is no number, is negative or not finite.
          LimiterRunError: in another ``trio.run`` than the one that used it first.
        """
        seconds = checked_amount("seconds", seconds)
        self.check_run()
        now = trio.current_time()
        self._state.pause(seconds, now=now, draw=random.random())
        self._after_response(now)

    def observe(
        self, *, headers: HeaderSource = None, status: int | None = None, body: object = None
    ) -> RateLimitHeaders:
        """Take over what a response says that belongs to no reservation.

        Args:
          headers: The response's headers: a mapping, pairs, or ``None``.
          status: The response's status.
          body: The response's body, if it is an error's: text, bytes or parsed JSON.

        Returns:
          What was read.

        Raises:
          LimiterRunError: in another ``trio.run`` than the one that used it first.
        """
        self.check_run()
        now = trio.current_time()
        heard = self._state.hear(
            headers,
            status,
            body,
            epoch=None,
            in_use=self._in_flight,
            now=now,
            draw=random.random(),
        )
        self._after_response(now)
        return heard

    def statistics(self) -> LimiterStatistics:
        """Return the state of the limiter now, as a frozen value."""
        now = trio.current_time()
        return LimiterStatistics(
            name=self.name,
            granted=self.granted,
            waiting=self.line.count,
            in_flight=self._in_flight,
            concurrent=self._adaptive.limit if self._adaptive else self._places,
            dimensions=MappingProxyType(
                {meter.name: meter.statistics(now) for meter in self._meters}
            ),
            waits=self._waits,
            waited_seconds=self._waited_seconds,
            paused_seconds=max(0.0, self._pauses.closed_until - now),
            pauses=self._pauses.count,
            rate_limited=self._state.rate_limited,
            unreadable=self._state.unreadable,
        )

    def reset(self) -> None:
        """Forget everything, and begin anew; so it can be used in another ``trio.run``.

        Raises:
          LimiterRunError: if tasks of this ``trio.run`` wait in its line; they would wait
            for ever.
        """
        if self.line.count and self._trio_token is _current_token_or_none():
            raise LimiterRunError(
                f"can't reset limiter {self.name!r} while {self.line.count} tasks of this "
                "run wait in its line; cancel them first"
            )
        if self._adaptive is not None:
            self._adaptive.reset()
        self._start()

    def __repr__(self) -> str:
        limits = [f"{meter.name}: {meter.rate}" for meter in self._meters]
        if self._places is not None:
            limits.append(f"{self._places} at once")
        elif self._adaptive is not None:
            limits.append(repr(self._adaptive))
        return f"<Limiter {self.name!r}, {', '.join(limits)}>"

    # What reservations call -------------------------------------------------------------------

    def admit_now(self, reservation: Reservation) -> bool:
        """Charge the reservation if that is possible at once, and say whether it was."""
        if trio.lowlevel.current_trio_token() is not self._trio_token:
            self.check_run()
        if self.line.count:
            return False
        now = trio.current_time()
        if self.free_at(reservation, now) > now:
            return False
        self.take(reservation, now)
        return True

    def admit_later(self, reservation: Reservation) -> Awaitable[bool]:
        """Wait in line until the reservation is charged, or nobody should wait any more."""
        self.check_run()
        now = trio.current_time()
        if self._pauses.closed_until > now:
            self.raise_if_closed()
        reservation.asked_at = now
        # Handed out, not awaited: one coroutine less between trio and the sleeping task.
        return self._turnstile.wait(reservation, reservation.priority)

    def raise_if_closed(self) -> None:
        """Raise if nobody should wait for this limiter now."""
        error = self.closed_error(trio.current_time())
        if error is not None:
            raise error

    def settled(
        self,
        reservation: Reservation,
        tokens: float | None,
        input_tokens: float | None,
        output_tokens: float | None,
        headers: HeaderSource,
        status: int | None,
        body: object,
    ) -> None:
        """Replace a charge by the use, and take over what the response says."""
        changed = False
        if tokens is input_tokens is output_tokens is None:
            for meter, charged in reservation.charges:
                meter.unsettled -= charged
        else:
            used = used_charge(reservation.planned, tokens, input_tokens, output_tokens)
            for meter, charged in reservation.charges:
                really = used[meter.kind] or 0
                if really == charged:
                    meter.unsettled -= charged
                    continue
                changed = True
                now = trio.current_time()
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
            reservation.state.answered_well(reservation.epoch)
        else:
            now = trio.current_time()
            reservation.state.hear(
                headers,
                status,
                body,
                epoch=reservation.epoch,
                in_use=self._in_flight,
                now=now,
                draw=random.random(),
            )
            self._after_response(now)
        if changed and (self.line.count or self._listeners):
            self._changed()

    def refunded(self, reservation: Reservation) -> None:
        """Take back a charge."""
        now = trio.current_time()
        for meter, charged in reservation.charges:
            meter.settle(charged, 0, taken_at=reservation.granted_at, now=now)
        self._changed()

    def left(self, reservation: Reservation, error: BaseException | None) -> None:
        """Free the reservation's place."""
        state = reservation.state
        if state is self._state:
            self._in_flight -= 1
        if not reservation.closed:
            for meter, charged in reservation.charges:
                meter.unsettled -= charged
            if isinstance(error, Exception):
                now = trio.current_time()
                state.failed(
                    error,
                    epoch=reservation.epoch,
                    in_use=self._in_flight + 1,
                    now=now,
                    draw=random.random(),
                )
                self._after_response(now)
        if self.line.count or self._listeners:
            self._changed()

    # What lines call --------------------------------------------------------------------------

    def free_at(self, reservation: Reservation, now: float) -> float:
        """Return the moment from which the reservation can be granted; ``now`` if it can now.

        It is ``inf`` while all places are taken: somebody has to leave, and that calls.
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

    def take(self, reservation: Reservation, now: float) -> None:
        """Charge the reservation, in all dimensions; `free_at` was asked just now."""
        for meter, amount in reservation.charges:
            meter.take(amount, now)
        self._in_flight += 1
        reservation.granted_at = now
        reservation.state = self._state
        reservation.epoch = self._pauses.epoch

    def _take_from_line(self, reservation: Reservation, now: float) -> None:
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
        """Until when it should be passed over, because it failed."""
        return self._state.health.rests_until

    def closed_error(self, now: float) -> RateLimitedError | QuotaExhaustedError | None:
        """Return why nobody should wait for this limiter now, or ``None`` if one may."""
        return self._state.closed_error(now)

    def check_run(self) -> None:
        """Bind to this ``trio.run``, or raise if bound to another one."""
        token = trio.lowlevel.current_trio_token()
        if token is self._trio_token:
            return
        if self._trio_token is not None:
            raise LimiterRunError(
                f"limiter {self.name!r} was used in another trio run, and its times and places "
                "mean nothing in this one; make one limiter per run, or call "
                "`limiter.reset()` between them"
            )
        self._trio_token = token

    # Inside -----------------------------------------------------------------------------------

    def _changed(self) -> None:
        self._turnstile.admit()
        if self._listeners:
            for listener in tuple(self._listeners):
                listener()

    def _charges_of(self, charge: Charge) -> Charges:
        if self._amounts_of is None:
            return tuple([(meter, charge[meter.kind] or 0) for meter in self._meters])
        return tuple(zip(self._meters, self._amounts_of(charge), strict=True))

    def _after_response(self, now: float) -> None:
        if self.line.count and self.closed_error(now) is not None:
            self._turnstile.turn_away()
        self._changed()


def _check_priority(priority: object) -> None:
    if isinstance(priority, bool) or not isinstance(priority, int | float):
        raise TypeError(f"priority is {priority!r}, but must be a number; the larger goes first")
    if not isfinite(priority):
        raise ValueError(f"priority is {priority!r}, but must be finite")


def _current_token_or_none() -> trio.lowlevel.TrioToken | None:
    try:
        return trio.lowlevel.current_trio_token()
    except RuntimeError:  # Outside of trio.
        return None
