"""Find what the methods of a class keep from one call, on the object that all calls share.

In a library no instance is in sight, so the class itself has to show that an attribute belongs to
one call: it is set to the calling task or run, or it is reset at the start of a method with
arguments and read again in a loop of that method that waits. What such a class makes in `__init__`
and fills in methods (a queue, a manager that keeps a list) is also shared by all calls.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.testing.audit._changes import is_container
from harness.testing.audit._locks import is_locked
from harness.testing.audit._rules._set_up import is_cache
from harness.testing.audit._source_file import (
    FUNCTIONS,
    INITIALISERS,
    FunctionNode,
    Source,
    bindings_of,
    first_parameter,
    parameters,
)
from harness.testing.audit._sources import Sources
from harness.testing.audit._walk import ONE_WAY

LIFE_CYCLE = re.compile(
    r"^_*(__aenter__|__aexit__|a?close|a?start|a?stop|connect|disconnect|reconnect|open|setup"
    r"|set_up|init|initiali[sz]e|startup|shutdown|cleanup|teardown|reset|configure|load|reload"
    r"|(handle_)?lifespan|serve|listen)(_|$)"
)
_ONE_TASK = re.compile(r"(Reader|Writer|Parser|Iterator|Actor|ActorBase|Connection|Protocol)$")
_WHO_CALLS = re.compile(r"(^|\.)current_(task|run|run_or_none|effective_deadline)$")
_SCOPE = re.compile(
    r"(^|\.)(CancelScope|(move_on|fail)_(after|at)|open_nursery|create_task_group|TaskGroup"
    r"|timeout(_at)?|open_run)$"
)
_HOLDS_STATE = re.compile(r"(Queue|Manager|Buffer|State|History|Inbox)$")
"""Names of classes in other files that usually keep something."""


def call_state(
    source: Source, owner: ast.ClassDef
) -> Iterator[tuple[str, ast.stmt, str, FunctionNode]]:
    """Yield the attributes that hold state of one call: attribute, place, verb and method."""
    if _ONE_TASK.search(owner.name):
        return
    seen: set[str] = set()
    for method in owner.body:
        if not isinstance(method, ast.AsyncFunctionDef) or _is_no_call(method):
            continue
        for node in source.own_nodes(method):
            if is_locked(node, source):
                continue
            for attribute in scopes_kept(node, source, first_parameter(method)):
                if attribute not in seen and isinstance(node, ast.stmt):
                    seen.add(attribute)
                    yield attribute, node, "keeps a scope of the call as", method
            if not isinstance(node, ast.Assign | ast.AnnAssign):
                continue
            for attribute in _own_attributes_set(node, first_parameter(method)):
                if attribute in seen or is_cache(attribute):
                    continue
                if _is_the_caller(node.value, source) or _is_reset(node, attribute, method, source):
                    seen.add(attribute)
                    yield attribute, node, "sets", method


def _is_no_call(method: FunctionNode) -> bool:
    """Return whether a method is part of the object's life cycle, or has no argument.

    What is given a ``task_status`` is started by a nursery, once, and runs as long as the object.
    """
    return (
        LIFE_CYCLE.match(method.name) is not None
        or any(one.arg == "task_status" for one in parameters(method))
        or method.name.startswith("__") != method.name.startswith("__call__")
        or len(parameters(method)) < 2
    )


def made_for_all(
    source: Source, owner: ast.ClassDef, program: Sources
) -> Iterator[tuple[str, ast.stmt, str, FunctionNode]]:
    """Yield what the class makes once, and keeps state in: a queue, a manager with a list."""
    for method in owner.body:
        if not isinstance(method, FUNCTIONS) or method.name not in INITIALISERS:
            continue
        for node in source.own_nodes(method):
            if not isinstance(node, ast.Assign | ast.AnnAssign):
                continue
            for attribute in _own_attributes_set(node, first_parameter(method)):
                if not is_cache(attribute) and _keeps_state(node.value, source, program):
                    yield attribute, node, "makes", method


def _own_attributes_set(node: ast.Assign | ast.AnnAssign, itself: str) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        for one in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
            if isinstance(one, ast.Attribute) and ast.unparse(one.value) == itself:
                yield one.attr


def scopes_kept(node: ast.AST, source: Source, itself: str) -> Iterator[str]:
    """Yield the attributes that a ``with`` binds to a scope or a group of tasks of this call."""
    if isinstance(node, ast.With | ast.AsyncWith):
        for item in node.items:
            target = item.optional_vars
            if (
                isinstance(target, ast.Attribute)
                and ast.unparse(target.value) == itself
                and _SCOPE.search(source.called(item.context_expr))
            ):
                yield target.attr


def _is_the_caller(value: ast.expr | None, source: Source) -> bool:
    return _WHO_CALLS.search(source.called(value)) is not None


def _is_reset(
    node: ast.Assign | ast.AnnAssign, attribute: str, method: FunctionNode, source: Source
) -> bool:
    """Return whether the method begins with this, and reads it again in a loop that waits."""
    value = node.value
    is_new = isinstance(value, ast.Constant) and value.value is not None
    if not is_new and not is_container(value, source):
        return False
    if ONE_WAY.search(attribute) or node not in method.body:
        return False
    itself = first_parameter(method)
    before, after = _split(method.body, node)
    if any(_waits(one) for one in before):
        return False
    return any(
        isinstance(loop, ast.For | ast.AsyncFor | ast.While)
        and _waits(loop)
        and any(
            isinstance(one, ast.Attribute)
            and isinstance(one.ctx, ast.Load)
            and one.attr == attribute
            and ast.unparse(one.value) == itself
            for one in ast.walk(loop)
        )
        for statement in after
        for loop in ast.walk(statement)
    )


def _split(body: list[ast.stmt], node: ast.stmt) -> tuple[list[ast.stmt], list[ast.stmt]]:
    at = body.index(node)
    return body[:at], body[at + 1 :]


def _waits(node: ast.AST) -> bool:
    return any(
        isinstance(one, ast.Await | ast.AsyncFor | ast.AsyncWith | ast.Yield)
        for one in ast.walk(node)
    )


def _keeps_state(value: ast.expr | None, source: Source, program: Sources) -> bool:
    if keeps_state(value, source, program):
        return True
    if not isinstance(value, ast.Call):
        return False
    known = isinstance(value.func, ast.Name) and program.class_named(value.func.id, source)
    return not known and _HOLDS_STATE.search(ast.unparse(value.func)) is not None


def keeps_state(value: ast.expr | None, source: Source, program: Sources) -> bool:
    """Return whether this makes an object of a class of the program that has containers."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
        return False
    found = program.class_named(value.func.id, source)
    return found is not None and _makes_containers(*found)


def _makes_containers(source: Source, owner: ast.ClassDef) -> bool:
    in_methods = any(
        isinstance(node, ast.Assign | ast.AnnAssign)
        and is_container(node.value, source)
        and any(True for _ in _own_attributes_set(node, first_parameter(method)))
        for method in owner.body
        if isinstance(method, FUNCTIONS) and method.name in INITIALISERS
        for node in source.own_nodes(method)
    )
    return in_methods or any(
        isinstance(binding.value, ast.Call)
        and any(
            keyword.arg in ("default_factory", "factory")
            and ast.unparse(keyword.value) in ("list", "dict", "set", "deque")
            for keyword in binding.value.keywords
        )
        for binding in bindings_of(owner.body)
    )
