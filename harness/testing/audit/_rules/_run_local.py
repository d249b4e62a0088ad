"""Find a `RunLocal` that several calls in one run share, where each should have a run of its own.

A fan-out opens a run for each item, so a function that keeps its state in a `RunLocal` is right as
an item. Called twice by one function, or in a loop, or by tasks of one nursery, its calls share the
run around them, and with it the state.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.testing.audit._changes import changes_by
from harness.testing.audit._finding import Rule
from harness.testing.audit._source_file import (
    FunctionNode,
    Source,
    bindings_of,
    decorator_names,
)
from harness.testing.audit._sources import Checker, Hit, Sources

RULE = Rule(
    name="run-local-of-several-calls",
    title="a RunLocal of the surrounding run that several calls change",
    why="a RunLocal belongs to the run and not to the call: what the first call leaves in it, the "
    "next one finds, and calls side by side overwrite each other's",
    fix='open a run for each call: put @harness.open_run("name") above the function that is '
    "called; or keep it in a local variable. If the calls are meant to share it, say so",
)

_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.GeneratorExp)
_OWN_RUNS = re.compile(r"(^|\.)(open_fan_out|fan_out|open_run|pipeline|router|race|stage)$")


def check(source: Source, program: Sources) -> Iterator[Hit]:
    """Yield each function that calls another several times, which changes a `RunLocal`."""
    locals_ = _run_locals(source)
    if not locals_:
        return
    for function in source.functions:
        local = _changed_in(function, locals_, source)
        if local is None or _opens_a_run(function, source):
            continue
        for home in program.sources:
            for caller in home.functions:
                if not isinstance(caller, ast.AsyncFunctionDef) or caller is function:
                    continue
                if places := _calls(function.name, caller, home):
                    yield Hit(
                        node=places[0],
                        symbol=local,
                        message=f"{caller.name}() calls {function.name}() several times in one "
                        f"run, and each call changes {local}, a RunLocal of that run",
                        source=home,
                        defined_at=locals_[local] if home is source else 0,
                    )


def _run_locals(source: Source) -> dict[str, int]:
    """Return the names of the file's run locals, and the lines that make them."""
    bodies = [source.tree.body, *(owner.body for owner in source.classes)]
    return {
        binding.name: binding.line
        for body in bodies
        for binding in bindings_of(body)
        if source.called(binding.value).rpartition(".")[2] == "RunLocal"
    }


def _changed_in(function: FunctionNode, locals_: dict[str, int], source: Source) -> str | None:
    """Return the run local whose value a function changes or sets."""
    got: dict[str, str] = {}
    for node in source.own_nodes(function):
        if isinstance(node, ast.Assign) and (name := _got(node.value, locals_)):
            got |= {one.id: name for one in node.targets if isinstance(one, ast.Name)}
        elif isinstance(node, ast.Call) and (name := _got(node, locals_, "set")):
            return name
    for node in source.own_nodes(function):
        for change in changes_by(node):
            if name := _got(change.target, locals_):
                return name
            if isinstance(change.target, ast.Name) and change.target.id in got:
                return got[change.target.id]
    return None


def _got(value: ast.expr, locals_: dict[str, int], method: str = "get") -> str | None:
    """Return the run local that ``self.messages.get()`` is about."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        holder = value.func.value
        name = holder.attr if isinstance(holder, ast.Attribute) else getattr(holder, "id", "")
        return name if value.func.attr == method and name in locals_ else None
    return None


def _opens_a_run(function: FunctionNode, source: Source) -> bool:
    opened = any(name.endswith("open_run") for name in decorator_names(function, source))
    return opened or any(
        isinstance(node, ast.AsyncWith)
        and any(source.called(item.context_expr).endswith("open_run") for item in node.items)
        for node in source.own_nodes(function)
    )


def _calls(name: str, caller: FunctionNode, source: Source) -> list[ast.AST]:
    """Return where ``caller`` calls a function, if it does so several times in one run."""
    inner = {one.name: one for one in ast.walk(caller) if isinstance(one, ast.AsyncFunctionDef)}
    names = {name} | {
        each
        for each, one in inner.items()
        if one is not caller and _uses(name, one) and not _opens_a_run(one, source)
    }
    places: list[ast.AST] = []
    times = 0
    for node in source.own_nodes(caller):
        if not isinstance(node, ast.Call) or _OWN_RUNS.search(source.dotted(node.func)):
            continue
        called = [node.func, *node.args]
        if any(_name(one) in names for one in called) and not _has_a_run(node, caller, source):
            places.append(node)
            times += (
                2 if any(isinstance(one, _LOOPS) for one in _within(node, caller, source)) else 1
            )
    return places if times > 1 else []


def _has_a_run(node: ast.AST, caller: FunctionNode, source: Source) -> bool:
    """Return whether a run is opened around each call: inside of the innermost loop."""
    for outer in _within(node, caller, source):
        if isinstance(outer, _LOOPS):
            return False
        if isinstance(outer, ast.AsyncWith) and any(
            source.called(item.context_expr).endswith("open_run") for item in outer.items
        ):
            return True
    return False


def _within(node: ast.AST, function: FunctionNode, source: Source) -> Iterator[ast.AST]:
    for outer in source.around(node):
        if outer is function:
            return
        yield outer


def _uses(name: str, function: ast.AsyncFunctionDef) -> bool:
    return any(
        isinstance(node, ast.Call) and _name(node.func) == name for node in ast.walk(function)
    )


def _name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


RUN_LOCAL = Checker(RULE, check)
