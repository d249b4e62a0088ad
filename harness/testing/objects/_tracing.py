"""Follow the steps of tasks through the lines of the user's code.

Built on `sys.settrace`, for the length of a step. It is less simple than it looks:

- When a task resumes, every coroutine on its stack is entered again, the outermost first, though
  only the innermost gets anywhere. The others stay in the middle of a line.
- When it halts, each of them is left again, as if it returned.
- A call returns into the middle of a line, and what the rest of that line does happens then.

So what a line *reads* is reported at three moments: when it begins, when the await in it is over,
and when a call in it has returned. What it *writes* is found by comparing before each of these.
What a library does counts as done by the line that called it.
"""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

import attrs
import outcome

from harness.testing._users_code import is_users_frame
from harness.testing.objects._loads import Spot, is_at_await, spot_of
from harness.testing.schedules import Strand
from harness.testing.schedules._control import thread_of

T = TypeVar("T")

Trace = Callable[[FrameType, str, Any], Any]


def in_a_thread_of_its_own(work: Callable[[], T]) -> T:
    """Do work in which steps are traced, and return what it returns.

    A debugger or a coverage tool traces the thread that calls this, and would lose track of the
    functions running there.
    """
    done: list[outcome.Outcome[T]] = []
    context = contextvars.copy_context()
    thread = threading.Thread(
        target=lambda: done.append(outcome.capture(context.run, work)),
        name="harness: traces a replay",
    )
    thread.start()
    thread.join()
    return done[0].unwrap()


@attrs.define(eq=False)
class LineTrace:
    """Calls back for what the user's code does in a step.

    Python traces nothing inside a trace function, so coverage sees none of the callbacks.

    Args:
      compare: Called whenever a line may have written something; `line` is that line.
      read: Called with a frame and the spot from which it runs the rest of its line.
      enter: Called with a frame that is entered, whether for the first time or again.
    """

    _compare: Callable[[], None]
    _read: Callable[[FrameType, Spot], None]
    _enter: Callable[[FrameType], None] | None = None
    line: tuple[CodeType, int] | None = attrs.field(default=None, init=False)
    """The line of the user's code that is being run; None before the first."""
    _resumed: tuple[FrameType, Spot] | None = attrs.field(default=None, init=False)
    """The innermost frame that was entered again, and has not got anywhere yet."""
    _traces: bool = attrs.field(default=True, init=False)
    _outer: Any = attrs.field(default=None, init=False)
    """The trace function that was there before: a debugger's, or one that measures coverage."""

    def begin(self, strand: Strand) -> None:
        """Start tracing a step.

        A thread's step ends before anything else that others could notice, so it is known to be
        where it begins, and nothing need be traced.
        """
        self.line = None
        self._resumed = None
        thread = thread_of(strand)
        self._traces = thread is None
        if thread is not None:
            frame = thread.users_frame()
            if frame is not None:
                self.line = (frame.f_code, frame.f_lineno)
                if self._enter is not None:
                    self._enter(frame)
                self._read(frame, Spot(frame.f_lineno, frame.f_lasti, so_far=True))
            return
        self._outer = sys.gettrace()
        sys.settrace(self._on_call)

    def end(self) -> None:
        """Stop tracing, and compare for the last line."""
        if self._traces:
            sys.settrace(self._outer)
        self._compare()
        self._resumed = None

    def _on_call(
        self, frame: FrameType, event: str, argument: Any
    ) -> Trace | None:  # pragma: no cover - see LineTrace
        if not is_users_frame(frame):
            return None
        self._compare()
        resumed = is_at_await(frame)
        if not resumed:
            self._go_on()
        if self._enter is not None:
            self._enter(frame)
        self.line = (frame.f_code, frame.f_lineno)
        self._resumed = (frame, spot_of(frame)) if resumed else None
        return self._on_line

    def _on_line(
        self, frame: FrameType, event: str, argument: Any
    ) -> Trace:  # pragma: no cover - see LineTrace
        self._compare()
        if event == "return" and is_at_await(frame):
            return self._on_line
        self._go_on()
        if event == "line":
            self.line = (frame.f_code, frame.f_lineno)
            self._read(frame, spot_of(frame))
        elif event == "return":
            caller = frame.f_back
            while caller is not None and not is_users_frame(caller):
                caller = caller.f_back
            if caller is not None:
                self.line = (caller.f_code, caller.f_lineno)
                if caller is frame.f_back:
                    self._read(caller, spot_of(caller))
        return self._on_line

    def _go_on(self) -> None:  # pragma: no cover - see LineTrace
        """Note that the innermost frame has got somewhere: its await is over."""
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            self._read(*resumed)
