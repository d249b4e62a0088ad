"""Random trees of runs, on a virtual clock, end as the endings table says and leave nothing.

A plan says what one run does: how long it works, which children it has and how they are started,
whether it fails, swallows its cancel, or cleans up. Somebody outside cancels and stops runs at
random moments, at the same instants at which they work and time out.
"""

from __future__ import annotations

import gc
import weakref
from contextvars import copy_context
from typing import Literal, get_args

import attrs
import hypothesis
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

import harness
from harness.errors import RunTimedOut

Way = Literal["inline", "nursery", "start_soon", "start_soon for the root"]
Ending = Literal["return", "raise", "swallow the cancel", "raise on cancel"]
Action = Literal["cancel", "cancel with grace", "stop"]
END_OF_TIME = 10_000.0


class Failure(Exception):
    """What a run raises if it is planned to fail."""


class Value:
    """What a run keeps in its `RunLocal`: whose it is."""

    def __init__(self) -> None:
        self.path = harness.current_run().path


local = harness.RunLocal(Value, name="local")
forked = harness.RunLocal(list[str], name="forked", fork=list.copy)


@attrs.frozen
class Plan:
    """What one run does."""

    timeout_seconds: int | None
    work_seconds: tuple[int, ...]
    ending: Ending
    cleanup_seconds: int | None
    is_tolerant: bool
    """Whether whoever opened the run goes on after its failure."""
    children: tuple[tuple[Way, Plan], ...]


@attrs.frozen
class Interference:
    """What somebody outside does, and when."""

    at_seconds: int
    action: Action
    target: int
    """Which of the runs that have been opened, counted round."""


@attrs.define(eq=False)
class Record:
    """What was seen of one run. Types of exceptions only: an exception would hold its frames."""

    plan: Plan
    run: harness.Run
    parent: harness.Run | None
    held: weakref.ref[Value]
    had_tasks: bool = False
    raised: set[type[BaseException]] = attrs.field(factory=set)
    """What the body raised; empty if it returned."""
    seen: set[type[BaseException]] = attrs.field(factory=set)
    """What came out of the block; empty if nothing."""
    was_left: bool = False


plans = st.recursive(
    st.builds(
        Plan,
        timeout_seconds=st.none() | st.integers(0, 8),
        work_seconds=st.lists(st.integers(0, 4), max_size=3).map(tuple),
        ending=st.sampled_from(get_args(Ending)),
        cleanup_seconds=st.none() | st.integers(0, 9),
        is_tolerant=st.booleans(),
        children=st.just(()),
    ),
    lambda smaller: st.builds(
        Plan,
        timeout_seconds=st.none() | st.integers(0, 12),
        work_seconds=st.lists(st.integers(0, 4), max_size=2).map(tuple),
        ending=st.sampled_from(get_args(Ending)),
        cleanup_seconds=st.none() | st.integers(0, 9),
        is_tolerant=st.booleans(),
        children=st.lists(st.tuples(st.sampled_from(get_args(Way)), smaller), max_size=4).map(
            tuple
        ),
    ),
    max_leaves=12,
)
interferences = st.lists(
    st.builds(
        Interference,
        at_seconds=st.integers(0, 10),
        action=st.sampled_from(get_args(Action)),
        target=st.integers(0, 20),
    ),
    max_size=4,
)


