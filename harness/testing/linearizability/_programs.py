"""Call the operations of an object from several tasks, or one after the other, under a schedule."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import threading
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any

import attrs
import trio

from harness._words import repr_of
from harness.runs._functions import name_of
from harness.testing._outcomes import Outcome, returned
from harness.testing.linearizability._histories import Call
from harness.testing.schedules import Kind, run_schedule
from harness.testing.schedules._strand import RETURNED_AWAITABLE, close_unawaited

Rows = tuple[tuple[int, ...], ...]
"""What each task calls, one after the other: operations by number."""


@attrs.frozen(eq=False)
class Operation:
    """A function of the object, and the rest of what it is called with."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        name = name_of(self.function).rpartition(".")[2]
        return f"{name}({', '.join(map(repr_of, self.arguments))})"


@attrs.define(eq=False)
class Subject:
    """A kind of object, and what can be done with it."""

    make: Callable[[], Any]
    operations: Sequence[Operation]
    backend: Kind

    async def made(self) -> Any:
        """Return a new object."""
        return await self._awaited(self.make())

    async def called(self, thing: Any, operation: int) -> Outcome:
        """Call an operation, and return how it ended."""
        one = self.operations[operation]
        try:
            return returned(await self._awaited(one.function(thing, *one.arguments)))
        except Exception as error:
            return Outcome("raised", error=error)

    async def _awaited(self, value: Any) -> Any:
        if not inspect.isawaitable(value):
            return value
        if self.backend == "threads":
            close_unawaited(value)
            raise TypeError(RETURNED_AWAITABLE)
        return await value

    def as_program(self, program: Callable[[], Awaitable[None]]) -> Callable[[], Any]:
        """Return what a schedule can run, under a name for reports."""

        async def main() -> None:
            await program()

        return main if self.backend != "threads" else lambda: finished(program())


def finished(coroutine: Awaitable[Any]) -> Any:
    """Run a coroutine that waits for nothing that a loop would give it."""
    try:
        coroutine.__await__().send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a program of threads waited for a loop")


@attrs.define(eq=False)
class AtOnce:
    """Calls from several tasks."""

    subject: Subject
    rows: Rows
    calls: list[Call] = attrs.field(factory=list[Call], init=False)
    """What was called in the last run, in the order of beginning."""

    _events: int = attrs.field(default=0, init=False)

    async def __call__(self) -> None:
        """Make an object, and call it."""
        self.calls, self._events = [], 0
        thing = await self.subject.made()
        tasks = [(f"task {number + 1}", number, thing) for number in range(len(self.rows))]
        if self.subject.backend == "trio":
            async with trio.open_nursery() as nursery:
                for name, number, _ in tasks:
                    nursery.start_soon(self._row, number, thing, name=name)
        elif self.subject.backend == "asyncio":
            async with asyncio.TaskGroup() as group:
                for name, number, _ in tasks:
                    group.create_task(self._row(number, thing), name=name)
        else:
            threads = [
                threading.Thread(
                    target=lambda number=number: finished(self._row(number, thing)), name=name
                )
                for name, number, _ in tasks
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    async def _row(self, task: int, thing: Any) -> None:
        for operation in self.rows[task]:
            call = Call(task, operation, self._event())
            self.calls.append(call)
            call.outcome = await self.subject.called(thing, operation)
            call.ended = self._event()

    def _event(self) -> int:
        self._events += 1
        return self._events


@attrs.define(eq=False)
class InTurn:
    """What calls give one after the other; each order is run once."""

    subject: Subject
    put_back: Callable[[], None]
    _outcomes: dict[tuple[int, ...], Outcome | None] = attrs.field(factory=dict, init=False)
    _states: dict[tuple[int, ...], Hashable] = attrs.field(factory=dict, init=False)

    def outcome(self, order: tuple[int, ...]) -> Outcome | None:
        """Return how the last call ends; None if one never returns."""
        if order not in self._outcomes:
            self._run(order)
        return self._outcomes[order]

    def state(self, order: tuple[int, ...]) -> Hashable:
        """Return the object as text, or the order itself if it can't be written."""
        self.outcome(order)
        return self._states.get(order, order)

    def _run(self, order: tuple[int, ...]) -> None:
        ended: list[Outcome] = []
        left: list[Any] = []

        async def program() -> None:
            thing = await self.subject.made()
            for operation in order:
                ended.append(await self.subject.called(thing, operation))
            left.append(thing)

        self.put_back()
        run = run_schedule(self.subject.as_program(program), backend=self.subject.backend)
        if run.error is not None and not run.blocked:
            raise run.error
        for count in range(1, len(order) + 1):
            done = ended[count - 1] if count <= len(ended) else None
            self._outcomes.setdefault(order[:count], done)
        if left:
            try:
                self._states[order] = pickle.dumps(left[0])
            except Exception:  # It holds a lock, for instance. Then each order is a state.
                self._states[order] = order
