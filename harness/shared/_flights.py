"""Make one call for everybody who asks for the same thing at the same time.

A *flight* is such a call in progress. It lives in a nursery of its own, belongs to no run, and
hands its outcome to everybody waiting for it; so it makes no difference who asked first, or whether
that caller is still there. Its context variables are those of the call that started it, and so are
the budgets it spends from: somebody has to pay. If those refuse, that doesn't answer others with
budgets of their own: each of them is told to ask again.

Invariants: there is at most one flight for a key, except for those set aside. Waiters are woken
when the flight has landed, which happens once, in one step with whatever its owner keeps of it:
there is no moment at which one could find neither the flight nor the outcome.

Flights may ask for others, and so could end up waiting for each other in a circle. Each knows which
flights the code inside it waits for, and a wait that would close a circle is refused.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import trio
from trio.lowlevel import enable_ki_protection

from harness._events import happened
from harness._root_errors import budget_refusals
from harness._words import repr_of
from harness.errors import CircularWaitError, SharedClosedError
from harness.runs import start_soon
from harness.runs._accounts import Payer, current_payer, paid_by
from harness.runs._endings import (
    is_only_cancelled,
    most_telling,
    unwrap_single,
    without_cancelled,
)
from harness.runs._functions import not_awaitable_error
from harness.runs._waits import waiting
from harness.shared._landed import Landed

Landing: TypeAlias = Callable[["Flight"], None]
"""What the owner does with a landed flight before anybody is woken."""

_inside: ContextVar[Flight | None] = ContextVar("harness.shared.flight", default=None)
"""The flight that the current code was started in. Set in a task made for that flight alone."""


class Flight:
    """One call in progress, and those waiting for it."""

    __slots__ = (
        "abandoned",
        "done",
        "kept",
        "key",
        "payer",
        "result",
        "scope",
        "waiters",
        "waits_on",
        "what",
    )

    def __init__(self, key: Hashable, what: str, *, kept: bool) -> None:
        self.key = key
        self.what = what
        accounts, path = current_payer()
        self.payer: Payer = (accounts, path)
        """Whose budgets it spends from. A separate tuple, which tells its tasks from others."""
        self.kept = kept
        """Whether it goes on when nobody is waiting for it."""
        self.scope = trio.CancelScope()
        self.done = trio.Event()
        self.result: Landed | None = None
        """The outcome; None until it has landed, and afterwards if it was cut off."""
        self.waiters = 0
        self.abandoned = False
        """Whether it was cancelled because nobody was waiting any longer."""
        self.waits_on: list[Flight] = []
        """The flights that code inside this one is waiting for now."""


class Flights:
    """The flights of one owner: of a cache, or of a once."""

    def __init__(self, nursery: trio.Nursery, what: str, landed: Landing) -> None:
        self._nursery = nursery
        self._what = what
        self._landed = landed
        self._by_key: dict[Hashable, Flight] = {}
        self._all: dict[Flight, None] = {}
        self.closed = False

    def find(self, key: Hashable) -> Flight | None:
        """Return the flight for ``key``, if there is one."""
        return self._by_key.get(key)

    def start(
        self,
        key: Hashable,
        call: Callable[..., Awaitable[Any]],
        *args: Any,
        kept: bool,
        what: str,
    ) -> Flight:
        """Call ``call(*args)`` in a task of its own, in the caller's context without its run."""
        assert key not in self._by_key
        flight = Flight(key, what, kept=kept)
        self._by_key[key] = flight
        self._all[flight] = None
        try:
            start_soon(
                self._nursery,
                self._fly,
                flight,
                call,
                args,
                run=None,
                name=f"{what} {repr_of(key)}",
            )
        except BaseException:
            del self._by_key[key], self._all[flight]
            raise
        return flight

    async def join(self, flight: Flight) -> Any:
        """Wait until the flight has landed, and return or raise its outcome.

        Raises:
          CircularWaitError: if the flight is waiting for the one that this code is part of.
          CutOff: if it was cut off. Unless it was only abandoned, the owner's block is over.
          RefusedForAnother: if it was refused by a budget that doesn't apply to this caller.
          Exception: what the call raised, as a copy for this caller alone, if it can be copied.

        Checkpoint: always.

        Cancellation: the others go on waiting. If there are none, and the flight isn't kept, it is
        cancelled too.
        """
        me = _around()
        if me is not None:
            _refuse_circle(me, flight)
            me.waits_on.append(flight)
        flight.waiters += 1
        _waiting_for = f"{flight.what} {repr_of(flight.key)}"
        try:
            with waiting("queue", flight.what):
                await happened(flight.done)
        finally:
            flight.waiters -= 1
            if me is not None:
                me.waits_on.remove(flight)
            if not (flight.waiters or flight.kept or flight.done.is_set()):
                flight.abandoned = True
                flight.scope.cancel()
        if flight.result is None:
            # What cut it off has usually cancelled this task too, and that is how it should end.
            await trio.lowlevel.checkpoint_if_cancelled()
            raise CutOff
        if (
            budget_refusals(flight.result.error)
            and current_payer()[0].budgets != flight.payer[0].budgets
        ):
            raise RefusedForAnother
        return flight.result.get()

    def set_aside(self, key: Hashable) -> bool:
        """Make the next caller start a new one. Those waiting still get what they wait for."""
        return self._by_key.pop(key, None) is not None

    def close(self, *, cut_off: bool) -> None:
        """Accept no more; cut off those in progress, or let them land."""
        self.closed = True
        if cut_off:
            for flight in self._all:
                flight.scope.cancel()

    def refuse_if_closed(self) -> None:
        """Refuse to go on after the owner's block, except inside a flight that the block waits for.

        Or inside another owner's flight that such a flight is waiting for.

        Raises:
          SharedClosedError: if it was left.
        """
        if self.closed:
            me = _around()
            if me is None or me not in _reached_from(self._all):
                raise self.closed_error()

    def closed_error(self) -> SharedClosedError:
        """Return the error for those who ask or wait when the owner's block is over."""
        return SharedClosedError(
            f"the block of this {self._what} was left or cancelled; use it inside its block, and "
            "open it around everything that shares it"
        )

    @property
    def count(self) -> int:
        """How many are in progress."""
        return len(self._all)

    @property
    def waiters(self) -> int:
        """How many tasks are waiting for them."""
        return sum(flight.waiters for flight in self._all)

    def check(self) -> None:
        """Check the invariants.

        Raises:
          AssertionError: if one is broken.
        """
        for key, flight in self._by_key.items():
            assert flight.key == key, f"{flight.what} {key!r} is under another key"
            assert flight in self._all, f"{flight.what} {key!r} has been forgotten"
        for flight in self._all:
            assert not flight.done.is_set(), f"{flight.what} {flight.key!r} has landed"
            assert flight.waiters >= 0, f"{flight.what} {flight.key!r} lost count of who waits"

    async def _fly(
        self, flight: Flight, call: Callable[..., Awaitable[Any]], args: tuple[Any, ...]
    ) -> None:
        _inside.set(flight)
        paid_by.set(flight.payer)
        try:
            with flight.scope:
                awaitable = call(*args)
                if not isinstance(awaitable, Awaitable):
                    raise not_awaitable_error(call, awaitable)
                flight.result = Landed(await awaitable)
        except BaseException as error:
            # A cancel from outside needn't be raised: it is the nursery's, which has it anyway.
            if not is_only_cancelled(error):
                failure = without_cancelled(error)
                if not isinstance(failure, Exception):
                    raise
                # The result of a cancel doesn't answer those who have come to wait since.
                if not flight.abandoned:
                    failure = unwrap_single(failure)
                    flight.result = Landed(None, failure, failure.__traceback__)
        finally:
            del self._all[flight]
            if self._by_key.get(flight.key) is flight:
                del self._by_key[flight.key]
                self._landed(flight)
            flight.done.set()


