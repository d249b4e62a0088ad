"""Have an effect once, however many ask for it, and say so when that can't be known.

An effect is something that the world keeps: a payment, a mail. For each key there is one at a
time, made by whoever asks first; the others wait for what comes of it. It is a flight of the once
(`harness.shared._flights`): it belongs to no run, and is not cancelled with the caller that began
it, because half a payment helps nobody.

The order is always *intended*, effect, *done*. With a journal both marks are on disk before the
next step, so whatever moment a process dies at, the next one finds one of three things: nothing
was begun; it is done, and its value is there; or it was begun and nobody knows. The last can't be
avoided by anybody who doesn't run inside the receiver. So it is never guessed: it is raised, or
the same idempotency key is sent again, or a function of the user's asks the receiver.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeAlias, TypeVar

import attrs
import trio

from harness._arguments import check_key
from harness._words import error_in_words, repr_of
from harness.errors import EffectUnknownError, JournalLockedError
from harness.runs._functions import check_callable, not_awaitable_error, refuse_mismatch
from harness.shared._effect_store import EffectStore, RecordedEffect
from harness.shared._effects_in_memory import EffectsInMemory
from harness.shared._flights import CutOff, Flight, Flights, RefusedForAnother, open_flights
from harness.shared._idempotency_keys import idempotency_key_for

T = TypeVar("T")

_EFFECT = "the effect"


@attrs.frozen
class Done:
    """What a check function returns for an effect that has taken place."""

    value: Any = None
    """The value that every caller gets, as if the effect had returned it."""


UnknownCheck: TypeAlias = Callable[[Any, str], Awaitable[Done | None] | Done | None]
"""A function of an effect's key and idempotency key that finds out whether it has taken place."""

OnUnknown: TypeAlias = Literal["raise", "retry"] | UnknownCheck
"""What to do with an effect that began and has no known ending."""


@attrs.frozen(kw_only=True)
class OnceStatistics:
    """A once at one moment; the counts are since the start."""

    effects: int
    """Effects that were begun."""

    failed: int
    """Effects that raised."""

    shared: int
    """Calls that waited for an effect which another had begun."""

    remembered: int
    """Calls answered with what an effect of before had returned."""

    unknown: int
    """Calls that found an effect with no known ending."""

    in_flight: int
    """Effects under way now."""

    tasks_waiting: int
    """Tasks that wait for them now."""


