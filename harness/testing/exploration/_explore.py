"""Run a test under many schedules: `explore_schedules` and `explore_arrivals`."""

from __future__ import annotations

import functools
import inspect
import sys
import unittest
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, ParamSpec, TypeAlias, TypeVar, overload

import attrs
import trio
from trio.testing import MockClock

from harness._arguments import check_count
from harness.errors import ScheduleError
from harness.testing._asked import CANCELLED, EXPLORED, IN_EVERY_ORDER, NOT_EXPLORED, tell
from harness.testing._asked import asked as asked_of_session
from harness.testing.exploration._failure import failure, what_went_wrong
from harness.testing.exploration._state import state_of
from harness.testing.schedules import (
    Found,
    Kind,
    Schedule,
    ScheduleRun,
    find_schedule,
    run_schedule,
)
from harness.testing.schedules._find_cancel import find_cancel
from harness.testing.schedules._kinds import (
    check_kind,
    globals_used,
    is_plain,
    kind_by_marker,
    probable_kind,
)
from harness.testing.schedules._other_loops import was_refused_by_loop
from harness.testing.schedules._permits import noted
from harness.testing.schedules._run_schedule import of_its_kind
from harness.testing.schedules._task_cancels import Usual, with_cancels
from harness.testing.schedules._thread import in_this_thread, in_worker_thread
from harness.testing.schedules._ways import DRAWN, Way, check_way

P = ParamSpec("P")
R = TypeVar("R")

Test: TypeAlias = Callable[..., Any]
"""An async test, or a plain one, of threads."""


@attrs.frozen
class _Exploration:
    """How a test is explored."""

    decorator: str
    """The name of the decorator that asks for it."""
    schedules: int = attrs.field(kw_only=True)
    seed: int = attrs.field(kw_only=True)
    schedule: Schedule | None = attrs.field(kw_only=True)
    backend: Kind | None = attrs.field(kw_only=True)
    cancel: bool = attrs.field(default=False, kw_only=True)
    """Whether tasks are cancelled."""
    search: dict[str, Any] = attrs.field(factory=dict[str, Any], kw_only=True)
    """How to search, as `find_schedule` takes it."""
    judge: Callable[[ScheduleRun], BaseException | None] = attrs.field(
        default=lambda run: judge(run), kw_only=True
    )


_override: ContextVar[Mapping[str, Any]] = ContextVar(
    "harness.testing.exploring_with", default=MappingProxyType({})
)


@contextmanager
def exploring_with(*, schedules: int | None = None, schedule: str | None = None) -> Iterator[None]:
    """Explore tests called in the block with other settings than their decorators have.

    For the options of a command line: more schedules for a nightly run, one for a replay.

    Args:
      schedules: How many schedules to run at most; None: as the tests say.
      schedule: The replay string of the only one to run; None: as the tests say.

    Raises:
      ValueError: if ``schedules`` is less than 1, or the replay string isn't valid.
    """
    changes: dict[str, Any] = {}
    if schedules is not None:
        changes["schedules"] = check_count(
            "exploring_with(schedules=...)", schedules, advice="None leaves what the tests say"
        )
    if schedule is not None:
        changes["schedule"] = Schedule.parse(schedule)
    token = _override.set(changes)
    try:
        yield
    finally:
        _override.reset(token)


