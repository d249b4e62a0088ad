"""Grant reservations from limits whose state is on a Redis server that several processes share.

One task of a process, the *courier*, talks to the server, one call after the other. A call brings
all that has happened here since the last one, and asks for the first in line; what comes back are
*bookings*: amounts, each charged on the server for a moment that is at most `_HORIZON_SECONDS`
away. The line grants them when their moment comes. So no waiter calls by itself, a cancel cuts off
no call, and a booking that nobody wants any more is given back with the next one.

Moments are told by the server's clock. How much it differs from this process's is taken from the
calls: the server looked at its clock before its reply came in, so the largest difference seen is
the nearest to the truth, and errs on the late side.

While the server can't be asked, a process keeps a share of the limit by itself: the share that it
would have if all who were here divided it evenly, beginning with nothing saved up. It keeps asking,
and when the server is back, tells it what was sent meanwhile. If the server has lost what it knew,
each also tells it what it was granted before.
"""

from __future__ import annotations

import json
import uuid
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from math import inf
from pathlib import Path
from typing import Literal, cast
from urllib.parse import quote

import attrs
import trio
from trio import current_time
from trio.lowlevel import checkpoint, current_trio_token, enable_ki_protection

from harness._events import happened
from harness._root_errors import root_errors
from harness.errors import HarnessWarning, LimiterRunError
from harness.limits._across_processes._reporting import (
    ReportingMeter,
    ReportingPauses,
    margin_seconds,
)
from harness.limits._across_processes._server_link import (
    CALL_SECONDS,
    ServerLink,
    reason_in_words,
    run_in_time,
)
from harness.limits._claim import Claim
from harness.limits._grants import Grants
from harness.limits._limiter_statistics import LimiterStatistics
from harness.limits._stated import StatedRate

OnUnreachable = Literal["raise", "local"]
"""What to do if the server can't be reached from the start."""

_SCRIPT = Path(__file__).with_name("limiter.lua").read_text()

_HORIZON_SECONDS = 0.05
"""How far ahead something is granted: the longest that a pause takes to reach everybody."""

_STALE_SECONDS = 0.1
"""A booking that is later than this isn't used: others have been granted what came free since."""

_MOST_ASKED = 32
_FLUSH_SECONDS = 0.01
_RENEWALS = 3
"""How often a lease is renewed in its time."""

_RETRY_SECONDS = 0.25
_CLOCK_SAMPLES = 32


class _OtherLimitsError(Exception):
    """Others keep other limits under this name; the text is what they state."""


@attrs.frozen
class _Booking:
    """What the server has charged for somebody in this process's line."""

    stamp: float
    """For when, by the server's clock."""
    moment: float
    """The same by trio's."""
    amounts: tuple[float, ...]


