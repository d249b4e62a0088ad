"""One caller's share of a limit: held for a block, settled to what was really used.

The reservations that a piece of code holds stand in one context variable, as a chain of the
reservations themselves. It is set in the task that reserves and put back when the block is
left; tasks that are started from the block inherit it. A reservation that was left counts no
more, wherever its context was copied to.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar, Token
from enum import Enum
from types import TracebackType
from typing import Protocol

import trio

from harness.errors import NestedReservationError, ReservationError
from harness.limits._charges import Charge
from harness.limits._headers import HeaderSource
from harness.runs import current_run_or_none

_innermost: ContextVar[Reservation | None] = ContextVar("harness.limits.reservation", default=None)


class _Stage(Enum):
    NEW = "not entered yet"
    CHARGED = "granted"  # By `reserve_nowait`, and not entered yet.
    HELD = "held"
    LEFT = "left"


# Looked up on every request, and a member of an enum is a slow look-up.
_NEW, _CHARGED, _HELD, _LEFT = _Stage


class Issuer(Protocol):
    """What grants reservations: `harness.limits.Limiter`."""

    name: str

    def admit_now(self, reservation: Reservation) -> bool:
        """Charge the reservation if that is possible at once, and say whether it was."""
        ...

    async def admit_later(self, reservation: Reservation) -> None:
        """Wait in line until the reservation is charged."""
        ...

    def entered(self) -> None:
        """Count a reservation whose block was entered."""
        ...

    def settled(
        self,
        reservation: Reservation,
        used: tuple[float | None, float | None, float | None],
        headers: HeaderSource,
        status: int | None,
        body: object,
    ) -> None:
        """Replace a charge by the use, and take over what the response says."""
        ...

    def refunded(self, reservation: Reservation) -> None:
        """Take back a charge."""
        ...

    def left(self, reservation: Reservation, error: BaseException | None) -> None:
        """Free the reservation's place."""
        ...


