"""What processes share on a server: counters, effects and caches. On a virtual clock."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from benchmarks._lua_redis import LuaLink, LuaRedis
from harness.cluster import FleetStore
from harness.errors import (
    CounterBoundsError,
    EffectUnknownError,
    HarnessWarning,
    SharedClosedError,
)
from harness.shared import AwaitedCounter, Counter, awaited, open_once
from tests.support.redis_server import RedisServer


@pytest.fixture
def redis(autojump_clock: MockClock) -> LuaRedis:
    return LuaRedis(lambda: 1_790_000_000 + autojump_clock.current_time())


def store_on(
    redis: LuaRedis, *, lease: float = 10.0, delay: Callable[[], float] = lambda: 0.001
) -> FleetStore:
    store = FleetStore("redis://user:secret@lua:1", "s", lease=lease)
    store._make_link = lambda: LuaLink(redis, delay)
    return store


@pytest.mark.slow
async def test_many_spend_what_there_is_and_no_more(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    spent: list[bool] = []
    async with store_on(redis) as one, store_on(redis) as other:
        counters = [store.counter("budget", 10, maximum=20) for store in (one, other)]

        async def spend(number: int) -> None:
            spent.append(await counters[number % 2].try_spend())

        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(spend, number)
        assert sum(spent) == 10
        assert await counters[0].read() == 0
        with pytest.raises(CounterBoundsError, match="adding 21 to the counter 'budget' at 0"):
            await counters[0].add(21)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(counters[0].wait_for, 5)
            await trio.sleep(3)
            assert await counters[1].add(5) == 5


async def test_the_same_function_takes_a_counter_of_one_process_or_of_many(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    async def use(counter: AwaitedCounter) -> list[int]:
        assert not await counter.try_spend(4)
        assert await counter.try_spend()
        with pytest.raises(CounterBoundsError):
            await counter.add(9)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(counter.wait_for, 5)
            await trio.sleep(1)
            return [await counter.add(3), await counter.read(), await counter.wait_for(5)]

    async with store_on(redis) as store:
        assert await use(store.counter("n", 3, maximum=9)) == [5, 5, 5]
    assert await use(awaited(Counter(3, maximum=9))) == [5, 5, 5]
    with pytest.raises(TypeError, match=r"takes a harness\.shared\.Counter, not 3"):
        awaited(3)  # type: ignore[arg-type]


async def test_a_change_whose_answer_is_lost_is_made_once(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    class LosesAnswers(LuaLink):
        async def run(
            self, script: str, keys: Sequence[str], arguments: Sequence[str]
        ) -> list[str]:
            answer = await super().run(script, keys, arguments)
            lost.append(len(keys))
            if len(keys) == 2 and len(lost) % 3:
                raise ConnectionError("the answer is lost")
            return answer

    lost: list[int] = []
    store = store_on(redis)
    store._make_link = lambda: LosesAnswers(redis)
    async with store:
        counter = store.counter("n")
        assert [await counter.add(2) for _ in range(5)] == [2, 4, 6, 8, 10]
    assert len(lost) > 5


async def test_a_change_isnt_cut_off(autojump_clock: MockClock, redis: LuaRedis) -> None:
    async with store_on(redis, delay=lambda: 0.4) as store:
        counter = store.counter("n", 1)
        with trio.move_on_after(0.2) as scope:
            spent = await counter.try_spend()
        assert spent
        with trio.CancelScope() as scope:
            scope.cancel()
            await counter.add()
        assert scope.cancelled_caught
        assert await counter.read() == 0


@pytest.mark.slow
async def test_an_effect_takes_place_once_in_all_processes(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    carried_out: list[str] = []

    async def effect(idempotency_key: str) -> dict[str, int]:
        carried_out.append(idempotency_key)
        await trio.sleep(60)  # Longer than the lease, which is renewed.
        return {"paid": 1}

    @asynccontextmanager
    async def process() -> AsyncGenerator[Any]:
        async with store_on(redis) as store, open_once(store.effects("pay")) as once:
            yield once

    async with process() as one, process() as other, trio.open_nursery() as nursery:
        nursery.start_soon(one, "ada", effect)
        await trio.sleep(1)
        assert await other("ada", effect) == {"paid": 1}
        assert trio.current_time() < 61
    async with process() as later:
        assert await later("ada", effect) == {"paid": 1}
        await later("bob", effect, idempotency_key="chosen")
    assert len(carried_out) == 2
    assert carried_out[1] == "chosen"


async def test_an_effect_that_failed_may_be_tried_again_elsewhere(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    keys: list[str] = []

    async def effect(idempotency_key: str) -> str:
        keys.append(idempotency_key)
        if len(keys) == 1:
            raise OSError("not now")
        return "done"

    async with store_on(redis) as one, store_on(redis) as other:
        async with (
            open_once(one.effects("pay")) as first,
            open_once(other.effects("pay")) as second,
        ):
            with pytest.raises(OSError, match="not now"):
                await first("ada", effect)
            assert await second("ada", effect) == "done"
    assert keys[0] == keys[1]


async def test_the_effect_of_a_dead_process_is_unknown_after_its_lease(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    async def never(idempotency_key: str) -> None:
        raise AssertionError

    async with store_on(redis, lease=5) as one:
        effects = one.effects("pay")
        assert (await effects.intend("ada", "k")).state == "new"
        one._renewals.clear()  # It dies.
        died_at = trio.current_time()
        async with store_on(redis, lease=5) as other, open_once(other.effects("pay")) as once:
            with pytest.raises(EffectUnknownError, match="'k'"):
                await once("ada", never)
        assert 4 < trio.current_time() - died_at < 6


async def test_an_effect_without_a_known_ending_is_unknown_at_once(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    """Whose process lives on, and has a lease that it might renew for ever."""

    async def fails(idempotency_key: str) -> None:
        raise OSError("a time-out")

    async def unsendable(idempotency_key: str) -> object:
        return object()

    async def never(idempotency_key: str) -> None:
        raise AssertionError

    async with store_on(redis, lease=50) as one, store_on(redis) as other:
        async with (
            open_once(one.effects("pay"), on_error="unknown") as first,
            open_once(other.effects("pay")) as second,
        ):
            for key, effect, raises in (("a", fails, OSError), ("b", unsendable, TypeError)):
                with pytest.raises(raises):
                    await first(key, effect)
                for _ in range(2):
                    with pytest.raises(EffectUnknownError), trio.fail_after(1):
                        await second(key, never)


async def test_an_unknown_effect_is_tried_again_by_one_process_at_a_time(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    carried_out: list[str] = []

    async def effect(idempotency_key: str) -> str:
        carried_out.append(idempotency_key)
        await trio.sleep(20)  # Longer than the lease, which is renewed.
        return f"at {trio.current_time():.0f}"

    async with store_on(redis, lease=5) as one, store_on(redis, lease=5) as other:
        stale = one.effects("pay")
        await stale.intend("ada", "k")
        one._renewals.clear()  # It is stopped.
        async with (
            open_once(one.effects("pay"), on_unknown="retry") as first,
            open_once(other.effects("pay"), on_unknown="retry") as second,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(first, "ada", effect)
            nursery.start_soon(second, "ada", effect)
            await trio.sleep(10)
            await stale.fail("ada", OSError("woken up too late"))
        assert carried_out == ["k"]
        told = await stale.complete("ada", "woken up far too late")
        assert told.startswith("at ")


@pytest.mark.slow
async def test_a_value_is_loaded_once_for_all_processes(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    loads: list[int] = []
    got: list[Any] = []

    async def load(key: int) -> list[int]:
        loads.append(key)
        await trio.sleep(20)  # Longer than the lease, which is renewed.
        return [key]

    async with store_on(redis) as one, store_on(redis) as other:
        async with (
            one.open_cache("pages", ttl=60) as here,
            other.open_cache("pages", ttl=60) as there,
        ):

            async def get(number: int) -> None:
                got.append(await (here, there)[number % 2].get(7, load))

            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(get, number)
            assert got == [[7]] * 20
            assert len(loads) == 1
            await trio.sleep(61)
            assert await here.get(7, load) == [7]
            assert await there.forget(7)
            assert not await there.forget(7)
            assert await here.get(7, load) == [7]
            assert len(loads) == 3


async def test_a_load_that_fails_or_is_cancelled_leaves_it_to_the_next(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    async def fails() -> int:
        raise OSError("no page")

    async def hangs() -> int:
        return await trio.sleep_forever()

    async def load() -> int:
        return 1

    async with store_on(redis) as one, store_on(redis) as other:
        async with one.open_cache("pages") as here, other.open_cache("pages") as there:
            with pytest.raises(OSError, match="no page"):
                await here.get("a", fails)
            with trio.move_on_after(1):
                await here.get("a", hangs)
            began = trio.current_time()
            assert await there.get("a", load) == 1
            assert trio.current_time() - began < 1
            for wrong in (object(), [1]):
                with pytest.raises(TypeError):
                    await there.get(wrong, load)


async def test_without_the_server_a_cache_goes_on_and_a_counter_says_so(
    autojump_clock: MockClock, redis: LuaRedis
) -> None:
    async def load() -> int:
        return 1

    async with store_on(redis) as store, store.open_cache("pages") as cache:
        counter = store.counter("n", 3)
        redis.is_down = True
        with pytest.warns(HarnessWarning, match="does without other processes"):
            assert await cache.get("a", load) == 1
        with pytest.raises(ConnectionError, match=r"can't be used at redis://lua:1: .*is down"):
            await counter.add()
        redis.is_down = False
        assert await counter.add() == 4
    with pytest.raises(SharedClosedError, match="not open"):
        await counter.add()
    redis.is_down = True
    with pytest.raises(ConnectionError, match="is down"):
        async with store_on(redis):
            pass


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: FleetStore("counters", "s"), "the address of a Redis server must be"),
        (lambda: FleetStore("redis://h", "s", lease=0), "lease"),
        (lambda: FleetStore("redis://h", "s").counter("n", -1), "not within 0 and None"),
        (lambda: FleetStore("redis://h", "s").counter("n", 2**60), r"up to 2 \*\* 53"),
    ],
)
def test_bad_arguments_are_refused(wrong: Callable[[], Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        wrong()


@pytest.mark.real_clock
@pytest.mark.slow
async def test_a_real_server_keeps_it(redis_server: RedisServer, name: str) -> None:
    async def load() -> str:
        return "page"

    async def effect(idempotency_key: str) -> str:
        return idempotency_key

    async with FleetStore(redis_server.address, name) as store:
        counter = store.counter("n", 5)
        assert await counter.add(-2) == 3
        assert not await counter.try_spend(4)
        async with open_once(store.effects("pay")) as once:
            key = await once("ada", effect)
            assert await once("ada", effect) == key
        async with store.open_cache("pages", ttl=60) as cache:
            assert await cache.get("a", load) == await cache.get("a", load) == "page"
            assert await cache.forget("a")
