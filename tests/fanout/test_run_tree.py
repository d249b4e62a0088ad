"""A fan-out is a run, and every item is a child run named after its key."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from tests.fanout.probes import AsyncSource, Boom, Source, echo, nap, nothing_left_behind


async def test_items_are_children_of_the_fan_outs_run(autojump_clock: MockClock) -> None:
    runs: list[harness.Run] = []
    parents: list[harness.Run | None] = []

    async def body(item: str) -> None:
        run = harness.current_run()
        runs.append(run)
        parents.append(run.parent)
        assert run.parent is not None
        assert run in run.parent.children
        assert run.status == "running"
        await trio.sleep(1)

    async with harness.open_run("outer") as outer:
        await harness.fan_out(body, ["b", "a"], key=lambda item: f"ticket-{item}", name="nightly")
        assert outer.children == ()
    assert sorted(run.path for run in runs) == [
        "outer/nightly/ticket-a",
        "outer/nightly/ticket-b",
    ]
    assert len(set(parents)) == 1
    fan_out = parents[0]
    assert fan_out is not None
    assert (fan_out.path, fan_out.status) == ("outer/nightly", "ok")
    assert [run.status for run in runs] == ["ok", "ok"]
    assert len({run.id for run in runs} | {fan_out.id, outer.id}) == 4


async def test_the_name_of_an_item_is_its_key_as_text(autojump_clock: MockClock) -> None:
    async def body(item: object) -> tuple[str, str]:
        await trio.lowlevel.checkpoint()
        return harness.current_run().name, trio.lowlevel.current_task().name

    results = await harness.fan_out(body, [None, 3.5, ("a", 1)], key=lambda item: item)
    assert [name for name, _ in results.values()] == ["None", "3.5", "('a', 1)"]
    assert [task for _, task in results.values()] == ["None", "3.5", "('a', 1)"]
    results = await harness.fan_out(body, ["x", "y"])
    assert [name for name, _ in results.values()] == ["0", "1"]


async def test_without_a_name_the_fan_out_is_called_after_its_function(
    autojump_clock: MockClock,
) -> None:
    async def classify(item: int) -> str:
        return harness.current_run().path

    [result] = await harness.fan_out(classify, [1])
    assert "classify" in result.value.split("/")[0]


async def test_a_fan_out_outside_of_any_run_is_a_root(autojump_clock: MockClock) -> None:
    async def body(item: int) -> harness.Run | None:
        parent = harness.current_run().parent
        assert parent is not None
        return parent.parent

    assert harness.current_run_or_none() is None
    [result] = await harness.fan_out(body, [1])
    assert result.value is None
    assert harness.current_run_or_none() is None


async def test_the_callers_run_is_current_again_afterwards(autojump_clock: MockClock) -> None:
    async def fails(item: int) -> None:
        raise Boom

    async with harness.open_run("outer") as outer:
        await harness.fan_out(echo, range(3))
        assert harness.current_run() is outer
        with pytest.raises(harness.errors.FanOutError):
            await harness.fan_out(fails, range(3))
        assert harness.current_run() is outer
        with trio.move_on_after(1):
            await harness.fan_out(nap, [5])
        assert harness.current_run() is outer


async def test_the_status_of_the_fan_outs_run_is_that_of_its_ending(
    autojump_clock: MockClock,
) -> None:
    runs: list[harness.Run] = []

    async def body(item: int) -> None:
        parent = harness.current_run().parent
        assert parent is not None
        runs.append(parent)
        await trio.sleep(1)
        if item == 1:
            raise Boom

    with pytest.raises(harness.errors.FanOutError):
        await harness.fan_out(body, [1])
    await harness.fan_out(body, [1], policy=harness.BestEffort())
    await harness.fan_out(body, [2], within=0.5)
    with trio.move_on_after(0.5):
        await harness.fan_out(body, [2])
    assert [run.status for run in runs] == ["failed", "ok", "ok", "cancelled"]
    assert all(run.ended_at is not None for run in runs)


async def test_ended_items_leave_the_tree_at_once(autojump_clock: MockClock) -> None:
    most = 0

    async def body(item: int) -> None:
        nonlocal most
        parent = harness.current_run().parent
        assert parent is not None
        most = max(most, len(parent.children))
        await trio.sleep(item % 2)

    await harness.fan_out(body, range(200), limit=4)
    assert most <= 4


async def test_a_dump_shows_every_item_by_name(autojump_clock: MockClock) -> None:
    texts: list[str] = []

    async def body(item: int) -> None:
        await trio.sleep(1)
        if item == 0:
            texts.append(str(harness.dump()))
        await trio.sleep(1)

    await harness.fan_out(body, range(3), key=lambda item: f"ticket-{item}", name="nightly")
    for name in ("nightly", "ticket-0", "ticket-1", "ticket-2"):
        assert name in texts[0]


async def test_events_of_items_reach_the_outer_run(autojump_clock: MockClock) -> None:
    paths: list[str] = []

    async def body(item: int) -> None:
        harness.current_run().emit_nowait("hello")
        await trio.lowlevel.checkpoint()

    with nothing_left_behind(), harness.observing(lambda event: paths.append(event.path)):
        await harness.fan_out(body, range(3), name="nightly")
    assert {"nightly/0", "nightly/1", "nightly/2"} <= set(paths)


@pytest.mark.parametrize("form", ["sized", "iterator", "async iterator"])
async def test_a_dump_says_how_many_items_are_in_flight_when_the_last_has_started(
    autojump_clock: MockClock, form: str
) -> None:
    """The fan-out then waits in its nursery, which told no more than a line of trio's."""
    texts: list[str] = []

    async def body(item: int) -> None:
        await trio.sleep(1 + item)
        texts.append(str(harness.dump()))
        await trio.sleep(5)

    items: Any = {"sized": range(3), "iterator": Source(3), "async iterator": AsyncSource(3)}[form]
    await harness.fan_out(body, items)
    of = "0 of 3 ended" if form == "sized" else "0 ended"
    assert f"3 items in flight ({of})" in texts[0]
