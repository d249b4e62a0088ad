"""See what each step of a run reads and writes, who starts whom, and who waits for whom.

An observer of one run, which also knows what its chooser could choose from. What can be seen: the
user's and other Python code, bytecode by bytecode (`_shadow`); functions in C that are known
(`_c_functions`); what trio and asyncio lend (`_library_calls`). What can't is named.

In a program of threads each thread is traced all the time, as a step ends in the middle of a line:
whoever follows it calls `on_call`. Its locks say themselves that they are taken or given back.

Steps of the worker threads of trio and asyncio aren't watched. Each counts as depending on every
other, so nothing is left out, and nothing saved.
"""

from __future__ import annotations

import concurrent.futures.thread
import dis
import functools
import gc
import inspect
import os
import queue
import sys
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from types import CodeType, FrameType, ModuleType
from typing import Any

import attrs

from harness._words import error_in_words
from harness.runs._frames import is_user_code
from harness.testing._users_code import is_users_frame
from harness.testing.schedules._c_functions import UnseenError, is_of_python
from harness.testing.schedules._choosers import Chooser
from harness.testing.schedules._control import Control, controlled
from harness.testing.schedules._effects import ANY, WHOLE, Effects, Things
from harness.testing.schedules._library_calls import EVERYTHING, is_library, library_call
from harness.testing.schedules._shadow import Shadow
from harness.testing.schedules._strand import Strand
from harness.testing.schedules._values import UNKNOWN, attribute_of, own_attribute_of

STEPS_AT_MOST = 5_000
"""How many steps of a run are watched."""


@attrs.define(eq=False)
class Step:
    """A step that was watched."""

    task: int
    """The number of the task that made it."""

    nth: int
    """Which step of that task, from 0."""

    phase: int
    """How often nothing could go on before, so that a clock moved or a reply arrived."""

    effects: Effects = attrs.field(factory=Effects)

    after: set[int] = attrs.field(factory=set)
    """Earlier steps, by place in the run, that it could not have come before."""

    known: int = 0
    """How many objects had been touched in the run before it."""

    needs: int | None = None
    """The lock of threads that had to be free for it, as its thread waited for that."""

    began: bool = False
    """Whether it is its task's first."""

    ended: bool = False
    """Whether it is its task's last."""


@attrs.define(eq=False)
class Watched:
    """Tells a watch what another chooser chooses from."""

    chooser: Chooser
    watch: Watch

    def choose(self, tasks: Sequence[int]) -> int:
        """Return what the other chooses."""
        self.watch.note_options(tasks)
        return self.chooser.choose(tasks)


