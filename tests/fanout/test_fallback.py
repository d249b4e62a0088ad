"""``Attempt(fallback=...)`` replaces a final failure with an answer that is marked degraded."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError, RunTimedOut
from tests.fanout.probes import Boom, OtherError, leaves, nothing_left_behind, statuses

BEST_EFFORT = harness.BestEffort()


async def fails(item: int) -> int:
    """Fail after a checkpoint."""
    await trio.lowlevel.checkpoint()
    raise Boom(item)


@pytest.mark.parametrize("kind", ["plain", "async", "callable object"])
async def test_a_fallback_may_be_plain_or_async(autojump_clock: MockClock, kind: str) -> None:
    seen: list[tuple[int, Any]] = []

    def plain(item: int, error: BaseException) -> str:
        seen.append((item, error))
        return f"guess {item}"

    async def slow(item: int, error: BaseException) -> str:
        await trio.sleep(2)
        return plain(item, error)

    class Guess:
        async def __call__(self, item: int, error: BaseException) -> str:
            return await slow(item, error)

    fallback: Any = {"plain": plain, "async": slow, "callable object": Guess()}[kind]
    with nothing_left_behind():
        results: Any = await harness.fan_out(fails, [7], each=harness.Attempt(fallback=fallback))
    [result] = results
    assert (result.status, result.value, result.degraded) == ("ok", "guess 7", True)
    assert result.attempts == 1
    [(item, error)] = seen
    assert item == 7
    assert isinstance(error, Boom)
    assert error.args == (7,)


async def test_a_success_is_not_degraded(autojump_clock: MockClock) -> None:
    each = harness.Attempt(fallback=lambda item, error: -1)

    async def succeeds(item: int) -> int:
        return item

    [result] = await harness.fan_out(succeeds, [7], each=each)
    assert (result.value, result.degraded) == (7, False)


async def test_a_fallback_comes_after_the_last_attempt_only(autojump_clock: MockClock) -> None:
    asked: list[int] = []
    each = harness.Attempt(
        retry=harness.Retry(3, first_delay=1, jitter=0),
        fallback=lambda item, error: asked.append(item),
    )
    results: Any = await harness.fan_out(fails, [7], each=each)
    [result] = results
    assert asked == [7]
    assert (result.status, result.value, result.attempts) == ("ok", None, 3)
    assert result.degraded


async def test_a_fallback_replaces_a_timeout(autojump_clock: MockClock) -> None:
    seen: list[BaseException] = []

    def fallback(item: int, error: BaseException) -> str:
        seen.append(error)
        return "guess"

    async def waits(item: int) -> str:
        await trio.sleep_forever()
        return "never"

    each = harness.Attempt(timeout=1, fallback=fallback)
    [result] = await harness.fan_out(waits, [7], each=each)
    assert (result.status, result.value) == ("ok", "guess")
    assert isinstance(seen[0], RunTimedOut)


async def test_a_fallback_that_raises_is_the_items_failure_and_keeps_the_first_error(
    autojump_clock: MockClock,
) -> None:
    def fallback(item: int, error: BaseException) -> None:
        raise OtherError("no guess either")

    each = harness.Attempt(fallback=fallback)
    [result] = await harness.fan_out(fails, [7], each=each, policy=BEST_EFFORT)
    assert result.status == "failed"
    assert isinstance(result.error, OtherError)
    assert isinstance(result.error.__context__, Boom)
    assert result.degraded is False
    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(fails, [7], each=each)
    assert [type(error) for error in leaves(caught.value)] == [OtherError]


async def test_cancelled_items_have_no_fallback(autojump_clock: MockClock) -> None:
    asked: list[int] = []

    async def body(item: int) -> None:
        if item == 0:
            harness.current_run().cancel()
        await trio.sleep(50)

    each = harness.Attempt(fallback=lambda item, error: asked.append(item))
    results = await harness.fan_out(body, range(4), limit=3, within=5, each=each)
    assert statuses(results) == ["cancelled"] * 4
    assert asked == []


async def test_an_async_fallback_is_cancelled_with_the_rest(autojump_clock: MockClock) -> None:
    async def fallback(item: int, error: BaseException) -> None:
        await trio.sleep_forever()

    begin = trio.current_time()
    with nothing_left_behind():
        results = await harness.fan_out(
            fails, [1, 2], each=harness.Attempt(fallback=fallback), within=5
        )
    assert trio.current_time() - begin == 5
    assert statuses(results) == ["cancelled", "cancelled"]


async def test_a_fallback_keeps_the_items_slot(autojump_clock: MockClock) -> None:
    """It is work for the item, so it counts for the limit."""
    live = peak = 0

    async def fallback(item: int, error: BaseException) -> int:
        nonlocal live, peak
        live += 1
        peak = max(peak, live)
        await trio.sleep(1)
        live -= 1
        return item

    await harness.fan_out(fails, range(12), limit=3, each=harness.Attempt(fallback=fallback))
    assert peak == 3


async def test_a_fallback_may_raise_the_error_it_was_given(autojump_clock: MockClock) -> None:
    """The error became its own context: a circle, in which code that walks contexts hangs."""

    def fallback(item: int, error: Exception) -> None:
        raise error

    each = harness.Attempt(fallback=fallback)
    [result] = await harness.fan_out(fails, [7], each=each, policy=BEST_EFFORT)
    assert result.status == "failed"
    assert isinstance(result.error, Boom)
    assert result.error.__context__ is None


@pytest.mark.parametrize("has_fallback", [True, False])
async def test_an_on_that_raises_keeps_the_items_error_and_the_fallback(
    autojump_clock: MockClock, has_fallback: bool
) -> None:
    """A slip in ``on=`` hid the error that it was asked about, and took the fallback's place."""
    seen: list[Exception] = []

    def on(error: Exception) -> bool:
        raise AttributeError("a slip")

    def fallback(item: int, error: Exception) -> str:
        seen.append(error)
        return "guess"

    each = harness.Attempt(
        retry=harness.Retry(3, on=on), fallback=fallback if has_fallback else None
    )
    results: Any = await harness.fan_out(fails, [7], each=each, policy=BEST_EFFORT)
    [result] = results
    if has_fallback:
        assert (result.status, result.value, result.degraded) == ("ok", "guess", True)
        [slip] = seen
    else:
        assert (result.status, result.attempts) == ("failed", 1)
        slip = result.error
    assert isinstance(slip, AttributeError)
    assert isinstance(slip.__context__, Boom)
