"""Cancel single tasks of a controlled program, and tell what that left behind.

A *struck* task is cancelled at one checkpoint, as by a scope around all of it. Then the program
goes on. If the others can't, since they wait for what the struck task would have done, that is no
fault: the cancel spreads to the whole program, as it would from a nursery. Once the program has
ended, this must hold:

- The struck task ended cancelled, or came to its end; it raised nothing that it doesn't raise
  otherwise, and didn't go on as if nothing had happened.
- No lock and no permit is held (see `_permits`).
- No task is alive that the struck one, or the program, had started.
- What `after_cancel` was given.

What the program does without any cancel is its usual way, and excused.

What isn't the user's function isn't struck by itself: no scope is around a library's own task
alone. The cancel then comes from the nearest user's task above. So it does for a task that hasn't
called ``task_status.started()`` yet.

Private names of trio: ``Task._cancel_status``, ``CancelStatus._scope``, ``.parent``.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import attrs
import outcome
import trio

from harness._words import errors_in_words
from harness.errors import CancellationError
from harness.runs._frames import describe_wait, is_user_code, place
from harness.testing.schedules._as_traceback import as_traceback
from harness.testing.schedules._blocked import task_name
from harness.testing.schedules._control import Control, GiveUp, controlled
from harness.testing.schedules._handlers import is_handling
from harness.testing.schedules._permits import Permits, permits
from harness.testing.schedules._schedule import Fault
from harness.testing.schedules._strand import Scope, Strand

T = TypeVar("T", bound=Callable[[], object])

SETTLE_SECONDS = 1e-6
"""How long tasks that end with the main function have, on the program's clock."""

CLEANUP_MAX_SECONDS = 60
"""How long the cleanups of tasks may take that are ended then, on the program's clock."""

STEPS_TO_SPREAD = 2_000
"""How many more steps a program may make after a cancel, before the cancel spreads; or five times
as many as without one, if that is more."""

MOST_MEETINGS = 100
"""How often a task of trio meets its cancel. One that swallows each could never end otherwise, nor
be ended."""


def after_cancel(check: T) -> T:
    """Say what must hold when a test that was cancelled has ended.

    Called in a test, or above a function in it, as a decorator. Under `explore_cancellations` the
    check runs in the test's event loop, after the test has ended and all of its tasks with it, and
    isn't cancelled itself. It may be async, and try what must still be possible: take a lock, ask
    a pool for a connection. Otherwise it is never called.

    Args:
      check: Raises, or returns False, if something is wrong.

    Returns:
      ``check``.
    """
    control = controlled.get()
    cancels = None if control is None else control.targets.struck_tasks
    if isinstance(cancels, TaskCancels):
        cancels.checks.append(check)
    return check


@attrs.define(eq=False)
class Usual:
    """What a program does without a cancel, which is no fault of one then."""

    errors: set[type[BaseException]] = attrs.field(factory=set[type[BaseException]])
    held: set[str] = attrs.field(factory=set[str])
    """Where was taken what is held at the end, or given back by others."""

    alive: set[str] = attrs.field(factory=set[str])
    """The names of tasks that are alive when the main function has ended."""

    steps: Counter[int] = attrs.field(factory=Counter[int])
    """How many steps each task makes before that, by number."""


@attrs.define(eq=False)
class _Strike:
    """A cancel of a task."""

    number: int
    strand: Strand
    """The task that was cancelled."""

    words: str
    at: types.TracebackType | None
    """Where the test was then, and the task."""

    went_on: str | None = None
    """Where it waits next, as if it had not been cancelled."""


@attrs.define(eq=False)
class _Watch:
    """What becomes of a task of trio, or of the main one."""

    scope: Scope
    shield: trio.CancelScope | None
    """The block inside of the scope, which can keep the scope's cancel out."""

    met: int = 0
    """How often the cancel was raised in it."""

    raised: BaseException | None = None
    returned: bool = False


