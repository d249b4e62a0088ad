"""Wait for several limiters at once: for the first that can serve, or for all of them together.

A pool has no limits of its own; each member keeps its own. A request goes to the first member
that works and has room at this moment; if none does, it waits in the pool's line until one does. So
a waiting request is never tied to one provider, and the first is used again as soon as it recovers.

A member is passed over while its limits are used up, it is paused, its quota is gone, it
rests after failures, or others wait in its own line. If all are resting, they are used all the
same: a provider that may fail is better than none.

A joint limiter is the same with "all" for "any". Nothing of one is held while another is waited
for, so it doesn't matter in which order anybody names them: nobody can deadlock, a wait wastes no
share, and a request counts everywhere at the moment it is sent. A line of a member's own is passed
over if its head came later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from math import inf

import attrs
import trio

from harness._outside_trio import refuse_outside_trio
from harness.errors import QuotaExhaustedError, RateLimitedError, ReservationError
from harness.limits._limiter import Limiter
from harness.limits._limiter_statistics import LimiterStatistics
from harness.limits._reservation import (
    JointReservation,
    Reservation,
    held_reservation,
    refuse_nested,
)
from harness.limits._turnstile import Turnstile, Waiter
from harness.runs import Run
from harness.runs._waits import Wait, observed_run


class _Several(ABC):
    """What waits for several limiters at once has in common."""

    _awaited = "all of several limiters"
    """What a dump says a waiting task waits for."""

    def __init__(self, limiters: Sequence[Limiter]) -> None:
        self.limiters: tuple[Limiter, ...] = tuple(limiters)
        if not self.limiters:
            raise ValueError(f"a {type(self).__name__} needs at least 1 limiter")
        for limiter in self.limiters:
            if not isinstance(limiter, Limiter):
                raise TypeError(f"a {type(self).__name__} takes limiters, but got {limiter!r}")
            if not limiter._grants.is_asked_at_once:
                raise TypeError(
                    f"a {type(self).__name__} needs limiters that answer at once, and {limiter!r} "
                    "has to ask a server; use a FleetLimiter over a file, or nest the blocks"
                )
        if len(set(map(id, self.limiters))) < len(self.limiters):
            raise ValueError(
                f"a limiter is in this {type(self).__name__} twice; give each limiter once"
            )
        self._members = tuple(limiter._grants for limiter in self.limiters)
        self._shared = tuple(member.exclusive for member in self._members if member.exclusive)
        self._turnstile: Turnstile[SeveralReservation] = Turnstile(
            self._free_at, self._take_from_line, None, self._exclusive if self._shared else None
        )
        self._listening = False

    def reserve(
        self,
        *,
        tokens: float | None = None,
        input_tokens: float | None = None,
        output_tokens: float | None = None,
        model: str | None = None,
        priority: float = 0,
    ) -> SeveralReservation:
        """Return a request to enter with ``async with``, which gives a `Reservation`.

        Args:
          tokens: As in `Limiter.reserve`, as are the others.
          input_tokens: The input among them.
          output_tokens: The output among them.
          model: The model called; estimates are kept per limiter and model.
          priority: The larger goes first.

        Raises:
          TypeError, ValueError: as `Limiter.reserve`.

        Entering raises:
          RateLimitedError, QuotaExhaustedError: if there is nobody to wait for.
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
        return SeveralReservation(self, reservations, priority)

    def statistics(self) -> tuple[LimiterStatistics, ...]:
        """Return the state of each provider's limiter, in order of preference."""
        return tuple(limiter.statistics() for limiter in self.limiters)

    @property
    def waiting(self) -> int:
        """How many tasks wait in the pool's line."""
        return self._turnstile.line.count

    @contextmanager
    def _exclusive(self) -> Generator[bool]:
        """Keep other processes from changing a member; one that can't be had grants nothing."""
        with ExitStack() as stack:
            for exclusive in self._shared:
                stack.enter_context(exclusive())
            yield True

    async def _admit(self, asked: SeveralReservation) -> Reservation:
        """Grant one of the reservations, waiting for the first that can be granted."""
        refuse_nested(self._members)
        for member in self._members:
            member.check_run()
        line = self._turnstile.line
        if not line.count:
            await trio.lowlevel.checkpoint()
        now = trio.current_time()
        with self._exclusive():
            at_once = not line.count and self._free_at(asked, now) <= now
            if at_once:
                self._take(asked, now)
        if not at_once:
            self._raise_if_closed(now)
            asked.asked_at = now
            await self._wait(asked)
        granted = asked.reservation
        assert granted is not None
        return granted

    async def _wait(self, asked: SeveralReservation) -> None:
        if not self._listening:
            for member in self._members:
                member.listen(self._member_changed)
            self._listening = True
        try:
            # Ends: a waiter that is turned away finds the chain closed, and raises.
            while not await self._turnstile.wait(asked, asked.priority):
                self._raise_if_closed(trio.current_time())
        finally:
            if not self._turnstile.line.count and self._listening:
                for member in self._members:
                    member.unlisten(self._member_changed)
                self._listening = False

    def _member_changed(self) -> None:
        now = trio.current_time()
        if self._closed_error(now) is not None:
            self._turnstile.turn_away()
        else:
            self._turnstile.admit()

    @abstractmethod
    def _free_at(self, asked: SeveralReservation, now: float) -> float:
        """Return when the request can be granted; ``inf`` if that depends on others."""

    @abstractmethod
    def _waits(self, run: Run) -> tuple[Wait, ...]:
        """Tell observers what a run waits for."""

    def _take_from_line(self, asked: SeveralReservation, now: float) -> None:
        self._take(asked, now)
        for wait in asked.told:
            wait.woken()

    @abstractmethod
    def _take(self, asked: SeveralReservation, now: float) -> None:
        """Grant the request, which can be granted now."""

    @abstractmethod
    def _closed_error(self, now: float) -> RateLimitedError | QuotaExhaustedError | None:
        """Return why nobody should wait, or ``None`` if one may."""

    def _raise_if_closed(self, now: float) -> None:
        error = self._closed_error(now)
        if error is not None:
            raise error


