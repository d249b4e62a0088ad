"""Find function caches around coroutines, which can be awaited only once."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.testing.audit._finding import Rule
from harness.testing.audit._rules._names import qualified_name
from harness.testing.audit._source_file import Source, decorator_names
from harness.testing.audit._sources import Checker, Hit, Sources

RULE = Rule(
    name="cached-coroutine",
    title="functools.cache around an async function",
    why="what is cached is the coroutine, not its result: the second caller awaits one that has "
    "ended, or that another task is still running",
    fix="use harness.shared.open_cache, which makes one call for all who ask",
)

_CACHES = frozenset(("functools.lru_cache", "functools.cache", "functools.cached_property"))


def check(source: Source, program: Sources) -> Iterator[Hit]:
    """Yield async functions under a cache meant for plain ones."""
    for function in source.functions:
        if isinstance(function, ast.AsyncFunctionDef):
            for name in sorted(decorator_names(function, source) & _CACHES):
                symbol = qualified_name(function, source)
                yield Hit(
                    node=function,
                    symbol=symbol,
                    message=f"{name} keeps the coroutine of {symbol}() instead of its result",
                    defined_at=function.decorator_list[0].lineno,
                )


CACHED_COROUTINE = Checker(RULE, check)
