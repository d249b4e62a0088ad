"""`cancel` and `stop`: by handle, from any task, for one run and what is below it."""

from __future__ import annotations

import math

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import harness
from harness.errors import RunTimedOut

# cancel ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 100])
async def test_cancelling_one_of_many_runs_never_touches_the_others(
    count: int, autojump_clock: MockClock
) -> None:
    """A cancel flag kept on the agent object used to stop whichever run looked first."""
    handles: dict[int, harness.Run] = {}
    events: dict[int, list[object]] = {number: [] for number in range(count)}

    async def agent(number: int) -> None:
        async with harness.open_run(f"agent-{number}") as run:
            handles[number] = run
            for turn in range(5):
                run.emit_nowait(turn)
                await trio.sleep(1)

    def sink(event: harness.Event) -> None:
        events[int(event.path.removeprefix("agent-"))].append(event.payload)

    with harness.observing(sink):
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(agent, number)
            await trio.sleep(2.5)
            handles[1].cancel("the user closed the tab")
    assert handles[1].status == "cancelled"
    assert events.pop(1) == [0, 1, 2]
    del handles[1]
    assert {run.status for run in handles.values()} == {"ok"}
    assert all(payloads == [0, 1, 2, 3, 4] for payloads in events.values())


async def test_a_run_may_cancel_itself(autojump_clock: MockClock) -> None:
    reached: list[str] = []
    async with harness.open_run("job") as run:
        harness.current_run().cancel()
        reached.append("after the call")
        await trio.lowlevel.checkpoint()
        reached.append("after the checkpoint")
    assert reached == ["after the call"]
    assert run.status == "cancelled"


async def test_the_first_reason_is_kept(autojump_clock: MockClock) -> None:
    async with harness.open_run("job") as run:
        run.cancel("first")
        run.cancel("second")
        await trio.sleep_forever()
    assert run.cancel_reason == "first"


async def test_a_cancel_without_a_reason(autojump_clock: MockClock) -> None:
    async with harness.open_run("job") as run:
        run.cancel()
        await trio.sleep_forever()
    assert run.status == "cancelled"


async def test_a_cancel_reaches_all_descendants_and_no_sibling(autojump_clock: MockClock) -> None:
    handles: dict[str, harness.Run] = {}

    async def node(name: str, children: tuple[str, ...]) -> None:
        async with harness.open_run(name) as run:
            handles[name] = run
            async with trio.open_nursery() as nursery:
                for child in children:
                    nursery.start_soon(node, child, ())
                nursery.start_soon(trio.sleep, 10)

    async with harness.open_run("root") as root:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node, "left", ("left.1", "left.2"))
            nursery.start_soon(node, "right", ("right.1",))
            await wait_all_tasks_blocked()
            handles["left"].cancel()
    assert {name: run.status for name, run in handles.items()} == {
        "left": "cancelled",
        "left.1": "cancelled",
        "left.2": "cancelled",
        "right": "ok",
        "right.1": "ok",
    }
    assert root.status == "ok"
    assert trio.current_time() == 10


async def test_siblings_have_stopped_before_the_cancelled_block_is_left(
    autojump_clock: MockClock,
) -> None:
    ended: list[int] = []

    async def child(number: int) -> None:
        try:
            async with harness.open_run(f"child-{number}"):
                await trio.sleep_forever()
        finally:
            ended.append(number)

    async with harness.open_run("parent") as parent:
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(child, number)
            await wait_all_tasks_blocked()
            parent.cancel()
    assert sorted(ended) == list(range(10))


async def test_cancelled_means_stopped(autojump_clock: MockClock) -> None:
    """The effect that was pending doesn't happen later, and the state is not overwritten."""
    effects: list[str] = []
    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:

            async def tool() -> None:
                await trio.sleep(5)
                effects.append("mail sent")

            harness.start_soon(nursery, tool, run=run)
            await trio.sleep(1)
            run.cancel()
            await trio.sleep_forever()
        await trio.sleep(60)
    assert effects == []
    assert run.status == "cancelled"


async def test_a_user_scope_inside_a_run_is_the_users_own(autojump_clock: MockClock) -> None:
    async with harness.open_run("job") as run:
        with trio.move_on_after(1) as scope:
            await trio.sleep_forever()
        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.cancel_scope.cancel()
    assert (run.status, run.cancel_reason) == ("ok", None)


# stop ------------------------------------------------------------------------------------------


async def test_stop_sets_a_flag_and_interrupts_nothing(autojump_clock: MockClock) -> None:
    async with harness.open_run("job") as run:
        assert not run.stopping
        run.stop("enough")
        assert run.stopping
        await trio.sleep(5)
    assert run.status == "ok"
    assert run.ended_at == 5


async def test_stop_reaches_descendants_also_those_that_start_later() -> None:
    async with harness.open_run("root") as root:
        async with harness.open_run("parent") as parent:
            async with harness.open_run("child") as child:
                async with harness.open_run("grandchild") as grandchild:
                    parent.stop()
                    assert (child.stopping, grandchild.stopping) == (True, True)
            async with harness.open_run("later") as later:
                assert later.stopping
        assert not root.stopping
        async with harness.open_run("sibling") as sibling:
            assert not sibling.stopping


