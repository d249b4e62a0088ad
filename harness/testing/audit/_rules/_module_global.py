"""Find names of a module that its functions rebind, and containers that they change."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.testing.audit._changes import (
    REMOVALS,
    assigned_by,
    changes_by,
    is_container,
    is_undone,
)
from harness.testing.audit._finding import KEEP_IT_PER_CALL, Rule
from harness.testing.audit._rules._evidence import comes_back
from harness.testing.audit._rules._set_up import (
    depends_on_call,
    enters_itself,
    is_cache,
    is_filled_once,
    is_memo,
    is_of_a_command_line,
    is_said_once,
    is_set_up,
)
from harness.testing.audit._source_file import FunctionNode, Source
from harness.testing.audit._sources import Checker, Hit, Sources

RULE = Rule(
    name="module-global",
    title="a name or a container of a module that a function changes",
    why="there is one per process: what one run leaves in it, the next one finds, and runs side "
    "by side overwrite each other's",
    fix=f"{KEEP_IT_PER_CALL}; what is shared on purpose belongs into harness.shared",
)

_COUNTER = re.compile(
    r"(?<![a-z])count|version|total|statistic|dropped|drops|serial|next_|_id$", re.I
)


def check(source: Source, program: Sources) -> Iterator[Hit]:
    """Yield each global once: at the first place that changes it."""
    if is_of_a_command_line(source):
        return
    seen: set[str] = set()
    flags = _flags(source)
    for function in source.functions:
        if is_set_up(function, source, program):
            continue
        declared = _declared_global(function, source)
        originals = _originals(function, source)
        for node in source.own_nodes(function):
            changed = _changed(node, originals, function, source)
            for name, how in [*_bound(node, declared), *changed]:
                if name in seen or name in flags or program.is_locked(node, source):
                    continue
                if how == "binds" and (
                    is_cache(name)
                    or not depends_on_call(node, function, source)
                    or _is_made_once(name, node, function, source)
                ):
                    continue
                seen.add(name)
                what = "binds it anew" if how == "binds" else f"changes it ({how})"
                binding = source.bindings.get(name)
                yield Hit(
                    node=node,
                    symbol=name,
                    message=f"{name} belongs to the module, and {function.name}() {what}",
                    defined_at=0 if binding is None else binding.line,
                    maybe=not comes_back(name, node, function, source, program),
                )


def _declared_global(function: FunctionNode, source: Source) -> set[str]:
    return {
        name
        for node in source.own_nodes(function)
        if isinstance(node, ast.Global)
        for name in node.names
    }


def _flags(source: Source) -> set[str]:
    """Return the globals that functions only ever bind to the same constant."""
    values: dict[str, set[str]] = {}
    for function in source.functions:
        declared = _declared_global(function, source)
        for node in source.own_nodes(function):
            for target in assigned_by(node):
                if isinstance(target, ast.Name) and target.id in declared:
                    value = getattr(node, "value", None)
                    constant = isinstance(node, ast.Assign) and isinstance(value, ast.Constant)
                    said = ast.unparse(value) if constant and value is not None else "..."
                    values.setdefault(target.id, set()).add(said)
    return {name for name, said in values.items() if len(said) == 1 and "..." not in said}


def _bound(node: ast.AST, declared: set[str]) -> Iterator[tuple[str, str]]:
    for target in assigned_by(node):
        if not isinstance(target, ast.Name) or target.id not in declared:
            continue
        if not _counts(node, target.id):
            yield target.id, "binds"


def _counts(node: ast.AST, name: str) -> bool:
    """Return whether a number only grows: it belongs to no run, and each addition is atomic."""
    return isinstance(node, ast.AugAssign) and (
        _COUNTER.search(name) is not None
        or (isinstance(node.op, ast.Add | ast.Sub) and isinstance(node.value, ast.Constant))
    )


def _changed(
    node: ast.AST, originals: dict[str, ast.Name], function: FunctionNode, source: Source
) -> Iterator[tuple[str, str]]:
    for change in changes_by(node):
        target = change.target
        if not isinstance(target, ast.Name) or isinstance(target.ctx, ast.Store):
            continue
        target = originals.get(target.id, target)
        binding = source.bindings.get(target.id)
        if binding is None or not is_container(binding.value, source):
            continue
        if is_cache(target.id) or not source.is_global(target) or is_undone(change, source):
            continue
        if _counts(node, target.id) or _holds_a_task(node, function, source):
            continue
        if enters_itself(node, function, source) or change.how in REMOVALS:
            continue  # What nobody puts in can't be taken out by another run.
        if not (
            is_memo(change, function, source)
            or is_said_once(change, source)
            or is_filled_once(change, function, source)
        ):
            yield target.id, change.how


def _holds_a_task(node: ast.AST, function: FunctionNode, source: Source) -> bool:
    """Return whether a task is kept from being collected: ``tasks.add(create_task(...))``."""
    if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Name)):
        return False
    name = node.args[0].id
    return any(
        isinstance(one, ast.Assign)
        and ast.unparse(one.targets[0]) == name
        and re.search(r"create_task|ensure_future", ast.unparse(one.value)) is not None
        for one in source.own_nodes(function)
    )


def _imported_by(function: FunctionNode, source: Source) -> set[str]:
    """Return the names that a function itself imports."""
    return {
        (alias.asname or alias.name).partition(".")[0]
        for node in source.own_nodes(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


def _originals(function: FunctionNode, source: Source) -> dict[str, ast.Name]:
    """Return the name that gave a local variable its only value, by variable: ``state = STATE``."""
    values: dict[str, list[ast.expr | None]] = {}
    for node in source.own_nodes(function):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in assigned_by(node):
                if isinstance(target, ast.Name):
                    values.setdefault(target.id, []).append(node.value)
    return {
        name: given[0]
        for name, given in values.items()
        if len(given) == 1 and isinstance(given[0], ast.Name)
    }


def _is_made_once(name: str, node: ast.AST, function: FunctionNode, source: Source) -> bool:
    """Return whether the binding is a constant that is made on first use.

    ``if x is None: x = make()`` without an await in between, if the value doesn't depend on the
    caller: all callers get the same, whichever comes first. The same goes for what the function
    imports.
    """
    value = getattr(node, "value", None)
    if not isinstance(node, ast.Assign | ast.AnnAssign) or value is None:
        return False
    if isinstance(value, ast.Name) and value.id in _imported_by(function, source):
        return True
    if source.called(value) == "importlib.import_module":
        return True
    if any(isinstance(outer, ast.ExceptHandler) for outer in source.around(node)):
        return isinstance(value, ast.Name)  # `except ImportError: encode = encode_slowly`
    if any(isinstance(one, ast.Await) for one in ast.walk(function)):
        return False
    own = source.bound_in(function)
    if any(isinstance(one, ast.Name) and one.id in own for one in ast.walk(value)):
        given = {
            argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)
        }
        if any(isinstance(one, ast.Name) and one.id in given for one in ast.walk(value)):
            return False
    if isinstance(value, ast.Constant) and value.value is None:
        return True
    tests = [
        test
        for test in ast.walk(function)
        if isinstance(test, ast.If | ast.IfExp | ast.BoolOp)
        and any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(test))
    ]
    return bool(tests)


MODULE_GLOBAL = Checker(RULE, check)
