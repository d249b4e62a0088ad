"""What is known about all the files of an audit together, and how a rule reports.

A rule looks at one file at a time. What one file can't say is kept here: whether a plain function
is called by asynchronous code in another file, and what an imported class looks like.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import TypeAlias

import attrs

from harness.testing.audit._changes import CHANGING_METHODS
from harness.testing.audit._finding import Rule
from harness.testing.audit._locks import is_locked
from harness.testing.audit._source_file import FunctionNode, Source

_PRIVATE_CLASS = re.compile(r"_+[A-Z]")
_KEEPS = re.compile(r"^(append\w*|add|put\w*|send\w*|insert|start\w*|create_task|gather|spawn\w*)$")
"""Names of functions that keep their arguments, or start a task with them."""

_RUNS = frozenset(("trio.run", "asyncio.run", "anyio.run"))
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.GeneratorExp, ast.SetComp)


@attrs.frozen(eq=False, kw_only=True)
class Hit:
    """What a rule found, before it is put into words for the reader."""

    node: ast.AST
    """Where."""

    symbol: str
    message: str
    source: Source | None = None
    """The file, if it isn't the one the rule was looking at."""

    defined_at: int = 0
    """The line that makes what is shared, if it is a different one; a comment there counts."""

    maybe: bool = False
    """Whether nothing shows that calls at the same time reach it."""


