"""A cache loads once for all who ask at once, forgets in time, and belongs to no run."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

import harness
from harness.errors import BudgetExceeded, CircularWaitError, SharedClosedError
from harness.limits import Limiter
from harness.runs._accounts import add_meter
from harness.shared import Cache, budget_left, open_cache, reserve_budget
from tests.scale import scaled
from tests.support.checkpoints import cancel_at_every_checkpoint
from tests.support.context import planted, third_party, unchanged_context


class Loader:
    """Loads take a second, are counted, and tell which load it was."""

    def __init__(self, *, fail: bool = False, seconds: float = 1.0) -> None:
        self.calls = 0
        self.under_way = 0
        self.cancelled = 0
        self.fail = fail
        self.seconds = seconds

    async def load(self) -> str:
        self.calls += 1
        number = self.calls
        self.under_way += 1
        assert self.under_way == 1, "two loads of one key at once"
        try:
            await trio.sleep(self.seconds)
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.under_way -= 1
        if self.fail:
            error = OSError(f"failure {number}")
            error.add_note("noted by the load")
            raise error from KeyError("cause")
        return f"value {number}"


async def test_a_hundred_misses_make_one_call(autojump_clock: MockClock) -> None:
    loader = Loader()
    async with open_cache(ttl=60) as cache:
        results = await harness.fan_out(
            lambda item: cache.get("key", loader.load), range(100), limit=100
        )
        assert list(results.values()) == ["value 1"] * 100
        assert loader.calls == 1
        assert await cache.get("key", loader.load) == "value 1"
        statistics = cache.statistics()
        assert (statistics.misses, statistics.shared, statistics.hits) == (1, 99, 1)
        assert (statistics.loading, statistics.tasks_waiting, statistics.entries) == (0, 0, 1)
        cache.check()


async def test_other_keys_are_loaded_side_by_side(autojump_clock: MockClock) -> None:
    async def load(key: int) -> int:
        await trio.sleep(1)
        return key * 2

    async with open_cache() as cache:
        results = await harness.fan_out(lambda key: cache.get(key, load), range(10), limit=10)
        assert list(results.values()) == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]
    assert trio.current_time() == 1


async def test_a_load_may_take_the_key_or_nothing(autojump_clock: MockClock) -> None:
    async def nothing() -> str:
        return "nothing"

    async def the_key(key: str) -> str:
        return f"for {key}"

    async def a_default(other: str = "default") -> str:
        return other

    class Store:
        async def fetch(self, key: str) -> str:
            return f"fetched {key}"

    async with open_cache() as cache:
        assert await cache.get("a", nothing) == "nothing"
        assert await cache.get("b", the_key) == "for b"
        assert await cache.get("c", a_default) == "default"
        assert await cache.get("d", Store().fetch) == "fetched d"
        assert await cache.get("e", partial(the_key, "given")) == "for given"
        with pytest.raises(TypeError, match="an async function, not 5"):
            await cache.get("f", 5)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="expected"):
            await cache.get("g", lambda: 5)  # type: ignore[arg-type, return-value]
        with pytest.raises(TypeError, match="unhashable"):
            await cache.get([], nothing)  # type: ignore[call-overload]


# Time and size -----------------------------------------------------------------------------------


async def test_a_value_is_fresh_for_its_ttl_on_trios_clock(autojump_clock: MockClock) -> None:
    loader = Loader()
    async with open_cache(ttl=60) as cache:
        assert await cache.get("key", loader.load) == "value 1"
        await trio.sleep(59.5)
        assert await cache.get("key", loader.load) == "value 1"
        await trio.sleep(0.5)
        assert await cache.get("key", loader.load) == "value 2"
        assert cache.statistics().entries == 1


async def test_with_a_ttl_of_nought_only_calls_at_once_share(autojump_clock: MockClock) -> None:
    loader = Loader()
    async with open_cache(ttl=0) as cache:
        for number in (1, 2):
            results = await harness.fan_out(
                lambda item: cache.get("key", loader.load), range(5), limit=5
            )
            assert list(results.values()) == [f"value {number}"] * 5
        assert cache.statistics().entries == 0
        cache.check()


async def test_the_least_recently_used_goes_first() -> None:
    loaded: list[str] = []

    async def load(key: str) -> str:
        loaded.append(key)
        return key

    async with open_cache(size=2) as cache:
        for key in ("a", "b", "a", "c", "a", "b"):
            assert await cache.get(key, load) == key
        assert loaded == ["a", "b", "c", "b"]
        assert cache.statistics().evicted == 2
        assert cache.statistics().entries == 2
        cache.check()


async def test_what_was_forgotten_is_loaded_anew_and_an_older_load_does_not_bring_it_back(
    autojump_clock: MockClock,
) -> None:
    calls = 0

    async def load() -> int:
        nonlocal calls
        calls += 1
        number = calls
        await trio.sleep(5 if number == 1 else 1)
        return number

    async with open_cache() as cache:
        assert not cache.forget("key")
        seen: list[int] = []

        async def ask() -> None:
            seen.append(await cache.get("key", load))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(1)
            assert cache.forget("key")
            nursery.start_soon(ask)
        assert seen == [2, 1]
        assert await cache.get("key", load) == 2
        assert cache.forget("key")
        assert await cache.get("key", load) == 3
        cache.check()


# Refresh ahead -----------------------------------------------------------------------------------


async def test_a_value_is_refreshed_ahead_without_anybody_waiting(
    autojump_clock: MockClock,
) -> None:
    loader = Loader()
    async with open_cache(ttl=60, refresh_after=40) as cache:
        assert await cache.get("key", loader.load) == "value 1"
        await trio.sleep(40)
        before = trio.current_time()
        for _ in range(3):
            assert await cache.get("key", loader.load) == "value 1"
        assert trio.current_time() == before
        await trio.sleep(2)
        assert await cache.get("key", loader.load) == "value 2"
        await trio.sleep(58)  # The first would be gone by now.
        assert await cache.get("key", loader.load) == "value 2"
        assert cache.statistics().refreshes == 2
        assert cache.statistics().misses == 1


async def test_a_refresh_that_fails_leaves_the_old_value_and_is_not_tried_at_every_hit(
    autojump_clock: MockClock,
) -> None:
    loader = Loader(seconds=0.1)
    async with open_cache(ttl=60, refresh_after=40, failure_ttl=5) as cache:
        await cache.get("key", loader.load)
        loader.fail = True
        await trio.sleep(40)
        for _ in range(19):
            assert await cache.get("key", loader.load) == "value 1"
            await trio.sleep(1)
        assert cache.statistics().refreshes == 4
        assert cache.statistics().failures == 4
        await trio.sleep(1)
        with pytest.raises(OSError, match="failure"):
            await cache.get("key", loader.load)


async def test_the_run_that_starts_a_refresh_does_not_wait_for_it(
    autojump_clock: MockClock,
) -> None:
    loader = Loader(seconds=10)
    async with open_cache(ttl=60, refresh_after=0) as cache:
        await cache.get("key", loader.load)
        with trio.fail_after(1):
            async with harness.open_run("short"):
                assert await cache.get("key", loader.load) == "value 1"
        await trio.sleep(11)
        assert loader.cancelled == 0
        assert await cache.get("key", loader.load) == "value 2"


async def test_a_refresh_that_hangs_does_not_keep_its_key_from_being_loaded(
    autojump_clock: MockClock,
) -> None:
    """Whoever comes to wait for it, the value being too old by then, may end it by giving up."""
    loads = 0

    async def load() -> str:
        nonlocal loads
        loads += 1
        if loads == 2:
            await trio.sleep_forever()
        return f"value {loads}"

    async with open_cache(ttl=60, refresh_after=40) as cache:
        await cache.get("key", load)
        await trio.sleep(55)
        for _ in range(10):
            assert await cache.get("key", load) == "value 1"
        await trio.sleep(6)  # What was there is too old by now.
        async with trio.open_nursery() as nursery:
            for seconds in (1, 2):
                nursery.start_soon(_gives_up, cache, load, seconds)
        with trio.fail_after(60):
            assert await cache.get("key", load) == "value 3"
        assert cache.statistics().abandoned == 1
        cache.check()


async def _gives_up(cache: Cache, load: Callable[[], Awaitable[str]], seconds: float) -> None:
    with trio.move_on_after(seconds) as scope:
        await cache.get("key", load)
    assert scope.cancelled_caught


# Failures ----------------------------------------------------------------------------------------


async def test_a_failure_reaches_all_who_wait_and_is_not_kept(autojump_clock: MockClock) -> None:
    """Each waiter raises its own copy: one exception in a hundred tasks gathers all their notes."""
    loader = Loader(fail=True)
    async with open_cache(ttl=60) as cache:
        results = await harness.fan_out(
            lambda item: cache.get("key", loader.load),
            range(100),
            limit=100,
            policy=harness.BestEffort(),
            name="many",
        )
        errors = [result.error for result in results]
        assert all(isinstance(error, OSError) for error in errors)
        assert len({id(error) for error in errors}) == 100
        for number, error in enumerate(errors):
            assert error is not None
            assert error.args == ("failure 1",)
            assert error.__notes__ == ["noted by the load", f"in run many/{number}"]
            assert isinstance(error.__cause__, KeyError)
            traceback, depth, frames = error.__traceback__, 0, set()
            while traceback is not None:
                frames.add(traceback.tb_frame.f_code.co_name)
                traceback, depth = traceback.tb_next, depth + 1
            assert "load" in frames, "it says where it was raised first"
            assert depth < 20
        loader.fail = False
        assert await cache.get("key", loader.load) == "value 2"
        assert cache.statistics().failures == 1


async def test_failures_are_kept_if_asked_for(autojump_clock: MockClock) -> None:
    loader = Loader(fail=True)
    async with open_cache(failure_ttl=10) as cache:
        for _ in range(5):
            with pytest.raises(OSError, match="failure 1"):
                await cache.get("key", loader.load)
        cache.check()
        await trio.sleep(10)
        with pytest.raises(OSError, match="failure 2"):
            await cache.get("key", loader.load)


class KeepsMore(Exception):
    """As those of HTTP clients: its constructor wants what is not in ``args``."""

    def __init__(self, text: str, *, response: object) -> None:
        super().__init__(f"error of the server: {text}")
        self.response = response


class KeepsItInSlots(Exception):
    __slots__ = ("code",)

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


async def test_every_caller_has_an_error_of_its_own_with_all_that_it_keeps(
    autojump_clock: MockClock,
) -> None:
    """A shared one gathers the notes of all runs that it fails."""
    response = object()

    async def ask(load: Callable[[], Awaitable[object]]) -> None:
        async with harness.open_run("asks"):
            await cache.get(load, load)

    async with open_cache() as cache:
        for error in (
            KeepsMore("busy", response=response),
            KeepsItInSlots("busy", 7),
            FileNotFoundError(2, "busy", "a file"),
        ):

            async def load(error: Exception = error) -> None:
                await trio.lowlevel.checkpoint()
                raise error

            results = await harness.fan_out(ask, [load] * 3, limit=3, policy=harness.BestEffort())
            errors = [result.error for result in results]
            assert len({id(own) for own in errors}) == 3
            for own in errors:
                assert own is not None
                assert (type(own), own.args, str(own)) == (type(error), error.args, str(error))
                for name in ("response", "code", "filename", "errno"):
                    assert getattr(own, name, None) == getattr(error, name, None)
                assert len(own.__notes__) == 1, "of its own run"


async def test_an_error_that_cannot_be_copied_is_raised_as_it_is(
    autojump_clock: MockClock,
) -> None:
    class Strict(OSError):
        def __init__(self, *, code: int) -> None:
            super().__init__(code, f"code {code}")

    cause = KeyError("cause")
    error = Strict(code=7)

    async def load() -> None:
        raise error from cause

    async with open_cache(failure_ttl=60) as cache:
        depths = []
        for _ in range(3):
            with pytest.raises(Strict) as raised:
                await cache.get("key", load)
            assert raised.value is error
            assert raised.value.__cause__ is cause
            depths.append(len(raised.traceback))
        assert depths[0] >= depths[1] == depths[2], "its traceback doesn't grow"


async def test_a_group_of_one_error_is_that_error(autojump_clock: MockClock) -> None:
    async def fail() -> None:
        raise OSError("inside")

    async def load() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            nursery.start_soon(trio.sleep_forever)

    async with open_cache() as cache:
        with pytest.raises(OSError, match="inside"):
            await cache.get("key", load)


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
    """A lazily started worker would be paid by the first caller for ever, whoever its jobs are."""
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


# Whatever is done --------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["get", "get", "get", "cancel", "sleep", "forget", "break", "mend"]),
        st.integers(0, 5),
    ),
    min_size=10,
    max_size=80,
)


@given(
    seed=st.integers(0, 2**32),
    steps=STEPS,
    ttl=st.sampled_from([None, 0, 2, 10]),
    size=st.integers(1, 4),
    failure_ttl=st.sampled_from([0, 3]),
)
def test_what_is_handed_out_is_fresh_and_of_its_key_whatever_is_done(
    seed: int, steps: list[tuple[str, int]], ttl: float | None, size: int, failure_ttl: float
) -> None:
    trio.run(
        partial(_random_use, seed, steps, ttl, size, failure_ttl),
        clock=MockClock(autojump_threshold=0),
    )


async def _random_use(
    seed: int, steps: list[tuple[str, int]], ttl: float | None, size: int, failure_ttl: float
) -> None:
    rng = random.Random(seed)
    broken = False
    under_way: dict[int, int] = {}
    forgotten: dict[int, float] = {}
    scopes: list[trio.CancelScope] = []
    answered = 0
    asked = 0

    async def load(key: int) -> tuple[int, float, float]:
        began = trio.current_time()
        under_way[key] = under_way.get(key, 0) + 1
        if forgotten.get(key, -1.0) < 0:
            assert under_way[key] == 1
        try:
            await trio.sleep(rng.choice([0, 0.5, 1]))
            if broken:
                raise OSError(key, trio.current_time())
        finally:
            under_way[key] -= 1
        return key, began, trio.current_time()

    async def ask(key: int, scope: trio.CancelScope) -> None:
        nonlocal answered
        asked_at = trio.current_time()
        with scope:
            failed_at: float | None = None
            try:
                got, began, loaded_at = await cache.get(key, load)
            except OSError as error:
                got, failed_at = error.args
            assert got == key
            if failed_at is not None:
                assert failed_at >= asked_at or failed_at + failure_ttl > asked_at
            else:
                assert ttl is None or loaded_at >= asked_at or loaded_at + ttl > asked_at
                assert began >= forgotten.get(key, -1.0) or asked_at <= forgotten[key]
        answered += 1

    async with open_cache(ttl=ttl, size=size, failure_ttl=failure_ttl) as cache:
        async with trio.open_nursery() as nursery:
            for kind, number in steps * scaled(1, full=5):
                if kind == "get":
                    asked += 1
                    scopes.append(trio.CancelScope())
                    nursery.start_soon(ask, number, scopes[-1])
                elif kind == "cancel" and scopes:
                    scopes.pop(number % len(scopes)).cancel()
                elif kind == "sleep":
                    await trio.sleep(number / 2)
                elif kind == "forget":
                    await wait_all_tasks_blocked()
                    cache.forget(number)
                    forgotten[number] = trio.current_time()
                else:
                    broken = kind == "break"
                if rng.random() < 0.5:
                    await wait_all_tasks_blocked()
                cache.check()
        assert answered == asked
        await wait_all_tasks_blocked()
        assert cache.statistics().loading == cache.statistics().tasks_waiting == 0
        cache.check()
