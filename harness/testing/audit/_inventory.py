"""List every piece of state that outlives a call: where it is made, and who reads and writes it.

The rules look for what is wrong; this is for a review before code is moved, so it leaves nothing
out: variables of modules, attributes of classes and of objects, defaults, variables that inner
functions rebind, and what functions cache. Values that nothing can change (numbers, texts) are
not state unless some function rebinds the name.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Literal, TypeAlias

import attrs

from harness.testing.audit._changes import assigned_by, changes_by, is_container
from harness.testing.audit._silence import silenced_lines, silences_in
from harness.testing.audit._source_file import (
    FUNCTIONS,
    INITIALISERS,
    FunctionNode,
    Source,
    bindings_of,
    decorator_names,
    defaults,
    first_parameter,
)
from harness.testing.audit._sources import Sources
from harness.testing.audit._static import read_program

Standing: TypeAlias = Literal["per call", "shared on purpose", "constant", "unknown"]

STANDINGS: tuple[Standing, ...] = ("unknown", "shared on purpose", "per call", "constant")
"""All of them, starting with what needs a look."""

_PER_CALL = re.compile(r"(^|\.)(RunLocal|ContextVar)$")
_SHARED = re.compile(
    r"(^|\.)(\w*(Lock|Limiter|Semaphore|Mutex|Condition|Event|Barrier|Counter|Cache|AppendLog)"
    r"|Capacity|Rate|Budget|Lot|open_cache|open_once)$"
)
_CONSTANT_CALLS = frozenset(
    (
        *("re.compile", "frozenset", "tuple", "int", "str", "float", "bool", "bytes", "range"),
        *("logging.getLogger", "typing.TypeVar", "typing.NewType", "typing.ParamSpec"),
        *("collections.namedtuple", "operator.attrgetter", "operator.itemgetter"),
        *("functools.partial", "pathlib.Path", "os.environ.get", "os.getenv"),
        *("datetime.timedelta", "decimal.Decimal", "types.MappingProxyType"),
    )
)
_COUNTERS_OF_VALUES = "collections.Counter"
_CACHES = frozenset(("functools.cache", "functools.lru_cache", "functools.cached_property"))


@attrs.frozen
class Use:
    """A function that reads or writes a piece of state."""

    function: str
    """Its name, as ``Agent.ask``; ``<module>`` for code that runs at import."""

    path: str
    line: int


@attrs.frozen(kw_only=True)
class State:
    """A piece of state that outlives a call."""

    symbol: str
    """``messages``, ``Agent.messages``, ``ask(history=)``."""

    kind: str
    """``"module variable"``, ``"class attribute"``, ``"instance attribute"`` and so on."""

    path: str
    line: int

    standing: Standing
    reason: str
    """Why it has this standing, in words."""

    written_by: tuple[Use, ...]
    """Who writes it after it is made."""

    read_by: tuple[Use, ...]


def inventory_paths(paths: Iterable[str | os.PathLike[str]]) -> list[State]:
    """Return all state in files, and in all Python files below folders, that outlives a call.

    Files are read and never imported; those that can't be read are left out (`audit_paths` reports
    them).

    Args:
      paths: Files and folders.

    Raises:
      FileNotFoundError: if a path doesn't exist, or a folder holds no Python file.
    """
    program, _ = read_program(paths)
    drafts = [draft for source in program.sources for draft in _drafts(source)]
    _find_uses(drafts, program)
    reasons = {source: _reasons(source) for source in program.sources}
    found = [_judged(draft, reasons) for draft in drafts if not _is_no_state(draft)]
    return sorted(found, key=lambda one: (one.path, one.line, one.symbol))


@attrs.define(eq=False)
class _Draft:
    """A piece of state, before it is known who uses it."""

    source: Source
    node: ast.AST
    symbol: str
    kind: str
    values: list[ast.expr | None]
    """Everything it is made with."""
    name: str
    owner: ast.AST | None = None
    """The class or function that it belongs to."""
    written: list[tuple[Source, ast.AST]] = attrs.field(factory=list)
    read: list[tuple[Source, ast.AST]] = attrs.field(factory=list)


# The pieces of state ---------------------------------------------------------------------------


def _drafts(source: Source) -> Iterator[_Draft]:
    seen: set[tuple[str, str]] = set()
    for draft in _all_drafts(source):
        if (draft.symbol, draft.kind) not in seen:  # Two functions can declare one nonlocal.
            seen.add((draft.symbol, draft.kind))
            yield draft


def _all_drafts(source: Source) -> Iterator[_Draft]:
    for binding in source.bindings.values():
        if not (binding.name.startswith("__") and binding.name.endswith("__")):
            yield _Draft(
                source, binding.node, binding.name, "module variable", [binding.value], binding.name
            )
    bound = set(source.bindings)
    for function in source.functions:
        for node in source.own_nodes(function):
            if isinstance(node, ast.Global):
                for name in sorted(set(node.names) - bound):
                    bound.add(name)
                    yield _Draft(source, node, name, "module variable", [], name)
        yield from _of_function(function, source)
    for owner in source.classes:
        yield from _of_class(owner, source)


def _of_function(function: FunctionNode, source: Source) -> Iterator[_Draft]:
    words = source.qualified_name(function)
    for name, default in defaults(function):
        if is_container(default, source):
            yield _Draft(
                source, default, f"{words}({name}=)", "default argument", [default], name, function
            )
    if _CACHES & decorator_names(function, source):
        yield _Draft(source, function, f"{words}()", "cache", [], function.name, function)
    for node in source.own_nodes(function):
        if isinstance(node, ast.Nonlocal):
            outer = source.function_of(function)
            while outer is not None and not set(node.names) & source.bound_in(outer):
                outer = source.function_of(outer)
            for name in node.names:
                if outer is not None:
                    symbol = f"{source.qualified_name(outer)}.{name}"
                    yield _Draft(source, node, symbol, "closure variable", [], name, outer)


def _of_class(owner: ast.ClassDef, source: Source) -> Iterator[_Draft]:
    words = source.qualified_name(owner)
    found: dict[str, _Draft] = {}
    for binding in bindings_of(owner.body):
        if binding.value is not None and not binding.name.startswith("__"):
            found[binding.name] = _Draft(
                source,
                binding.node,
                f"{words}.{binding.name}",
                f"{'instance' if _is_field(binding.value, owner, source) else 'class'} attribute",
                [binding.value],
                binding.name,
                owner,
            )
    methods = [one for one in owner.body if isinstance(one, FUNCTIONS)]
    for method in sorted(methods, key=lambda one: one.name not in INITIALISERS):
        itself = first_parameter(method)
        for node in ast.walk(method):
            for target in assigned_by(node):
                if (
                    isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and target.value.id == itself
                ):
                    draft = found.setdefault(
                        target.attr,
                        _Draft(
                            source,
                            node,
                            f"{words}.{target.attr}",
                            "instance attribute",
                            [],
                            target.attr,
                            owner,
                        ),
                    )
                    if method.name in INITIALISERS:
                        draft.values.append(getattr(node, "value", None))
    yield from found.values()


def _is_field(value: ast.expr, owner: ast.ClassDef, source: Source) -> bool:
    """Return whether a class body only declares what each instance has."""
    if _is_field_call(value, source):
        return True
    made = {name.rpartition(".")[2] for name in decorator_names(owner, source)}
    return bool(made & {"dataclass", "define", "frozen", "mutable", "attrs"})


def _is_field_call(value: ast.expr | None, source: Source) -> bool:
    return source.called(value).rpartition(".")[2] in ("field", "Field", "ib")


# Who uses it -----------------------------------------------------------------------------------


def _find_uses(drafts: list[_Draft], program: Sources) -> None:
    names: dict[tuple[Source, str], _Draft] = {}
    attributes: dict[str, list[_Draft]] = {}
    local: list[_Draft] = []
    for draft in drafts:
        if draft.kind == "module variable":
            names[draft.source, draft.name] = draft
        elif draft.kind.endswith("attribute"):
            attributes.setdefault(draft.name, []).append(draft)
        else:
            local.append(draft)
    for draft in local:
        _find_local_uses(draft)
    by_module = {
        (PurePath(source.path).stem, name): draft for (source, name), draft in names.items()
    }
    for source in program.sources:
        written = _written_in(source)
        for node in source.nodes:
            found: _Draft | None = None
            if isinstance(node, ast.Name):
                found = names.get((source, node.id)) if source.is_global(node) else None
                if found is None and node.id in source.imports:
                    module, _, name = source.imports[node.id].rpartition(".")
                    found = by_module.get((module.rpartition(".")[2], name))
            elif isinstance(node, ast.Attribute):
                found = _attribute(node, source, attributes)
                if found is None:
                    module, _, name = source.dotted(node).rpartition(".")
                    if module.partition(".")[0] in {*source.imports.values(), *source.imports}:
                        found = by_module.get((module.rpartition(".")[2], name))
            if found is not None and not _makes(node, found, source):
                # `messages.append(x)` reads the name in order to change the object.
                (found.written if node in written else found.read).append((source, node))


def _written_in(source: Source) -> set[ast.AST]:
    """Return the names and attributes that are rebound, or whose object is changed."""
    found: set[ast.AST] = set()
    for node in source.nodes:
        found.update(assigned_by(node))
        found.update(change.target for change in changes_by(node))
    return found


def _attribute(
    node: ast.Attribute, source: Source, attributes: dict[str, list[_Draft]]
) -> _Draft | None:
    """Return the attribute meant: that of the method's own class, else of the only class."""
    candidates = attributes.get(node.attr, [])
    if not candidates:
        return None
    method = source.method_of(node)
    owner = source.class_of(method) if method is not None else None
    if (
        method is not None
        and owner is not None
        and ast.unparse(node.value) in (first_parameter(method), f"type({first_parameter(method)})")
    ):
        return next((one for one in candidates if one.owner is owner), None)
    named = [one for one in candidates if ast.unparse(node.value) == getattr(one.owner, "name", "")]
    if named:
        return named[0]
    root = node.value
    if isinstance(root, ast.Name) and root.id in source.imports:
        return None  # Most likely something of a library.
    return candidates[0] if len(candidates) == 1 else None


