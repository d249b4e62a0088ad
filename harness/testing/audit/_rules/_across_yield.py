"""Find runs, nurseries and cancel scopes that a generator holds across a ``yield``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.testing.audit._finding import Rule
from harness.testing.audit._source_file import FunctionNode, Source
from harness.testing.audit._sources import Checker, Hit, Sources

RULE = Rule(
    name="held-across-yield",
    title="a run, a nursery or a cancel scope that a generator holds across a yield",
    why="between two yields the block is around the reader's code: that is in the run then, and a "
    "cancel of the scope strikes it; two such generators read in turns leave their blocks "
    "in the wrong order",
    fix="decorate the generator with @trio.as_safe_channel, which iterates it in a task of its "
    "own, and read it with `async with`; or leave the block before the yield",
)

_LIBRARIES = frozenset(("harness", "trio", "anyio", "asyncio"))
_BLOCKS = frozenset(
    (
        *("open_run", "open_fan_out", "open_nursery", "create_task_group", "TaskGroup"),
        *("CancelScope", "move_on_after", "move_on_at", "fail_after", "fail_at"),
        *("timeout", "timeout_at", "cleanup"),
    )
)
_EXEMPT = ("contextmanager", "as_safe_channel", "fixture")
"""How the names of decorators end under which one caller enters and leaves, or a separate task
iterates."""


def check(source: Source, program: Sources) -> Iterator[Hit]:
    """Yield each block once, at the line that enters it."""
    for function in source.functions:
        if _is_exempt(function):
            continue
        for node in source.own_nodes(function):
            if not isinstance(node, ast.With | ast.AsyncWith):
                continue
            held = next((one for one in node.items if _is_block(one.context_expr, source)), None)
            inside = _yield_in(node, function, source)
            if held is not None and inside is not None:
                name = source.qualified_name(function)
                yield Hit(
                    node=node,
                    symbol=name,
                    message=f"{name}() holds {ast.unparse(held.context_expr)} across the yield in "
                    f"line {inside.lineno}",
                )


def _is_exempt(function: FunctionNode) -> bool:
    decorators = [one.func if isinstance(one, ast.Call) else one for one in function.decorator_list]
    return any(ast.unparse(one).endswith(_EXEMPT) for one in decorators)


def _is_block(expression: ast.expr, source: Source) -> bool:
    library, _, rest = source.called(expression).partition(".")
    return library in _LIBRARIES and rest.rpartition(".")[2] in _BLOCKS


def _yield_in(
    block: ast.With | ast.AsyncWith, function: FunctionNode, source: Source
) -> ast.Yield | ast.YieldFrom | None:
    """Return one of the function's own yields in the block."""
    for node in ast.walk(block):
        if isinstance(node, ast.Yield | ast.YieldFrom) and source.function_of(node) is function:
            return node
    return None


ACROSS_YIELD = Checker(RULE, check)
