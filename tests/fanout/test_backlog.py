"""Work that adds work: a backlog ends by itself, never early, and loses nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError
from harness.fanout import Priority
from harness.flow import Pipeline, Router, stage
from harness.policies import Attempt, BestEffort, Decision, Judge, Retry
from tests.fanout.journaled import Body, key_of
from tests.fanout.probes import Boom, echo, nothing_left_behind, statuses
from tests.scale import scaled
from tests.support.checkpoints import cancel_at_every_checkpoint
from tests.support.memory_journal import MemoryJournal

TREE = {1: [2, 3], 2: [4], 3: [5, 6], 6: [7]}
"""What each item adds."""


def tree_of(backlog: harness.Backlog[int]) -> Callable[[int], Any]:
    """Return a function that adds what follows from an item, as its last act."""

    async def grow(item: int) -> int:
        await trio.sleep(item)
        for more in TREE.get(item, ()):
            backlog.add(more)
        return item

    return grow


@pytest.mark.parametrize("limit", [1, 2, 100])
@pytest.mark.parametrize("priority", [None, Priority(lambda item: item, lookahead=3)])
async def test_items_add_items_and_the_fan_out_ends_by_itself(
    autojump_clock: MockClock, limit: int, priority: Any
) -> None:
    """The first item runs alone, and nothing else is there until its last moment."""
    backlog = harness.Backlog([1])
    with nothing_left_behind(), trio.fail_after(100):
        results = await harness.fan_out(tree_of(backlog), backlog, limit=limit, priority=priority)
    assert sorted(results.values()) == [1, 2, 3, 4, 5, 6, 7]
    assert results.complete
    assert backlog.left == []


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("window", [1, 3, None])
async def test_the_reader_adds_items(
    autojump_clock: MockClock, window: int | None, ordered: bool
) -> None:
    """All items may have ended, and the reader is still looking at the last result."""
    backlog, read = harness.Backlog([1]), []
    with nothing_left_behind(), trio.fail_after(100):
        async with harness.open_fan_out(
            echo, backlog, limit=1, window=window, ordered=ordered
        ) as stream:
            async for result in stream:
                await trio.sleep(5)
                read.append(result.value)
                for more in TREE.get(result.value, ()):
                    backlog.add(more)
    assert sorted(read) == [1, 2, 3, 4, 5, 6, 7]


async def test_an_empty_backlog_is_over_at_once(autojump_clock: MockClock) -> None:
    assert len(await harness.fan_out(echo, harness.Backlog[int]())) == 0
    async with harness.open_fan_out(echo, harness.Backlog[int]()) as stream:
        assert [result async for result in stream] == []
    assert trio.current_time() == 0


async def test_an_item_waiting_for_its_retry_may_still_add(autojump_clock: MockClock) -> None:
    backlog, tries = harness.Backlog([0]), []

    async def flaky(item: int) -> None:
        tries.append(item)
        await trio.lowlevel.checkpoint()
        if len(tries) < 3:
            raise Boom(item)
        if item == 0:
            backlog.add(1)

    each = Attempt(retry=Retry(3, first_delay=10, jitter=0))
    results = await harness.fan_out(flaky, backlog, each=each)
    assert tries == [0, 0, 0, 1]
    assert statuses(results) == ["ok", "ok"]


async def test_another_task_may_add_until_the_end_and_is_then_refused(
    autojump_clock: MockClock,
) -> None:
    backlog = harness.Backlog([5])

    async def later() -> None:
        await trio.sleep(4)
        backlog.add(3)
        await trio.sleep(4)
        with pytest.raises(RuntimeError, match="the backlog has ended: all its items have"):
            backlog.add(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(later)
        assert (await harness.fan_out(trio.sleep, backlog)).complete
        assert trio.current_time() == 7


class StopAtFailure:
    def begin(self, total: int | None) -> Judge:
        judge = Judge()
        judge.heard = lambda result: Decision.GO_ON if result.ok else Decision.STOP  # type: ignore[method-assign]
        return judge


@pytest.mark.parametrize("how", ["stop", "cancel", "within", "FailFast", "STOP", "break", "outer"])
async def test_what_ends_it_early_loses_nothing(autojump_clock: MockClock, how: str) -> None:
    """What was added is a result, or is left."""
    backlog = harness.Backlog(range(10))
    added, results, streams = list(range(10)), [], []
    policy: Any = StopAtFailure() if how == "STOP" else BestEffort()

    async def body(item: int) -> int:
        await trio.sleep(1)
        backlog.add(item + 10)
        added.append(item + 10)
        if item == 15:
            if how in ("FailFast", "STOP"):
                raise Boom(item)
            if how in ("stop", "cancel"):
                above = harness.current_run().parent
                assert above is not None
                getattr(above, how)("enough")
        return item

    with nothing_left_behind(), trio.fail_after(100):
        with trio.move_on_after(5.5 if how == "outer" else 200):
            async with harness.open_fan_out(
                body,
                backlog,
                limit=3,
                policy=harness.FailFast() if how == "FailFast" else policy,
                within=7.5 if how == "within" else None,
            ) as stream:
                streams.append(stream)
                try:
                    async for result in stream:
                        results.append(result)
                        if how == "break" and result.value == 15:
                            break
                except FanOutError:
                    assert how in ("FailFast", "STOP")
        results += list(streams[0].results)
    assert sorted([result.item for result in results] + backlog.left) == sorted(added)
    assert len(results) < len(added)
    backlog.add(99)
    assert backlog.left[-1] == 99, "what it was not to lose can be given to another"


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("priority", [None, Priority(lambda item: -item, serial_by=lambda _: 0)])
async def test_a_cancel_at_any_checkpoint_leaves_nothing_and_loses_nothing(
    autojump_clock: MockClock, streamed: bool, priority: Any
) -> None:
    kept: list[Any] = []

    async def run() -> None:
        kept.clear()
        backlog = harness.Backlog([1])
        kept.append(backlog)
        if not streamed:
            await harness.fan_out(tree_of(backlog), backlog, limit=2, priority=priority)
            return
        async with harness.open_fan_out(echo, backlog, limit=2, priority=priority) as stream:
            kept.append(stream)
            async for result in stream:
                kept.append(result.item)
                for more in TREE.get(result.item, ()):
                    backlog.add(more)

    def check() -> None:
        if streamed and len(kept) > 1:
            backlog, stream, *read = kept
            taken = [*read, *(result.item for result in stream.results)]
            grown = [1] + [more for item in read for more in TREE.get(item, ())]
            assert sorted(taken + backlog.left) == sorted(grown)

    assert await cancel_at_every_checkpoint(run, check) >= 5


async def test_items_of_one_key_follow_each_other(autojump_clock: MockClock) -> None:
    backlog, running = harness.Backlog([1, 2, 3]), set()

    async def body(item: int) -> None:
        assert item % 2 not in running
        running.add(item % 2)
        await trio.sleep(1)
        running.discard(item % 2)
        if item < 20:
            backlog.add(item + 3)

    results = await harness.fan_out(
        body, backlog, priority=Priority(serial_by=lambda item: item % 2)
    )
    assert sorted(result.item for result in results) == list(range(1, 23))


@pytest.mark.parametrize("limit", [1, 4])
@pytest.mark.parametrize("killed_at", [0.5, 1.5, 3.5, 6.5])
async def test_a_later_session_finds_what_is_left_to_do(
    autojump_clock: MockClock, killed_at: float, limit: int
) -> None:
    """The journal has the results; what follows from them is added again as they are read."""
    journal = MemoryJournal()
    ran: list[int] = []

    async def session(journal: MemoryJournal) -> list[int]:
        backlog, body, read = harness.Backlog([1]), Body(), []
        try:
            async with harness.open_fan_out(
                body, backlog, journal=journal, key=key_of, limit=limit
            ) as stream:
                async for result in stream:
                    read.append(result.item)
                    for more in TREE.get(result.item, ()):
                        backlog.add(more)
        finally:
            ran.extend(body.ran)
        return read

    with trio.move_on_after(killed_at):
        await session(journal)
    with trio.fail_after(100):
        assert sorted(await session(journal.after_a_crash())) == [1, 2, 3, 4, 5, 6, 7]
    assert set(ran) == {1, 2, 3, 4, 5, 6, 7}
    with trio.fail_after(100):
        assert len(await session(journal)) == 7


async def test_an_item_of_a_journal_may_not_add(autojump_clock: MockClock) -> None:
    """A later session would not run it, so what it had added would be forgotten."""
    backlog = harness.Backlog([1])
    results = await harness.fan_out(
        tree_of(backlog), backlog, journal=MemoryJournal(), key=key_of, policy=BestEffort()
    )
    assert "a later session doesn't run it again" in str(results[0].error)


async def test_a_pipeline_and_a_router_take_a_backlog(autojump_clock: MockClock) -> None:
    for flow in (
        lambda grow: Pipeline(stage(echo, limit=1), stage(grow, limit=2)),
        lambda grow: Router(lambda item: "a", tracks={"a": grow}),
    ):
        backlog = harness.Backlog([1])
        with trio.fail_after(100):
            results = await flow(tree_of(backlog)).run(backlog)
        assert sorted(results.values()) == [1, 2, 3, 4, 5, 6, 7]


async def test_misuse_is_refused_with_what_to_do(autojump_clock: MockClock) -> None:
    backlog = harness.Backlog([1])
    await harness.fan_out(echo, backlog)
    with pytest.raises(RuntimeError, match=r"harness.Backlog\(backlog.left\)"):
        await harness.fan_out(echo, backlog)
    with pytest.raises(TypeError, match="<Backlog of 0 items> is for a fan-out"):
        async for _ in backlog:
            pass
    with pytest.raises(TypeError):
        harness.Backlog(5)  # type: ignore[arg-type]


async def end_later(run: harness.Run, how: str, seconds: float) -> None:
    await trio.sleep(seconds)
    getattr(run, how)("enough")


@pytest.mark.slow
async def test_random_growth_under_random_options_ends_and_loses_nothing(
    autojump_clock: MockClock,
) -> None:
    """Each case: a random tree, options, durations, and in half of them an end at a random time."""
    for seed in range(scaled(100, full=20_000)):
        draw = random.Random(seed)
        backlog = harness.Backlog([0])
        added = [0]
        by_reader = draw.random() < 0.5
        end = draw.choice([None, "stop", "cancel"])

        def grow(draw: random.Random = draw, backlog: Any = backlog, added: Any = added) -> None:
            for _ in range(draw.choice([0, 0, 1, 1, 2, 3]) if len(added) < 60 else 0):
                added.append(len(added))
                backlog.add(added[-1])

        async def body(
            item: int, draw: random.Random = draw, grow: Any = grow, by_reader: bool = by_reader
        ) -> None:
            await trio.sleep(draw.choice([0, 0, 1, 2]))
            if not by_reader:
                grow()
            if draw.random() < 0.1:
                raise Boom(item)

        options: dict[str, Any] = {
            "limit": draw.choice([1, 2, 5, 100]),
            "window": draw.choice([None, 1, 2, 7]),
            "policy": BestEffort(),
        }
        options |= draw.choice(
            [
                {},
                {"ordered": True},
                {"priority": Priority(lambda item: -item, lookahead=draw.choice([1, 10]))},
                {"priority": Priority(serial_by=lambda item: item % 3)},
            ]
        )
        items = []
        with trio.fail_after(1_000):
            async with (
                trio.open_nursery() as nursery,
                harness.open_fan_out(body, backlog, **options) as stream,
            ):
                if end is not None:
                    nursery.start_soon(end_later, stream.run, end, draw.randrange(10))
                async for result in stream:
                    items.append(result.item)
                    await trio.sleep(draw.choice([0, 0, 1]))
                    if by_reader:
                        grow()
            items += [result.item for result in stream.results]
        assert sorted(items + backlog.left) == added, seed
        if end is None:
            assert backlog.left == [], seed
