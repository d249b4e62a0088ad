"""What a cache loads belongs to the cache, and to no run."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import harness
from harness.budgets import budget_left, reserve_budget
from harness.errors import BudgetExceeded, SharedClosedError
from harness.limits import Limiter
from harness.runs._accounts import add_meter
from harness.shared import open_cache
from tests.shared.loads import Loader
from tests.support.context import planted, third_party, unchanged_context

# Whose it is -------------------------------------------------------------------------------------


async def test_a_load_belongs_to_no_run_and_has_the_context_of_the_call(
    autojump_clock: MockClock,
) -> None:
    seen: list[tuple[str, object]] = []

    async def load(key: str) -> str:
        seen.append((third_party.get(), harness.current_run_or_none()))
        third_party.set("changed by the load")
        await trio.lowlevel.checkpoint()
        return key

    async with open_cache(ttl=10, refresh_after=5) as cache:
        with unchanged_context():
            async with harness.open_run("first"):
                with planted("first call"):
                    await cache.get("a", load)
                with planted("second call"):
                    await cache.get("b", load)
                await trio.sleep(6)
                with planted("a hit"):
                    await cache.get("a", load)
                    await wait_all_tasks_blocked()
    assert seen == [("first call", None), ("second call", None), ("a hit", None)]


@pytest.mark.slow
async def test_a_load_pins_nothing_of_the_run_that_asked_first(
    autojump_clock: MockClock,
) -> None:
    class Deps:
        pass

    loader = Loader()
    async with open_cache(ttl=60) as cache:
        deps = Deps()
        gone = weakref.ref(deps)
        async with harness.open_run("first", deps=deps):
            del deps
            await cache.get("key", loader.load)
        gc.collect()
        assert gone() is None
        assert await cache.get("key", loader.load) == "value 1"


async def test_a_hit_takes_no_place_of_a_limiter_and_spends_no_budget(
    autojump_clock: MockClock,
) -> None:
    limiter = Limiter("model", requests_per_minute=1, concurrent=1)

    async def load() -> str:
        async with limiter.reserve():
            return "answer"

    async with open_cache() as cache:
        async with harness.open_run("job", budget=harness.Budget(tokens=10)):
            for _ in range(100):
                assert await cache.get("question", load) == "answer"
            assert budget_left().tokens == 10
        assert limiter.statistics().granted == 1
    assert trio.current_time() == 0


async def test_a_load_spends_from_the_budget_of_whoever_started_it(
    autojump_clock: MockClock,
) -> None:
    """Or a cache in front of the model would be a way around every budget."""
    tape: list[int] = []

    class Tape:
        def spent(self, tokens: int, cost_usd: float) -> None:
            tape.append(tokens)

    async def load(key: str) -> str:
        async with harness.open_run("asks the model"):
            with reserve_budget(tokens=40) as spending:
                await trio.sleep(1)
                spending.settle(tokens=30)
        with reserve_budget(tokens=5):
            return key

    async with open_cache() as cache:

        async def nested(key: str) -> str:
            return await cache.get(key + key, load)

        async with harness.open_run("outer", budget=harness.Budget(tokens=1_000)) as outer:
            add_meter(outer, Tape())
            async with harness.open_run("inner", budget=harness.Budget(tokens=100)):
                await cache.get("a", load)
                await cache.get("a", load)
                assert budget_left().tokens == 65
                await cache.get("b", nested)
                assert budget_left().tokens == 30
                with pytest.raises(BudgetExceeded, match=r"the budget of run 'outer/inner' has"):
                    await cache.get("c", load)
            assert budget_left().tokens == 930
            assert tape == [30, 5, 30, 5]
        await cache.get("c", load)  # Without a budget.


async def test_a_service_first_needed_by_a_load_does_not_spend_for_its_caller(
    autojump_clock: MockClock,
) -> None:
    """The first caller would pay for a lazily started worker forever, whoever its jobs are for."""
    send, receive = trio.open_memory_channel[harness.Run | None](2)
    left: dict[str, int | None] = {}

    async def job(name: str) -> None:
        left[name] = budget_left().tokens

    async with trio.open_nursery() as services, open_cache() as cache:

        async def worker() -> None:
            async for run in receive:
                harness.start_soon(services, job, "a job", run=run)
                left["worker"] = budget_left().tokens

        async def load() -> str:
            harness.start_soon(services, worker, run=None)
            async with harness.open_run("in the load") as inside, trio.open_nursery() as nursery:
                harness.start_soon(nursery, job, "in the load", run=inside)
                harness.start_soon(nursery, job, "for another", run=other)
            return "loaded"

        async with harness.open_run("other") as other:
            async with harness.open_run("first", budget=harness.Budget(tokens=100)):
                await cache.get("key", load)
            await send.send(other)
            await wait_all_tasks_blocked()
        send.close()
    assert left == {"in the load": 100, "for another": None, "worker": None, "a job": None}


async def test_a_refusal_for_one_is_no_answer_for_another(autojump_clock: MockClock) -> None:
    loads = 0

    async def load() -> str:
        nonlocal loads
        loads += 1
        await trio.sleep(1)
        with reserve_budget(tokens=50):
            return f"load {loads}"

    async with open_cache(failure_ttl=60) as cache:

        async def ask(tokens: int) -> None:
            async with harness.open_run("asks", budget=harness.Budget(tokens=tokens)):
                assert await cache.get("key", load) == "load 2"

        async def poor(item: int) -> str:
            return await cache.get("key", load)

        async with trio.open_nursery() as nursery:

            async def poor_runs() -> None:
                async with harness.open_run("poor", budget=harness.Budget(tokens=10)):
                    results = await harness.fan_out(
                        poor, range(10), limit=10, policy=harness.BestEffort()
                    )
                assert {type(result.error) for result in results} == {BudgetExceeded}

            nursery.start_soon(poor_runs)
            await wait_all_tasks_blocked()
            for _ in range(3):
                nursery.start_soon(ask, 100)
            await wait_all_tasks_blocked()
            assert loads == 1
        assert loads == 2, "all the poor share the first refusal, all the rich the second load"
        assert await cache.get("key", load) == "load 2"


async def test_a_group_of_refusals_is_no_answer_for_others_either(
    autojump_clock: MockClock,
) -> None:
    """A load of two calls at once may have both refused, and raises a group then."""

    async def call() -> None:
        with reserve_budget(tokens=50):
            pass

    async def load() -> str:
        await trio.sleep(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            nursery.start_soon(call)
        return "loaded"

    async with open_cache(failure_ttl=60) as cache:

        async def poor() -> None:
            async with harness.open_run("poor", budget=harness.Budget(tokens=10)):
                with pytest.raises(ExceptionGroup) as refused:
                    await cache.get("key", load)
                assert refused.group_contains(BudgetExceeded)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poor)
            await wait_all_tasks_blocked()
            async with harness.open_run("rich", budget=harness.Budget(tokens=100)):
                assert await cache.get("key", load) == "loaded"


# The block ---------------------------------------------------------------------------------------


async def test_leaving_the_block_cancels_loads_and_tells_who_waits(
    autojump_clock: MockClock,
) -> None:
    loader = Loader(seconds=100)

    async def wait_elsewhere() -> None:
        with pytest.raises(SharedClosedError, match="this cache was left"):
            await cache.get("key", loader.load)

    async with trio.open_nursery() as nursery:
        async with open_cache() as cache:
            harness.start_soon(nursery, wait_elsewhere, run=None)
            await wait_all_tasks_blocked()
    assert loader.cancelled == 1
    with pytest.raises(SharedClosedError):
        await cache.get("key", loader.load)
    assert trio.current_time() == 0


async def test_the_bodys_error_comes_out_as_itself(autojump_clock: MockClock) -> None:
    loader = Loader(seconds=100)
    with pytest.raises(ValueError, match="body") as raised:
        async with open_cache(refresh_after=0) as cache:
            with trio.move_on_after(150):
                await cache.get("key", loader.load)
            await cache.get("key", loader.load)
            raise ValueError("body")
    assert not hasattr(raised.value, "__notes__")
    with pytest.raises(ExceptionGroup, match="body") as group:
        async with open_cache():
            raise ExceptionGroup("body", [ValueError()])
    assert len(group.value.exceptions) == 1


async def test_an_outer_cancel_passes_and_a_load_in_cleanup_ends(
    autojump_clock: MockClock,
) -> None:
    loader = Loader()
    with trio.move_on_after(5) as scope:
        async with open_cache() as cache:
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    with pytest.raises(SharedClosedError, match="or cancelled"):
                        await cache.get("key", loader.load)
    assert scope.cancelled_caught
    assert trio.current_time() == 5


async def test_a_keyboard_interrupt_in_a_load_comes_out_of_the_block(
    autojump_clock: MockClock,
) -> None:
    async def load() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        async with open_cache() as cache:
            await cache.get("key", load)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ttl": -1}, "ttl"),
        ({"ttl": "1"}, "ttl"),
        ({"size": 0}, "size"),
        ({"size": None}, "size"),
        ({"failure_ttl": -1}, "failure_ttl"),
        ({"refresh_after": -1}, "refresh_after"),
        ({"ttl": 5, "refresh_after": 5}, "would never refresh ahead"),
    ],
)
async def test_arguments_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        async with open_cache(**arguments):
            raise AssertionError


async def test_a_key_has_to_be_one() -> None:
    loader = Loader()
    async with open_cache() as cache:
        with pytest.raises(TypeError, match=r"such as a string or a tuple .* not \[7\]"):
            await cache.get([7], loader.load)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match=r"such as a string or a tuple .* not \[7\]"):
            cache.forget([7])  # type: ignore[arg-type]
    assert loader.calls == 0
