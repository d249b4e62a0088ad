"""Note who takes locks and permits in a controlled program, and tell which are still held.

What is noted: locks, semaphores and capacity limiters of trio, locks and semaphores of asyncio,
reservations of harness's limiters. Whether something is held is read from the thing itself; the
notes only say who took it, and where.

What one task takes and another gives back, such as the free places of a buffer, isn't a permit that
a cancelled task should have given back; so it isn't judged.

While at least one program is watched, the methods that take and give back are replaced, for the
whole process; outside watched programs the replacements only pass calls on.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

import attrs
import trio

from harness.limits._reservation import Reservation
from harness.runs._frames import is_user_code, place
from harness.testing.schedules._control import controlled
from harness.testing.schedules._strand import Strand


@attrs.frozen
class Taken:
    """A permit that was taken, in words."""

    what: str
    """What it is of, as ``a trio.Lock``."""

    by: Strand
    where: str
    """The function and line that took it."""


@attrs.define(eq=False)
class _Thing:
    """Something that is taken and given back."""

    what: str
    held: Callable[[], float]
    """How much of it is held now."""

    before: float
    """How much was when it was first taken."""

    by: list[tuple[Strand, str]] = attrs.field(factory=list[tuple[Strand, str]])
    """Who holds it, and where it was taken."""

    handed_over: bool = False
    """Whether one task gave back what another had taken."""

    first_taken: str = ""


@attrs.define(eq=False)
class Permits:
    """What one controlled program takes and gives back."""

    _things: dict[int, tuple[Any, _Thing]] = attrs.field(
        factory=dict[int, tuple[Any, _Thing]], init=False
    )

    def thing(self, owner: Any, held: Callable[[Any], float]) -> _Thing:
        """Return the notes about something, which is about to be taken or given back."""
        found = self._things.get(id(owner))
        if found is None:
            kind = type(owner)
            package = kind.__module__.partition(".")[0]
            what = f"a{'n' * (package[0] in 'aeiou')} {package}.{kind.__name__}"
            if isinstance(owner, Reservation):
                what = f"a reservation of limiter {owner.provider!r}"
            look = functools.partial(held, owner)
            found = self._things[id(owner)] = (owner, _Thing(what, look, look()))
        return found[1]

    def still_held(self) -> list[Taken]:
        """Return what was taken and not given back, each with who took it."""
        found: list[Taken] = []
        for _, thing in self._things.values():
            count = thing.held() - thing.before
            if count > 0 and not thing.handed_over:
                found += [
                    Taken(thing.what, strand, where)
                    for strand, where in thing.by[-max(1, int(count)) :]
                ]
        return found

    def handed_over(self) -> set[str]:
        """Return where things were first taken that others gave back."""
        return {thing.first_taken for _, thing in self._things.values() if thing.handed_over}


permits: ContextVar[Permits | None] = ContextVar("harness.testing.permits", default=None)
"""Where the current program's are noted."""


def _locked(lock: Any) -> float:
    return float(lock.locked())


_TAKERS: Mapping[type[Any], tuple[Callable[[Any], float], tuple[str, ...], tuple[str, ...]]] = {
    # How much is held; by which methods it is taken; by which it is given back.
    trio.Lock: (_locked, ("acquire", "acquire_nowait"), ("release",)),
    trio.StrictFIFOLock: (_locked, ("acquire", "acquire_nowait"), ("release",)),
    trio.Semaphore: (lambda one: -one.value, ("acquire", "acquire_nowait"), ("release",)),
    trio.CapacityLimiter: (
        lambda one: one.borrowed_tokens,
        ("acquire_on_behalf_of", "acquire_on_behalf_of_nowait"),
        ("release_on_behalf_of",),
    ),
    asyncio.Lock: (_locked, ("acquire",), ("release",)),
    asyncio.Semaphore: (lambda one: -one._value, ("acquire",), ("release",)),
    Reservation: (lambda one: float(one.held), ("enter_charged", "mark_charged"), ("__aexit__",)),
}


@contextmanager
def noted() -> Iterator[None]:
    """Have what programs take noted as long as the block lasts."""
    with _guard:
        _users.append(None)
        if len(_users) == 1:
            for kind, (held, takes, gives) in _TAKERS.items():
                for name in (*takes, *gives):
                    original = getattr(kind, name)
                    noting = _noting(original, held, takes=name in takes)
                    _placed.append((kind, name, vars(kind).get(name), noting))
                    setattr(kind, name, noting)
    try:
        yield
    finally:
        with _guard:
            _users.pop()
            while not _users and _placed:
                kind, name, own, noting = _placed.pop()
                if vars(kind).get(name) is not noting:
                    continue  # Somebody else's replacement of ours stays.
                if own is None:
                    delattr(kind, name)
                else:
                    setattr(kind, name, own)


# harness: shared (they are about methods of classes, which the whole process shares)
_guard = threading.Lock()
_users: list[None] = []
_placed: list[tuple[type[Any], str, Any, Any]] = []


def _noting(original: Any, held: Callable[[Any], float], *, takes: bool) -> Any:
    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def noting_async(owner: Any, *args: Any) -> Any:
            done = _begin(owner, held, takes=takes)
            result = await original(owner, *args)
            if done is not None:
                done()
            return result

        return noting_async

    @functools.wraps(original)
    def noting(owner: Any, *args: Any) -> Any:
        done = _begin(owner, held, takes=takes)
        result = original(owner, *args)
        if done is not None:
            done()
        return result

    return noting


def _begin(owner: Any, held: Callable[[Any], float], *, takes: bool) -> Callable[[], None] | None:
    """Return what to call once something was taken or given back; None outside programs."""
    notes = permits.get()
    control = controlled.get()
    if notes is None or control is None:
        return None
    try:
        strand = control.backend.current()
    except RuntimeError:
        return None  # A callback of the loop.
    thing = notes.thing(owner, held)
    mine = [one for one in thing.by if one[0] is strand]
    if not takes:
        return functools.partial(_gave, thing, mine)

    def took() -> None:
        # One method that takes may call another.
        if len([one for one in thing.by if one[0] is strand]) == len(mine):
            where = _users_line(sys._getframe(2))
            thing.by.append((strand, where))
            thing.first_taken = thing.first_taken or where

    return took


def _gave(thing: _Thing, mine: list[tuple[Strand, str]]) -> None:
    if mine and mine[-1] in thing.by:
        thing.by.remove(mine[-1])
    elif thing.by:
        thing.handed_over = True
        del thing.by[0]


def _users_line(frame: FrameType | None) -> str:
    innermost = frame
    while frame is not None:
        if is_user_code(frame.f_code.co_filename):
            return place(frame.f_code, frame.f_lineno)
        frame = frame.f_back
    return "code" if innermost is None else place(innermost.f_code, innermost.f_lineno)
