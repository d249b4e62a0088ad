"""Grant reservations: charge them, make them wait, settle them.

The inside of a `Limiter`; what users call has its own file. It holds a meter for each
limited dimension, a number of places, and a line.

Invariant, at every checkpoint: either nobody waits, or the head of the line can't be granted
yet. So whatever settles, frees a place, moves a limit or ends a pause must end with
`Grants._changed`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable, Callable, Set
from contextlib import AbstractContextManager
from math import inf
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import trio
from trio import current_time  # By name: `trio` has a `__getattr__`, so a look-up costs.
from trio.lowlevel import current_trio_token

from harness.errors import LimiterRunError, QuotaExhaustedError, RateLimitedError
from harness.limits._adaptive import AdaptiveCapacity
from harness.limits._charges import NO_TOKENS, Charge, learn_use, used_charge, with_maximum
from harness.limits._claim import Charges, Claim
from harness.limits._dimension_meter import DimensionMeter, sliding_cap
from harness.limits._estimates import Estimates
from harness.limits._limiter_statistics import LimiterStatistics
from harness.limits._line import Line
from harness.limits._notices import LimiterUsed
from harness.limits._other_processes import notice_others
from harness.limits._provider_state import ProviderState
from harness.limits._responses._headers import HeaderSource
from harness.limits._responses._heard import RateLimitHeaders
from harness.limits._responses._profiles import ProviderProfile
from harness.limits._responses._refusals import ANSWERED, Response, response_of
from harness.limits._stated import StatedRate, changed_rates
from harness.limits._turnstile import Turnstile
from harness.runs import Run
from harness.runs._tree import token_here

# A grant is charged again if its task runs this much later; less is within what clocks differ by.
LATE_SECONDS = 0.0005

_HOLDERS_TOLD = 10
"""How many of those who hold the places of a limiter observers are told."""

UNNAMED = "limiter"
"""What messages call a limiter without a name."""


class Grants:
    """What a limiter has granted, and what it can grant.

    Args:
      name: The limiter's name, or ``None`` if it has none.
      rates: The limits, as stated.
      places: How many reservations may be held at once, fixed or adaptive.
      profile: What the provider counts.
      headroom: The share of each limit to use.
      burst_seconds: How much may go at once, in seconds' worth of the limit.
    """

    makes_meter: type[DimensionMeter] = DimensionMeter
    is_asked_at_once = True
    """Whether `free_at` tells, and `take` charges, without a wait for somebody else's answer."""

    def __init__(
        self,
        name: str | None,
        *,
        rates: tuple[StatedRate, ...],
        places: int | AdaptiveCapacity | None,
        profile: ProviderProfile,
        headroom: float,
        burst_seconds: float,
    ) -> None:
        self.name = UNNAMED if name is None else name
        self._claimed_name = name
        self.rates = rates
        self.profile = profile
        self.headroom = headroom
        self._burst_seconds = burst_seconds
        self.adaptive = places if isinstance(places, AdaptiveCapacity) else None
        self.places = None if isinstance(places, AdaptiveCapacity) else places
        kinds = [kind for kind, _, _ in rates]
        self.counts_tokens = any(kinds)
        self.total_is_enough = all(kind <= 1 for kind in kinds)
        self._amounts_of = itemgetter(*kinds) if len(kinds) > 1 else None
        self.has_places = places is not None
        """Whether it was made with a bound on how many are held at once."""
        self._listeners: list[Callable[[], None]] = []
        self._known_to: tuple[object, ...] = ()
        """The observers that know of it."""
        self.exclusive: Callable[[], AbstractContextManager[bool]] | None = None
        """Makes a block in which no other process changes anything, where some might."""
        self.make_window = sliding_cap
        self.blocked: dict[Grants, int] = {}
        """Which limiters those who hold this one are waiting for, and how many of them."""
        self.holders: dict[Claim, str] = {}
        """Whose runs hold places, as far as anybody observes them."""
        self.start()

    def start(self) -> None:
        """Forget everything and start over."""
        self._trio_token: trio.lowlevel.TrioToken | None = None
        self.meters = tuple(
            self.makes_meter(
                name,
                kind=kind,
                rate=rate,
                headroom=self.headroom,
                burst_seconds=self._burst_of(kind),
                make_window=self.make_window,
            )
            for kind, name, rate in self.rates
        )
        self.one_request = self.charges_of(NO_TOKENS)
        self._turnstile: Turnstile[Claim] = Turnstile(
            self.free_at, self._take_from_line, self._tell_pools, self.exclusive
        )
        # Public only so that checking for anybody who waits costs no call.
        self.line: Line[Claim] = self._turnstile.line
        self.state = ProviderState(self.name, self.profile, self.meters, self.adaptive)
        self.pauses = self.state.pauses
        self.estimates = Estimates()
        # Reservations from an earlier `trio.run` keep their meters and their state: what they still
        # do goes there, and does no harm.
        self.in_flight = 0
        self._last_grant_at = 0.0
        self.waits = 0
        self.waited_seconds = 0.0
        self.granted = 0

    def _burst_of(self, kind: int) -> float:
        return 0.0 if kind == 0 and self.profile.requests_evenly_spaced else self._burst_seconds

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
        if self.pauses.closed_until > now:
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
        if now - reservation.granted_at > LATE_SECONDS:
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
            # As `used` says; inlined because every request comes this way.
            used = used_charge(reservation.planned, tokens, input_tokens, output_tokens)
            if self.profile.counts_requested_maximum:
                used = with_maximum(used, reservation.planned)
            for meter, charged in reservation.charges:
                really = used[meter.kind] or 0
                if really == charged:
                    meter.unsettled -= charged
                    continue
                changed = True
                now = current_time()
                meter.settle(charged, really, taken_at=reservation.granted_at, now=now)
            if self.counts_tokens:
                if input_tokens is output_tokens is reservation.planned[4] is None:
                    self.estimates.learn_total(reservation.model, used[1])
                else:
                    learn_use(
                        self.estimates,
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
            if self.adaptive is not None:
                # Whoever knows what was used has had an answer.
                self.adaptive.record(status=200, in_use=self.in_flight)
                changed = True
        else:
            response = Response(status, headers, body)
            self.hear(reservation.state, response, epoch=reservation.epoch, in_use=self.in_flight)
        if changed and (self.line.count or self._listeners):
            self._changed()

    def used(
        self,
        reservation: Claim,
        tokens: float | None,
        input_tokens: float | None,
        output_tokens: float | None,
    ) -> Charge:
        """Return what a request counts as, given what is known of it now."""
        used = used_charge(reservation.planned, tokens, input_tokens, output_tokens)
        if self.profile.counts_requested_maximum:
            used = with_maximum(used, reservation.planned)
        return used

    def _tell_pools(self) -> None:
        """Tell those who wait for several limiters that something has changed here."""
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
        if state is self.state:
            self.in_flight -= 1
        if self.holders:
            self.holders.pop(reservation, None)
        if not reservation.closed:
            for meter, charged in reservation.charges:
                meter.unsettled -= charged
            if error is None:
                # An answer, if nobody says otherwise.
                self.hear(state, ANSWERED, epoch=reservation.epoch, in_use=self.in_flight + 1)
            elif isinstance(error, Exception):
                response = response_of(error)
                if response is None:
                    now = current_time()
                    state.health.failed(now)
                    self.after_response(now)
                else:
                    self.hear(state, response, epoch=reservation.epoch, in_use=self.in_flight + 1)
        if self.line.count or self._listeners:
            self._changed()

    def tell(self, run: Run) -> None:
        """Tell the observers of a run that it uses this limiter, unless they know."""
        if self._known_to is not run._observers:
            self._known_to = run._observers
            run._notice(LimiterUsed(self.name, self.statistics))

    def holder_ids(self) -> tuple[str, ...]:
        """Return whose runs hold all places, as far as that is known; of many, the first few."""
        places = self.most_places
        if places is None or self.in_flight < places:
            return ()
        return tuple(itertools.islice(self.holders.values(), _HOLDERS_TOLD))

    def facts(self, reservation: Claim) -> dict[str, Any]:
        """Return for observers what was granted, and out of what."""
        granted: dict[str, Any] = {
            meter.name: [amount, meter.rate.amount, meter.rate.period]
            for meter, amount in reservation.charges
        }
        *_, stated_input, stated_output = reservation.planned
        return {
            "limiter": self.name,
            "granted": granted,
            "input_tokens": stated_input if stated_output is None else None,
            "places": self.most_places,
            "in_flight": self.in_flight,
            "headroom": self.headroom,
            "burst_seconds": self._burst_seconds,
        }

    # What lines call --------------------------------------------------------------------------

    def free_at(self, reservation: Claim, now: float) -> float:
        """Return when the reservation can be granted; ``now`` if it can be now.

        It is ``inf`` while all places are taken: somebody has to leave first, and leaving calls
        again.
        """
        if self.places is not None or self.adaptive is not None:
            places = self.places if self.adaptive is None else self.adaptive.limit
            if places is not None and self.in_flight >= places:
                return inf
        moment = now
        if self.pauses.closed_until > now:
            moment = self.pauses.closed_until
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
        self.in_flight += 1
        self._last_grant_at = now
        reservation.granted_at = now
        reservation.state = self.state
        reservation.epoch = self.pauses.epoch

    def _take_from_line(self, reservation: Claim, now: float) -> None:
        self.take(reservation, now)
        self.waits += 1
        self.waited_seconds += now - reservation.asked_at
        if reservation.told is not None:
            reservation.told.woken()
        if self._listeners:
            self._tell_pools()

    # What pools call --------------------------------------------------------------------------

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after every change, until `unlisten`."""
        self._listeners.append(listener)

    def tell_last(self, listener: Callable[[], None]) -> None:
        """Tell ``listener`` after all others, because it was served: everybody gets a turn."""
        if listener in self._listeners:
            self._listeners.remove(listener)
            self._listeners.append(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Stop calling ``listener``."""
        self._listeners.remove(listener)

    @property
    def rests_until(self) -> float:
        """Until when it should be passed over because it failed."""
        return self.state.health.rests_until

    def is_stuck_among(self, others: Set[Grants]) -> bool:
        """Return whether all places are held by tasks that wait for one of ``others``."""
        waiting = sum(count for other, count in self.blocked.items() if other in others)
        places = self.most_places
        return places is not None and places <= self.in_flight <= waiting

    def closed_error(self, now: float) -> RateLimitedError | QuotaExhaustedError | None:
        """Return why nobody should wait for this limiter now, or ``None`` if one may."""
        return self.state.closed_error(now)

    def check_run(self) -> None:
        """Bind to this ``trio.run``, or raise if bound to another one."""
        token = current_trio_token()
        if token is self._trio_token:
            return
        if self._trio_token is not None:
            raise LimiterRunError(
                f"limiter {self.name!r} was used in another trio run, and what it keeps means "
                "nothing in this one; make one limiter per run, or call "
                "`limiter.reset()` between them"
            )
        self._trio_token = token
        if self._claimed_name is not None:
            notice_others(self._claimed_name)

    def time_here(self) -> float:
        """Return the time by the clock of its run; after that run, the time of the last grant."""
        token = token_here()
        return current_time() if token and token is self._trio_token else self._last_grant_at

    @property
    def most_places(self) -> int | None:
        """How many reservations may be held at once now, or ``None`` for any number."""
        return self.places if self.adaptive is None else self.adaptive.limit

    def change(self, rates: tuple[StatedRate, ...], places: int | None) -> None:
        """Replace these limits from now on; those not given stay as they are.

        Raises:
          ValueError: if it has no such limit.
        """
        if self._trio_token is not None:
            if token_here() is None:
                raise LimiterRunError(
                    f"limiter {self.name!r} belongs to a trio run, and can only be changed in it; "
                    "from a thread, write trio.from_thread.run_sync(...)"
                )
            self.check_run()
        now = self.time_here()
        # Another process may have changed the others.
        stated = tuple([(meter.kind, meter.name, meter.stated) for meter in self.meters])
        self.rates = changed_rates(stated, rates, limiter=self.name)
        if places is not None:
            self.places = places
        for meter, (_, _, rate) in zip(self.meters, self.rates, strict=True):
            meter.change(rate, now)
        self._changed()

    def statistics(self) -> LimiterStatistics:
        """Return the state now; after its ``trio.run``, the state at the last grant."""
        now = self.time_here()
        return LimiterStatistics(
            name=self.name,
            granted=self.granted,
            waiting=self.line.count,
            waiting_by_priority=MappingProxyType(self.line.by_priority()),
            in_flight=self.in_flight,
            concurrent=self.most_places,
            dimensions=MappingProxyType(
                {meter.name: meter.statistics(now) for meter in self.meters}
            ),
            waits=self.waits,
            waited_seconds=self.waited_seconds,
            paused_seconds=max(0.0, self.pauses.closed_until - now),
            pauses=self.pauses.count,
            rate_limited=self.state.rate_limited,
            unreadable=self.state.unreadable,
        )

    def reset(self) -> None:
        """Start over, unless tasks of this ``trio.run`` wait in line; they would wait forever."""
        if self.line.count and self._trio_token is token_here():
            raise LimiterRunError(
                f"can't reset limiter {self.name!r} while {self.line.count} tasks of this "
                "run wait in its line; cancel them first"
            )
        if self.adaptive is not None:
            self.adaptive.reset()
        self.start()

    # What limiters call -----------------------------------------------------------------------

    def pause(self, seconds: float) -> None:
        """Grant nothing for a while."""
        self.check_run()
        now = current_time()
        self.state.pause(seconds, now=now, draw=1 - random.random())
        self.after_response(now)

    # Inside -----------------------------------------------------------------------------------

    def _changed(self) -> None:
        # First, because those who also wait elsewhere pass over a line whose head came before them.
        if self._listeners:
            self._tell_pools()
        self._turnstile.admit()

    def charges_of(self, charge: Charge) -> Charges:
        """Return what ``charge`` comes to for each meter."""
        if self._amounts_of is None:
            return tuple([(meter, charge[meter.kind] or 0) for meter in self.meters])
        return tuple(zip(self.meters, self._amounts_of(charge), strict=True))

    def hear(
        self, state: ProviderState, response: Response, *, epoch: int | None, in_use: int
    ) -> RateLimitHeaders:
        """Learn from one response, and act on it."""
        now = current_time()
        draw = 1 - random.random()
        heard = state.hear(response, epoch=epoch, in_use=in_use, now=now, draw=draw)
        self.after_response(now)
        return heard

    def after_response(self, now: float) -> None:
        """Turn everybody away if nobody should wait any longer, and grant what can be now."""
        if self.line.count and self.closed_error(now) is not None:
            self._turnstile.turn_away()
        self._changed()
