"""Remember what was loaded, for a time, and load each thing once for all who ask at once.

The look-up comes before everything that a load needs: a hit takes no place of a limiter and
spends no budget. A load is a flight of the cache (`harness.shared._flights`): it belongs to no run,
so the run that happened to ask first doesn't own it. It does pay, if it has a budget.

Invariants: no more than ``size`` values are kept, the least recently used going first; a value is
handed out only while it is fresh; at most one load per key is under way, except beside one that
was forgotten meanwhile.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, overload

import attrs
import trio

from harness._arguments import check_count, check_key, check_seconds
from harness._root_errors import budget_refusals
from harness.runs._functions import check_callable
from harness.shared._flights import CutOff, Flight, Flights, RefusedForAnother, open_flights
from harness.shared._landed import Landed

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_LOAD = "the load of"
_REFRESH = "the refresh of"

REFRESH_TRIES = 4
"""How often a refresh that fails is tried before the value expires."""


@attrs.frozen(kw_only=True)
class CacheStatistics:
    """A cache at one moment; the counts are since the start."""

    entries: int
    """Values kept now, those that have expired and were not asked for since included."""

    size: int
    """The most that are kept."""

    hits: int
    """Calls answered with what was kept."""

    misses: int
    """Calls that started a load."""

    shared: int
    """Calls that waited for a load which another had started."""

    failures: int
    """Loads, and refreshes, that raised."""

    refreshes: int
    """Loads that were started ahead of the end of a value's time."""

    abandoned: int
    """Loads that were cancelled because nobody waited for them any more."""

    evicted: int
    """Values that had to go for others."""

    loading: int
    """Loads under way now."""

    tasks_waiting: int
    """Tasks that wait for them now."""


@attrs.define(eq=False)
class _Entry:
    result: Landed
    expires_at: float
    refresh_at: float


class Cache:
    """What was loaded, for a time; made by `open_cache`, and usable inside its block."""

    def __init__(
        self,
        *,
        ttl: float,
        size: int,
        refresh_after: float,
        failure_ttl: float,
    ) -> None:
        self._ttl = ttl
        self._size = size
        self._refresh_after = refresh_after
        self._failure_ttl = failure_ttl
        self._entries: dict[Hashable, _Entry] = {}  # The least recently used first.
        self._flights = Flights("cache", self._landed)
        self._hits = self._misses = self._shared = self._failures = 0
        self._refreshes = self._abandoned = self._evicted = 0

    @overload
    async def get(self, key: Hashable, load: Callable[[], Awaitable[V]]) -> V: ...
    @overload
    async def get(self, key: K, load: Callable[[K], Awaitable[V]]) -> V: ...

    async def get(self, key: Hashable, load: Callable[..., Awaitable[Any]]) -> Any:
        """Return the value for ``key``, loading it if it isn't there, or too old.

        If a load of it is under way, this waits for that one and ``load`` is not called. All
        callers get the same object: don't change it.

        Args:
          key: Anything hashable.
          load: An async function, called as ``load()``, or as ``load(key)`` if it has a parameter
            without a default. It runs with the context variables of this call, and in no run: it
            may go on for others when this caller's run is over. What it spends is on the budgets
            of this caller.

        Raises:
          TypeError: if ``load`` is no async function, or ``key`` not hashable.
          SharedClosedError: if the cache's block was left or is cancelled.
          CircularWaitError: if a load asks for what waits for itself.
          Exception: what the load raised. Each caller has its own copy, where that can be made.

        Checkpoint: always.

        Cancellation: others who wait for the same load are served. If there are none, the load is
        cancelled (also if it began as a refresh), and whoever asks next starts it anew once it has
        ended.
        """
        check_callable("cache.get()", load)
        check_key("cache.get()", key)
        flights = self._flights
        await trio.lowlevel.checkpoint_if_cancelled()
        counted = False
        # Ends: it goes round only after a load that was abandoned, or that a budget of another
        # caller refused.
        while True:
            flights.refuse_if_closed()
            entry = self._fresh(key)
            if entry is not None:
                if not counted:
                    self._hits += 1
                self._refresh_ahead(flights, key, entry, load)
                await trio.lowlevel.cancel_shielded_checkpoint()
                return entry.result.get()
            flight = flights.find(key)
            if flight is None:
                call = _without_arguments(load, key)
                flight = flights.start(key, call, kept=False, what=_LOAD)
                if not counted:
                    self._misses += 1
            else:
                # A refresh that outlasts the value is a load like any other from now on: if it
                # hangs, it ends with those who gave up waiting, and the next is tried.
                flight.kept = False
                if not counted:
                    self._shared += 1
            counted = True
            try:
                return await flights.join(flight)
            except RefusedForAnother:
                pass
            except CutOff:
                if not flight.abandoned:
                    raise flights.closed_error() from None

    def forget(self, key: Hashable) -> bool:
        """Drop the value for ``key``, and say whether there was one, or a load of one.

        A load under way is finished for those who wait for it, but not kept: whoever asks from now
        on gets a new one.
        """
        check_key("cache.forget()", key)
        set_aside = self._flights.set_aside(key)
        return self._entries.pop(key, None) is not None or set_aside

    def statistics(self) -> CacheStatistics:
        """Return the cache at this moment. Frozen, and cheap."""
        return CacheStatistics(
            entries=len(self._entries),
            size=self._size,
            hits=self._hits,
            misses=self._misses,
            shared=self._shared,
            failures=self._failures,
            refreshes=self._refreshes,
            abandoned=self._abandoned,
            evicted=self._evicted,
            loading=self._flights.count,
            tasks_waiting=self._flights.waiters,
        )

    def check(self) -> None:
        """Check the cache's invariants, for tests.

        Raises:
          AssertionError: if one is broken.
        """
        assert len(self._entries) <= self._size, f"{self!r} keeps more than {self._size}"
        for key, entry in self._entries.items():
            kept_for = self._ttl if entry.result.error is None else self._failure_ttl
            assert kept_for > 0, f"{self!r} keeps {key!r}, which it shouldn't"
        self._flights.check()

    def __repr__(self) -> str:
        return f"<Cache, {len(self._entries)} of {self._size}>"

    def _fresh(self, key: Hashable) -> _Entry | None:
        """Return the entry if it is fresh, as the one used last."""
        entry = self._entries.pop(key, None)
        if entry is None or entry.expires_at <= trio.current_time():
            return None
        self._entries[key] = entry
        return entry

    def _refresh_ahead(
        self,
        flights: Flights,
        key: Hashable,
        entry: _Entry,
        load: Callable[..., Awaitable[Any]],
    ) -> None:
        now = trio.current_time()
        if entry.refresh_at <= now and flights.find(key) is None:
            # Set before the load, so that one that fails isn't begun anew by the next hit.
            wait = self._refresh_after
            if self._ttl < math.inf:
                wait = min(wait, (self._ttl - wait) / REFRESH_TRIES)
            entry.refresh_at = now + wait
            flights.start(key, _without_arguments(load, key), kept=True, what=_REFRESH)
            self._refreshes += 1

    def _landed(self, flight: Flight) -> None:
        """Keep what came of a load, if it is to be kept."""
        result = flight.result
        if flight.abandoned:
            self._abandoned += 1
        if result is None:
            return
        ttl = self._ttl
        if result.error is not None:
            self._failures += 1
            if flight.what is _REFRESH and flight.key in self._entries:
                return  # What was there is still good until its time is over.
            # What one caller can't pay for is no answer for the next.
            ttl = 0.0 if budget_refusals(result.error) else self._failure_ttl
        if ttl <= 0:
            return
        now = trio.current_time()
        refresh_at = math.inf if result.error is not None else now + self._refresh_after
        self._entries.pop(flight.key, None)
        self._entries[flight.key] = _Entry(result, now + ttl, refresh_at)
        if len(self._entries) > self._size:
            del self._entries[next(iter(self._entries))]
            self._evicted += 1