class Once:
    """One effect per key; made by `open_once`, and usable inside its block."""

    def __init__(
        self,
        store: EffectStore,
        *,
        on_unknown: OnUnknown,
        on_error: Literal["retry", "unknown"],
    ) -> None:
        self._store = store
        self._memory = store if isinstance(store, EffectsInMemory) else None
        self._under_way: dict[Hashable, object] = getattr(store, "effects_under_way", {})
        """Whose each effect is that is under way; see `EffectStore`."""
        self._on_unknown = on_unknown
        self._on_error = on_error
        self._flights = Flights("once", _keep_nothing)
        self._begun: dict[Hashable, str] = {}
        """The idempotency keys of effects that began, and have no ending yet."""
        self._cut_off: set[Hashable] = set()
        """Those of them that were cut off, and won't have one."""
        self._unrecorded: dict[Hashable, Any] = {}
        """The values of effects that took place, and that the store has failed to record."""
        self._effects = self._failed = self._shared = self._remembered = self._unknown = 0

    async def __call__(
        self,
        key: Hashable,
        effect: Callable[[str], Awaitable[T]],
        *,
        idempotency_key: str | None = None,
    ) -> T:
        """Return what the effect for ``key`` returned, having it now if there was none.

        If it is under way, this waits for that one; if it is done, the value is there. In both
        cases ``effect`` is not called.

        An effect that raises has reported: all who wait raise its error, and the next call tries
        again, with the same idempotency key (unless ``on_error="unknown"``). One that raises
        while it is being cancelled has not: it is unknown.

        Args:
          key: Names the effect, such as ``("refund", ticket.id)``. With a journal it has to be one
            that the journal can store, and the same after a crash.
          effect: An async function, called with the idempotency key. It runs with the context
            variables of this call, and in no run: it may go on when this caller's run is over.
            What it spends is on the budgets of this caller.
          idempotency_key: What the effect is to tell its receiver, so that it can refuse a double.
            By default `Run.idempotency_key` of the current run, which all attempts at an item
            share, made different if an effect with another ``key`` has it already, in this once or
            in another, or in the journal; outside of any run a random one. What counts is the key
            of the first call for ``key``: it is kept, in the journal if there is one, and used
            again for every further try.

        Raises:
          TypeError: if ``effect`` is no async function that takes the idempotency key, or ``key``
            can't be used as one.
          EffectUnknownError: if the effect began, and nobody knows how it ended.
          SharedClosedError: if the block was left.
          JournalLockedError: if the effect is under way in another once of the same journal.
          CircularWaitError: if an effect asks for what waits for itself.
          Exception: what the effect raised, or the check function, or the journal. Each caller has
            its own copy, where that can be made.

        Checkpoint: always.

        Cancellation: at its first checkpoint, nothing was asked for. After that the effect goes on
        to its end, and what came of it is kept: ask again with the same key.
        """
        check_callable("once()", effect)
        check_key("once()", key)
        if idempotency_key is not None and not (
            isinstance(idempotency_key, str) and idempotency_key
        ):
            raise TypeError(
                f"once(idempotency_key=...) takes a string that is not empty, not "
                f"{idempotency_key!r}; None takes the run's"
            )
        flights = self._flights
        flights.refuse_if_closed()
        await trio.lowlevel.checkpoint_if_cancelled()
        known = None if self._memory is None else self._memory.find(key)
        if known is not None and known.state == "done":
            self._remembered += 1
            await trio.lowlevel.cancel_shielded_checkpoint()
            value: T = known.value
            return value
        while True:  # Ends: it goes round only after an effect that another's budget refused.
            flight = flights.find(key)
            if flight is None:
                # Before anything is recorded: an effect that can't be called never began.
                refuse_mismatch("once()", effect, "the idempotency key", "idempotency_key")
                flight = flights.start(
                    key,
                    self._perform,
                    key,
                    effect,
                    idempotency_key or idempotency_key_for(key),
                    kept=True,
                    what=_EFFECT,
                )
            else:
                self._shared += 1
            try:
                return await flights.join(flight)  # type: ignore[no-any-return]
            except RefusedForAnother:
                flights.refuse_if_closed()
            except CutOff:
                if key not in self._begun:
                    raise flights.closed_error() from None
                raise self._unknown_error(key, self._begun[key], "it was cancelled") from None

    def statistics(self) -> OnceStatistics:
        """Return the once at this moment. Frozen, and cheap."""
        return OnceStatistics(
            effects=self._effects,
            failed=self._failed,
            shared=self._shared,
            remembered=self._remembered,
            unknown=self._unknown,
            in_flight=self._flights.count,
            tasks_waiting=self._flights.waiters,
        )

    def check(self) -> None:
        """Check the invariants, for tests.

        Raises:
          AssertionError: if one is broken.
        """
        self._flights.check()
        if not self._flights.closed:
            for key in self._begun.keys() - self._cut_off:
                assert self._flights.find(key) is not None, f"the effect {key!r} was lost"
        if self._memory is not None:
            self._memory.check()

    def __repr__(self) -> str:
        return f"<Once, {self._effects} effects>"

    async def _perform(
        self, key: Hashable, effect: Callable[[str], Awaitable[Any]], offered: str
    ) -> Any:
        """Have the effect, unless it is known; in a flight of its own."""
        if key in self._unrecorded:
            return await self._complete(key, self._unrecorded[key])
        if self._under_way.setdefault(key, self) is not self:
            # To the store it looks like one that a crash has cut off, and might be had again.
            raise JournalLockedError(
                f"the effect {repr_of(key)} is under way in another open_once() of this journal; "
                "open one, around everything that shares it"
            )
        try:
            return await self._perform_alone(key, effect, offered)
        finally:
            del self._under_way[key]

    async def _perform_alone(
        self, key: Hashable, effect: Callable[[str], Awaitable[Any]], offered: str
    ) -> Any:
        recorded = await self._store.intend(key, offered)
        if recorded.state == "done":
            self._remembered += 1
            return recorded.value
        if recorded.state == "unknown":
            self._unknown += 1
            done = await self._find_out(key, recorded)
            if done is not None:
                return await self._complete(key, done.value)
        self._effects += 1
        idempotency_key = self._begun[key] = str(recorded.idempotency_key)
        self._cut_off.discard(key)
        no_report: str | None = None
        try:
            awaitable = effect(idempotency_key)
            if not isinstance(awaitable, Awaitable):
                no_report = "the function has run, and can't be awaited"
                raise not_awaitable_error(effect, awaitable)
            value = await awaitable
        except Exception as error:
            self._failed += 1
            if no_report is None and trio.current_effective_deadline() == -math.inf:
                no_report = "it was being cancelled when it raised this"
            if no_report is None:
                await self._fail(key, error)
            else:
                error.add_note(f"the effect {repr_of(key)} counts as unknown: {no_report}")
            del self._begun[key]
            raise
        except BaseException:
            self._cut_off.add(key)
            raise
        value = await self._complete(key, value)
        del self._begun[key]
        return value

    async def _complete(self, key: Hashable, value: Any) -> Any:
        # Whoever cancels now comes too late: it has taken place, and has to be known.
        recorded: Any = None
        with trio.CancelScope(shield=True):
            try:
                recorded = await self._store.complete(key, value)
            except Exception as error:
                self._begun.pop(key, None)
                self._unrecorded[key] = value
                error.add_note(
                    f"the effect {repr_of(key)} took place and could not be recorded; asked for "
                    "again in this block it is recorded without another effect, in a later "
                    "session it is unknown"
                )
                raise
        self._unrecorded.pop(key, None)
        return recorded

    async def _fail(self, key: Hashable, error: Exception) -> None:
        if self._on_error == "unknown":
            return
        try:
            with trio.CancelScope(shield=True):
                await self._store.fail(key, error)
        except Exception as not_recorded:
            # The effect's own error matters more; what can't be recorded stays unknown.
            error.add_note(
                f"that the effect {repr_of(key)} failed could not be recorded, so it counts as "
                f"unknown: {error_in_words(not_recorded)}"
            )

    async def _find_out(self, key: Hashable, recorded: RecordedEffect) -> Done | None:
        """Return what came of an effect with no known ending; None if it is to be had now."""
        on_unknown = self._on_unknown
        if on_unknown == "retry":
            return None
        if not callable(on_unknown):
            raise self._unknown_error(
                key, recorded.idempotency_key, "there is no record of how it ended"
            )
        answer = on_unknown(key, recorded.idempotency_key)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is not None and not isinstance(answer, Done):
            raise TypeError(
                f"the check function of open_once(on_unknown=...) returned {answer!r} for "
                f"{key!r}; return Done(value) if the effect has taken place, and None if it hasn't"
            )
        return answer

    def _unknown_error(self, key: Hashable, idempotency_key: str, why: str) -> EffectUnknownError:
        kept = ""
        if self._memory is None:
            # Or the advice before it is followed, and the kept failure comes back all the same.
            kept = (
                "; an item that failed with this in a batch with a journal runs again with "
                "retry_failed=True"
            )
        return EffectUnknownError(
            f"the effect {repr_of(key)} began with the idempotency key {idempotency_key!r}, and "
            f"{why}: it may have taken place or not. Look at its receiver; then open the once "
            'with on_unknown="retry" if the receiver honours the key, or with a function that '
            f"finds out{kept}",
            key,
            idempotency_key,
        )


