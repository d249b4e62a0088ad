"""The simulation of a fan-out takes the time that the real one takes on a virtual clock."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.limits import Limiter, Rate
from harness.observe._simulate import Grant, Release, Steps, Tokens, simulate
from tests.scale import scaled


def really(
    items: list[Steps], limit: int, make: Callable[[], dict[str, Limiter]]
) -> tuple[float, list[float]]:
    """Return how long the real engine and the real limiters take on a virtual clock."""
    took: list[float] = []
    limiters = make()

    async def carry_out(steps: Steps) -> None:
        began = trio.current_time()
        async with AsyncExitStack() as stack:
            held: dict[str, AsyncExitStack] = {}
            for step in steps:
                if isinstance(step, float):
                    await trio.sleep(step)
                elif isinstance(step, Grant):
                    held[step.limiter] = await stack.enter_async_context(AsyncExitStack())
                    await held[step.limiter].enter_async_context(
                        limiters[step.limiter].reserve(tokens=step.tokens.total)
                    )
                else:
                    await held.pop(step.limiter).aclose()
        took.append(trio.current_time() - began)

    async def main() -> float:
        began = trio.current_time()
        await harness.fan_out(carry_out, items, limit=limit)
        return trio.current_time() - began

    return trio.run(main, clock=MockClock(autojump_threshold=0)), took


def random_items(draw: random.Random, count: int, names: list[str]) -> list[Steps]:
    items: list[Steps] = []
    for _ in range(count):
        steps: list[float | Grant | Release] = []
        for _ in range(draw.randint(1, 3)):
            steps.append(draw.random() * 3)
            if names and draw.random() < 0.8:
                name = draw.choice(names)
                steps += [
                    Grant(name, Tokens(draw.randint(1, 50))),
                    draw.random(),
                    Release(name),
                ]
        items.append(steps)
    return items


@pytest.mark.slow
def test_it_takes_as_long_as_the_real_engine_with_the_real_limiters() -> None:
    for seed in range(scaled(20, full=1_000)):
        draw = random.Random(seed)

        def limiters(seed: int = seed) -> dict[str, Limiter]:
            draw = random.Random(seed)
            return {
                name: Limiter(
                    requests_per_minute=draw.randint(20, 200) if draw.random() < 0.8 else None,
                    tokens=Rate(draw.randint(100, 2_000), draw.choice([10, 60])),
                    concurrent=draw.randint(1, 10) if draw.random() < 0.3 else None,
                    burst_seconds=draw.choice([0, 1, 5]),
                )
                for name in "ab"[: draw.randint(0, 2)]
            }

        items = random_items(draw, draw.randint(1, 120), list(limiters()))
        limit = draw.choice([1, 3, 20, 1_000])
        seconds, took = really(items, limit, limiters)
        found = simulate(iter(items), limit, limiters())
        # Nearly: of two that are due at one moment, trio lets either go first.
        assert found.seconds == pytest.approx(seconds, rel=0.01, abs=0.1), seed
        assert sum(found.item_seconds) == pytest.approx(sum(took), rel=0.03, abs=0.2), seed


@pytest.mark.slow
def test_a_hundred_thousand_items_take_a_few_seconds() -> None:
    """A million has to be done in under a minute."""
    count = scaled(20_000, full=1_000_000)
    limiter = Limiter(requests_per_minute=5_000, tokens_per_minute=2_000_000)
    steps: Steps = [Grant("it", Tokens(300)), 4.0, Release("it")]
    began = time.process_time()
    found = simulate((steps for _ in range(count)), 400, {"it": limiter})
    assert time.process_time() - began < 60 * count / 1_000_000 * 2
    assert found.seconds == pytest.approx(count / 5_000 * 60, rel=0.05)
    assert len(found.item_seconds) == count