@attrs.define(eq=False)
class TaskCancels:
    """The tasks of one controlled program, as far as cancels are concerned."""

    control: Control
    usual: Usual
    checks: list[Callable[[], object]] = attrs.field(factory=list[Callable[[], object]], init=False)
    strikes: list[_Strike] = attrs.field(factory=list[_Strike], init=False)
    over: bool = attrs.field(default=False, init=False)
    """Whether the test has ended: what goes on are its checks."""

    _spread: bool = attrs.field(default=False, init=False)
    _permits: Permits = attrs.field(factory=Permits, init=False)
    _watches: dict[Strand, _Watch] = attrs.field(factory=dict[Strand, _Watch], init=False)
    _struck_scopes: list[Scope] = attrs.field(factory=list[Scope], init=False)
    _shielded: set[Any] = attrs.field(factory=set[Any], init=False)
    _alive: dict[Strand, str] = attrs.field(factory=dict[Strand, str], init=False)
    """Tasks that should have ended, each with where it waits."""

    @property
    def _main(self) -> Strand:
        return next(iter(self.control.numbers))

    @property
    def _steps_to_spread(self) -> int:
        return max(STEPS_TO_SPREAD, 5 * self.usual.steps.total())

    def _name(self, strand: Strand) -> str:
        return "the test" if strand is self._main else f"task {task_name(strand)!r}"

    def in_words(self) -> list[str]:
        """Return what was cancelled, and where."""
        return [strike.words for strike in self.strikes]

    # The whole program --------------------------------------------------------------------------

    async def run(self, test: Callable[[], Awaitable[Any]]) -> None:
        """Run a test in the main task, and judge what a cancel has left behind.

        Raises:
          CancellationError: if a task was cancelled, and that left something behind.
          BaseException: what the test raises, if no task was cancelled; and what a check raises.
        """
        control = self.control
        control.targets.struck_tasks = self
        control.relieve = self._spread_out
        token = permits.set(self._permits)
        main = self._main

        async def called() -> Any:
            return await test()

        try:
            with control.backend.scope() as scope, _shielding(main) as shield:
                coro = called()
                outer = control.coroutines.get(main)
                try:
                    await self._relayed(main, coro, _Watch(scope, shield))
                except BaseException as exc:
                    if not self.strikes or isinstance(exc, _ENDS_ALL):
                        raise
                finally:
                    if outer is None:
                        control.coroutines.pop(main, None)
                    else:
                        control.coroutines[main] = outer
        finally:
            permits.reset(token)
        if control.cut_short:
            return
        self.over = True
        if not self.strikes:
            # What the first step of the main task needs, some backends don't pick.
            self.usual.steps = Counter(control.order)
            self.usual.steps[0] += control.steps - len(control.order)
        await self._wind_up()
        if not self.strikes:
            self._learn()
        findings, error = self._findings() if self.strikes else ([], None)
        checked = await self._check()
        if checked is not None:
            error = error or checked
            findings.append(f"after_cancel: {errors_in_words(checked)}")
        if not self.strikes and error is not None:
            raise error
        if findings:
            struck = ", and ".join(strike.words for strike in self.strikes)
            found = CancellationError("\n".join([f"{struck}:", *findings]))
            raise found.with_traceback(self.strikes[0].at) from error

    async def _check(self) -> Exception | None:
        for check in self.checks:
            try:
                result = check()
                if inspect.isawaitable(result):
                    result = await result
                if result is False:
                    name = getattr(check, "__qualname__", repr(check)).rpartition("<locals>.")[2]
                    code = getattr(check, "__code__", None)
                    where = name if code is None else place(code, code.co_firstlineno)
                    return AssertionError(f"{where} returned False")
            except Exception as exc:
                return exc
        return None

    def _learn(self) -> None:
        usual = self.usual
        usual.held |= {taken.where for taken in self._permits.still_held()}
        usual.held |= self._permits.handed_over()
        usual.alive |= set(map(task_name, self._alive))
        for strand in self.control.numbers:
            error, _ = self._ended(strand)
            usual.errors |= {type(leaf) for leaf in _leaves(error)}

    def _findings(self) -> tuple[list[str], BaseException | None]:
        """Return what is wrong, in words, and the first error among it."""
        found: list[str] = []
        first: BaseException | None = None
        for strike in self.strikes:
            error, swallowed = self._ended(strike.strand)
            name = self._name(strike.strand)
            leaves = [leaf for leaf in _leaves(error) if type(leaf) not in self.usual.errors]
            for leaf in leaves:
                first = first or leaf
                found.append(f"{name} raised {errors_in_words(leaf)}")
            if strike.went_on is not None:
                found.append(
                    f"{name} swallowed the cancel, and went on to wait in {strike.went_on}"
                )
            elif swallowed:
                found.append(f"{name} swallowed the cancel, and returned as if there had been none")
        for taken in self._permits.still_held():
            if taken.where not in self.usual.held:
                who = self._name(taken.by)
                found.append(f"{taken.what} is still held: {who} took it in {taken.where}")
        found += [
            f"task {task_name(strand)!r} is left alive: it waits in {where}"
            for strand, where in self._alive.items()
            if task_name(strand) not in self.usual.alive
        ]
        return found, first

    # Tasks --------------------------------------------------------------------------------------

    def cancel(self, strand: Strand, fault: Fault) -> None:
        """Cancel a task; see `StruckTasks`."""
        backend = self.control.backend
        waits = describe_wait(self.control.frames(strand))
        how = "as it woke" if fault.kind == "cancel_task_waking" else "while it waited"
        words = f"{self._name(strand)} was cancelled {how} in {waits}"
        target: Strand | None = strand
        while target is not None and target is not self._main and self._is_nobodys(target):
            target = backend.parent(target)
        if target is None or not backend.is_live(target) or self.over:
            return
        if fault.kind == "cancel_task_waking" and fault.at == 1:
            return  # It hasn't come to a checkpoint yet.
        watch = self._watches.get(target)
        if watch is None and getattr(target, "task", None) is None:
            return  # A thread, or a callback.
        if target is not strand:
            words += f", from {self._name(target)}"
        self.control.most_steps = self.control.steps + self._steps_to_spread
        live = self.control.live()
        frames = [*self.control.frames(self._main)] if self._main in live else []
        if target is not self._main:
            frames += self.control.frames(target)
        at = as_traceback(frames)
        self.strikes.append(_Strike(self.control.numbers[target], target, words, at))
        self._note_shielded()
        if watch is not None:
            self._cancel(watch)
        else:
            task: Any = target
            task.task.cancel()

    def _cancel(self, watch: _Watch) -> None:
        self._struck_scopes.append(watch.scope)
        watch.scope.cancel()

    def _is_nobodys(self, strand: Strand) -> bool:
        """Tell whether no user's scope could be around this task alone."""
        if getattr(strand, "eventual_parent_nursery", None) is not None:
            return True
        coro = self.control.coroutines.get(strand)
        if coro is None:
            task = getattr(strand, "task", None)
            coro = None if task is None else task.get_coro()
        code = getattr(coro, "cr_code", None)
        return code is not None and not is_user_code(code.co_filename)

    def watched(self, strand: Strand, coro: Any) -> Any:
        """Return a task's coroutine, in a scope; see `StruckTasks`."""
        # The name and the frames of a task are those of its own function.
        return self._in_scope(strand, coro)

    async def _in_scope(self, strand: Strand, coro: Any) -> Any:
        with self.control.backend.scope() as scope, _shielding(strand) as shield:
            return await self._relayed(strand, coro, _Watch(scope, shield))

    @types.coroutine
    def _relayed(self, strand: Strand, coro: Any, watch: _Watch) -> Generator[Any, Any, Any]:
        """Run a coroutine, and see whether a cancel is raised in it."""
        self._watches[strand] = watch
        self.control.coroutines[strand] = coro
        value: Any = None
        error: BaseException | None = None
        try:
            while True:
                try:
                    message = coro.send(value) if error is None else coro.throw(error)
                except StopIteration as stop:
                    watch.returned = True
                    return stop.value
                except BaseException as exc:
                    watch.raised = exc
                    raise
                value = error = None
                try:
                    value = yield message
                except GeneratorExit:
                    raise
                except BaseException as exc:
                    error = exc
                # What trio wakes a task with says how its wait ended.
                if (
                    isinstance(value, outcome.Error)
                    and isinstance(value.error, trio.Cancelled)
                    and self._is_ours(strand)
                ):
                    watch.met += 1
                    if watch.met > MOST_MEETINGS and watch.shield is not None:
                        watch.shield.shield = True
        finally:
            coro.close()
            error = None  # It holds this frame, which holds it.

    def _is_ours(self, strand: Strand) -> bool:
        """Tell whether a cancel of ours reaches a task, which a shield may keep from it."""
        if not self._struck_scopes:
            return False
        status: Any = getattr(strand, "_cancel_status", None)
        while status is not None:
            if status._scope in self._struck_scopes:
                return True
            if status._scope.shield:
                return False
            status = status.parent
        return False

    def _ended(self, strand: Strand) -> tuple[BaseException | None, bool]:
        """Return what a task has raised, if it has, and whether it swallowed a cancel."""
        watch = self._watches.get(strand)
        if watch is not None:
            return watch.raised, watch.met > 0 and watch.returned
        task = getattr(strand, "task", None)
        if task is None or not task.done() or task.cancelled():
            return None, False
        return task.exception(), False

    def step_ended(self) -> None:
        """See whether a struck task of asyncio goes on; see `StruckTasks`."""
        for strike in self.strikes:
            task = getattr(strike.strand, "task", None)
            if (
                task is None
                or strike.went_on is not None
                or self._spread
                or self.control.order[-1] != strike.number
                or task.done()
                or not task.cancelling()
            ):
                continue
            frames = self.control.frames(strike.strand)
            if not any(
                is_handling(frame) or frame.f_code.co_name == "__aexit__"  # It may raise it later.
                for frame, _ in frames
            ):
                strike.went_on = describe_wait(frames)

    # When nothing goes on -----------------------------------------------------------------------

    def _spread_out(self) -> bool:
        """Cancel the rest of a program that can't end, or doesn't, because a task was cancelled."""
        if not self.strikes or self._spread or self.over:
            return False
        self._spread = True
        # A task of trio lives in a nursery, maybe in one of a task that goes on.
        self._note_alive(self._began_by_struck)
        self.control.most_steps = self.control.steps + self._steps_to_spread
        self._cancel(self._watches[self._main])
        return True

    async def _wind_up(self) -> None:
        """Note which tasks are alive, and end them, as `asyncio.run` does."""
        sleep = self.control.backend.sleep
        await sleep(SETTLE_SECONDS)
        whole = not self.strikes or any(strike.strand is self._main for strike in self.strikes)
        self._note_alive(lambda strand: whole or self._began_by_struck(strand))
        for strand in self.control.live():
            task = getattr(strand, "task", None)
            if task is not None and strand is not self._main and task not in self._shielded:
                task.cancel()
        waited_seconds = 0
        while len(self.control.live()) > 1 and waited_seconds < CLEANUP_MAX_SECONDS:
            await sleep(1)
            waited_seconds += 1

    def _note_alive(self, counts: Callable[[Strand], bool]) -> None:
        self._note_shielded()
        for strand in self.control.live():
            task = getattr(strand, "task", None)
            if strand is self._main or task in self._shielded:
                continue
            if task is None and not isinstance(strand, trio.lowlevel.Task):
                continue  # A thread can't be cancelled.
            if task is not None and task.cancelling():
                continue  # It is about to end.
            if counts(strand):
                self._alive.setdefault(strand, describe_wait(self.control.frames(strand)))

    def _note_shielded(self) -> None:
        """Note the tasks of asyncio that are meant to go on: what somebody waits for in a shield.

        Once that somebody is cancelled, nothing shows it any more.
        """
        for strand in self.control.live():
            waits_for = getattr(getattr(strand, "task", None), "_fut_waiter", None)
            for callback, *_ in getattr(waits_for, "_callbacks", None) or ():
                if getattr(callback, "__qualname__", "").startswith("shield.<locals>"):
                    for cell in callback.__closure__ or ():
                        self._shielded.add(cell.cell_contents)

    def _began_by_struck(self, strand: Strand) -> bool:
        struck = {strike.number for strike in self.strikes}
        if struck & {0, self.control.numbers[strand]}:
            return False  # The main task is the whole program.
        number = self.control.numbers[strand]
        while number and number not in struck:
            number = self.control.started_by[number]
        return number in struck


def _shielding(strand: Strand) -> AbstractContextManager[trio.CancelScope | None]:
    return trio.CancelScope() if isinstance(strand, trio.lowlevel.Task) else nullcontext()


def with_cancels(test: Callable[[], Awaitable[Any]], usual: Usual) -> Callable[[], Awaitable[None]]:
    """Return a program whose tasks can be cancelled, and which then fails for what is left.

    Args:
      test: The program.
      usual: What is learned of it whenever it runs without a cancel, which it must first.
    """

    @functools.wraps(test)
    async def program() -> None:
        control = controlled.get()
        assert control is not None
        await TaskCancels(control, usual).run(test)

    return program


_ENDS_ALL = (GiveUp, KeyboardInterrupt, SystemExit)


def _leaves(error: BaseException | None) -> Iterator[Exception]:
    """Yield the errors in a group, cancels left out."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    elif isinstance(error, Exception):
        yield error
