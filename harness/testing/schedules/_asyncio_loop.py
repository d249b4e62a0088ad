"""Run asyncio's event loop one step at a time, on a virtual clock, with the order chosen outside.

What is ready in asyncio's own queue becomes strands, and `Control.pick` says whose turn it is:

- *A task* that could go on may be overtaken by any other, as if what it awaited came later. Only
  one promise is kept: a task that merely gives way (``sleep(0)``) doesn't overtake the start of one
  that it has created before, since programs rely on that.
- *A callback* may come after what was queued before it, and before what was queued after it never
  goes on: asyncio promises to call callbacks in order, and before whoever awaits the same future.
- *A timer* that is due may be late: two deadlines at the same moment strike in either order.
- *A function for an executor*, such as that of ``to_thread``, runs in a thread of its own, up to
  its next point each time it is picked (see `_threads`), while the loop looks on. Of a pool, no
  more run at once than it has workers. One that is blocked elsewhere is left alone until it comes
  back.

What asyncio does only to pass on a result (waking a sleeper, telling `gather`) isn't a step: it
happens at once, since delaying it is the same as delaying the task that it wakes.

Private names of asyncio: ``BaseEventLoop._run_once``, ``_ready``, ``_scheduled``, ``_selector``,
``_process_events``; ``Handle._callback``, ``_context``, ``_cancelled``, ``_run``; and those of
``ThreadPoolExecutor``: ``_max_workers``, ``_initializer``, ``_initargs``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import heapq
import inspect
import math
import selectors
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import Context, copy_context
from typing import Any, Literal

import attrs
import outcome

from harness.testing.schedules._control import Control, GiveUp
from harness.testing.schedules._ending import Ending
from harness.testing.schedules._outside import OutsideWaits
from harness.testing.schedules._strand import Watchers, await_frames
from harness.testing.schedules._thread_pools import pool_of
from harness.testing.schedules._threads import ThreadStrand, crew_of

_GLANCE_SECONDS = 0.002
_STEPS_BETWEEN_GLANCES = 64
_CANCELS_TO_END = 3

_BEGIN_SECONDS = 1024
"""The clock begins at a whole multiple of this, at or after the real one: nothing made before is
from the future, and for a while every run computes with the very same numbers."""

_STEPS_OF_TASKS = frozenset({"task_wakeup", "__step", "__wakeup", "TaskStepMethWrapper"})
"""What the functions are called that asyncio's tasks are queued as."""

_ONLY_PASS_ON = frozenset({"asyncio.tasks", "asyncio.futures"})
"""Modules whose callbacks only hand a result to a task."""

_TASKS: tuple[type[Any], ...] = (asyncio.Task, getattr(asyncio.tasks, "_PyTask", asyncio.Task))


class _NumberedTask(asyncio.Task[Any]):
    """A task whose place in a set is the same in every run of a schedule.

    Programs iterate over sets of tasks, such as those that `asyncio.wait` returns.
    """

    def __init__(self, number: int, coro: Any, **settings: Any) -> None:
        self._number = number  # First: asyncio puts the task into a set of its own.
        super().__init__(coro, **settings)

    def __hash__(self) -> int:
        return self._number


@attrs.define(eq=False)
class AsyncioStrand:
    """What makes steps in an asyncio loop."""

    kind: Literal["task", "callback", "timer", "thread"]
    code_name: str
    context: Context
    parent: AsyncioStrand | None
    task: asyncio.Task[Any] | None = None
    begun: bool = False
    """Whether a task has made its first step."""

    thread: ThreadStrand | None = None
    """What runs a function in a thread, once it has begun."""

    @property
    def name(self) -> str:
        """The name that a task was given, or that of its function."""
        name = "Task-1" if self.task is None else self.task.get_name()
        # asyncio's own names count all the tasks that the process ever had.
        return self.code_name if name.startswith("Task-") and name[5:].isdecimal() else name


@attrs.define(eq=False)
class _ThreadWork:
    """A function for an executor."""

    executor: concurrent.futures.Executor | None
    function: Callable[[], Any]
    future: asyncio.Future[Any]
    thread: ThreadStrand | None = attrs.field(default=None, init=False)
    """What runs it; None before it has begun."""

    @property
    def _cancelled(self) -> bool:
        return self.thread is None and self.future.cancelled()