@overload
def explore_schedules(test: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def explore_schedules(
    *,
    schedules: int = 500,
    seed: int = 0,
    schedule: str | None = None,
    backend: Kind | None = None,
    cancel: bool = False,
    search: Way = "mixed",
    depth: int = 3,
    enough_below: float | None = None,
    starved_after: int | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def explore_schedules(
    test: Test | None = None,
    /,
    *,
    schedules: int = 500,
    seed: int = 0,
    schedule: str | None = None,
    backend: Kind | None = None,
    cancel: bool = False,
    search: Way = "mixed",
    depth: int = 3,
    enough_below: float | None = None,
    starved_after: int | None = None,
) -> Callable[..., Any]:
    """Run a test under many schedules, until it fails under one.

    Write ``@explore_schedules`` or ``@explore_schedules(schedules=2_000)`` above a test. An async
    test stays an async test, for pytest-trio, pytest-asyncio or anyio's plugin, for ``trio.run`` or
    ``asyncio.run``. Each schedule runs it again in an event loop of its own, in a worker thread, on
    a virtual clock, and with a copy of the caller's context. Between two checkpoints code runs
    undisturbed, as always.

    A plain test stays a plain one. Its threads run one at a time, and are left for others where
    others could notice; see ``docs/reference/testing.md``.

    An explored test had best make everything it uses in its own body. What else it reaches, in
    modules, classes, default arguments and fixtures, is put back before every schedule if possible;
    variables of the function around it are left alone, for its notes. A fixture's lock or nursery
    belongs to another event loop, and the report says so. A `trio.testing.MockClock` is no
    problem: each schedule gets its own instead.

    Args:
      test: The test, when the decorator is used without arguments.
      schedules: How many schedules to run at most. A small test has fewer.
      seed: The seed of the search. The same seed runs the same schedules.
      schedule: The replay string of a failure: only that schedule is run.
      backend: ``"trio"``, ``"asyncio"`` or ``"threads"``; by default it is told from the test.
      cancel: Whether in half of the schedules a task is cancelled at one of its checkpoints, as by
        `explore_cancellations`, which see for what must hold then. For async tests only.
      search: ``"distinct"`` runs each order that an assertion could tell from the others;
        ``"priorities"`` has a known chance to find any fault; ``"random"`` draws each choice;
        ``"mixed"`` takes turns.
      depth: How many steps must come in one order for a fault that ``"priorities"`` looks for.
      enough_below: With ``"random"`` and ``"priorities"``: end the search when the chance that one
        more schedule shows a new order is below this, with 95 % confidence.
      starved_after: Fail if a task gets nowhere during so many steps of others, because they take
        what it waits for again and again.

    Raises:
      ScheduleError: when the test fails, with the replay string; from the test's own error. Also
        for a replay string of different code: it says at which decision they diverged.
      TypeError: at once, if what is decorated is no function.
      ValueError: at once, if ``schedules`` is less than 1, ``schedule`` is no replay string, or
        there is no such way to search.

    Checkpoint: always, if the test is async.

    Cancellation: the running schedule is finished first; then no other is started.
    """
    check_count("explore_schedules(schedules=...)", schedules, advice="leave it out for 500")
    check_way("explore_schedules", search, depth, enough_below, starved_after)
    if cancel and search != "mixed":
        raise ValueError(f"with cancel=True there is no search={search!r}; leave one of them out")
    way = {
        "search": search,
        "depth": depth,
        "enough_below": enough_below,
        "starved_after": starved_after,
    }
    return _decorator("explore_schedules", test, schedules, seed, schedule, backend, cancel, way)


@overload
def explore_arrivals(test: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def explore_arrivals(
    *, orders: int = 500, seed: int = 0, schedule: str | None = None, backend: Kind | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def explore_arrivals(
    test: Test | None = None,
    /,
    *,
    orders: int = 500,
    seed: int = 0,
    schedule: str | None = None,
    backend: Kind | None = None,
) -> Callable[..., Any]:
    """Run a test with the replies of models and tools arriving in many orders.

    Like `explore_schedules`, but only the order of replies of functions wrapped by `arriving` is
    varied, not that of single steps. If there are few orders, all are run: three runs of two calls
    each have 90.

    Args:
      test: The test, when the decorator is used without arguments.
      orders: How many orders to run at most.
      seed: The seed of the search, if it can't try all orders.
      schedule: The replay string of a failure: only that order is run.
      backend: ``"trio"`` or ``"asyncio"``, as for `explore_schedules`.

    Raises:
      ScheduleError: when the test fails, as for `explore_schedules`.
      TypeError: at once, if what is decorated is no function.
      ValueError: at once, if ``orders`` is less than 1, or ``schedule`` is no replay string.

    Checkpoint: always.

    Cancellation: the running order is finished first; then no other is started.
    """
    check_count("explore_arrivals(orders=...)", orders, advice="leave it out for 500")
    return _decorator("explore_arrivals", test, orders, seed, schedule, backend)


@overload
def explore_cancellations(test: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def explore_cancellations(
    *, cancels: int = 2_000, seed: int = 0, schedule: str | None = None, backend: Kind | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def explore_cancellations(
    test: Test | None = None,
    /,
    *,
    cancels: int = 2_000,
    seed: int = 0,
    schedule: str | None = None,
    backend: Kind | None = None,
) -> Callable[..., Any]:
    """Run an async test again for each of its tasks and checkpoints, with the task cancelled there.

    The test needn't be edited. First it runs as it is, and must pass. Then, once for every
    checkpoint that one of its tasks came to, it runs the same way up to there, and the task is
    cancelled, as by a scope around all of it. What the test itself asserts doesn't count then,
    since it is about what happens without a cancel. This must hold:

    - The cancelled task raises nothing else, and doesn't go on as if nothing had happened.
    - In the end no task is alive, and no lock, semaphore, capacity limiter or reservation of a
      `harness.limits.Limiter` is held.
    - What the test gave to `after_cancel`.

    What is so without a cancel, too, is excused. If the rest of the test waits forever for
    something the cancelled task would have done, the cancel spreads to the whole test.

    Args:
      test: The test, when the decorator is used without arguments.
      cancels: How many cancels to try at most. Of a test with more checkpoints, so many are drawn.
      seed: The seed of the draw.
      schedule: The replay string of a failure: only that cancel is tried.
      backend: ``"trio"`` or ``"asyncio"``, as for `explore_schedules`.

    Raises:
      ScheduleError: when something doesn't hold, with what was cancelled where, and the replay
        string; from a `harness.errors.CancellationError` if something was left behind.
      TypeError: at once, if what is decorated is no async function.
      ValueError: at once, if ``cancels`` is less than 1, or ``schedule`` is no replay string.

    Checkpoint: always.

    Cancellation: the running cancel is finished first; then no other is tried.
    """
    check_count("explore_cancellations(cancels=...)", cancels, advice="leave it out for 2,000")
    return _decorator(_CANCELLATIONS, test, cancels, seed, schedule, backend, cancel=True)


_CANCELLATIONS = "explore_cancellations"


def _decorator(
    name: str,
    test: Test | None,
    schedules: int,
    seed: int,
    schedule: str | None,
    backend: Kind | None,
    cancel: bool = False,
    search: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Return the decorator of this name; or the test that it explores, if that is given."""
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise TypeError(f"seed must be an int, not {seed!r}")
    replayed = None if schedule is None else Schedule.parse(schedule)
    kind = check_kind(f"{name}(backend=...)", backend)
    exploration = _Exploration(
        name,
        schedules=schedules,
        seed=seed,
        schedule=replayed,
        backend=kind,
        cancel=cancel,
        search=search or {},
    )
    decorate = functools.partial(_decorated, exploration)
    return decorate if test is None else decorate(test)


def _decorated(exploration: _Exploration, test: Test) -> Test:
    """Return a test that explores a test, and is async if that is."""
    if not callable(test) or inspect.isclass(test):
        raise TypeError(f"only functions can be explored, and {test!r} isn't one")
    not_async = is_plain(test) and test.__name__ != "<lambda>"
    if exploration.cancel and (exploration.backend == "threads" or not_async):
        raise TypeError(
            f"only async tests have tasks that can be cancelled, and {test!r} isn't one; leave out "
            "cancel=, or explore an async function"
        )

    def work(args: Any, kwargs: Any) -> Callable[[Callable[[], None]], None]:
        asked = attrs.evolve(exploration, **{**_asked_by_session(exploration), **_override.get()})
        # Markers may stand above the decorator.
        asked = attrs.evolve(asked, backend=asked.backend or kind_by_marker(explored))
        return functools.partial(_explore, test, args, kwargs, asked)

    @functools.wraps(test)
    async def explored_async(*args: Any, **kwargs: Any) -> None:
        with _other_examples_passed_over():
            await in_worker_thread(work(args, kwargs))

    @functools.wraps(test)
    def explored_plain(*args: Any, **kwargs: Any) -> None:
        with _other_examples_passed_over():
            in_this_thread(work(args, kwargs))

    is_threaded = exploration.backend == "threads" or (exploration.backend is None and not_async)
    explored: Test = explored_plain if is_threaded else explored_async
    explored.explores_schedules = True  # type: ignore[attr-defined]
    return explored


def _asked_by_session(exploration: _Exploration) -> dict[str, Any]:
    """Return what pytest's command line asks for of this exploration."""
    wishes = asked_of_session()
    changes: dict[str, Any] = {}
    if wishes.schedules is not None:
        changes["schedules"] = wishes.schedules
    # Cancels and replies are searched in one way only.
    if wishes.search and exploration.decorator == "explore_schedules" and not exploration.cancel:
        changes["search"] = exploration.search | {"search": wishes.search}
        if wishes.search not in DRAWN:
            changes["search"]["enough_below"] = None
    # The strings of assert_isolated begin otherwise: they first say which inputs they are about.
    if wishes.schedule is not None and wishes.schedule.startswith("h"):
        changes["schedule"] = Schedule.parse(wishes.schedule)
    return changes


class _DivergedError(ScheduleError):
    """A replay met other code, or other inputs."""


@contextmanager
def _other_examples_passed_over() -> Iterator[None]:
    """Tell Hypothesis that a schedule isn't for this example, if it runs the test.

    One schedule is replayed for all of a test's examples, and belongs to one of them.
    """
    try:
        yield
    except _DivergedError:
        hypothesis = sys.modules.get("hypothesis")
        if hypothesis is not None and hypothesis.currently_in_test_context():
            hypothesis.reject()
        raise


class _NotExplorableError(Exception):
    """A test of a suite can't be run under schedules; the message says why."""


async def explore_if_possible(test: Test, named: Mapping[str, Any], schedules: int) -> None:
    """Explore a test that doesn't ask for it; tell pytest whether, and if not, why not.

    Args:
      test: The test's own function.
      named: Its fixtures.
      schedules: How many schedules to run at most.

    Raises:
      ScheduleError: when the test fails under one, as for `explore_schedules`.

    Checkpoint: always, if it can be explored.

    Cancellation: ends after the schedule that is being run.
    """
    if any(
        str(getattr(thing, "__module__", "")).startswith("harness.testing")
        for thing in globals_used(test)
    ):
        return  # It explores by itself.
    exploration = _Exploration(
        "explore_schedules", schedules=schedules, seed=0, schedule=None, backend=None, judge=_suits
    )
    try:
        await _decorated(exploration, test)(**named)
    except _NotExplorableError as error:
        tell(NOT_EXPLORED, str(error))


def _suits(run: ScheduleRun) -> BaseException | None:
    """Judge a test that was written without schedules in mind."""
    error = judge(run)
    if error is not None:
        if run.strangers or was_refused_by_loop(error):
            raise _NotExplorableError("it uses something of the loop around it, as of a fixture")
        if run.uncontrolled:
            waits = ", ".join(sorted(run.uncontrolled))
            raise _NotExplorableError(f"it waits for {waits}, which no schedule controls")
        if isinstance(error, NotImplementedError):
            raise _NotExplorableError(str(error))
    return error


def _explore(
    test: Test,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    asked: _Exploration,
    go_on: Callable[[], None],
) -> None:
    """Explore a test in this thread, and raise what was found."""
    name = getattr(test, "__qualname__", repr(test))

    def called() -> Any:
        # A clock made by a fixture belongs to the loop around us.
        return test(*map(_own_clock, args), **{key: _own_clock(arg) for key, arg in kwargs.items()})

    @functools.wraps(test)
    async def awaited() -> None:
        await called()

    program = functools.wraps(test)(called) if is_plain(test) else awaited

    # Modules and classes outlive a test, and so does what a schedule leaves in them.
    state = state_of(test, [*args, *kwargs.values()])
    faults = asked.schedule.faults if asked.schedule is not None else ()
    cancel = asked.cancel or any(fault.cancels_task for fault in faults)
    usual = Usual()
    run = with_cancels(program, usual) if cancel else program
    with noted() if cancel else nullcontext():
        try:
            if asked.schedule is not None:
                if cancel:
                    # What it does without a cancel is no fault of one.
                    run_schedule(run, backend=asked.backend)
                _replay(name, run, asked.schedule, asked.backend, state.put_back)
                return
            if asked.decorator == _CANCELLATIONS:
                found = find_cancel(
                    run,
                    usual,
                    cancels=asked.schedules,
                    seed=asked.seed,
                    judge=asked.judge,
                    prepare=state.put_back,
                    go_on=go_on,
                    backend=asked.backend,
                )
            else:
                found = find_schedule(
                    run,
                    schedules=asked.schedules,
                    seed=asked.seed,
                    judge=asked.judge,
                    prepare=state.put_back,
                    go_on=go_on,
                    task_cancels=cancel,
                    arrivals_only=asked.decorator == "explore_arrivals",
                    backend=asked.backend,
                    **asked.search,
                )
            if isinstance(found, Found):
                state.put_back()
                raise failure(
                    name,
                    run,
                    found,
                    schedules=asked.schedules,
                    seed=asked.seed,
                    decorator=asked.decorator,
                    put_back=state.put_back,
                ) from found.error
            if asked.decorator == _CANCELLATIONS:
                tell(CANCELLED, str(found.schedules_run))
            else:
                tell(IN_EVERY_ORDER if found.exhausted else EXPLORED, found.in_words)
        finally:
            state.put_back(everything=True)


def _own_clock(value: Any) -> Any:
    if not isinstance(value, MockClock) or not _in_trio():
        return value
    return trio.lowlevel.current_clock()


def _in_trio() -> bool:
    try:
        trio.lowlevel.current_clock()
    except RuntimeError:
        return False
    return True


def judge(run: ScheduleRun) -> BaseException | None:
    """Return what a test failed with; let through what only says that it doesn't count."""
    error = run.error
    if error is not None and not isinstance(error, Exception):
        outcomes = sys.modules.get("_pytest.outcomes")
        if outcomes is not None and isinstance(
            error, (outcomes.Skipped, outcomes.Exit, outcomes.XFailed)
        ):
            raise error
    if isinstance(error, unittest.SkipTest):
        raise error
    return error


def _replay(
    name: str,
    program: Callable[[], Any],
    schedule: Schedule,
    backend: Kind | None,
    put_back: Callable[[], None],
) -> None:
    """Run one schedule."""

    def begin(kind: Kind) -> ScheduleRun:
        put_back()  # If it turns out to be of another kind, it has been begun before.
        return run_schedule(program, schedule, backend=kind)

    run = begin(backend) if backend else of_its_kind(probable_kind(program), begin)
    error = judge(run)
    diverged = run.diverged_at
    if error is None and diverged is None:
        return
    lines: list[str] = []
    if error is not None:
        lines += [f"{name} fails under the schedule that was given", *what_went_wrong(run, error)]
    if diverged is not None:
        lines += [
            f"the schedule {str(schedule)!r} diverged at decision {diverged} of {name}: it was "
            "recorded with other code (or with inputs that differ), so it doesn't show here what "
            "it showed there; search again, without schedule="
        ]
    kind = ScheduleError if diverged is None else _DivergedError
    raise kind("\n".join(lines), str(schedule), 1) from error
