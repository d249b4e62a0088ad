"""Pipelines and routers that are called: what a cancelled call means to its caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import RecursiveCallError, RunCancelled
from harness.flow import Batch, Pipeline, Router, stage, track
from tests.fanout.probes import statuses

Called = Callable[[Any], Any]


def ways(function: Any) -> dict[str, Called]:
    async def gathered(items: list[int]) -> list[int]:
        return [await function(item) for item in items]

    return {
        "pipeline": Pipeline(function),
        "router": Router(lambda item: "only", tracks={"only": function}),
        "batch stage": Pipeline(stage(gathered, batch=Batch(4))),
        "decorated": harness.open_run("call")(function),
    }


async def second_is_not_needed(item: int) -> int:
    await trio.lowlevel.checkpoint()
    if item == 1:
        harness.current_run().cancel("not needed")
    await trio.lowlevel.checkpoint()
    return 10 * item


@pytest.mark.parametrize("way", ways(second_is_not_needed))
async def test_a_cancelled_call_raises_and_is_never_none(way: str) -> None:
    called = ways(second_is_not_needed)[way]
    assert await called(2) == 20
    with pytest.raises(RunCancelled, match="not needed"):
        await called(1)


@pytest.mark.parametrize("way", ways(second_is_not_needed))
async def test_an_item_that_was_only_a_cancelled_call_is_cancelled(way: str) -> None:
    """No failure: it breaks no policy, is not tried again, and no value is None by accident."""
    called = ways(second_is_not_needed)[way]
    each = harness.Attempt(retry=harness.Retry(3, first_delay=0))
    results = await harness.fan_out(called, [0, 1, 2], each=each)
    assert statuses(results) == ["ok", "cancelled", "ok"]
    assert results[1].attempts == 1
    assert results.values() == [0, 20]

    async def following(item: int) -> str:
        await trio.lowlevel.checkpoint()
        return f"got {item}"

    chained = await Pipeline(called, following).run([0, 1, 2])
    assert statuses(chained) == ["ok", "cancelled", "ok"]
    assert chained.values() == ["got 0", "got 20"]


async def test_a_cancel_of_another_run_is_a_failure() -> None:
    """Whoever raises it for a run that isn't below the item has failed to do its work."""

    async def body(item: int) -> int:
        await trio.lowlevel.checkpoint()
        raise RunCancelled("elsewhere", None, "another-run")

    results = await harness.fan_out(body, [0], policy=harness.BestEffort())
    assert statuses(results) == ["failed"]


@pytest.mark.parametrize("way", ["pipeline", "router"])
async def test_a_call_of_itself_with_no_slot_free_names_the_circle(
    autojump_clock: MockClock, way: str
) -> None:
    """It used to wait for ever."""

    async def descend(depth: int) -> int:
        await trio.lowlevel.checkpoint()
        return 0 if depth == 0 else 1 + await called(depth - 1)

    called: Any
    if way == "pipeline":
        called = Pipeline(stage(descend, limit=3))
    else:
        called = Router(lambda item: "only", tracks={"only": track(descend, limit=3)})
    assert await called(2) == 2
    with pytest.raises(RecursiveCallError, match=r"a slot of (stage 'descend'|track 'only')"):
        await called(3)
    assert await called(2) == 2, "and nothing is held afterwards"


async def test_callers_beside_each_other_wait_for_their_turn(autojump_clock: MockClock) -> None:
    pipeline = Pipeline(stage(trio.sleep, limit=1))
    results = await harness.fan_out(pipeline, [1, 1, 1])
    assert statuses(results) == ["ok", "ok", "ok"]
    assert trio.current_time() == 3
