"""Tell code that sets a program up from code that runs.

A table filled while modules are imported, and a setting made when the program starts, are constants
by the time runs begin. Only names and shapes in the code say so. So these are guesses that lean
towards silence: a finding should be worth a look.
"""

from __future__ import annotations

import ast
import re

from harness.testing.audit._changes import Change, assigned_by, is_container, returns_a_callable
from harness.testing.audit._source_file import (
    CONSTRUCTORS,
    FUNCTIONS,
    FunctionNode,
    Source,
    decorator_names,
    first_parameter,
    parameters,
    uses_argument,
)
from harness.testing.audit._sources import Sources

_FILLED_AT_IMPORT = frozenset(
    ("__init_subclass__", "__set_name__", "__class_getitem__", "__prepare__", "__getattr__")
)
_DECORATED = frozenset(
    ("fn", "func", "function", "f", "cls", "klass", "handler", "wrapped", "callback", "listener")
)
_SET_UP = re.compile(
    r"^_*(enable|disable|set|reset|clear|add|use|override|patch|define|declare|load|import"
    r"|main|shutdown|close|cleanup|teardown|export|get_or_create|build|make|pytest|watch|reload)"
    r"(_|$)"
    r"|(^|_)(register|unregister|install|uninstall|configure|config|setup|set_up|init"
    r"|initiali[sz]er?|populate|optimi[sz]e)(_|$)"
)
_TEST_FILE = re.compile(r"(^|[/\\])(conftest|_?pytest_?plugin)\.py$")
_COMMAND_LINE = re.compile(
    r"(^|[/\\])_?(cli|commands?|console|repl|autoreload|reloader|debug|__main__)([/\\]|\.py$)"
)
_AT_A_TERMINAL = frozenset(("curses", "inquirer", "prompt_toolkit", "questionary", "readline"))
"""Libraries that ask the one person at a terminal."""

_CACHE = re.compile(
    r"cache|memo(?!r)|registry|registered|interned|singleton|_instances?$|_lock|metrics|stats"
    r"|_sample|warned|warn_once"
    r"|logged|printed|reported",
    re.IGNORECASE,
)

_SAYS = re.compile(r"(^|\.|_)(warn|warning|log|debug|info|error|exception|print)$")


def is_set_up(function: FunctionNode, source: Source, program: Sources) -> bool:
    """Return whether a function most likely runs before runs do, or between them."""
    if isinstance(function, ast.AsyncFunctionDef):
        return False
    if function.name in _FILLED_AT_IMPORT:
        return True
    owner = source.parents.get(function)
    if isinstance(owner, ast.ClassDef) and is_metaclass(owner, source):
        return True
    if function.name in CONSTRUCTORS and isinstance(owner, ast.ClassDef):
        return not program.is_made_in_async(owner)
    if any(name.endswith((".setter", ".deleter")) for name in decorator_names(function, source)):
        return True
    if function.name in source.python_hooks:
        return True
    if _TEST_FILE.search(source.path):
        return True  # Between tests, not between runs.
    if is_of_a_command_line(source):
        return True
    outer = source.function_of(function)
    if outer is not None and (
        _returns_what_it_decorates(function) or is_set_up(outer, source, program)
    ):
        return True  # Only the caller of the outer one can call it.
    if _SET_UP.search(function.name):
        return not program.is_called_by_async(function, source)
    if program.runs_in_async(function):
        return False
    return returns_a_callable(function) or _returns_what_it_decorates(function)


def is_metaclass(owner: ast.ClassDef, source: Source) -> bool:
    """Return whether what a class does happens when other classes are made."""
    return any(
        (source.dotted(base) or source.called(base)).endswith(("type", "Meta"))
        for base in owner.bases
    )


def is_of_a_command_line(source: Source) -> bool:
    """Return whether a file's path or its imports say that one person at a terminal uses it."""
    return _COMMAND_LINE.search(source.path) is not None or any(
        name.partition(".")[0] in _AT_A_TERMINAL for name in source.imports.values()
    )


def _returns_what_it_decorates(function: FunctionNode) -> bool:
    names = {parameter.arg for parameter in parameters(function)} & _DECORATED
    return any(
        isinstance(node, ast.Return) and isinstance(node.value, ast.Name) and node.value.id in names
        for node in ast.walk(function)
    )


