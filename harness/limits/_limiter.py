"""Keep a provider's limits: reserve before a request, settle after it.

This is what users call. `Grants` decides how reservations are granted, `Turnstile` how tasks wait,
`Line` who is next, and `DimensionMeter` has the arithmetic.
"""

from __future__ import annotations

from math import ceil, isfinite

import trio

from harness._arguments import says_near_options
from harness.limits._adaptive import AdaptiveCapacity
from harness.limits._charges import NO_TOKENS, Charge, planned_charge
from harness.limits._feasible import Feasible, feasible, per_minute
from harness.limits._grants import UNNAMED, Grants
from harness.limits._limiter_statistics import LimiterStatistics
from harness.limits._numbers import checked_amount, checked_count, checked_positive
from harness.limits._rate import Rate
from harness.limits._reservation import Reservation, refuse_nested
from harness.limits._responses._headers import HeaderSource
from harness.limits._responses._heard import RateLimitHeaders
from harness.limits._responses._profiles import ProviderProfile
from harness.limits._responses._refusals import Response
from harness.limits._stated import stated_profile, stated_rates


@says_near_options
class Limiter:
    """A provider's limits, shared by every task that calls it.

    Args:
      name: The provider, or the account at it. If it is the name of one that harness knows
        (``"openai"``, ``"azure"``, ``"anthropic"``, ``"gemini"``, ``"mistral"``, ``"cohere"``,
        ``"groq"``, ``"together"``, ``"fireworks"``, ``"openrouter"``), its profile says what it
        counts. If another process of this user on this machine uses a limiter of the same name,
        there is a `harness.errors.HarnessWarning`, because each keeps within the whole limit by
        itself. Without a name, nobody looks for others.
      requests_per_minute: How many requests it allows in any minute.
      tokens_per_minute: How many tokens, input and output.
      input_tokens_per_minute: How many tokens of input.
      output_tokens_per_minute: How many tokens of output.
      requests: A limit on requests over another period, besides or instead of the minute's.
      tokens: A limit on tokens over another period.
      input_tokens: A limit on tokens of input over another period.
      output_tokens: A limit on tokens of output over another period.
      concurrent: How many reservations may be held at once.
      headroom: The share of each limit to use. With ``window / (window + jitter)``, the provider
        sees no violation even if the network delays requests by up to ``jitter``.
      burst_seconds: How much may go at once after an idle time, in seconds' worth of the
        limit; at least one request.
      provider: The profile to use, or its name, if ``name`` doesn't say it.

    Raises:
      TypeError, ValueError: if a limit isn't a number, isn't above zero or isn't finite, if there
        is no limit at all, or if the headroom isn't above 0 and at most 1.
    """

    _keeps_with: type[Grants] = Grants

    def __init__(
        self,
        name: str | None = None,
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
        if name is not None and not isinstance(name, str):
            raise TypeError(f"the name of a limiter is {name!r}, but must be a string")
        if not isinstance(concurrent, AdaptiveCapacity) and concurrent is not None:
            checked_count("concurrent", concurrent)
        checked_positive("headroom", headroom)
        if headroom > 1:
            raise ValueError(f"headroom is {headroom}, but must be at most 1: a part of the limit")
        checked_amount("burst_seconds", burst_seconds)
        rates = stated_rates(
            (
                requests_per_minute,
                tokens_per_minute,
                input_tokens_per_minute,
                output_tokens_per_minute,
            ),
            (requests, tokens, input_tokens, output_tokens),
        )
        if not rates and concurrent is None:
            raise ValueError(
                f"limiter {name or UNNAMED!r} limits nothing; give at least one of "
                "requests_per_minute, tokens_per_minute, input_tokens_per_minute, "
                "output_tokens_per_minute, requests, tokens, input_tokens, output_tokens, "
                "concurrent"
            )
        self._grants = self._keeps_with(
            name,
            rates=rates,
            places=concurrent,
            profile=stated_profile(name or "", provider),
            headroom=headroom,
            burst_seconds=burst_seconds,
        )

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
          tokens: Tokens the request will use. If nothing is given, the limiter estimates; an
            explicit 0 is 0. If only input and output are given, they add up to the tokens.
          input_tokens: The input among them.
          output_tokens: The output among them; if only the input is given, the limiter
            estimates it. Where the provider counts the maximum that a request asks for, give that
            maximum here: it then stays charged, as it does there.
          model: The model called; estimates are kept per model.
          priority: The larger goes first. Nobody starves: once 300 later arrivals have overtaken a
            waiter, it gets every second place.

        Raises:
          TypeError, ValueError: if an amount isn't a number, is negative or not finite, or the
            priority isn't a finite number.

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
        grants = self._grants
        if not grants.counts_tokens and tokens is input_tokens is output_tokens is None:
            return Reservation(grants.one_request, NO_TOKENS, model, priority, grants)
        planned: Charge
        if grants.total_is_enough and (
            type(tokens) is int and tokens >= 0 and input_tokens is output_tokens is None
        ):
            # The same as `planned_charge`, inlined because nearly every request comes this way.
            planned = (1, tokens, None, None, None, None)
        else:
            planned = planned_charge(
                tokens,
                input_tokens,
                output_tokens,
                model=model,
                estimates=grants.estimates,
                split_needed=not grants.total_is_enough,
            )
        return Reservation(grants.charges_of(planned), planned, model, priority, grants)

    def reserve_nowait(
        self,
        *,
        tokens: float | None = None,
        input_tokens: float | None = None,
        output_tokens: float | None = None,
        model: str | None = None,
        priority: float = 0,
    ) -> Reservation:
        """Return a reservation that is already charged, or refuse.

        Leave it like any other: enter it with ``async with``, or `Reservation.refund` it.

        Args:
          tokens: As in `reserve`, as are the others.
          input_tokens: The input among them.
          output_tokens: The output among them.
          model: The model that is asked.
          priority: Taken for symmetry; it can't overtake anybody.

        Raises:
          trio.WouldBlock: if it can't be granted at once for any reason, or anybody is in line.
          NestedReservationError, LimiterRunError, TypeError, ValueError: as in `reserve`.
        """
        reservation = self.reserve(
            tokens=tokens,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            model=model,
            priority=priority,
        )
        refuse_nested((self._grants,))
        if not self._grants.admit_now(reservation):
            raise trio.WouldBlock
        reservation.mark_charged()
        return reservation

    @property
    def name(self) -> str:
        """The limiter's name."""
        return self._grants.name

    @property
    def profile(self) -> ProviderProfile:
        """What the provider counts, and over which windows."""
        return self._grants.profile

    def estimate(
        self,
        *,
        model: str | None = None,
        input_tokens: float | None = None,
        max_output_tokens: float | None = None,
    ) -> int:
        """Return how many tokens a request will probably use.

        That is its input plus a moving average of the output that the model really gave, not the
        output that the request allows: reserving that leaves most of a limit unused. Where the
        provider counts the allowed maximum, that is added instead.

        Args:
          model: The model that is asked.
          input_tokens: The request's input; if not given, the model's average.
          max_output_tokens: The largest output that the request allows; see
            `requested_output_tokens`.

        Raises:
          TypeError, ValueError: if a number of tokens isn't a number, or is negative.
        """
        known_input = (
            self._grants.estimates.input_tokens(model)
            if input_tokens is None
            else checked_amount("input_tokens", input_tokens)
        )
        output = float(self._grants.estimates.output_tokens(model, input_tokens=input_tokens))
        if max_output_tokens is not None:
            largest = checked_amount("max_output_tokens", max_output_tokens)
            output = (
                largest if self._grants.profile.counts_requested_maximum else min(output, largest)
            )
        return ceil(known_input + output)

    def change(
        self,
        *,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        input_tokens_per_minute: float | None = None,
        output_tokens_per_minute: float | None = None,
        requests: Rate | None = None,
        tokens: Rate | None = None,
        input_tokens: Rate | None = None,
        output_tokens: Rate | None = None,
        concurrent: int | None = None,
    ) -> None:
        """Change limits that it has, while it runs; those not given stay as they are.

        Strict across the change: whenever something is granted, the period that ends then is within
        the limit in force then, what was granted before the change included. So a raise applies at
        once; after a cut nothing is granted until what has left the window makes room.

        Args:
          requests_per_minute: The new limit, as in `Limiter`, as are the others.
          tokens_per_minute: The new limit on tokens.
          input_tokens_per_minute: The new limit on tokens of input.
          output_tokens_per_minute: The new limit on tokens of output.
          requests: The new limit on requests over a period it has a limit for.
          tokens: The same for tokens.
          input_tokens: The same for tokens of input.
          output_tokens: The same for tokens of output.
          concurrent: How many reservations may be held at once from now on. Those held stay.

        Raises:
          TypeError, ValueError: if a limit makes no sense, the limiter has none of that kind over
            that period, or its number of places is adaptive. Then nothing has changed.
          LimiterRunError: outside the ``trio.run`` that uses it.
        """
        grants = self._grants
        places = None
        if concurrent is not None:
            if grants.adaptive is not None:
                raise ValueError(
                    f"the places of limiter {self.name!r} are adaptive and adjust themselves; "
                    "make the limiter with concurrent=<a number> to change that"
                )
            places = checked_count("concurrent", concurrent)
        new = stated_rates(
            (
                requests_per_minute,
                tokens_per_minute,
                input_tokens_per_minute,
                output_tokens_per_minute,
            ),
            (requests, tokens, input_tokens, output_tokens),
        )
        grants.change(new, places)

    def feasible(
        self,
        *,
        tokens: float | None = None,
        output_tokens: float | None = None,
        seconds: float | None = None,
    ) -> Feasible:
        """Return how many requests a minute the limits come to, and which of them binds.

        Args:
          tokens: How many tokens a request uses, input and output; if not given, what requests have
            used on average.
          output_tokens: The output among them, for limits on input or output.
          seconds: How long a request takes; without it, places don't count, and ``in_flight`` is
            unknown.

        Raises:
          TypeError, ValueError: if a number isn't a number or is negative, or if tokens are limited
            and nothing is known of how many a request uses.
        """
        grants = self._grants
        if seconds is not None:
            seconds = checked_amount("seconds", seconds)
        if tokens is None and grants.counts_tokens:
            tokens = grants.estimates.mean_tokens()
            if tokens is None:
                raise ValueError(
                    f"limiter {self.name!r} limits tokens, and no request has settled any yet; say "
                    "how many a request uses: feasible(tokens=...)"
                )
        charge = planned_charge(
            tokens or 0,
            None,
            output_tokens,
            model=None,
            estimates=grants.estimates,
            split_needed=not grants.total_is_enough,
        )
        bounds = {
            meter.name: per_minute(meter.rate, amount, headroom=grants.headroom)
            for meter, amount in grants.charges_of(charge)
            if amount
        }
        return feasible(bounds, places=grants.most_places, seconds=seconds)

    def pause(self, seconds: float) -> None:
        """Grant nothing for ``seconds`` and a little longer; then restart with a trickle.

        Args:
          seconds: From now. A longer pause in progress is kept.

        Raises:
          TypeError, ValueError: if ``seconds`` isn't a number, is negative or not finite.
          LimiterRunError: in another ``trio.run`` than the one that used it first.
        """
        seconds = checked_amount("seconds", seconds)
        self._grants.pause(seconds)

    def observe(
        self, *, headers: HeaderSource = None, status: int | None = None, body: object = None
    ) -> RateLimitHeaders:
        """Learn from a response that belongs to no reservation.

        Args:
          headers: The response's headers: a mapping, pairs, or ``None``.
          status: The response's status.
          body: The response's body, if it is an error's: text, bytes or parsed JSON.

        Returns:
          What was read.

        Raises:
          LimiterRunError: in another ``trio.run`` than the one that used it first.
        """
        grants = self._grants
        grants.check_run()
        response = Response(status, headers, body)
        return grants.hear(grants.state, response, epoch=None, in_use=grants.in_flight)

    def statistics(self) -> LimiterStatistics:
        """Return the state of the limiter now, as a frozen value.

        After its ``trio.run`` has ended, that is the state at its last grant.
        """
        return self._grants.statistics()

    def reset(self) -> None:
        """Forget everything and start over, so that another ``trio.run`` can use it.

        Raises:
          LimiterRunError: if tasks of this ``trio.run`` are waiting in its line; they would wait
            forever.
        """
        self._grants.reset()

    def __repr__(self) -> str:
        grants = self._grants
        limits = [f"{meter.name}: {meter.rate}" for meter in grants.meters]
        if grants.places is not None:
            limits.append(f"{grants.places} at once")
        elif grants.adaptive is not None:
            limits.append(repr(grants.adaptive))
        return f"<Limiter {self.name!r}, {', '.join(limits)}>"


def _check_priority(priority: object) -> None:
    if isinstance(priority, bool) or not isinstance(priority, int | float):
        raise TypeError(f"priority is {priority!r}, but must be a number; the larger goes first")
    if not isfinite(priority):
        raise ValueError(f"priority is {priority!r}, but must be finite")
