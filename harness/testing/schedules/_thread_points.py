"""Know where a thread of the user's code can be left for another, and be called there.

A *point* is right before a bytecode that loads or stores an attribute, a global or an element, asks
whether something is in a container, takes the next of an iterator, or calls a function; and at a
line that only reads variables of functions around it. Between two points a thread changes nothing
that others can see more than once, so switching elsewhere would give no other outcome.

CPython with its global lock switches at fewer places: where a function begins, after a call, and at
the end of a loop's body. Whether one of them can come between the point before and this one is told
to whoever is called, so that a report can say what this build of Python does.

Where Python has `sys.monitoring` (3.12), the bytecodes are watched through it. Before, each call of
a trace function costs as much as several bytecodes, so the thread is called once per line where
nothing but loads of constants and of its own variables comes between the beginning of the line and
its only point, and for each bytecode of other lines.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Protocol

import attrs

from harness.testing._users_code import is_users_frame

GIL = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether this build of Python switches threads only at some bytecodes."""

_ACCESSES = frozenset(
    (
        *("LOAD_ATTR", "STORE_ATTR", "DELETE_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"),
        *("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF"),
        *("BINARY_SUBSCR", "STORE_SUBSCR", "DELETE_SUBSCR", "BINARY_SLICE", "STORE_SLICE"),
        *("CONTAINS_OP", "FOR_ITER"),
    )
)
_CALLS = frozenset(("CALL", "CALL_KW", "CALL_FUNCTION_EX"))
_SWITCHES = _CALLS | {"RESUME", "JUMP_BACKWARD"}
"""After which this build of Python may switch threads."""

_READS_FROM_AROUND = frozenset(("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"))
_SILENT = frozenset(
    (
        *("NOP", "PUSH_NULL", "LOAD_FAST", "LOAD_CONST", "LOAD_CLOSURE", "COPY", "SWAP"),
        *("PRECALL", "KW_NAMES", "EXTENDED_ARG", *_READS_FROM_AROUND),
    )
)
"""What may come before or after a switch alike, and always goes on to the next bytecode."""

_ENDS = frozenset(
    (
        *("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD"),
        *("JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"),
    )
)
"""What never goes on to the next bytecode."""

_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_NOT_DATA = (FunctionType, BuiltinFunctionType, ModuleType, type)

Point = tuple[str | None, bool]
"""The name of the global that the bytecode loads, if it does; and whether this build of Python may
have switched threads since the point before."""


class Flow:
    """What can come after what in a piece of code."""

    def __init__(self, code: CodeType) -> None:
        bytecode: Any = dis.Bytecode(code)
        self.ones: list[dis.Instruction] = list(bytecode)
        self.names = {one.offset: one.opname for one in self.ones}
        self.lines = {
            one.offset: None if one.positions is None else one.positions.lineno for one in self.ones
        }
        self.after: dict[int, list[int]] = {}
        """Where each bytecode can go on to, unless it raises."""
        self.before: dict[int, list[int]] = {one.offset: [] for one in self.ones}
        for number, one in enumerate(self.ones):
            goes_on = one.opname not in _ENDS and number + 1 < len(self.ones)
            after = [self.ones[number + 1].offset] if goes_on else []
            if one.opcode in _JUMPS:
                after.append(one.argval)
            self.after[one.offset] = after
            for offset in after:
                self.before.setdefault(offset, []).append(one.offset)
        self._handlers = [(one.start, one.end, one.target) for one in bytecode.exception_entries]

    def on_line(self, offset: int) -> set[int]:
        """Return what can be reached from a bytecode before Python says that a line begins.

        It says so where another line begins, and after a jump backwards.
        """
        line = self.lines[offset]
        found, pending = {offset}, [offset]
        while pending:
            here = pending.pop()
            raised = [target for start, end, target in self._handlers if start <= here < end]
            for there in self.after[here] + raised:
                if there not in found and there > here and self.lines[there] in (line, None):
                    found.add(there)
                    pending.append(there)
        return found


def _points_of(code: CodeType, is_data: Callable[[str], bool]) -> dict[int, Point]:
    flow = Flow(code)
    loaded: dict[int, str | None] = {}
    stored = {one.argval for one in flow.ones if one.opname == "STORE_DEREF"}
    line: int | None = None
    has_points = False
    callee = False
    """Whether the last thing loaded is what a call is about to be made of."""
    waiting: int | None = None
    """Where the line first reads a variable from around, if it has no points so far."""
    for one in flow.ones:
        here = flow.lines[one.offset]
        if here is not None and here != line:
            if waiting is not None and not has_points:
                loaded[waiting] = None
            line, has_points, waiting = here, False, None
        name, is_point = one.opname, False
        if name in _ACCESSES or (name == "BINARY_OP" and one.argrepr == "[]"):
            is_point = True
            callee = name == "LOAD_METHOD" or (name == "LOAD_ATTR" and "NULL" in one.argrepr)
        elif name in ("LOAD_GLOBAL", "LOAD_NAME"):
            is_point = True
        elif name in _READS_FROM_AROUND:
            is_point = one.argval in stored
            if not is_point and waiting is None:
                waiting = one.offset
        elif name in _CALLS:
            is_point, callee = not callee, False
        if is_point:
            has_points = True
            loaded[one.offset] = str(one.argval) if name in ("LOAD_GLOBAL", "LOAD_NAME") else None
    if waiting is not None and not has_points:
        loaded[waiting] = None
    for one in flow.ones:
        # Without a point, a loop would never let another thread go on.
        if one.opname == "JUMP_BACKWARD" and not any(
            one.argval <= offset < one.offset and name is None for offset, name in loaded.items()
        ):
            loaded[one.offset] = None
    sure = {offset for offset, name in loaded.items() if name is None or is_data(name)}
    return {offset: (name, _may_switch(flow, offset, sure)) for offset, name in loaded.items()}


