"""Tell where a file changes an object, and which values can be changed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import attrs

from harness.testing.audit._source_file import FUNCTIONS, Source

CHANGING_METHODS = frozenset(
    (
        "add",
        "append",
        "appendleft",
        "clear",
        "difference_update",
        "discard",
        "extend",
        "extendleft",
        "insert",
        "intersection_update",
        "move_to_end",
        "pop",
        "popitem",
        "popleft",
        "remove",
        "reverse",
        "rotate",
        "setdefault",
        "sort",
        "subtract",
        "symmetric_difference_update",
        "update",
    )
)
"""Methods of containers that change them."""

_CONSTRUCTORS = frozenset(
    (
        "list",
        "dict",
        "set",
        "bytearray",
        "array.array",
        "collections.deque",
        "collections.defaultdict",
        "collections.OrderedDict",
        "collections.Counter",
        "collections.UserDict",
        "collections.UserList",
        "queue.Queue",
        "queue.SimpleQueue",
        "asyncio.Queue",
    )
)

REMOVALS = frozenset(
    (".clear()", ".discard()", ".pop()", ".popitem()", ".popleft()", ".remove()", "del [...]")
)
"""How changes that only take something out are put into words."""

_FIRST_ARGUMENT_CHANGES = frozenset(
    ("heapq.heappush", "heapq.heappop", "heapq.heapify", "bisect.insort", "random.shuffle")
)


@attrs.frozen(eq=False)
class Change:
    """One place where an object is changed."""

    target: ast.expr
    """The object: ``messages`` in ``messages.append(1)``."""

    node: ast.expr | ast.stmt
    """What changes it."""

    how: str
    """In words: ``.append()``, ``[...] =``."""


def changes_in(nodes: list[ast.AST]) -> Iterator[Change]:
    """Yield every change of a container among ``nodes``, in the order of the file."""
    for node in nodes:
        yield from changes_by(node)


def changes_by(node: ast.AST) -> Iterator[Change]:
    """Yield what this node itself changes."""
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Attribute):
            if function.attr in CHANGING_METHODS:
                yield Change(function.value, node, f".{function.attr}()")
            elif ast.unparse(function) in _FIRST_ARGUMENT_CHANGES and node.args:
                yield Change(node.args[0], node, f"{ast.unparse(function)}()")
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            for one in _flat(target):
                if isinstance(one, ast.Subscript):
                    yield Change(one.value, node, "[...] =")
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Subscript):
        yield Change(node.target.value, node, "[...] =")
    elif isinstance(node, ast.AugAssign):
        if isinstance(node.target, ast.Subscript):
            yield Change(node.target.value, node, f"[...] {_sign(node)}=")
        else:
            yield Change(node.target, node, f"{_sign(node)}=")
    elif isinstance(node, ast.Delete):
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                yield Change(target.value, node, "del [...]")


def is_signal(change: Change, source: Source) -> bool:
    """Return whether a change is the ``clear()`` of an event, which holds nothing of a call."""
    return (
        change.how == ".clear()" and ast.unparse(change.target).rpartition(".")[2] in source.events
    )


def assigned_by(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the names and attributes that this statement itself rebinds."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _flat(target)
    elif isinstance(node, ast.AugAssign | ast.NamedExpr) or (
        isinstance(node, ast.AnnAssign) and node.value is not None
    ):
        yield node.target
    elif isinstance(node, ast.With | ast.AsyncWith):
        for item in node.items:
            if item.optional_vars is not None:
                yield from _flat(item.optional_vars)
    elif isinstance(node, ast.For | ast.AsyncFor):
        yield from _flat(node.target)
    elif isinstance(node, ast.Delete):
        yield from node.targets


def is_container(value: ast.expr | None, source: Source) -> bool:
    """Return whether the expression makes a new container that can be changed."""
    if isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp):
        return True
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        return is_container(value.left, source)
    return source.called(value) in _CONSTRUCTORS


def is_undone(change: Change, source: Source) -> bool:
    """Return whether the function takes the change back on every way out.

    What is added before a ``try`` and taken out in its ``finally`` is there only while the block
    runs: a list of what is going on, not something left behind.
    """
    function = source.function_of(change.node)
    if function is None:
        return False
    target = ast.unparse(change.target)
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and any(
            ast.unparse(one) in (f"{target}.discard", f"{target}.remove") for one in node.args
        ):
            return True  # `task.add_done_callback(tasks.discard)`
        if not isinstance(node, ast.Try):
            continue
        for statement in node.finalbody:
            for inner in ast.walk(statement):
                if any(ast.unparse(one.target) == target for one in changes_by(inner)):
                    return True
                if any(ast.unparse(one) == target for one in assigned_by(inner)):
                    return True
    return False


def returns_a_callable(function: ast.AST) -> bool:
    """Return whether a function returns one that it defines, as decorators usually do."""
    inner = {node.name for node in ast.walk(function) if isinstance(node, FUNCTIONS)}
    return any(
        isinstance(node, ast.Return) and isinstance(node.value, ast.Name) and node.value.id in inner
        for node in ast.walk(function)
    )


def _flat(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for one in target.elts:
            yield from _flat(one)
    elif isinstance(target, ast.Starred):
        yield from _flat(target.value)
    else:
        yield target


def _sign(node: ast.AugAssign) -> str:
    signs = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.BitOr: "|", ast.BitAnd: "&"}
    return signs.get(type(node.op), "?")
