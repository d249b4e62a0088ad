"""Hold one caller's share of a limit for a block, and settle it to what was really used.

The reservations that a piece of code holds are in one context variable, chained to each other. It
is set in the task that reserves and restored when the block is left; tasks started from the block
inherit it. A reservation that was left no longer counts, wherever its context was copied to.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from enum import Enum
from typing import NoReturn

import attrs
import trio
from trio.lowlevel import (
    checkpoint,
    current_task,
)  # By name: `trio` has a `__getattr__`, so a look-up costs.

from harness._async_with import AsyncWithOnly
from harness._outside_trio import refuse_outside_trio
from harness.errors import NestedReservationError, ReservationError
from harness.limits._charges import Charge
from harness.limits._claim import Claim
from harness.limits._grants import Grants
from harness.limits._notices import ReservationOver
from harness.limits._responses._headers import HeaderSource
from harness.runs import current_run_or_none
from harness.runs._waits import Wait, observed_run

_innermost: ContextVar[Reservation | None] = ContextVar("harness.limits.reservation", default=None)


class _Stage(Enum):
    NEW = "not entered yet"
    CHARGED = "granted"  # By `reserve_nowait`, but not entered yet.
    HELD = "held"
    LEFT = "left"


# Needed on every request, and looking up a member of an enum is slow.
_NEW, _CHARGED, _HELD, _LEFT = _Stage


@attrs.define(eq=False, repr=False)
class Reservation(Claim, AsyncWithOnly):
    """A place and an amount that a limiter lends to one request to the provider.

    Made by `Limiter.reserve`, held for the length of an ``async with`` block, and used once.
    Its charge covers all dimensions of the limiter or none. Once it is entered, the charge stays:
    `settle` replaces it with the real use, `refund` takes it back, and leaving without either keeps
    the estimate.
    """

    _written = "limiter.reserve(...) as reservation"

    _issuer: Grants
    _stage: _Stage = attrs.field(default=_NEW, init=False)
    # Set when it is entered.
    _outer: Reservation | None = attrs.field(init=False)
    _task: trio.lowlevel.Task | None = attrs.field(init=False)
    _token: Token[Reservation | None] | None = attrs.field(init=False)
    _settled: tuple[float, Charge] | None = attrs.field(init=False)
    """When it was settled, and to what; only set if observers are told."""

    @property
    def provider(self) -> str:
        """The name of the limiter that granted it; in a pool, the provider to call."""
        return self._issuer.name

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Reservation:
        stage = self._stage
        if stage is not _NEW and stage is not _CHARGED:
            raise ReservationError(
                f"this reservation of {self.provider!r} is {stage.value}, and a reservation "
                "can be entered only once; ask the limiter for another one"
            )
        refuse_outside_trio("reserve() was entered")
        outer = _innermost.get()
        if outer is not None:
            outer = _held_around(outer)
            _refuse_inside(outer, self._issuer)
        # The checkpoint comes before the charge, so that the moment of the charge is when the
        # block begins: a busy loop may take milliseconds to come round. In line, the wait is the
        # checkpoint.
        admitted = False
        if stage is _CHARGED:
            try:
                await checkpoint()
            except BaseException:
                self.refund()  # Nobody will enter it, nor leave it.
                raise
            admitted = True
        elif not self._issuer.line.count:
            await checkpoint()
            admitted = self._issuer.admit_now(self)
        if (run := observed_run()) is not None:
            self._issuer.tell(run)
            self.told: Wait | None = Wait(
                run, "limiter", self._issuer.name, self._issuer.holder_ids()
            )
        try:
            if not admitted:
                _waiting_for = self._in_words
                if outer is not None:
                    with _waiting_inside(outer, self._issuer):
                        # Ends, as below.
                        while not await self._issuer.admit_later(self):
                            self._issuer.raise_if_closed()
                else:
                    # Ends: a waiter that is turned away finds the limiter closed, and raises.
                    while not await self._issuer.admit_later(self):
                        self._issuer.raise_if_closed()
                self._issuer.woken(self)
            self.enter_charged(outer)
            return self
        finally:
            if self.told is not None:
                if self._stage is _HELD:
                    self.tell_granted((self.told,))
                self.told.over()

    def _in_words(self) -> str:
        return f"limiter {self.provider!r} ({self._issuer.line.count:,} in line)"

    def enter_charged(self, outer: Reservation | None) -> None:
        """Enter the block once it is charged; pools call this too, for blocks of their own.

        Args:
          outer: What ``held_reservation`` returns here.
        """
        self._outer = outer
        if self._issuer.has_places:
            self._task = current_task()
        self._stage = _HELD
        self._issuer.granted += 1
        self._token = _innermost.set(self)

    def tell_granted(self, waits: Sequence[Wait]) -> None:
        """Let observers hear what ended a wait for it, and later what became of it."""
        self.told = wait = waits[0]
        self._settled = None
        wait.facts = self._issuer.facts(self)
        self._issuer.holders[self] = wait.run_id

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self, error_type: object, error: BaseException | None, traceback: object
    ) -> None:
        self._stage = _LEFT
        token, self._token = self._token, None
        told, self.told = self.told, None
        # A line keeps some of those it has served for a while, and they shall keep nobody else.
        self._task = None
        if told is not None:
            told.tell(ReservationOver(told.number, self._settled))
        self._issuer.left(self, error)
        self.closed: bool = True
        if token is not None:
            try:
                _innermost.reset(token)
            except ValueError:
                # Left in another context than it was entered in, as by a generator that the garbage
                # collector ends. There is nothing to restore there.
                pass

    @trio.lowlevel.enable_ki_protection
    def settle(
        self,
        *,
        tokens: float | None = None,
        input_tokens: float | None = None,
        output_tokens: float | None = None,
        headers: HeaderSource = None,
        status: int | None = None,
        body: object = None,
    ) -> None:
        """Replace the estimate with what the request really used.

        What isn't given keeps its estimate. If the tokens aren't given, input and output add up to
        them.

        Args:
          tokens: The tokens used, input and output.
          input_tokens: The input among them.
          output_tokens: The output among them.
          headers: The response's headers: a mapping, pairs, or ``None``.
          status: The response's status. No status raises: a refusal begins the pause that all
            callers share, and is left to the caller to handle.
          body: The response's body, if it is an error's: text, bytes or parsed JSON.

        Raises:
          TypeError, ValueError: if a number of tokens isn't a number, or is negative.
          ReservationError: if it was settled or refunded before, or is not granted yet.
        """
        if self.closed or self._stage is _NEW:
            self._refuse("settle")
        self._issuer.settled(self, tokens, input_tokens, output_tokens, headers, status, body)
        self.closed = True
        if self.told is not None and not (tokens is input_tokens is output_tokens is None):
            used = self._issuer.used(self, tokens, input_tokens, output_tokens)
            self._settled = trio.current_time(), used

    @trio.lowlevel.enable_ki_protection
    def refund(self) -> None:
        """Give back the whole charge, because nothing was sent.

        Raises:
          ReservationError: if it was settled or refunded before, or is not granted yet.
        """
        if self.closed or self._stage is _NEW:
            self._refuse("refund")
        self.closed = True
        if self.told is not None:
            self._settled = trio.current_time(), (0, 0, 0, 0, None, None)
        self._issuer.refunded(self)
        if self._stage is _CHARGED:
            # It was never entered, so nobody will leave its block.
            self._stage = _LEFT
            self._issuer.left(self, None)

    @property
    def held(self) -> bool:
        """Whether it holds a place: granted, and its block not left."""
        return self._stage is _HELD or self._stage is _CHARGED

    def _refuse(self, what: str) -> NoReturn:
        if self._stage is _NEW:
            raise ReservationError(
                f"can't {what} a reservation of {self.provider!r} that is not granted yet; "
                "do it inside its `async with` block"
            )
        raise ReservationError(
            f"can't {what} this reservation of {self.provider!r}: it was settled, "
            "refunded or left before, and each is final; reserve once per request"
        )

    def mark_charged(self) -> None:
        """Note that it was granted without being entered; for `Limiter.reserve_nowait`."""
        self._stage = _CHARGED

    def __repr__(self) -> str:
        return f"<Reservation of {self.provider!r}, {self._stage.value}>"


@attrs.define(eq=False, repr=False)
class JointReservation(Reservation):
    """Reservations of several limiters for one request, ended together."""

    _others: tuple[Reservation, ...]

    @classmethod
    def of(cls, reservations: Sequence[Reservation]) -> Reservation:
        """Return one for all of ``reservations``, which are charged but not entered yet."""
        first, *others = reservations
        if not others:
            return first
        joint = cls(
            first.charges,
            first.planned,
            first.model,
            first.priority,
            first._issuer,
            tuple(others),
        )
        joint.granted_at, joint.state, joint.epoch = first.granted_at, first.state, first.epoch
        return joint

    def enter_charged(self, outer: Reservation | None) -> None:
        """Enter the blocks of all."""
        for other in self._others:
            other.enter_charged(outer)
            outer = other
        Reservation.enter_charged(self, outer)

    def tell_granted(self, waits: Sequence[Wait]) -> None:
        """Let observers hear of each, in the same order."""
        Reservation.tell_granted(self, waits)
        for other, wait in zip(self._others, waits[1:], strict=True):
            other.tell_granted((wait,))

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self, error_type: object, error: BaseException | None, traceback: object
    ) -> None:
        await Reservation.__aexit__(self, error_type, error, traceback)
        for other in reversed(self._others):
            # What went wrong is told to the first alone.
            await other.__aexit__(None, None, None)

    @trio.lowlevel.enable_ki_protection
    def settle(
        self,
        *,
        tokens: float | None = None,
        input_tokens: float | None = None,
        output_tokens: float | None = None,
        headers: HeaderSource = None,
        status: int | None = None,
        body: object = None,
    ) -> None:
        """Replace the estimate with the real use in each; the first hears of the response."""
        Reservation.settle(
            self,
            tokens=tokens,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            headers=headers,
            status=status,
            body=body,
        )
        for other in self._others:
            other.settle(tokens=tokens, input_tokens=input_tokens, output_tokens=output_tokens)

    @trio.lowlevel.enable_ki_protection
    def refund(self) -> None:
        """Give back the whole charge to each, because nothing was sent."""
        Reservation.refund(self)
        for other in self._others:
            other.refund()


def current_reservation() -> Reservation:
    """Return the innermost reservation that this code holds.

    With it, a function called under a reservation can settle that reservation.

    Raises:
      ReservationError: if this code holds none.
    """
    reservation = held_reservation()
    if reservation is None:
        raise ReservationError(
            "this code holds no reservation; call it inside `async with limiter.reserve(...)`, "
            "or give the fan-out an `Attempt(limiter=...)`"
        )
    return reservation


def held_reservation() -> Reservation | None:
    """Return the innermost reservation that this code holds, or ``None``."""
    return _held_around(_innermost.get())


def refuse_nested(issuers: Iterable[Grants]) -> None:
    """Raise if this code belongs to a run and holds a reservation of one of ``issuers``.

    Raises:
      NestedReservationError: if so.
    """
    held = held_reservation()
    for issuer in issuers:
        _refuse_inside(held, issuer)


def _held_around(reservation: Reservation | None) -> Reservation | None:
    """Return the innermost of a chain that is still held, and unlink those that were left.

    Otherwise the chain would grow when tasks each start the next inside their block.
    """
    while reservation is not None and not reservation.held:
        reservation = reservation._outer
    inner = reservation
    while inner is not None:  # Ends: a chain is as long as blocks are nested.
        outer = inner._outer
        while outer is not None and not outer.held:
            outer = outer._outer
        inner._outer = outer
        inner = outer
    return reservation


def _refuse_inside(held: Reservation | None, issuer: Grants) -> None:
    while held is not None:
        if held._issuer is issuer and (run := current_run_or_none()) is not None:
            raise NestedReservationError(
                f"run {run.path!r} reserves {issuer.name!r} inside a reservation of "
                f"{issuer.name!r} that it, or its caller, already holds; enough of these would "
                "wait for each other forever. Reserve once per request to the provider, and leave "
                "the block before asking again"
            )
        held = held._outer


@contextmanager
def _waiting_inside(held: Reservation | None, issuer: Grants) -> Generator[None]:
    """Note, for the length of the block, that whoever holds ``held`` waits for ``issuer``.

    What the task inherited doesn't count: whoever entered that may go on and leave it.

    Raises:
      NestedReservationError: if it would wait forever.
    """
    holders: list[Grants] = []
    task = current_task()
    while held is not None:
        # Only places can be waited for without end.
        if held._issuer.has_places and held._task is task:
            holders.append(held._issuer)
        held = held._outer
    for holder in holders:
        holder.blocked[issuer] = holder.blocked.get(issuer, 0) + 1
    try:
        if holders and issuer in _stuck(issuer):
            names = " and ".join(sorted({repr(holder.name) for holder in holders}))
            raise NestedReservationError(
                f"waiting for {issuer.name!r} while holding {names} would never end: all places of "
                f"{issuer.name!r} are held by tasks that wait for those held here. Take several "
                "limiters in one order, or together: JointLimiter([...]).reserve(...)"
            )
        yield
    finally:
        for holder in holders:
            holder.blocked[issuer] -= 1
            if not holder.blocked[issuer]:
                del holder.blocked[issuer]


def _stuck(issuer: Grants) -> set[Grants]:
    """Return the limiters whose places are all held by tasks that wait for one of the same."""
    stuck: set[Grants] = set()
    found = [issuer]
    while found:  # Ends: each limiter is added once.
        one = found.pop()
        if one not in stuck:
            stuck.add(one)
            found += one.blocked
    while True:  # Ends: each round but the last takes a limiter out.
        free = {one for one in stuck if not one.is_stuck_among(stuck)}
        if not free:
            return stuck
        stuck -= free
