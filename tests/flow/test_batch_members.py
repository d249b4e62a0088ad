"""Each member of a batch gets its own value, whoever leaves and whatever the function does."""

import random
from typing import Any

import trio
from trio.testing import MockClock

import harness
from harness.flow import Batch, Pipeline, stage

BEST_EFFORT = harness.BestEffort()


async def test_a_member_that_is_cancelled_leaves_the_others_their_values(
    autojump_clock: MockClock,
) -> None:
    """Places were numbered when the batch went; one that left then shifted the values."""
    for seed in range(40):
        random.seed(seed)  # trio draws the order of a step.
        runs: dict[int, harness.Run] = {}

        async def first(item: int, runs: dict[int, harness.Run] = runs) -> int:
            runs[item] = harness.current_run()
            await trio.sleep(item)
            if item == 2:
                runs[0].cancel("gave up")
            return item

        async def many(items: list[int]) -> list[str]:
            return [f"value of {item}" for item in items]

        pipeline = Pipeline(stage(first, limit=3), stage(many, batch=Batch(3)))
        for result in await pipeline.run([0, 1, 2], policy=BEST_EFFORT):
            if result.ok:
                assert result.value == f"value of {result.item}"
            else:
                assert (result.item, result.status) == (0, "cancelled")


async def test_a_retry_gets_the_whole_list_again(autojump_clock: MockClock) -> None:
    """The first attempt had removed something from the list that the second got."""
    tries = 0

    async def trims(items: list[int]) -> list[str]:
        nonlocal tries
        tries += 1
        if tries == 1:
            items.pop(0)
            raise OSError
        return [f"value of {items.pop(0)}" for _ in range(3)]

    each = harness.Attempt(retry=harness.Retry(2))
    results = await Pipeline(stage(trims, batch=Batch(3), each=each)).run(range(3))
    assert results.values() == ["value of 0", "value of 1", "value of 2"]


async def test_a_function_may_empty_its_list(autojump_clock: MockClock) -> None:
    async def drains(items: list[int]) -> list[Any]:
        found = []
        while items:
            found.append(-items.pop(0))
        return found

    results = await Pipeline(stage(drains, batch=Batch(3))).run(range(3))
    assert results.values() == [0, -1, -2]
