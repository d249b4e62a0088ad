"""Control steps through trio's own hook for deterministic scheduling, using private names.

Each turn of trio's loop takes all runnable tasks as one batch. If deterministic scheduling is on,
it sorts the batch and lets ``_r.shuffle(batch)`` order it. Here that call leaves one task in the
batch, and holds the others for later turns.

Both the switch and ``_r`` belong to the whole process, so while a controlled run lasts they are
replaced with objects that ask *whose* loop it is: only a controlled loop finds the switch on. Every
other loop, in whatever thread, takes the path it would have taken anyway, and draws from the same
random object in the same way.

Private names: ``_run._r``, ``_run._ALLOW_DETERMINISTIC_SCHEDULING``,
``_run.GLOBAL_RUN_CONTEXT.runner``, ``Runner.runq``; and, to end tasks that ignore a cancel,
``Task._next_send_fn`` and ``Task._next_send``. They are tried before they are relied on (see
`_step_backends`), and there is another way if they are gone.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from harness.testing.schedules._control import Control, GiveUp
from harness.testing.schedules._step_backend import Session, StepBackend
from harness.testing.schedules._strand import Watchers

T = TypeVar("T")


@attrs.define(eq=False)
class HookSession(Session):
    """The control of one ``trio.run``; also the instrument that sees its tasks spawned."""

    runner: Any = attrs.field(default=None, init=False)
    beside_driver: bool = attrs.field(default=False, init=False)
    """Whether a task of the program could go on in the turn in which the driver woke."""

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Make trio ask us for as long as the block lasts."""
        _replacement.begin()
        _replacement.here.session = self
        try:
            yield
        finally:
            _replacement.here.session = None
            if self.runner is not None:
                _replacement.sessions.pop(self.runner, None)
            _replacement.end()

    def instruments(self) -> list[trio.abc.Instrument]:
        """Return ourselves and, if there are observers, what sees each step."""
        if self.watchers.observers or self.control.targets.faults:
            return [self, _Steps(self.control, self.watchers)]
        return [self]

    async def run_main(self, async_fn: Callable[[], Awaitable[T]]) -> T:
        """Take control of the tasks started from now on, and run the main function."""
        self.guests.begin()
        self.control.steps += 1  # The nursery being made.
        self.control.targets.begin_task_step(0, trio.lowlevel.current_task())
        return await async_fn()

    async def drive(self, idle: Callable[[], Awaitable[None]]) -> None:
        """Only wait for idle moments: trio's loop makes the steps."""
        while True:
            await wait_all_tasks_blocked()
            # A task of the program that waits for the same moment as we do isn't idle then.
            if not self.beside_driver:
                await idle()

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        """Admit a task of the program."""
        self.guests.admit(task)

    def arrange(self, batch: list[trio.lowlevel.Task]) -> None:
        """Leave one of the program's tasks in the batch, and all tasks of others."""
        control = self.control
        numbers = control.numbers
        others: list[trio.lowlevel.Task] = []
        for task in batch:
            if task in numbers:
                control.add(task)
            else:
                others.append(task)
        self.beside_driver = bool(control.ready)
        if not control.ready:
            batch[:] = others
            return
        chosen: Any = control.pick()
        if control.giving_up:
            if control.hopeless:
                raise GiveUp
            chosen._next_send_fn = chosen.coro.throw
            chosen._next_send = GiveUp()
        if control.ready:
            # With one in line, trio doesn't wait for anything. The others are only held here, since
            # putting all back would make a step cost the more, the more there are.
            self.runner.runq.append(next(iter(control.ready.values())))
        batch[:] = [chosen, *others]  # Taken from the end: trio's own tasks come first.


class HookBackend(StepBackend):
    """Steps are chosen where trio would shuffle them."""

    name = "hook"
    session_class = HookSession


@attrs.define(eq=False)
class _Steps(trio.abc.Instrument):
    """Calls observers around the program's steps, and does what waits for a step to end."""

    control: Control
    watchers: Watchers

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task in self.control.numbers:
            self.watchers.before(task)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task in self.control.numbers:
            self.watchers.after(task)
            self.control.targets.step_ended()


class _Replacement:
    """What is in trio's module while a controlled run lasts."""

    def __init__(self) -> None:
        self.sessions: dict[Any, HookSession] = {}
        """The controlled loops, by runner."""

        # harness: shared (it is about threads: each starts one loop at a time)
        self.here = threading.local()
        """The session waiting for the loop that this thread is about to start."""

        self.trio_run: Any = None
        self.context: Any = None
        self._lock = threading.Lock()
        self._users = 0
        self._placed: dict[str, _Random | _Switch] = {}
        """What stands there now, by name."""

    def begin(self) -> None:
        with self._lock:
            if self._users == 0:
                trio_run: Any = import_module("trio._core._run")
                self.trio_run = trio_run
                self.context = trio_run.GLOBAL_RUN_CONTEXT
                for name, kind in _REPLACED.items():
                    self._placed[name] = kind(self, getattr(trio_run, name))
                    setattr(trio_run, name, self._placed[name])
            self._users += 1

    def end(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                # Somebody else's replacement of our replacement stays.
                for name, placed in self._placed.items():
                    if getattr(self.trio_run, name) is placed:
                        setattr(self.trio_run, name, placed.original)

    def session_here(self) -> HookSession | None:
        """Return the session that controls this thread's loop, if any."""
        runner = getattr(self.context, "runner", None)
        session = self.sessions.get(runner)
        if session is None and runner is not None:
            session = getattr(self.here, "session", None)
            if session is not None:  # The first turn of its loop.
                self.here.session = None
                session.runner = runner
                self.sessions[runner] = session
        return session


class _Switch:
    """True for controlled loops; for others, what it was."""

    def __init__(self, replacement: _Replacement, original: Any) -> None:
        self.replacement = replacement
        self.original = original

    def __bool__(self) -> bool:
        return self.replacement.session_here() is not None or bool(self.original)


class _Random:
    """Arranges the batches of controlled loops, and is the original in every other way."""

    def __init__(self, replacement: _Replacement, original: Any) -> None:
        self.replacement = replacement
        self.original = original

    def shuffle(self, batch: list[trio.lowlevel.Task]) -> None:
        session = self.replacement.session_here()
        if session is None:
            self.original.shuffle(batch)
            return
        before = list(batch)
        try:
            session.arrange(batch)
        except GiveUp:
            raise  # The only way to end a loop whose tasks can't be ended.
        except BaseException as exc:
            # An error here would end trio in the middle of its loop. Without control, the run can
            # still end in an orderly way, and then fails with what went wrong.
            self.replacement.sessions.pop(session.runner, None)
            runq = session.runner.runq
            held: dict[int, Any] = session.control.ready
            batch[:] = dict.fromkeys([*before, *batch, *runq, *held.values()])
            runq.clear()
            held.clear()
            session.guests.ending.for_error(exc)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)


_REPLACED: Mapping[str, type[_Random | _Switch]] = {
    "_r": _Random,
    "_ALLOW_DETERMINISTIC_SCHEDULING": _Switch,
}
"""The names in trio's module, and what stands there meanwhile."""

_replacement = _Replacement()