class CutOff(Exception):
    """A flight that somebody was waiting for was cancelled."""


class RefusedForAnother(Exception):
    """A flight had too little left in its starter's budgets, but not in the waiter's."""


@asynccontextmanager
@enable_ki_protection
async def open_flights(
    what: str, landed: Landing, *, cut_off: bool
) -> AsyncGenerator[Flights, None]:
    """Give flights a nursery for the length of a block.

    The body's error comes out unchanged, not in a group.

    Args:
      what: The owner, for messages.
      landed: Called with each flight that has landed and wasn't set aside.
      cut_off: Whether the end of the block cuts off what is in progress, instead of waiting.

    Checkpoint: on exit.

    Cancellation: what is in progress is cancelled.
    """
    body_error: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            flights = Flights(nursery, what, landed)
            try:
                yield flights
            except BaseException as error:
                body_error = error
            finally:
                flights.close(cut_off=cut_off)
        if body_error is not None:
            raise body_error
    except BaseExceptionGroup as group:
        if group is body_error:
            raise
        raise most_telling(group) from body_error
    finally:
        del body_error


def _around() -> Flight | None:
    """Return the flight that the current code is part of."""
    flight = _inside.get()
    # A task may outlive the flight it was started in. Or `start_soon` gave it to a run elsewhere,
    # or to none: the flight doesn't wait for such a worker.
    if flight is None or flight.done.is_set() or paid_by.get() is not flight.payer:
        return None
    return flight


def _refuse_circle(me: Flight, target: Flight) -> None:
    """Refuse to wait for ``target`` if that is waiting for ``me``, directly or not."""
    came_from = _reached_from([target])
    if me not in came_from:
        return
    circle: list[str] = []
    step: Flight | None = me
    while step is not None:
        circle.append(f"{step.what} {repr_of(step.key)}")
        step = came_from[step]
    circle.reverse()
    raise CircularWaitError(
        f"{me.what} {repr_of(me.key)} would wait for itself: "
        f"{' which waits for '.join(circle)}; ask for other keys inside it"
    )


def _reached_from(flights: Iterable[Flight]) -> dict[Flight, Flight | None]:
    """Map everything that these wait for, directly or not, to which of them; themselves to None."""
    came_from: dict[Flight, Flight | None] = dict.fromkeys(flights)
    pending = list(came_from)
    while pending:
        flight = pending.pop()
        for behind in flight.waits_on:
            if behind not in came_from:
                came_from[behind] = flight
                pending.append(behind)
    return came_from
