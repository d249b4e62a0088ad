"""Know where a thread of the user's code can be left for another, and be called there.

A *point* is right before a bytecode that loads or stores an attribute, a global or an element, asks
whether something is in a container, takes the next of an iterator, or calls a function; and at a
line that only reads variables of functions around it. Between two points a thread changes nothing
that others can see more than once, so switching elsewhere would give no other outcome.

CPython with its global lock switches at fewer places: where a function begins, after a call, and at
the end of a loop's body. Whether one of them came by since the last point is told to whoever is
called, so that a report can say what this build of Python does.

Where Python has `sys.monitoring` (3.12), the bytecodes are watched through it, else through
`sys.settrace`.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import attrs

from harness.testing._users_code import is_users_frame

POINT = 1
SWITCHES = 2
"""Flags of a bytecode: it is a point; after it, this build of Python may switch threads."""

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
_READS_FROM_AROUND = frozenset(("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"))
_NOT_DATA = (FunctionType, BuiltinFunctionType, ModuleType, type)

Table = dict[int, "tuple[int, str | None]"]
"""By offset: the flags, and the name of the global that the bytecode loads."""


def _table_of(code: CodeType) -> Table:
    table: Table = {}
    stored = {one.argval for one in dis.get_instructions(code) if one.opname == "STORE_DEREF"}
    line: int | None = None
    has_points = False
    callee = False
    """Whether the last thing loaded is what a call is about to be made of."""
    waiting: int | None = None
    """Where the line first reads a variable from around, if it has no points so far."""
    for one in dis.get_instructions(code):
        here = one.positions.lineno if one.positions is not None else None
        if here is not None and here != line:
            if waiting is not None and not has_points:
                table[waiting] = (POINT, None)
            line, has_points, waiting = here, False, None
        name, flags, loaded = one.opname, 0, None
        if name in _ACCESSES or (name == "BINARY_OP" and one.argrepr == "[]"):
            flags = POINT
            callee = name == "LOAD_METHOD" or (name == "LOAD_ATTR" and "NULL" in one.argrepr)
        elif name in ("LOAD_GLOBAL", "LOAD_NAME"):
            flags, loaded = POINT, str(one.argval)
        elif name in _READS_FROM_AROUND:
            if one.argval in stored:
                flags = POINT
            elif waiting is None:
                waiting = one.offset
        elif name in _CALLS:
            flags = 0 if callee else POINT
            callee = False
        if flags:
            has_points = True
        if name in _SWITCHES:
            flags |= SWITCHES
        if flags:
            table[one.offset] = (flags, loaded)
    if waiting is not None and not has_points:
        table[waiting] = (POINT, None)
    for offset, (flags, loaded) in _ends_of_empty_loops(code, table).items():
        table[offset] = (flags, loaded)
    return table


def _ends_of_empty_loops(code: CodeType, table: Table) -> Table:
    """Return the ends of loops without a point, which would never let another thread go on."""
    return {
        one.offset: (POINT | SWITCHES, None)
        for one in dis.get_instructions(code)
        if one.opname == "JUMP_BACKWARD"
        and not any(
            one.argval <= offset < one.offset and flags & POINT and loaded is None
            for offset, (flags, loaded) in table.items()
        )
    }


def is_data(frame: FrameType, name: str) -> bool:
    """Tell whether a global is something that changes, not a function, a class or a module."""
    found = frame.f_globals
    return name in found and not isinstance(found[name], _NOT_DATA)


@attrs.define(eq=False)
class Following:
    """What a thread is called with, and where its points are."""

    at_point: Callable[[FrameType, bool], None]
    """Given the frame, and whether this build of Python could have switched since the last one."""

    could_switch: bool = True

    def see(self, frame: FrameType, flags: int, loaded: str | None) -> None:
        """Take note of a bytecode that is about to run."""
        if flags & POINT and (loaded is None or is_data(frame, loaded)):
            could_switch, self.could_switch = self.could_switch, False
            self.at_point(frame, could_switch or not GIL)
        if flags & SWITCHES:
            self.could_switch = True


class Tables:
    """The points of code, by code; kept, as they cost more to find than to use."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[CodeType, Table | None]] = {}

    def of(self, frame: FrameType) -> Table | None:
        """Return the points of a frame's code; None if it isn't followed."""
        code = frame.f_code
        found = self._found.get(id(code))
        if found is None:
            table = _table_of(code) if _is_followed(frame) else None
            found = self._found[id(code)] = (code, table)
        return found[1]

    def codes(self) -> list[CodeType]:
        """Return all code that is followed."""
        return [code for code, table in list(self._found.values()) if table is not None]


