"""Remember what was loaded for a time, and load each thing once for all concurrent callers.

The look-up comes before anything that a load needs: a hit takes no place in a limiter and spends no
budget. A load is a flight of the cache (`harness.shared._flights`): it belongs to no run, so the
run that happened to ask first doesn't own it. It does pay, if it has a budget.

Invariants: no more than ``size`` values are kept, the least recently used going first; a value is
handed out only while it is fresh; at most one load per key is in progress, not counting forgotten
ones.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, overload

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from harness._arguments import check_count, check_key, check_seconds
from harness._outside_trio import refuse_outside_trio
from harness._root_errors import budget_refusals
from harness.runs._functions import check_callable
from harness.shared._flights import CutOff, Flight, Flights, RefusedForAnother, open_flights
from harness.shared._landed import Landed

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_LOAD = "the load of"
_REFRESH = "the refresh of"

REFRESH_TRIES = 4
"""How often a failing refresh is tried before the value expires."""


@attrs.frozen(kw_only=True)
class CacheStatistics:
    """The state of a cache at one moment; counts are since the start."""

    entries: int
    """Values kept now, including expired ones that nobody has asked for since."""

    size: int
    """The most it keeps."""

    hits: int
    """Calls answered from the cache."""

    misses: int
    """Calls that started a load."""

    shared: int
    """Calls that waited for a load started by another."""

    failures: int
    """Loads, and refreshes, that raised."""

    refreshes: int
    """Loads started before a value expired, to refresh it."""

    abandoned: int
    """Loads cancelled because nobody was waiting for them any longer."""

    evicted: int
    """Values dropped to make room for others."""

    loading: int
    """Loads in progress now."""

    tasks_waiting: int
    """Tasks waiting for them now."""


@attrs.define(eq=False)
class _Entry:
    result: Landed
    expires_at: float
    refresh_at: float


class Cache:
    """Keeps what was loaded, for a time; made by `open_cache`, and usable inside its block."""

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
        self._flights: Flights | None = None
        self._hits = self._misses = self._shared = self._failures = 0
        self._refreshes = self._abandoned = self._evicted = 0

    @overload
    async def get(self, key: Hashable, load: Callable[[], Awaitable[V]]) -> V: ...
    @overload
    async def get(self, key: K, load: Callable[[K], Awaitable[V]]) -> V: ...

    async def get(self, key: Hashable, load: Callable[..., Awaitable[Any]]) -> Any:
        """Return the value for ``key``, loading it if it is missing or too old.

        If it is already being loaded, this waits for that load, and ``load`` isn't called. All
        callers get the same object: don't change it.

        Args:
          key: Anything hashable.
          load: An async function, called as ``load()``, or as ``load(key)`` if it has a parameter
            without a default. It runs with the context variables of this call, but in no run: it
            may go on for others when this caller's run is over. What it spends is charged to this
            caller's budgets.

        Raises:
          TypeError: if ``load`` isn't an async function, or ``key`` isn't hashable.
          SharedClosedError: if the cache's block was left or is cancelled.
          CircularWaitError: if a load asks for something that is waiting for that load.
          Exception: what the load raised. Each caller gets its own copy, if it can be copied.

        Checkpoint: always.

        Cancellation: others waiting for the same load are served. If there are none, the load is
        cancelled (even if it began as a refresh), and whoever asks next starts a new one once it
        has ended.
        """
        check_callable("cache.get()", load)
        check_key("cache.get()", key)
        flights = self._open_flights()
        await trio.lowlevel.checkpoint_if_cancelled()
        counted = False
        # Ends: it loops only after a load that was abandoned, or refused by another caller's
        # budget.
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
                call = without_arguments(load, key)
                flight = flights.start(key, call, kept=False, what=_LOAD)
                if not counted:
                    self._misses += 1
            else:
                # A refresh that outlasts the value becomes a load like any other: if it hangs, it
                # ends when its waiters give up, and the next is tried.
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
        """Drop the value for ``key``, and return whether there was one, or a load of one.

        A load in progress is finished for those waiting for it, but not kept: whoever asks from now
        on gets a new one.
        """
        check_key("cache.forget()", key)
        set_aside = self._flights is not None and self._flights.set_aside(key)
        return self._entries.pop(key, None) is not None or set_aside

    def statistics(self) -> CacheStatistics:
        """Return the current state of the cache. Frozen, and cheap."""
        flights = self._flights
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
            loading=0 if flights is None else flights.count,
            tasks_waiting=0 if flights is None else flights.waiters,
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
        if self._flights is not None:
            self._flights.check()

    def __repr__(self) -> str:
        return f"<Cache, {len(self._entries)} of {self._size}>"

    def _open_flights(self) -> Flights:
        assert self._flights is not None
        return self._flights

    def _fresh(self, key: Hashable) -> _Entry | None:
        """Return the entry if it is fresh, marking it as used last."""
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
            # Set before the load, so that the next hit doesn't restart a failing one.
            wait = self._refresh_after
            if self._ttl < math.inf:
                wait = min(wait, (self._ttl - wait) / REFRESH_TRIES)
            entry.refresh_at = now + wait
            flights.start(key, without_arguments(load, key), kept=True, what=_REFRESH)
            self._refreshes += 1

    def _landed(self, flight: Flight) -> None:
        """Keep the outcome of a load, if it should be kept."""
        result = flight.result
        if flight.abandoned:
            self._abandoned += 1
        if result is None:
            return
        ttl = self._ttl
        if result.error is not None:
            self._failures += 1
            if flight.what is _REFRESH and flight.key in self._entries:
                return  # The old value is still good until it expires.
            # That one caller can't pay doesn't answer the next.
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
@enable_ki_protection
async def open_cache(
    *,
    ttl: float | None = None,
    size: int = 1_024,
    refresh_after: float | None = None,
    failure_ttl: float = 0.0,
) -> AsyncGenerator[Cache, None]:
    """Open a cache: ``async with open_cache(ttl=60, size=1_000) as cache``.

    Open it around everything that shares it. Leaving the block cancels the loads in progress.

    Args:
      ttl: Seconds, on trio's clock, for which a value stays fresh after its load has ended. None:
        as long as the block lasts. 0: nothing is kept, but concurrent calls share a load.
      size: The most values to keep; the least recently used goes first.
      refresh_after: Seconds after which asking for a value also reloads it; the caller still gets
        the old one at once. If that fails, the old one is kept until it expires, and the load is
        tried a few more times. None: never.
      failure_ttl: Seconds for which a failed load is remembered, and its error raised again
        without a load. 0: not at all.

    Raises:
      TypeError: if an argument has the wrong type.
      ValueError: if one is out of bounds, or ``refresh_after`` isn't before ``ttl``.
      Exception: the body's own comes out unchanged.

    Checkpoint: on exit.

    Cancellation: loads in progress are cancelled, and waited for.
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
    refuse_outside_trio("open_cache() was called")
    cache = Cache(
        ttl=math.inf if ttl is None else float(ttl),
        size=size,
        refresh_after=math.inf if refresh_after is None else float(refresh_after),
        failure_ttl=float(failure_ttl),
    )
    async with open_flights("cache", cache._landed, cut_off=True) as flights:
        cache._flights = flights
        yield cache


def without_arguments(
    load: Callable[..., Awaitable[Any]], key: Hashable
) -> Callable[[], Awaitable[Any]]:
    """Return ``load`` as a function without parameters; it may take the key."""
    try:
        parameters = inspect.signature(load).parameters.values()
    except (TypeError, ValueError):  # A function written in C that doesn't say.
        return load
    wants_key = any(
        parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        for parameter in parameters
    )
    return (lambda: load(key)) if wants_key else load
