"""Worker threads and callbacks see the run they were started from, and may steer it."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextvars import copy_context

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import harness
from harness.errors import NoRunError
from tests.scale import PATIENCE_SECONDS
from tests.support.context import planted, third_party

"""A thread of these tests needs milliseconds; what takes this long is a hang."""

Seen = tuple[str | None, str]


def what_is_seen() -> Seen:
    """Return the name of the run and the third-party variable, as seen from here."""
    run = harness.current_run_or_none()
    return (None if run is None else run.name), third_party.get()


async def what_is_seen_async() -> Seen:
    await trio.lowlevel.checkpoint()
    return what_is_seen()


# Whose context? A row for each way in which harness or trio starts code from a run. --------------


async def by_plain_nursery(run: harness.Run, outside: trio.Nursery) -> Seen:
    return await collect(outside, lambda nursery, report: nursery.start_soon(report))


async def by_start_soon(run: harness.Run, outside: trio.Nursery) -> Seen:
    return await collect(
        outside, lambda nursery, report: harness.start_soon(nursery, report, run=run)
    )


async def by_start_soon_of_no_run(run: harness.Run, outside: trio.Nursery) -> Seen:
    return await collect(
        outside, lambda nursery, report: harness.start_soon(nursery, report, run=None)
    )


async def by_worker_thread(run: harness.Run, outside: trio.Nursery) -> Seen:
    return await trio.to_thread.run_sync(what_is_seen)


async def by_from_thread_run(run: harness.Run, outside: trio.Nursery) -> Seen:
    return await trio.to_thread.run_sync(lambda: trio.from_thread.run(what_is_seen_async))


async def by_from_thread_run_sync(run: harness.Run, outside: trio.Nursery) -> Seen:
    return await trio.to_thread.run_sync(lambda: trio.from_thread.run_sync(what_is_seen))


async def by_run_sync_soon(run: harness.Run, outside: trio.Nursery) -> Seen:
    seen: list[Seen] = []
    harness.run_sync_soon(lambda: seen.append(what_is_seen()))
    await until(lambda: bool(seen))
    return seen[0]


async def by_run_sync_soon_from_a_worker_thread(run: harness.Run, outside: trio.Nursery) -> Seen:
    seen: list[Seen] = []
    await trio.to_thread.run_sync(
        lambda: harness.run_sync_soon(lambda: seen.append(what_is_seen()))
    )
    await until(lambda: bool(seen))
    return seen[0]


async def by_run_sync_soon_from_a_foreign_thread(run: harness.Run, outside: trio.Nursery) -> Seen:
    seen: list[Seen] = []
    context = copy_context()
    thread = threading.Thread(
        target=context.run,
        args=(harness.run_sync_soon, lambda: seen.append(what_is_seen())),
    )
    thread.start()
    await until(lambda: bool(seen))
    thread.join()
    return seen[0]


WAYS_IN: list[tuple[Callable[[harness.Run, trio.Nursery], Awaitable[Seen]], str | None]] = [
    (by_plain_nursery, "job"),
    (by_start_soon, "job"),
    (by_start_soon_of_no_run, None),
    (by_worker_thread, "job"),
    (by_from_thread_run, "job"),
    (by_from_thread_run_sync, "job"),
    (by_run_sync_soon, "job"),
    (by_run_sync_soon_from_a_worker_thread, "job"),
    (by_run_sync_soon_from_a_foreign_thread, "job"),
]


@pytest.mark.parametrize(("way_in", "run_name"), WAYS_IN)
@pytest.mark.strays
async def test_code_started_from_a_run_sees_the_run_and_the_callers_context(
    way_in: Callable[[harness.Run, trio.Nursery], Awaitable[Seen]], run_name: str | None
) -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as outside:
            async with harness.open_run("job") as run:
                with planted("at the call"):
                    seen = await way_in(run, outside)
    assert seen == (run_name, "at the call")


async def test_fifty_worker_threads_at_once_each_see_their_own_run() -> None:
    """A thread without its caller's context falls back to a process-wide default."""
    seen: dict[int, Seen] = {}

    async def one(number: int) -> None:
        async with harness.open_run(f"job-{number}"):
            seen[number] = await trio.to_thread.run_sync(what_is_seen)

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(one, number)
    assert seen == {number: (f"job-{number}", "unset") for number in range(50)}


# Callbacks -------------------------------------------------------------------------------------


async def test_run_sync_soon_passes_arguments_and_keeps_the_order() -> None:
    seen: list[tuple[int, str]] = []
    async with harness.open_run("job"):
        for number in range(3):
            harness.run_sync_soon(lambda *args: seen.append(args), number, "word")
        assert seen == [], "it is posted, not called"
        await until(lambda: len(seen) == 3)
    assert seen == [(0, "word"), (1, "word"), (2, "word")]


async def test_a_callback_does_not_leak_its_changes_into_the_caller() -> None:
    done: list[bool] = []

    def change() -> None:
        third_party.set("by the callback")
        done.append(True)

    async with harness.open_run("job"):
        harness.run_sync_soon(change)
        await until(lambda: bool(done))
        assert third_party.get() == "unset"


async def test_one_context_can_post_many_callbacks() -> None:
    """`Context.run` can't be entered twice, so a callback that posts a callback needs a copy."""
    seen: list[str | None] = []

    def post_again(times: int) -> None:
        seen.append(what_is_seen()[0])
        if times:
            harness.run_sync_soon(post_again, times - 1)

    async with harness.open_run("job"):
        harness.run_sync_soon(post_again, 3)
        await until(lambda: len(seen) == 4)
    assert seen == ["job"] * 4


def test_run_sync_soon_outside_of_trio_and_of_any_run_says_so() -> None:
    with pytest.raises((RuntimeError, NoRunError), match=r"trio|run"):
        harness.run_sync_soon(print)


