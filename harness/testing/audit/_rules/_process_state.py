"""Find async code that changes what the whole process shares: folder, environment, seeds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.testing.audit._changes import assigned_by, changes_by
from harness.testing.audit._finding import Rule
from harness.testing.audit._rules._evidence import is_driver
from harness.testing.audit._rules._names import qualified_name
from harness.testing.audit._rules._set_up import is_of_a_command_line, is_set_up
from harness.testing.audit._source_file import FunctionNode, Source, uses_argument
from harness.testing.audit._sources import Checker, Hit, Sources

RULE = Rule(
    name="process-state",
    title="async code that changes the folder, the environment or a seed of the process",
    why="there is one per process, and every other run works with what this one set",
    fix="pass paths, settings and a random.Random of the run's own instead",
)

_CALLS = {
    "os.chdir": "the current folder",
    "contextlib.chdir": "the current folder",
    "contextlib.redirect_stdout": "where prints go",
    "contextlib.redirect_stderr": "where errors are printed",
    "os.putenv": "the environment",
    "os.unsetenv": "the environment",
    "os.umask": "the file mode mask",
    "locale.setlocale": "the locale",
    "random.seed": "the random seed of the process",
    "numpy.random.seed": "numpy's random seed",
    "time.tzset": "the time zone",
}

_CHANGED = {
    "os.environ": "the environment",
    "sys.path": "where modules are imported from",
    "sys.argv": "the arguments of the command line",
}

_OF_THE_PROCESS = re.compile(
    r"(^|_)(a?main|a?start|a?stop|a?close|serve|shutdown|set_?up|init\w*|change_work_?dir)(_|$)"
)
"""Names of methods that begin and end a process's one server."""

_ENDS = re.compile(r"(^|_)(teardown|restore|test)(_|$)")
_ASSIGNED = {"sys.stdout": "where prints go", "sys.stderr": "where errors are printed"}


def check(source: Source, program: Sources) -> Iterator[Hit]:
    """Yield changes in async functions, which run beside others, and in what they call."""
    if is_of_a_command_line(source):
        return
    for function in source.functions:
        if not isinstance(function, ast.AsyncFunctionDef) and (
            not program.is_called_by_async(function, source) or is_set_up(function, source, program)
        ):
            continue
        said: set[str] = set()
        for node in source.own_nodes(function):
            symbol = what = ""
            if isinstance(node, ast.Call):
                symbol = source.dotted(node.func)
                what = _CALLS.get(symbol, "")
            for change in changes_by(node):
                if (name := source.dotted(change.target)) in _CHANGED:
                    symbol, what = name, _CHANGED[name]
            for target in assigned_by(node):
                if (name := source.dotted(target)) in _ASSIGNED:
                    symbol, what = name, _ASSIGNED[name]
            if _keeps_filters_while_it_waits(node, source):
                symbol, what = "warnings.catch_warnings", "which warnings are shown"
            kind = symbol.replace("stderr", "stdout")  # Both are redirected by one decision.
            if not what or kind in said or program.is_locked(node, source):
                continue
            if (symbol in _CHANGED or symbol == "os.chdir") and (
                _OF_THE_PROCESS.search(function.name) or _is_guarded(node, symbol, source)
            ):
                continue
            if not _is_the_same_for_all(node, symbol, function):
                said.add(kind)
                yield Hit(
                    node=node,
                    symbol=symbol,
                    message=f"{qualified_name(function, source)}() changes {what} for all runs "
                    f"({symbol})",
                    maybe=_begins_or_ends(function, source)
                    or program.is_run_by_its_script(function, source)
                    or _is_over_at_once(node, function, source),
                )


def _is_over_at_once(node: ast.AST, function: FunctionNode, source: Source) -> bool:
    """Return whether a ``with`` of an async function ends before another task can run."""
    block = next((one for one in source.around(node) if isinstance(one, ast.With)), None)
    return (
        isinstance(function, ast.AsyncFunctionDef)
        and block is not None
        and any(node is one.context_expr for one in block.items)
        and not any(
            isinstance(one, ast.Await | ast.AsyncFor | ast.AsyncWith | ast.Yield)
            for one in ast.walk(block)
        )
    )


def _begins_or_ends(function: FunctionNode, source: Source) -> bool:
    """Return whether a function's process is its own: it replaces it, or drives it from the top."""
    return (
        is_driver(function, source)
        or _ENDS.search(function.name) is not None
        or any(
            isinstance(node, ast.Attribute) and node.attr.startswith("exec")
            for node in ast.walk(function)
        )
    )


def _is_guarded(node: ast.AST, symbol: str, source: Source) -> bool:
    """Return whether something is added only if it isn't there: ``if path not in sys.path``."""
    return any(
        isinstance(outer, ast.If) and f" not in {symbol}" in ast.unparse(outer.test)
        for outer in source.around(node)
    )


def _is_the_same_for_all(node: ast.AST, symbol: str, function: FunctionNode) -> bool:
    """Return whether a plain function sets what doesn't depend on who calls it."""
    if isinstance(function, ast.AsyncFunctionDef) or symbol.startswith("contextlib.redirect_"):
        return False
    return not uses_argument(node, function)


def _keeps_filters_while_it_waits(node: ast.AST, source: Source) -> bool:
    return (
        isinstance(node, ast.With)
        and any(source.called(one.context_expr) == "warnings.catch_warnings" for one in node.items)
        and any(isinstance(inner, ast.Await) for inner in ast.walk(node))
    )


PROCESS_STATE = Checker(RULE, check)