def _may_switch(flow: Flow, offset: int, points: set[int]) -> bool:
    """Tell whether this build of Python may switch on a way from another point to this one."""
    seen, pending = {offset}, [offset]
    while pending:
        here = pending.pop()
        if not flow.before[here] and flow.names[here] == "PUSH_EXC_INFO":
            return True  # What has raised was a call, mostly.
        for there in flow.before[here]:
            if flow.names[there] in _SWITCHES:
                return True
            if there not in seen and there not in points:
                seen.add(there)
                pending.append(there)
    return not GIL or flow.names[offset] in ("RESUME", "JUMP_BACKWARD")


@attrs.define(eq=False)
class Points:
    """Where the points of a piece of code are."""

    code: CodeType
    at: dict[int, Point]
    """By offset."""

    _ahead: dict[int, Point | bool] = attrs.field(factory=dict, init=False)

    def ahead(self, offset: int) -> Point | bool:
        """Return what comes on a line that is entered at a bytecode.

        Returns:
          Its only point, if that may as well be made now; False if there is none; True if each
          bytecode has to be looked at.
        """
        found = self._ahead.get(offset)
        if found is None:
            found = self._ahead[offset] = self._look_ahead(offset)
        return found

    def _look_ahead(self, offset: int) -> Point | bool:
        flow = Flow(self.code)
        points = flow.on_line(offset) & self.at.keys()
        if len(points) != 1:
            return bool(points)
        (point,) = points
        while offset != point:
            if flow.names[offset] not in _SILENT:
                return True
            (offset,) = flow.after[offset]
        return self.at[point]


def is_data(found: dict[str, Any], name: str) -> bool:
    """Tell whether a global is something that changes, not a function, a class or a module."""
    return name in found and not isinstance(found[name], _NOT_DATA)


class Following(Protocol):
    """A thread that is followed."""

    free: int
    """How many points it need not be called at."""

    at_work: bool
    """Whether it runs our own code, in which there are no points."""

    def at_point(self, frame: FrameType, could_switch: bool, /) -> None:
        """Be called at a point.

        Args:
          frame: Its frame.
          could_switch: Whether this build of Python could have switched since the last one.
        """


