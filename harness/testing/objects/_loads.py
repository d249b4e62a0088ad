"""Tell which objects a line of code touches, by the names in it.

A line that says ``self.pool.replies`` loads a variable and then two attributes. Such chains are
read from the bytecode, which is there even if the source isn't, and followed in the frame that is
about to run the line, without running any of the user's code: no property, no ``__getattr__``.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator
from types import CodeType, FrameType, MemberDescriptorType, ModuleType
from typing import Any

import attrs

MISSING = object()
"""Marks where a chain can't be followed any further."""


@attrs.frozen
class Item:
    """What is under a constant key of a container, as in ``state["turns"]``."""

    key: Any


@attrs.frozen
class Chain:
    """A variable, and the attributes and items that a line loads from it, one from the other."""

    variable: str
    attributes: tuple[str | Item, ...]
    offset: int
    """Where in the bytecode it begins."""


@functools.lru_cache(maxsize=4096)
def _halts(code: CodeType) -> tuple[int, ...]:
    """Return the places in the bytecode where the code may be left for a while."""
    return tuple(
        instruction.offset
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("YIELD_VALUE", "SEND", "YIELD_FROM")
    )


@functools.lru_cache(maxsize=4096)
def _awaits(code: CodeType) -> tuple[int, ...]:
    """Return the places in the bytecode after which the code may have to wait."""
    found: list[int] = []
    awaiting = False
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("SEND", "YIELD_FROM"):
            found.append(instruction.offset)
            awaiting = True
        elif instruction.opname == "YIELD_VALUE":
            if not awaiting:  # Otherwise it belongs to the SEND.
                found.append(instruction.offset)
            awaiting = False
    return tuple(found)


def is_at_await(frame: FrameType) -> bool:
    """Return whether a frame being left is going to wait, or one being entered has waited."""
    halts = _halts(frame.f_code)
    # Python may already be one instruction further on, of two bytes.
    return frame.f_lasti in halts or frame.f_lasti - 2 in halts


def _is_subscription(instruction: dis.Instruction) -> bool:
    # Python 3.14 made it one of the binary operators.
    return instruction.opname == "BINARY_SUBSCR" or (
        instruction.opname == "BINARY_OP" and instruction.argrepr == "[]"
    )


@functools.lru_cache(maxsize=4096)
def chains_of(code: CodeType) -> dict[int, tuple[Chain, ...]]:
    """Return the chains that each line of ``code`` loads."""
    by_line: dict[int, list[Chain]] = {}
    line = code.co_firstlineno
    offset = 0
    variable: str | None = None
    steps: list[str | Item] = []
    key: Item | None = None
    """A constant that was just loaded and may turn out to be a key."""

    def close() -> None:
        nonlocal variable, key
        if variable is not None:
            chain = Chain(variable, tuple(steps), offset)
            by_line.setdefault(line, []).append(chain)
        variable = key = None
        steps.clear()

    for instruction in dis.get_instructions(code):
        positions = instruction.positions
        here = positions.lineno if positions is not None and positions.lineno else line
        operation = instruction.opname
        if operation.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_NAME", "LOAD_GLOBAL")):
            close()
            line = here
            offset = instruction.offset
            names = instruction.argval  # Two of them, if an instruction loads two at once.
            for name in names if isinstance(names, tuple) else (names,):
                close()
                variable = str(name)
        elif operation in ("LOAD_ATTR", "LOAD_METHOD") and variable and not key and here == line:
            steps.append(str(instruction.argval))
        elif operation.startswith(("LOAD_CONST", "LOAD_SMALL_INT")) and variable and not key:
            key = Item(instruction.argval)
        elif key is not None and _is_subscription(instruction) and here == line:
            steps.append(key)
            key = None
        elif operation not in ("CACHE", "PUSH_NULL", "PRECALL", "COPY", "NOP", "RESUME"):
            close()
            line = here
    close()
    return {line: tuple(chains) for line, chains in by_line.items()}


@attrs.frozen(eq=False)
class Touch:
    """An object that a line loads: what it was loaded from, by which name, and the object."""

    owner: Any
    name: str
    value: Any


@attrs.frozen
class Spot:
    """Where a frame is in its code."""

    line: int
    offset: int
    """In the bytecode."""

    so_far: bool = False
    """Whether it is about what the line has loaded up to there, not about the rest of it."""


def spot_of(frame: FrameType) -> Spot:
    """Return where a frame is now."""
    return Spot(frame.f_lineno, frame.f_lasti)


def touches(frame: FrameType, spot: Spot) -> Iterator[Touch]:
    """Yield what the rest of a line loads, as far as can be told without running it.

    Or what it has loaded so far, if the spot says so.

    Only what it loads up to its next ``await``; the rest is loaded later.
    """
    following = next((place for place in _awaits(frame.f_code) if place > spot.offset), None)
    for chain in chains_of(frame.f_code).get(spot.line, ()):
        if spot.so_far:
            if chain.offset > spot.offset:
                continue
        elif chain.offset < spot.offset or (following is not None and chain.offset > following):
            continue
        name = chain.variable
        owner: Any
        if name in frame.f_locals:
            owner, value = frame.f_code, frame.f_locals[name]
        else:
            owner, value = frame.f_globals, frame.f_globals.get(name, MISSING)
        yield Touch(owner, name, value)
        for step in chain.attributes:
            if value is MISSING:
                break
            if isinstance(step, Item):
                yield Touch(value, "", value := _item(value, step.key))
            else:
                owner, value = _attribute(value, step)
                yield Touch(owner, step, value)


def _item(thing: Any, key: Any) -> Any:
    """Return what is under a key of one of Python's own containers."""
    try:
        if isinstance(thing, dict):
            return dict.get(thing, key, MISSING)
        if isinstance(thing, list):
            return list.__getitem__(thing, key)
        return tuple.__getitem__(thing, key) if isinstance(thing, tuple) else MISSING
    except (LookupError, TypeError):
        return MISSING


def _attribute(thing: Any, name: str) -> tuple[Any, Any]:
    """Return where an attribute is kept, and its value, without calling anything."""
    try:
        own = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        own = {}
    if isinstance(thing, type):
        metaclass: type[Any] = type(thing)
        for cls in (*thing.__mro__, *metaclass.__mro__):
            if name in vars(cls):
                return cls, vars(cls)[name]
        return thing, MISSING
    if isinstance(own, dict) and name in own:
        # The globals of a module belong to its code, too.
        return own if isinstance(thing, ModuleType) else thing, own[name]
    for cls in type(thing).__mro__:
        if name in vars(cls):
            value = vars(cls)[name]
            if isinstance(value, MemberDescriptorType):
                try:
                    return thing, value.__get__(thing)
                except AttributeError:
                    return thing, MISSING
            return cls, value
    return thing, MISSING
