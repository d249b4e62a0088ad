"""``Attempt(limiter=...)`` reserves once per attempt, and waiting for it is not work."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

import harness
from tests.fanout.probes import Boom, FakeLimiter, nap, nothing_left_behind, statuses

BEST_EFFORT = harness.BestEffort()


async def test_every_attempt_reserves_once(autojump_clock: MockClock) -> None:
    limiter = FakeLimiter(wait_seconds=1)
    calls: dict[int, int] = {}

    async def body(item: int) -> int:
        calls[item] = calls.get(item, 0) + 1
        assert limiter.granted - limiter.returned >= 1
        await trio.lowlevel.checkpoint()
        if calls[item] <= item:
            raise Boom
        return item

    each = harness.Attempt(
        limiter=limiter, tokens=100, retry=harness.Retry(3, first_delay=1, jitter=0)
    )
    with nothing_left_behind():
        results = await harness.fan_out(body, [0, 1, 2], each=each)
    assert [result.attempts for result in results] == [1, 2, 3]
    assert limiter.asked == [100] * 6
    assert (limiter.granted, limiter.returned) == (6, 6)


async def test_tokens_may_be_a_function_of_the_item_or_unsaid(autojump_clock: MockClock) -> None:
    limiter = FakeLimiter()
    each = harness.Attempt(limiter=limiter, tokens=lambda item: item * 10)
    await harness.fan_out(nap, [1, 2, 3], each=each, limit=1)
    assert limiter.asked == [10, 20, 30]
    limiter = FakeLimiter()
    await harness.fan_out(nap, [1], each=harness.Attempt(limiter=limiter))
    assert limiter.asked == [None]
    limiter = FakeLimiter()
    await harness.fan_out(nap, [1], each=harness.Attempt(limiter=limiter, tokens=0))
    assert limiter.asked == [0]


async def test_tokens_of_no_limiter_are_refused(autojump_clock: MockClock) -> None:
    """They were ignored once, and nothing was limited."""
    each = harness.Attempt(tokens=5)
    with pytest.raises(ValueError, match=r"fan_out\(each=...\).*tokens=5.*without a limiter"):
        await harness.fan_out(nap, [1], each=each)
    with pytest.raises(ValueError, match="open_fan_out"):
        harness.open_fan_out(nap, [1], each=each)
    limiter = FakeLimiter()
    await harness.fan_out(nap, [1], each=attrs.evolve(each, limiter=limiter))
    assert limiter.asked == [5], "it may get one later"

    results = await harness.fan_out(nap, [1, 2], each=lambda _: each, policy=BEST_EFFORT)
    assert statuses(results) == ["failed", "failed"]
    assert "without a limiter" in str(results[0].error)


async def test_the_timeout_starts_at_the_grant(autojump_clock: MockClock) -> None:
    each = harness.Attempt(limiter=FakeLimiter(wait_seconds=100), timeout=5)
    begin = trio.current_time()
    results = await harness.fan_out(nap, [1, 9], each=each, policy=BEST_EFFORT)
    assert statuses(results) == ["ok", "timed_out"]
    assert trio.current_time() - begin == 105


async def test_waiting_for_the_limiter_is_not_an_attempt(autojump_clock: MockClock) -> None:
    limiter = FakeLimiter(wait_seconds=100)
    called: list[int] = []

    async def body(item: int) -> None:
        called.append(item)

    with nothing_left_behind():
        [result] = await harness.fan_out(
            body, [1], each=harness.Attempt(limiter=limiter), within=50
        )
    assert (result.status, result.attempts, called) == ("cancelled", 0, [])
    assert (limiter.granted, limiter.returned) == (0, 0)


@pytest.mark.parametrize("way", ["failure", "timeout", "own cancel", "outer cancel"])
async def test_a_reservation_is_left_on_every_way_out(autojump_clock: MockClock, way: str) -> None:
    limiter = FakeLimiter(wait_seconds=1)

    async def body(item: int) -> None:
        if way == "failure":
            raise Boom
        if way == "own cancel":
            harness.current_run().cancel()
        await trio.sleep_forever()

    each = harness.Attempt(limiter=limiter, timeout=5 if way == "timeout" else None)
    with nothing_left_behind(), trio.move_on_after(20):
        await harness.fan_out(body, range(3), each=each, policy=BEST_EFFORT)
    assert (limiter.granted, limiter.returned) == (3, 3)


async def test_a_limiter_that_refuses_is_a_failure_of_the_item(autojump_clock: MockClock) -> None:
    class Refusing(FakeLimiter):
        def reserve(self, *, tokens: int | None = None, priority: float = 0) -> Any:
            raise Boom("quota exhausted")

    class RefusingLater(FakeLimiter):
        def reserve(self, *, tokens: int | None = None, priority: float = 0) -> Any:
            class Context:
                async def __aenter__(self) -> None:
                    await trio.sleep(1)
                    raise Boom("quota exhausted")

                async def __aexit__(self, *args: object) -> None: ...

            return Context()

    for limiter in (Refusing(), RefusingLater()):
        with nothing_left_behind():
            [result] = await harness.fan_out(
                nap, [1], each=harness.Attempt(limiter=limiter), policy=BEST_EFFORT
            )
        assert result.status == "failed"
        assert isinstance(result.error, Boom)


async def test_the_limiter_is_reserved_inside_the_items_run(autojump_clock: MockClock) -> None:
    """A limiter that looks for nested reservations must see whose it is."""
    paths: list[str] = []

    class Looks(FakeLimiter):
        def reserve(self, *, tokens: int | None = None, priority: float = 0) -> Any:
            paths.append(harness.current_run().path)
            return super().reserve(tokens=tokens, priority=priority)

    await harness.fan_out(
        nap, [1, 2], each=harness.Attempt(limiter=Looks()), name="nightly", limit=1
    )
    assert paths == ["nightly/0", "nightly/1"]


async def test_a_percentile_learns_from_the_grant(autojump_clock: MockClock) -> None:
    """The wait for the limiter says nothing about the provider.

    With it counted in, sixty quick answers that had queued for up to a minute taught the hedge that
    a minute is normal, and a straggler of fifty seconds was left alone.
    """

    class OnePerSecond:
        granted = 0

        @asynccontextmanager
        async def reserve(self, *, tokens: int | None = None) -> AsyncGenerator[object]:
            wait = self.granted - trio.current_time()
            self.granted += 1
            await trio.sleep(max(0, wait))
            yield object()

    calls: list[int] = []

    async def body(item: int) -> int:
        calls.append(item)
        # Each a little quicker than those before it, so that none of them is late.
        await trio.sleep(50 if len(calls) == 60 else 0.9 - len(calls) / 1_000)
        return item

    each = harness.Attempt(limiter=OnePerSecond(), hedge=harness.Hedge(percentile=0.95))
    results = await harness.fan_out(body, range(60), limit=60, each=each)
    assert results.complete
    assert results.summary().hedges == 1
    assert calls[59:] == [calls[59]] * 2, "the straggler got a second attempt"
    assert 60 < trio.current_time() < 62
