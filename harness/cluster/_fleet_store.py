"""Share counters, budgets, effects and what was loaded among processes, on a Redis server.

What a process works on, an effect or a load, it holds by a lease, which is renewed while it lives.
A dead process's lease ends, and then the others know.
"""

from __future__ import annotations

import json
import uuid
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import trio

from harness._arguments import check_seconds, check_whole
from harness._budget import Budget
from harness._words import repr_of
from harness.cluster._courier import Courier
from harness.cluster._fleet_budget import FleetBudget, FleetKeeper
from harness.errors import CounterBoundsError, HarnessWarning, SharedClosedError
from harness.shared import Cache, RecordedEffect, open_cache
from harness.shared._cache import without_arguments
from harness.shared._idempotency_keys import words_of_key

V = TypeVar("V")

_LOOK_SECONDS = 0.05
"""How often to look for what another process does. Nobody is told."""

_LARGEST = 2**53
"""The server counts in floating point, which is exact up to here."""

_COUNT = """
local known = redis.call('GET', KEYS[2])
if known then return {string.match(known, '(%S+) (%S+)')} end
local value = tonumber(redis.call('GET', KEYS[1]) or ARGV[1])
local new = value + tonumber(ARGV[4])
local fits = (ARGV[2] == '' or new >= tonumber(ARGV[2])) and
  (ARGV[3] == '' or new <= tonumber(ARGV[3]))
if fits then redis.call('SET', KEYS[1], string.format('%.0f', new)) else new = value end
local answer = {fits and 'yes' or 'no', string.format('%.0f', new)}
if ARGV[4] ~= '0' then redis.call('SET', KEYS[2], table.concat(answer, ' '), 'PX', '60000') end
return answer
"""

# An effect is a hash: its state, its idempotency key, its value, who carries it out, until when,
# and the state that it had before. One that is unknown is left to a single process to look into.
_INTEND = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local e = redis.call('HMGET', KEYS[1], 'state', 'key', 'value', 'owner', 'until', 'was')
local state = e[1] or 'new'
if state == 'done' then return {'done', e[2], e[3]} end
if state == 'unknown' then
  if e[4] == ARGV[2] then return {e[6], e[2], ''} end
  if tonumber(e[5]) > now then return {'busy', e[2], ''} end
end
local key = e[2] or ARGV[1]
redis.call('HSET', KEYS[1], 'state', 'unknown', 'key', key, 'owner', ARGV[2],
  'was', state, 'until', string.format('%.6f', now + tonumber(ARGV[3])))
return {state, key, ''}
"""
# What took place stays so, whoever says it. That it failed counts from the one that has it only.
_END = """
local e = redis.call('HMGET', KEYS[1], 'state', 'value', 'owner')
if e[1] == 'done' then return {e[2]} end
if ARGV[1] == 'failed' and e[3] ~= ARGV[3] then return {''} end
redis.call('HSET', KEYS[1], 'state', ARGV[1], 'value', ARGV[2], 'owner', '')
return {ARGV[2]}
"""
_LET_GO_OF_EFFECT = """
if redis.call('HGET', KEYS[1], 'owner') == ARGV[1] then
  redis.call('HSET', KEYS[1], 'until', '0')
end
return {'ok'}
"""
_RENEW_EFFECT = """
local time = redis.call('TIME')
if redis.call('HGET', KEYS[1], 'owner') == ARGV[1] then
  redis.call('HSET', KEYS[1], 'until', string.format('%.6f', time[1] + tonumber(ARGV[2])))
