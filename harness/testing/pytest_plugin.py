"""Do what the pytest plugin does around each trio test; loaded when the first one runs.

The hooks are in `harness_pytest`, which imports nothing, because pytest loads it in every project
and before coverage is measured. What needs trio is here: threads hold the virtual clock, limiters
are reset, the test gets a run of its own, a test that takes too long says what everything is
waiting for, and with ``--leak-check`` nothing may be left behind.
"""

from __future__ import annotations

import inspect
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

import attrs
import trio
from trio.lowlevel import Task
from trio.testing import MockClock

from harness.limits import Limiter
from harness.runs import Run, StrayTasks, current_run_or_none, dump, open_run
from harness.testing._clock import ThreadsHoldClock
from harness.testing.exploration import explore_if_possible
from harness.testing.objects import Reached, SharedState, place_of_definition

_GRACE_SECONDS = 1.0
"""How long the event loop may take to answer before it counts as blocked."""


class LiveRuns(trio.abc.Instrument):
    """A trio instrument that remembers the runs it saw, to check which are still going on."""

    def __init__(self) -> None:
        self._before = set(_runs_around())
        self._seen: dict[int, Run] = {}

    def after_task_step(self, task: Task) -> None:
        """Note whose the task is. Never raises: code in an instrument mustn't."""
        run = task.context.run(current_run_or_none)
        if run is not None:
            self._seen[id(run)] = run

    def live(self) -> list[Run]:
        """Return the runs that began since and haven't ended."""
        return [
            run
            for run in self._seen.values()
            if run.status == "running" and run not in self._before
        ]


def _runs_around() -> Iterator[Run]:
    run = current_run_or_none()
    while run is not None:
        yield run
        run = run.parent


@attrs.define(eq=False, kw_only=True)
class WatchedTest:
    """One test, and what is watched around it."""

    name: str
    """The test's node id."""

    limiters: Callable[[], list[Limiter]]
    """Finds the limiters that tests share."""

    run_name: str | None = None
    """The name of the run to open around the test; None for no run."""

    leak_check: bool = False
    """Whether to fail the test for what it leaves behind."""

    timeout_seconds: float | None = None
    """Real seconds after which the test is cancelled, and fails with the dump."""

    dump_after_seconds: float | None = None
    """Real seconds after which the dump is printed: just before something else ends the test."""

    explore: int | None = None
    """Under how many schedules to run the test before it is run as always; None for none."""

    shared_state: Callable[[], Callable[[], list[str]]] | None = None
    """Takes a snapshot of what the test can reach; the result says what has changed since."""

    async def run(self, fn: Callable[..., Awaitable[Any]], named: dict[str, Any]) -> None:
        """Run the test's own function.

        Raises:
          AssertionError: if it took too long, or left something behind.
        """
        if self.run_name is not None:
            fn = open_run(self.run_name)(fn)
        if self.explore is not None and not hasattr(fn, "explores_schedules"):
            await explore_if_possible(fn, named, self.explore)
        if not _in_trio():  # anyio's plugin also runs tests on asyncio.
            await fn(**named)
            return
        for limiter in self.limiters():
            limiter.reset()
        changed = None
        if self.leak_check and self.shared_state is not None:
            changed = self.shared_state()
        strays, live, clock = StrayTasks(), LiveRuns(), ThreadsHoldClock()
        instruments: list[trio.abc.Instrument] = []
        if isinstance(trio.lowlevel.current_clock(), MockClock):
            instruments.append(clock)  # A real clock needs no holding, and no instrument.
        if self.leak_check:
            instruments += [strays, live]
        with _instruments(instruments), _timers(self) as timed, trio.CancelScope() as scope:
            timed.scope = scope
            try:
                await fn(**named)
            finally:
                clock.let_go()
        if timed.ran_out:
            raise AssertionError(
                f"{self.name} timed out after {self.timeout_seconds:g} s\n\n{timed.text}"
            )
        if self.leak_check:
            left = [f"run {run.path!r} goes on" for run in live.live()]
            left += [
                f"stray task {stray.task_name!r}, which carries run {stray.run_path!r}: "
                f"{stray.reason}"
                for stray in strays.strays
                # Whatever a test starts in a fixture's nursery carries the test's own run.
                if stray.run_path != self.run_name
            ]
            left += changed() if changed is not None else []
            if left:
                raise AssertionError(
                    "\n".join([f"{self.name} left something behind:", *(f"  {x}" for x in left)])
                )


