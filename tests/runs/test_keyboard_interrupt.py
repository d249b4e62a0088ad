"""A Ctrl-C at any line of a run's blocks, or of a counter, leaves nothing half done."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable

import pytest
import trio

import harness
from harness.shared import Counter
from tests.support.keyboard_interrupts import HARNESS, strike_each_line

PLACES = [
    f"runs/{path.name}" for path in (HARNESS / "runs").glob("*.py") if path.name != "_carry.py"
]


async def open_and_leave() -> None:
    async with harness.open_run("a", timeout=5):
        async with harness.open_run("b", budget=harness.Budget(tokens=3)) as run:
            run.inbox.put("message")
            run.inbox.take_all()


async def cancel_itself() -> None:
    async with harness.open_run("a") as run:
        run.cancel("no longer needed")
        with harness.cleanup():
            await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()


async def with_a_parent() -> None:
    async with harness.open_run("server") as server:
        async with harness.open_run("request", parent=server):
            await trio.lowlevel.checkpoint()


@harness.open_run("call")
async def call() -> None:
    plain_call()
    await trio.lowlevel.checkpoint()


@harness.open_run("plain call")
def plain_call() -> None:
    pass


async def listen() -> None:
    async with harness.open_run("a") as run, run.subscribe(buffer=1) as events:
        run.emit_nowait(0)

        async def read() -> None:
            for _ in range(3):
                await anext(events)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await run.emit(1)
            await run.emit(2)


async def give_a_task_to_a_run() -> None:
    async with trio.open_nursery() as nursery:
        async with harness.open_run("a") as run:
            harness.start_soon(nursery, trio.sleep, 1, run=run)
            harness.start_soon(nursery, trio.sleep, 1, run=None)


OLD_TRIO = not hasattr(trio._core._ki, "_CODE_KI_PROTECTION_STATUS_WMAP")
"""Where protecting a function would protect all that it calls, the user's own too."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        open_and_leave,
        cancel_itself,
        with_a_parent,
        pytest.param(call, marks=pytest.mark.skipif(OLD_TRIO, reason="unprotected on old trio")),
        listen,
        give_a_task_to_a_run,
    ],
)
def test_at_any_line_of_a_runs_block(body: Callable[[], Awaitable[object]]) -> None:
    assert strike_each_line(body, PLACES) < 500


@pytest.mark.slow
def test_at_any_line_of_a_counter() -> None:
    """A lock that stays taken blocks whoever uses the counter next, forever."""
    counter = Counter()

    async def wait(level: int) -> None:
        await counter.wait_for(level)
        counter.try_spend(level)

    async def body() -> None:
        nonlocal counter
        counter = Counter()
        async with trio.open_nursery() as nursery:
            for level in (1, 3, 2):
                nursery.start_soon(wait, level)
            await trio.sleep(1)
            counter.add(2)
            await trio.sleep(1)
            counter.add(4)
        counter.statistics()

    def after() -> None:
        assert counter._lock.acquire(blocking=False), "the lock stayed taken"
        counter._lock.release()
        counter.check()
        assert counter.statistics().tasks_waiting == 0

    strike_each_line(body, [*PLACES, "shared/_counter.py"], after)


def test_the_users_functions_are_not_protected() -> None:
    """Ctrl-C has to end a loop of the user's, whoever called it."""
    protected: dict[str, bool] = {}

    def note(name: str) -> None:
        protected[name] = trio.lowlevel.currently_ki_protected()

    def fork(value: int) -> int:
        note("fork")
        return value

    forked: harness.RunLocal[int] = harness.RunLocal(int, fork=fork)

    async def work() -> None:
        note("task")
        await trio.lowlevel.checkpoint()

    def start() -> Awaitable[None]:
        note("start")
        return work()

    @harness.open_run("call")
    async def call() -> None:
        note("call")

    @harness.open_run("call")
    def plain() -> None:
        note("plain")

    async def main() -> None:
        note("main")
        with harness.observing(lambda event: note("observer")):
            async with trio.open_nursery() as nursery, harness.open_run("a") as run:
                forked.get()
                note("block")
                harness.start_soon(nursery, start, run=run)
                await call()
                plain()
                await run.emit(1)
                with harness.cleanup():
                    note("cleanup")

    trio.run(main)
    assert protected.keys() >= {"fork", "task", "start", "call", "plain", "observer", "cleanup"}
    assert [name for name, held in protected.items() if held] == []
    assert threading.current_thread() is threading.main_thread()
