"""Find `threading.local`, which keeps tasks apart no more than a global does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.testing.audit._changes import assigned_by
from harness.testing.audit._finding import Rule
from harness.testing.audit._rules._names import assigned_name
from harness.testing.audit._source_file import FunctionNode, Source
from harness.testing.audit._sources import Checker, Hit, Sources

RULE = Rule(
    name="thread-local",
    title="threading.local in a program of tasks",
    why="all tasks of an event loop run in one thread and share its value, while a worker thread "
    "that a task starts doesn't see it",
    fix="use a harness.RunLocal or a contextvars.ContextVar, which follow the task into its "
    "threads",
)


_CONNECTION = re.compile(r"client|conn|cursor|pool|session|loop|engine", re.IGNORECASE)


def check(source: Source, program: Sources) -> Iterator[Hit]:
    """Yield every thread-local object, and every class derived from it, that tasks may use.

    A file of functions in which no asynchronous one gets at it is of threads, in a package that may
    have tasks elsewhere.
    """
    used = _used_by_tasks(source) if source.functions else None
    for node in source.nodes:
        if isinstance(node, ast.Call) and source.dotted(node.func) == "threading.local":
            name = assigned_name(node, source, "threading.local()")
            if used is not None and name.rpartition(".")[2] not in used:
                continue
            yield Hit(
                node=node,
                symbol=name,
                message=f"{name} is the same for all tasks",
                maybe=_holds_connections(name.rpartition(".")[2], source),
            )
        elif isinstance(node, ast.ClassDef) and any(
            source.dotted(base) == "threading.local" for base in node.bases
        ):
            made = {one.name for one in source.bindings.values() if _makes(one.value, node.name)}
            if used is not None and not used & {node.name, *made}:
                continue
            yield Hit(
                node=node,
                symbol=node.name,
                message=f"an instance of {node.name} is the same for all tasks",
            )


def _holds_connections(name: str, source: Source) -> bool:
    """Return whether it holds nothing but a client or a connection for each thread."""
    kept = {
        target.attr
        for node in source.nodes
        for target in assigned_by(node)
        if isinstance(target, ast.Attribute)
        and ast.unparse(target.value).rpartition(".")[2] == name
    }
    return bool(kept) and all(map(_CONNECTION.search, kept))


def _makes(value: ast.expr | None, cls: str) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) == cls


def _used_by_tasks(source: Source) -> set[str]:
    """Return the names in this file's asynchronous functions, and in those that they call."""
    functions = {function.name: function for function in source.functions}
    pending: list[FunctionNode] = [
        one for one in source.functions if isinstance(one, ast.AsyncFunctionDef)
    ]
    used: set[str] = set()
    seen: set[str] = set()
    while pending:
        function = pending.pop()
        seen.add(function.name)
        for node in ast.walk(function):
            if isinstance(node, ast.Name | ast.Attribute):
                name = node.id if isinstance(node, ast.Name) else node.attr
                used.add(name)
                if name in functions and name not in seen:
                    seen.add(name)
                    pending.append(functions[name])
    return used


THREAD_LOCAL = Checker(RULE, check)