class ProviderPool(_Several):
    """A chain of providers, each with its limiter; the first is the one you prefer.

    A request is entered with ``async with``, which gives a `Reservation`; its
    `Reservation.provider` says which provider to call.

    Args:
      limiters: One per provider, in order of preference.

    Raises:
      TypeError, ValueError: if there are none, one isn't a limiter, or one is given twice.
    """

    _awaited = "a provider of the pool"

    def _waits(self, run: Run) -> tuple[Wait, ...]:
        return (Wait(run, "limiter", self._awaited),)

    def _free_at(self, asked: SeveralReservation, now: float) -> float:
        return min(self._moments(asked, now), default=inf)

    def _moments(self, asked: SeveralReservation, now: float) -> list[float]:
        """Return when each provider can serve, in order; ``inf`` if that depends on others."""
        moments: list[float] = []
        all_rest = all(member.rests_until > now for member in self._members)
        for member, reservation in zip(self._members, asked.reservations, strict=True):
            if member.line.count:  # Those in its own line go first; it tells when they are gone.
                moments.append(inf)
                continue
            moment = member.free_at(reservation, now)
            moments.append(moment if all_rest else max(moment, member.rests_until))
        return moments

    def _take(self, asked: SeveralReservation, now: float) -> None:
        moments = self._moments(asked, now)
        index = next(index for index, moment in enumerate(moments) if moment <= now)
        reservation = asked.reservations[index]
        self._members[index].take(reservation, now)
        asked.reservation = reservation

    def _closed_error(self, now: float) -> RateLimitedError | QuotaExhaustedError | None:
        """Return why there is nobody to wait for, or ``None``: the error that ends soonest."""
        errors = [member.closed_error(now) for member in self._members]
        limited = [error for error in errors if isinstance(error, RateLimitedError)]
        if any(error is None for error in errors):
            return None
        if limited:
            return min(limited, key=lambda error: error.retry_after or 0.0)
        return errors[0]


class JointLimiter(_Several):
    """Several limiters that all apply to one request, such as a model's and the account's.

    A request waits until all of them can grant it, holds nothing until then, and is granted by all
    at one moment. So any number of them may share limiters, in any order, without a deadlock.

    Settling charges each. Headers and status go to the first alone: they are about the provider's
    nearest limit, and a pause for the whole account would hold back other models.

    Args:
      limiters: All that apply; first the one that the provider's responses are about.

    Raises:
      TypeError, ValueError: if there are none, one isn't a limiter, or one is given twice.
    """

    def _waits(self, run: Run) -> tuple[Wait, ...]:
        return tuple(
            Wait(run, "limiter", member.name, member.holder_ids()) for member in self._members
        )

    def _free_at(self, asked: SeveralReservation, now: float) -> float:
        moment = now
        for member, reservation in zip(self._members, asked.reservations, strict=True):
            head = member.line.head()
            if head is not None and head.asked_at <= asked.asked_at:
                return inf  # It came first, and the member tells when it is gone.
            moment = max(moment, member.free_at(reservation, now))
        return moment

    def _take(self, asked: SeveralReservation, now: float) -> None:
        for member, reservation in zip(self._members, asked.reservations, strict=True):
            member.take(reservation, now)
            member.tell_last(self._member_changed)
        asked.reservation = JointReservation.of(asked.reservations)

    def _closed_error(self, now: float) -> RateLimitedError | QuotaExhaustedError | None:
        errors = [error for member in self._members if (error := member.closed_error(now))]
        return next(
            (error for error in errors if isinstance(error, QuotaExhaustedError)),
            errors[0] if errors else None,
        )


@attrs.define(eq=False, repr=False)
class SeveralReservation(Waiter):
    """A request to several limiters: entering it gives a `Reservation`."""

    _pool: _Several
    reservations: tuple[Reservation, ...]
    priority: float
    asked_at: float = attrs.field(default=inf, init=False)
    """When it joined the line."""
    reservation: Reservation | None = attrs.field(default=None, init=False)
    told: tuple[Wait, ...] = attrs.field(default=(), init=False)
    """What observers know of its waits, if there are any."""
    _entered: bool = attrs.field(default=False, init=False)

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Reservation:
        if self._entered:
            raise ReservationError(
                "this request to several limiters was already entered, and works once; "
                "reserve another one"
            )
        refuse_outside_trio("reserve() was entered")
        self._entered = True
        _waiting_for = self._pool._awaited
        if (run := observed_run()) is not None:
            for one in self.reservations:
                one._issuer.tell(run)
            self.told = self._pool._waits(run)
        try:
            reservation = await self._pool._admit(self)
            reservation.enter_charged(held_reservation())
            return reservation
        finally:
            if self.told and self.reservation is not None:
                self.reservation.tell_granted(self.told)
            for wait in self.told:
                wait.over()

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self, error_type: object, error: BaseException | None, traceback: object
    ) -> None:
        if self.reservation is not None:
            await self.reservation.__aexit__(error_type, error, traceback)