class ControlledLoop(asyncio.SelectorEventLoop):
    """An event loop that makes the steps that a `Control` picks."""

    _asyncgens: Any
    _process_events: Callable[[Any], None]
    _ready: deque[Any]
    _scheduled: list[Any]
    _selector: selectors.BaseSelector
    _stopping: bool
    _timer_cancelled_count: int

    def __init__(self, control: Control, ending: Ending, watchers: Watchers) -> None:
        super().__init__()
        self.control = control
        self.stepping: AsyncioStrand | None = None
        """What makes the step that is being made."""
        self._ending = ending
        self._watchers = watchers
        self._began_at = self._now = math.ceil(time.monotonic() / _BEGIN_SECONDS) * _BEGIN_SECONDS
        self._began_at_wall_clock = time.time()
        self._pending: dict[AsyncioStrand, Any] = {}
        """What could go on, in the order of the queue, each with its handle."""
        self._not_tasks = 0
        """How much of that isn't a task."""
        self._callbacks = 0
        self._partial = False
        """Whether some of what is pending was left out when the last step was picked."""
        self._not_begun: dict[AsyncioStrand, set[AsyncioStrand]] = {}
        """For tasks, those that they have created and that haven't made a step."""
        self._strands: dict[Any, AsyncioStrand] = {}
        """The tasks. Held here, as asyncio itself holds tasks only weakly."""
        self._live_tasks: dict[AsyncioStrand, None] = {}
        self._main: asyncio.Task[Any] | None = None
        self._working: dict[concurrent.futures.Executor | None, int] = {}
        """How many functions of an executor have begun, and not ended."""
        self._threads_before = set(threading.enumerate())
        self._outside_waits = OutsideWaits()
        self._cancels = 0

    # A whole program ----------------------------------------------------------------------------

    def run_program(self, program: Callable[[], Awaitable[Any]]) -> outcome.Outcome[Any]:
        """Run a program in this loop as ``asyncio.run`` would, and close the loop."""

        async def main() -> Any:
            return await program()

        main.__qualname__ = program.__qualname__
        try:
            self._main = task = self.create_task(main())
            self.run_forever()
            self._ending.cancel = lambda: None
            if self._asyncgens:
                self.run_until_complete(self.shutdown_asyncgens())
            ended: outcome.Outcome[Any] = outcome.capture(task.result)
            return ended
        except (GiveUp, KeyboardInterrupt, SystemExit) as error:
            self._abandon()
            return outcome.Error(error)
        finally:
            if self.control.crew is not None:
                self.control.crew.close()
            self.close()

    def cancel_all(self) -> None:
        """Cancel every task."""
        for strand in list(self._live_tasks):
            assert strand.task is not None
            strand.task.cancel()

    def _abandon(self) -> None:
        """Let go of tasks that can't be ended, without words about it."""
        for strand in list(self._live_tasks):
            task: Any = strand.task
            task._log_destroy_pending = False
            with contextlib.suppress(BaseException):  # What it does now is nobody's business.
                strand.context.run(task.get_coro().close)

    # What asyncio asks of a loop ----------------------------------------------------------------

    def time(self) -> float:
        """Return the virtual time."""
        return self._now

    def wall_clock(self) -> float:
        """Return the time of day, moved on by the virtual time that has passed."""
        return self._began_at_wall_clock + (self._now - self._began_at)

    def create_task(self, coro: Any, **settings: Any) -> asyncio.Task[Any]:
        """Create a task, and put it under control."""
        if self.get_task_factory() is None:
            task: asyncio.Task[Any] = _NumberedTask(len(self._strands), coro, loop=self, **settings)
        else:
            task = super().create_task(coro, **settings)
        self._strand_of_task(task)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        """Let a function run in a thread when it is picked."""
        future = self.create_future()
        name = _name_of(args[0] if args and _is_context_run(func) else func)
        strand = AsyncioStrand("thread", name, copy_context(), self.stepping)
        self._add(strand, _ThreadWork(executor, functools.partial(func, *args), future))
        return future

    async def subprocess_exec(self, *_: Any, **__: Any) -> Any:
        """Refuse: the other process would run in real time."""
        raise NotImplementedError(_NO_SUBPROCESSES)

    async def subprocess_shell(self, *_: Any, **__: Any) -> Any:
        """Refuse: the other process would run in real time."""
        raise NotImplementedError(_NO_SUBPROCESSES)

    def default_exception_handler(self, context: Mapping[str, Any]) -> None:
        """Keep what asyncio would log, which in hundreds of schedules nobody could read."""
        self._ending.unheard.append(_in_words(context))

    # Steps --------------------------------------------------------------------------------------

    def _run_once(self) -> None:
        """Make one step, or do what there is to do when nothing can go on."""
        self._sort_in()
        if not self._pending:
            if not self._stopping:
                self._idle()
            return
        control = self.control
        if control.steps % _STEPS_BETWEEN_GLANCES == 0:
            self._glance(0)
        ready = None
        if self._not_tasks or self._partial:
            ready = self._eligible()
            self._partial = bool(self._not_tasks)
        if not (control.ready if ready is None else ready):
            if self._pending and not self._stopping:
                self._idle()
            return
        if control.giving_up:
            if control.hopeless:
                raise GiveUp
            self.cancel_all()
        strand = control.pick(ready)
        assert isinstance(strand, AsyncioStrand)
        self._step(strand)

    def _step(self, strand: AsyncioStrand) -> None:
        handle = self._remove(strand)
        watchers = self._watchers
        self.stepping = strand
        if watchers.observers:
            watchers.before(strand)
        if strand.kind == "thread":
            self._run_in_thread(strand, handle)
        else:
            handle._run()
        self.stepping = None
        if watchers.observers:
            watchers.after(strand)
        if self.control.targets.faults:
            self.control.targets.step_ended()
        task = strand.task
        if task is not None:
            if not strand.begun:
                self._has_begun(strand)
            if task.done():
                del self._live_tasks[strand]
                if task is self._main:
                    self.cancel_all()
                if not self._live_tasks and self._main is not None and self._main.done():
                    self._end()

    def _end(self) -> None:
        """Stop the loop, once it has called back whoever waits for the tasks that ended."""
        self._sort_in()
        for strand, handle in list(self._pending.items()):
            if strand.kind == "callback" and not handle._cancelled:
                self.control.pick((strand,))
                self._step(strand)
        self._partial = True
        if not self._live_tasks:  # A generator that was let go has one that closes it.
            self.stop()

    def _has_begun(self, strand: AsyncioStrand) -> None:
        strand.begun = True
        parent = strand.parent
        if parent in self._not_begun:
            self._not_begun[parent].discard(strand)
            if not self._not_begun[parent]:
                del self._not_begun[parent]
                if parent in self._pending:
                    self.control.add(parent)

    def _eligible(self) -> Iterable[AsyncioStrand]:
        """Return what could make a step without breaking a promise of asyncio's."""
        found: list[AsyncioStrand] = []
        full: set[Any] = set()
        """The executors that begin nothing more for now."""
        after_a_callback = False
        for strand, handle in list(self._pending.items()):
            kind = strand.kind
            if kind != "task" and handle._cancelled:
                self._remove(strand)
            elif kind == "task" or kind == "callback":
                if after_a_callback or (strand in self._not_begun and _gives_way(handle)):
                    continue
                found.append(strand)
                after_a_callback = kind == "callback"
            elif kind == "thread":
                if self._could_go_on(handle, full):
                    found.append(strand)
            else:
                found.append(strand)
        return found

    # The queue ----------------------------------------------------------------------------------

    def _sort_in(self) -> None:
        """Make strands of what asyncio has put into its queue, and of timers that are due."""
        ready, scheduled = self._ready, self._scheduled
        while ready or (scheduled and scheduled[0]._when <= self._now):
            while ready:
                handle = ready.popleft()
                if not handle._cancelled:
                    self._sort(handle, "callback")
            while scheduled and scheduled[0]._when <= self._now:
                handle = heapq.heappop(scheduled)
                handle._scheduled = False
                if not handle._cancelled:
                    self._sort(handle, "timer")
                elif self._timer_cancelled_count:
                    self._timer_cancelled_count -= 1

    def _sort(self, handle: Any, kind: Literal["callback", "timer"]) -> None:
        callback = handle._callback
        name = getattr(callback, "__name__", None) or type(callback).__name__
        if name in _STEPS_OF_TASKS and isinstance(task := callback.__self__, _TASKS):
            strand = self._strand_of_task(task)
            strand.context = handle._context
            self._pending[strand] = handle
            if not strand.begun and strand.parent is not None:
                self._not_begun.setdefault(strand.parent, set()).add(strand)
            if strand not in self._not_begun or not _gives_way(handle):
                self.control.add(strand)
            return
        while isinstance(callback, functools.partial):
            callback = callback.func
        if (kind == "timer" or not self._callbacks) and self._only_passes_on(callback, handle):
            handle._run()
            return
        name = _name_of(callback)
        self._add(AsyncioStrand(kind, name, handle._context, self.stepping), handle)

    def _only_passes_on(self, callback: Any, handle: Any) -> bool:
        """Tell whether all that a callback does is wake whoever waits for a result."""
        if getattr(callback, "__self__", None) is self:
            return True
        if getattr(callback, "__func__", None) is asyncio.TaskGroup._on_task_done:
            ended = handle._args[0]  # If it failed, the group cancels the others.
            return ended.cancelled() or ended.exception() is None
        return getattr(callback, "__module__", None) in _ONLY_PASS_ON

    def _add(self, strand: AsyncioStrand, handle: Any) -> None:
        """Put something that isn't a task in line."""
        self.control.admit(strand)
        self._pending[strand] = handle
        self._not_tasks += 1
        self._callbacks += strand.kind == "callback"

    def _remove(self, strand: AsyncioStrand) -> Any:
        if strand.kind != "task":
            self._not_tasks -= 1
            self._callbacks -= strand.kind == "callback"
            self.control.remove(strand)
        return self._pending.pop(strand)

    def _strand_of_task(self, task: Any) -> AsyncioStrand:
        strand = self._strands.get(task)
        if strand is None:
            coro = task.get_coro()
            code_name = _name_of(coro)
            strand = AsyncioStrand("task", code_name, copy_context(), self.stepping, task)
            self._strands[task] = strand
            self.control.admit(strand)
            # An eager task has begun when its creator gets it.
            strand.begun = inspect.iscoroutine(coro) and (
                inspect.getcoroutinestate(coro) != inspect.CORO_CREATED
            )
            if not task.done():
                self._live_tasks[strand] = None
        return strand

    # Threads ------------------------------------------------------------------------------------

    def _could_go_on(self, work: _ThreadWork, full: set[Any]) -> bool:
        """Tell whether a function in a thread could make a step."""
        if work.thread is not None:
            return work.thread.done or work.thread.could_go_on(self._now)
        if work.executor in full:
            return False
        most = getattr(work.executor, "_max_workers", math.inf)
        if self._working.get(work.executor, 0) >= most:
            full.add(work.executor)  # The next one comes after this one.
            return False
        return True

    def _run_in_thread(self, strand: AsyncioStrand, work: _ThreadWork) -> None:
        """Let a function run up to its next point."""
        crew = crew_of(self.control, self.time)
        thread = work.thread
        if thread is None:
            thread = work.thread = crew.begin(strand.code_name, strand.code_name, strand.context)
            self.control.threads[strand] = strand.thread = thread
            self._working[work.executor] = self._working.get(work.executor, 0) + 1
            pool_of(crew, work.executor, _initializer(work.executor)).run(thread, work.function)
        if not thread.done:
            crew.let_go_on(thread)
        if not thread.done:
            self._pending[strand] = work
            self._not_tasks += 1
            return
        self._working[work.executor] -= 1
        assert thread.result is not None
        _hand_over(thread.result, work.future)

    # When nothing can go on ---------------------------------------------------------------------

    def _idle(self) -> None:
        """Wait for the outside, let a reply arrive, move the clock, or end the program."""
        scheduled = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        crew = self.control.crew
        deadlines = [scheduled[0]._when] if scheduled else []
        if crew is not None and (next_of_threads := crew.next_deadline()) is not None:
            deadlines.append(next_of_threads)
        outside = self._outside(clock_could_move=bool(deadlines))
        if outside and self._outside_waits.may_wait(
            self.control, outside, clock_could_move=bool(deadlines)
        ):
            self._ending.outside |= outside - {"threads of its own"}
            self._glance(_GLANCE_SECONDS)
            if self._ready and "threads of its own" in outside:
                self._ending.outside.add("worker threads")
        elif self.control.deliver_one(time_could_pass=bool(deadlines)):
            pass
        elif deadlines:
            self._now = max(self._now, min(deadlines))
        elif not self._ending.for_deadlock(self.control):
            # Already cancelled, and everything waits again: somebody swallows the cancel.
            self._cancels += 1
            if self._cancels > _CANCELS_TO_END:
                raise GiveUp
            self.cancel_all()

    def _outside(self, *, clock_could_move: bool) -> set[str]:
        """Return what the program may be waiting for that no schedule controls."""
        found: set[str] = set()
        if self._is_in_threads() or any(map(_waits_for_thread, self._live_tasks)):
            found.add("worker threads")
        if len(self._selector.get_map() or ()) > 1:
            found.add("sockets")  # The other one is how threads wake the loop.
        if not clock_could_move and not found and not self.control.pending:
            crew = self.control.crew
            own = () if crew is None else crew.by_thread
            if set(threading.enumerate()) - self._threads_before - set(own):
                found.add("threads of its own")
        return found

    def _is_in_threads(self) -> bool:
        """Tell whether a thread is blocked in something that no schedule controls."""
        crew = self.control.crew
        return crew is not None and any(strand.outside for strand in crew.strands)

    def _glance(self, seconds: float) -> None:
        """See what has come from outside."""
        if seconds or len(self._selector.get_map() or ()) > 1:
            self._process_events(self._selector.select(seconds))


