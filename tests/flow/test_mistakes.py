"""Mistakes in a stage or track are told by the name of the one that made them."""

import dataclasses
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.flow import Pipeline, Router, failed_at, stage, track
from harness.limits import Limiter

BEST_EFFORT = harness.BestEffort()


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """An error that refuses attributes."""

    code: int


async def test_a_plain_function_that_returns_none_is_a_mistake_in_the_program(
    autojump_clock: MockClock,
) -> None:
    """None also meant "not called yet", so every item failed with Python's own words."""

    def log(item: int) -> Any:
        return None

    with pytest.raises(TypeError, match="returned None where an awaitable was expected"):
        await Pipeline(log).run([1, 2], policy=BEST_EFFORT)
    with pytest.raises(TypeError, match="returned None where an awaitable was expected"):
        await Pipeline(log)(1)


async def test_a_forgotten_await_is_the_failure_of_its_own_stage(
    autojump_clock: MockClock,
) -> None:
    """The coroutine went on to the next stage, which was blamed for it."""

    async def inner() -> str:
        return "text"

    async def load(item: int) -> Any:
        return inner()

    async def size(text: str) -> int:
        return len(text)

    results = await Pipeline(stage(load), stage(size)).run([1], policy=BEST_EFFORT)
    assert isinstance(results[0].error, TypeError)
    assert failed_at(results[0].error) == ("load",)
    assert "return await inner(...)" in str(results[0].error)


@pytest.mark.parametrize("concurrent", [1, 10])
async def test_outputs_that_reserve_what_their_generator_holds_are_refused(
    autojump_clock: MockClock, concurrent: int
) -> None:
    """With one place, they waited for it forever; a call of the same pipeline was refused."""

    async def several(item: int) -> Any:
        for number in range(3):
            yield number

    async def one(number: int) -> int:
        return number

    each = harness.Attempt(limiter=Limiter("account", concurrent=concurrent))
    pipeline = Pipeline(stage(several, each=each), stage(one, each=each))
    with trio.fail_after(100):
        results = await pipeline.run([1], policy=BEST_EFFORT)
    assert results[0].status == "failed"
    assert "NestedReservationError" in str(results[0].error)


async def test_an_escalation_keeps_an_error_that_refuses_attributes(
    autojump_clock: MockClock,
) -> None:
    async def fails(item: int) -> None:
        raise ValueError

    async def refuses(item: int) -> None:
        raise Frozen(3)

    tracks: Any = {"a": track(fails, escalate="b"), "b": refuses}
    results = await Router(lambda item: "a", tracks=tracks).run([1], policy=BEST_EFFORT)
    assert isinstance(results[0].error, Frozen)


async def test_an_error_that_all_items_share_stays_small(autojump_clock: MockClock) -> None:
    """Each escalation left a note on it."""
    shared = ValueError("shared")

    async def fails(item: int) -> None:
        raise OSError

    async def raises(item: int) -> None:
        raise shared

    tracks: Any = {"a": track(fails, escalate="b"), "b": raises}
    await Router(lambda item: "a", tracks=tracks).run(range(200), policy=BEST_EFFORT)
    assert len(shared.__notes__) <= 40
