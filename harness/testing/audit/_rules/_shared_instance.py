"""Find what a shared object's async methods keep on it: one run's state, on an object for all runs.

An object is shared if the module makes it, even in a list or dict, if a shared object makes it for
itself, if a cached function makes it, or if a function makes it once and starts tasks on it in a
loop.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.testing.audit._changes import Change, changes_by, is_signal, is_undone
from harness.testing.audit._finding import KEEP_IT_PER_CALL, Rule
from harness.testing.audit._rules._call_state import (
    LIFE_CYCLE,
    call_state,
    made_for_all,
    scopes_kept,
)
from harness.testing.audit._rules._evidence import comes_back, decides_by_it, why_it_serves_many
from harness.testing.audit._rules._set_up import is_cache
from harness.testing.audit._source_file import (
    FUNCTIONS,
    INITIALISERS,
    FunctionNode,
    Source,
    bindings_of,
    decorator_names,
    first_parameter,
    parameters,
)
from harness.testing.audit._sources import Checker, Hit, Sources
from harness.testing.audit._walk import ONE_WAY

RULE = Rule(
    name="shared-instance-state",
    title="state of a run, kept on an object that runs share",
    why="the object serves many runs at once, and after each await the attribute may hold what "
    "another run put there",
    fix=f"{KEEP_IT_PER_CALL}; or make an object for each call",
)

_PRIMITIVE = re.compile(r"(Lock|Limiter|Semaphore|Mutex|Lot|Condition|Event|Queue|Counter)$")
"""Names of things that are made to be shared, and protect themselves."""

_OF_THE_CALL = ("makes", "keeps a scope of the call as")
_RUNS_MANY = frozenset(("fan_out", "open_fan_out"))
_STARTS_TASKS = frozenset(("start_soon", "create_task", "gather", "ensure_future", "start"))


def check(source: Source, program: Sources) -> Iterator[Hit]:
    """Yield each attribute of a shared object that its async methods set or change."""
    seen: set[tuple[str, str]] = set()
    for name, line, home, owner in _shared_objects(source, program):
        used = _used_on(name, source, program)
        kept = [*_kept(home, owner, used, program), *call_state(home, owner)]
        if any(True for _ in call_state(home, owner)):
            kept += made_for_all(home, owner, program)
        for attribute, node, how, method in kept:
            if (owner.name, attribute) in seen:
                continue
            seen.add((owner.name, attribute))
            symbol = f"{name}.{attribute}"
            place = f"line {line}" if home is source else f"{source.path}:{line}"
            yield Hit(
                node=node,
                symbol=symbol,
                message=f"{owner.name}.{method.name}() {how} {symbol}, "
                f"and {name.partition('.')[0]} is shared ({place})",
                source=home,
                defined_at=line if home is source else 0,
                maybe=how not in _OF_THE_CALL
                and not _comes_back_to_users(name, attribute, method, source, program)
                and not decides_by_it(attribute, node, method, home)
                and not comes_back(attribute, node, method, home, program),
            )


def check_classes(source: Source, program: Sources) -> Iterator[Hit]:
    """Yield what a class keeps from one call, whether or not an object of it is in sight."""
    for owner in source.classes:
        kept = list(call_state(source, owner))
        if kept:
            kept += made_for_all(source, owner, program)
        seen: set[str] = set()
        serves = why_it_serves_many(owner, source, program)
        for attribute, node, how, method in kept:
            if attribute not in seen:
                seen.add(attribute)
                why = (
                    "it is one for all calls"
                    if how == "makes"
                    else "another call may do so before this one has ended"
                )
                yield Hit(
                    node=node,
                    symbol=f"{owner.name}.{attribute}",
                    message=f"{owner.name}.{method.name}() {how} {attribute} on its object, and "
                    f"{why}" + (f"; {serves}" if serves else ""),
                    maybe=not serves,
                )


# What is shared --------------------------------------------------------------------------------


def _shared_objects(
    source: Source, program: Sources
) -> Iterator[tuple[str, int, Source, ast.ClassDef]]:
    """Yield the name, the line, the file and the class of each object that runs share."""
    pending: list[tuple[str, int, Source, ast.ClassDef]] = []
    seen: set[str] = set()
    places = list(source.bindings.values())
    for owner in source.classes:
        is_copied = any(
            name.endswith(("BaseModel", "BaseSettings"))
            for name in program.names_above(owner, source)
        )  # A model's fields: each of its objects has a copy of the default.
        places += [
            one
            for one in bindings_of(owner.body)
            if isinstance(one.value, ast.Call) and not (is_copied and one.annotation is not None)
        ]
    for binding in places:
        pending += _instance(binding.name, binding.line, binding.value, source, program)
        for value in _elements_of(binding.value):
            pending += _instance(binding.name, binding.line, value, source, program)
    for function in source.functions:
        pending += _given_to_many_tasks(function, source, program)
        pending += _made_once(function, source, program)
    while pending:
        shared = pending.pop(0)
        name, line, home, owner = shared
        if owner.name in seen or name.count(".") > 3 or _PRIMITIVE.search(owner.name):
            continue
        seen.add(owner.name)
        yield shared
        for method in owner.body:
            if isinstance(method, FUNCTIONS) and method.name in INITIALISERS:
                for node in source.own_nodes(method):
                    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
                        inner = f"{name}.{node.targets[0].attr}"
                        pending += _instance(inner, line, node.value, home, program)


def _instance(
    name: str, line: int, value: ast.expr | None, source: Source, program: Sources
) -> Iterator[tuple[str, int, Source, ast.ClassDef]]:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        found = program.class_named(value.func.id, source)
        if found is not None:
            yield name, line, *found


def _elements_of(value: ast.expr | None) -> list[ast.expr]:
    """Return what a list or a dict is made with."""
    if isinstance(value, ast.Dict):
        return list(value.values)
    if isinstance(value, ast.List | ast.Tuple | ast.Set):
        return list(value.elts)
    if isinstance(value, ast.DictComp):
        return [value.value]
    return [value.elt] if isinstance(value, ast.ListComp | ast.SetComp) else []


def _made_once(
    function: FunctionNode, source: Source, program: Sources
) -> Iterator[tuple[str, int, Source, ast.ClassDef]]:
    """Yield what a cached function without arguments makes: the same object for everybody."""
    cached = {"functools.cache", "functools.lru_cache"} & set(decorator_names(function, source))
    if not cached or parameters(function):
        return
    for node in source.own_nodes(function):
        if isinstance(node, ast.Return):
            yield from _instance(f"{function.name}()", node.lineno, node.value, source, program)


def _given_to_many_tasks(
    function: FunctionNode, source: Source, program: Sources
) -> Iterator[tuple[str, int, Source, ast.ClassDef]]:
    """Yield what ``function`` makes before a loop that starts tasks on it."""
    made: dict[str, ast.Assign] = {
        node.targets[0].id: node
        for node in source.own_nodes(function)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and not _loops_around(node, function, source)
    }
    inner = {one.name: one for one in ast.walk(function) if isinstance(one, FUNCTIONS)}
    for node in source.own_nodes(function):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func).rpartition(".")[2]
        if called not in _STARTS_TASKS and called not in _RUNS_MANY:
            continue
        many = _loops_around(node, function, source) or called in _RUNS_MANY
        given = [_task_of(argument, function, source) for argument in node.args]
        for task, is_repeated in given:
            if not (many or is_repeated or [one for one, _ in given].count(task) > 1):
                continue
            for name in _objects_of(task, inner, set(made)):
                maker = made[name]
                yield from _instance(name, maker.lineno, maker.value, source, program)


def _task_of(argument: ast.expr, function: FunctionNode, source: Source) -> tuple[str, bool]:
    """Return what an argument runs, such as ``agent.run``, and whether it does so many times."""
    is_repeated = False
    if isinstance(argument, ast.Starred):  # gather(*(agent.run(x) for x in inputs))
        argument = argument.value
        if isinstance(argument, ast.Name):
            argument = _value_of(argument.id, function, source) or argument
    if isinstance(argument, ast.GeneratorExp | ast.ListComp | ast.SetComp):
        argument, is_repeated = argument.elt, True
    if isinstance(argument, ast.Call):
        argument = argument.func
    return ast.unparse(argument), is_repeated


def _value_of(name: str, function: FunctionNode, source: Source) -> ast.expr | None:
    """Return what a local variable is bound to, if it is bound once."""
    values = [
        node.value
        for node in source.own_nodes(function)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    ]
    return values[0] if len(values) == 1 else None


def _objects_of(task: str, inner: dict[str, FunctionNode], made: set[str]) -> Iterator[str]:
    """Yield the objects that a task uses: the method's, or those of a function's closure."""
    name, _, method = task.partition(".")
    if method:
        if name in made:
            yield name
    elif name in inner:
        used = {
            node.value.id
            for node in ast.walk(inner[name])
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        }
        yield from sorted(used & made)


def _loops_around(node: ast.AST, function: FunctionNode, source: Source) -> bool:
    for outer in source.around(node):
        if outer is function:
            return False
        if isinstance(outer, ast.For | ast.AsyncFor | ast.While | ast.ListComp | ast.GeneratorExp):
            return True
    return False


def _used_on(name: str, source: Source, program: Sources) -> set[str]:
    """Return the methods and attributes of a module's object that async code uses, by name."""
    used: set[str] = set()
    if name not in source.bindings:
        return used
    for other in program.sources:
        if other is not source and name not in other.imports:
            continue
        is_new = not other.is_parsed
        for function in other.functions:
            if not isinstance(function, ast.AsyncFunctionDef):
                continue
            for node in other.own_nodes(function):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    holder = other.dotted(node.value)
                    if holder == name or (other is not source and holder.endswith(f".{name}")):
                        used.add(node.attr)
        if is_new:
            other.forget()
    return used


