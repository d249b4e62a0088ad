"""Of many waiting for one load of a cache, any may leave, and none waits for itself."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

import harness
from harness.errors import CircularWaitError
from harness.shared import open_cache
from tests.shared.loads import Loader
from tests.support.checkpoints import cancel_at_every_checkpoint

# Who waits, and who leaves -----------------------------------------------------------------------


async def test_cancelling_the_first_caller_leaves_the_others_served(
    autojump_clock: MockClock,
) -> None:
    loader = Loader()
    got: list[str] = []

    async def ask() -> None:
        got.append(await cache.get("key", loader.load))

    async with open_cache() as cache:
        async with trio.open_nursery() as nursery:
            async with harness.open_run("first") as first:
                async with trio.open_nursery() as inner:
                    inner.start_soon(ask)
                    await wait_all_tasks_blocked()
                    for _ in range(3):
                        harness.start_soon(nursery, ask, run=None)
                    await wait_all_tasks_blocked()
                    first.cancel("enough")
            assert first.status == "cancelled"
            assert loader.under_way == 1
        assert got == ["value 1"] * 3
        assert loader.calls == 1


async def test_a_load_that_nobody_waits_for_is_cancelled(autojump_clock: MockClock) -> None:
    loader = Loader(seconds=10)
    async with open_cache() as cache:
        with trio.move_on_after(1):
            await cache.get("key", loader.load)
        await wait_all_tasks_blocked()
        assert (loader.under_way, loader.cancelled) == (0, 1)
        statistics = cache.statistics()
        assert (statistics.abandoned, statistics.entries, statistics.loading) == (1, 0, 0)
        cache.check()


async def test_who_asks_while_an_abandoned_load_ends_gets_a_new_one(
    autojump_clock: MockClock,
) -> None:
    """The old one may need time to end, and two loads of one key at once were not asked for."""
    ended_at = 0.0

    async def slow_to_end() -> str:
        nonlocal ended_at
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(5)
            ended_at = trio.current_time()
        raise AssertionError

    async def quick() -> str:
        assert trio.current_time() == ended_at > 0
        return "quick"

    async with open_cache() as cache:
        with trio.move_on_after(1):
            await cache.get("key", slow_to_end)
        results = await harness.fan_out(lambda item: cache.get("key", quick), range(5), limit=5)
        assert list(results.values()) == ["quick"] * 5
        statistics = cache.statistics()
        assert (statistics.misses, statistics.shared, statistics.abandoned) == (1, 5, 1)


async def test_an_abandoned_load_that_fails_is_no_answer_for_who_asks_next(
    autojump_clock: MockClock,
) -> None:
    """It failed because it was cancelled, by others who don't matter any more."""
    loads = 0

    async def load() -> str:
        nonlocal loads
        loads += 1
        if loads == 1:
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                with trio.CancelScope(shield=True):
                    await trio.sleep(2)
                raise OSError("can't say goodbye to a server that is gone") from None
        return f"value {loads}"

    async with open_cache(failure_ttl=60) as cache:
        with trio.move_on_after(1):
            await cache.get("key", load)
        assert await cache.get("key", load) == "value 2"
        assert trio.current_time() == 3
        statistics = cache.statistics()
        assert (statistics.abandoned, statistics.failures) == (1, 0)
        cache.check()


async def test_cancelled_at_every_checkpoint_the_others_are_served(
    autojump_clock: MockClock,
) -> None:
    loader = Loader()
    served = 0
    async with open_cache(ttl=0) as cache:

        async def ask_beside_another() -> None:
            nonlocal served
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(cache.get, "key", loader.load)
                await cache.get("key", loader.load)

        async def bystander() -> None:
            nonlocal served
            assert (await cache.get("key", loader.load)).startswith("value")
            served += 1

        async def with_bystander() -> None:
            harness.start_soon(outside, bystander, run=None)
            await ask_beside_another()

        async def nothing_held() -> None:
            await trio.sleep(10)
            assert cache.statistics().tasks_waiting == cache.statistics().loading == 0
            assert loader.under_way == 0
            cache.check()

        rounds = 0

        async def counted() -> None:
            nonlocal rounds
            rounds += 1
            await with_bystander()

        async with trio.open_nursery() as outside:
            cut = await cancel_at_every_checkpoint(counted, nothing_held)
        assert cut >= 3
        assert served == rounds


