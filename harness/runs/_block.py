"""Open a run around a block of code, and give it its one ending.

The other way to be a run's body is a function in a task of its own, `harness.runs._carry`. Both
end the same way:

- the body returned, even late: ok;
- it raised anything but a cancel: failed;
- the run's own scope caught the cancel: cancelled or timed out, whichever was asked for first;
- the cancel came from outside: cancelled, and the `trio.Cancelled` goes on to whoever sent it.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable, Mapping
from contextvars import Token
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import trio
from trio.lowlevel import current_task, enable_ki_protection

from harness._arguments import check_seconds, unknown_option
from harness._async_with import AsyncWithOnly
from harness._outside_trio import outside_trio
from harness.runs._accounts import NOBODY, add_budget, current_payer, paid_by
from harness.runs._calls import run_each_call
from harness.runs._current import current
from harness.runs._endings import add_note, is_only_cancelled, status_of, timed_out_error
from harness.runs._observers import observers
from harness.runs._run import DepsT_co, Run
from harness.runs._scopes import NO_SCOPE
from harness.runs._tasks import belonging_scope, let_go_of_task
from harness.runs._tree import token_here
from harness.runs._waiting import join_tasks
from harness.runs._yields import ASYNC_GENERATOR, look_for_yield

if TYPE_CHECKING:
    from harness._budget import Budget

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
GivenT = TypeVar("GivenT")

_getframe = sys._getframe

_ELSEWHERE = {
    **dict.fromkeys(("within", "deadline", "seconds"), "timeout=..."),
    **{
        name: f"harness.fan_out(fn, items, each=harness.Attempt({name}=...))"
        for name in ("retry", "hedge", "fallback", "limiter")
    },
    **dict.fromkeys(("limit", "max_concurrency"), "harness.fan_out(fn, items, limit=...)"),
    **dict.fromkeys(("tokens", "cost_usd"), "budget=harness.Budget(tokens=..., cost_usd=...)"),
}
"""What to write for options that a run doesn't have."""

_paid_by_now = paid_by.get
"""Bound once: a method of an imported name is looked up and bound again for each call."""


@overload
def open_run(
    name: str,
    *,
    timeout: float | None = None,
    deps: None = None,
    tags: Mapping[str, Any] | None = None,
    private: bool = False,
    budget: Budget | None = None,
    parent: Run | None = None,
) -> RunBlock[Any]: ...
@overload
def open_run(
    name: str,
    *,
    timeout: float | None = None,
    deps: GivenT,
    tags: Mapping[str, Any] | None = None,
    private: bool = False,
    budget: Budget | None = None,
    parent: Run | None = None,
) -> RunBlock[GivenT]: ...
def open_run(
    name: str,
    *,
    timeout: float | None = None,
    deps: Any = None,
    tags: Mapping[str, Any] | None = None,
    private: bool = False,
    budget: Budget | None = None,
    parent: Run | None = None,
    **unknown: Any,
) -> RunBlock[Any]:
    """Open a run: ``async with harness.open_run("triage", timeout=60) as run:``.

    Inside the block, and in every task started there, `current_run` is this run. Whatever way
    the block is left, nothing of the run is alive afterwards and the context is as before.

    It is also a decorator: ``@harness.open_run("triage", timeout=60)`` above a function or method
    opens a fresh run for each call. A call whose run was cancelled raises `RunCancelled`. On a
    plain function, or called outside trio, the run owns only state: id, deps, tags, budget and the
    values of each `RunLocal`; a ``timeout``, `Run.cancel` and `start_soon` need trio.

    Args:
      name: For people; needn't be unique.
      timeout: Seconds until the run is cut short. None and inf: no limit of its own; 0: at the
        first checkpoint. The deadline of a run above it applies in any case.
      deps: What the code inside works with, as ``current_run().deps``. None: the parent's.
      tags: Labels for logs and reports; copied.
      private: Whether its events, and those of the runs below it, stay hidden from subscribers
        of the runs above.
      budget: What it and all runs below it may spend together; see `harness.Budget`. Budgets of
        runs above it apply as well.
      parent: The run to open it in, if that isn't the one this code carries, as in a server whose
        request tasks have another context. Its cancel and deadline leave the block quietly, and
        leaving the parent's block waits for this one, as for a task of `start_soon`.

    Raises:
      TypeError: if an argument has the wrong type; as a decorator, also on a generator function, or
        on a plain one with a ``timeout`` or ``parent``.
      ValueError: if ``timeout`` is negative or nan, or ``name`` is empty.
      RuntimeError: on entry, outside trio or for the second time; on exit, in another task or
        context than the one that entered.
      RunEndedError: on entry, if the run that this code carries, or ``parent``, has ended.
      RunCancelled: from a decorated function, if its own run was cancelled.
      RunTimedOut: from the block, if its own deadline cut the body short.
      Exception: the body's own comes out unchanged, with a note that names the run.

    Checkpoint: neither on entry nor on exit, unless it waits on exit for tasks that
    `harness.start_soon` gave to this run.

    Cancellation: `Run.cancel` leaves the block quietly; a cancel from outside passes through.
    If it comes while the exit waits for tasks, they are cancelled and waited for, shielded.
    """
    if unknown:
        raise TypeError(unknown_option("open_run", open_run, unknown, _ELSEWHERE))
    if not isinstance(name, str):
        raise TypeError(
            f"open_run() takes a name as a string, not {name!r}; "
            'write `async with harness.open_run("name"):`'
        )
    if not name:
        raise ValueError("open_run() takes a readable name, not ''")
    if timeout is not None:
        check_seconds("open_run(timeout=...)", timeout, advice="None is for no limit")
    if tags is not None and not isinstance(tags, Mapping):
        raise TypeError(f"open_run(tags=...) takes a mapping such as {{'shard': 3}}, not {tags!r}")
    if budget is not None and not isinstance(budget, import_module("harness._budget").Budget):
        raise TypeError(
            f"open_run(budget=...) takes a Budget, not {budget!r}; write "
            "budget=harness.Budget(tokens=100_000)"
        )
    if parent is not None and not isinstance(parent, Run):
        raise TypeError(
            f"open_run(parent=...) takes a run, such as current_run(), not {parent!r}; None is "
            "for the run that this code carries"
        )
    if budget is not None or parent is not None:
        return _BlockWithMore(name, timeout, deps, tags, private, budget, parent)
    return RunBlock(name, timeout, deps, tags, private)


