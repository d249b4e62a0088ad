"""Limiters that share a file grant what one limiter would grant to all who ask them."""

from __future__ import annotations

import random
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import trio
from hypothesis import given, settings
from trio.testing import MockClock

from harness.cluster import FleetLimiter
from harness.limits import Limiter, Rate, Reservation
from harness.limits._across_processes import _shared_grants

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="needs flock and shared memory"),
]

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "settle", "leave", "refund", "refuse", "change"]),
        st.integers(0, 2),  # Which of the limiters.
        st.integers(1, 60),  # How much, or whose turn it is.
        st.sampled_from([0.0, 0.05, 0.4, 3.0, 11.0]),  # How much later than the step before.
    ),
    max_size=50,
)


class Asked:
    """A limiter, or some that share a file, and what was granted."""

    def __init__(self, limiters: list[Limiter]) -> None:
        self.limiters = limiters
        self.held: list[Reservation] = []
        self.granted: list[bool] = []

    async def do(self, step: str, which: int, number: int) -> None:
        random.seed(number)  # A pause ends a little later than asked, by chance.
        limiter = self.limiters[which % len(self.limiters)]
        if step == "ask":
            try:
                self.held.append(await limiter.reserve_nowait(tokens=number).__aenter__())
                self.granted.append(True)
            except trio.WouldBlock:
                self.granted.append(False)
        elif step == "change":
            limiter.change(requests=Rate(3 + number % 20, 10), concurrent=1 + number % 6)
        elif self.held:
            reservation = self.held.pop(number % len(self.held))
            if step == "settle":
                reservation.settle(tokens=2 * number)
            elif step == "refund":
                reservation.refund()
            elif step == "refuse":
                reservation.settle(tokens=number, status=429, headers={"retry-after": "1"})
            await reservation.__aexit__(None, None, None)

    def numbers(self) -> list[tuple[Any, ...]]:
        """Return what each of them says of all."""
        return [
            (
                found.in_flight,
                found.concurrent,
                *(
                    (one.limit, round(one.used, 6), one.unsettled)
                    for one in found.dimensions.values()
                ),
            )
            for found in (limiter.statistics() for limiter in self.limiters)
        ]


async def compare(steps: list[tuple[str, int, int, float]], headroom: float, folder: str) -> None:
    limits: dict[str, Any] = {
        "requests": Rate(10, 10),
        "tokens": Rate(300, 10),
        "concurrent": 4,
        "burst_seconds": 5.0,
        "headroom": headroom,
    }
    one = Asked([Limiter(None, **limits)])
    async with AsyncExitStack() as stack:
        some = Asked(
            [
                await stack.enter_async_context(
                    FleetLimiter(Path(folder) / "limits", "p", **limits)
                )
                for _ in range(3)
            ]
        )
        for step, which, number, later in steps:
            await trio.sleep(later)
            await one.do(step, which, number)
            await some.do(step, which, number)
            assert some.numbers() == one.numbers() * 3
        assert some.granted == one.granted


@given(STEPS, st.sampled_from([1.0, 0.7]))
@settings(max_examples=20, deadline=None)
def test_three_that_share_a_file_grant_what_one_would(
    steps: list[tuple[str, int, int, float]], headroom: float
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(_shared_grants, "_MARGIN_SECONDS", 0)
        trio.run(compare, steps, headroom, folder, clock=MockClock(autojump_threshold=0))
