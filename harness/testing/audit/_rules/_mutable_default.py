"""Find defaults that are made once and then changed, kept or handed out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.testing.audit._changes import assigned_by, changes_in, is_container
from harness.testing.audit._finding import Rule
from harness.testing.audit._rules._call_state import keeps_state
from harness.testing.audit._rules._names import assigned_name, qualified_name
from harness.testing.audit._rules._set_up import is_cache
from harness.testing.audit._source_file import (
    FunctionNode,
    Source,
    bindings_of,
    decorator_names,
    defaults,
    first_parameter,
    parameters,
)
from harness.testing.audit._sources import Checker, Hit, Sources

RULE = Rule(
    name="mutable-default",
    title="a default that is made once and then changed, kept or handed out",
    why="a default is made when the function is defined: every call without the argument gets the "
    "same object, with all that earlier calls put into it",
    fix="let the default be None and make a new one inside, or give a factory",
)

_READ_ONLY = re.compile(r"^(\w+\.)*(Sequence|Mapping|Iterable|Collection|Set|Container)\b")
_CLASSES_WITH_FIELDS = frozenset(("dataclass", "define", "mutable", "frozen", "attrs", "s"))
_FIELDS = ("attr.ib", "attr.attrib", "attrs.field", "attr.field")

_TAKES = frozenset((".pop()", ".popitem()", ".clear()", ".remove()"))


def check(source: Source, program: Sources) -> Iterator[Hit]:
    """Yield defaults of parameters, of attrs' fields and of context variables."""
    for function in source.functions:
        for name, default in defaults(function):
            keeps = is_container(default, source) or keeps_state(default, source, program)
            keeps = keeps or _is_written_through(function, name, default, source, program)
            if keeps and not is_cache(name):
                fate = _fate(function, name, default, source)
                if fate:
                    symbol = f"{qualified_name(function, source)}({name}=)"
                    yield Hit(
                        node=default,
                        symbol=symbol,
                        message=f"the default {ast.unparse(default)} of {symbol} is {fate}",
                        defined_at=function.lineno,
                        maybe=fate.startswith("kept as")
                        and "changed" not in fate
                        and not _is_written_through(function, name, default, source, program),
                    )
    yield from _objects_of_dataclasses(source, program)
    for node in source.nodes:
        if not isinstance(node, ast.Call):
            continue
        called = source.dotted(node.func)
        given = next((one.value for one in node.keywords if one.arg == "default"), None)
        if called in _FIELDS and given is None and node.args:
            given = node.args[0]
        if not is_container(given, source) and not keeps_state(given, source, program):
            continue
        symbol = assigned_name(node, source, "default")
        if called == "contextvars.ContextVar" and _is_changed_when_got(symbol, source):
            message = f"every context without a {symbol} of its own gets one and the same default"
            yield Hit(node=node, symbol=symbol, message=message)
        elif called in _FIELDS:
            message = f"every instance without a {symbol} of its own gets one and the same default"
            yield Hit(node=node, symbol=symbol, message=message)


def _is_written_through(
    function: FunctionNode, name: str, default: ast.expr, source: Source, program: Sources
) -> bool:
    """Return whether a default object is kept, and its attributes are set by way of its keeper.

    ``self.prompt = prompt`` in the constructor, and ``task.prompt.name = ...`` elsewhere.
    """
    if not (isinstance(default, ast.Call) and isinstance(default.func, ast.Name)):
        return False
    if program.class_named(default.func.id, source) is None:
        return False
    kept = {
        target.attr
        for node in source.own_nodes(function)
        if isinstance(node, ast.Assign | ast.AnnAssign) and _is_name(node.value, name)
        for target in assigned_by(node)
        if isinstance(target, ast.Attribute)
    }
    owner, itself = source.class_of(function), first_parameter(function)
    return any(
        isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Attribute)
        and target.value.attr in kept
        and (ast.unparse(target.value.value) != itself or source.class_of(target) is owner)
        for node in source.nodes
        for target in assigned_by(node)
    )