@asynccontextmanager
async def open_cache(
    *,
    ttl: float | None = None,
    size: int = 1_024,
    refresh_after: float | None = None,
    failure_ttl: float = 0.0,
) -> AsyncGenerator[Cache, None]:
    """Open a cache: ``async with open_cache(ttl=60, size=1_000) as cache``.

    Open it around everything that shares it. Leaving the block cancels the loads under way.

    Args:
      ttl: Seconds, of trio's clock, for which a value is fresh after its load has ended. None:
        as long as the block lasts. 0: nothing is kept, and calls at the same time share a load.
      size: The most values that are kept; the least recently used goes first.
      refresh_after: Seconds after which a value that is asked for is loaded anew, while whoever
        asks still gets the old one at once. If that fails the old one is kept to the end of its
        time, and the load is tried a few times more. None: never.
      failure_ttl: Seconds for which a failed load is remembered, and its error raised again
        without a load. 0: not at all.

    Raises:
      TypeError: if an argument has the wrong type.
      ValueError: if one is out of bounds, or ``refresh_after`` not before ``ttl``.
      Exception: the body's own comes out as itself.

    Checkpoint: on exit.

    Cancellation: loads under way are cancelled, and waited for.
    """
    if ttl is not None:
        check_seconds("open_cache(ttl=...)", ttl, advice="None keeps values to the end")
    check_count("open_cache(size=...)", size, advice="it bounds the memory")
    check_seconds("open_cache(failure_ttl=...)", failure_ttl, advice="0 forgets failures at once")
    if refresh_after is not None:
        check_seconds("open_cache(refresh_after=...)", refresh_after, advice="None is for never")
        if ttl is not None and refresh_after >= ttl:
            raise ValueError(
                f"open_cache(ttl={ttl:g}, refresh_after={refresh_after:g}) would never refresh "
                "ahead: a value is gone after its ttl; choose a refresh_after below it"
            )
    cache = Cache(
        ttl=math.inf if ttl is None else float(ttl),
        size=size,
        refresh_after=math.inf if refresh_after is None else float(refresh_after),
        failure_ttl=float(failure_ttl),
    )
    async with open_flights(cache._flights, cut_off=True):
        yield cache


def _without_arguments(
    load: Callable[..., Awaitable[Any]], key: Hashable
) -> Callable[[], Awaitable[Any]]:
    """Return ``load`` as a function without parameters; it may want the key."""
    try:
        parameters = inspect.signature(load).parameters.values()
    except (TypeError, ValueError):  # A function of C that doesn't say.
        return load
    wants_key = any(
        parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        for parameter in parameters
    )
    return (lambda: load(key)) if wants_key else load
