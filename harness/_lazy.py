"""Load a folder's names when they are first used, and name the extra if a package is missing.

A folder lists such names where a type checker reads them, and again in its ``__all__``::

    if TYPE_CHECKING:
        from harness.agents._agent import Agent
    else:
        __getattr__, __dir__ = lazy(extras={"msgspec": "agents"})

Where to load them from is read from those import statements, which Python compiles although it
never runs them. The ``else`` hides ``__getattr__`` from type checkers, so that they report names
that don't exist.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from types import CodeType, MappingProxyType
from typing import Any

_NO_EXTRAS: Mapping[str, str] = MappingProxyType({})


def lazy(
    *, extras: Mapping[str, str] = _NO_EXTRAS, subject: str = "", otherwise: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make ``__getattr__`` and ``__dir__`` for the module that calls this at its top level.

    They find the names that the module imports only for type checkers. If a name needs a package
    that isn't installed, they raise an `ImportError` in the same words for every extra, with the
    package as its ``name``.

    Args:
      extras: The extra that installs each top-level package.
      subject: What needs those packages, as the user knows it; empty for the full name.
      otherwise: What to do without them, as the end of a sentence; empty for nothing.
    """
    # The module's code, not its file: it is there whatever Python loaded the module from.
    frame = sys._getframe(1)
    code, names = frame.f_code, frame.f_globals
    module = names["__name__"]

    @cache
    def sources() -> dict[str, tuple[str, str]]:
        return {name: (source, taken) for name, source, taken in _imported(code)}

    def load(name: str) -> Any:
        if name not in sources():
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        source, taken = sources()[name]
        try:
            return getattr(import_module(source), taken)
        except ModuleNotFoundError as error:
            package = error.name or ""
            # Anything else has its own, more telling words: a bug of ours, or a package that is
            # there, but in a version without that submodule.
            if package not in extras:
                raise
            what = subject or f"{module}.{name}"
            raise _missing(package, extras[package], what, otherwise) from error

    return load, lambda: sorted({*names, *sources()})


def needed(package: str, *, extra: str, subject: str) -> Any:
    """Return a package, which is imported now.

    Args:
      package: Its name.
      extra: The extra that installs it.
      subject: What needs it, as the user knows it.

    Raises:
      ImportError: if it isn't installed.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise _missing(package, extra, subject) from error


def _missing(package: str, extra: str, subject: str, otherwise: str = "") -> ImportError:
    advice = f"run: pip install 'trio-harness[{extra}]'"
    if otherwise:
        advice += f", or {otherwise}"
    return ImportError(f"{subject} needs {package}, which is not installed; {advice}", name=package)


def _imported(code: CodeType) -> Iterator[tuple[str, str, str]]:
    """Yield for each ``from source import taken as name``: the name, the source, what is taken."""
    source = taken = ""
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            source = step.argval
        elif step.opname == "IMPORT_FROM":
            taken = step.argval
        elif step.opname == "STORE_NAME" and taken:
            yield step.argval, source, taken
            taken = ""
