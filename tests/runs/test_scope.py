"""A run is a scope: its context variable is set inside its block only, and no wait is added."""

from __future__ import annotations

import asyncio
from contextvars import copy_context

import pytest
import trio
import trio.testing
from trio.testing import MockClock, assert_no_checkpoints

import harness
from harness.errors import NoRunError, RunTimedOut
from tests.support.context import planted, third_party, unchanged_context
from tests.support.ways_out import WAYS_OUT, Boom, leave

# Which run is this? ----------------------------------------------------------------------------


async def test_the_current_run_is_the_innermost_open_one() -> None:
    assert harness.current_run_or_none() is None
    async with harness.open_run("outer") as outer:
        assert harness.current_run() is outer
        async with harness.open_run("inner") as inner:
            assert harness.current_run() is inner
            assert harness.current_run_or_none() is inner
        assert harness.current_run() is outer
    assert harness.current_run_or_none() is None


async def test_outside_of_any_run_the_error_says_what_to_do() -> None:
    with pytest.raises(NoRunError, match="open_run"):
        harness.current_run()


async def test_the_error_names_the_task_and_how_to_start_one_that_has_a_run() -> None:
    with pytest.raises(NoRunError, match=r"this is task .*harness\.start_soon\(nursery, fn, run="):
        harness.current_run()


def test_the_error_says_what_to_write_in_a_plain_function_and_in_asyncio() -> None:
    async def main() -> None:
        harness.current_run()

    with pytest.raises(NoRunError, match="In a plain function only the decorator will do"):
        harness.current_run()
    with pytest.raises(NoRunError, match="In asyncio only the decorator will do"):
        asyncio.run(main())


def test_the_error_speaks_of_tests_only_to_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoRunError, match="what a plain test or a fixture calls hasn't"):
        harness.current_run()
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    with pytest.raises(NoRunError) as caught:
        harness.current_run()
    assert "test" not in str(caught.value)


def test_outside_of_trio_there_is_no_run() -> None:
    assert harness.current_run_or_none() is None
    with pytest.raises(NoRunError):
        harness.current_run()


def test_open_run_outside_of_trio_says_so() -> None:
    async def use() -> None:
        async with harness.open_run("job"):
            pytest.fail("the body ran outside of trio")

    coroutine = use()
    with pytest.raises(RuntimeError, match="trio"):
        coroutine.send(None)


async def test_functions_called_by_the_body_find_the_run_without_being_told() -> None:
    async def deep(level: int) -> str:
        return await deep(level - 1) if level else harness.current_run().name

    async with harness.open_run("job"):
        assert await deep(20) == "job"