def _comes_back_to_users(
    name: str, attribute: str, method: FunctionNode, source: Source, program: Sources
) -> bool:
    """Return whether asynchronous code calls the method that writes, and reads the attribute."""
    return {attribute, method.name} <= _used_on(name, source, program)


# What is kept on it ----------------------------------------------------------------------------


def _kept(
    source: Source, owner: ast.ClassDef, used: set[str], program: Sources
) -> Iterator[tuple[str, ast.stmt | ast.expr, str, FunctionNode]]:
    """Yield the attributes that belong to one run: attribute, place, verb and method."""
    methods = {node.name: node for node in owner.body if isinstance(node, FUNCTIONS)}
    read = _read_attributes(owner) | used
    for method in _run_methods(methods, used, source):
        itself = first_parameter(method)
        if not itself or LIFE_CYCLE.match(method.name):
            continue
        suspends = any(
            isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith) for node in ast.walk(method)
        )
        for node in source.own_nodes(method):
            for attribute, how, change in _changed_attributes(node, itself):
                if attribute not in read or is_cache(attribute) or attribute in methods:
                    continue
                if program.is_locked(node, source) or (
                    change is not None and (is_undone(change, source) or is_signal(change, source))
                ):
                    continue
                if change is None and not suspends and not _depends_on_call(node, method, itself):
                    continue
                if isinstance(node, ast.expr | ast.stmt):
                    yield attribute, node, how, method
            for attribute in scopes_kept(node, source, itself):
                if isinstance(node, ast.stmt) and not program.is_locked(node, source):
                    yield attribute, node, "keeps a scope of the call as", method


