"""Find async code that changes what the whole process shares: folder, environment, seeds."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.testing.audit._changes import assigned_by, changes_by
from harness.testing.audit._finding import Rule
from harness.testing.audit._program import Checker, Hit, Program
from harness.testing.audit._rules._names import qualified_name
from harness.testing.audit._source import Source

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

_ASSIGNED = {"sys.stdout": "where prints go", "sys.stderr": "where errors are printed"}


def check(source: Source, program: Program) -> Iterator[Hit]:
    """Yield changes in async functions, which run beside others."""
    for function in source.functions:
        if not isinstance(function, ast.AsyncFunctionDef):
            continue
        for node in source.own_nodes(function):
            symbol = what = ""
            if isinstance(node, ast.Call):
                symbol = source.dotted(node.func)
                what = _CALLS.get(symbol, "")
            for change in changes_by(node):
                if source.dotted(change.target) == "os.environ":
                    symbol, what = "os.environ", "the environment"
            for target in assigned_by(node):
                if (name := source.dotted(target)) in _ASSIGNED:
                    symbol, what = name, _ASSIGNED[name]
            if what:
                yield Hit(
                    node=node,
                    symbol=symbol,
                    message=f"{qualified_name(function, source)}() changes {what} for all runs "
                    f"({symbol})",
                )


PROCESS_STATE = Checker(RULE, check)