async def test_tasks_of_a_plain_nursery_in_the_block_see_the_run() -> None:
    seen: list[str] = []

    async def look() -> None:
        seen.append(harness.current_run().name)

    async with harness.open_run("job"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            nursery.start_soon(look)
    assert seen == ["job", "job"]


@pytest.mark.slow
async def test_runs_side_by_side_each_see_their_own(autojump_clock: MockClock) -> None:
    async def one(name: str) -> None:
        async with harness.open_run(name) as run:
            for _ in range(3):
                await trio.sleep(1)
                assert harness.current_run() is run
                assert harness.current_run().name == name

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(one, f"job-{number}")


# The context comes back ------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS_OUT)
async def test_the_context_is_put_back_on_every_way_out(
    way: str, autojump_clock: MockClock
) -> None:
    with planted("before"), unchanged_context():
        await leave(way)


async def test_the_context_is_put_back_when_opening_is_refused() -> None:
    with unchanged_context():
        with pytest.raises(ValueError, match="timeout"):
            async with harness.open_run("job", timeout=-1):
                pytest.fail("a negative timeout was let in")


async def test_only_the_runs_own_variable_is_touched() -> None:
    """What the body does to other variables is the body's business, and stays."""
    with planted("before"):
        async with harness.open_run("job"):
            third_party.set("by the body")
        assert third_party.get() == "by the body"


async def test_a_run_is_held_by_one_context_variable() -> None:
    before = dict(copy_context())
    async with harness.open_run("outer"):
        outer = dict(copy_context())
        async with harness.open_run("inner"):
            harness.RunLocal(list, name="messages").get()
            inner = dict(copy_context())
    assert len(outer.keys() - before.keys()) <= 1
    assert inner.keys() == outer.keys()
    assert sum(inner[var] is not outer[var] for var in inner) == 1


async def test_a_thousand_runs_at_once_reset_their_variable_where_they_set_it(
    autojump_clock: MockClock,
) -> None:
    """A reset in another context than that of the set raises `ValueError`."""

    async def one(number: int) -> None:
        with unchanged_context():
            await leave(ways[number % len(ways)])

    ways = list(WAYS_OUT)
    async with trio.open_nursery() as nursery:
        for number in range(1_000):
            nursery.start_soon(one, number)


# No checkpoint by surprise ---------------------------------------------------------------------


async def test_neither_entry_nor_exit_checkpoints() -> None:
    with assert_no_checkpoints():
        async with harness.open_run("job", timeout=60, deps=object(), tags={"shard": 3}):
            async with harness.open_run("child"):
                pass


async def test_leaving_by_an_error_does_not_checkpoint() -> None:
    with assert_no_checkpoints():
        with pytest.raises(Boom):
            async with harness.open_run("job"):
                raise Boom


async def test_leaving_a_cancelled_run_does_not_checkpoint() -> None:
    with assert_no_checkpoints():
        async with harness.open_run("job") as run:
            run.cancel()
    assert run.status == "ok"


async def test_a_run_under_a_cancelled_scope_does_what_needs_no_checkpoint() -> None:
    done: list[str] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        async with harness.open_run("job") as run:
            done.append(harness.current_run().name)
        done.append("left")
    assert done == ["job", "left"]
    assert run.status == "ok"


# Identity and facts ----------------------------------------------------------------------------


async def test_ids_are_short_and_unique() -> None:
    ids: list[str] = []
    for _ in range(5_000):
        async with harness.open_run("job") as run:
            ids.append(run.id)
    assert len(set(ids)) == len(ids)
    assert all(isinstance(run_id, str) and 1 <= len(run_id) <= 32 for run_id in ids)


async def test_idempotency_keys_differ_between_runs() -> None:
    keys: list[str] = []
    for _ in range(100):
        async with harness.open_run("job") as run:
            assert run.idempotency_key == run.idempotency_key
            keys.append(run.idempotency_key)
    assert len(set(keys)) == 100
    assert all(keys)


async def test_the_path_is_the_parents_path_and_the_name() -> None:
    async with harness.open_run("nightly") as outer:
        async with harness.open_run("ticket-17") as middle:
            async with harness.open_run("step") as inner:
                pass
    assert (outer.path, middle.path, inner.path) == (
        "nightly",
        "nightly/ticket-17",
        "nightly/ticket-17/step",
    )
    assert (outer.name, middle.name, inner.name) == ("nightly", "ticket-17", "step")


async def test_a_repr_names_the_run() -> None:
    async with harness.open_run("nightly"):
        async with harness.open_run("ticket-17") as run:
            assert "nightly/ticket-17" in repr(run)
    assert "nightly/ticket-17" in repr(run)
    assert "ok" in repr(run)


async def test_parent_and_live_children(autojump_clock: MockClock) -> None:
    async def child(seconds: float) -> None:
        async with harness.open_run(f"child-{seconds}"):
            await trio.sleep(seconds)

    async with harness.open_run("parent") as parent:
        assert parent.parent is None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child, 1)
            nursery.start_soon(child, 3)
            await trio.testing.wait_all_tasks_blocked()
            assert {run.name for run in parent.children} == {"child-1", "child-3"}
            assert all(run.parent is parent for run in parent.children)
            await trio.sleep(2)
            assert [run.name for run in parent.children] == ["child-3"]
        assert len(parent.children) == 0


async def test_times_are_those_of_trio(autojump_clock: MockClock) -> None:
    await trio.sleep(7)
    with pytest.raises(RunTimedOut):
        async with harness.open_run("job", timeout=10) as run:
            assert (run.started_at, run.deadline, run.ended_at) == (7, 17, None)
            await trio.sleep(4)
            assert run.remaining() == 6
            await trio.sleep_forever()
    assert (run.started_at, run.ended_at) == (7, 17)


@pytest.mark.parametrize("timeout", [None, float("inf")])
async def test_no_timeout_means_no_deadline(timeout: float | None) -> None:
    async with harness.open_run("job", timeout=timeout) as run:
        assert run.deadline == float("inf")
        assert run.remaining() == float("inf")


async def test_the_parents_deadline_is_an_upper_bound(autojump_clock: MockClock) -> None:
    async with harness.open_run("parent", timeout=10):
        async with harness.open_run("without") as child:
            assert child.deadline == 10
            assert child.remaining() == 10
        async with harness.open_run("longer", timeout=60) as child:
            assert child.deadline == 10
        async with harness.open_run("shorter", timeout=3) as child:
            assert child.deadline == 3


async def test_remaining_is_never_negative(mock_clock: MockClock) -> None:
    async with harness.open_run("job", timeout=1) as run:
        mock_clock.jump(5)
        assert run.remaining() == 0


# deps and tags ---------------------------------------------------------------------------------


async def test_a_child_inherits_deps_unless_given() -> None:
    given, other = object(), object()
    async with harness.open_run("parent", deps=given) as parent:
        assert parent.deps is given
        async with harness.open_run("child") as child:
            assert child.deps is given
            async with harness.open_run("grandchild", deps=other) as grandchild:
                assert grandchild.deps is other
            assert child.deps is given


async def test_tags_are_kept() -> None:
    given = {"shard": 3}
    async with harness.open_run("job", tags=given) as run:
        assert dict(run.tags) == {"shard": 3}
        given["shard"] = 4
        assert dict(run.tags) == {"shard": 3}, "a run owns its tags"
    assert dict(run.tags) == {"shard": 3}
    async with harness.open_run("untagged") as run:
        assert dict(run.tags) == {}
