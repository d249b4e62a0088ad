"""Whatever the stages do and whatever happens, a pipeline preserves count, limits and order.

Stages that return one value, drop, yield several or gather; failures, timeouts, retries, hedges,
fallbacks; cancels and stops from inside and outside; early exit. Every combination ends with one
result per item, and leaves nothing alive.
"""

import contextlib
from collections.abc import AsyncGenerator
from typing import Any, Literal

import attrs
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

import harness
from harness.errors import FanOutError, ItemSkipped, OutputsFailedError, RunCancelled, RunTimedOut
from harness.flow import DROP, AnyStage, Batch, Pipeline, failed_at, stage
from tests.fanout.probes import Boom, living_tasks

Deed = Literal["ok", "drops", "fails", "fails once", "cancels itself", "never ends"]


@attrs.frozen
class Given:
    """One stage, and what it does to the items, in turn."""

    kind: Literal["plain", "several", "gathers"]
    limit: int
    deeds: list[Deed]
    seconds: int
    timeout: float | None
    attempts: int
    hedge: bool
    fallback: bool
    size: int
    within: float


@attrs.frozen
class Case:
    """A pipeline, and what happens to it."""

    stages: list[Given]
    items: int
    buffer: int
    kind: Literal["list", "iterator", "async generator"]
    policy: Any
    within: float | None
    outside: Literal["nothing", "outer cancel", "run cancel", "run stop"]
    outside_at: float


deeds = st.sampled_from(
    ["ok"] * 8 + ["drops", "fails", "fails once", "cancels itself", "never ends"]
)
stages = st.builds(
    Given,
    kind=st.sampled_from(["plain", "plain", "plain", "several", "gathers"]),
    limit=st.integers(1, 3),
    deeds=st.lists(deeds, min_size=1, max_size=6),
    seconds=st.integers(0, 3),
    timeout=st.sampled_from([None, None, 2.5]),
    attempts=st.integers(1, 2),
    hedge=st.sampled_from([False, False, True]),
    fallback=st.sampled_from([False, False, True]),
    size=st.integers(1, 4),
    within=st.sampled_from([float("inf"), 0.0, 1.5]),
)
cases = st.builds(
    Case,
    stages=st.lists(stages, min_size=1, max_size=4),
    items=st.integers(0, 9),
    buffer=st.integers(0, 3),
    kind=st.sampled_from(["list", "iterator", "async generator"]),
    policy=st.sampled_from(
        [
            harness.FailFast(),
            harness.BestEffort(),
            harness.BestEffort(),
            harness.BestEffort(),
            harness.Quorum(2),
            harness.FirstSuccess(),
        ]
    ),
    within=st.sampled_from([None, None, None, 0.0, 5.5]),
    outside=st.sampled_from(["nothing"] * 3 + ["outer cancel", "run cancel", "run stop"]),
    outside_at=st.sampled_from([0.0, 1.0, 2.0, 3.5]),
)

seen = harness.RunLocal[list[Any]](list, name="seen", fork=list.copy)


