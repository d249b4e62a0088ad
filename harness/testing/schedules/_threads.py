"""Let threads run one at a time, each up to its next point.

A *crew* is the threads of one controlled program. Only the one whose turn it is runs; the others
wait for theirs, each on a lock of its own. A thread comes to a point in the user's code (see
`_thread_points`), or where it takes a lock, sleeps, joins or the like (see `_thread_locks`). There
it makes way, and somebody picks who goes on: in a program of threads alone, the thread itself; in
one of trio or asyncio, the loop, which looks on while a thread makes its step.

Threads can't be cancelled. One that has to end has `GiveUp` raised at its point.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from types import FrameType
from typing import Any, Protocol

import attrs
import outcome

from harness.runs._frames import is_ours, is_plumbing, is_user_code, place
from harness.testing.schedules._control import Control, GiveUp
from harness.testing.schedules._ending import Ending
from harness.testing.schedules._strand import Watchers
from harness.testing.schedules._thread_points import by_trace, follower
from harness.testing.schedules._watch import Watch

new_lock = threading.Lock
real_sleep = time.sleep
real_monotonic = time.monotonic
"""As they are, before they are replaced for threads under control."""

STALL_SECONDS = 0.5
"""Real seconds without a step or any work after which a thread counts as blocked."""

_LOOK_SECONDS = 0.05
_GLANCE_SECONDS = 0.002
_ENDS_AT_MOST = 100
_END_SECONDS = 1.0

_NUMBERED = re.compile(r"(?:Thread|Timer|ThreadPoolExecutor|asyncio)-\d+(?:_\d+)?(?: \(.*\))?")
"""Names that count all the threads of the process."""

_KEPT = "harness.testing."
"""What the names of context variables begin with that a new thread is given; others it isn't."""


class Held(Protocol):
    """What a thread waits for that another one holds."""

    def holder(self) -> ThreadStrand | None:
        """Return who holds it."""
        ...

    def taken_at(self) -> str | None:
        """Return in words which line took it."""
        ...


@attrs.define(eq=False)
class ThreadStrand:
    """A thread under control."""

    crew: Crew
    name: str
    code_name: str
    context: Context
    parent: ThreadStrand | None
    thread: threading.Thread | None = None
    begin: Callable[[], None] | None = attrs.field(default=None, init=False)
    """Starts its thread, at its first turn: that is the only time that it needs no lock for it."""
    baton: Any = attrs.field(init=False)
    """Locked while it isn't the thread's turn."""

    is_over: Callable[[], bool] | None = attrs.field(default=None, init=False)
    """What it waits for; None if it could go on."""
    lock: Held | None = attrs.field(default=None, init=False)
    """The lock that it waits for."""
    joins: ThreadStrand | None = attrs.field(default=None, init=False)
    """Whose end it waits for."""
    deadline: float | None = attrs.field(default=None, init=False)
    done: bool = attrs.field(default=False, init=False)
    killed: bool = attrs.field(default=False, init=False)
    kills: int = attrs.field(default=0, init=False)
    points_to_end: int = attrs.field(default=10_000, init=False)
    """How many points it may still come to while it is being ended."""
    outside: bool = attrs.field(default=False, init=False)
    """Whether it is blocked in something that isn't controlled."""
    came_back: threading.Event = attrs.field(factory=threading.Event, init=False)
    """Set unless it is; for a loop that has nothing else to do."""
    at_work: bool = attrs.field(default=False, init=False)
    """Whether it runs our own code, in which there are no points."""
    free: int = attrs.field(default=0, init=False)
    """How many points it passes without asking, as it would be picked anyway."""
    could_switch: bool = attrs.field(default=True, init=False)
    at: FrameType | None = attrs.field(default=None, init=False)
    """Its innermost frame while it isn't running."""
    ident: int = attrs.field(default=0, init=False)
    result: outcome.Outcome[Any] | None = attrs.field(default=None, init=False)
    work: Any = attrs.field(default=None, init=False)
    """What it does for a task of trio."""

    def __attrs_post_init__(self) -> None:
        self.baton = new_lock()
        self.baton.acquire()

    def at_point(self, frame: FrameType, could_switch: bool) -> None:
        """Let others go on, unless it runs our own code; see `Following`."""
        if not self.at_work:
            self.could_switch = could_switch
            self.crew.make_way(self, frame)

    def could_go_on(self, now: float) -> bool:
        """Tell whether it could make a step."""
        if self.done or self.outside:
            return False
        is_over = self.is_over
        return is_over is None or is_over() or (self.deadline is not None and self.deadline <= now)

    def frames(self) -> list[tuple[FrameType, int]]:
        """Return its frames while it isn't running, outermost first, without our own."""
        frame = self.at
        found: list[tuple[FrameType, int]] = []
        while frame is not None:
            name = frame.f_code.co_filename
            if not (is_ours(name) or is_plumbing(name)) or is_user_code(name):
                found.append((frame, frame.f_lineno))
            frame = frame.f_back
        return found[::-1]

    def holder(self) -> ThreadStrand | None:
        """Return who holds the lock that it waits for."""
        return None if self.lock is None else self.lock.holder()

    def taken_at(self) -> str | None:
        """Return in words which line took that lock."""
        return None if self.lock is None else self.lock.taken_at()

    def in_words(self) -> str:
        """Return in words which thread it is, and where in the user's code."""
        frame = self.users_frame()
        where = "code of a library" if frame is None else place(frame.f_code, frame.f_lineno)
        return f"{self.short_name} in {where}"

    @property
    def short_name(self) -> str:
        """What reports call it."""
        return f"thread {self.name.rpartition('<locals>.')[2]!r}"

    def users_frame(self) -> FrameType | None:
        """Return the innermost frame of the user's code."""
        for frame, _ in reversed(self.frames()):
            if is_user_code(frame.f_code.co_filename):
                return frame
        return None