class Sources:
    """All the files of one audit."""

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self._classes: dict[str, Source | None] = {}
        self._imported: set[str] = set()
        self._bases: dict[tuple[Source, str], list[tuple[str, str]]] = {}
        self._calls_by_name: dict[str, set[str]] = {}
        self._callers: dict[str, set[str]] = {}
        self._called_directly: set[str] = set()
        self._called_by_name: set[str] = set()
        self._made_at_import: set[str] = set()
        self._kept: set[str] = set()
        self._made: set[str] = set()
        self._held: set[str] = set()
        self._free: set[str] = set()
        self._unheld: dict[str, set[str]] = {}

    def add(self, source: Source) -> None:
        """Take in a file, and remember what the rules ask about all files."""
        self.sources.append(source)
        self._imported.update(part for name in source.imports.values() for part in name.split("."))
        for name, owner in source.top_classes.items():
            self._classes[name] = None if name in self._classes else source
            self._bases[source, name] = _bases_of(owner, source)
        for node in source.classes:
            # Whoever makes an object runs the constructors of its class, and of those above.
            bases = {source.dotted(base).rpartition(".")[2] for base in node.bases}
            self._calls_by_name.setdefault(node.name, set()).update(bases)
        for function in source.functions:
            calls = set(_called_names(function, source))
            for name in calls:
                self._callers.setdefault(name, set()).add(function.name)
            if isinstance(function, ast.AsyncFunctionDef):
                self._called_directly |= calls
                self._called_by_name.update(_called_by_name(function, source))
            else:
                self._calls_by_name.setdefault(function.name, set()).update(calls)
        self._made_at_import.update(
            _last_name(node.func)
            for binding in source.bindings.values()
            if binding.value is not None
            for node in ast.walk(binding.value)
            if isinstance(node, ast.Call)
        )
        for inner in source.nodes:
            if isinstance(inner, ast.Call):
                self._add_call(inner, source)

    def _add_call(self, node: ast.Call, source: Source) -> None:
        name = _last_name(node.func)
        if _PRIVATE_CLASS.match(name):
            (self._made if _is_only_used_here(node, source) else self._kept).add(name)
        # Whoever is handed a function calls it when it likes.
        self._free.update(_last_name(argument) for argument in node.args)
        if is_locked(node, source):
            self._held.add(name)
        elif (caller := source.function_of(node)) is None:
            self._free.add(name)
        else:
            self._unheld.setdefault(name, set()).add(caller.name)

    @functools.cached_property
    def _called_by_async(self) -> frozenset[str]:
        return self._closure(set(self._called_directly))

    def runs_in_async(self, function: FunctionNode) -> bool:
        """Return whether a function is asynchronous, or called by such code, as far as names say.

        A call counts for every function of that name.
        """
        return isinstance(function, ast.AsyncFunctionDef) or function.name in self._called_by_async

    def callers_of(self, name: str) -> set[str]:
        """Return the names of the functions that call a function of this name, or hand it on."""
        return self._callers.get(name, set())

    def is_made_in_async(self, owner: ast.ClassDef) -> bool:
        """Return whether code that runs makes objects of this class, or of one below it."""
        return owner.name in self._called_by_async

    @property
    def made_at_import(self) -> set[str]:
        """The names of classes that a module makes an object of."""
        return self._made_at_import

    @functools.cached_property
    def called_under_locks(self) -> frozenset[str]:
        """The names of functions that are called, and only with a lock held.

        Either is enough: a lock around the call, or a caller that is itself such a function.
        """
        held, free, callers = self._held, set(self._free), self._unheld
        while True:
            found = {name for name in held | callers.keys() if callers.get(name, set()) <= held}
            # A function that only calls itself has no lock from anybody.
            found = {name for name in found - free if name in held or callers[name] - {name}}
            if found == held - free:
                return frozenset(found)
            free |= held - found
            held = found

    @functools.cached_property
    def made_for_one_call(self) -> frozenset[str]:
        """The names of private classes whose objects nobody but the function that makes one has."""
        return frozenset((self._made - self._kept) & self._classes.keys())

    def is_run_by_its_script(self, function: FunctionNode, source: Source) -> bool:
        """Return whether a script runs a function once, and nothing else knows of it.

        Its file has ``if __name__ == "__main__"`` and no other file imports it. What is under that
        condition calls the function, or hands it to ``trio.run``, or calls a function that does.
        """
        return PurePath(source.path).stem not in self._imported and _is_run_once(
            function, source, frozenset()
        )

    def is_locked(self, node: ast.AST, source: Source) -> bool:
        """Return whether ``node`` runs under a lock: its function's, or all of its callers'."""
        if is_locked(node, source):
            return True
        function = source.function_of(node)
        return function is not None and function.name in self.called_under_locks

    def is_called_by_async(self, function: FunctionNode, source: Source) -> bool:
        """Return whether asynchronous code itself calls a function of that name.

        ``tasks.add(...)`` calls a method, and no function of a module that is called ``add``.
        ``flag.set()`` calls an event's method, or anybody's, so it says nothing of this one.
        """
        if source.parents.get(function) is source.tree:
            return function.name in self._called_by_name
        if function.name in _ANYBODYS:
            return False
        return function.name in self._called_directly

    def class_named(self, name: str, source: Source) -> tuple[Source, ast.ClassDef] | None:
        """Return the class that ``name`` means in ``source``; None if that is unclear."""
        own = source.top_classes.get(name)
        if own is not None:
            return source, own
        if name in source.imports:
            original = source.imports[name].rpartition(".")[2]
            home = self._classes.get(original)
            return None if home is None else (home, home.top_classes[original])
        return None

    def names_above(self, owner: ast.ClassDef, source: Source) -> set[str]:
        """Return the names of the classes above one, as far as the files tell."""
        names: set[str] = set()
        pending = [(source, base) for base in _bases_of(owner, source)]
        seen: set[tuple[Source | None, str]] = set()
        while pending:
            home, (name, said) = pending.pop()
            names.add(name)
            above: Source | None = home
            if (home, said) not in self._bases:
                said = home.imports.get(said, "").rpartition(".")[2]
                above = self._classes.get(said)
            if above is not None and (above, said) not in seen:
                seen.add((above, said))
                pending += [(above, base) for base in self._bases[above, said]]
        return names

    def _closure(self, names: set[str]) -> frozenset[str]:
        pending = list(names)
        while pending:
            for name in self._calls_by_name.get(pending.pop(), ()):
                if name not in names:
                    names.add(name)
                    pending.append(name)
        return frozenset(names)


