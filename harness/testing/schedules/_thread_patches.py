"""Put in place of threads, locks, sleeps and clocks what knows threads under control.

While a controlled program runs, the standard library's own names stand for our functions; for a
thread that isn't under control, these do what they replace. What the user's modules have imported
by name, and the locks and pools that they have made before, is replaced there as well, for as long
as a search lasts. Everything is put back.
"""

from __future__ import annotations

import _thread
import concurrent.futures
import concurrent.futures.thread
import functools
import inspect
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import (
    BuiltinFunctionType,
    BuiltinMethodType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any

from harness.testing._users_code import is_users_module
from harness.testing.schedules._control import GiveUp
from harness.testing.schedules._thread_locks import (
    LOCK_TYPES,
    ControlledLock,
    ControlledRLock,
    allocate,
)
from harness.testing.schedules._threads import (
    Crew,
    ThreadStrand,
    current_strand,
    own_context,
    uncontrolled,
)

OBJECTS_AT_MOST = 50_000
"""How many objects are looked at for locks that were made before."""

_Thread = threading.Thread
_start, _join, _is_alive = _Thread.start, _Thread.join, _Thread.is_alive
_sleep, _monotonic, _time = time.sleep, time.monotonic, time.time
_make_pool = concurrent.futures.ThreadPoolExecutor.__init__
_submit = concurrent.futures.ThreadPoolExecutor.submit
_SimpleQueue = queue.SimpleQueue
_OwnSimpleQueue: Any = queue._PySimpleQueue  # type: ignore[attr-defined,unused-ignore]


def _sleeping(seconds: float, /) -> None:
    strand = current_strand()
    if strand is None:
        _sleep(seconds)
    elif seconds < 0:
        raise ValueError("sleep length must be non-negative")
    else:
        strand.crew.wait(strand, lambda: seconds == 0, seconds)


def _showing(original: Callable[[], float], since: float) -> Callable[[], float]:
    def shown() -> float:
        strand = current_strand()
        return original() if strand is None else strand.crew.now() + since

    return shown


def _starting(self: Any) -> None:
    strand = current_strand()
    if strand is None:
        _start(self)
        return
    crew = strand.crew
    if crew.closing:
        raise GiveUp
    if self in crew.by_thread:
        raise RuntimeError("threads can only be started once")
    with uncontrolled():
        start_in(crew, self)


def start_in(crew: Crew, thread: Any) -> ThreadStrand:
    """Start a thread as one of a crew's; its first step is a step of the schedule."""
    target = getattr(thread, "_target", None)
    while isinstance(target, functools.partial):
        target = target.func
    named = target if target is not None else type(thread).run
    code_name = getattr(named, "__qualname__", type(named).__qualname__)
    strand = crew.begin(thread.name, code_name, own_context())
    run = thread.run

    def as_strand() -> None:
        del thread.run
        crew.run(strand, run)
        error = getattr(strand.result, "error", None)
        if error is not None and not isinstance(error, GiveUp | SystemExit):
            crew.ending.unheard.append(
                f"{strand.short_name} ended with {type(error).__name__}: {error}"
            )

    thread.run = as_strand
    _start_at_first_turn(crew, strand, thread)
    return strand


class _Begun:
    """What says that a thread was started, though that is put off until its first turn."""

    def __init__(self) -> None:
        self.starts_now = False

    def is_set(self) -> bool:
        """Say so, except to what is starting it."""
        return not self.starts_now

    def set(self) -> None:
        """Do nothing, as nobody waits."""

    wait, _at_fork_reinit = is_set, set


def _start_at_first_turn(crew: Crew, strand: ThreadStrand, thread: Any) -> None:
    thread._started = begun = _Begun()
    threading._limbo[thread] = thread  # type: ignore[attr-defined] # For threading.enumerate.
    strand.thread = thread
    crew.by_thread[thread] = strand

    def begin() -> None:
        begun.starts_now = True
        _start(thread)
        begun.starts_now = False

    strand.begin = begin


def start_daemon(crew: Crew, strand: ThreadStrand, run: Callable[[], None]) -> None:
    """Start a thread of ours that begins with a strand."""
    thread = _Thread(target=run, name=strand.name, daemon=True)
    _start_at_first_turn(crew, strand, thread)


def _strand_of(thread: Any) -> ThreadStrand | None:
    mine = current_strand()
    return None if mine is None else mine.crew.by_thread.get(thread)


def _joining(self: Any, timeout: float | None = None) -> None:
    mine, other = current_strand(), _strand_of(self)
    if mine is None or other is None:
        _join(self, timeout)
        return
    if other is mine:
        raise RuntimeError("cannot join current thread")
    # Joined with no time to wait, a thread isn't waited for.
    # Its thread is let go when the program has ended.
    mine.crew.wait(mine, lambda: other.done, timeout, joins=other)


def _living(self: Any) -> bool:
    strand = _strand_of(self)
    if strand is None:
        return _is_alive(self)
    if strand.crew.watch is not None:
        strand.crew.watch.touch(strand, "result", writes=False)
    return not strand.done


def _showing_once_started(name: str) -> property:
    def shown(self: Any) -> int | None:
        strand = _strand_of(self)
        if strand is not None and strand.begin is not None:
            begin, strand.begin = strand.begin, None
            with uncontrolled():
                begin()
        while strand is not None and getattr(self, name) is None:
            _sleep(0)  # It comes as soon as this one lets it.
        found: int | None = getattr(self, name)
        return found

    return property(shown)


def _submitting(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    if current_strand() is None:
        return _submit(self, fn, *args, **kwargs)
    # A worker that another thread has started works for this one now.
    return _submit(self, functools.partial(_in_context_of, own_context(), fn), *args, **kwargs)


def _in_context_of(kept: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    for variable, value in kept.items():
        variable.set(value)
    return fn(*args, **kwargs)


class _NumberedFuture(concurrent.futures.Future[Any]):
    """A future whose place in a set is the same in every run of a schedule.

    Programs iterate over sets of futures, such as those that `concurrent.futures.wait` returns.
    """

    def __init__(self) -> None:
        strand = current_strand()
        self._number = None if strand is None else strand.crew.next_number()
        super().__init__()

    def __hash__(self) -> int:
        return object.__hash__(self) if self._number is None else self._number


class _InOrder(set[Any]):
    """A set that is iterated in the order in which its elements were added."""

    def __init__(self) -> None:
        super().__init__()
        self._order: list[Any] = []

    def add(self, element: Any, /) -> None:
        """Add an element."""
        if element not in self:
            self._order.append(element)
        super().add(element)

    def __iter__(self) -> Iterator[Any]:
        return iter([element for element in self._order if element in self])


def _making_pool(self: Any, *args: Any, **kwargs: Any) -> None:
    _make_pool(self, *args, **kwargs)
    self._threads = _InOrder()  # They are joined in the order of this.


class _Logger:
    """A logger that leaves out that a pool's thread has ended because its program has."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def critical(self, *args: Any, **kwargs: Any) -> None:
        """Log it, unless it is about that."""
        if not isinstance(sys.exc_info()[1], GiveUp):
            self._original.critical(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _lock_for_waiting() -> ControlledLock:
    return ControlledLock(is_for_waiting=True)


_clock = _showing(_monotonic, 0.0)
_WALL_CLOCK_AHEAD = _time() - _monotonic()
_wall_clock = _showing(_time, _WALL_CLOCK_AHEAD)

_PLACES: tuple[tuple[Any, str, Any], ...] = (
    (threading, "Lock", ControlledLock),
    (threading, "RLock", ControlledRLock),
    (threading, "_allocate_lock", _lock_for_waiting),
    (_thread, "allocate_lock", ControlledLock),
    (_Thread, "start", _starting),
    (_Thread, "join", _joining),
    (_Thread, "is_alive", _living),
    (_Thread, "ident", _showing_once_started("_ident")),
    (_Thread, "native_id", _showing_once_started("_native_id")),
    (concurrent.futures._base, "Future", _NumberedFuture),
    (concurrent.futures._base, "LOGGER", _Logger(concurrent.futures._base.LOGGER)),
    (concurrent.futures.ThreadPoolExecutor, "__init__", _making_pool),
    (concurrent.futures.ThreadPoolExecutor, "submit", _submitting),
    (time, "sleep", _sleeping),
    (time, "monotonic", _clock),
    (time, "time", _wall_clock),
    (threading, "_time", _clock),
    (queue, "time", _clock),
    (queue, "SimpleQueue", _OwnSimpleQueue),
    (
        concurrent.futures.thread,
        "_global_shutdown_lock",
        ControlledLock(concurrent.futures.thread._global_shutdown_lock),
    ),
)

_BY_NAME = {
    id(threading.Lock): ControlledLock,
    id(threading.RLock): ControlledRLock,
    id(_sleep): _sleeping,
    id(_monotonic): _clock,
    id(_time): _wall_clock,
    id(_SimpleQueue): _OwnSimpleQueue,
}
"""What user's modules may have imported by name."""

Undo = Callable[[], None]


class Replacements:
    """What is replaced, and for how many programs and searches."""

    def __init__(self, places: tuple[tuple[Any, str, Any], ...]) -> None:
        self._places = places
        self._guard = allocate()
        self._users = 0
        self._undo: list[Undo] = []

    @contextmanager
    def placed(self) -> Iterator[None]:
        """Have them replaced as long as the block lasts."""
        with self._guard:
            if self._users == 0:
                for where, name, replacement in self._places:
                    self._undo.append(_replace(where, name, replacement))
            self._users += 1
        try:
            yield
        finally:
            with self._guard:
                self._users -= 1
                while self._users == 0 and self._undo:
                    self._undo.pop()()


def _replace(where: Any, name: str, replacement: Any) -> Undo:
    original = vars(where)[name]
    setattr(where, name, replacement)

    def undo() -> None:
        if vars(where).get(name) is replacement:  # Somebody else's replacement of ours stays.
            setattr(where, name, original)

    return undo


# harness: shared (it replaces what is of the whole process)
placed = Replacements(_PLACES).placed


# What was made before ----------------------------------------------------------------------------


class Adopted:
    """Locks and pools that were made before, and what stands in their place."""

    def __init__(self) -> None:
        self.undo: list[Undo] = []
        self.pools: list[concurrent.futures.ThreadPoolExecutor] = []
        self._by_id: dict[int, Any] = {}

    def look(self, roots: list[Any]) -> None:
        """Replace what can be reached from these."""
        pending: list[Any] = list(roots)
        seen: set[int] = set()
        while pending and len(seen) < OBJECTS_AT_MOST:
            thing = pending.pop()
            if id(thing) not in seen:
                seen.add(id(thing))
                with suppress(Exception):  # A proxy may stand for what isn't there.
                    self._look_into(thing, pending)

    def _look_into(self, thing: Any, pending: list[Any]) -> None:
        if isinstance(thing, dict):
            self._look_into_dict(thing, list(thing), pending)
        elif type(thing) is ModuleType:
            if is_users_module(thing.__name__):
                pending.append(vars(thing))
        elif isinstance(thing, list | tuple | set | frozenset):
            pending += [one for one in thing if _may_hold(one)]
        elif isinstance(thing, CellType):
            self._look_into_cell(thing, pending)
        elif isinstance(thing, functools.partial):
            pending += [thing.func, thing.args, thing.keywords]
        elif isinstance(thing, MethodType):
            pending += [thing.__self__, thing.__func__]
        elif isinstance(thing, FunctionType):
            pending += [thing.__closure__, thing.__defaults__, thing.__kwdefaults__]
            pending.append(inspect.unwrap(thing))
            if is_users_module(thing.__module__):
                names = [name for name in _names_in(thing.__code__) if name in thing.__globals__]
                self._look_into_dict(thing.__globals__, names, pending, by_name=True)
        elif isinstance(thing, type):
            self._look_into_class(thing, pending)
        else:
            if isinstance(thing, concurrent.futures.ThreadPoolExecutor):
                self._adopt_pool(thing)
            held = getattr(thing, "__dict__", None)
            if type(held) is dict:
                pending.append(held)
            if is_users_module(type(thing).__module__):
                pending.append(type(thing))

    def _look_into_dict(
        self, thing: dict[Any, Any], keys: list[Any], pending: list[Any], *, by_name: bool = False
    ) -> None:
        by_name = by_name or "__builtins__" in thing
        for key in keys:
            value = thing[key]
            instead = self._instead(value, by_name)
            if instead is not None:
                thing[key] = instead
                self._put_back(thing.get, thing.__setitem__, key, value, instead)
            elif _may_hold(value):
                pending.append(value)

    def _look_into_class(self, cls: type[Any], pending: list[Any]) -> None:
        if not is_users_module(cls.__module__):
            return
        for name, value in list(vars(cls).items()):
            instead = self._instead(value, False)
            if instead is not None:
                setattr(cls, name, instead)
                put = functools.partial(setattr, cls)
                self._put_back(vars(cls).get, put, name, value, instead)
            elif _may_hold(value):
                pending.append(value)

    def _look_into_cell(self, cell: CellType, pending: list[Any]) -> None:
        try:
            value = cell.cell_contents
        except ValueError:
            return
        instead = self._instead(value, False)
        if instead is None:
            pending.append(value)
        else:
            cell.cell_contents = instead
            get, put = functools.partial(getattr, cell), functools.partial(setattr, cell)
            self._put_back(get, put, "cell_contents", value, instead)

    def _instead(self, value: Any, by_name: bool) -> Any:
        """Return what to put in place of something; None to leave it."""
        found = self._by_id.get(id(value))
        if found is not None:
            return found
        if type(value) in LOCK_TYPES:
            if type(value) is LOCK_TYPES[0]:
                found = ControlledLock(value)
            else:
                found = ControlledRLock(value)
        elif by_name and id(value) in _BY_NAME:
            return _BY_NAME[id(value)]
        elif type(value) is BuiltinMethodType and type(value.__self__) in LOCK_TYPES:
            # A condition keeps its lock's methods.
            own = self._instead(value.__self__, False)
            found = getattr(own, value.__name__, None)
        if found is not None:
            self._by_id[id(value)] = found
        return found

    def _put_back(
        self,
        get: Callable[[Any], Any],
        put: Callable[[Any, Any], object],
        key: Any,
        value: Any,
        instead: Any,
    ) -> None:
        def undo() -> None:
            if get(key) is instead:
                put(key, value)

        self.undo.append(undo)

    def _adopt_pool(self, pool: concurrent.futures.ThreadPoolExecutor) -> None:
        own = dict(vars(pool))
        self.pools.append(pool)
        self.undo.append(lambda: vars(pool).update(own))

    def renew_pools(self) -> None:
        """Give pools that were made before no workers, at the beginning of a program."""
        for pool in self.pools:
            pool._threads = _InOrder()
            pool._work_queue = _OwnSimpleQueue()
            pool._idle_semaphore = threading.Semaphore(0)


def _may_hold(value: Any) -> bool:
    return type(value) not in _HOLD_NOTHING


_HOLD_NOTHING = frozenset((str, bytes, int, float, bool, type(None), BuiltinFunctionType))


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the names of globals in code, and in the code inside of it."""
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _names_in(const)


_adopted: list[Adopted] = []  # harness: shared (what it replaces is of the whole process)


@contextmanager
def adopting(*roots: Any) -> Iterator[None]:
    """Have what was made before replaced as long as the block lasts; inside another, do nothing."""
    if _adopted:
        yield
        return
    adopted = Adopted()
    with ExitStack() as stack:
        stack.enter_context(placed())
        _adopted.append(adopted)
        stack.callback(_adopted.remove, adopted)
        adopted.look(list(roots))
        stack.callback(_undo_all, adopted)
        yield


def _undo_all(adopted: Adopted) -> None:
    for undo in reversed(adopted.undo):
        with suppress(Exception):
            undo()


def renew_pools() -> None:
    """Give pools that were made before no workers."""
    for adopted in _adopted:
        adopted.renew_pools()