def _run_methods(
    methods: dict[str, FunctionNode], used: set[str], source: Source
) -> Iterator[FunctionNode]:
    """Yield the async methods, those in ``used``, and the plain ones that they call in turn."""
    pending: list[FunctionNode] = [
        method
        for method in methods.values()
        if isinstance(method, ast.AsyncFunctionDef)
        or (method.name in used and method.name not in INITIALISERS)
    ]
    seen = set(pending)
    while pending:
        method = pending.pop(0)
        yield method
        itself = first_parameter(method)
        for node in source.own_nodes(method):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and ast.unparse(node.func.value) == itself
            ):
                called = methods.get(node.func.attr)
                if called is not None and called not in seen and called.name not in INITIALISERS:
                    seen.add(called)
                    pending.append(called)


def _changed_attributes(node: ast.AST, itself: str) -> Iterator[tuple[str, str, Change | None]]:
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        flat = [one for target in targets for one in _elements(target)]
        for target in flat:
            if (
                isinstance(target, ast.Attribute)
                and ast.unparse(target.value) == itself
                and not _is_one_way(target.attr, node.value)
            ):
                yield target.attr, "sets", None
    for change in changes_by(node):
        target = change.target
        # A sum of numbers is a statistic: each addition is atomic, and it belongs to no run.
        if isinstance(node, ast.AugAssign) and not isinstance(node.target, ast.Subscript):
            continue
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == itself:
            yield target.attr, f"changes ({change.how})", change


def _is_one_way(attribute: str, value: ast.expr | None) -> bool:
    """Return whether an attribute is emptied, or is a flag that is set and never reset."""
    if not isinstance(value, ast.Constant):
        return False
    return value.value is None or ONE_WAY.search(attribute) is not None


def _elements(target: ast.expr) -> list[ast.expr]:
    return list(target.elts) if isinstance(target, ast.Tuple | ast.List) else [target]


def _depends_on_call(node: ast.AST, method: FunctionNode, itself: str) -> bool:
    """Return whether what is assigned comes from the arguments of the call."""
    own = {argument.arg for argument in ast.walk(method.args) if isinstance(argument, ast.arg)}
    value = getattr(node, "value", None)
    return value is not None and any(
        isinstance(one, ast.Name) and one.id in own and one.id != itself for one in ast.walk(value)
    )


def _read_attributes(owner: ast.ClassDef) -> set[str]:
    return {
        node.attr
        for node in ast.walk(owner)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


SHARED_INSTANCE = Checker(RULE, check)
CLASS_OF_CALLS = Checker(RULE, check_classes)