class RunBlock(AsyncWithOnly, Generic[DepsT_co]):
    """The block of one run; what `open_run` returns."""

    __slots__ = ("_deps", "_name", "_private", "_run", "_tags", "_timeout", "_token")

    _written = "harness.open_run(...) as run"

    def __init__(
        self,
        name: str,
        timeout: float | None,
        deps: Any,
        tags: Mapping[str, Any] | None,
        private: bool,
    ) -> None:
        self._name = name
        self._timeout = timeout
        self._deps = deps
        self._tags = tags
        self._private = private
        self._run: Run | None = None
        self._token: Token[Run | None] | None = None

    def __call__(self, function: FunctionT, /) -> FunctionT:
        """Return a function like ``function``, each call of which opens a run of its own."""
        decorated: FunctionT = run_each_call(function, self._again)
        return decorated

    def _again(self) -> RunBlock:
        return RunBlock(self._name, self._timeout, self._deps, self._tags, self._private)

    @enable_ki_protection
    async def __aenter__(self) -> Run[DepsT_co]:
        """Begin the run; never a checkpoint."""
        frame = _getframe(1)
        if frame.f_code.co_flags & ASYNC_GENERATOR:
            look_for_yield(frame, f"open_run({self._name!r})", self)
        if self._run is not None:
            raise RuntimeError(
                f"the block of {self._run!r} was already entered; call open_run() for each block"
            )
        run = self._run = self._make_run()
        parent = run._parent
        if parent is not None and parent._forks:
            try:
                run._fork_locals(parent)
            except BaseException:
                run._end("failed", run._started_at)
                raise
        run._scope.__enter__()
        self._token = current.set(run)
        return run

    def _make_run(self) -> Run:
        """Return a new run below the current one, its scope not yet entered, its locals empty."""
        try:
            task = current_task()
        except RuntimeError:
            raise outside_trio(
                f"run {self._name!r} was opened",
                instead="open it in a function that trio.run() runs, or put @harness.open_run(...) "
                "above a function, whose calls then own their state without trio",
            ) from None
        parent = above = current.get()
        if parent is not None:
            if parent._status != "running":
                parent._refuse_if_ended(f"run {self._name!r} can't be opened in it")
            # For one task there is nothing to ask, and asking costs.
            if parent._task is not task and (
                parent._above.tree.token is not trio.lowlevel.current_trio_token()
            ):
                # A context that was copied into another trio.run, in another thread: scopes and
                # tasks of two event loops have nothing to do with each other, so this is a root.
                parent = None
        time = trio.current_time if parent is None else parent._above.tree.now
        now = time()
        timeout = self._timeout
        run = Run(self._name, parent, now, math.inf if timeout is None else now + timeout)
        run._task = task
        run._nurseries_at_start = len(task.child_nurseries)
        self._furnish(run, parent, above)
        return run

    def _furnish(self, run: Run, parent: Run | None, above: Run | None) -> None:
        """Give a new run what it was opened with; ``above`` is the run whose context this is."""
        run._private = self._private
        sinks = observers.get()
        if sinks and sinks is not run._observers:
            inherited = run._observers
            run._observers = (*inherited, *(sink for sink in sinks if sink not in inherited))
        if self._deps is not None:
            run._deps = self._deps
        if self._tags:
            run._tags = types.MappingProxyType(dict(self._tags))
        # Checked here, because the call costs: nearly all roots have nobody.
        if parent is None and (above is not None or _paid_by_now() is not NOBODY):
            run._above.tree.payer = current_payer()
        if run._observers:
            run._notice_begin()

    def plainly(self) -> PlainBlock:
        """Return the block of a run that owns only state, for a call outside trio."""
        self.refuse_plain_function("")
        return PlainBlock(self)

    def _make_plain_run(self) -> Run:
        """Return a new run below the current one that owns only state, its locals forked."""
        parent = above = current.get()
        if parent is not None:
            parent._refuse_if_ended(f"run {self._name!r} can't be opened in it")
            home = parent._above.tree.token
            if home is not None and token_here() not in (None, home):
                parent = None  # As for a block: it lives in another trio.run.
        run = Run(self._name, parent, 0.0)
        now = run._above.tree.now
        run._started_at = now()
        run._scope = NO_SCOPE
        self._furnish(run, parent, above)
        return run

    def refuse_plain_function(self, name: str) -> None:
        """Refuse what a run that owns only state can't have.

        Args:
          name: The plain function it is for; empty for an async one called outside trio.
        """
        if self._timeout is not None and self._timeout != math.inf:
            self._refuse_plainly(name, "timeout", "can't be cut short")

    def _refuse_plainly(self, name: str, argument: str, why: str) -> None:
        if name:
            raise TypeError(
                f"open_run({self._name!r}, {argument}=...) decorates {name}, which {why}: it is a "
                f"plain function; make it async and call it in trio, or leave out {argument}="
            )
        raise outside_trio(
            f"a function under @open_run({self._name!r}, {argument}=...) was called",
            instead=f"it {why} there, so call it in a function that trio.run() runs, or leave out "
            f"{argument}=",
        )

    @enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> bool:
        """End the run; a checkpoint only if tasks of `start_soon` are still alive."""
        run, token = self._run, self._token
        assert run is not None
        assert token is not None
        error = await join_tasks(run, exc) if run._tasks else exc
        try:
            current.reset(token)
        except ValueError:
            error = RuntimeError(
                f"the block of {run!r} is being left in another task or context than it was "
                "entered in; keep the whole `async with` block in one task, and use an async "
                "context manager, not an async generator, where it has to span a yield"
            )
            error.__context__ = exc
        scope = run._scope
        try:
            if scope.__exit__(type(error) if error is not None else None, error, None):
                remaining = None
            else:
                remaining = error
        except BaseException as left_over:  # What the scope didn't catch of a group.
            remaining = left_over
        time = run._above.tree.now
        now = time()
        if remaining is None:
            if error is None:
                run._end("ok", now)
                return False
            if run._cancel_asked:
                run._end("cancelled", now)
                return True
            run._end("timed_out", now)
            raise timed_out_error(run, error.__traceback__)
        if is_only_cancelled(remaining):
            run._note_foreign_cancel(remaining)
            run._end("cancelled", now)
        else:
            run._end(status_of(remaining, run), now, remaining)
            add_note(remaining, run)
        if remaining is exc:
            return False
        try:
            raise remaining
        finally:
            del remaining, error, exc  # Each would hold the frames that hold it.


