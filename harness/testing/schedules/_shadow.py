"""Follow a function's bytecode, to know the objects that each instruction works on.

Python tells a trace function which instruction comes next, but not what is on the stack. So a
*shadow* of the stack is kept: before each instruction it is told what that will take and leave.
What can't be known, such as what C code returns, is `UNKNOWN`. After an instruction that isn't in
the table everything is, which loses precision, never truth.

None of the user's code is run to find out a value: no property, no ``__getattr__``.
"""

from __future__ import annotations

import builtins
import dis
import operator
import sys
from collections.abc import Callable, Hashable, Iterable
from types import (
    AsyncGeneratorType,
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, Protocol

import attrs

from harness._words import error_in_words
from harness.testing.schedules._c_functions import (
    CONTAINERS,
    VIEWS,
    Over,
    Touched,
    UnseenError,
    call,
    inside,
    is_atom,
    is_future,
    item,
    result_of,
    surface,
)
from harness.testing.schedules._effects import WHOLE
from harness.testing.schedules._values import FRESH, UNKNOWN, attribute_of, element_of


class Notes(Protocol):
    """Where a shadow notes what it sees."""

    def touch(self, thing: Any, key: Hashable, *, writes: bool) -> None:
        """Note that an object was touched; `UNKNOWN` stands for any."""

    def touch_variable(self, name: str, *, writes: bool) -> None:
        """Note that a variable of a function around was touched."""

    def unseen(self, what: str) -> None:
        """Note that something can't be seen."""


@attrs.frozen
class Bound:
    """A method that was loaded to be called."""

    owner: Any
    function: Any


Instruction = tuple["Callable[[Shadow, FrameType, dis.Instruction], None]", dis.Instruction]


@attrs.define(eq=False)
class Shadow:
    """What is on the stack of a frame, as far as known."""

    notes: Notes
    code: CodeType
    stack: list[Any] = attrs.field(factory=list)
    calling: Any = None
    """What is being called, until it is known whether that is written in Python."""
    sending: bool = False
    _expected: int | None = None
    """The next offset, if what was shadowed is right; None for any."""
    _taken_else: int = sys.maxsize
    """How much has been taken from the stack if it isn't."""
    _stored: str | None = None
    """The variable whose value, unknown when it was stored, was loaded again at once."""

    def before(self, frame: FrameType) -> None:
        """Note what the next instruction does."""
        offset = frame.f_lasti
        if self.calling is not None:
            self.was_of_c()
        if self._expected is not None and offset != self._expected:
            del self.stack[-self._taken_else :]
        self._expected, self._taken_else = None, sys.maxsize
        stored, self._stored = self._stored, None
        if stored is not None and self.stack and self.stack[-1] is UNKNOWN:
            self.stack[-1] = frame.f_locals.get(stored, UNKNOWN)
        found = table_of(self.code).get(offset)
        if found is not None:
            try:
                found[0](self, frame, found[1])
            except UnseenError as error:
                self.notes.unseen(str(error))
                self.stack.clear()
            except Exception as error:  # It must never become the program's.
                self.notes.unseen(f"{found[1].opname}: {error_in_words(error)}")
                self.stack.clear()

    def was_of_c(self) -> None:
        """Note that what was called, without anybody knowing what it is, is written in C."""
        calling, self.calling = self.calling, None
        self.notes.unseen(calling if isinstance(calling, str) else "a function in C")

    def pop(self) -> Any:
        """Return what an instruction takes."""
        return self.stack.pop() if self.stack else UNKNOWN

    def pops(self, count: int) -> list[Any]:
        """Return what an instruction takes, the topmost last."""
        return [self.pop() for _ in range(count)][::-1]

    def push(self, *values: Any) -> None:
        """Take note of what an instruction leaves."""
        self.stack.extend(values)

    def returned(self, value: Any) -> None:
        """Learn what a function written in Python returned."""
        self.calling = None
        if self.stack and self.stack[-1] is UNKNOWN:
            self.stack[-1] = value

    def read(self, touched: Iterable[Touched]) -> None:
        """Note everything."""
        for one in touched:
            self.notes.touch(one.thing, one.key, writes=one.writes)

    def look_at(self, thing: Any, *, deep: bool) -> None:
        """Note that C code looks at an object."""
        if thing is UNKNOWN:
            self.notes.touch(UNKNOWN, WHOLE, writes=False)
        else:
            self.read(inside(thing) if deep else surface(thing))


def _next(instruction: dis.Instruction) -> int:
    return instruction.offset + 2 + 2 * _caches(instruction)


def _caches(instruction: dis.Instruction) -> int:
    info = getattr(instruction, "cache_info", None)
    if info is not None:
        return sum(size for _, size, _ in info)
    entries: Any = getattr(dis, "_inline_cache_entries", None) or {}
    if isinstance(entries, dict):
        return int(entries.get(instruction.opname, 0))
    return int(entries[instruction.opcode])


# Instructions ------------------------------------------------------------------------------------


def _nothing(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    pass


def _forget(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    shadow.stack.clear()


def _taking(count: int, *left: Any) -> Any:
    def take(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
        shadow.pops(count)
        shadow.push(*left)

    return take


def _load_fast(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    variables = frame.f_locals
    names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
    shadow.push(*(variables.get(name, UNKNOWN) for name in names))


def _store_fast(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    shadow.pop()


def _store_load_fast(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    value = shadow.pop()
    stored, loaded = one.argval
    if stored == loaded and value is UNKNOWN:
        shadow._stored = stored
    shadow.push(value if stored == loaded else frame.f_locals.get(loaded, UNKNOWN))


def _load_const(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    shadow.push(one.argval)


def _load_global(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    name = one.argval
    shadow.notes.touch(frame.f_globals, name, writes=False)
    value = frame.f_globals.get(name, UNKNOWN)
    shadow.push(vars(builtins).get(name, UNKNOWN) if value is UNKNOWN else value)


def _store_global(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    shadow.pops(one.opname == "STORE_GLOBAL")
    shadow.notes.touch(frame.f_globals, one.argval, writes=True)


def _load_name(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    if one.argval in frame.f_locals and frame.f_locals is not frame.f_globals:
        shadow.push(frame.f_locals[one.argval])
    else:
        _load_global(shadow, frame, one)


def _store_name(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    shadow.pops(one.opname == "STORE_NAME")
    if frame.f_locals is frame.f_globals:
        shadow.notes.touch(frame.f_globals, one.argval, writes=True)


def _load_deref(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    if one.opname == "LOAD_FROM_DICT_OR_DEREF":
        shadow.pop()
    shadow.notes.touch_variable(one.argval, writes=False)
    shadow.push(frame.f_locals.get(one.argval, UNKNOWN))


def _store_deref(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    shadow.pops(one.opname == "STORE_DEREF")
    shadow.notes.touch_variable(one.argval, writes=True)


def _load_attr(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    owner, name = shadow.pop(), one.argval
    # Whatever is in it can be changed through it.
    is_dict = name == "__dict__" and not isinstance(owner, ModuleType)
    shadow.notes.touch(owner, WHOLE if is_dict else name, writes=is_dict)
    found = attribute_of(owner, name)
    is_function = isinstance(found, FunctionType | MethodType | BuiltinFunctionType)
    if is_function or (found is not UNKNOWN and _is_descriptor(found)):
        found = Bound(owner, found)
    elif owner is UNKNOWN:
        found = Bound(owner, UNKNOWN)
    shadow.push(found)
    if isinstance(found, Bound) and found.function is UNKNOWN:
        shadow.stack[-1] = UNKNOWN


def _is_descriptor(thing: Any) -> bool:
    return type(thing).__name__ in (
        *("method_descriptor", "wrapper_descriptor", "classmethod_descriptor", "method-wrapper"),
        *("staticmethod", "classmethod"),
    )


def _load_super_attr(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    _, _, owner = shadow.pops(3)
    shadow.notes.touch(owner, one.argval, writes=False)
    shadow.push(UNKNOWN)


def _store_attr(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    owner = shadow.pop()
    shadow.pops(one.opname == "STORE_ATTR")
    shadow.notes.touch(owner, one.argval, writes=True)


def _subscript(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    container, key = shadow.pops(2)
    if container is UNKNOWN:
        shadow.look_at(UNKNOWN, deep=False)
    else:
        shadow.read(item(container, key, writes=False))
    shadow.push(element_of(container, key))


def _store_subscript(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    deletes = one.opname == "DELETE_SUBSCR"
    container, key = shadow.pops(2 if deletes else 3)[-2:]
    if container is UNKNOWN:
        shadow.notes.touch(UNKNOWN, WHOLE, writes=True)
    else:
        shadow.read(item(container, key, writes=True, deletes=deletes))


def _slice(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    container = shadow.pops(3)[0]
    shadow.look_at(container, deep=False)
    shadow.push(FRESH)


def _store_slice(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    container = shadow.pops(4)[1]
    shadow.notes.touch(container, WHOLE, writes=True)


_SUMS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}
"""What indexes are computed by."""


def _binary_op(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    if one.argrepr == "[]":
        _subscript(shadow, frame, one)
        return
    left, right = shadow.pops(2)
    in_place, formats = one.argrepr.endswith("="), one.argrepr.startswith("%")
    for operand in (left, right):
        shadow.look_at(operand, deep=formats or not isinstance(operand, CONTAINERS))
    if in_place and isinstance(left, CONTAINERS):
        shadow.notes.touch(left, WHOLE, writes=True)
        shadow.push(left)
    elif left is UNKNOWN or right is UNKNOWN:
        shadow.push(UNKNOWN)
    elif type(left) is int and type(right) is int and (sign := one.argrepr.rstrip("=")) in _SUMS:
        shadow.push(_SUMS[sign](left, right) if right or sign in "+-*" else FRESH)
    else:
        plain = all(is_atom(one) or isinstance(one, CONTAINERS) for one in (left, right))
        shadow.push(FRESH if plain else UNKNOWN)


def _compare(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    for operand in shadow.pops(2):
        shadow.look_at(operand, deep=True)
    shadow.push(FRESH)


def _contains(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    key, container = shadow.pops(2)
    if isinstance(container, dict) and key is not UNKNOWN:
        shadow.read(item(container, key, writes=False))
    else:
        shadow.look_at(container, deep=True)
    shadow.push(FRESH)


def _truth(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    shadow.look_at(shadow.pop(), deep=False)
    if not one.opname.startswith("POP_JUMP"):
        shadow.push(FRESH)


def _truth_or_pop(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    shadow.look_at(shadow.pop(), deep=False)
    shadow._expected = _next(one)  # If it jumps, the value stays.


def _get_iter(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    thing = shadow.pop()
    shadow.look_at(thing, deep=False)
    is_known = is_atom(thing) or isinstance(thing, (*CONTAINERS, *VIEWS, tuple, frozenset, Over))
    shadow.push(thing if is_known or hasattr(type(thing), "__next__") else UNKNOWN)


def _for_iter(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    thing = shadow.stack[-1] if shadow.stack else UNKNOWN
    shadow.look_at(thing, deep=False)
    shadow.push(FRESH if isinstance(thing, Over) and thing.gives_tuples else UNKNOWN)
    shadow._expected = _next(one)
    # At the end of a loop there is no next element, and no longer an iterator.
    shadow._taken_else = 1 if sys.version_info >= (3, 14) else 2


def _unpack(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    thing = shadow.pop()
    shadow.look_at(thing, deep=False)
    if one.opname == "UNPACK_EX":
        shadow.stack.clear()
    elif type(thing) in (tuple, list) and len(thing) == one.arg:
        shadow.push(*reversed(thing))
    else:
        shadow.push(*[UNKNOWN] * (one.arg or 0))


def _extend(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    shadow.look_at(shadow.pop(), deep=False)


def _build(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    count = one.arg or 0
    if one.opname == "BUILD_MAP":
        count *= 2
    elif one.opname == "BUILD_CONST_KEY_MAP":
        count += 1
    values = tuple(shadow.pops(count))
    # A tuple stands for whatever is built: nobody else has it, but what is in it may be shared.
    shadow.push(FRESH if one.opname in ("BUILD_STRING", "BUILD_SLICE") else values)


def _format(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    with_spec = one.opname == "FORMAT_WITH_SPEC" or (
        one.opname == "FORMAT_VALUE" and bool((one.arg or 0) & 4)
    )
    shadow.look_at(shadow.pops(1 + with_spec)[0], deep=True)
    shadow.push(FRESH)


def _copy(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    count = one.arg or 1
    shadow.push(shadow.stack[-count] if len(shadow.stack) >= count else UNKNOWN)


def _swap(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    count, stack = one.arg or 1, shadow.stack
    if len(stack) < count:
        stack[:0] = [UNKNOWN] * (count - len(stack))
    stack[-1], stack[-count] = stack[-count], stack[-1]


def _send(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    if shadow.sending:  # It goes on to wait: what it leaves has been noted.
        return
    shadow.sending = True
    shadow.pops(2)
    shadow.push(UNKNOWN)


def _yield(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    if not shadow.sending:
        shadow.pop()
        shadow.push(UNKNOWN)


def _get_aiter(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    thing = shadow.pop()
    shadow.push(thing if isinstance(thing, AsyncGeneratorType) else UNKNOWN)


def _get_anext(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    if shadow.stack and isinstance(shadow.stack[-1], AsyncGeneratorType):
        shadow.notes.touch(shadow.stack[-1], WHOLE, writes=True)
    shadow.push(UNKNOWN)


def _get_awaitable(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    if shadow.stack and is_future(shadow.stack[-1]):
        shadow.notes.touch(shadow.stack[-1], "result", writes=False)


def _with(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    manager = shadow.pop()
    exit_name = "__aexit__" if "ASYNC" in one.opname else "__exit__"
    shadow.push(Bound(manager, attribute_of(manager, exit_name)), UNKNOWN)
    if not one.opname.startswith("BEFORE_ASYNC"):
        _begin_call(shadow, Bound(manager, attribute_of(manager, "__enter__")), ())


def _import(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    shadow.pops(2)
    if one.argval not in sys.modules:
        raise UnseenError(f"import {one.argval}")
    shadow.push(UNKNOWN)


def _make_function(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    shadow.pops(1 + (one.arg or 0).bit_count())
    shadow.push(FRESH)


def _call(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
    if one.opname == "CALL_FUNCTION_EX":
        keywords = shadow.pop() if (one.arg or 0) & 1 or sys.version_info >= (3, 14) else ()
        positional, function = shadow.pop(), shadow.pop()
        arguments: tuple[Any, ...] = (positional, keywords)
    else:
        if one.opname == "CALL_KW":
            shadow.pop()
        arguments = tuple(shadow.pops(one.arg or 0))
        function = shadow.pop()
    shadow.push(UNKNOWN)
    _begin_call(shadow, function, tuple(map(_as_passed, arguments)))


def _as_passed(argument: Any) -> Any:
    """Return a method as the object that it is when it is passed on, not called."""
    if isinstance(argument, tuple):
        return tuple(map(_as_passed, argument))
    if not isinstance(argument, Bound):
        return argument
    method = argument.function
    return method.__get__(argument.owner) if isinstance(method, MethodDescriptorType) else FRESH


def _begin_call(shadow: Shadow, function: Any, arguments: tuple[Any, ...]) -> None:
    """Note what a call does, if it is one of C; else its frame is going to say so."""
    if isinstance(function, Bound):
        owner, function = function.owner, function.function
        if isinstance(function, staticmethod | classmethod):
            function = function.__func__
        if getattr(function, "__self__", None) is None and not isinstance(owner, type | ModuleType):
            arguments = (owner, *arguments)
    if function is UNKNOWN:
        shadow.calling = "a function that was not known before"
        return
    if isinstance(function, FunctionType) or (
        isinstance(function, MethodType) and isinstance(function.__func__, FunctionType)
    ):
        return
    if isinstance(function, type):
        if _is_made_in_python(function):
            return
    elif not callable(function) or isinstance(
        attribute_of(type(function), "__call__"), FunctionType
    ):
        return
    if any(argument is UNKNOWN for argument in arguments):
        arguments = tuple(FRESH if one is UNKNOWN else one for one in arguments)
        own = getattr(function, "__self__", None)
        if not isinstance(own, CONTAINERS):
            shadow.look_at(UNKNOWN, deep=True)
    shadow.read(call(function, arguments))
    if shadow.stack and shadow.stack[-1] is UNKNOWN:
        shadow.stack[-1] = result_of(function, arguments)


def _is_made_in_python(cls: type[Any]) -> bool:
    """Tell whether making an object runs only Python code, or changes nothing that exists."""
    init, new = attribute_of(cls, "__init__"), attribute_of(cls, "__new__")
    if isinstance(init, FunctionType) or isinstance(getattr(new, "__func__", new), FunctionType):
        return True
    return init is object.__init__ and new is object.__new__


_TABLE: dict[str, Any] = {
    **dict.fromkeys(
        (
            *("NOP", "RESUME", "CACHE", "PRECALL", "KW_NAMES", "EXTENDED_ARG", "MAKE_CELL"),
            *("COPY_FREE_VARS", "PUSH_NULL", "RETURN_GENERATOR", "NOT_TAKEN", "DELETE_FAST"),
            *("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "END_SEND"),
            *("RETURN_VALUE", "RETURN_CONST", "SETUP_ANNOTATIONS", "ASYNC_GEN_WRAP"),
        ),
        _nothing,
    ),
    **dict.fromkeys(
        ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_FAST_LOAD_FAST"), _load_fast
    ),
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": _load_fast,
    "STORE_FAST": _store_fast,
    "STORE_FAST_LOAD_FAST": _store_load_fast,
    "STORE_FAST_STORE_FAST": _taking(2),
    "POP_ITER": _taking(1),
    "LOAD_CONST": _load_const,
    "LOAD_SMALL_INT": _load_const,
    "LOAD_CLOSURE": _taking(0, FRESH),
    "LOAD_FAST_AND_CLEAR": _taking(0, UNKNOWN),
    "LOAD_BUILD_CLASS": _taking(0, FRESH),
    "LOAD_ASSERTION_ERROR": _taking(0, AssertionError),
    "LOAD_GLOBAL": _load_global,
    **dict.fromkeys(("STORE_GLOBAL", "DELETE_GLOBAL"), _store_global),
    "LOAD_NAME": _load_name,
    **dict.fromkeys(("STORE_NAME", "DELETE_NAME"), _store_name),
    **dict.fromkeys(("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"), _load_deref),
    **dict.fromkeys(("STORE_DEREF", "DELETE_DEREF"), _store_deref),
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD"), _load_attr),
    "LOAD_SUPER_ATTR": _load_super_attr,
    **dict.fromkeys(("STORE_ATTR", "DELETE_ATTR"), _store_attr),
    "BINARY_SUBSCR": _subscript,
    **dict.fromkeys(("STORE_SUBSCR", "DELETE_SUBSCR"), _store_subscript),
    "BINARY_SLICE": _slice,
    "STORE_SLICE": _store_slice,
    "BINARY_OP": _binary_op,
    "COMPARE_OP": _compare,
    "IS_OP": _taking(2, FRESH),
    "CONTAINS_OP": _contains,
    **dict.fromkeys(("UNARY_NOT", "TO_BOOL", "GET_LEN"), _truth),
    **dict.fromkeys(
        (
            *("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_TRUE"),
            *("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_TRUE"),
            "POP_JUMP_BACKWARD_IF_FALSE",
        ),
        _truth,
    ),
    **dict.fromkeys(
        (
            *("POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_NONE"),
            *("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NONE"),
            *("POP_JUMP_BACKWARD_IF_NOT_NONE", "POP_TOP"),
        ),
        _taking(1),
    ),
    **dict.fromkeys(("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"), _truth_or_pop),
    "GET_ITER": _get_iter,
    "GET_YIELD_FROM_ITER": _nothing,
    "FOR_ITER": _for_iter,
    **dict.fromkeys(("UNPACK_SEQUENCE", "UNPACK_EX"), _unpack),
    **dict.fromkeys(("LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE"), _extend),
    **dict.fromkeys(("LIST_APPEND", "SET_ADD"), _taking(1)),
    "MAP_ADD": _taking(2),
    **dict.fromkeys(
        (
            *("BUILD_TUPLE", "BUILD_LIST", "BUILD_SET", "BUILD_MAP", "BUILD_CONST_KEY_MAP"),
            *("BUILD_STRING", "BUILD_SLICE"),
        ),
        _build,
    ),
    **dict.fromkeys(
        ("FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE"), _format
    ),
    "COPY": _copy,
    "SWAP": _swap,
    "SEND": _send,
    "YIELD_VALUE": _yield,
    "GET_AWAITABLE": _get_awaitable,
    "GET_AITER": _get_aiter,
    "GET_ANEXT": _get_anext,
    **dict.fromkeys(("BEFORE_WITH", "BEFORE_ASYNC_WITH"), _with),
    "IMPORT_NAME": _import,
    "IMPORT_FROM": _taking(0, UNKNOWN),
    "MAKE_FUNCTION": _make_function,
    "SET_FUNCTION_ATTRIBUTE": _taking(2, FRESH),
    "LIST_TO_TUPLE": _nothing,
    **dict.fromkeys(("CALL", "CALL_KW", "CALL_FUNCTION_EX"), _call),
}
"""What each instruction takes and leaves; after others nothing on the stack is known."""

_GOES_ON_SENDING = frozenset(
    ("SEND", "YIELD_VALUE", "RESUME", "JUMP_BACKWARD_NO_INTERRUPT", "CACHE", "EXTENDED_ARG")
)


def _after_sending(action: Any) -> Any:
    def act(shadow: Shadow, frame: FrameType, one: dis.Instruction) -> None:
        shadow.sending = False
        action(shadow, frame, one)

    return act


def table_of(code: CodeType) -> dict[int, Instruction]:
    """Return what to do before each instruction, by offset."""
    found = _tables.get(code)
    if found is None:
        found = _tables[code] = {}
        for one in dis.get_instructions(code):
            action = _TABLE.get(one.opname, _forget)
            if one.opname not in _GOES_ON_SENDING:
                action = _after_sending(action)
            found[one.offset] = (action, one)
    return found


_tables: dict[CodeType, dict[int, Instruction]] = {}  # harness: shared (code never changes)