class Tables:
    """The points of code, by code; kept, as they cost more to find than to use."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[CodeType, Points | None]] = {}

    def of(self, frame: FrameType) -> Points | None:
        """Return the points of a frame's code; None if it isn't followed."""
        code = frame.f_code
        found = self._found.get(id(code))
        if found is None:
            points: Points | None = None
            if _is_followed(frame):
                known = partial(is_data, frame.f_globals)
                points = Points(code, _points_of(code, known))
            found = self._found[id(code)] = (code, points)
        return found[1]

    def all(self) -> list[Points]:
        """Return the points of all code that is followed."""
        return [points for _, points in list(self._found.values()) if points is not None]


_tables = Tables()  # harness: shared (what it holds of code never changes)
_here = threading.local()  # harness: shared (each thread follows its own frames)


class Watching(Protocol):
    """Traces what a thread does, too."""

    def on_call(self, frame: FrameType, event: str, argument: Any, /) -> Any:
        """Trace a function; return what traces what happens in it."""

    def on_event(self, frame: FrameType, event: str, argument: Any, /) -> Any:
        """Trace what happens in it."""


class ByTrace:
    """Follows threads through `sys.settrace`."""

    def begin(self) -> None:
        """Do nothing: each thread is traced by itself."""

    def end(self) -> None:
        """Do nothing."""

    def follow(self, following: Following, *, exactly: bool) -> Callable[[], None]:
        """Follow the calling thread; return what ends that.

        Args:
          following: The thread.
          exactly: Whether to call it right before the bytecode of each point, as whoever looks at
            its frames needs; else a point may come a few bytecodes early, which costs less.
        """
        tracers: dict[int, Any] = {}

        def on_call(frame: FrameType, event: str, argument: Any) -> Any:  # pragma: no cover
            key = id(frame.f_code)  # Kept by the tables, so nothing else gets it.
            if key in tracers:
                tracer = tracers[key]
            else:
                points = _tables.of(frame)
                tracer = tracers[key] = None if points is None else _tracer(following, points)
            if exactly and tracer is not None:
                frame.f_trace_lines = False
                frame.f_trace_opcodes = True
            return tracer

        return _traced(on_call)

    def follow_watched(self, following: Following, watch: Watching) -> Callable[[], None]:
        """Follow the calling thread, and have somebody else see each bytecode; see `follow`."""

        def on_call(frame: FrameType, event: str, argument: Any) -> Any:  # pragma: no cover
            points = _tables.of(frame)
            inner = watch.on_call(frame, event, argument)
            if points is None or inner is None:
                return inner
            at = points.at

            def on_event(frame: FrameType, event: str, argument: Any) -> Any:
                if event == "opcode" and (point := at.get(frame.f_lasti)) is not None:
                    name, could_switch = point
                    if name is None or is_data(frame.f_globals, name):
                        following.at_point(frame, could_switch)
                watch.on_event(frame, event, argument)
                return on_event

            frame.f_trace = on_event
            return on_event

        return _traced(on_call)


def _traced(on_call: Any) -> Callable[[], None]:
    before = sys.gettrace()
    sys.settrace(on_call)
    return lambda: sys.settrace(before)


def _tracer(following: Following, points: Points) -> Any:
    ahead, at = points.ahead, points.at
    known: dict[int, Any] = {}

    def on_event(frame: FrameType, event: str, argument: Any) -> Any:  # pragma: no cover
        if event == "line":
            offset = frame.f_lasti
            point = known.get(offset)
            if point is None:
                point = known[offset] = ahead(offset)
            if point is True:
                frame.f_trace_opcodes = True
                return on_event
            if frame.f_trace_opcodes:
                frame.f_trace_opcodes = False
            if point is False:
                return on_event
        elif event == "opcode":
            point = at.get(frame.f_lasti)
            if point is None:
                return on_event
        else:
            return on_event
        name, could_switch = point
        if name is None or is_data(frame.f_globals, name):
            if following.free:
                following.free -= 1
            else:
                following.at_point(frame, could_switch)
        return on_event

    return on_event


def _is_followed(frame: FrameType) -> bool:
    # The body of a module runs under the lock of its import, which nothing controls.
    return is_users_frame(frame) and frame.f_code.co_name != "<module>"


class ByMonitoring:
    """Follows threads through `sys.monitoring`."""

    def __init__(self) -> None:
        self._users = 0
        self._lock = threading.Lock()  # harness: shared (what it protects is the process's)
        self._tool = -1
        self._points: dict[int, dict[int, Point]] = {}
        """By the id of code that the tables keep."""

    def begin(self) -> None:
        """Have the interpreter call us."""
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            self._tool = next(tool for tool in (3, 4, 2, 1, 0) if not monitoring.get_tool(tool))
            events = monitoring.events
            monitoring.use_tool_id(self._tool, "harness")
            monitoring.register_callback(self._tool, events.PY_START, self._on_start)
            monitoring.register_callback(self._tool, events.INSTRUCTION, self._on_instruction)
            for points in _tables.all():
                self._watch(points)
            monitoring.set_events(self._tool, events.PY_START)

    def end(self) -> None:
        """Have it no longer call us."""
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        with self._lock:
            self._users -= 1
            if self._users:
                return
            monitoring.set_events(self._tool, 0)
            for points in _tables.all():
                monitoring.set_local_events(self._tool, points.code, 0)
            for event in (monitoring.events.PY_START, monitoring.events.INSTRUCTION):
                monitoring.register_callback(self._tool, event, None)
            monitoring.free_tool_id(self._tool)

    def follow(self, following: Following, *, exactly: bool) -> Callable[[], None]:
        """Follow the calling thread, always exactly; return what ends that."""
        _here.following = following
        return lambda: _here.__dict__.pop("following", None)

    def _on_start(self, code: CodeType, offset: int) -> Any:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        points = _tables.of(sys._getframe(1))
        if points is None:
            return monitoring.DISABLE
        if getattr(_here, "following", None) is None:
            return None
        self._watch(points)
        return monitoring.DISABLE

    def _watch(self, points: Points) -> None:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        self._points[id(points.code)] = points.at
        monitoring.set_local_events(self._tool, points.code, monitoring.events.INSTRUCTION)

    def _on_instruction(self, code: CodeType, offset: int) -> Any:
        points = self._points.get(id(code))
        point = None if points is None else points.get(offset)
        if point is None:
            return sys.monitoring.DISABLE  # type: ignore[attr-defined,unused-ignore]
        following = getattr(_here, "following", None)
        if following is None or following.at_work:
            return None
        name, could_switch = point
        if name is None or is_data(sys._getframe(1).f_globals, name):
            if following.free:
                following.free -= 1
            else:
                following.at_point(sys._getframe(1), could_switch)
        return None


# harness: shared (it is about the whole interpreter)
by_trace = ByTrace()
# harness: shared (it is about the whole interpreter)
follower: ByTrace | ByMonitoring = ByMonitoring() if hasattr(sys, "monitoring") else by_trace
