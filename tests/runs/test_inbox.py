"""The inbox: a bounded list of messages; an accepted one is taken or handed back."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import harness
from harness.errors import InboxFullError, RunEndedError
from tests.support.ways_out import WAYS_OUT, leave

MORE_THAN_ANY_INBOX = 200_000


async def test_messages_are_taken_in_their_order() -> None:
    async with harness.open_run("job") as run:
        for word in ("one", "two", "three"):
            run.inbox.put(word)
        assert list(run.inbox.take_all()) == ["one", "two", "three"]
        assert list(run.inbox.take_all()) == []
        run.inbox.put("four")
        assert list(run.inbox.take_all()) == ["four"]
    assert list(run.undelivered) == []


async def test_a_message_from_another_task_finds_the_run(autojump_clock: MockClock) -> None:
    handles: list[harness.Run] = []
    taken: list[object] = []

    async def agent() -> None:
        async with harness.open_run("agent") as run:
            handles.append(run)
            await trio.sleep(5)
            taken.extend(run.inbox.take_all())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(agent)
        await wait_all_tasks_blocked()
        handles[0].inbox.put({"role": "user", "content": "stop at the next exit"})
    assert taken == [{"role": "user", "content": "stop at the next exit"}]


async def test_runs_never_see_each_others_messages() -> None:
    async with harness.open_run("parent") as parent:
        parent.inbox.put("for the parent")
        async with harness.open_run("child") as child:
            assert list(child.inbox.take_all()) == []
            child.inbox.put("for the child")
        assert list(child.undelivered) == ["for the child"]
        assert list(parent.inbox.take_all()) == ["for the parent"]


async def test_none_is_a_message() -> None:
    async with harness.open_run("job") as run:
        run.inbox.put(None)
        assert list(run.inbox.take_all()) == [None]


async def test_the_inbox_is_bounded_and_refuses_what_is_too_much() -> None:
    accepted = 0
    async with harness.open_run("job") as run:
        with pytest.raises(InboxFullError) as caught:
            for _ in range(MORE_THAN_ANY_INBOX):
                run.inbox.put(accepted)
                accepted += 1
        assert accepted > 0
        assert "job" in str(caught.value)
        assert str(accepted) in str(caught.value).replace(",", "").replace("_", "")
        assert len(list(run.inbox.take_all())) == accepted
        run.inbox.put("there is room again")
    assert list(run.undelivered) == ["there is room again"]


@pytest.mark.parametrize("way", WAYS_OUT)
async def test_what_was_not_taken_is_handed_back(way: str, autojump_clock: MockClock) -> None:
    async def leave_messages(run: harness.Run) -> None:
        assert list(run.undelivered) == []
        run.inbox.put("taken")
        assert list(run.inbox.take_all()) == ["taken"]
        run.inbox.put("left")
        run.inbox.put("left too")

    run = await leave(way, leave_messages)
    assert list(run.undelivered) == ["left", "left too"]


@pytest.mark.parametrize("way", WAYS_OUT)
async def test_a_message_for_an_ended_run_is_refused(way: str, autojump_clock: MockClock) -> None:
    """It used to be queued for some unrelated later turn."""
    run = await leave(way)
    with pytest.raises(RunEndedError, match=run.name):
        run.inbox.put("too late")
    assert list(run.undelivered) == []


@pytest.mark.strays
async def test_a_message_that_comes_while_the_run_waits_for_its_tasks_is_not_lost(
    autojump_clock: MockClock,
) -> None:
    taken: list[object] = []

    async def last_look() -> None:
        await trio.sleep(5)
        taken.extend(harness.current_run().inbox.take_all())

    async def leave_messages(run: harness.Run) -> None:
        await trio.sleep(2)
        run.inbox.put("in time for the task")
        await trio.sleep(5)
        with pytest.raises(RunEndedError):
            run.inbox.put("too late")

    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            nursery.start_soon(leave_messages, run)
            harness.start_soon(nursery, last_look, run=run)
    assert taken == ["in time for the task"]
    assert list(run.undelivered) == []


@pytest.mark.strays
async def test_every_accepted_message_is_taken_or_handed_back(autojump_clock: MockClock) -> None:
    accepted: list[int] = []
    taken: list[object] = []

    async def sender(run: harness.Run) -> None:
        for number in range(1_000):
            try:
                run.inbox.put(number)
            except (InboxFullError, RunEndedError):
                pass
            else:
                accepted.append(number)
            await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            nursery.start_soon(sender, run)
            for _ in range(10):
                await trio.sleep(4.9)
                taken.extend(run.inbox.take_all())
            await trio.sleep(1)
    assert [*taken, *run.undelivered] == accepted
    assert 0 < len(accepted) < 1_000
