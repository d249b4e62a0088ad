"""Whatever happens, a fan-out conserves count, order and limit, and leaves nothing alive."""

import contextvars
from collections.abc import AsyncGenerator
from typing import Any, Literal

import attrs
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

import harness
from harness.errors import FanOutError, ItemSkipped, QuorumError, RunCancelled, RunTimedOut
from tests.fanout.probes import Boom, living_tasks

Ending = Literal["ok", "fails", "fails once", "cancels itself", "never ends"]


@attrs.frozen
class Step:
    """What one item does."""

    seconds: int
    ending: Ending
    shielded: bool = False


@attrs.frozen
class Case:
    """A fan-out, and what befalls it."""

    steps: list[Step]
    kind: Literal["list", "iterator", "async generator"]
    limit: int
    policy: Any
    timeout: float | None
    attempts: int
    hedge: float | None
    fallback: bool
    within: float | None
    outside: Literal["nothing", "outer cancel", "run cancel", "run stop"]
    outside_at: float


steps = st.builds(
    Step,
    seconds=st.integers(0, 4),
    ending=st.sampled_from(["ok"] * 4 + ["fails", "fails once", "cancels itself", "never ends"]),
    shielded=st.sampled_from([False] * 5 + [True]),
)
cases = st.builds(
    Case,
    steps=st.lists(steps, max_size=10),
    kind=st.sampled_from(["list", "iterator", "async generator"]),
    limit=st.integers(1, 5),
    policy=st.sampled_from(
        [
            harness.FailFast(),
            harness.BestEffort(),
            harness.BestEffort(),
            harness.BestEffort(critical=lambda item: bool(item % 2)),
            harness.Quorum(1),
            harness.Quorum(3),
            harness.FirstSuccess(),
        ]
    ),
    timeout=st.sampled_from([None, 2.5, 3.0]),
    attempts=st.integers(1, 3),
    hedge=st.sampled_from([None, None, 1.5]),
    fallback=st.sampled_from([False, False, True]),
    within=st.sampled_from([None, None, 0.0, 3.0, 5.5]),
    outside=st.sampled_from(["nothing", "nothing", "outer cancel", "run cancel", "run stop"]),
    outside_at=st.sampled_from([0.0, 1.0, 2.0, 3.5]),
)