_tables = Tables()  # harness: shared (what it holds of code never changes)
_here = threading.local()  # harness: shared (each thread follows its own frames)


class ByTrace:
    """Follows threads through `sys.settrace`."""

    def begin(self) -> None:
        """Do nothing: each thread is traced by itself."""

    def end(self) -> None:
        """Do nothing."""

    def follow(self, following: Following) -> Callable[[], None]:
        """Follow the calling thread; return what ends that."""
        tables = _tables

        def on_call(frame: FrameType, event: str, argument: Any) -> Any:  # pragma: no cover
            table = tables.of(frame)
            if table is None:
                return None
            following.could_switch = True
            frame.f_trace_lines = False
            frame.f_trace_opcodes = True

            def on_opcode(frame: FrameType, event: str, argument: Any) -> Any:
                if event == "opcode":
                    entry = table.get(frame.f_lasti)
                    if entry is not None:
                        following.see(frame, *entry)
                return on_opcode

            return on_opcode

        before = sys.gettrace()
        sys.settrace(on_call)
        return lambda: sys.settrace(before)


def _is_followed(frame: FrameType) -> bool:
    # The body of a module runs under the lock of its import, which nothing controls.
    return is_users_frame(frame) and frame.f_code.co_name != "<module>"


class ByMonitoring:
    """Follows threads through `sys.monitoring`."""

    def __init__(self) -> None:
        self._users = 0
        self._lock = threading.Lock()  # harness: shared (what it protects is the process's)
        self._tool = -1

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
            for code in _tables.codes():
                monitoring.set_local_events(self._tool, code, events.INSTRUCTION)
            monitoring.set_events(self._tool, events.PY_START)

    def end(self) -> None:
        """Have it no longer call us."""
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        with self._lock:
            self._users -= 1
            if self._users:
                return
            monitoring.set_events(self._tool, 0)
            for code in _tables.codes():
                monitoring.set_local_events(self._tool, code, 0)
            for event in (monitoring.events.PY_START, monitoring.events.INSTRUCTION):
                monitoring.register_callback(self._tool, event, None)
            monitoring.free_tool_id(self._tool)

    def follow(self, following: Following) -> Callable[[], None]:
        """Follow the calling thread; return what ends that."""
        _here.following = following
        return lambda: _here.__dict__.pop("following", None)

    def _on_start(self, code: CodeType, offset: int) -> Any:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        if _tables.of(sys._getframe(1)) is None:
            return monitoring.DISABLE
        following = getattr(_here, "following", None)
        if following is None:
            return None
        following.could_switch = True
        monitoring.set_local_events(self._tool, code, monitoring.events.INSTRUCTION)
        return monitoring.DISABLE

    def _on_instruction(self, code: CodeType, offset: int) -> Any:
        frame = sys._getframe(1)
        entry = (_tables.of(frame) or {}).get(offset)
        if entry is None:
            return sys.monitoring.DISABLE  # type: ignore[attr-defined,unused-ignore]
        following = getattr(_here, "following", None)
        if following is not None:
            following.see(frame, *entry)
        return None


# harness: shared (it is about the whole interpreter)
follower: ByTrace | ByMonitoring = ByMonitoring() if hasattr(sys, "monitoring") else ByTrace()
