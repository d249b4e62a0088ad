"""Ctrl-C leaves neither the lock nor a place taken, nor half a change committed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import trio

from harness.cluster import FleetLimiter
from harness.limits import Rate
from tests.support.keyboard_interrupts import strike_each_line

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="needs flock and shared memory"),
]


def test_ctrl_c_at_any_line_leaves_the_file_to_others(tmp_path: Path) -> None:
    def limiter() -> FleetLimiter:
        return FleetLimiter(tmp_path / "f", "p", tokens=Rate(1e6, 1), concurrent=3)

    async def body() -> None:
        async with limiter() as first:
            async with first.reserve(tokens=5) as reservation:
                first.statistics()
                reservation.settle(tokens=7)
            first.observe(status=200, headers={})
            first.change(concurrent=4)
            first.pause(0.01)

    async def others() -> None:
        async with limiter() as other:
            found = other.statistics()
            assert found.in_flight == found.dimensions["tokens"].unsettled == 0
            with trio.fail_after(5):
                async with other.reserve():
                    pass

    step = 1 if os.environ.get("HARNESS_FULL") else 5
    assert strike_each_line(body, ["cluster", "limits"], lambda: trio.run(others), step=step) > 20
