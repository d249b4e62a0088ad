"""Once a fan-out is cancelled, stopping or decided, nothing more is pulled or started.

A prototype whose finished items started the next one began everything that was left after a
cancel: 29,533 items of an endless source, each of which ended at its first checkpoint.
"""

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

import harness
from tests.fanout.probes import (
    AsyncSource,
    Boom,
    Flight,
    Source,
    fan_out_run,
    nap,
    nothing_left_behind,
)

LIMIT = 10


@attrs.define(eq=False)
class Ends:
    """A body that ends the fan-out in some way with item 25, and notes what was pulled then."""

    way: str
    source: Any
    pulled_at_the_end: int | None = None

    async def __call__(self, item: int) -> int:
        """Nap, and end the fan-out when it is item 25's turn."""
        await trio.sleep(1 + item / 100)
        if self.way == "success":
            if item != 25:
                raise Boom(item)
            self.pulled_at_the_end = self.source.pulled
        elif item == 25:
            self.pulled_at_the_end = self.source.pulled
            if self.way == "failure":
                raise Boom(item)
            if self.way == "interrupt":
                raise KeyboardInterrupt
            if self.way == "cancel":
                fan_out_run().cancel()
            elif self.way == "stop":
                fan_out_run().stop()
        return item


@pytest.mark.parametrize("way", ["failure", "interrupt", "cancel", "stop", "success", "critical"])
@pytest.mark.parametrize("kind", [Source, AsyncSource], ids=["iterator", "async iterator"])
async def test_nothing_is_pulled_after_an_item_ended_the_fan_out(
    autojump_clock: MockClock, way: str, kind: Any
) -> None:
    source = kind()
    ends = Ends("failure" if way == "critical" else way, source)
    flight = Flight(ends)
    policy: Any = {
        "success": harness.FirstSuccess(),
        "critical": harness.BestEffort(critical=lambda item: True),
    }.get(way, harness.FailFast())
    with nothing_left_behind():
        try:
            await harness.fan_out(flight, source, limit=LIMIT, policy=policy)
        except harness.errors.FanOutError:
            assert way in ("failure", "critical")
        except KeyboardInterrupt:
            assert way == "interrupt"
    assert ends.pulled_at_the_end is not None
    # An async source may be in the middle of its answer; that one is not started.
    assert source.pulled - ends.pulled_at_the_end <= (kind is AsyncSource)
    assert len(flight.started) <= ends.pulled_at_the_end + (kind is AsyncSource)
    assert flight.live == 0


@pytest.mark.parametrize("kind", [Source, AsyncSource], ids=["iterator", "async iterator"])
@pytest.mark.parametrize("way", ["outer cancel", "outer run's cancel", "outer stop", "within"])
@pytest.mark.strays
async def test_nothing_is_pulled_after_the_fan_out_was_ended_from_outside(
    autojump_clock: MockClock, way: str, kind: Any
) -> None:
    source = kind()
    flight = Flight(lambda item: nap(1 + item / 100))
    seen: list[int] = []

    async def end(run: harness.Run, scope: trio.CancelScope) -> None:
        await trio.sleep(5)
        seen.append(source.pulled)
        if way == "outer cancel":
            scope.cancel()
        elif way == "outer run's cancel":
            run.cancel("enough")
        elif way == "outer stop":
            run.stop("enough")

    with nothing_left_behind():
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                async with harness.open_run("outer") as run:
                    nursery.start_soon(end, run, scope)
                    within = 5 if way == "within" else None
                    await harness.fan_out(flight, source, limit=LIMIT, within=within)
    assert source.pulled - seen[0] <= 1
    assert len(flight.started) <= seen[0] + 1
    assert flight.live == 0


async def test_leaving_a_stream_early_starts_nothing_more(autojump_clock: MockClock) -> None:
    source = Source()
    flight = Flight(trio.sleep)
    with nothing_left_behind():
        async with harness.open_fan_out(flight, source, limit=LIMIT) as stream:
            async for result in stream:
                if result.index == 25:
                    break
            pulled = source.pulled
    assert source.pulled == pulled
    assert flight.live == 0


async def test_no_retry_and_no_hedge_starts_once_stopping(autojump_clock: MockClock) -> None:
    """An attempt is a run like any other: what is in flight may finish, nothing begins."""
    attempts: list[int] = []

    async def body(item: int) -> None:
        attempts.append(item)
        fan_out_run().stop("enough")
        await trio.sleep(10)
        raise Boom(item)

    each = harness.Attempt(
        retry=harness.Retry(5, first_delay=1, jitter=0), hedge=harness.Hedge(after=3)
    )
    with nothing_left_behind():
        results = await harness.fan_out(
            body, [1, 2, 3], limit=1, each=each, policy=harness.BestEffort()
        )
    assert attempts == [1]
    assert [result.status for result in results] == ["cancelled", "skipped", "skipped"]
    assert results[0].error is not None
    assert isinstance(results[0].error.__cause__, Boom)


@pytest.mark.parametrize("way", ["failure", "stop"])
@pytest.mark.strays
async def test_no_retry_starts_in_the_step_in_which_its_nap_ends(
    autojump_clock: MockClock, way: str
) -> None:
    """The end of the fan-out and the end of the nap are due at the same instant.

    Which of the two tasks trio runs first is drawn at random; when it was the one that ends the
    fan-out, the other began its next attempt all the same, about every second time.
    """
    too_late = 0
    over = False

    async def stop(run: harness.Run) -> None:
        nonlocal over
        await trio.sleep(1)
        run.stop("enough")
        over = True

    async def body(item: int) -> None:
        nonlocal over, too_late
        too_late += over
        if item == 0:
            if way == "failure":
                await trio.sleep(1)
                over = True
                raise Boom(item)
            return
        await trio.lowlevel.checkpoint()
        raise OSError

    nap = harness.Attempt(retry=harness.Retry(5, first_delay=1, jitter=0))
    policy: Any = harness.FailFast() if way == "failure" else harness.BestEffort()
    for _ in range(60):
        over = False
        async with trio.open_nursery() as nursery:
            async with harness.open_run("outer") as run:
                if way == "stop":
                    nursery.start_soon(stop, run)
                try:
                    await harness.fan_out(
                        body,
                        [0, 1],
                        each=lambda item: nap if item else harness.Attempt(),
                        policy=policy,
                    )
                except harness.errors.FanOutError:
                    assert way == "failure"
        assert over
    assert too_late == 0