class World:
    """Runs the items of a case and watches them."""

    def __init__(self, case: Case) -> None:
        """Watch nothing yet."""
        self.case = case
        self.pulled = 0
        self.calls: dict[int, int] = {}
        self.live: dict[int, int] = {}
        self.peak_items = 0
        self.run: harness.Run | None = None
        self.planted: set[str] = set()

    async def body(self, item: int) -> int:
        """Do what the item's step says."""
        step = self.case.steps[item]
        self.planted.add(variable.get())
        variable.set(f"item {item}")
        self.run = harness.current_run().parent
        self.calls[item] = self.calls.get(item, 0) + 1
        number = self.calls[item]
        self.live[item] = self.live.get(item, 0) + 1
        self.peak_items = max(self.peak_items, sum(1 for live in self.live.values() if live))
        try:
            with trio.CancelScope(shield=step.shielded):
                await trio.sleep(step.seconds)
            if step.ending == "fails" or (step.ending == "fails once" and number == 1):
                raise Boom(item)
            if step.ending == "cancels itself":
                harness.current_run().cancel("not needed")
                await trio.lowlevel.checkpoint()
            if step.ending == "never ends":
                await trio.sleep_forever()
            return item
        finally:
            self.live[item] -= 1

    def items(self) -> Any:
        """Return the items in the kind of iterable that the case asks for."""
        numbers = range(len(self.case.steps))
        if self.case.kind == "list":
            return list(numbers)
        return self.async_numbers() if self.case.kind == "async generator" else self.counted()

    def counted(self) -> Any:
        """Yield the items, counted."""
        for number in range(len(self.case.steps)):
            self.pulled += 1
            yield number

    async def async_numbers(self) -> AsyncGenerator[int]:
        """Yield the items, counted, with a checkpoint before each."""
        for number in range(len(self.case.steps)):
            await trio.lowlevel.checkpoint()
            self.pulled += 1
            yield number

    @property
    def each(self) -> harness.Attempt:
        """The attempt that the case asks for."""
        return harness.Attempt(
            timeout=self.case.timeout,
            retry=harness.Retry(self.case.attempts, first_delay=1, jitter=0),
            hedge=None if self.case.hedge is None else harness.Hedge(after=self.case.hedge),
            fallback=(lambda item, error: -1) if self.case.fallback else None,
        )

    async def end_from_outside(self, scope: trio.CancelScope) -> None:
        """Do to the fan-out what the case asks for, at its time."""
        await trio.sleep(self.case.outside_at)
        if self.case.outside == "outer cancel":
            scope.cancel()
        elif self.run is not None and self.case.outside == "run cancel":
            self.run.cancel("from outside")
        elif self.run is not None and self.case.outside == "run stop":
            self.run.stop("from outside")
        await trio.sleep(100)  # Some items never end, and somebody has to lose patience.
        scope.cancel()

    def check(self, results: Any, *, sizes_known: bool = True) -> None:
        """Assert what holds for the results of every fan-out."""
        indexes = [result.index for result in results]
        assert indexes == sorted(set(indexes))
        if self.case.kind == "list":
            assert indexes == list(range(len(self.case.steps)))
        elif sizes_known:
            assert indexes == list(range(self.pulled))
        for result in results:
            self.check_result(result)

    def check_result(self, result: Any) -> None:
        """Assert what holds for every result."""
        calls = self.calls.get(result.index, 0)
        assert result.attempts <= max(calls, 1)
        if self.case.hedge is None:
            assert calls <= self.case.attempts
        if result.status == "ok":
            assert result.value == (-1 if result.degraded else result.index)
            assert result.error is None
        elif result.status == "failed":
            assert isinstance(result.error, Boom)
        elif result.status == "timed_out":
            assert isinstance(result.error, RunTimedOut)
            assert self.case.timeout is not None
        elif result.status == "cancelled":
            assert isinstance(result.error, RunCancelled)
        else:
            assert result.status == "skipped"
            assert isinstance(result.error, ItemSkipped)
            assert result.attempts == calls == 0

    def check_error(self, error: FanOutError[Any], *, has_all: bool = True) -> None:
        """Assert that the error has an entry per failed item, and fits the policy.

        A stream's error has what was not read, unless it keeps all.
        """
        policy = self.case.policy
        broken = [entry for entry in error.exceptions if isinstance(entry, QuorumError)]
        failures = [entry for entry in error.exceptions if not isinstance(entry, QuorumError)]
        assert all(isinstance(entry, Boom | RunTimedOut) for entry in failures)
        if isinstance(policy, harness.Quorum | harness.FirstSuccess):
            k = policy.k if isinstance(policy, harness.Quorum) else 1
            assert len(broken) == 1
            assert len(error.results.values()) < k
            assert not has_all or len(failures) == len(error.results.failed)
        else:
            assert broken == []
            assert failures
            if isinstance(policy, harness.BestEffort):
                assert policy.critical is not None
                critical = [one for one in error.results.failed if policy.critical(one.item)]
                assert not has_all or len(failures) == len(critical)
            else:
                assert not has_all or len(failures) == len(error.results.failed)


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@given(cases)
def test_fan_out_conserves_count_order_and_limit(case: Case) -> None:
    async def main() -> None:
        variable.set("planted")
        world = World(case)
        tasks, before = living_tasks(), dict(contextvars.copy_context())
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                nursery.start_soon(world.end_from_outside, scope)
                try:
                    results = await harness.fan_out(
                        world.body,
                        world.items(),
                        policy=case.policy,
                        limit=case.limit,
                        within=case.within,
                        each=world.each,
                    )
                except FanOutError as error:
                    world.check(error.results)
                    world.check_error(error)
                else:
                    world.check(results)
                    if case.policy == harness.FailFast():
                        assert len(results.failed) == 0
            nursery.cancel_scope.cancel()
        assert sum(world.live.values()) == 0
        assert living_tasks() == tasks
        assert dict(contextvars.copy_context()) == before
        assert world.peak_items <= case.limit
        assert world.planted <= {"planted"}
        assert harness.current_run_or_none() is None

    trio.run(main, clock=MockClock(autojump_threshold=0))


@given(
    case=cases,
    ordered=st.booleans(),
    extra_window=st.integers(0, 4),
    keep=st.booleans(),
    leave_after=st.sampled_from([None, None, 0, 1, 3]),
    reading_seconds=st.sampled_from([0.0, 0.0, 1.0]),
)
def test_a_stream_conserves_count_order_limit_and_window(
    case: Case,
    ordered: bool,
    extra_window: int,
    keep: bool,
    leave_after: int | None,
    reading_seconds: float,
) -> None:
    async def main() -> None:
        variable.set("planted")
        world = World(case)
        window = case.limit + extra_window
        tasks = living_tasks()
        read: list[Any] = []
        stream: Any = None
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                nursery.start_soon(world.end_from_outside, scope)
                try:
                    async with harness.open_fan_out(
                        world.body,
                        world.items(),
                        policy=case.policy,
                        limit=case.limit,
                        within=case.within,
                        each=world.each,
                        ordered=ordered,
                        window=window,
                        keep=keep,
                    ) as stream:
                        while leave_after is None or len(read) < leave_after:
                            try:
                                read.append(await stream.__anext__())
                            except StopAsyncIteration:
                                break
                            await trio.sleep(reading_seconds)
                            if case.kind != "list":
                                assert world.pulled - len(read) <= window
                except FanOutError as error:
                    world.check_error(error, has_all=keep)
            nursery.cancel_scope.cancel()
        assert sum(world.live.values()) == 0
        assert living_tasks() == tasks
        assert world.peak_items <= case.limit
        assert world.planted <= {"planted"}
        if ordered:
            assert [result.index for result in read] == sorted(result.index for result in read)
        if stream is not None:
            rest = list(stream.results)
            everything = rest if keep else sorted(read + rest, key=lambda result: result.index)
            world.check(everything)

    trio.run(main, clock=MockClock(autojump_threshold=0))