class ServerGrants(Grants):
    """What a limiter has granted, in all processes that share its state on a server.

    Takes what `Grants` takes; `open` connects it.
    """

    makes_meter = ReportingMeter
    is_asked_at_once = False

    _is_open = False

    def start(self) -> None:
        """Forget everything and start over; what the server knows stays."""
        self._claimed_name = None  # Others of its name are what it is for.
        self._bookings: deque[_Booking] = deque()
        self._happened: list[list[object]] = []
        self._alone = False
        """Whether it keeps a share by itself, because the server can't be asked."""
        self._is_urgent = self._is_changed = False
        self._ask_at = self._flush_at = self._renew_at = -inf
        self._asked_first: Claim | None = None
        self._offsets: deque[float] = deque(maxlen=_CLOCK_SAMPLES)
        self._members = 1
        self._in_flight_elsewhere = 0
        self._told: list[list[float]] = []
        self._bell = trio.Event()
        super().start()
        self._own_meters = cast("tuple[ReportingMeter, ...]", self.meters)
        for index, meter in enumerate(self._own_meters):
            meter.report = partial(self._note, index)
            meter.changed = self._note_change
        self.state.pauses = self.pauses = ReportingPauses(partial(self._note, None))
        self._late_seconds = min(
            (margin_seconds(meter.rate.period) / 4 for meter in self.meters), default=inf
        )

    def reset(self) -> None:
        """Refuse: what others have used doesn't go away."""
        raise LimiterRunError(
            f"limiter {self.name!r} keeps its state on a server that other processes share, and "
            "can't be reset; when nobody uses it, delete its keys"
        )

    # Opening and closing ----------------------------------------------------------------------

    @enable_ki_protection
    async def open(
        self,
        make_link: Callable[[], ServerLink],
        address: str,
        *,
        lease: float,
        on_unreachable: OnUnreachable,
    ) -> None:
        """Connect to the server, and share what it knows from now on.

        Raises:
          ConnectionError, ValueError: if that can't be done.
          LimiterRunError: if it is open already.
        """
        await checkpoint()
        if self._is_open and self._trio_token is current_trio_token():
            raise LimiterRunError(
                f"limiter {self.name!r} is open; enter it once, and share it among tasks, or make "
                "another one of the same server"
            )
        self._make_link, self._address, self._lease = make_link, address, lease
        self._on_unreachable = on_unreachable
        self._stated_places = self.places
        self._stated_shape = self._shape()
        self._is_open, self._has_warned = True, False
        self._was_in_touch = False
        self._error: Exception | None = None
        self._answered, self._closing, self._ended = trio.Event(), trio.Event(), trio.Event()
        self.start()
        self.check_run()
        self._member = uuid.uuid4().hex
        trio.lowlevel.spawn_system_task(self._serve, name="harness.cluster: shared limiter")
        try:
            await happened(self._answered)
            if self._error is not None:
                raise self._error
        except BaseException:
            self._is_open = False
            self._closing.set()
            self._bell.set()
            raise

    @enable_ki_protection
    async def close(self) -> None:
        """Give back what this process holds, and disconnect."""
        if not self._is_open:
            return
        try:
            with trio.CancelScope(deadline=current_time() + 2 * CALL_SECONDS, shield=True):
                await checkpoint()
                self._return_bookings()
                self._closing.set()
                self._bell.set()
                await happened(self._ended)
        finally:
            self._is_open = False
            self._turnstile.turn_away()

    def refuse_closed(self) -> None:
        """Raise unless it is open."""
        if not self._is_open:
            raise LimiterRunError(
                f"limiter {self.name!r} is not open; use it inside "
                "`async with FleetLimiter(...) as limiter:`"
            )
        self.check_run()

    # The courier ------------------------------------------------------------------------------

    async def _serve(self) -> None:
        try:
            while not self._closing.is_set():  # Ends when it is closed.
                try:
                    async with self._make_link() as link:
                        await self._talk(link)
                except Exception as error:
                    if not self._may_go_on(error):
                        return
                    with trio.move_on_after(_RETRY_SECONDS):
                        await happened(self._closing)
        finally:
            self._answered.set()
            self._ended.set()

    async def _talk(self, link: ServerLink) -> None:
        """Talk to the server until closed, or until it is gone."""
        is_back = self._was_in_touch or self._alone
        is_forgotten = await self._call(link, "back" if is_back else "join")
        self.places = self._stated_places
        self._was_in_touch, self._alone = True, False
        if is_back:
            now = current_time()
            for index, meter in enumerate(self._own_meters):
                since = now - meter.rate.period if is_forgotten else self._lost_at
                for moment, amount in meter.sent_since(since):
                    self._note(index, "sent", amount, moment)
                meter.keep_share(1.0, now)
        self._answered.set()
        self._changed()
        while not self._closing.is_set():  # Ends when it is closed.
            # Rung or not, it looks at what is due: many small things wait for each other.
            while not self._closing.is_set() and (due := self._due()) > current_time():
                self._bell = trio.Event()
                with trio.move_on_at(due):
                    await happened(self._bell)
            if not self._closing.is_set():
                await self._call(link, "")
        self._return_bookings()
        await self._call(link, "leave")

    def _due(self) -> float:
        """Return when to call the server next."""
        if self._is_urgent:
            return -inf
        due = self._renew_at
        if self._happened or self._is_changed:
            due = min(due, self._flush_at)
        if self.line.count > len(self._bookings):
            due = min(due, self._ask_at)
        return due

    async def _call(self, link: ServerLink, coming: str) -> bool:
        """Tell the server what has happened, and ask for the first in line.

        Returns:
          Whether the server knew nothing of this limiter.
        """
        happened, self._happened = self._happened, []
        asked: list[Claim] = []
        if coming == "" and current_time() >= self._ask_at:
            asked = self.line.first(min(_MOST_ASKED, self.line.count))[len(self._bookings) :]
        self._asked_first = asked[0] if asked else None
        if coming == "" and self._limits_changed:
            coming = "change"
            self._limits_changed = False
        was_urgent, self._is_urgent, self._is_changed = self._is_urgent, False, False
        held = self.in_flight + len(self._bookings)
        unsettled = [
            meter.unsettled + sum(booking.amounts[index] for booking in self._bookings)
            for index, meter in enumerate(self.meters)
        ]
        if coming == "leave":
            held, unsettled = 0, [0.0] * len(unsettled)
        arguments: list[object] = [self._member, self._lease, _HORIZON_SECONDS]
        arguments += [self._limits(), self._stated_shape, coming]
        arguments += [held, int(bool(self.line.count)), *unsettled]
        arguments.append(len(happened))
        for one in happened:
            arguments += one
        arguments.append(len(asked))
        wanted = [tuple(amount for _, amount in claim.charges) for claim in asked]
        for amounts in wanted:
            arguments += amounts
        words = [_written(one) for one in arguments]
        reply = await run_in_time(link, _SCRIPT, self._keys(), words)
        if reply[0] == "differs":
            raise _OtherLimitsError(reply[1])
        return self._take_reply(reply, held, wanted, pauses_told=not was_urgent)

    def _take_reply(
        self, reply: list[str], held: int, wanted: list[tuple[float, ...]], *, pauses_told: bool
    ) -> bool:
        received = current_time()
        take = iter(reply[1:])
        server_now, words, fresh = float(next(take)), next(take), next(take) == "1"
        self._offsets.append(server_now - received)
        self._offset = max(self._offsets)
        self._members, in_flight = int(next(take)), float(next(take))
        wait = float(next(take))
        epoch = self.pauses.epoch
        pauses = [float(one) for one in islice(take, 7)]
        granted = [float(one) for one in islice(take, int(next(take)))]
        self._told = [[float(one) for one in islice(take, 4)] for _ in self.meters]
        self._in_flight_elsewhere = max(0, int(in_flight) - held - len(granted))
        self._renew_at = received + self._lease / _RENEWALS
        self._ask_at = received + wait
        if not self._is_urgent and pauses_told | (pauses[0] >= epoch):
            self.pauses.restore(tuple(pauses), self._offset)
        if words != self._limits() and not self._limits_changed:
            self._adopt(words, received)
        for stamp, amounts in zip(granted, wanted, strict=False):
            self._bookings.append(_Booking(stamp, stamp - self._offset, amounts))
        if self.pauses.epoch != epoch:
            self.after_response(received)
        self._turnstile.admit()
        self._return_unwanted()
        return fresh

    def _may_go_on(self, error: Exception) -> bool:
        """Go on without the server, and return True, unless it must be reached."""
        root = root_errors(error)[0]
        error = root if isinstance(root, Exception) else error
        if isinstance(error, _OtherLimitsError) and not self._was_in_touch and not self._alone:
            self._error = ValueError(
                f"limiter {self.name!r} at {self._address} is in use with other limits: it has "
                f"{error}, where this process states {self._stated_shape}; state the same in each "
                "process, or give this one another name"
            )
            return False
        if not self._was_in_touch and not self._alone and self._on_unreachable == "raise":
            self._error = ConnectionError(
                f"Redis can't be used at {self._address}: {reason_in_words(error)}; see "
                "that it runs and lets this user in"
            )
            # A note, since the command line has no such argument.
            self._error.add_note('on_unreachable="local" begins without it')
            self._error.__cause__ = error
            return False
        now = current_time()
        if not self._alone and not self._closing.is_set():
            self._alone, self._lost_at = True, now
            if self._stated_places is not None:
                free = self._stated_places - self.in_flight - self._in_flight_elsewhere
                self.places = self.in_flight + max(0, free) // self._members
            self._bookings.clear()
            self._happened.clear()
            for meter in self._own_meters:
                meter.keep_share(1 / self._members, now)
            self._answered.set()
            self._warn(error)
            self._changed()
        return True

    def _warn(self, error: Exception) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        share = f"1/{self._members} of it" if self._members > 1 else "it"
        with suppress(HarnessWarning):  # The courier's task is nobody's to raise in.
            warnings.warn(
                f"limiter {self.name!r} can't reach Redis at {self._address} "
                f"({reason_in_words(error)}); until it is back, this process keeps to {share} by "
                "itself",
                HarnessWarning,
                stacklevel=1,
            )

    # What goes to the server, and what comes back ------------------------------------------------

    _limits_changed = False

    def _limits(self) -> str:
        places = -1 if self._stated_places is None else self._stated_places
        return " ".join([str(places), *(meter.words for meter in self._own_meters)])

    def _adopt(self, words: str, now: float) -> None:
        """Keep to the limits that another process has changed."""
        places, *numbers = words.split()
        self._stated_places = None if places == "-1" else int(places)
        if not self._alone:
            self.places = self._stated_places
        for index, meter in enumerate(self._own_meters):
            meter.adopt(numbers[9 * index : 9 * index + 9], now)
        self.rates = tuple((meter.kind, meter.name, meter.stated) for meter in self.meters)

    def _shape(self) -> str:
        return json.dumps(
            {
                "rates": [[name, rate.amount, rate.period] for _, name, rate in self.rates],
                "concurrent": self.places,
                "headroom": self.headroom,
                "burst_seconds": self._burst_seconds,
            }
        )

    def _keys(self) -> list[str]:
        # Braces make all of them land on one node of a cluster.
        tag = f"{{harness:{quote(self.name, safe='')}}}:limits"
        cells = [
            f"{tag}:{meter.kind}:{meter.rate.period!r}:{window}"
            for meter in self._own_meters
            for window in range(meter.windows)
        ]
        return [f"{tag}:state", f"{tag}:members", f"{tag}:held", *cells]

    def _note(self, index: int | None, what: str, *numbers: float) -> None:
        """Keep what has happened for the server, where moments are by its clock."""
        if self._alone or not self._is_open:
            return
        told: list[object] = [what]
        if index is None:
            self._is_urgent = what != "through"
            told += numbers
        else:
            told.append(index + 1)
            # What comes after an amount is a moment, except in what the provider said.
            amount, *rest = numbers
            moments = rest if what == "heard" else [moment + self._offset for moment in rest]
            told += [amount, *moments]
        self._happened.append(told)
        self._tell_courier()

    def _note_change(self) -> None:
        self._limits_changed = True
        self._is_urgent = True
        self._tell_courier()

    def _tell_courier(self) -> None:
        if not (self._is_changed or len(self._happened) > 1):
            self._flush_at = current_time() + _FLUSH_SECONDS
        self._bell.set()

    def _return(self, booking: _Booking) -> None:
        """Give back what nobody wants."""
        for index, amount in enumerate(booking.amounts):
            if amount:
                self._note(index, "settled", -amount, booking.stamp - self._offset)
        self._is_changed = True
        self._tell_courier()

    def _return_unwanted(self) -> None:
        """Give back what was booked for those who have gone."""
        while len(self._bookings) > self.line.count:
            self._return(self._bookings.pop())

    def _return_bookings(self) -> None:
        while self._bookings:
            self._return(self._bookings.pop())

    # The rules --------------------------------------------------------------------------------

    @enable_ki_protection
    def admit_now(self, reservation: Claim) -> bool:
        """Charge the reservation if the server needn't be asked, and say whether it was."""
        self.refuse_closed()
        return self._alone and super().admit_now(reservation)

    async def admit_later(self, reservation: Claim) -> bool:
        """Wait in line until the reservation is charged, or nobody should wait any longer."""
        self.refuse_closed()
        try:
            return await super().admit_later(reservation)
        except BaseException:
            self._return_unwanted()
            raise

    def free_at(self, reservation: Claim, now: float) -> float:
        """Return when the reservation can be granted by what the server has charged for it."""
        if self._alone:
            return self._free_alone_at(reservation, now)
        if self.pauses.closed_until > now:
            self._return_bookings()
        while self._bookings:
            booking = self._bookings[0]
            # This process was stopped meanwhile, or its machine slept.
            is_stale = now - booking.moment > _STALE_SECONDS
            if not is_stale and all(
                have >= amount
                for have, (_, amount) in zip(booking.amounts, reservation.charges, strict=True)
            ):
                return max(now, booking.moment)
            # If not stale, it was for one that was ahead of this one, and has gone.
            self._return(self._bookings.popleft())
        if reservation is not self._asked_first:
            self._ask_at = now
        self._bell.set()
        return inf

    def _free_alone_at(self, reservation: Claim, now: float) -> float:
        # At first others may still hold what they held.
        others_end = self._lost_at + self._lease
        if self._stated_places is not None:
            if now >= others_end:
                self.places = max(1, self._stated_places // self._members)
            elif self.in_flight >= (self.places or 0):
                return others_end
        return super().free_at(reservation, now)

    def take(self, reservation: Claim, now: float) -> None:
        """Charge the reservation here; the server has charged it."""
        super().take(reservation, now)
        if self._alone:
            return
        booking = self._bookings.popleft()
        late = now - booking.moment > self._late_seconds
        charges = zip(booking.amounts, reservation.charges, strict=True)
        for index, (booked, (_, amount)) in enumerate(charges):
            moment = booking.stamp - self._offset
            if booked != amount:
                self._note(index, "settled", amount - booked, moment)
            if late and amount:
                self._note(index, "late", amount, moment, now)

    def woken(self, reservation: Claim) -> None:
        """Charge a task that waited in line at the moment it runs, if that is late."""
        if self._alone or current_time() - reservation.granted_at > self._late_seconds:
            super().woken(reservation)

    def left(self, reservation: Claim, error: BaseException | None) -> None:
        """Free the reservation's place."""
        super().left(reservation, error)
        if self.has_places and not self._alone and self._is_open:
            self._ask_at = -inf  # For the next here, if anybody waits.
            self._tell_courier()
            self._is_changed = True

    @enable_ki_protection
    def pause(self, seconds: float) -> None:
        """Grant nothing for a while, in no process."""
        self.refuse_closed()
        super().pause(seconds)

    @enable_ki_protection
    def change(self, rates: tuple[StatedRate, ...], places: int | None) -> None:
        """Replace these limits for all processes."""
        self.refuse_closed()
        super().change(rates, places)
        if places is not None:
            self._stated_places = places
        self._note_change()

    def statistics(self) -> LimiterStatistics:
        """Return the state as of the last call, but for who waits and what was granted here."""
        here = super().statistics()
        if self._alone or not self._is_open:
            return here
        dimensions = {
            name: attrs.evolve(
                one,
                used=used,
                debt=max(0.0, -level, used - one.limit * self.headroom),
                unsettled=unsettled,
                provider_remaining=None if remaining < 0 else remaining,
            )
            for (name, one), (used, level, unsettled, remaining) in zip(
                here.dimensions.items(), self._told, strict=True
            )
        }
        in_flight = self.in_flight + len(self._bookings) + self._in_flight_elsewhere
        return attrs.evolve(here, in_flight=in_flight, dimensions=dimensions)


def _written(one: object) -> str:
    if isinstance(one, bool):
        return str(int(one))
    return one if isinstance(one, str) else f"{one:.6f}" if isinstance(one, float) else str(one)
