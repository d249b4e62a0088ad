"""A cache loads once for all concurrent callers, and forgets in time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.shared import Cache, open_cache
from tests.shared.loads import Loader


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
    """Like those of HTTP clients: its constructor wants what isn't in ``args``."""

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
