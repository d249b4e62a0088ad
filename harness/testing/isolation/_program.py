"""Run an agent function on several inputs at once, or on one alone, as one program.

Each input is a run of its own, in a task of its own. The program keeps how each of them ended.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Any

import attrs
import trio

from harness.runs import Run, open_run, start_soon
from harness.runs._current import current
from harness.testing._outcomes import Outcome, returned
from harness.testing.isolation._same_run import SameRun
from harness.testing.isolation._watch import member
from harness.testing.schedules import Kind, faultable
from harness.testing.schedules._control import controlled
from harness.testing.schedules._strand import RETURNED_AWAITABLE, close_unawaited
from harness.testing.schedules._thread_pools import run_in_pool

AgentFunction = Callable[[Any], Any]
"""An async function of one argument, or a plain one, which is run in a thread."""


@attrs.define(eq=False)
class Program:
    """Several runs of one function, as a program to run under a schedule."""

    agent: AgentFunction
    inputs: Sequence[Any]
    members: Sequence[int]
    """Which of the inputs take part, by index."""

    in_turn: bool = False
    """Whether each begins when the one before has ended."""

    same_run: SameRun | None = None
    """What looks into the one run that all the calls are in; None if each has its own run."""

    outcomes: dict[int, Outcome] = attrs.field(factory=dict[int, Outcome], init=False)
    """How the runs ended, by index of the input."""

    async def __call__(self) -> None:
        """Run it once."""
        self.outcomes.clear()
        if self.same_run is None:
            await self._all(None)
            return
        async with self._in_a_run("calls") as run:
            with self.same_run.holding(run):
                await self._all(run)
        self.same_run.was_cancelled = run.status == "cancelled"
        if self.same_run.was_cancelled:
            # A call cancelled the run that it shares with the others.
            for index in self.members:
                self.outcomes.setdefault(index, Outcome("cancelled"))

    async def _all(self, run: Run | None) -> None:
        groups = [[index] for index in self.members] if self.in_turn else [self.members]
        for group in groups:
            await self._at_once(group, run)

    async def _at_once(self, group: Sequence[int], run: Run | None) -> None:
        async with trio.open_nursery() as nursery:
            for index in group:
                # A task inherits what is set when it starts, so its first step has it too.
                member.set(index)
                # The caller's run belongs to another `trio.run`: these tasks aren't part of it.
                start_soon(nursery, self._one, index, run=run, name=self.name_of(index))
            member.set(None)

    def _in_a_run(self, name: str) -> AbstractAsyncContextManager[Run]:
        return open_run(name)

    async def _one(self, index: int) -> None:
        try:
            with faultable(index + 1):
                await self._run(index)
        except Exception as error:
            # Errors of a run's tasks that came along with a fault cancelling the run.
            self.outcomes[index] = Outcome("raised", error=error)

    async def _run(self, index: int) -> None:
        try:
            if self.same_run is not None:
                self.outcomes[index] = returned(await self.agent(self.inputs[index]))
                return
            async with self._in_a_run(run_name(index)):
                value = await self.agent(self.inputs[index])
                self.outcomes[index] = returned(value)
        except Exception as error:
            self.outcomes[index] = Outcome("raised", error=error)
        except (trio.Cancelled, asyncio.CancelledError):
            self.outcomes.pop(index, None)
            raise
        else:
            # A run that its own code cancelled ends quietly.
            self.outcomes.setdefault(index, Outcome("cancelled"))

    def name_of(self, index: int) -> str:
        """Return the name of the task on the input of this index."""
        return run_name(index) if self.same_run is None else call_name(index)


class AsyncioProgram(Program):
    """The same in asyncio, where a run owns only state."""

    async def _at_once(self, group: Sequence[int], run: Run | None) -> None:
        # The caller's run belongs to another loop.
        current.set(run)
        async with asyncio.TaskGroup() as tasks:
            for index in group:
                member.set(index)
                tasks.create_task(self._one(index), name=self.name_of(index))
            member.set(None)

    @asynccontextmanager
    async def _in_a_run(self, name: str) -> AsyncIterator[Run]:
        with open_run(name).plainly() as run:
            yield run

    async def _one(self, index: int) -> None:
        try:
            await super()._one(index)
        except asyncio.CancelledError:
            control = controlled.get()
            if control is None or not control.cut_short:
                self.outcomes[index] = Outcome("cancelled")  # By its own code.
            raise


class ThreadedProgram(Program):
    """The same with plain functions in threads, where a run owns only state.

    Runs at once have a thread each.
    """

    def __call__(self) -> Any:
        """Run it once; nothing in it waits for a loop."""
        try:
            super().__call__().send(None)
        except StopIteration as stop:
            return stop.value
        raise AssertionError("a program of threads waited for a loop")

    async def _all(self, run: Run | None) -> None:
        if not self.in_turn:
            await self._at_once(self.members, run)
            return
        # One thread for all, as in a pool: it keeps what one run leaves for the next.
        for index in self.members:
            member.set(index)
            run_in_pool(self, self.name_of(index), partial(self._in_thread, index, run))
        member.set(None)

    async def _at_once(self, group: Sequence[int], run: Run | None) -> None:
        threads: list[threading.Thread] = []
        for index in group:
            member.set(index)
            name = self.name_of(index)
            threads.append(threading.Thread(target=self._in_thread, args=(index, run), name=name))
            threads[-1].start()
        member.set(None)
        for thread in threads:
            thread.join()

    def _in_thread(self, index: int, run: Run | None) -> None:
        # The caller's run belongs to another program.
        current.set(run)
        try:
            with nullcontext() if run is not None else open_run(run_name(index)).plainly():
                value = self.agent(self.inputs[index])
                if inspect.isawaitable(value):
                    close_unawaited(value)
                    raise TypeError(RETURNED_AWAITABLE)
                self.outcomes[index] = returned(value)
        except Exception as error:
            self.outcomes[index] = Outcome("raised", error=error)

    @asynccontextmanager
    async def _in_a_run(self, name: str) -> AsyncIterator[Run]:
        with open_run(name).plainly() as run:
            yield run


PROGRAMS: Mapping[Kind, type[Program]] = {
    "trio": Program,
    "asyncio": AsyncioProgram,
    "threads": ThreadedProgram,
}


def run_name(index: int) -> str:
    """Return what reports call the run on the input of this index."""
    return f"run {index + 1}"


def call_name(index: int) -> str:
    """Return what reports call the call on the input of this index, inside one run."""
    return f"call {index + 1}"