end
return {'ok'}
"""

# A value that is loaded is a string, beside it a string that says who loads it.
_LOOK_UP = """
local value = redis.call('GET', KEYS[1])
if value then return {'value', value} end
local owner = redis.call('GET', KEYS[2])
if owner and owner ~= ARGV[1] then return {'busy'} end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return {'load'}
"""
_LOADED = """
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return {'ok'} end
redis.call('DEL', KEYS[2])
if ARGV[2] ~= '' then redis.call('SET', KEYS[1], ARGV[2]) end
if ARGV[3] ~= '' then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return {'ok'}
"""
_RENEW_LOAD = """
if redis.call('GET', KEYS[2]) == ARGV[1] then redis.call('PEXPIRE', KEYS[2], ARGV[2]) end
return {'ok'}
"""
_FORGET = """
return {tostring(redis.call('DEL', KEYS[1], KEYS[2]))}
"""


class FleetStore(Courier):
    """State that processes share on purpose, on a Redis server.

    Budgets, and counters, effects and caches as those of `harness.shared`, for all that open a
    store of the same name on the same server::

        async with FleetStore("redis://host", "nightly") as store:
            async with harness.open_run("nightly", budget=store.budget("june", cost_usd=50)):
                ...
            async with open_once(store.effects("refunds")) as once:
                ...

    What it keeps is as safe as the server: one without a disk forgets it when it is started again.

    Args:
      where: The address of a Redis server, or of a node of a cluster, as for `FleetLimiter`.
      name: Names the state, apart from that of others on the server.
      lease: After how many seconds without a word a process counts as dead.

    Raises:
      TypeError, ValueError: if ``where`` is no such address, or ``lease`` isn't above 0.1.
      ImportError: without the extra ``redis``.

    Entering raises:
      ConnectionError: if the server can't be used.

    Checkpoint: entering and leaving always are one.

    Cancellation: entering leaves nothing open.
    """

    _written = "FleetStore(...) as store"

    def counter(
        self, name: str, initial: int = 0, *, minimum: int | None = 0, maximum: int | None = None
    ) -> FleetCounter:
        """Return a counter that all processes share, such as a budget.

        Args:
          name: Names it within the store.
          initial: The value that it begins with, for whoever comes first.
          minimum: The value never falls below it; None for no bound.
          maximum: The value never rises above it; None for no bound.

        Raises:
          TypeError: if one of the numbers isn't whole.
          ValueError: if ``initial`` is out of bounds, or a number is too large to be counted.
        """
        return FleetCounter(self, name, initial, minimum=minimum, maximum=maximum)

    def budget(
        self, name: str, *, tokens: int | None = None, cost_usd: float | None = None
    ) -> FleetBudget:
        """Return a budget that all processes share: ``open_run("x", budget=store.budget(...))``.

        It bounds what is spent in all runs that were given it, in all processes. Models reserve
        from it as from any `harness.Budget`; other code writes ``async with reserve_budget(...)``.
        What a process held when it died counts as spent. Each process keeps to the limit that it
        states, so a larger one can be given to those that come later.

        Args:
          name: Names it within the store; what is spent under a name stays spent.
          tokens: As for `harness.Budget`.
          cost_usd: As for `harness.Budget`.

        Raises:
          TypeError, ValueError: as `harness.Budget`, and if one is too large to be counted.
        """
        stated = Budget(tokens=tokens, cost_usd=cost_usd)
        keeper = FleetKeeper(self, name, stated)
        return FleetBudget(tokens=tokens, cost_usd=cost_usd, keeper=keeper)

    def effects(self, name: str) -> FleetEffects:
        """Return where the effects of `harness.shared.open_once` are recorded for all processes.

        Args:
          name: Names them within the store.
        """
        return FleetEffects(self, name)

    @asynccontextmanager
    async def open_cache(
        self, name: str, *, ttl: float | None = None
    ) -> AsyncGenerator[FleetCache, None]:
        """Open a cache that all processes share: ``async with store.open_cache("pages") as cache``.

        Args:
          name: Names it within the store.
          ttl: Seconds for which a value stays fresh. None: until it is forgotten.

        Checkpoint: on exit.

        Cancellation: loads in progress are cancelled, and waited for.
        """
        if ttl is not None:
            check_seconds("open_cache(ttl=...)", ttl, advice="None keeps values until forgotten")
        async with open_cache(ttl=0) as flights:
            yield FleetCache(self, name, flights, ttl=ttl)

    def __repr__(self) -> str:
        return f"<FleetStore {self.name!r} at {self._address}>"


class FleetCounter:
    """A whole number that processes share: atomic and bounded; made by `FleetStore.counter`.

    A `harness.shared.AwaitedCounter`: like a `Counter`, but each call asks the server.
    """

    def __init__(
        self,
        store: Courier,
        name: str,
        initial: int,
        *,
        minimum: int | None,
        maximum: int | None,
    ) -> None:
        for bound in (initial, minimum, maximum):
            _checked("FleetStore.counter()", bound or 0)
        if (minimum is not None and initial < minimum) or (
            maximum is not None and initial > maximum
        ):
            raise ValueError(
                f"counter({name!r}, {initial}) is not within {minimum} and {maximum}; choose a "
                "value and bounds that fit each other"
            )
        self._store = store
        self._name = name
        self._bounds = (initial, *("" if one is None else one for one in (minimum, maximum)))
        self._maximum = maximum

    async def read(self) -> int:
        """Return the value now.

        Raises:
          ConnectionError: if the server can't be reached for 10 s.

        Checkpoint: always.

        Cancellation: changes nothing.
        """
        _, value = await self._change(0)
        return value

    async def add(self, n: int = 1) -> int:
        """Change the value by ``n``, which may be negative, and return the new value.

        Raises:
          TypeError: if ``n`` is not a whole number.
          CounterBoundsError: if the value would leave its bounds. Nothing is changed then.
          ConnectionError: if the server can't be reached for 10 s. It may have been changed then.

        Checkpoint: always.

        Cancellation: at its first checkpoint, nothing was changed; after that, it isn't cut off.
        """
        fits, value = await self._change(_checked("FleetCounter.add(n)", n))
        if not fits:
            raise CounterBoundsError(
                f"adding {n} to the counter {self._name!r} at {value} would break its bounds; add "
                "less, or spend with try_spend(), which says no instead"
            )
        return value

    async def try_spend(self, n: int = 1) -> bool:
        """Take ``n`` away if that much is there, and return whether it was.

        Raises:
          TypeError: if ``n`` is not a whole number.
          ValueError: if it is negative.
          ConnectionError: if the server can't be reached for 10 s. It may be spent then.

        Checkpoint: always.

        Cancellation: at its first checkpoint, nothing was spent; after that, it isn't cut off.
        """
        if _checked("FleetCounter.try_spend(n)", n) < 0:
            raise ValueError(f"FleetCounter.try_spend() takes an amount from 0 upwards, not {n}")
        fits, _ = await self._change(-n)
        return fits

    async def wait_for(self, n: int) -> int:
        """Wait until the value is at least ``n``, and return it. Takes nothing.

        It looks every 50 ms. By the time this returns, another process may have spent it.

        Raises:
          TypeError: if ``n`` is not a whole number.
          ValueError: if it is above the maximum; the wait would never end.
          ConnectionError: if the server can't be reached for 10 s.

        Checkpoint: always.

        Cancellation: nothing was taken in any case.
        """
        _checked("FleetCounter.wait_for(n)", n)
        if self._maximum is not None and n > self._maximum:
            raise ValueError(
                f"waiting for {n} on a counter whose maximum is {self._maximum} would never end"
            )
        while (value := await self.read()) < n:  # noqa: ASYNC110 - ends when others add.
            await trio.sleep(_LOOK_SECONDS)
        return value

    async def _change(self, n: int) -> tuple[bool, int]:
        keys = (
            self._store.key("counter", self._name, "value"),
            self._store.key("counter", self._name, "call", uuid.uuid4().hex),
        )
        fits, value = await self._store.call(_COUNT, *keys, arguments=(*self._bounds, n))
        return fits == "yes", int(value)

    def __repr__(self) -> str:
        return f"<FleetCounter {self._name!r}>"


class FleetEffects:
    """Where the effects of a once are recorded for all processes; made by `FleetStore.effects`.

    An `harness.shared.EffectStore`. While one process carries out an effect, the others wait for
    it; if it dies, the effect is unknown once its lease has ended. Keys need words that are the
    same in every process, and values must be what JSON can hold.
    """

    def __init__(self, store: Courier, name: str) -> None:
        self._store = store
        self._name = name
        self._numbers: dict[str, str] = {}
        self.effects_under_way: dict[Hashable, object] = _UnderWay(self._let_go)
        """Whose each effect in progress is, in this process."""

    async def intend(self, key: Any, idempotency_key: str) -> RecordedEffect:
        """Record that the effect is about to begin, and return what was known about it before."""
        where = self._key(key)
        number = uuid.uuid4().hex
        while True:  # Ends when the process that carries it out has ended it, or is dead.
            state, kept, value = await self._store.call(
                _INTEND, where, arguments=(idempotency_key, number, self._store.lease)
            )
            if state != "busy":
                break
            await trio.sleep(_LOOK_SECONDS)
        if state != "done":
            self._numbers[where] = number
            renewal = (number, self._store.lease)
            self._store.renew(number, _RENEW_EFFECT, where, arguments=renewal)
        return RecordedEffect(
            state=state,  # type: ignore[arg-type]
            idempotency_key=kept,
            value=json.loads(value) if state == "done" else None,
        )

    async def complete(self, key: Any, value: Any) -> Any:
        """Record that the effect came back with ``value``; return it as others will see it."""
        return json.loads(await self._end(key, "done", json.dumps(value)))

    async def fail(self, key: Any, error: Exception) -> None:
        """Record that the effect reported ``error``, so that the next call may try again."""
        await self._end(key, "failed", "")

    async def _end(self, key: Any, state: str, value: str) -> str:
        where = self._key(key)
        number = self._numbers.get(where, "")
        (recorded,) = await self._store.call(_END, where, arguments=(state, value, number))
        self._store.done_with(self._numbers.pop(where, ""))
        return recorded

    def _let_go(self, key: Hashable) -> None:
        """Leave an effect without a known ending to others."""
        where = self._key(key)
        if (number := self._numbers.pop(where, None)) is not None:
            self._store.done_with(number)
            self._store.post(_LET_GO_OF_EFFECT, where, arguments=(number,))

    def _key(self, key: Any) -> str:
        return self._store.key("effects", self._name, _words("an effect", key))


class _UnderWay(dict[Hashable, object]):
    """Says which effect is not under way any more, however that ended."""

    def __init__(self, ended: Callable[[Hashable], None]) -> None:
        super().__init__()
        self._ended = ended

    def __delitem__(self, key: Hashable) -> None:
        super().__delitem__(key)
        self._ended(key)


class FleetCache:
    """Keeps what was loaded for all processes; made by `FleetStore.open_cache`.

    Like a `harness.shared.Cache`: a value is loaded once, by one task of one process, and the
    others wait for it. Keys need words that are the same in every process, and values must be what
    JSON can hold. Without the server each process loads for itself, with a `HarnessWarning`.
    """

    def __init__(self, store: Courier, name: str, flights: Cache, *, ttl: float | None) -> None:
        self._store = store
        self._name = name
        self._flights = flights
        self._ttl = "" if ttl is None else str(max(1, round(ttl * 1_000)))
        self._has_warned = False

    async def get(self, key: Hashable, load: Callable[..., Awaitable[V]]) -> V:
        """Return the value for ``key``, loading it if no process has it.

        Args:
          key: Anything whose words are the same in every process.
          load: An async function, called as ``load()``, or as ``load(key)`` if it has a parameter
            without a default.

        Raises:
          TypeError: if ``load`` isn't an async function, the key has no such words, or JSON can't
            hold the value.
          SharedClosedError: if the cache's block was left.
          Exception: what the load raised.

        Checkpoint: always.

        Cancellation: as for `harness.shared.Cache.get`; other processes then load for themselves.
        """
        keys = self._keys(key)
        without_key = without_arguments(load, key)

        async def look_or_load() -> V:
            return await self._look_or_load(keys, without_key)

        return await self._flights.get(key, look_or_load)

    async def forget(self, key: Hashable) -> bool:
        """Drop the value for ``key`` everywhere, and return whether there was one, or a load of it.

        Raises:
          ConnectionError: if the server can't be reached for 10 s.

        Checkpoint: always.

        Cancellation: at its first checkpoint, nothing was dropped; after that, it isn't cut off.
        """
        self._flights.forget(key)
        (dropped,) = await self._store.call(_FORGET, *self._keys(key))
        return dropped != "0"

    async def _look_or_load(self, keys: tuple[str, str], load: Callable[[], Awaitable[V]]) -> V:
        number = uuid.uuid4().hex
        lease = max(1, round(self._store.lease * 1_000))
        try:
            while True:  # Ends when the process that loads it has it, gives up, or is dead.
                found, *value = await self._store.call(_LOOK_UP, *keys, arguments=(number, lease))
                if found != "busy":
                    break
                await trio.sleep(_LOOK_SECONDS)
        except ConnectionError as error:
            self._warn(error)
            return await load()
        if found == "value":
            return json.loads(value[0])  # type: ignore[no-any-return]
        self._store.renew(number, _RENEW_LOAD, *keys, arguments=(number, lease))
        words = ""
        try:
            loaded = await load()
            words = json.dumps(loaded)
            return json.loads(words)  # type: ignore[no-any-return]
        finally:
            self._store.done_with(number)
            with trio.CancelScope(shield=True), suppress(ConnectionError, SharedClosedError):
                await self._store.call(_LOADED, *keys, arguments=(number, words, self._ttl))

    def _keys(self, key: Hashable) -> tuple[str, str]:
        words = _words("a cached value", key)
        return self._store.key("cache", self._name, words), self._store.key(
            "cache", self._name, words, "load"
        )

    def _warn(self, error: ConnectionError) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"the cache {self._name!r} does without other processes: {error}",
                HarnessWarning,
                stacklevel=2,
            )


def _checked(name: str, value: object) -> int:
    number = check_whole(name, value, advice="count in the smallest unit, such as cents")
    if abs(number) > _LARGEST:
        raise ValueError(f"{name} takes whole numbers up to 2 ** 53, not {number}")
    return number


def _words(what: str, key: Hashable) -> str:
    words = words_of_key(key)
    if words is None:
        raise TypeError(
            f"the key of {what} has to be the same in every process, and {repr_of(key)} isn't; use "
            "a string, a number, or a tuple of them"
        )
    return words
