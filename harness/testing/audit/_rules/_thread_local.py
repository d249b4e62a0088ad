"""Find `threading.local`, which keeps tasks apart no more than a global does."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.testing.audit._finding import Rule
from harness.testing.audit._rules._names import assigned_name
from harness.testing.audit._source_file import Source
from harness.testing.audit._sources import Checker, Hit, Sources

RULE = Rule(
    name="thread-local",
    title="threading.local in a program of tasks",
    why="all tasks of an event loop run in one thread and share its value, while a worker thread "
    "that a task starts doesn't see it",
    fix="use a harness.RunLocal or a contextvars.ContextVar, which follow the task into its "
    "threads",
)


def check(source: Source, program: Sources) -> Iterator[Hit]:
    """Yield every thread-local object, and every class derived from it."""
    for node in source.nodes:
        if isinstance(node, ast.Call) and source.dotted(node.func) == "threading.local":
            name = assigned_name(node, source, "threading.local()")
            yield Hit(node=node, symbol=name, message=f"{name} is the same for all tasks")
        elif isinstance(node, ast.ClassDef) and any(
            source.dotted(base) == "threading.local" for base in node.bases
        ):
            yield Hit(
                node=node,
                symbol=node.name,
                message=f"an instance of {node.name} is the same for all tasks",
            )


THREAD_LOCAL = Checker(RULE, check)
