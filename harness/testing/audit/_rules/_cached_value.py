"""Find values of cached functions that callers change."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.testing.audit._changes import Change, changes_by, is_container
from harness.testing.audit._finding import Rule
from harness.testing.audit._source_file import (
    FUNCTIONS,
    FunctionNode,
    Source,
    decorator_names,
    first_parameter,
)
from harness.testing.audit._sources import Checker, Hit, Sources

RULE = Rule(
    name="cached-value",
    title="a value of a cached function that a caller changes",
    why="a cache hands out one and the same object, so what one caller does to it, all others find",
    fix="return something that can't be changed, such as a tuple or a frozen class; or let callers "
    "change a copy",
)

CACHES = frozenset(("functools.lru_cache", "functools.cache"))
"""Decorators that keep what a function returned."""


def check(source: Source, program: Sources) -> Iterator[Hit]:
    """Yield each cached function once: at the first place that changes what it returned."""
    for function in source.functions:
        if not CACHES & decorator_names(function, source) or not _returns_container(
            function, source
        ):
            continue
        found = next(_changes(function, source, program), None)
        if found is not None:
            home, change = found
            symbol = source.qualified_name(function)
            caller = home.function_of(change.node)
            by = "the module" if caller is None else f"{caller.name}()"
            yield Hit(
                node=change.node,
                symbol=symbol,
                message=f"{by} changes what the cache of {symbol}() keeps ({change.how})",
                source=home,
                defined_at=function.lineno if home is source else 0,
            )


def _returns_container(function: FunctionNode, source: Source) -> bool:
    made = {
        target.id
        for node in source.own_nodes(function)
        if isinstance(node, ast.Assign) and is_container(node.value, source)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return any(
        isinstance(node, ast.Return)
        and (
            is_container(node.value, source)
            or (isinstance(node.value, ast.Name) and node.value.id in made)
        )
        for node in source.own_nodes(function)
    )


def _changes(
    function: FunctionNode, source: Source, program: Sources
) -> Iterator[tuple[Source, Change]]:
    """Yield where functions change what a call returned, directly or by a local name."""
    for home in program.sources:
        if function.name not in home.text:
            continue
        for caller in home.functions:
            if caller is function:
                continue
            nodes = home.own_nodes(caller)
            values: dict[str, list[ast.expr | None]] = {}
            for node in nodes:
                if isinstance(node, ast.Assign | ast.AnnAssign):
                    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                        if isinstance(target, ast.Name):
                            values.setdefault(target.id, []).append(node.value)
            for node in nodes:
                for change in changes_by(node):
                    made: ast.expr | None = change.target
                    if isinstance(made, ast.Name) and len(values.get(made.id, ())) == 1:
                        made = values[made.id][0]
                    if isinstance(made, ast.Await):
                        made = made.value
                    if _calls(made, function, source, home):
                        yield home, change


def _calls(value: ast.expr | None, function: FunctionNode, source: Source, home: Source) -> bool:
    """Return whether this calls the cached function, as far as names say."""
    if not isinstance(value, ast.Call):
        return False
    called = home.dotted(value.func)
    if isinstance(source.parents.get(function), ast.ClassDef):
        if not (isinstance(value.func, ast.Attribute) and value.func.attr == function.name):
            return False
        caller = home.method_of(value)
        own = None if caller is None else home.class_of(caller)
        by_itself = caller is not None and ast.unparse(value.func.value) == first_parameter(caller)
        # `self.format()` in a class that has its own is no call of another class's.
        return not by_itself or own is None or own is source.parents.get(function)
    if isinstance(source.parents.get(function), FUNCTIONS):
        return home is source and called == function.name
    return called == function.name if home is source else called.endswith(f".{function.name}")


CACHED_VALUE = Checker(RULE, check)
