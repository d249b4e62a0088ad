"""A Ctrl-C at any line of a primitive leaves nothing half done, as in trio's own.

trio's handler raises `KeyboardInterrupt` wherever the main thread is, except in code that is
protected from it. Here a trace function raises it at the first line of ours that isn't, then at the
second, and so on until none is left. What must hold each time: the program ends with it, and
neither hangs nor breaks trio; no lock stays taken; the context is as before.
"""

from __future__ import annotations

import gc
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.shared import Counter

if sys.version_info >= (3, 12):
    pytest.skip("tracing costs a debugger its place there", allow_module_level=True)

_ki = pytest.importorskip("trio._core._ki")

HARNESS = Path(harness.__file__).parent
FOLDERS = (str(HARNESS / "runs"), str(HARNESS / "shared" / "_counter.py"))
NOT_TRACED = (str(HARNESS / "runs" / "_carry.py"), str(HARNESS / "runs" / "_yields.py"))


class CtrlC:
    """Raises at the n-th unprotected line of ours."""

    def __init__(self, n: int) -> None:
        self.left = n
        self.struck: str | None = None

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        filename = frame.f_code.co_filename
        if not filename.startswith(FOLDERS) or filename.startswith(NOT_TRACED):
            return None
        return self.line

    def line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and self.struck is None and not _ki.ki_protection_enabled(frame):
            self.left -= 1
            if self.left < 0:
                self.struck = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self.line


def every_line(body: Callable[[], Awaitable[object]], after: Callable[[], None] | None) -> int:
    """Interrupt ``body`` at each line in turn, and return how many there were."""
    for n in range(500):
        boom = CtrlC(n)

        async def main(boom: CtrlC = boom) -> None:
            try:
                with trio.fail_after(1_000):
                    sys.settrace(boom)
                    await body()
            finally:
                sys.settrace(None)
                assert harness.current_run_or_none() is None, boom.struck

        try:
            trio.run(main, clock=MockClock(autojump_threshold=0))
        except BaseException as error:
            raised = error
            while isinstance(raised, BaseExceptionGroup):
                (raised,) = raised.exceptions
            if boom.struck is None or type(raised) is not KeyboardInterrupt:
                error.add_note(f"struck at {boom.struck}")
                raise
        if after is not None:
            after()
        if boom.struck is None:
            return n
    raise AssertionError("it has no end")


def lines(body: Callable[[], Awaitable[object]], after: Callable[[], None] | None = None) -> int:
    before = sys.gettrace()
    with warnings.catch_warnings():
        # A task that is struck before its first step leaves what it was to await.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited")
        try:
            return every_line(body, after)
        finally:
            sys.settrace(before)
            gc.collect()


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


@pytest.mark.parametrize(
    "body", [open_and_leave, cancel_itself, with_a_parent, call, listen, give_a_task_to_a_run]
)
def test_at_any_line_of_a_runs_block(body: Callable[[], Awaitable[object]]) -> None:
    assert lines(body) < 500


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

    lines(body, after)


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