class _BlockWithMore(RunBlock):
    """The block of a run with rare options. A class of its own, to spare the others checks."""

    __slots__ = ("_belonging", "_budget", "_parent")

    def __init__(
        self,
        name: str,
        timeout: float | None,
        deps: Any,
        tags: Mapping[str, Any] | None,
        private: bool,
        budget: Budget | None,
        parent: Run | None,
    ) -> None:
        super().__init__(name, timeout, deps, tags, private)
        self._budget = budget
        self._parent = parent
        self._belonging: trio.CancelScope | None = None
        """Around the run, and among the tasks of its parent, which cancels and waits for it."""

    def _again(self) -> RunBlock:
        return _BlockWithMore(
            self._name,
            self._timeout,
            self._deps,
            self._tags,
            self._private,
            self._budget,
            self._parent,
        )

    def refuse_plain_function(self, name: str) -> None:
        super().refuse_plain_function(name)
        if self._parent is not None:
            self._refuse_plainly(name, "parent", "can't follow another run's cancel")

    @enable_ki_protection
    async def __aenter__(self) -> Run:
        frame = _getframe(1)
        if frame.f_code.co_flags & ASYNC_GENERATOR:
            look_for_yield(frame, f"open_run({self._name!r})", self)
        parent = self._parent
        if parent is None or self._run is not None:
            return await super().__aenter__()
        parent._refuse_if_ended(f"run {self._name!r} can't be opened in it")
        parent._refuse_elsewhere(f"run {self._name!r} can't be opened in it")
        scope = belonging_scope(parent)
        scope.__enter__()
        if parent._tasks is None:
            parent._tasks = {}
        parent._tasks[scope] = f"run {self._name!r}"
        self._belonging = scope
        try:
            return await super().__aenter__()
        except BaseException as error:
            self._leave_parent(error)
            raise

    @enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> bool:
        if self._belonging is None:
            return await super().__aexit__(exc_type, exc, traceback)
        try:
            quiet = await super().__aexit__(exc_type, exc, traceback)
        except BaseException as error:
            if self._leave_parent(error):
                return True
            raise
        return self._leave_parent(None if quiet else exc) or quiet

    def _leave_parent(self, error: BaseException | None) -> bool:
        scope, parent = self._belonging, self._parent
        assert scope is not None
        assert parent is not None
        self._belonging = None
        try:
            return scope.__exit__(
                None if error is None else type(error),
                error,
                None if error is None else error.__traceback__,
            )
        finally:
            let_go_of_task(parent, scope)

    def _make_run(self) -> Run:
        token = None if self._parent is None else current.set(self._parent)
        try:
            return super()._make_run()
        finally:
            if token is not None:
                current.reset(token)

    def _furnish(self, run: Run, parent: Run | None, above: Run | None) -> None:
        super()._furnish(run, parent, above)
        if self._budget is not None:
            add_budget(run, self._budget)