_here = threading.local()  # harness: shared (each thread has its own)


def current_strand() -> ThreadStrand | None:
    """Return the calling thread, if it is under control and runs the program's code."""
    strand: ThreadStrand | None = getattr(_here, "strand", None)
    return None if strand is None or strand.at_work else strand


class uncontrolled:
    """Let the calling thread run our own code: it is neither followed nor waits for its turn."""

    __slots__ = ("before", "strand", "trace")

    def __enter__(self) -> None:
        self.trace: Any = None
        self.strand: ThreadStrand | None = getattr(_here, "strand", None)
        if self.strand is None:
            return
        self.before = self.strand.at_work
        self.strand.at_work = True
        # To be called for each function that is entered would cost more than what ours do.
        self.trace = sys.gettrace()
        if self.trace is not None:
            sys.settrace(None)

    def __exit__(self, *_: object) -> None:
        if self.strand is not None:
            self.strand.at_work = self.before
        if self.trace is not None:
            sys.settrace(self.trace)


@attrs.define(eq=False)
class Crew:
    """The threads of one controlled program."""

    control: Control
    ending: Ending
    watchers: Watchers
    now: Callable[[], float]
    """The program's own clock."""

    picks: bool = attrs.field(kw_only=True)
    """Whether a thread that makes way picks who goes on; else whoever let it go on does."""

    strands: list[ThreadStrand] = attrs.field(factory=list[ThreadStrand], init=False)
    waiting: dict[ThreadStrand, None] = attrs.field(factory=dict, init=False)
    """Those that wait for something, if the crew picks; all others are in line."""
    back_again: list[ThreadStrand] = attrs.field(factory=list[ThreadStrand], init=False)
    """Those that were blocked elsewhere, and have to get in line again."""
    by_thread: dict[Any, ThreadStrand] = attrs.field(factory=dict, init=False)
    pools: dict[Any, Any] = attrs.field(factory=dict, init=False)
    """Its threads that work for one strand after the other, by what they belong to."""
    watch: Watch | None = attrs.field(init=False)
    """What sees what each step reads and writes, if anything does."""
    closing: bool = attrs.field(default=False, init=False)
    running: ThreadStrand | None = attrs.field(default=None, init=False)
    _granted: int = attrs.field(default=0, init=False)
    """How many points the one that runs may pass without asking."""
    back: Any = attrs.field(factory=new_lock, init=False)
    """Released when nobody of the crew runs any longer."""
    wakers: list[Callable[[], None]] = attrs.field(factory=list[Callable[[], None]], init=False)
    """Wake those of a loop that wait until a thread could go on."""
    _numbers: int = attrs.field(default=0, init=False)
    _guard: Any = attrs.field(factory=new_lock, init=False)

    def __attrs_post_init__(self) -> None:
        self.back.acquire()
        watches = [one for one in self.watchers.observers if isinstance(one, Watch)]
        self.watch = watches[0] if watches else None

    # Threads begin and end ----------------------------------------------------------------------

    def begin(self, name: str, code_name: str, context: Context) -> ThreadStrand:
        """Return a new strand, which a thread is about to be started for."""
        self.settle()
        if not self.strands:
            follower.begin()
        named = code_name if _NUMBERED.fullmatch(name) else name
        strand = ThreadStrand(self, named, code_name, context, getattr(_here, "strand", None))
        self.strands.append(strand)
        if self.picks:
            self.control.admit(strand)
            self.control.threads[strand] = strand
            self.control.add(strand)
        return strand

    def run(self, strand: ThreadStrand, function: Callable[[], Any]) -> None:
        """Run a function as a strand in the calling thread, from its first turn on."""
        strand.ident = threading.get_ident()
        strand.baton.acquire()
        _here.strand = strand
        end: Callable[[], object] | None = None
        try:
            if not strand.killed:
                if self.picks:
                    self.watchers.before(strand)
                if self.watch is not None:
                    end = by_trace.follow_watched(strand, self.watch)
                else:
                    end = follower.follow(strand, exactly=bool(self.watchers.observers))
                strand.result = outcome.capture(strand.context.run, function)
        except BaseException as error:  # Not an Exception: outcome lets it pass.
            strand.result = outcome.Error(error)
        finally:
            strand.at_work = True
            if end is not None:
                end()
            self._ended(strand)

    def _ended(self, strand: ThreadStrand) -> None:
        with self._guard:
            was_outside, strand.outside = strand.outside, False
            strand.done = True
            del _here.strand
            if was_outside:
                strand.came_back.set()
                return  # Somebody else runs.
        self.settle()
        if not strand.killed and self.picks:
            self.watchers.after(strand)
        self._pass_on(strand)

    def close(self) -> None:
        """End all threads, one after the other."""
        self.closing = True
        for strand in self.strands:
            strand.killed = True
        for strand in self.strands:
            self.end(strand)
        for pool in self.pools.values():
            pool.close()
        with uncontrolled():
            for thread, strand in list(self.by_thread.items()):
                if strand.done:
                    thread.join()
        if self.strands:
            follower.end()
        _here.__dict__.pop("crew", None)

    def settle(self) -> None:
        """Record the points that were passed, before anything changes who could go on."""
        granted, self._granted = self._granted, 0
        running = self.running
        if granted and running is not None:
            left, running.free = running.free, 0
            if granted > left:
                self.control.step_on(granted - left)

    def _steps(self) -> int:
        """Return how many steps were made, recorded or not."""
        running = self.running
        return self.control.steps + self._granted - (0 if running is None else running.free)

    def wake_all(self) -> None:
        """Have everybody who waits for a thread look whether it can go on."""
        wakers, self.wakers = self.wakers, []
        for wake in wakers:
            wake()

    def end(self, strand: ThreadStrand) -> None:
        """End a thread, unless it is blocked elsewhere or ignores that."""
        strand.killed = True
        while not strand.done and strand.kills < _ENDS_AT_MOST and not strand.outside:
            self._hand_to(strand)
            if not self.back.acquire(timeout=_END_SECONDS):
                strand.outside = True

    def next_number(self) -> int:
        """Return a number that nothing in the program had before."""
        self._numbers += 1
        return self._numbers

    # Turns --------------------------------------------------------------------------------------

    def give_way(self, strand: ThreadStrand) -> None:
        """Let others go on before the calling thread does, which is in a function of ours."""
        with uncontrolled():
            self.make_way(strand, sys._getframe(1))

    def make_way(self, strand: ThreadStrand, at: FrameType) -> None:
        """Let others go on before the calling thread does, which is at this frame."""
        if strand.killed:
            self._end(strand)
            return
        was_at_work, strand.at_work = strand.at_work, True
        strand.at = at
        try:
            with self._guard:
                was_outside, strand.outside = strand.outside, False
            if was_outside:
                self.back_again.append(strand)
                strand.came_back.set()
                self._await_turn(strand)
                return
            if self.picks:
                self.settle()
                if self.watchers.observers:
                    self.watchers.after(strand)
                self._line_up(strand)
            if not self._pass_on(strand):
                self._await_turn(strand)
            elif self.picks and self.watchers.observers:
                self.watchers.before(strand)
        finally:
            strand.at = None
            strand.at_work = was_at_work
            strand.could_switch = True

    def _await_turn(self, strand: ThreadStrand) -> None:
        strand.baton.acquire()
        if strand.killed:
            strand.kills += 1
            raise GiveUp
        if self.picks:
            self.watchers.before(strand)

    def _end(self, strand: ThreadStrand) -> None:
        """Raise in a thread that is being ended, where it would have to wait."""
        strand.points_to_end -= 1
        if strand.is_over is not None or strand.points_to_end < 0:
            strand.kills += 1
            if strand.kills >= _ENDS_AT_MOST:
                strand.at_work = True
                self.back.release()
                strand.baton.acquire()  # It ignores that it has to end: it stays here for good.
            raise GiveUp

    def _pass_on(self, strand: ThreadStrand) -> bool:
        """Let whoever is picked go on; return whether that is the calling thread."""
        chosen = self.choose() if self.picks and not self.closing and not self.is_over() else None
        if self.closing:
            chosen = None
        if chosen is strand:
            return True
        if chosen is not None and not strand.done and not strand.could_switch:
            frame = strand.users_frame()
            if frame is not None and strand.is_over is None:
                self.ending.unswitchable.append(place(frame.f_code, frame.f_lineno))
        if chosen is None:
            self.running = None
            self.back.release()
        else:
            self._hand_to(chosen)
        return False

    def _hand_to(self, strand: ThreadStrand) -> None:
        """Let a thread go on; start it if it hasn't been."""
        self.running = strand
        strand.baton.release()
        begin, strand.begin = strand.begin, None
        if begin is not None:
            begin()

    def is_over(self) -> bool:
        """Tell whether the main thread has ended."""
        return self.strands[0].done

    def choose(self) -> ThreadStrand | None:
        """Pick who goes on; None if nobody can."""
        control = self.control
        while self.back_again:
            self._line_up(self.back_again.pop())
        if self.waiting:
            now = self.now()
            for strand in self.waiting:
                if strand.could_go_on(now):
                    control.add(strand)
                else:
                    control.remove(strand)
        if not control.ready:
            return None
        try:
            chosen = control.pick()
        except BaseException as error:
            self.ending.for_error(error)
            return None
        assert isinstance(chosen, ThreadStrand)
        self.waiting.pop(chosen, None)
        if self.closing:
            return None
        if not self.watchers.observers:
            self._granted = chosen.free = control.sure_steps()
        return chosen

    def _line_up(self, strand: ThreadStrand) -> None:
        if strand.is_over is not None:
            self.waiting[strand] = None
        elif not strand.done:
            self.control.add(strand)

    def let_go_on(self, strand: ThreadStrand) -> None:
        """Let a thread go on, and wait until none of the crew runs.

        A thread blocked in something uncontrolled is left alone until it comes back by itself.
        """
        self._hand_to(strand)
        steps, busy, since = -1, 0.0, real_monotonic()
        while not self.back.acquire(timeout=_LOOK_SECONDS):
            running, now = self.running, real_monotonic()
            if self._steps() != steps:
                steps, busy, since = self._steps(), _busy_seconds(running), now
                continue
            if now - since < STALL_SECONDS:
                continue
            worked = _busy_seconds(running) - busy
            if running is None or worked > (now - since) / 10:
                steps = -1  # It isn't blocked, only slow.
                continue
            with self._guard:
                if self._steps() == steps and self.running is running and not running.at_work:
                    self.settle()
                    running.outside = True
                    running.came_back.clear()
                    running.at = sys._current_frames().get(running.ident)
                    self.ending.outside.add(running.in_words())
                    return

    def wait_outside(self) -> bool:
        """Wait a little for threads that are blocked elsewhere; False if there are none."""
        if not any(strand.outside for strand in self.strands):
            return False
        real_sleep(_GLANCE_SECONDS)
        return True

    def next_deadline(self) -> float | None:
        """Return when the next wait with a timeout ends."""
        return min(
            (one.deadline for one in self.strands if one.deadline is not None and not one.done),
            default=None,
        )

    # Waits --------------------------------------------------------------------------------------

    def wait(
        self,
        strand: ThreadStrand,
        is_over: Callable[[], bool],
        seconds: float | None,
        *,
        lock: Held | None = None,
        joins: ThreadStrand | None = None,
    ) -> bool:
        """Have the calling thread wait; return whether it is over, or only the time is."""
        strand.deadline = None if seconds is None else self.now() + max(seconds, 0)
        strand.is_over, strand.lock, strand.joins = is_over, lock, joins
        try:
            self.give_way(strand)
        finally:
            strand.is_over = strand.deadline = strand.lock = None
            strand.joins = None
        return is_over()