class Watch:
    """Watches the steps of a run."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.things = Things()
        self.primitives: set[int] = set()
        """The locks of threads, and what conditions, events and the like keep for themselves."""
        self.control: Control | None = None
        self.options: tuple[int, ...] | None = None
        """What could go on at the decision that was just made; None if there was none."""
        self.complete = True
        """Whether every step was watched."""
        self._shadows: dict[FrameType, Shadow] = {}
        self._frame: FrameType | None = None
        self._effects = Effects()
        self._raised = False
        self._outer: Any = None
        self._traces = False
        self._collects = False
        self._last: dict[int, int] = {0: -1}
        """By task, its last step. The main one made its first before there was control."""
        self._made: dict[int, int] = {0: 1}
        self._started: dict[int, int] = {}
        """By task, the step that started it."""
        self._ready_since: dict[int, int] = {}
        self._kin: dict[int, list[int]] = {}
        """By task, the first and last steps of those that it started."""
        self._awaited: dict[int, set[int]] = {}
        """By task, the tasks that its wait is for, if that is known."""
        self._last_of: dict[int, int] = {}

    def note_options(self, tasks: Sequence[int]) -> None:
        """Note what could go on at a decision."""
        if tasks[0] >= 0:
            self.options = tuple(tasks)

    # Between steps ------------------------------------------------------------------------------

    def before_step(self, strand: Strand) -> None:
        """Note who could go on, and begin to follow."""
        control = self.control
        if control is None:
            control = self.control = strand.context.get(controlled)
        options, self.options = self.options, None
        if control is None or control.cut_short:
            return  # What it does in order to end is no part of it.
        if len(self.steps) >= STEPS_AT_MOST:
            self.complete = False
            return
        number = control.numbers[strand]
        here = len(self.steps)
        self._note_started(control)
        for other in options if options is not None else (number,):
            self._ready_since.setdefault(other, here)
        nth = self._made.get(number, 0)
        self._made[number] = nth + 1
        step = Step(number, nth, control.idles, known=len(self.things.kept), began=nth == 0)
        since = self._ready_since.pop(number, here)
        if nth == 0:
            if self._started[number] >= 0:
                step.after.add(self._started[number])
        else:
            if self._last[number] >= 0:
                step.after.add(self._last[number])
            if since > self._last[number] + 1:
                # It had to wait: for whoever made the step before it could go on.
                step.after.add(since - 1)
                step.after.update(self._kin.get(number, ()))
                awaited = self._awaited.get(number, ())
                step.after.update(self._last_of[one] for one in awaited if one in self._last_of)
        self._last[number] = here
        self._effects = step.effects
        self.steps.append(step)
        if getattr(strand, "kind", "task") != "task":
            step.effects.depends_on_all = True
        self._raised = False
        self._frame = None
        if control.backend.kind == "threads":
            self._begin_step_of_thread(step, control.threads[strand], control.numbers)
            return
        if control.threads.get(strand) is not None:
            step.effects.depends_on_all = True
            return
        own = getattr(strand, "task", None)
        if own is not None:
            self.touch(own, "cancel", writes=False)
        self._begin_to_look()
        self._outer = sys.gettrace()
        sys.settrace(self.on_call)
        self._traces = True

    def _begin_step_of_thread(self, step: Step, thread: Any, numbers: Mapping[Strand, int]) -> None:
        if thread.lock is not None:
            step.needs = self.things.number(thread.lock)
        joined = self._last_of.get(numbers.get(thread.joins, -1))
        if joined is not None:
            step.after.add(joined)
        self._begin_to_look()

    def _begin_to_look(self) -> None:
        self._collects = gc.isenabled()
        gc.disable()  # What is cleaned up by chance isn't the step's doing.

    def after_step(self, strand: Strand) -> None:
        """Stop following, and note what the step did to others."""
        control = self.control
        if control is None or not self.steps or self._effects is not self.steps[-1].effects:
            return
        if self._traces:
            sys.settrace(self._outer)
            self._traces = False
        if self._collects:
            gc.enable()
        step = self.steps[-1]
        step.ended = not control.backend.is_live(strand)
        is_thread = control.backend.kind == "threads"
        own = getattr(strand, "task", None)
        if step.ended:
            self._last_of[step.task] = len(self.steps) - 1
            if own is not None:
                self.touch(own, "result", writes=True)
            elif is_thread:
                self.touch(strand, "result", writes=True)
            if self._raised:
                step.effects.depends_on_all = True
        elif own is not None:
            self._awaited[step.task] = _awaited(own, control)
        if not is_thread and (step.ended or (step.began and own is not None)):
            self._kin.setdefault(control.started_by[step.task], []).append(len(self.steps) - 1)
        self._note_started(control)
        self._effects = Effects()

    def _note_started(self, control: Control) -> None:
        for number in range(len(self._started), len(control.started_by)):
            self._started[number] = len(self.steps) - 1

    def started_by(self) -> list[int]:
        """Return, for each task, the one that started it."""
        return [] if self.control is None else list(self.control.started_by)

    # What a step does ---------------------------------------------------------------------------

    def touch(self, thing: Any, key: Hashable, *, writes: bool) -> None:
        """Note that an object was touched; see `Notes`."""
        line = self._line()
        if isinstance(thing, ModuleType):
            thing = vars(thing)
        number = ANY if thing is UNKNOWN else self.things.number(thing)
        if number != ANY and self._frame is not None and _is_of_threading(self._frame):
            self.primitives.add(number)
        self._effects.add(number, key, writes, line)
        if not writes and isinstance(key, str) and key is not WHOLE:
            for cls in _looked_up_in(thing, key):
                self._effects.add(self.things.number(cls), key, False, line)

    def took_lock(self, lock: Any) -> None:
        """Note that a thread took a lock."""
        number = self.things.number(lock)
        self.primitives.add(number)
        self._effects.gives_back.discard(number)
        self._effects.add(number, WHOLE, True, None)

    def gave_lock_back(self, lock: Any) -> None:
        """Note that a thread gave a lock back."""
        number = self.things.number(lock)
        if number not in self._effects.touched:  # Else it took it in the same step.
            self._effects.gives_back.add(number)
        self._effects.add(number, WHOLE, True, None)

    def touch_variable(self, name: str, *, writes: bool) -> None:
        """Note that a variable of a function around was touched."""
        self._effects.add(-1, name, writes, self._line())

    def unseen(self, what: str) -> None:
        """Note that something can't be seen."""
        line = self._line()
        where = "" if line is None else f" ({os.path.basename(line[0])}:{line[1]})"
        self._effects.unseen = what + where
        self._effects.depends_on_all = True

    def _line(self) -> tuple[str, int] | None:
        frame = self._frame
        if frame is not None and frame.f_code.co_filename in _INSIDES:
            return None
        while frame is not None and not _is_users(frame.f_code.co_filename):
            frame = frame.f_back
        return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)

    def on_call(
        self, frame: FrameType, event: str, argument: Any
    ) -> Any:  # pragma: no cover - Python traces nothing inside a trace function
        """Follow a function, as a trace function does."""
        caller = frame.f_back
        shadow = None if caller is None else self._shadows.get(caller)
        if shadow is not None:
            shadow.calling = None
        if is_library(frame):
            if caller is None or shadow is None:
                return None
            self._frame = caller
            try:
                for one in library_call(frame, is_resumed=_is_at_yield(frame)):
                    if one is EVERYTHING:
                        self._effects.depends_on_all = True
                    else:
                        self.touch(one.thing, one.key, writes=one.writes)
            except UnseenError as error:
                self.unseen(str(error))
            except Exception as error:  # It must never become the program's.
                self.unseen(f"{frame.f_code.co_qualname}: {error_in_words(error)}")
            frame.f_trace_lines = False
            return self._on_return
        if frame.f_code is threading.Thread.__init__.__code__:
            return None  # That it counts all threads concerns nobody.
        if shadow is None and not (frame.f_code.co_flags & _SUSPENDABLE or is_users_frame(frame)):
            return None  # What a library, or Python itself, does for its own purposes.
        if frame not in self._shadows:
            self._shadows[frame] = Shadow(self, frame.f_code)
        frame.f_trace = self.on_event
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        return self.on_event

    def _on_return(
        self, frame: FrameType, event: str, argument: Any
    ) -> Any:  # pragma: no cover - see on_call
        if event == "return" and not _is_at_yield(frame):
            caller = None if frame.f_back is None else self._shadows.get(frame.f_back)
            if caller is not None:
                caller.returned(argument)
        return self._on_return

    def on_event(
        self, frame: FrameType, event: str, argument: Any
    ) -> Any:  # pragma: no cover - see on_call
        """Follow what happens in a function."""
        shadow = self._shadows[frame]
        self._frame = frame
        if event == "opcode":
            self._raised = False
            shadow.before(frame)
        elif event == "exception":
            self._raised = not isinstance(argument[1], StopIteration | StopAsyncIteration)
            shadow.calling = None
            if self._raised:
                shadow.stack.clear()
        elif event == "return":
            if shadow.calling is not None:
                shadow.was_of_c()
            caller = None if frame.f_back is None else self._shadows.get(frame.f_back)
            if not _is_at_yield(frame):
                del self._shadows[frame]
                if caller is not None:
                    caller.returned(_made_by(frame) if argument is None else argument)
        return self.on_event


