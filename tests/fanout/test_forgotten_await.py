"""A coroutine that nobody awaited is never taken for a value."""

from typing import Any

import pytest
from trio.testing import MockClock

import harness
from harness.errors import FanOutError


async def inner(item: int) -> int:
    """Be what somebody forgot to await."""
    return item


async def test_a_function_that_returns_a_coroutine_has_failed(autojump_clock: MockClock) -> None:
    """It counted as ok, and the value was a coroutine object."""

    async def forgets(item: int) -> Any:
        return inner(item)

    results = await harness.fan_out(forgets, [1], policy=harness.BestEffort())
    assert results[0].status == "failed"
    assert "write `return await inner(...)`" in str(results[0].error)


async def test_a_key_that_is_a_coroutine_is_refused(autojump_clock: MockClock) -> None:
    with pytest.raises(FanOutError, match="must return the key at once"):
        await harness.fan_out(inner, [1], key=lambda item: inner(item))


async def test_a_racer_that_is_not_async_is_named(autojump_clock: MockClock) -> None:
    def plain() -> Any:
        return 3

    with pytest.raises(FanOutError, match="returned 3 where an awaitable was expected"):
        await harness.race(plain)