class PlainBlock:
    """The block of a run that owns only state: for a plain function, or outside trio."""

    __slots__ = ("_block", "_run", "_token")

    def __init__(self, block: RunBlock) -> None:
        self._block = block
        self._run: Run | None = None
        self._token: Token[Run | None] | None = None

    @enable_ki_protection
    def __enter__(self) -> Run:
        """Begin the run."""
        self._run = run = self._block._make_plain_run()
        parent = run._parent
        if parent is not None and parent._forks:
            try:
                run._fork_locals(parent)
            except BaseException:
                run._end("failed", run._started_at)
                raise
        self._token = current.set(run)
        return run

    @enable_ki_protection
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        """End the run."""
        run, token = self._run, self._token
        assert run is not None
        assert token is not None
        current.reset(token)
        now = run._above.tree.now
        if exc is None:
            run._end("ok", now())
        elif is_only_cancelled(exc) or _is_asyncio_cancel(exc):
            run._end("cancelled", now())
        else:
            run._end(status_of(exc, run), now(), exc)
            add_note(exc, run)


def _is_asyncio_cancel(error: BaseException) -> bool:
    asyncio = sys.modules.get("asyncio")  # Without it there is no such cancel.
    return asyncio is not None and isinstance(error, asyncio.CancelledError)