_NO_SUBPROCESSES = (
    "a subprocess can't be explored: it would run in real time, in an order that no schedule "
    "controls; call it through a function that the test replaces"
)


def _gives_way(handle: Any) -> bool:
    """Tell whether a task is queued because of a ``sleep(0)``, not because of what it awaited."""
    callback = handle._callback
    return type(callback).__name__ == "TaskStepMethWrapper" or callback.__name__ == "__step"


def _waits_for_thread(strand: AsyncioStrand) -> bool:
    """Tell whether a task is inside of anyio's function for threads."""
    assert strand.task is not None
    return any(
        frame.f_code.co_name == "run_sync_in_worker_thread"
        for frame, _ in await_frames(strand.task.get_coro())
    )


def _initializer(executor: Any) -> Callable[[], object] | None:
    """Return what an executor has each of its threads begin with."""
    initialize = getattr(executor, "_initializer", None)
    return None if initialize is None else functools.partial(initialize, *executor._initargs)


def _hand_over(result: outcome.Outcome[Any], future: asyncio.Future[Any]) -> None:
    if future.done():
        return
    if isinstance(result, outcome.Value):
        future.set_result(result.value)
        return
    assert isinstance(result, outcome.Error)
    error = result.error
    if isinstance(error, StopIteration):
        error = RuntimeError("a function in a thread raised StopIteration")
    future.set_exception(error)


def _is_context_run(function: Any) -> bool:
    return isinstance(getattr(function, "__self__", None), Context)


def _name_of(thing: Any) -> str:
    while isinstance(thing, functools.partial):
        inner = thing.args[0] if thing.args and _is_context_run(thing.func) else thing.func
        thing = inner
    name = getattr(thing, "__qualname__", None)
    return name if isinstance(name, str) else type(thing).__qualname__


def _in_words(context: Mapping[str, Any]) -> str:
    error = context.get("exception")
    words = str(context.get("message") or "")
    return f"{words}: {type(error).__name__}: {error}" if error is not None else words