def _busy_seconds(strand: ThreadStrand | None) -> float:
    """Return how long a thread has computed."""
    if strand is None or not strand.ident or not hasattr(time, "pthread_getcpuclockid"):
        return 0.0
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(strand.ident))
    except (OSError, OverflowError):
        return 0.0


def crew_of(control: Control, now: Callable[[], float]) -> Crew:
    """Return the threads of the program of the loop that calls."""
    if control.crew is None:
        ending = control.ending
        control.crew = Crew(control, ending, Watchers((), ending.for_error), now, picks=False)
        _here.crew = control.crew
    crew: Crew = control.crew
    return crew


def crew_here() -> Crew | None:
    """Return the threads of the loop that runs in the calling thread."""
    crew: Crew | None = getattr(_here, "crew", None)
    return crew


def changed() -> None:
    """Take note that what a thread waits for may be over."""
    strand: ThreadStrand | None = getattr(_here, "strand", None)
    if strand is not None:
        strand.crew.settle()
    crew = crew_here()
    if crew is not None:
        crew.wake_all()


def own_context() -> Context:
    """Return the context of a new thread: empty, but for what the kit keeps there."""
    kept = [one for one in copy_context().items() if one[0].name.startswith(_KEPT)]
    context = Context()
    context.run(_set_all, kept)
    return context


def _set_all(values: list[tuple[ContextVar[Any], Any]]) -> None:
    for variable, value in values:
        variable.set(value)