class Reservation:
    """A place and an amount that a limiter lends to one request to the provider.

    Made by `Limiter.reserve`, held for the length of an ``async with`` block, and used once.
    Its charge covers all dimensions of the limiter or none. Once it is entered the charge
    stays: `settle` replaces it by the real use, `refund` takes it back, and leaving without
    either keeps the estimate.
    """

    __slots__ = (
        "_issuer",
        "_outer",
        "_stage",
        "_token",
        "amounts",
        "charge",
        "closed",
        "epoch",
        "granted_at",
        "model",
        "priority",
    )

    def __init__(
        self,
        issuer: Issuer,
        amounts: tuple[float, ...],
        charge: Charge,
        model: str | None,
        priority: float,
    ) -> None:
        self._issuer = issuer
        self._stage = _NEW
        self._outer: Reservation | None = None
        self._token: Token[Reservation | None] | None = None
        self.amounts = amounts
        self.charge = charge
        self.model = model
        self.priority = priority
        self.closed = False
        self.granted_at = 0.0
        self.epoch = 0

    @property
    def provider(self) -> str:
        """The name of the limiter that granted it; of a pool's, which provider to call."""
        return self._issuer.name

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Reservation:
        stage = self._stage
        if stage is not _NEW and stage is not _CHARGED:
            raise ReservationError(
                f"this reservation of {self.provider!r} is {stage.value}, and a reservation "
                "can be entered once; ask the limiter for another one"
            )
        outer = _innermost.get()
        if outer is not None:
            outer = _held_around(outer)
            _refuse_inside(outer, self._issuer)
        await trio.lowlevel.checkpoint_if_cancelled()
        if stage is _CHARGED or self._issuer.admit_now(self):
            # The charge is made, so a cancel must wait until the block can be left.
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            await self._issuer.admit_later(self)
        self._enter(outer)
        return self

    def enter_charged(self) -> None:
        """Enter the block of a charged reservation; for pools, whose block it is."""
        self._enter(_held_around(_innermost.get()))

    def _enter(self, outer: Reservation | None) -> None:
        self._stage = _HELD
        self._issuer.entered()
        self._outer = outer
        self._token = _innermost.set(self)

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stage = _LEFT
        token, self._token = self._token, None
        self._issuer.left(self, error)
        self.closed = True
        if token is not None:
            try:
                _innermost.reset(token)
            except ValueError:
                # Left in another context than it was entered in, as a generator that the
                # garbage collector ends. There is nothing to put back there.
                pass

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
        """Replace the estimate by what the request really used.

        What isn't given keeps its estimate. Input and output together make up the tokens,
        if those aren't given.

        Args:
          tokens: The tokens used, input and output.
          input_tokens: The input among them.
          output_tokens: The output among them.
          headers: The response's headers: a mapping, pairs, or ``None``.
          status: The response's status. None of them raises: a refusal begins the pause that
            all callers share, and is the caller's to handle.
          body: The response's body, if it is an error's: text, bytes or parsed JSON.

        Raises:
          TypeError, ValueError: if a number of tokens is none, or is negative.
          ReservationError: if it was settled or refunded before, or is not granted yet.
        """
        self._check_open("settle")
        self._issuer.settled(self, (tokens, input_tokens, output_tokens), headers, status, body)
        self.closed = True

    def refund(self) -> None:
        """Give back the whole charge, because nothing was sent.

        Raises:
          ReservationError: if it was settled or refunded before, or is not granted yet.
        """
        self._check_open("refund")
        self.closed = True
        self._issuer.refunded(self)
        if self._stage is _CHARGED:
            # Nobody will leave the block of one that was never entered.
            self._stage = _LEFT
            self._issuer.left(self, None)

    def charged(self, now: float, epoch: int) -> None:
        """Note that it was granted; for limiters."""
        self.granted_at = now
        self.epoch = epoch
        self._stage = _CHARGED

    @property
    def held(self) -> bool:
        """Whether it occupies a place: granted, and its block not left."""
        return self._stage is _HELD or self._stage is _CHARGED

    def _check_open(self, what: str) -> None:
        if self._stage is _NEW:
            raise ReservationError(
                f"can't {what} a reservation of {self.provider!r} that is not granted yet; "
                "do it inside its `async with` block"
            )
        if self.closed:
            raise ReservationError(
                f"can't {what} this reservation of {self.provider!r}: it was settled, "
                "refunded or left before, and each is final; reserve once per request"
            )

    def __repr__(self) -> str:
        return f"<Reservation of {self.provider!r}, {self._stage.value}>"


def current_reservation() -> Reservation:
    """Return the innermost reservation that this code holds.

    So a function that is called under a reservation can settle it.

    Raises:
      ReservationError: if it holds none.
    """
    reservation = _held_around(_innermost.get())
    if reservation is None:
        raise ReservationError(
            "this code holds no reservation; call it inside `async with limiter.reserve(...)`, "
            "or give the fan-out an `Attempt(limiter=...)`"
        )
    return reservation


def refuse_nested(issuers: Iterable[Issuer]) -> None:
    """Raise if this code belongs to a run and holds a reservation of one of ``issuers``.

    Raises:
      NestedReservationError: if so.
    """
    held = _held_around(_innermost.get())
    for issuer in issuers:
        _refuse_inside(held, issuer)


def _held_around(reservation: Reservation | None) -> Reservation | None:
    """Return the innermost of a chain that is still held, and unlink those that were left.

    A chain of tasks that each start the next one inside their block would grow otherwise.
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


def _refuse_inside(held: Reservation | None, issuer: Issuer) -> None:
    while held is not None:
        if held._issuer is issuer and (run := current_run_or_none()) is not None:
            raise NestedReservationError(
                f"run {run.path!r} reserves {issuer.name!r} inside a reservation of "
                f"{issuer.name!r} that it, or what called it, holds already; enough of these "
                "wait for each other for ever. Reserve once per request to the provider, and "
                "leave the block before asking anew"
            )
        held = held._outer