async def test_stopping_one_run_leaves_its_siblings_alone(autojump_clock: MockClock) -> None:
    handles: list[harness.Run] = []

    async def agent(number: int) -> int:
        turns = 0
        async with harness.open_run(f"agent-{number}") as run:
            handles.append(run)
            while turns < 10 and not run.stopping:
                await trio.sleep(1)
                turns += 1
        return turns

    async def note(number: int) -> None:
        turns[number] = await agent(number)

    turns: dict[int, int] = {}
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(note, number)
        await trio.sleep(3.5)
        next(run for run in handles if run.name == "agent-2").stop()
    assert turns == {0: 10, 1: 10, 2: 4, 3: 10, 4: 10}


# grace -----------------------------------------------------------------------------------------


async def test_a_run_that_ends_within_its_grace_is_ok(autojump_clock: MockClock) -> None:
    async with harness.open_run("job") as run:
        run.cancel("closing time", grace=5)
        assert run.stopping
        await trio.sleep(4)
    assert run.status == "ok"


async def test_when_the_grace_expires_the_run_is_cancelled_quietly(
    autojump_clock: MockClock,
) -> None:
    async with harness.open_run("job") as run:
        await trio.sleep(1)
        run.cancel("closing time", grace=5)
        assert run.deadline == 6
        assert run.remaining() == 5
        await trio.sleep_forever()
    assert (run.status, run.cancel_reason) == ("cancelled", "closing time")
    assert run.ended_at == 6


async def test_grace_is_for_the_descendants_too(autojump_clock: MockClock) -> None:
    async with harness.open_run("parent") as parent:
        async with harness.open_run("child") as child:
            parent.cancel("closing time", grace=5)
            assert child.stopping
            assert child.remaining() == 5
            await trio.sleep_forever()
    assert (child.status, parent.status) == ("cancelled", "cancelled")
    assert trio.current_time() == 5


async def test_a_plain_cancel_during_the_grace_is_at_once(autojump_clock: MockClock) -> None:
    async with harness.open_run("job") as run:
        run.cancel("soft", grace=60)
        await trio.sleep(1)
        run.cancel("hard")
        await trio.sleep_forever()
    assert run.status == "cancelled"
    assert run.ended_at == 1


async def test_a_shorter_grace_counts_and_a_longer_one_does_not(autojump_clock: MockClock) -> None:
    async with harness.open_run("shorter") as run:
        run.cancel(grace=60)
        run.cancel(grace=5)
        await trio.sleep_forever()
    assert (run.status, run.ended_at) == ("cancelled", 5)
    async with harness.open_run("longer") as run:
        run.cancel(grace=5)
        run.cancel(grace=60)
        await trio.sleep_forever()
    assert (run.status, run.ended_at) == ("cancelled", 10)


async def test_a_cancel_with_grace_does_not_soften_a_cancel(autojump_clock: MockClock) -> None:
    async with harness.open_run("job") as run:
        run.cancel("hard")
        run.cancel("soft", grace=60)
        await trio.sleep_forever()
    assert (run.status, run.cancel_reason, run.ended_at) == ("cancelled", "hard", 0)


async def test_a_deadline_inside_the_grace_is_a_timeout(autojump_clock: MockClock) -> None:
    """Grace counts as the cancel when it expires; the run's own deadline came before that."""
    with pytest.raises(RunTimedOut):
        async with harness.open_run("job", timeout=3) as run:
            run.cancel(grace=60)
            assert run.deadline == 3
            await trio.sleep_forever()
    assert (run.status, run.ended_at) == ("timed_out", 3)


async def test_a_grace_inside_the_deadline_is_a_cancel(autojump_clock: MockClock) -> None:
    async with harness.open_run("job", timeout=60) as run:
        run.cancel(grace=3)
        await trio.sleep_forever()
    assert (run.status, run.ended_at) == ("cancelled", 3)


async def test_grace_reaches_tasks_in_foreign_nurseries(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        async with harness.open_run("job") as run:
            harness.start_soon(nursery, trio.sleep_forever, run=run)
            run.cancel(grace=3)
    assert (run.status, run.ended_at) == ("cancelled", 3)


@pytest.mark.parametrize("grace", [30, math.inf])
async def test_a_cancel_from_outside_during_the_grace_is_named_as_that(
    autojump_clock: MockClock, grace: float
) -> None:
    """The grace wasn't over, or never ends: the run's own cancel hasn't taken effect."""
    with trio.move_on_after(3) as outer:
        async with harness.open_run("job") as run:
            run.cancel("not needed", grace=grace)
            await trio.sleep_forever()
    assert outer.cancelled_caught
    assert (run.status, run.ended_at) == ("cancelled", 3)
    assert run.cancel_reason is not None
    assert "cancel scope around" in run.cancel_reason


async def test_a_deadline_at_the_instant_in_which_the_grace_ends_is_a_timeout(
    autojump_clock: MockClock,
) -> None:
    """What comes first counts, and the deadline was first. It doesn't get a cancel's reason."""
    with pytest.raises(RunTimedOut):
        async with harness.open_run("job", timeout=3) as run:
            run.cancel("not needed", grace=3)
            await trio.sleep_forever()
    assert (run.status, run.ended_at, run.cancel_reason) == ("timed_out", 3, None)
