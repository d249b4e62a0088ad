"""Find the object that a path names, for the checks of what is shared on purpose."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from typing import Any

from harness._words import error_in_words
from harness.testing.isolation._watch import out_of_order


def checks_of(
    shared: Mapping[str, Callable[[Any], object]], namespaces: Mapping[str, Mapping[str, Any]]
) -> dict[str, Callable[[], object]]:
    """Return a check without arguments for each declared shared object.

    Args:
      shared: Functions by path.
      namespaces: The globals of the modules that the agent's code is in, by name.

    Raises:
      TypeError: if ``shared`` isn't a mapping from paths to functions.
      ValueError: if a path names nothing, or its object isn't in order to begin with.
    """
    if not isinstance(shared, Mapping):
        raise TypeError(f"shared= maps an object path to a function of the object, not {shared!r}")
    checks: dict[str, Callable[[], object]] = {}
    for path, function in shared.items():
        if not isinstance(path, str) or not callable(function):
            raise TypeError(
                "shared= maps an object path, as in 'module.NAME.attr', to a function that is "
                f"true while the object is in order, not {path!r} to {function!r}"
            )
        find = _finder(path, namespaces)

        def check(
            find: Callable[[], Any] = find, function: Callable[[Any], object] = function
        ) -> object:
            return function(find())

        why = out_of_order(check)
        if why is not None:
            raise ValueError(f"shared= {path!r} is not in order before any run: {why}")
        checks[path] = check
    return checks


def _finder(path: str, namespaces: Mapping[str, Mapping[str, Any]]) -> Callable[[], Any]:
    """Return a function that looks the object up each time, as another may take its place."""
    # A module's name may not be a valid start of an expression, so it is cut off first.
    modules = {**{name: vars(module) for name, module in list(sys.modules.items())}, **namespaces}
    names = sorted((n for n in modules if path.startswith(f"{n}.")), key=len, reverse=True)
    if not names:
        raise ValueError(
            f"shared= {path!r} begins with no module that is loaded; write a path as reports do, "
            f"as in 'module.NAME.attr' (the agent is in {', '.join(sorted(namespaces))})"
        )
    namespace = modules[names[0]]
    try:
        expression = ast.parse(path[len(names[0]) + 1 :], mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"shared= {path!r} is not an object path") from error

    def find() -> Any:
        return _follow(expression, namespace)

    try:
        find()
    except Exception as error:
        known = ", ".join(sorted(name for name in namespace if not name.startswith("__")))
        raise ValueError(
            f"shared= {path!r} names nothing: {error_in_words(error)}; {names[0]} has {known}"
        ) from error
    return find


def _follow(expression: ast.expr, namespace: Mapping[str, Any]) -> Any:
    if isinstance(expression, ast.Name):
        return namespace[expression.id]
    if isinstance(expression, ast.Attribute):
        return getattr(_follow(expression.value, namespace), expression.attr)
    if isinstance(expression, ast.Subscript):
        return _follow(expression.value, namespace)[ast.literal_eval(expression.slice)]
    raise ValueError("a path has names, attributes and [keys], nothing else")