def _objects_of_dataclasses(source: Source, program: Sources) -> Iterator[Hit]:
    """Yield fields whose default is an object with state: ``state: State = State()``."""
    for owner in source.classes:
        names = {name.rpartition(".")[2] for name in decorator_names(owner, source)}
        if not names & _CLASSES_WITH_FIELDS:
            continue
        for binding in bindings_of(owner.body):
            annotation = "" if binding.annotation is None else ast.unparse(binding.annotation)
            if "ClassVar" in annotation or not annotation or is_cache(binding.name):
                continue
            if binding.value is not None and keeps_state(binding.value, source, program):
                symbol = f"{owner.name}.{binding.name}"
                yield Hit(
                    node=binding.value,
                    symbol=symbol,
                    message=f"every instance without a {symbol} of its own gets one and the same "
                    "default",
                )


def _is_changed_when_got(variable: str, source: Source) -> bool:
    """Return whether the file changes what it gets from a context variable, and no copy of it.

    ``VARIABLE.get(None)`` doesn't get the default.
    """
    got = f"{variable.rpartition('.')[2]}.get()"
    names = {
        target.id
        for node in source.nodes
        if isinstance(node, ast.Assign) and ast.unparse(node.value).endswith(got)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return any(
        got in ast.unparse(change.target)
        or (isinstance(change.target, ast.Name) and change.target.id in names)
        for change in changes_in(source.nodes)
    )


def _fate(function: FunctionNode, name: str, default: ast.expr, source: Source) -> str:
    """Say what becomes of a default, in words; "" if it does no harm."""
    has_elements = bool(getattr(default, "elts", None) or getattr(default, "keys", None))
    annotation = next((one.annotation for one in parameters(function) if one.arg == name), None)
    read_only = annotation is not None and _READ_ONLY.search(ast.unparse(annotation)) is not None
    nodes = source.own_nodes(function)
    for node in nodes:
        # `items = list(items)` makes it the call's own.
        if isinstance(node, ast.Assign | ast.AnnAssign) and any(
            isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Store)
            for one in ast.walk(node)
        ):
            return ""
    is_empty = isinstance(default, ast.List | ast.Dict) and not has_elements
    for change in changes_in(nodes):
        if is_empty and change.how in _TAKES:
            continue  # There is nothing in it unless another statement adds something.
        if isinstance(change.target, ast.Name) and change.target.id == name:
            return f"changed in line {change.node.lineno} ({change.how})"
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and _is_name(node.value, name):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Attribute | ast.Subscript):
                later = _changed_later(target, function, source)
                kept = f"kept as {ast.unparse(target)} in line {node.lineno}"
                if later:
                    return f"{kept} and changed in line {later}"
                # If its class never changes it, it is a constant: kept under a private name, of a
                # type that nobody may change, or with something in it from the beginning.
                private = isinstance(target, ast.Attribute) and target.attr.startswith("_")
                if not private and not has_elements and not read_only:
                    return kept
        if isinstance(node, ast.Return | ast.Yield) and _is_name(node.value, name):
            return f"handed out in line {node.lineno}"
    return ""


def _changed_later(target: ast.expr, function: FunctionNode, source: Source) -> int:
    """Return the line in which the class changes what was kept; 0 if it doesn't."""
    owner = source.class_of(function)
    if owner is None or not isinstance(target, ast.Attribute):
        return 0
    for change in changes_in(list(ast.walk(owner))):
        if (
            isinstance(change.target, ast.Attribute)
            and change.target.attr == target.attr
            and not _is_new_here(change.target, source)
        ):
            return change.node.lineno
    return 0


def _is_new_here(target: ast.expr, source: Source) -> bool:
    """Return whether the function made what it changes: ``new.items = []; new.items.append()``."""
    function, words = source.function_of(target), ast.unparse(target)
    return function is not None and any(
        isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == words
        and is_container(node.value, source)
        for node in source.own_nodes(function)
    )


def _is_name(value: ast.expr | None, name: str) -> bool:
    if isinstance(value, ast.BoolOp):  # `tools or []` still keeps a default that has entries.
        value = value.values[0]
    return isinstance(value, ast.Name) and value.id == name


MUTABLE_DEFAULT = Checker(RULE, check)