def _find_local_uses(draft: _Draft) -> None:
    """Find who uses a default, a variable of a closure or a cache."""
    source = draft.source
    assert draft.owner is not None
    if draft.kind == "cache":
        draft.written.append((source, draft.owner))
        return
    written = _written_in(source)
    for node in ast.walk(draft.owner):
        if not (isinstance(node, ast.Name) and node.id == draft.name):
            continue
        inside = source.function_of(node)
        if draft.kind == "closure variable" and inside is draft.owner:
            continue
        (draft.written if node in written else draft.read).append((source, node))


def _makes(node: ast.AST, draft: _Draft, source: Source) -> bool:
    """Return whether this is where the piece is made rather than used."""
    if source is not draft.source:
        return False
    statement: ast.AST | None = node
    while statement is not None and not isinstance(statement, ast.stmt):
        statement = source.parents.get(statement)
    if statement is draft.node:
        return True
    if draft.kind == "module variable":
        return source.is_at_import(node) and not isinstance(getattr(node, "ctx", None), ast.Load)
    method = source.method_of(node)
    return (
        draft.kind == "instance attribute"
        and method is not None
        and method.name in INITIALISERS
        and source.class_of(method) is draft.owner
    )


# Its standing ------------------------------------------------------------------------------------


def _is_no_state(draft: _Draft) -> bool:
    """Return whether nothing can change: a name for a value, bound once."""
    if draft.written or draft.kind in ("cache", "closure variable"):
        return False
    return draft.kind != "instance attribute" and all(
        value is None or _cannot_change(value, draft.source) for value in draft.values
    )


