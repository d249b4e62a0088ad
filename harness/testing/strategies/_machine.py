"""Have Hypothesis choose what is called, from which task, and in which order the steps come.

A state machine of Hypothesis calls its rules one after the other. Here the rules marked `at_once`
are only noted while Hypothesis chooses; when it has chosen, they are called under a schedule that
it has drawn, too. So calls, arguments and switches shrink together.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, TypeVar

import trio
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from harness._root_errors import root_errors
from harness.testing.exploration._timeline import Timeline
from harness.testing.schedules import Kind, Schedule, run_schedule
from harness.testing.schedules._kinds import by_names, globals_used, is_plain
from harness.testing.strategies._strategies import schedules

TASKS = 3
"""How many tasks, at most, call rules."""

RuleT = TypeVar("RuleT", bound=Callable[..., Any])


def at_once(**arguments: st.SearchStrategy[Any]) -> Callable[[RuleT], RuleT]:
    """Make a method a rule that is called while others are under way.

    Like ``hypothesis.stateful.rule``, but for bundles: what it returns isn't known when the next
    rule is chosen. Each call is made by one of three tasks, which Hypothesis draws as ``task``.

    Args:
      **arguments: A strategy for each parameter.

    Raises:
      TypeError: if there is one for ``task``, or for a bundle's ``target``.
    """
    for name in ("target", "targets", "task"):
        if name in arguments:
            raise TypeError(
                f"at_once({name}=...) can't be had: the rule is called after all rules are chosen"
                if name != "task"
                else "at_once(task=...) is drawn by at_once itself; name that parameter otherwise"
            )

    def decorate(function: RuleT) -> RuleT:
        @functools.wraps(function)
        def noted(machine: ConcurrentStateMachine, *, task: int, **given: Any) -> None:
            machine.noted.append((task, functools.partial(function, machine, **given)))

        # Hypothesis reads the parameters of what it is given.
        del noted.__wrapped__
        strategies: dict[str, Any] = {"task": st.integers(1, TASKS), **arguments}
        make_rule: Any = rule
        marked: Any = make_rule(**strategies)(noted)
        marked.called_at_once = function
        return marked  # type: ignore[no-any-return]

    return decorate


class ConcurrentStateMachine(RuleBasedStateMachine):
    """A state machine of Hypothesis whose rules are called at once, under schedules::

        class CacheMachine(ConcurrentStateMachine):
            def __init__(self):
                super().__init__()
                self.cache = Cache()

            @at_once(key=st.sampled_from("ab"))
            async def load(self, key):
                assert await self.cache.get(key) == key.upper()

            async def afterwards(self):
                assert self.cache.loads <= 2

        TestCache = CacheMachine.TestCase

    A rule of Hypothesis's own is called while it chooses, before all that is marked `at_once`: it
    can prepare things. `afterwards` says what must hold in the end.
    """

    backend: ClassVar[Kind | None] = None
    """``"trio"``, ``"asyncio"`` or ``"threads"``; None: told from the code of the rules."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[int, Callable[[], Any]]] = []
        """What is to be called, each with the number of its task."""

        self._schedule = Schedule()

    @initialize(schedule=schedules())
    def under(self, schedule: Schedule) -> None:
        """Take the schedule that everything is called under."""
        self._schedule = schedule

    def afterwards(self) -> Awaitable[None] | None:
        """Check what must hold when all calls have ended; plain or async."""
        return None

    def teardown(self) -> None:
        """Call what was noted."""
        if not self.noted:
            return
        kind = self.backend or _kind_of(type(self))
        timeline = Timeline()
        run = run_schedule(
            self._as_program(kind), self._schedule, observers=(timeline,), backend=kind
        )
        if run.error is not None:
            note("\n".join(["in this order of steps:", *(f"  {one}" for one in timeline.lines())]))
            raise next(iter(errors)) if len(errors := root_errors(run.error)) == 1 else run.error

    def _as_program(self, kind: Kind) -> Callable[[], Any]:
        rows = {
            task: [call for other, call in self.noted if other == task] for task, _ in self.noted
        }
        names = {task: f"task {task}" for task in rows}

        async def row(task: int) -> None:
            for call in rows[task]:
                await _awaited(call())

        async def on_trio() -> None:
            async with trio.open_nursery() as nursery:
                for task, name in names.items():
                    nursery.start_soon(row, task, name=name)
            await _awaited(self.afterwards())

        async def on_asyncio() -> None:
            async with asyncio.TaskGroup() as group:
                for task, name in names.items():
                    group.create_task(row(task), name=name)
            await _awaited(self.afterwards())

        def on_threads() -> None:
            errors: list[BaseException] = []

            def plain_row(task: int) -> None:
                try:
                    for call in rows[task]:
                        call()
                except Exception as error:
                    errors.append(error)

            threads = [
                threading.Thread(target=plain_row, args=(task,), name=name)
                for task, name in names.items()
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if errors:
                raise errors[0]
            self.afterwards()

        programs: dict[Kind, Callable[[], Any]]
        programs = {"trio": on_trio, "asyncio": on_asyncio, "threads": on_threads}
        programs[kind].__qualname__ = "<locals>.main"  # What reports call its task.
        return programs[kind]


async def _awaited(value: Any) -> None:
    if inspect.isawaitable(value):
        await value


def _kind_of(machine: type[ConcurrentStateMachine]) -> Kind:
    """Return the kind of program that the rules of a machine are."""
    members = [member for one in machine.__mro__ for member in vars(one).values()]
    functions = [one.called_at_once for one in members if hasattr(one, "called_at_once")]
    if all(map(is_plain, functions)):
        return "threads"
    named = by_names(thing for one in functions for thing in globals_used(one))
    return named or by_names(functions[0].__globals__.values()) or "trio"