def _in_trio() -> bool:
    try:
        return trio.lowlevel.current_root_task() is not None
    except RuntimeError:
        return False


@contextmanager
def _instruments(instruments: list[trio.abc.Instrument]) -> Iterator[None]:
    for instrument in instruments:
        trio.lowlevel.add_instrument(instrument)
    try:
        yield
    finally:
        for instrument in instruments:
            trio.lowlevel.remove_instrument(instrument)


# Time --------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Timed:
    """What a test's timers did."""

    scope: trio.CancelScope | None = None
    ran_out: bool = False
    text: str = ""


@contextmanager
def _timers(test: WatchedTest) -> Iterator[_Timed]:
    """Let threads watch the real time, which goes on when virtual time stands still."""
    timed = _Timed()
    token = trio.lowlevel.current_trio_token()
    thread_id = threading.get_ident()
    over = threading.Event()

    def end_it() -> None:
        if not over.is_set():
            timed.ran_out = True
            timed.text = dump()
            if timed.scope is not None:
                timed.scope.cancel()

    def print_it() -> None:
        if not over.is_set():
            sys.stderr.write(f"\n{test.name} is about to be ended\n\n{dump()}\n")

    def after(seconds: float | None, what: Callable[[], None]) -> None:
        if seconds is None or over.wait(seconds):
            return
        answered = threading.Event()

        def in_trio() -> None:
            answered.set()
            what()

        try:
            token.run_sync_soon(in_trio)
        except trio.RunFinishedError:
            return
        if not answered.wait(_GRACE_SECONDS) and not over.is_set():
            frame = sys._current_frames().get(thread_id)
            stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
            sys.stderr.write(
                f"\n{test.name} blocks the event loop, so no task can run and none be cancelled; "
                f"it is here:\n\n{stack}\n"
            )

    threads = [
        threading.Thread(target=after, args=wanted, name="harness test timer", daemon=True)
        for wanted in ((test.timeout_seconds, end_it), (test.dump_after_seconds, print_it))
        if wanted[0] is not None
    ]
    for thread in threads:
        thread.start()
    try:
        yield timed
    finally:
        over.set()
        for thread in threads:
            thread.join()


# Limiters ----------------------------------------------------------------------------------------

_NOT_LOOKED_INTO = frozenset({ModuleType, ModuleSpec, FunctionType, type, str, int, dict})
"""Types of most globals, which hold no limiters themselves: this is done for each test."""


def limiters_of(modules: list[Any]) -> list[Limiter]:
    """Return the limiters that modules hold, by name or as an attribute of an object so named."""
    named = [
        value
        for module in modules
        for value in list(vars(module).values())
        if type(value) not in _NOT_LOOKED_INTO
    ]
    found = {id(value): value for value in named}
    for value in list(found.values()):
        held = getattr(value, "__dict__", None)
        if type(held) is dict and held:
            found.update((id(inner), inner) for inner in list(held.values()))
    # By type: if asked for its class, a proxy may load what it stands for.
    limiters = {kind for kind in set(map(type, found.values())) if issubclass(kind, Limiter)}
    return [one for one in found.values() if type(one) in limiters] if limiters else []


# Shared state ------------------------------------------------------------------------------------


def watch_shared_state(test: Any) -> Callable[[], list[str]]:
    """Take a snapshot of what a test can reach; return a function that says what has changed.

    Args:
      test: The test's function.
    """
    reached = Reached()
    function = inspect.unwrap(getattr(test, "__func__", test))
    reached.add(place_of_definition(function), function)
    state = SharedState(reached)

    def changed() -> list[str]:
        return [f"{suspect.path} was changed" for suspect in state.left_behind()]

    return changed
