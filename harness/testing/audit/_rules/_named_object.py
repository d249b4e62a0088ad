"""Find what runs write to objects with a name: instances, classes, functions, libraries.

What `_shared_instance` finds in the methods of a shared object, but seen from outside:
``AGENT.user = user``, ``cls.current = user``, ``library.timeout = 5`` in a function that runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.testing.audit._changes import (
    assigned_by,
    changes_by,
    is_container,
    is_signal,
    is_undone,
)
from harness.testing.audit._rules._call_state import LIFE_CYCLE
from harness.testing.audit._rules._class_attribute import RULE as CLASS_RULE
from harness.testing.audit._rules._evidence import comes_back
from harness.testing.audit._rules._set_up import is_cache, is_memo, is_set_up
from harness.testing.audit._rules._shared_instance import RULE as INSTANCE_RULE
from harness.testing.audit._source_file import (
    FunctionNode,
    Source,
    bindings_of,
    decorator_names,
    first_parameter,
    uses_argument,
)
from harness.testing.audit._sources import Checker, Hit, Sources
from harness.testing.audit._walk import ONE_WAY


def check_classes(source: Source, program: Sources) -> Iterator[Hit]:
    """Yield attributes of classes that running code rebinds."""
    seen: set[str] = set()
    for function, node, target in _written(source, program):
        owner = _class_named(target.value, function, source)
        if owner is None:
            continue
        if _is_container_of(owner, target.attr, source):
            continue  # Found by `_class_attribute`, at the line that makes it.
        if not isinstance(node, ast.Call) and not uses_argument(node, function, 1):
            continue  # The same for all, whoever finds it out.
        symbol = f"{owner}.{target.attr}"
        if symbol not in seen:
            seen.add(symbol)
            yield _hit(node, symbol, function, "the class", source, program)


def check_instances(source: Source, program: Sources) -> Iterator[Hit]:
    """Yield attributes of named objects that running code sets or changes."""
    seen: set[str] = set()
    for function, node, target in _written(source, program):
        root = _root(target)
        if _class_of(root, function, source) is not None or not source.is_global(root):
            continue
        if not _has_a_name(root, function, source):
            continue
        if isinstance(node, ast.Call) and source.dotted(target.value) in source.imports.values():
            continue  # `aiofiles.os.remove(path)` is a function of a module.
        symbol = ast.unparse(target)
        if symbol not in seen:
            seen.add(symbol)
            yield _hit(node, symbol, function, root.id, source, program)


def _written(
    source: Source, program: Sources
) -> Iterator[tuple[FunctionNode, ast.AST, ast.Attribute]]:
    """Yield the attributes that async functions, and the functions they call, set or change."""
    for function in source.functions:
        if not program.runs_in_async(function) or LIFE_CYCLE.match(function.name):
            continue
        if is_set_up(function, source, program):
            continue
        put_back = _put_back(function)
        for node in source.own_nodes(function):
            if program.is_locked(node, source):
                continue
            value = getattr(node, "value", None)
            empties = isinstance(value, ast.Constant) and value.value is None
            if isinstance(node, ast.Assign | ast.AnnAssign) and not empties:
                for target in assigned_by(node):
                    if (
                        isinstance(target, ast.Attribute)
                        and not is_cache(target.attr)
                        and not (ONE_WAY.search(target.attr) and _is_true(value))
                        and ast.unparse(target) not in put_back
                        and not _is_made_once(node, target, function, source)
                    ):
                        yield function, node, target
            for change in changes_by(node):
                if isinstance(node, ast.AugAssign) and not isinstance(node.target, ast.Subscript):
                    continue  # A sum of numbers: each addition is atomic.
                if (
                    isinstance(change.target, ast.Attribute)
                    and not isinstance(source.parents.get(node), ast.Await)
                    and not is_cache(change.target.attr)
                    and not is_undone(change, source)
                    and not is_signal(change, source)
                    and not is_memo(change, function, source)
                ):
                    yield function, node, change.target


def _is_true(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def _is_made_once(
    node: ast.AST, target: ast.Attribute, function: FunctionNode, source: Source
) -> bool:
    """Return whether a plain function makes the one object of its kind, the same for everybody."""
    if isinstance(function, ast.AsyncFunctionDef) or uses_argument(node, function, 1):
        return False
    words = ast.unparse(target)
    return any(
        isinstance(outer, ast.If)
        and ast.unparse(outer.test) in (f"{words} is None", f"not {words}")
        for outer in source.around(node)
    )


def _put_back(function: FunctionNode) -> set[str]:
    """Return the attributes that the function sets in a ``finally``."""
    return {
        ast.unparse(one)
        for node in ast.walk(function)
        if isinstance(node, ast.Try)
        for statement in node.finalbody
        for inner in ast.walk(statement)
        for one in assigned_by(inner)
    }


def _class_named(holder: ast.expr, function: FunctionNode, source: Source) -> str | None:
    """Return the class that an expression means, including that of the method's own object."""
    if isinstance(holder, ast.Name):
        return _class_of(holder, function, source)
    method = source.method_of(function) or function
    owner = source.class_of(method)
    itself = first_parameter(method)
    if owner is not None and ast.unparse(holder) in (f"type({itself})", f"{itself}.__class__"):
        return owner.name
    return None


def _class_of(root: ast.Name, function: FunctionNode, source: Source) -> str | None:
    """Return the class that a name means: its own name, or ``cls`` in a class method."""
    if root.id in source.top_classes and source.is_global(root):
        return root.id
    method = source.method_of(function) or function
    owner = source.class_of(method)
    is_class_method = "classmethod" in decorator_names(method, source)
    if owner is not None and is_class_method and root.id == first_parameter(method):
        return owner.name
    return None


def _is_container_of(owner: str, attribute: str, source: Source) -> bool:
    return any(
        binding.name == attribute and is_container(binding.value, source)
        for one in source.classes
        if one.name == owner
        for binding in bindings_of(one.body)
    )


def _has_a_name(root: ast.Name, function: FunctionNode, source: Source) -> bool:
    """Return whether a global name means an instance, a function or a library.

    What ``os`` and ``sys`` hold is for `_process_state`, and thread-locals have their own rule.
    """
    binding = source.bindings.get(root.id)
    if binding is not None:
        made_by = source.called(binding.value)
        return bool(made_by) and made_by != "threading.local"
    if any(other.name == root.id for other in source.functions):
        return True
    return (
        root.id in source.imports
        and source.imports[root.id] not in ("os", "sys")
        and isinstance(function, ast.AsyncFunctionDef)
    )


def _root(target: ast.Attribute) -> ast.Name:
    """Return the name that a chain of attributes begins with; else one that nothing has."""
    inner: ast.expr = target
    while isinstance(inner, ast.Attribute):
        inner = inner.value
    return inner if isinstance(inner, ast.Name) else ast.Name(id="", ctx=ast.Load())


def _hit(
    node: ast.AST,
    symbol: str,
    function: FunctionNode,
    owner: str,
    source: Source,
    program: Sources,
) -> Hit:
    binding = source.bindings.get(symbol.partition(".")[0])
    return Hit(
        node=node,
        symbol=symbol,
        message=f"{function.name}() writes to {symbol}, and all runs share {owner}",
        defined_at=0 if binding is None else binding.line,
        maybe=not (
            (owner in source.imports and uses_argument(node, function))
            or comes_back(symbol.rpartition(".")[2], node, function, source, program)
        ),
    )


NAMED_CLASS = Checker(CLASS_RULE, check_classes)
NAMED_INSTANCE = Checker(INSTANCE_RULE, check_instances)