_ANYBODYS = CHANGING_METHODS | {"get", "set"}
"""Methods that containers, events and context variables have, too."""


def _bases_of(owner: ast.ClassDef, source: Source) -> list[tuple[str, str]]:
    """Return the last name of each base, and the first as the file says it."""
    plain = [one.value if isinstance(one, ast.Subscript) else one for one in owner.bases]
    return [
        (source.dotted(one).rpartition(".")[2], ast.unparse(one).partition(".")[0])
        for one in plain  # `Page` of `Page[Item]`
    ]


def _last_name(expression: ast.expr) -> str:
    """Return ``c`` of ``a.b.c``, whatever ``a.b`` is; "" if it has no name."""
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


def _is_run_once(function: FunctionNode, source: Source, below: frozenset[FunctionNode]) -> bool:
    uses = [
        node
        for node in source.nodes
        if isinstance(node, ast.Name) and node.id == function.name and node.id not in source.imports
    ]
    callers = [source.function_of(use) for use in uses]
    return (
        bool(uses)
        and len(set(callers)) == len(callers)
        and isinstance(source.parents.get(function), ast.Module)
        and function not in below
        and all(
            _runs_it(use, source)
            and (
                _is_run_once(caller, source, below | {function})
                if caller is not None
                else not source.is_at_import(use)
            )
            for use, caller in zip(uses, callers, strict=True)
        )
    )


def _runs_it(use: ast.Name, source: Source) -> bool:
    """Return whether a function is called here, or handed to ``trio.run``, outside a loop."""
    call = source.parents.get(use)
    return (
        isinstance(call, ast.Call)
        and (call.func is use or source.dotted(call.func) in _RUNS)
        and not any(isinstance(outer, _LOOPS) for outer in source.around(use))
    )


def _is_only_used_here(made: ast.Call, source: Source) -> bool:
    """Return whether an object is kept in a local variable only, or not at all."""
    function = source.function_of(made)
    parent = source.parents.get(made)
    if function is None or isinstance(parent, ast.Attribute):  # _Bulk(...).execute()
        return function is not None
    if not (isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name)):
        return False
    name = parent.targets[0].id
    uses = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
    ]
    return not any(_is_handed_on(use, source) for use in uses)


def _is_handed_on(use: ast.Name, source: Source) -> bool:
    """Return whether a use of a variable may let somebody else keep what is in it."""
    parent = source.parents.get(use)
    if isinstance(parent, ast.Call) and use in parent.args:
        return _KEEPS.search(_last_name(parent.func)) is not None
    return not isinstance(parent, ast.Attribute)


def _called_by_name(function: FunctionNode, source: Source) -> Iterator[str]:
    """Yield what a function calls by its own name or a module's, or hands to another."""
    for node in source.own_nodes(function):
        if not isinstance(node, ast.Call):
            continue
        for one in (node.func, *node.args):
            if isinstance(one, ast.Name):
                yield one.id
            elif isinstance(one, ast.Attribute) and ast.unparse(one.value) in source.imports:
                yield one.attr


def _called_names(function: FunctionNode, source: Source) -> Iterator[str]:
    for node in source.own_nodes(function):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.func.id
            elif isinstance(node.func, ast.Attribute):
                yield node.func.attr
            # `nursery.start_soon(work)` and `to_thread.run_sync(save)` call their argument.
            for argument in node.args:
                if isinstance(argument, ast.Name):
                    yield argument.id
                elif isinstance(argument, ast.Attribute):
                    yield argument.attr


Check: TypeAlias = Callable[[Source, Sources], Iterator[Hit]]
"""A rule's code: yields everything it finds in one file."""


@attrs.frozen(eq=False)
class Checker:
    """A rule and its code."""

    rule: Rule
    check: Check
