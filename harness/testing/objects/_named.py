"""Find what code gets at by the names that stand in it.

These are globals of its own module, of the modules that it has as globals or imports itself, and by
way of some of Python's own modules and functions a state of the whole process: the environment,
the working directory, where prints go.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from harness.testing.objects._code import Import, is_users_file, is_users_module, names_used
from harness.testing.objects._parts import KeyedPart, NamesPart, Part, is_dunder
from harness.testing.objects._places import Place
from harness.testing.objects._special import (
    EnvironmentPart,
    WarningFiltersPart,
    global_random_part,
    working_directory_part,
)


class Walk(Protocol):
    """The walk through objects that what is named here is given to."""

    parts: list[Part]
    seen: dict[int, Any]

    def push(self, thing: Any, place: Place, foreign_levels: int, /) -> None:
        """Look at an object later."""

    def held(self, holder: KeyedPart, key: Any, value: Any, place: Place, /) -> None:
        """Look at what can be put back only by way of what holds it."""


class Named:
    """Globals, modules and states of the process that the code of a walk names."""

    def __init__(self, walk: Walk, *, may_import: bool) -> None:
        self._walk = walk
        self._may_import = may_import
        self._globals: dict[int, NamesPart] = {}
        self._process: set[str] = set()
        self._modules: list[dict[str, Any]] = []

    def namespaces(self) -> dict[str, dict[str, Any]]:
        """Return the globals of the modules whose code was looked at, by name."""
        return {str(names.get("__name__", "__main__")): names for names in self._modules}

    def in_code(self, code: types.CodeType, names: dict[str, Any]) -> None:
        """Look at what some code names; ``names`` are the globals of its module."""
        if not any(names is known for known in self._modules):
            self._modules.append(names)
        module = str(names.get("__name__", "__main__"))
        used = names_used(code)
        for name in used.globals:
            if name in names:
                self._global(names, module, name)
                self.in_module(names[name], code)
        for name in used.globals_written:
            self._bindings(names, module).add(name)
        for wanted in used.imports:
            imported = _imported(wanted, names, may_import=self._may_import)
            if imported is not None:
                self._module(imported, (*wanted.names, *used.attributes), used.attributes_written)

    def in_module(self, module: Any, code: types.CodeType | None = None) -> None:
        """Look into a module, and at nothing else.

        Args:
          module: What may be one; anything else is left alone.
          code: What uses it: only that is looked at. None: all, if the module is the user's.
        """
        if not isinstance(module, types.ModuleType):
            return
        if code is not None:
            used = names_used(code)
            self._module(module, used.attributes, used.attributes_written)
        elif is_users_module(module.__name__):
            self._module(module, [name for name in vars(module) if not is_dunder(name)], ())

    def by_function(self, function: Any) -> bool:
        """Look at the state of the process that one of Python's own functions is about, if any."""
        state = _STATES.get(id(function))
        if state is not None:
            self.in_process(*state)
        return state is not None

    def in_process(self, module: str, *names: str) -> None:
        """Look at the states of the process that are behind these names of a module of Python's."""
        for name in names:
            if module == "sys" and name in _OF_SYS:
                self._global(sys.__dict__, "sys", name)
                continue
            state = _PARTS.get((module, name))
            if state is not None and state not in self._process:
                self._process.add(state)
                self._walk.parts.append(_PART_OF[state]())

    def _global(self, names: dict[str, Any], module: str, name: str) -> None:
        value = names[name]
        place = Place(f"{module}.{name}")
        if not isinstance(value, types.FunctionType | type | types.ModuleType):
            self._bindings(names, module).add(name)
            self._walk.held(self._globals[id(names)], name, value, place)
        if not isinstance(value, types.ModuleType):
            self._walk.push(value, place, 0)

    def _bindings(self, names: dict[str, Any], module: str) -> set[str]:
        """Return the names of a module's globals that are watched, a set to add to."""
        part = self._globals.get(id(names))
        if part is None:
            part = NamesPart(Place(module), "module global", names, lambda: names, set())
            self._globals[id(names)] = part
            self._walk.parts.append(part)
        assert part.names is not None
        return part.names

    def _module(
        self, module: types.ModuleType, used: Iterable[str], written: Iterable[str]
    ) -> None:
        """Look at what the user's code uses of a module that it has by name."""
        name = module.__name__
        names = vars(module)
        if name in _PROCESS_MODULES:
            if name == "random":
                used = ("seed",)  # There is one state, whatever the code does with it.
            self.in_process(name, *used)
        elif name == "contextlib":
            for attribute in used:
                self.by_function(names.get(attribute))
        elif is_users_module(name):
            for attribute in (*used, *written):
                if attribute not in names:
                    continue
                value = names[attribute]
                self._global(names, name, attribute)
                if isinstance(value, types.ModuleType) and id(value) not in self._walk.seen:
                    self._walk.seen[id(value)] = value
                    self._module(value, used, written)
        else:
            for attribute in written:
                if attribute in names and not isinstance(names[attribute], types.FunctionType):
                    self._bindings(names, name).add(attribute)


def _imported(
    wanted: Import, names: dict[str, Any], *, may_import: bool
) -> types.ModuleType | None:
    """Return the module that a function imports, if it is the user's.

    One that nobody has imported yet is, where that is allowed: what a first run leaves in it could
    not be told from how it begins.
    """
    try:
        package = str(names.get("__package__") or "")
        name = importlib.util.resolve_name("." * wanted.level + wanted.module, package)
        if name not in sys.modules and may_import:
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.origin is not None and is_users_file(spec.origin):
                return importlib.import_module(name)
        return sys.modules.get(name)
    except Exception:  # The function will meet it as well, or imports this only at other times.
        return None


_OF_SYS = frozenset({"stdin", "stdout", "stderr", "path", "argv"})
"""What is watched in ``sys`` as globals of a module are."""

_PARTS = {
    ("random", "seed"): "random",
    **{("os", name): "environment" for name in ("environ", "getenv", "putenv", "unsetenv")},
    **{("os", name): "working directory" for name in ("chdir", "getcwd", "fchdir")},
    **{
        ("warnings", name): "filters of warnings"
        for name in ("filters", "catch_warnings", "simplefilter", "filterwarnings", "resetwarnings")
    },
}
"""Which state of the process is behind a name of a module."""

_PART_OF: dict[str, Callable[[], Part]] = {
    "random": global_random_part,
    "environment": EnvironmentPart,
    "working directory": working_directory_part,
    "filters of warnings": WarningFiltersPart,
}
"""What watches a state of the process, and puts it back."""

_PROCESS_MODULES = frozenset({"random", "os", "sys", "warnings"})
"""Modules of Python's with states of the process in them, which are looked for by name."""

_STATES = {
    id(thing): state
    for thing, state in (
        *((function, ("os", "environ")) for function in (os.getenv, os.putenv, os.unsetenv)),
        *((function, ("os", "getcwd")) for function in (os.chdir, os.getcwd)),
        (contextlib.chdir, ("os", "getcwd")),
        (contextlib.redirect_stdout, ("sys", "stdout")),
        (contextlib.redirect_stderr, ("sys", "stderr")),
        (warnings.catch_warnings, ("warnings", "filters")),
        (warnings.simplefilter, ("warnings", "filters")),
        (warnings.filterwarnings, ("warnings", "filters")),
    )
}
"""Python's own functions by which code gets at a state of the whole process, and at which."""
