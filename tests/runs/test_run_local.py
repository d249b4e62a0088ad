"""`RunLocal`: one value per run, made when first asked for, never shared unless forked."""

from __future__ import annotations

import copy

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import harness
from harness.errors import NoRunError, RunEndedError

messages = harness.RunLocal(list[str], name="messages")
history = harness.RunLocal(list[str], name="history", fork=list.copy)


async def test_each_run_has_a_fresh_value() -> None:
    async with harness.open_run("first"):
        messages.get().append("hello")
        assert messages.get() == ["hello"]
    async with harness.open_run("second"):
        assert messages.get() == []


async def test_the_value_is_the_same_object_until_it_is_set() -> None:
    async with harness.open_run("job"):
        value = messages.get()
        assert messages.get() is value
        other = ["other"]
        messages.set(other)
        assert messages.get() is other


@pytest.mark.slow
async def test_runs_at_once_never_see_each_others_values(autojump_clock: MockClock) -> None:
    """An agent that keeps its messages on itself mixes up its conversations; this mustn't."""

    async def agent(number: int) -> None:
        async with harness.open_run(f"agent-{number}"):
            for turn in range(5):
                messages.get().append(f"{number}:{turn}")
                await trio.sleep(1)
            assert messages.get() == [f"{number}:{turn}" for turn in range(5)]

    async with trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(agent, number)


async def test_all_tasks_of_a_run_share_its_value() -> None:
    async def add(word: str) -> None:
        messages.get().append(word)

    async with harness.open_run("job"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(add, "one")
            nursery.start_soon(add, "two")
        assert sorted(messages.get()) == ["one", "two"]


async def test_a_set_in_a_child_task_is_seen_by_the_whole_run() -> None:
    """It is the run's value, not the task's: a `ContextVar` would have kept it in the task."""

    async def assign() -> None:
        messages.set(["from the task"])

    async with harness.open_run("job"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(assign)
        assert messages.get() == ["from the task"]


async def test_none_is_a_value() -> None:
    made: list[int] = []

    def make() -> int | None:
        made.append(1)
        return 7

    limit = harness.RunLocal(make, name="limit")
    async with harness.open_run("job"):
        limit.set(None)
        assert limit.get() is None
        assert limit.get_in(harness.current_run()) is None
        assert limit.get() is None
    assert made == []


async def test_a_factory_that_makes_none_is_called_once() -> None:
    made: list[int] = []
    nothing = harness.RunLocal(lambda: made.append(1), name="nothing")
    async with harness.open_run("job"):
        assert nothing.get() is None
        assert nothing.get() is None
    assert made == [1]


async def test_a_factory_that_fails_is_asked_again() -> None:
    asked: list[int] = []

    def make() -> str:
        asked.append(1)
        if len(asked) == 1:
            raise KeyError("not yet")
        return "value"

    lazy = harness.RunLocal(make, name="lazy")
    async with harness.open_run("job"):
        with pytest.raises(KeyError, match="not yet"):
            lazy.get()
        assert lazy.get() == "value"


async def test_two_locals_with_one_name_are_two() -> None:
    first = harness.RunLocal(list[int], name="same")
    second = harness.RunLocal(list[int], name="same")
    async with harness.open_run("job"):
        first.get().append(1)
        assert second.get() == []


async def test_outside_of_any_run_the_error_names_the_local() -> None:
    with pytest.raises(NoRunError, match="messages"):
        messages.get()
    with pytest.raises(NoRunError, match="messages"):
        messages.set([])


async def test_the_repr_names_the_local() -> None:
    assert "messages" in repr(messages)


# Another run's value ---------------------------------------------------------------------------


async def test_get_in_reads_the_value_of_another_run() -> None:
    async with harness.open_run("parent") as parent:
        messages.get().append("parent's")
        async with harness.open_run("child"):
            messages.get().append("child's")
            assert messages.get_in(parent) == ["parent's"]
            assert messages.get() == ["child's"]
            assert messages.get_in(harness.current_run()) is messages.get()


async def test_get_in_works_outside_of_any_run(autojump_clock: MockClock) -> None:
    handles: list[harness.Run] = []

    async def job() -> None:
        async with harness.open_run("job") as run:
            messages.get().append("working")
            handles.append(run)
            await trio.sleep(5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(job)
        await wait_all_tasks_blocked()
        assert messages.get_in(handles[0]) == ["working"]
    with pytest.raises(RunEndedError, match="messages"):
        messages.get_in(handles[0])


# Children --------------------------------------------------------------------------------------


async def test_a_child_never_inherits_a_local_without_fork() -> None:
    async with harness.open_run("parent"):
        messages.get().append("parent's")
        async with harness.open_run("child"):
            assert messages.get() == []
            messages.get().append("child's")
        assert messages.get() == ["parent's"]


async def test_a_child_starts_with_a_forked_copy() -> None:
    async with harness.open_run("parent"):
        history.get().append("before")
        async with harness.open_run("child"):
            assert history.get() == ["before"]
            history.get().append("child's")
        assert history.get() == ["before"]


async def test_the_copy_is_made_when_the_child_starts(autojump_clock: MockClock) -> None:
    """Not when the child first looks: what the parent adds meanwhile is the parent's alone."""
    seen: list[list[str]] = []

    async def child() -> None:
        async with harness.open_run("child"):
            await trio.sleep(5)
            seen.append(history.get())

    async with harness.open_run("parent"):
        history.get().append("before")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
            await trio.sleep(1)
            history.get().append("meanwhile")
            history.set(["all new"])
    assert seen == [["before"]]


async def test_a_grandchild_gets_what_the_child_started_with() -> None:
    async with harness.open_run("parent"):
        history.get().append("before")
        async with harness.open_run("child that never looks"):
            async with harness.open_run("grandchild"):
                assert history.get() == ["before"]


async def test_siblings_get_copies_of_their_own() -> None:
    async with harness.open_run("parent"):
        history.get().append("before")
        async with harness.open_run("first"):
            history.get().append("first's")
        async with harness.open_run("second"):
            assert history.get() == ["before"]


async def test_a_child_of_a_parent_without_a_value_makes_its_own() -> None:
    forked: list[object] = []

    def fork(value: list[str]) -> list[str]:
        forked.append(value)
        return copy.copy(value)

    local = harness.RunLocal(list[str], name="local", fork=fork)
    async with harness.open_run("parent"):
        async with harness.open_run("child"):
            local.get().append("child's")
        assert local.get() == []
    assert all(value == [] for value in forked)


async def test_a_fork_may_keep_none() -> None:
    local = harness.RunLocal[str | None](lambda: "made", name="local", fork=lambda value: value)
    async with harness.open_run("parent"):
        local.set(None)
        async with harness.open_run("child"):
            assert local.get() is None


async def test_a_fork_that_fails_fails_the_opening_and_leaves_nothing() -> None:
    """The error is that of the line that opened the child, so that line raises it."""

    def fork(value: list[str]) -> list[str]:
        raise OSError("no copy")

    local = harness.RunLocal(list[str], name="local", fork=fork)
    async with harness.open_run("parent") as parent:
        local.get()
        with pytest.raises(OSError, match="no copy"):
            async with harness.open_run("child"):
                pytest.fail("the body ran without its local")
        assert harness.current_run() is parent
        assert len(parent.children) == 0
        await trio.lowlevel.checkpoint()
    assert parent.status == "ok"
