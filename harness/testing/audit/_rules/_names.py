"""Name what is made at a place in the code."""

from __future__ import annotations

import ast

from harness.testing.audit._source_file import FUNCTIONS, FunctionNode, Source


def assigned_name(node: ast.AST, source: Source, otherwise: str) -> str:
    """Return the name that the value is bound to, with its class; ``otherwise`` if to none."""
    names: list[str] = []
    for outer in source.around(node):
        if isinstance(outer, ast.Assign) and not names:
            names.append(ast.unparse(outer.targets[0]).strip("()"))
        elif isinstance(outer, ast.AnnAssign) and not names:
            names.append(ast.unparse(outer.target))
        elif isinstance(outer, ast.ClassDef) and names:
            names.append(outer.name)
            break
        elif isinstance(outer, FUNCTIONS):
            break
    return ".".join(reversed(names)) or otherwise


def qualified_name(function: FunctionNode, source: Source) -> str:
    """Return the function's name after that of its class."""
    owner = source.class_of(function)
    return function.name if owner is None else f"{owner.name}.{function.name}"