def depends_on_call(node: ast.AST, function: FunctionNode, source: Source) -> bool:
    """Return whether a part of a function has anything of its arguments, or of names around it.

    What has nothing of them is the same for every call: a pool that is set up, a queue.
    """
    own = {parameter.arg for parameter in parameters(function)}
    for one in source.own_nodes(function):
        value = one.iter if isinstance(one, ast.For | ast.AsyncFor) else getattr(one, "value", None)
        if isinstance(value, ast.AST) and _names(value) & own:
            own.update(
                inner.id
                for target in assigned_by(one)
                for inner in ast.walk(target)
                if isinstance(inner, ast.Name)
            )
    free = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and source.is_free(one)}
    return bool(free or _names(node) & own)


def _names(node: ast.AST) -> set[str]:
    return {
        one.id
        for one in ast.walk(node)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)
    }


def is_said_once(change: Change, source: Source) -> bool:
    """Return whether a change notes a warning as given: ``if x not in seen: seen.add(x); warn()``.

    Such a note only affects what is written to a log.
    """
    for outer in source.around(change.node):
        if isinstance(outer, FUNCTIONS):
            return False
        if isinstance(outer, ast.If) and ast.unparse(change.target) in ast.unparse(outer.test):
            alone = [one.value for one in outer.body if isinstance(one, ast.Expr)]
            calls = [one for one in alone if isinstance(one, ast.Call)]
            says = any(_SAYS.search(ast.unparse(call.func)) for call in calls)
            return says and len(calls) == len(alone)
    return False


def is_filled_once(change: Change, function: FunctionNode, source: Source) -> bool:
    """Return whether a plain function fills an empty table with something not from its arguments.

    ``if not TABLE: TABLE.extend(make())``: whoever comes first, everybody gets the same.
    """
    if isinstance(function, ast.AsyncFunctionDef) or uses_argument(change.node, function):
        return False
    empty = f"not {ast.unparse(change.target)}"
    return any(
        isinstance(outer, ast.If) and ast.unparse(outer.test) == empty
        for outer in source.around(change.node)
    )


def is_memo(change: Change, function: FunctionNode, source: Source) -> bool:
    """Return whether a change keeps what the function computes for a key: the same for everybody.

    ``if key not in table: table[key] = make(key)`` without an await. Not so if what is kept was
    computed from the previous value, or is a container to be filled for all, under a constant.
    """
    node = change.node
    if isinstance(node, ast.Call) and change.how == ".setdefault()" and len(node.args) == 2:
        key, value = node.args
        return not isinstance(key, ast.Constant) and not is_container(value, source)
    if not isinstance(node, ast.Assign) or isinstance(function, ast.AsyncFunctionDef):
        return False
    by_constant = any(
        isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant)
        for target in node.targets
    )
    if by_constant and is_container(node.value, source):
        return False
    if isinstance(node.value, ast.Constant) and node.value.value is not True:
        return False
    table = ast.unparse(change.target)
    if any(ast.unparse(one) == table for one in ast.walk(node.value) if isinstance(one, ast.expr)):
        return False
    keys = {
        ast.unparse(target.slice) for target in node.targets if isinstance(target, ast.Subscript)
    }
    for one in ast.walk(function):
        looked: ast.expr | None = None
        if isinstance(one, ast.Compare) and isinstance(one.ops[0], ast.In | ast.NotIn):
            looked = one.left if ast.unparse(one.comparators[0]) == table else None
        elif isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Load):
            looked = one.slice if ast.unparse(one.value) == table else None
        elif isinstance(one, ast.Call) and one.args and ast.unparse(one.func) == f"{table}.get":
            looked = one.args[0]
        if looked is not None and ast.unparse(looked) in keys:
            return True
    return False


def enters_itself(node: ast.AST, function: FunctionNode, source: Source) -> bool:
    """Return whether an object enters a list of its kind, or leaves it: ``open.add(self)``."""
    itself = first_parameter(function)
    if source.class_of(function) is None or not itself:
        return False
    given = node.args if isinstance(node, ast.Call) else [getattr(node, "value", None)]
    return any(isinstance(one, ast.Name) and one.id == itself for one in given)


def is_cache(name: str) -> bool:
    """Return whether a name says that what it holds is the same for everybody, or harmless."""
    return _CACHE.search(name) is not None
