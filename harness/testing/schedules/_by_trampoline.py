"""Control steps through a wrapper around every coroutine, using public names only.

An instrument sees each task spawned, and replaces its coroutine with one of ours. Ours passes on
whatever the task's coroutine yields to trio; but before each step it parks, and goes on when the
driver lets it. The driver waits until every task is parked or blocked, picks one of the parked, and
waits again.

This is the slower way: each step takes three turns of trio's loop. Public names: `Task.coro`,
``Instrument.task_spawned``, `trio.lowlevel.wait_task_rescheduled`, `trio.lowlevel.reschedule`,
`trio.testing.wait_all_tasks_blocked`.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from harness.testing.schedules._control import GiveUp
from harness.testing.schedules._step_backend import Session, StepBackend

T = TypeVar("T")


@attrs.define(eq=False)
class TrampolineSession(Session):
    """The control of one ``trio.run``; also the instrument that sees its tasks spawned."""

    parked: dict[trio.lowlevel.Task, bool] = attrs.field(factory=dict, init=False)
    """The tasks that could go on, each with whether it was waiting for all others to block."""

    def __call__(self) -> AbstractContextManager[None]:
        """Do nothing: all is done by the instrument."""
        return nullcontext()

    async def run_main(self, async_fn: Callable[[], Awaitable[T]]) -> T:
        """Take control of the loop that calls this, and run the main function."""
        self.guests.begin()
        task = trio.lowlevel.current_task()

        async def main() -> T:
            return await async_fn()

        result: T = await self._step_by_step(main(), task)
        return result

    async def drive(self, idle: Callable[[], Awaitable[None]]) -> None:
        """Let one parked task go on at a time, whenever all others are parked or blocked."""
        while True:
            await wait_all_tasks_blocked()
            if not self.parked:
                # Tasks of the program that wait for the same moment may be about to park.
                await wait_all_tasks_blocked()
            if not self.parked:
                await idle()
                continue
            # To trio, parked tasks are blocked too, so it wakes too early those tasks that wait for
            # all others to block. They are held until all others really are blocked.
            eager = [task for task, for_quiet in self.parked.items() if not for_quiet]
            chosen = self.control.pick(eager or self.parked)
            assert isinstance(chosen, trio.lowlevel.Task)
            del self.parked[chosen]
            trio.lowlevel.reschedule(chosen)

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        """Wrap the coroutine of a task of the program."""
        if self.guests.admit(task):
            task.coro = self._wrapped(task.coro, task)  # type: ignore[assignment]

    async def _wrapped(self, coro: Coroutine[Any, Any, Any], task: trio.lowlevel.Task) -> Any:
        return await self._step_by_step(coro, task)

    @types.coroutine
    def _step_by_step(
        self, coro: Coroutine[Any, Any, Any], task: trio.lowlevel.Task
    ) -> Generator[Any, Any, Any]:
        value: Any = None
        error: BaseException | None = None
        self.control.coroutines.setdefault(task, coro)
        try:
            yield from self._park(task, for_quiet=False)
            while True:
                if self.control.giving_up:
                    if self.control.hopeless:
                        raise GiveUp  # The only way to end a task that can't be ended.
                    error = GiveUp()
                self.watchers.before(task)
                try:
                    message = coro.send(value) if error is None else coro.throw(error)
                except StopIteration as stop:
                    self._ended(task)
                    return stop.value
                except BaseException:
                    self._ended(task)
                    raise
                self._ended(task)
                value = error = None
                try:
                    value = yield message
                except GeneratorExit:
                    raise
                except BaseException as exc:
                    error = exc
                yield from self._park(
                    task, for_quiet=_waits_for_quiet(self.control.coroutines[task])
                )
        finally:
            coro.close()
            error = None  # It holds this frame, which holds it.

    def _ended(self, task: trio.lowlevel.Task) -> None:
        self.watchers.after(task)
        self.control.targets.step_ended()

    def _park(self, task: trio.lowlevel.Task, *, for_quiet: bool) -> Generator[Any, Any, None]:
        self.parked[task] = for_quiet
        # A cancel doesn't end this wait. The task's turn was already due when the cancel came; it
        # meets the cancel at its next checkpoint, as it would have without us.
        wait = trio.lowlevel.wait_task_rescheduled(_never)  # noqa: ASYNC105 - awaited right below
        yield from wait.__await__()


class TrampolineBackend(StepBackend):
    """Steps are held back inside of each task."""

    name = "trampoline"
    session_class = TrampolineSession


def _never(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


def _waits_for_quiet(coro: Any) -> bool:
    """Return whether a coroutine is inside `trio.testing.wait_all_tasks_blocked`."""
    while coro is not None:
        code = getattr(coro, "cr_code", None)
        if code is not None and code.co_name == "wait_all_tasks_blocked":
            return True
        coro = getattr(coro, "cr_await", None)
    return False