def _cannot_change(value: ast.expr, source: Source) -> bool:
    if isinstance(value, ast.Tuple):
        return all(_cannot_change(one, source) for one in value.elts)
    if isinstance(value, ast.Call):
        return source.called(value) in _CONSTANT_CALLS
    return not is_container(value, source) and not isinstance(value, ast.Await)


def _judged(draft: _Draft, silenced: dict[Source, dict[int, str]]) -> State:
    standing, reason = _standing(draft, silenced)
    return State(
        symbol=draft.symbol,
        kind=draft.kind,
        path=draft.source.path,
        line=getattr(draft.node, "lineno", 1),
        standing=standing,
        reason=reason,
        written_by=_uses(draft.written),
        read_by=_uses(draft.read),
    )


def _standing(draft: _Draft, silenced: dict[Source, dict[int, str]]) -> tuple[Standing, str]:
    for source, node in ((draft.source, draft.node), *draft.written):
        reason = silenced[source].get(getattr(node, "lineno", 0))
        if reason is not None:
            return "shared on purpose", reason
    for value in draft.values:
        made_by = draft.source.called(value)
        if _PER_CALL.search(made_by):
            what = made_by.rpartition(".")[2]
            whose = "run" if what == "RunLocal" else "context"
            return "per call", f"a {what}: one value for each {whose}"
        if _SHARED.search(made_by) and made_by != _COUNTERS_OF_VALUES:
            return "shared on purpose", f"a {made_by.removeprefix('harness.')}"
    if draft.kind == "cache":
        return "shared on purpose", "a cache: every caller with equal arguments gets one value"
    if draft.written:
        return "unknown", "nothing says whether calls may share it"
    for value in draft.values:
        if _is_field_call(value, draft.source):
            continue
        if isinstance(value, ast.Call) and not _cannot_change(value, draft.source):
            made_by = ast.unparse(value.func)
            if "ueue" in made_by or not is_container(value, draft.source):
                return "unknown", f"its methods may change what {made_by}() has made"
    return "constant", "nothing writes it after it was made"


def _uses(places: list[tuple[Source, ast.AST]]) -> tuple[Use, ...]:
    """Return each function once, at its first use."""
    found: dict[tuple[str, str], Use] = {}
    for source, node in sorted(places, key=lambda one: (one[0].path, getattr(one[1], "lineno", 0))):
        function = node if isinstance(node, FUNCTIONS) else source.function_of(node)
        name = "<module>" if function is None else source.qualified_name(function)
        found.setdefault((source.path, name), Use(name, source.path, getattr(node, "lineno", 1)))
    return tuple(found.values())


def _reasons(source: Source) -> dict[int, str]:
    """Return the reasons that comments give, by the line that they are about."""
    return {
        line: silence.reason
        for silence in silences_in(source.text)
        for line in silenced_lines([silence], source.text)
    }