@asynccontextmanager
async def open_once(
    journal: EffectStore | None = None,
    *,
    on_unknown: OnUnknown = "raise",
    on_error: Literal["retry", "unknown"] = "retry",
) -> AsyncGenerator[Once, None]:
    """Open a once: ``async with open_once(journal=journal) as once``, then ``await once(...)``.

    Open it around everything that shares it, one at a time for a journal. Leaving the block waits
    for the effects under way, also when the body raised; a cancel from outside reaches them.

    Args:
      journal: Where intentions and endings are recorded, before and after each effect. None:
        they are remembered until the block is left, all of them.
      on_unknown: What to do with an effect that began and has no known ending, after a crash for
        instance. ``"raise"``: `EffectUnknownError`; so an effect without a key is had at most
        once. ``"retry"``: have it again with the same idempotency key, for receivers that honour
        it. Or a function, plain or async, of key and idempotency key that finds out: it returns
        `Done` with the value, None if it hasn't taken place, or raises if that can't be said.
      on_error: What an effect that raised counts as. ``"retry"``: it reported that it failed, so
        the next call has it again with the same idempotency key. ``"unknown"``: it may have taken
        place all the same, so ``on_unknown`` decides.

    Raises:
      TypeError: if ``journal`` can't record effects.
      ValueError: if ``on_unknown`` or ``on_error`` is none of these.
      Exception: the body's own comes out as itself.

    Checkpoint: on exit.

    Cancellation: effects under way are cancelled; of those that end by it nobody knows whether
    they took place, and with a journal the next session is told so.
    """
    if journal is not None and not all(
        callable(getattr(journal, name, None)) for name in ("intend", "complete", "fail")
    ):
        raise TypeError(
            f"open_once(journal=...) takes a journal that records effects, not {journal!r}; "
            "open one with `async with harness.journal.open_journal(path)`"
        )
    if on_unknown not in ("raise", "retry") and not callable(on_unknown):
        raise ValueError(
            'open_once(on_unknown=...) takes "raise", "retry" or a function of key and '
            f"idempotency key, not {on_unknown!r}"
        )
    if on_error not in ("retry", "unknown"):
        raise ValueError(f'open_once(on_error=...) takes "retry" or "unknown", not {on_error!r}')
    once = Once(
        EffectsInMemory() if journal is None else journal, on_unknown=on_unknown, on_error=on_error
    )
    async with open_flights(once._flights, cut_off=False):
        yield once


def _keep_nothing(flight: Flight) -> None:
    """Leave what came of it to the store, which has it already."""