async def test_alone_and_cancelled_at_every_checkpoint_nothing_is_left(
    autojump_clock: MockClock,
) -> None:
    loader = Loader()
    async with open_cache(ttl=0) as cache:

        async def nothing_held() -> None:
            await wait_all_tasks_blocked()
            assert cache.statistics().tasks_waiting == cache.statistics().loading == 0
            cache.check()

        cut = await cancel_at_every_checkpoint(lambda: cache.get("key", loader.load), nothing_held)
        assert cut >= 1


async def test_get_is_always_a_checkpoint() -> None:
    async def load() -> int:
        return 1

    async with open_cache() as cache:
        for _ in range(2):
            with assert_checkpoints():
                await cache.get("key", load)
        with trio.move_on_after(0) as scope:
            await cache.get("key", load)
        assert scope.cancelled_caught


async def test_a_dump_says_what_is_waited_for(autojump_clock: MockClock) -> None:
    loader = Loader()
    async with open_cache() as cache:
        async with harness.open_run("job") as run:
            async with trio.open_nursery() as nursery:

                async def look() -> None:
                    await wait_all_tasks_blocked()
                    assert run.waiting_for == "the load of 'key'"

                nursery.start_soon(look)
                await cache.get("key", loader.load)


# Circles -----------------------------------------------------------------------------------------


async def test_a_load_that_waits_for_itself_is_refused(autojump_clock: MockClock) -> None:
    async with open_cache() as cache:

        async def load_a() -> str:
            return await cache.get("b", load_b)

        async def load_b() -> str:
            await trio.sleep(1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cache.get, "a", load_a)
            return "b"

        with pytest.raises(
            CircularWaitError,
            match="the load of 'b' would wait for itself: the load of 'a' which waits for",
        ):
            await cache.get("a", load_a)
        with pytest.raises(ExceptionGroup) as both:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cache.get, "b", load_b)
                await cache.get("a", load_a)
        assert both.group_contains(CircularWaitError)
        cache.check()


async def test_a_service_started_by_a_load_is_no_part_of_a_circle(
    autojump_clock: MockClock,
) -> None:
    """The worker waits for b, which waits for a; but a doesn't wait for the worker."""
    got: list[str] = []
    async with trio.open_nursery() as services, open_cache() as cache:

        async def worker() -> None:
            got.append(await cache.get("b", load_b))

        async def load_a() -> str:
            harness.start_soon(services, worker, run=None)
            await trio.sleep(1)
            return "a"

        async def load_b() -> str:
            return await cache.get("a", load_a) + "b"

        with trio.fail_after(10):
            assert await cache.get("a", load_a) == "a"
            await wait_all_tasks_blocked()
    assert got == ["ab"]


async def test_a_task_of_a_run_in_a_load_is_part_of_a_circle(autojump_clock: MockClock) -> None:
    """The run waits for its tasks, and the load for its run."""
    async with trio.open_nursery() as services, open_cache() as cache:

        async def ask_for_itself() -> None:
            with pytest.raises(CircularWaitError):
                await cache.get("a", load)

        async def load() -> str:
            async with harness.open_run("in the load") as run:
                harness.start_soon(services, ask_for_itself, run=run)
            return "a"

        with trio.fail_after(10):
            assert await cache.get("a", load) == "a"


async def test_who_gave_up_waiting_for_another_load_is_no_part_of_a_circle(
    autojump_clock: MockClock,
) -> None:
    async with open_cache() as cache:

        async def load_a() -> str:
            with trio.move_on_after(1):
                await cache.get("b", load_b)
            await trio.sleep(5)
            return "a"

        async def load_b() -> str:
            await trio.sleep(3)
            return "b after " + await cache.get("a", load_a)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cache.get, "a", load_a)
            assert await cache.get("b", load_b) == "b after a"


async def test_loads_may_ask_for_others(autojump_clock: MockClock) -> None:
    async with open_cache() as cache:

        async def fibonacci(n: int) -> int:
            await trio.lowlevel.checkpoint()
            if n < 2:
                return n
            sums: list[int] = []

            async def add(m: int) -> None:
                sums.append(await cache.get(m, fibonacci))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(add, n - 1)
                nursery.start_soon(add, n - 2)
            return sum(sums)

        assert await cache.get(60, fibonacci) == 1548008755920
        assert cache.statistics().misses == 61