class World:
    """Runs the stages of a case and watches them."""

    def __init__(self, case: Case) -> None:
        """Watch nothing yet."""
        self.case = case
        self.pulled = 0
        self.source_open = 0
        self.calls: dict[Any, int] = {}
        self.live = [0] * len(case.stages)
        self.run: harness.Run | None = None
        self.pipeline = Pipeline(
            *(self.stage(index, one) for index, one in enumerate(case.stages)), buffer=case.buffer
        )

    def stage(self, index: int, one: Given) -> AnyStage:
        """Return the stage that is described."""
        several = one.kind == "several"

        async def plain(item: Any) -> Any:
            await self.work(index, one, item)
            return DROP if self.deed(index, one, item) == "drops" else item

        async def gathers(items: list[Any]) -> list[Any]:
            assert 1 <= len(items) <= one.size
            assert len(set(items)) == len(items)
            await self.work(index, one, items[0])
            return [DROP if self.deed(index, one, i) == "drops" else i for i in items]

        async def yields(item: Any) -> AsyncGenerator[Any, None]:
            await self.work(index, one, item)
            if self.deed(index, one, item) != "drops":
                yield (*item, 0)
                await trio.lowlevel.checkpoint()
                yield (*item, 1)

        function: Any = {"plain": plain, "several": yields, "gathers": gathers}[one.kind]
        return stage(
            function,
            name=f"stage {index}",
            limit=one.limit,
            batch=Batch(one.size, one.within) if one.kind == "gathers" else None,
            each=harness.Attempt(
                timeout=one.timeout,
                retry=harness.Retry(one.attempts, first_delay=1, jitter=0),
                hedge=harness.Hedge(after=0.5) if one.hedge and not several else None,
                fallback=(lambda item, error: item) if one.fallback else None,
            ),
        )

    def deed(self, index: int, one: Given, item: Any) -> Deed:
        """Return what the stage does to this item."""
        deed: Deed = one.deeds[item[0] % len(one.deeds)]
        return deed

    async def work(self, index: int, one: Given, item: Any) -> None:
        """Be busy, and end as the case says."""
        run = harness.current_run()
        if one.kind != "gathers":
            self.look_at_seen(index, item)
            while run.parent is not None:
                run = run.parent
            self.run = run
        number = self.calls[index, item] = self.calls.get((index, item), 0) + 1
        self.live[index] += 1
        most = one.limit * (2 if one.hedge else 1)
        assert self.live[index] <= most
        self.look_at_queues()
        try:
            await trio.sleep(one.seconds)
            deed = self.deed(index, one, item)
            if deed == "fails" or (deed == "fails once" and number == 1):
                raise Boom(item)
            if deed == "cancels itself":
                harness.current_run().cancel("not needed")
                await trio.lowlevel.checkpoint()
            if deed == "never ends":
                await trio.sleep_forever()
        finally:
            self.live[index] -= 1

    def look_at_seen(self, index: int, item: Any) -> None:
        """Assert that what the item's stages left in the run is of this item only."""
        values = seen.get()
        assert all(one[1][0] == item[0] for one in values), values
        assert all(one[0] <= index for one in values), values
        values.append((index, item))

    def look_at_queues(self) -> None:
        """Assert that no more wait between two stages than the buffer says."""
        for index, line in enumerate(self.pipeline.statistics().stages):
            one = self.case.stages[index]
            room = max(self.case.buffer, one.size) if one.kind == "gathers" else self.case.buffer
            assert line.waiting <= room
            assert line.working <= line.limit
            assert -1e-9 <= line.busy_share <= 1 + 1e-9

    def items(self) -> Any:
        """Return the items in the kind of iterable that the case asks for."""
        if self.case.kind == "list":
            return [(number,) for number in range(self.case.items)]
        return self.async_items() if self.case.kind == "async generator" else self.counted()

    def counted(self) -> Any:
        """Yield the items, counted."""
        self.source_open += 1
        try:
            for number in range(self.case.items):
                self.pulled += 1
                yield (number,)
        finally:
            self.source_open -= 1

    async def async_items(self) -> AsyncGenerator[Any]:
        """Yield the items, counted, with a checkpoint before each."""
        self.source_open += 1
        try:
            for number in range(self.case.items):
                await trio.lowlevel.checkpoint()
                self.pulled += 1
                yield (number,)
        finally:
            self.source_open -= 1

    async def befall(self, scope: trio.CancelScope) -> None:
        """Do to the pipeline what the case asks for, at its time."""
        await trio.sleep(self.case.outside_at)
        if self.case.outside == "outer cancel":
            scope.cancel()
        elif self.run is not None and self.case.outside == "run cancel":
            self.run.cancel("from outside")
        elif self.run is not None and self.case.outside == "run stop":
            self.run.stop("from outside")
        await trio.sleep(1_000)  # Some items never end, and somebody has to lose patience.
        scope.cancel()

    def check(self, results: Any) -> None:
        """Assert what is true of every pipeline's results."""
        indexes = [result.index for result in results]
        if self.case.kind == "list":
            assert indexes == list(range(self.case.items))
        else:
            assert indexes == list(range(self.pulled))
        for result in results:
            self.check_result(result)

    def check_result(self, result: Any) -> None:
        """Assert what is true of every result."""
        if result.status == "ok":
            assert result.error is None
            self.check_value(result.value, result.index)
        elif result.status == "failed":
            assert isinstance(result.error, Boom | OutputsFailedError | RunTimedOut)
            assert failed_at(result.error) or isinstance(result.error, OutputsFailedError)
            if isinstance(result.error, OutputsFailedError):
                assert all(self.check_part(part) for part in result.error.results)
        elif result.status == "timed_out":
            assert isinstance(result.error, RunTimedOut)
            assert failed_at(result.error)
        elif result.status == "cancelled":
            assert isinstance(result.error, RunCancelled)
        else:
            assert result.status == "skipped"
            assert isinstance(result.error, ItemSkipped)

    def check_part(self, part: Any) -> bool:
        """Return whether an output of an item ended as one thing."""
        return part.status in {"ok", "failed", "timed_out", "cancelled"}

    def check_value(self, value: Any, index: int) -> None:
        """Assert that a value is the item's own."""
        if value is DROP or value == ():
            return
        if isinstance(value[0], tuple):
            for part in value:
                self.check_value(part, index)
        else:
            assert value[0] == index

    def check_end(self, tasks: int) -> None:
        """Assert that nothing is left of it."""
        assert self.live == [0] * len(self.case.stages)
        assert self.source_open == 0
        assert living_tasks() == tasks
        assert harness.current_run_or_none() is None
        for line in self.pipeline.statistics().stages:
            assert line.working == line.waiting == line.held_up == 0


