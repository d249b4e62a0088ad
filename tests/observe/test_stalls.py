"""A watchdog names the run whose code holds trio's loop, while it holds it."""

import itertools
import logging
import threading
import time
from collections.abc import Callable

import pytest
import trio

import harness
from harness.observe import Stall, watching_stalls
from tests.scale import PATIENCE_SECONDS

pytestmark = pytest.mark.real_clock


def hold_the_loop(until: Callable[[], bool]) -> None:
    """Hold it until something is so: on a busy machine the thread that looks may come late."""
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not until() and time.monotonic() < give_up_at:
        time.sleep(0.005)


async def test_names_the_run_and_shows_its_stack_while_the_loop_is_held() -> None:
    """A report that comes after the stall could only say that there was one."""
    stalls: list[Stall] = []

    with watching_stalls(0.05, report=stalls.append):
        async with harness.open_run("nightly"):
            await trio.sleep(0.01)
            async with harness.open_run("parse") as run:
                await trio.lowlevel.checkpoint()
                hold_the_loop(until=lambda: len(stalls) == 3)

    assert len(stalls) == 3
    for stall in stalls:
        assert stall.run_id == run.id
        assert stall.run_path == "nightly/parse"
        assert stall.seconds >= 0.05
        assert "hold_the_loop" in stall.stack
        assert "/trio/" not in stall.stack
    # Once more each time it has lasted twice as long, and no oftener.
    for earlier, later in itertools.pairwise(stalls):
        assert later.seconds >= 2 * earlier.seconds


async def test_says_nothing_of_tasks_that_wait() -> None:
    stalls: list[Stall] = []
    with watching_stalls(0.5, report=stalls.append):
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(trio.sleep, 0.7)
    assert stalls == []


async def test_logs_by_default_and_outside_of_runs_names_the_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def greedy() -> None:
        hold_the_loop(until=lambda: bool(caplog.records))

    with caplog.at_level(logging.WARNING, "harness.stalls"), watching_stalls(0.05):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(greedy)
    assert "greedy' has held trio's loop for 0." in caplog.text
    assert "hold_the_loop" in caplog.text


async def test_a_report_that_raises_is_logged_and_the_watch_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[Stall] = []

    def report(stall: Stall) -> None:
        seen.append(stall)
        raise ValueError("report is broken")

    with watching_stalls(0.02, report=report):
        await trio.lowlevel.checkpoint()
        hold_the_loop(until=lambda: len(seen) == 2)
    assert len(seen) == 2
    assert "report is broken" in caplog.text


async def test_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    with watching_stalls():
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


@pytest.mark.parametrize("threshold", [0, -1, float("nan"), "soon", True])
async def test_refuses_a_threshold_that_is_none(threshold: object) -> None:
    with pytest.raises((TypeError, ValueError), match="watching_stalls"):
        watching_stalls(threshold)  # type: ignore[arg-type]


def test_refuses_to_watch_outside_trio() -> None:
    with pytest.raises(RuntimeError, match="watching_stalls"):
        watching_stalls()
