"""Find what code gets at through the names in it.

These are globals of its own module and of the modules that it has as globals or imports itself and,
through some of Python's own modules and functions, states of the whole process: the environment,
the working directory, where prints go.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Iterable
from typing import Any

from harness.testing._users_code import is_users_file, is_users_module
from harness.testing.objects._code import Import, is_users_class, names_used
from harness.testing.objects._kinds import BY_THING, STATES, ProcessState, Walker
from harness.testing.objects._parts import ClassPart, NamesPart, Part, is_dunder
from harness.testing.objects._places import Place, place_of_definition

_OWN_GROUND = {"harness", "trio", "outcome", "attr", "attrs", "pytest"}
"""Packages of which each run has its own part, such as a loop, or that hold nothing of it."""


class Named:
    """The globals, modules and process states that the code in a walk names."""

    def __init__(self, walk: Walker, *, may_import: bool) -> None:
        self._walk = walk
        self._may_import = may_import
        self._globals: dict[int, NamesPart] = {}
        self._states: set[ProcessState] = set()
        self._modules: list[dict[str, Any]] = []
        self._classes: dict[int, ClassPart] = {}
        self._libraries: dict[str, None] = {}

    def namespaces(self) -> dict[str, dict[str, Any]]:
        """Return the globals of the modules whose code was looked at, by name."""
        return {str(names.get("__name__", "__main__")): names for names in self._modules}

    def other_states(self) -> list[Part]:
        """Return the states of the process that no code was seen to get at by name."""
        states = [state for state in STATES if state not in self._states]
        return [state.part() for state in states if state.part is not None]

    def followed(self) -> dict[int, set[str]]:
        """Return the names of globals that are watched, by the id of their module's dict."""
        return {key: part.names or set() for key, part in self._globals.items()}

    def not_looked_at(self) -> list[str]:
        """Return which libraries' own objects no walk looks at, in words."""
        return [f"{name} (objects in its own modules)" for name in self._libraries]

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
                self._foreign_class(names[name], used.attributes_written)
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
          code: The code that uses it: only what it uses is looked at. None: everything, if the
            module is the user's.
        """
        if not isinstance(module, types.ModuleType):
            return
        if code is not None:
            used = names_used(code)
            self._module(module, used.attributes, used.attributes_written)
        elif is_users_module(module.__name__):
            self._module(module, [name for name in vars(module) if not is_dunder(name)], ())

    def by_thing(self, thing: Any) -> bool:
        """Look at the process state that one of Python's own objects is about, if any."""
        known = BY_THING.get(id(thing))
        if known is not None:
            self._state(known[1])
        return known is not None

    def _state(self, state: ProcessState) -> None:
        if state.part is None:
            for name in state.names:
                self._global(vars(state.module), state.module.__name__, name)
        elif state not in self._states:
            self._states.add(state)
            self._walk.parts.append(state.part())

    def _global(self, names: dict[str, Any], module: str, name: str) -> None:
        value = names[name]
        place = Place(f"{module}.{name}")
        if not isinstance(value, types.FunctionType | type | types.ModuleType):
            self._bindings(names, module).add(name)
            self._walk.hang(self._globals[id(names)], name, value, place, 0)
        elif not isinstance(value, types.ModuleType):
            self._walk.push(value, place, 0)

    def _bindings(self, names: dict[str, Any], module: str) -> set[str]:
        """Return the set of a module's watched globals, to add names to."""
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
        states = [state for state in STATES if state.module is module]
        for state in states:
            if not state.names or not set(state.names).isdisjoint(used):
                self._state(state)
        if states:
            return
        if is_users_module(name):
            if written:
                self._bindings(names, name).update(written)
            for attribute in (*used, *written):
                if attribute not in names:
                    continue
                value = names[attribute]
                self._global(names, name, attribute)
                if isinstance(value, types.ModuleType) and id(value) not in self._walk.seen:
                    self._walk.seen[id(value)] = value
                    self._module(value, used, written)
        else:
            package = name.partition(".")[0]
            if package not in sys.stdlib_module_names | _OWN_GROUND:
                self._libraries[package] = None
            for attribute in used:
                self.by_thing(names.get(attribute))
                self._foreign_class(names.get(attribute), written)
            if written:
                self._bindings(names, name).update(written)

    def _foreign_class(self, cls: Any, written: Iterable[str]) -> None:
        """Look at those attributes of somebody else's class that the user's code may set."""
        if not isinstance(cls, type) or is_users_class(cls) or not written:
            return
        part = self._classes.get(id(cls))
        if part is None:
            part = self._classes[id(cls)] = ClassPart(place_of_definition(cls), cls, set())
            self._walk.parts.append(part)
        assert part.names is not None
        part.names.update(written)


def _imported(
    wanted: Import, names: dict[str, Any], *, may_import: bool
) -> types.ModuleType | None:
    """Return the module that a function imports, if it is the user's.

    If it hasn't been imported yet, it is imported here, if that is allowed: otherwise what a first
    run leaves in it couldn't be told from how it starts.
    """
    try:
        package = str(names.get("__package__") or "")
        name = importlib.util.resolve_name("." * wanted.level + wanted.module, package)
        if name not in sys.modules and may_import:
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.origin is not None and is_users_file(spec.origin):
                return importlib.import_module(name)
        return sys.modules.get(name)
    except Exception:  # The function will meet the same error, or imports this only at other times.
        return None