@given(cases)
def test_a_pipeline_conserves_count_and_limits(case: Case) -> None:
    async def main() -> None:
        world = World(case)
        tasks = living_tasks()
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                nursery.start_soon(world.befall, scope)
                try:
                    results = await world.pipeline.run(
                        world.items(), policy=case.policy, within=case.within
                    )
                except FanOutError as error:
                    world.check(error.results)
                else:
                    world.check(results)
                    if case.policy == harness.FailFast():
                        assert len(results.failed) == 0
            nursery.cancel_scope.cancel()
        world.check_end(tasks)

    trio.run(main, clock=MockClock(autojump_threshold=0))


@given(
    case=cases,
    ordered=st.booleans(),
    window=st.sampled_from([None, 1, 2, 5]),
    leave_after=st.sampled_from([None, None, 0, 1, 3]),
    reading_seconds=st.sampled_from([0.0, 0.0, 1.0]),
)
def test_a_stream_conserves_count_order_and_window(
    case: Case,
    ordered: bool,
    window: int | None,
    leave_after: int | None,
    reading_seconds: float,
) -> None:
    async def main() -> None:
        world = World(case)
        tasks = living_tasks()
        read: list[Any] = []
        stream: Any = None
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                nursery.start_soon(world.befall, scope)
                with contextlib.suppress(FanOutError):
                    async with world.pipeline.open(
                        world.items(),
                        policy=case.policy,
                        within=case.within,
                        ordered=ordered,
                        window=window,
                    ) as stream:
                        while leave_after is None or len(read) < leave_after:
                            try:
                                read.append(await stream.__anext__())
                            except StopAsyncIteration:
                                break
                            await trio.sleep(reading_seconds)
                            if window is not None and case.kind != "list":
                                assert world.pulled - len(read) <= window
            nursery.cancel_scope.cancel()
        world.check_end(tasks)
        if ordered:
            assert [result.index for result in read] == sorted(result.index for result in read)
        if stream is not None:
            world.check(sorted([*read, *stream.results], key=lambda result: result.index))

    trio.run(main, clock=MockClock(autojump_threshold=0))


@given(cases)
def test_without_trouble_every_item_gets_through(case: Case) -> None:
    """Nothing deadlocks: neither gates, nor batches that wait for what can no longer come."""
    quiet = attrs.evolve(
        case,
        stages=[
            attrs.evolve(
                one,
                deeds=["drops" if deed == "drops" else "ok" for deed in one.deeds],
                timeout=None,
                hedge=False,
            )
            for one in case.stages
        ],
    )

    async def main() -> None:
        world = World(quiet)
        with trio.fail_after(10_000):
            results = await world.pipeline.run(world.items(), policy=harness.BestEffort())
        assert [result.status for result in results] == ["ok"] * quiet.items
        world.check(results)

    trio.run(main, clock=MockClock(autojump_threshold=0))


@given(case=cases, window=st.integers(1, 4), ordered=st.booleans())
def test_a_small_window_is_no_deadlock(case: Case, window: int, ordered: bool) -> None:
    """A batch must not wait for items that the window keeps out."""
    quiet = attrs.evolve(
        case,
        stages=[
            attrs.evolve(one, deeds=["ok"], timeout=None, hedge=False, within=float("inf"))
            for one in case.stages
        ],
    )

    async def main() -> None:
        world = World(quiet)
        count = 0
        with trio.fail_after(10_000):
            async with world.pipeline.open(
                world.items(), policy=harness.BestEffort(), window=window, ordered=ordered
            ) as stream:
                async for result in stream:
                    assert result.status == "ok"
                    count += 1
        assert count == quiet.items

    trio.run(main, clock=MockClock(autojump_threshold=0))