class World:
    """One tree of runs, executed."""

    def __init__(self, host: trio.Nursery) -> None:
        self.host = host
        self.records: list[Record] = []

    async def execute(self, plan: Plan) -> None:
        """Open a run for a plan and see what comes out of its block."""
        context_before = dict(copy_context())
        parent = harness.current_run_or_none()
        record: Record | None = None
        try:
            async with harness.open_run("run", timeout=plan.timeout_seconds) as run:
                record = Record(plan, run, parent, weakref.ref(local.get()))
                self.records.append(record)
                assert local.get().path == run.path
                assert len(forked.get()) == run.path.count("/")
                forked.get().append(run.path)
                try:
                    await self.body(plan, record)
                except BaseException as exc:
                    record.raised = leaf_types(exc)
                    raise
                assert local.get().path == run.path
        except BaseException as exc:
            if record is not None:
                record.seen = leaf_types(exc)
            if trio.Cancelled in leaf_types(exc) or not plan.is_tolerant:
                raise
        finally:
            if record is not None:
                record.was_left = True
            assert dict(copy_context()) == context_before

    async def body(self, plan: Plan, record: Record) -> None:
        try:
            async with trio.open_nursery() as nursery:
                for way, child in plan.children:
                    if way == "inline":
                        await self.execute(child)
                    elif way == "nursery":
                        nursery.start_soon(self.execute, child)
                    elif way == "start_soon":
                        record.had_tasks = True
                        harness.start_soon(self.host, self.survive, child, run=record.run)
                    else:
                        root = self.records[0]
                        root.had_tasks = True
                        harness.start_soon(nursery, self.survive, child, run=root.run)
                for seconds in plan.work_seconds:
                    await trio.sleep(seconds)
        except trio.Cancelled:
            if plan.ending == "swallow the cancel":
                return
            if plan.ending == "raise on cancel":
                raise Failure from None
            raise
        finally:
            if plan.cleanup_seconds is not None:
                with harness.cleanup():
                    await trio.sleep(plan.cleanup_seconds)
        if plan.ending == "raise":
            raise Failure

    async def survive(self, plan: Plan) -> None:
        """Run as a task whose failure is nobody's: the nursery it lives in is everybody's."""
        try:
            await self.execute(plan)
        except* Failure:
            pass
        except* RunTimedOut:
            pass

    async def interfere(self, interference: Interference) -> None:
        await trio.sleep(interference.at_seconds)
        if not self.records:
            return
        run = self.records[interference.target % len(self.records)].run
        if interference.action == "cancel":
            run.cancel("from outside")
        elif interference.action == "cancel with grace":
            run.cancel("from outside", grace=2)
        else:
            run.stop("from outside")


@pytest.mark.slow
@hypothesis.settings(max_examples=4 * hypothesis.settings.default.max_examples)  # type: ignore[union-attr]
@given(plan=plans, meddling=interferences)
def test_a_random_tree_ends_in_one_ending_each_and_leaves_nothing(
    plan: Plan, meddling: list[Interference]
) -> None:
    async def main() -> list[Record]:
        context_before = dict(copy_context())
        with trio.fail_after(END_OF_TIME):
            async with trio.open_nursery() as host:
                world = World(host)
                for interference in meddling:
                    host.start_soon(world.interfere, interference)
                await world.survive(plan)
                assert all(record.was_left for record in world.records), "a run outlived the root"
                assert harness.current_run_or_none() is None
                host.cancel_scope.cancel()
        assert dict(copy_context()) == context_before
        return world.records

    records = trio.run(main, clock=MockClock(autojump_threshold=0))
    for record in records:
        check_ending(record)
        check_order(record, records)
    if any(record.held() is not None for record in records):
        gc.collect()  # Only now: it takes longer than all the rest of an example.
    assert [record.held() for record in records] == [None] * len(records)


def check_ending(record: Record) -> None:
    """Compare what was seen with the endings table."""
    run, raised, seen = record.run, record.raised, record.seen
    assert run.ended_at is not None
    assert run.started_at <= run.ended_at
    assert run.parent is None
    assert not run.children
    if not raised:
        # While it waited for its tasks it could still be cancelled or run out of time.
        possible = {"ok", "cancelled", "timed_out"} if record.had_tasks else {"ok"}
        assert run.status in possible
    elif raised - {trio.Cancelled}:
        assert run.status == "failed"
    else:
        assert run.status in {"cancelled", "timed_out"}
    if run.status == "ok":
        assert seen == set()
    elif run.status == "failed":
        assert seen - {trio.Cancelled} == raised - {trio.Cancelled}
    elif run.status == "timed_out":
        assert seen == {RunTimedOut}
        assert record.plan.timeout_seconds is not None
        assert run.ended_at >= run.started_at + record.plan.timeout_seconds
    else:
        assert run.status == "cancelled"
        assert seen in (set(), {trio.Cancelled})
        assert run.cancel_reason


def check_order(record: Record, records: list[Record]) -> None:
    """A run ends inside the life of its parent."""
    if record.parent is not None:
        assert record.parent.ended_at is not None
        assert record.run.ended_at is not None
        assert record.parent.started_at <= record.run.started_at
        assert record.run.ended_at <= record.parent.ended_at
        assert record.run.path == f"{record.parent.path}/run"
    assert sum(other.run.id == record.run.id for other in records) == 1


def leaf_types(exc: BaseException) -> set[type[BaseException]]:
    if isinstance(exc, BaseExceptionGroup):
        return {kind for inner in exc.exceptions for kind in leaf_types(inner)}
    return {type(exc)}
