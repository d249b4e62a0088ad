"""Tell whether code runs under a lock, as far as names say."""

from __future__ import annotations

import ast
import re

from harness.testing.audit._source_file import FUNCTIONS, Source

_LOCK = re.compile(
    r"(?<![bc])lock|mutex|sem(aphore)?\b|\bsem|cond(ition)?\b|guard|exclusive|critical|serial|atomic"
    r"|transaction|single.?flight",
    re.IGNORECASE,
)


def names_a_lock(expression: ast.expr) -> bool:
    """Return whether an expression's words name something that admits one task at a time."""
    return _LOCK.search(ast.unparse(expression)) is not None


def is_locked(node: ast.AST, source: Source) -> bool:
    """Return whether ``node`` is inside a lock's ``with``, in its own function."""
    for outer in source.around(node):
        if isinstance(outer, ast.With | ast.AsyncWith) and any(
            names_a_lock(item.context_expr) for item in outer.items
        ):
            return True
        if isinstance(outer, FUNCTIONS):
            return False
    return False
