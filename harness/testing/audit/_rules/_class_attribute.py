"""Find lists, dicts and sets in a class body that its instances change."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.testing.audit._changes import (
    REMOVALS,
    assigned_by,
    changes_in,
    is_container,
    is_undone,
)
from harness.testing.audit._finding import KEEP_IT_PER_CALL, Rule
from harness.testing.audit._rules._evidence import comes_back, is_added_by_instances
from harness.testing.audit._rules._set_up import (
    enters_itself,
    is_cache,
    is_memo,
    is_metaclass,
    is_said_once,
    is_set_up,
)
from harness.testing.audit._source_file import (
    CONSTRUCTORS,
    FUNCTIONS,
    INITIALISERS,
    Binding,
    Source,
    bindings_of,
    decorator_names,
    first_parameter,
    own_nodes,
    uses_argument,
)
from harness.testing.audit._sources import Checker, Hit, Sources

RULE = Rule(
    name="mutable-class-attribute",
    title="a container of a class body that instances change",
    why="the class has one, and every instance in every run reads and changes that one",
    fix=f"make it in __init__ if each run has an object of its own; else {KEEP_IT_PER_CALL}",
)

_ONE_OBJECT = re.compile(r"^_*(inst|instance|singleton)$", re.IGNORECASE)
_COPIED_FOR_EACH_INSTANCE = ("BaseModel", "BaseSettings", "Struct", "TypedDict", "NamedTuple")
"""How the names of base classes end that give each instance a copy of an annotated default."""


def check(source: Source, program: Sources) -> Iterator[Hit]:
    """Yield each class attribute that is changed by code that runs."""
    changes = list(changes_in(source.nodes))
    for owner in source.classes:
        if is_metaclass(owner, source):
            continue
        copied, is_model = _copies_defaults(owner, source, program)
        own = _given_to_each_instance(owner)
        for binding in bindings_of(owner.body):
            if not is_container(binding.value, source) or is_cache(binding.name):
                continue
            if binding.name in own or (copied and _is_field(binding)):
                continue
            if is_model and binding.name.startswith("_"):
                continue  # A private attribute: pydantic copies its default, annotated or not.
            for change in changes:
                if not _is_of(change.target, binding.name, owner, source):
                    continue
                function = source.method_of(change.node)
                if function is None or program.is_locked(change.node, source):
                    continue
                if is_set_up(function, source, program) and not (
                    function.name in CONSTRUCTORS and uses_argument(change.node, function, 1)
                ):
                    continue
                if is_undone(change, source) or is_memo(change, function, source):
                    continue
                if is_said_once(change, source) or change.how in REMOVALS:
                    continue  # What nobody puts in can't be taken out by another run.
                if _is_meant(binding, change.target, owner, source):
                    continue
                if enters_itself(change.node, function, source) or _has_one_object(owner):
                    continue
                symbol = f"{owner.name}.{binding.name}"
                yield Hit(
                    node=binding.node,
                    symbol=symbol,
                    message=f"{symbol} belongs to the class and is changed by "
                    f"{function.name}() in line {change.node.lineno} ({change.how})",
                    defined_at=change.node.lineno,
                    maybe=not (
                        is_added_by_instances(change, binding.annotation, source)
                        or comes_back(binding.name, change.node, function, source, program)
                    ),
                )
                break


def _has_one_object(owner: ast.ClassDef) -> bool:
    return any(_ONE_OBJECT.search(binding.name) for binding in bindings_of(owner.body))


def _is_meant(binding: Binding, target: ast.expr, owner: ast.ClassDef, source: Source) -> bool:
    """Return whether a ``ClassVar`` is changed by way of the class: its author knows."""
    if binding.annotation is None or "ClassVar" not in ast.unparse(binding.annotation):
        return False
    method = source.method_of(target)
    holder = ast.unparse(target.value) if isinstance(target, ast.Attribute) else ""
    by_class = method is not None and "classmethod" in decorator_names(method, source)
    return holder == owner.name or by_class


def _is_of(target: ast.expr, name: str, owner: ast.ClassDef, source: Source) -> bool:
    """Return whether ``target`` is the attribute ``name`` of ``owner`` or of its instances."""
    if not (isinstance(target, ast.Attribute) and target.attr == name):
        return False
    holder = target.value
    if isinstance(holder, ast.Name) and holder.id == owner.name:
        return True
    method = source.method_of(target)
    own = None if method is None else source.class_of(method)
    if method is None or not isinstance(own, ast.ClassDef):
        return False
    if own is not owner and (name in _bound_by(own) or not _inherits(own, owner, source)):
        return False
    itself = first_parameter(method)
    words = ast.unparse(holder)
    return words in (itself, f"type({itself})", f"{itself}.__class__", "__class__")


def _inherits(cls: ast.ClassDef, owner: ast.ClassDef, source: Source) -> bool:
    """Return whether a class of this file inherits from ``owner``, and nothing hides ``owner``."""
    for base in cls.bases:
        inner = source.top_classes.get(source.dotted(base))
        if inner is owner or (
            inner is not None and inner is not cls and _inherits(inner, owner, source)
        ):
            return True
    return False


def _bound_by(cls: ast.ClassDef) -> set[str]:
    return {binding.name for binding in bindings_of(cls.body)} | _given_to_each_instance(cls)


def _given_to_each_instance(owner: ast.ClassDef) -> set[str]:
    """Return the attributes that each instance gets its own copy of."""
    names: set[str] = set()
    for method in owner.body:
        if isinstance(method, FUNCTIONS) and method.name in INITIALISERS:
            itself = first_parameter(method)
            for node in own_nodes(method):
                for target in assigned_by(node):
                    if isinstance(target, ast.Attribute) and ast.unparse(target.value) == itself:
                        names.add(target.attr)
    return names


def _copies_defaults(owner: ast.ClassDef, source: Source, program: Sources) -> tuple[bool, bool]:
    """Return whether instances get copies of annotated defaults, and of private ones, too."""
    above = program.names_above(owner, source)
    copied = any(name.endswith("dataclass") for name in decorator_names(owner, source))
    return (
        copied or any(name.endswith(_COPIED_FOR_EACH_INSTANCE) for name in above),
        any(name.endswith(("BaseModel", "BaseSettings")) for name in above),
    )


def _is_field(binding: Binding) -> bool:
    return binding.annotation is not None and "ClassVar" not in ast.unparse(binding.annotation)


CLASS_ATTRIBUTE = Checker(RULE, check)