def _made_by(frame: FrameType) -> Any:
    """Return the object if a function that returns None has initialized one."""
    code = frame.f_code
    if code.co_name != "__init__" or not code.co_varnames:
        return None
    return frame.f_locals.get(code.co_varnames[0])


_SUSPENDABLE = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def _looked_up_in(thing: Any, name: str) -> Iterator[type[Any]]:
    """Yield the classes whose attribute is read if an object has none of its own."""
    cls = thing if isinstance(thing, type) else type(thing)
    if is_of_python(cls) and attribute_of(thing, name) is not own_attribute_of(thing, name):
        for base in cls.__mro__:
            if base is not thing and is_of_python(base):
                yield base


def _is_at_yield(frame: FrameType) -> bool:
    """Return whether a frame being left is going to wait, or one being entered has waited."""
    halts = _halts(frame.f_code)
    # Python may already be one instruction further on, of two bytes.
    return frame.f_lasti in halts or frame.f_lasti - 2 in halts


@functools.cache
def _halts(code: CodeType) -> frozenset[int]:
    return frozenset(
        one.offset for one in dis.get_instructions(code) if one.opname in ("YIELD_VALUE", "SEND")
    )


_INSIDES = (queue.__file__, concurrent.futures.thread.__file__, concurrent.futures._base.__file__)
"""Where nobody's line races with another: what is in there, locks protect."""


def _is_of_threading(frame: FrameType) -> bool:
    return frame.f_code.co_filename == threading.__file__


@functools.cache
def _is_users(filename: str) -> bool:
    return is_user_code(filename)


def _awaited(task: Any, control: Control) -> set[int]:
    """Return the tasks of asyncio that a task waits for, by number."""
    waiter = getattr(task, "_fut_waiter", None)
    awaited = getattr(waiter, "_children", None) or [waiter]
    return {
        number
        for strand, number in control.numbers.items()
        if getattr(strand, "task", None) is not None and any(strand.task is one for one in awaited)  # type: ignore[attr-defined]
    }