# Steering a run from a thread ------------------------------------------------------------------


async def test_a_worker_thread_may_cancel_its_run() -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        async with harness.open_run("job") as run:
            await trio.to_thread.run_sync(lambda: harness.current_run().cancel("from the thread"))
            await trio.sleep_forever()
    assert (run.status, run.cancel_reason) == ("cancelled", "from the thread")


async def test_any_thread_may_cancel_a_run_and_does_not_wait() -> None:
    returned = threading.Event()

    def cancel(run: harness.Run) -> None:
        run.cancel("from afar")
        returned.set()

    with trio.fail_after(PATIENCE_SECONDS):
        async with harness.open_run("job") as run:
            thread = threading.Thread(target=cancel, args=(run,))
            thread.start()
            # trio gets no turn until the thread is through: the cancel can only be queued.
            assert returned.wait(PATIENCE_SECONDS)
            thread.join()
            await trio.sleep_forever()
    assert (run.status, run.cancel_reason) == ("cancelled", "from afar")


async def test_a_cancel_with_grace_from_a_thread() -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        async with harness.open_run("job") as run:
            await in_thread(lambda: run.cancel("soon", grace=0.01))
            await until(lambda: run.stopping)
            await trio.sleep_forever()
    assert (run.status, run.cancel_reason) == ("cancelled", "soon")


async def test_any_thread_may_stop_a_run() -> None:
    async with harness.open_run("job") as run:
        await in_thread(lambda: run.stop("enough"))
        await until(lambda: run.stopping)
    assert run.status == "ok"


async def test_a_cancel_from_a_thread_that_comes_after_the_end_is_a_no_op() -> None:
    async with harness.open_run("job") as run:
        pass
    await in_thread(lambda: run.cancel("too late"))
    await wait_all_tasks_blocked()
    assert run.status == "ok"
    assert run.cancel_reason is None


def test_a_cancel_after_trio_has_ended_is_a_no_op() -> None:
    """The run is still marked as running: its block was never left."""
    handles: list[harness.Run] = []

    async def main() -> None:
        block = harness.open_run("left open")
        handles.append(await block.__aenter__())
        # The block is never left, as when a program crashes; its scope goes with the task.
        raise KeyError("crash")

    # What comes out, and how trio reports the open scope beside it, differs between its versions.
    with pytest.raises(BaseException):  # noqa: B017, PT011
        trio.run(main)
    handles[0].cancel("too late")
    handles[0].stop("too late")
    thread = threading.Thread(target=handles[0].cancel, args=("too late",))
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


async def test_events_emitted_in_a_worker_thread_wake_a_waiting_reader() -> None:
    """Tool functions run in threads, and report their progress from there."""
    read: list[object] = []

    async def reader(subscription: harness.runs.Subscription) -> None:
        async for event in subscription:
            read.append((event.payload, event.path))

    def work() -> None:
        for number in range(3):
            harness.current_run().emit_nowait(number)

    with trio.fail_after(PATIENCE_SECONDS):
        async with harness.open_run("job") as run:
            async with run.subscribe() as subscription:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(reader, subscription)
                    await wait_all_tasks_blocked()
                    await trio.to_thread.run_sync(work)
                    await until(lambda: len(read) == 3)
                    nursery.cancel_scope.cancel()
    assert read == [(0, "job"), (1, "job"), (2, "job")]


async def test_a_thread_may_leave_a_message_in_the_inbox() -> None:
    async with harness.open_run("job") as run:
        await in_thread(lambda: run.inbox.put("from the thread"))
        assert list(run.inbox.take_all()) == ["from the thread"]


async def test_a_run_local_is_reached_from_a_worker_thread() -> None:
    messages = harness.RunLocal(list[str], name="messages")
    async with harness.open_run("job"):
        messages.get().append("task")
        await trio.to_thread.run_sync(lambda: messages.get().append("thread"))
        assert messages.get() == ["task", "thread"]


async def test_two_threads_that_ask_for_a_local_at_once_get_the_same_value() -> None:
    """Plain tools of one turn run in concurrent threads; what one notes, the other must see."""
    first_is_making = threading.Event()
    second_has_asked = threading.Event()

    def make() -> list[str]:
        # Holds the first thread here until the second one has asked, or is kept waiting.
        if not first_is_making.is_set():
            first_is_making.set()
            second_has_asked.wait(0.2)
        return []

    notes = harness.RunLocal(make, name="notes")

    def first_tool() -> None:
        notes.get().append("first")

    def second_tool() -> None:
        assert first_is_making.wait(PATIENCE_SECONDS)
        notes.get().append("second")
        second_has_asked.set()

    async with harness.open_run("job"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, first_tool)
            nursery.start_soon(trio.to_thread.run_sync, second_tool)
        assert sorted(notes.get()) == ["first", "second"]


# Helpers ---------------------------------------------------------------------------------------


async def in_thread(work: Callable[[], object]) -> None:
    """Run plain work in a thread that trio knows nothing about, and see it through."""
    thread = threading.Thread(target=work)
    thread.start()
    await trio.to_thread.run_sync(thread.join)


async def until(condition: Callable[[], bool]) -> None:
    """Give everybody else a turn until something has happened."""
    with trio.fail_after(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - it may be a thread that makes it true
            await trio.sleep(0.001)


async def collect(
    outside: trio.Nursery,
    start: Callable[[trio.Nursery, Callable[[], Awaitable[None]]], object],
) -> Seen:
    """Start a task that reports what it sees, in a nursery outside the run."""
    seen: list[Seen] = []

    async def report() -> None:
        seen.append(what_is_seen())

    start(outside, report)
    await until(lambda: bool(seen))
    return seen[0]
