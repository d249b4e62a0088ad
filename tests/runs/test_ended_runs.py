"""The handle of a run that has ended: plain facts stay, everything else is refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import RunEndedError
from tests.support.ways_out import WAYS_OUT, leave

messages = harness.RunLocal(list[str], name="messages")


@pytest.mark.parametrize("way", WAYS_OUT)
async def test_plain_facts_stay_readable(way: str, autojump_clock: MockClock) -> None:
    run = await leave(way, name="ticket-17")
    assert run.name == "ticket-17"
    assert run.path.endswith("ticket-17")
    assert run.id
    assert dict(run.tags) == {}
    assert run.status == WAYS_OUT[way]
    assert run.ended_at is not None
    assert run.ended_at >= run.started_at
    assert list(run.undelivered) == []
    if run.status == "cancelled":
        assert run.cancel_reason


@pytest.mark.parametrize("way", WAYS_OUT)
async def test_links_are_cut(way: str, autojump_clock: MockClock) -> None:
    run = await leave(way)
    assert run.parent is None
    assert len(run.children) == 0


USES: dict[str, Callable[[harness.Run], object]] = {
    "deps": lambda run: run.deps,
    "RunLocal.get_in": lambda run: messages.get_in(run),
    "emit_nowait": lambda run: run.emit_nowait("event"),
    "inbox.put": lambda run: run.inbox.put("message"),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("way", WAYS_OUT)
async def test_use_is_refused_and_the_error_names_the_run(
    way: str, use: str, autojump_clock: MockClock
) -> None:
    run = await leave(way)
    with pytest.raises(RunEndedError) as caught:
        USES[use](run)
    assert run.path in str(caught.value)


async def test_emit_is_refused(autojump_clock: MockClock) -> None:
    run = await leave("returns")
    with pytest.raises(RunEndedError, match=run.path):
        await run.emit("event")


async def test_start_soon_is_refused_and_names_run_task_and_nursery(
    autojump_clock: MockClock,
) -> None:
    run = await leave("returns")
    async with trio.open_nursery() as nursery:
        with pytest.raises(RunEndedError) as caught:
            harness.start_soon(nursery, trio.sleep_forever, run=run)
        assert not nursery.child_tasks
    assert run.path in str(caught.value)
    assert trio.lowlevel.current_task().name in str(caught.value)
    assert "nursery" in str(caught.value)


@pytest.mark.strays
async def test_a_stray_that_uses_its_ended_run_is_told_run_task_and_nursery(
    autojump_clock: MockClock,
) -> None:
    """A raw `start_soon` gives a task the context of the caller, so it can outlive the run."""
    told: list[str] = []

    async def forgotten_poller() -> None:
        await trio.sleep(10)
        with pytest.raises(RunEndedError) as caught:
            messages.get()
        told.append(str(caught.value))

    async with trio.open_nursery() as nursery:
        async with harness.open_run("ticket-17"):
            nursery.start_soon(forgotten_poller, name="forgotten poller")
    assert "ticket-17" in told[0]
    assert "forgotten poller" in told[0]
    assert "nursery" in told[0]


@pytest.mark.strays
async def test_the_current_run_of_a_stray_is_the_ended_run(autojump_clock: MockClock) -> None:
    seen: list[harness.Run] = []

    async def stray() -> None:
        await trio.sleep(10)
        seen.append(harness.current_run())

    async with trio.open_nursery() as nursery:
        async with harness.open_run("ticket-17") as run:
            nursery.start_soon(stray)
    assert seen == [run]
    assert run.status == "ok"


@pytest.mark.strays
async def test_set_in_a_stray_is_refused(autojump_clock: MockClock) -> None:
    async def stray() -> None:
        await trio.sleep(10)
        with pytest.raises(RunEndedError):
            messages.set([])

    async with trio.open_nursery() as nursery:
        async with harness.open_run("ticket-17"):
            nursery.start_soon(stray)


def test_a_handle_outlives_trio() -> None:
    """Results and logs are read after the program's trio part is over."""

    async def main() -> harness.Run:
        async with harness.open_run("job", tags={"shard": 3}) as run:
            run.inbox.put("unread")
        return run

    run = trio.run(main)
    assert (run.status, run.path, dict(run.tags)) == ("ok", "job", {"shard": 3})
    assert list(run.undelivered) == ["unread"]
    run.cancel("trio has ended")
    run.stop("trio has ended")
    assert run.status == "ok"
