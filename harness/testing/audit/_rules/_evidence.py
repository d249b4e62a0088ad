"""Tell which findings have something in the code that says several calls meet there.

A rule finds state that outlives a call. Whether calls at the same time reach it is another
question, which one file can't answer for sure: a class of a library may have an object for each
connection, or one for the process. What is asked here is what the code shows of it: a lock
elsewhere in the class, keys that callers give, an object that a module makes, a name such as
``Client``. A finding without any of it is a *maybe*.
"""

from __future__ import annotations

import ast
import re

from harness.testing.audit._changes import CHANGING_METHODS, Change, changes_by
from harness.testing.audit._locks import is_locked
from harness.testing.audit._rules._call_state import LIFE_CYCLE
from harness.testing.audit._rules._set_up import is_of_a_command_line
from harness.testing.audit._source_file import (
    CONSTRUCTORS,
    FUNCTIONS,
    FunctionNode,
    Source,
    first_parameter,
    parameters,
    uses_argument,
)
from harness.testing.audit._sources import Sources

_SERVES_MANY = re.compile(
    r"(Client|Pool|Manager|Store|Storage|Cache|Broker|Bus|Registry|Server|Provider|Service|Backend"
    r"|Bot|App|Application|Orchestrator|Connector|Runtime|Router|Scheduler|Repository|A[Pp][Ii]|Aggregator"
    r"|Gateway|Database|D[Bb]|Cluster|Limiter|Extension|Toolkit|Toolset|Tools|Model|LLM|Agent|Memory"
    r"|Auth|Credentials?|Adapter|Proxy|Hub|Factory|Controller|Declarer|RPC|Executor|Embeddings?)"
    r"(V?\d+|Impl|Base|Mixin|Methods)?$"
)
"""How the classes are called that usually have one object, for all callers."""

_SERVES_ONE = re.compile(
    r"(Request|Response|Message|Msg|Event|Context|Ctx|Handle|Engine|Run|Turn|Execution|Task|Job"
    r"|Step|Transport|Stream|Element|Widget|Screen|View|Page|Loop|Monitor|Listener|Watcher"
    r"|Restarter|Consumer|Worker|Builder|Result|Entity|Operation|Transaction|Delivery|Observer"
    r"|Delegate|Getter|ContextManager|Resource|State|Test|Case|Mock|Session|Pipeline|Subscription)(V?\d+|Impl|Base|Mixin)?$"
)
"""How the classes are called whose objects belong to one call or one task."""

_ADDITIONS = frozenset(
    (".append()", ".appendleft()", ".add()", ".extend()", ".insert()", ".update()")
)
_LOCKS = re.compile(r"(^|\.)(R?Lock|(Bounded)?Semaphore|Condition|CapacityLimiter|Mutex)$")
_DRIVES = re.compile(
    r"^_*(a?main|a?run)(_once)?$|_(main|task|loop|forever)$|^_*listen(_|$)"
    r"|^_*(run_)?(worker|listener)$"
    r"|(^|_)(poll|heartbeat|monitor|watch|process_(\w+_)?messages?)(_|$)"
)
"""Names of methods in which an object's one task spends its life."""

_HARMLESS_TWICE = re.compile(r"cache(?!d)|warned|warning|logged", re.IGNORECASE)
_WHOEVER_IS_FIRST = re.compile(r"(^|_)a?(ensure|get_or_create|lazy)(_|$)")
_LOOKS_UP = re.compile(
    r"^_*(a?get|fetch|find|read|look_?up|resolve|query|retrieve|describe|list|search|load|wait"
    r"|poll|measure|check|detect|compute|count|discover|is|has|latest|newest|current)(_|$)"
)
_READS = re.compile(r"^_*(find|read|look_?up|list|load|is|has|count|describe)(_|$)")
_EXPENSIVE = re.compile(
    r"token|credential|secret|auth|session|client|conn|pool|channel|socket|sandbox|browser|process"
    r"|server|container|lease|(?<![bc])lock|thread",
    re.IGNORECASE,
)
_TABLE = re.compile(r"_(map|dict|table|list|data|info|by_\w+)$")


def comes_back(
    name: str, node: ast.AST, function: FunctionNode, source: Source, program: Sources
) -> bool:
    """Return whether a call reads what it wrote, after others could have written theirs.

    It does if it waits in between, in this function or in the one that calls it. It needn't wait
    if it adds to what is there: then it reads what earlier calls added, too.

    Args:
      name: What is written: the last part of its path.
      node: The statement or call that writes.
      function: What contains it.
      source: Its file.
      program: All files.
    """
    owner = source.parents.get(function)
    is_made = (
        function.name in CONSTRUCTORS
        and isinstance(owner, ast.ClassDef)
        and program.is_made_in_async(owner)
    )
    if (
        not (is_made or program.runs_in_async(function))
        or is_driver(function, source)
        or is_of_a_command_line(source)
    ):
        return False
    if _keeps_an_argument(node, function):
        return True
    if _is_keyed(node) and not _is_keyed_by_caller(node, function):
        return False
    here = _place(node, last=True)
    reads = _reads_of(name, function, source)
    waits = _waits_in(function)
    if any(here < wait < read for wait in waits for read in reads) or any(
        isinstance(loop, ast.For | ast.AsyncFor | ast.While)
        and _waits_in(loop)
        and _reads_of(name, loop, source)
        for loop in source.around(node)
        if source.function_of(loop) is function
    ):
        return True
    if any(
        _place(loop, last=False) > here and _waits_in(loop) and _reads_of(name, loop, source)
        for loop in source.own_nodes(function)
        if isinstance(loop, ast.For | ast.AsyncFor | ast.While)
    ):
        return True
    adds = _adds_for_all(node, function)
    if (
        adds
        and isinstance(function, ast.AsyncFunctionDef)
        and (any(here < read for read in reads) or (reads and waits))
    ):
        return True
    if _is_keyed(node):
        return False
    readers = {
        other.name
        for other in source.functions
        if other is not function and _reads_of(name, other, source)
    }
    if any(
        here < place and (adds or isinstance(other, ast.AsyncFunctionDef) or waits)
        for other, place in _calls_of(readers, function, source)
    ):
        return True
    called = owner.name if isinstance(owner, ast.ClassDef) else function.name
    called = called if function.name in CONSTRUCTORS else function.name
    return any(
        _goes_on_to_read(called, name, readers, caller, source, adds)
        for caller in source.functions
        if caller is not function and program.runs_in_async(caller)
    )


def _keeps_an_argument(node: ast.AST, function: FunctionNode) -> bool:
    """Return whether an async function puts its caller's object where there is room for one."""
    return (
        isinstance(function, ast.AsyncFunctionDef)
        and isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Name)
        and node.value.id in {one.arg for one in parameters(function)}
        and not any(isinstance(target, ast.Subscript) for target in node.targets)
    )


def decides_by_it(name: str, node: ast.AST, method: FunctionNode, source: Source) -> bool:
    """Return whether a method of a shared object reads and writes an attribute, and waits.

    ``if self.busy: raise ...; self.busy = True; await ...; self.busy = False``.
    """
    return bool(not _is_keyed(node) and _reads_of(name, method, source) and _waits_in(method))


def _goes_on_to_read(
    writer: str, name: str, readers: set[str], caller: FunctionNode, source: Source, adds: bool
) -> bool:
    """Return whether a function calls the one that writes, and then reads, or calls who does."""
    calls = [
        _place(node, last=True)
        for node in source.own_nodes(caller)
        if isinstance(node, ast.Call) and _last_name(node.func) == writer
    ]
    if not calls or not (adds or _waits_in(caller)):
        return False
    later = [*_reads_of(name, caller, source)]
    later += [place for _, place in _calls_of(readers - {writer}, caller, source)]
    return any(call < place for call in calls for place in later)


def _calls_of(
    names: set[str], function: FunctionNode, source: Source
) -> list[tuple[FunctionNode, tuple[int, int]]]:
    """Return the functions of these names in the file that a function calls, and where."""
    named = {one.name: one for one in source.functions if one.name in names}
    return [
        (named[name], _place(node, last=False))
        for node in source.own_nodes(function)
        if isinstance(node, ast.Call) and (name := _last_name(node.func)) in named
    ]


def _reads_of(name: str, scope: ast.AST, source: Source) -> list[tuple[int, int]]:
    """Return where a name or an attribute is read, other than to change it or to measure it."""
    found: list[tuple[int, int]] = []
    for node in ast.walk(scope):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            outer = source.parents.get(node)
            if _last_name(node) != name:
                continue
            if isinstance(outer, ast.Attribute) and outer.attr in CHANGING_METHODS:
                called = source.parents.get(outer)
                if isinstance(source.parents.get(called or outer), ast.Expr):
                    continue
            if isinstance(outer, ast.Subscript) and not isinstance(outer.ctx, ast.Load):
                continue
            if isinstance(outer, ast.Compare) and node is not outer.left:
                continue
            if (
                isinstance(outer, ast.Call)
                and ast.unparse(outer.func) == "len"
                and isinstance(source.parents.get(outer), ast.Compare)
            ):
                continue
            found.append(_place(node, last=False))
    return found


def _waits_in(scope: ast.AST) -> list[tuple[int, int]]:
    return [
        _place(node, last=isinstance(node, ast.Await))
        for node in ast.walk(scope)
        if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith | ast.Yield)
    ]


def _adds_for_all(node: ast.AST, function: FunctionNode) -> bool:
    """Return whether something of the call is added to what all calls read as a whole."""
    return (
        any(change.how in _ADDITIONS for change in changes_by(node))
        and isinstance(node, ast.Call)
        and (uses_argument(node, function) or function.name in CONSTRUCTORS)
    )


def _is_keyed(node: ast.AST) -> bool:
    """Return whether a write is to an entry of its own, under a key that isn't a constant."""
    return any(
        isinstance(target, ast.Subscript) and not isinstance(target.slice, ast.Constant)
        for target in getattr(node, "targets", [getattr(node, "target", None)])
    )


def is_added_by_instances(change: Change, annotation: ast.expr | None, source: Source) -> bool:
    """Return whether an instance adds to a list of its class as if it were its own."""
    method = source.method_of(change.node)
    return (
        method is not None
        and (annotation is None or "ClassVar" not in ast.unparse(annotation))
        and isinstance(change.target, ast.Attribute)
        and ast.unparse(change.target.value) == first_parameter(method)
        and not _is_keyed(change.node)
        and (
            uses_argument(change.node, method, 1)
            or change.how.endswith("] +=")
            or _adds_what_it_made(change.node)
        )
        and "classmethod" not in {ast.unparse(one) for one in method.decorator_list}
    )


def _adds_what_it_made(node: ast.AST) -> bool:
    """Return whether more than constants is given to a call that adds."""
    given = node.args if isinstance(node, ast.Call) else []
    return any(isinstance(one, ast.Name) for argument in given for one in ast.walk(argument))


def _place(node: ast.AST, *, last: bool) -> tuple[int, int]:
    if last:
        return getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0)
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def why_several_decide(
    path: str, act: ast.AST, function: FunctionNode, source: Source, program: Sources
) -> str:
    """Say what shows that several tasks take this decision, and that it matters; "" if nothing.

    Args:
      path: What is looked at, and written: ``self.token``.
      act: The write.
      function: What contains both.
      source: Its file.
      program: All files.
    """
    method = source.method_of(function) or function
    owner = source.class_of(method)
    attribute = path.rpartition(".")[2]
    if (
        _only_looks_up(path, act, function, source)
        or _notes_that_it_looked(act, source)
        or _keeps_what_it_found(path, act, function, source)
        or (isinstance(act, ast.Assign) and _HARMLESS_TWICE.search(attribute))
        or is_of_a_command_line(source)
    ):
        return ""
    if owner is None or not path.startswith(f"{first_parameter(method)}."):
        return "all tasks share it"
    if _is_driven_by_one(method, owner, source, program) or _is_called_under_lock(
        method, owner, source
    ):
        return ""
    if _SERVES_ONE.search(owner.name) and owner.name not in program.made_at_import:
        return ""
    if not owner.name.endswith("Agent") and (why := why_it_serves_many(owner, source, program)):
        return why
    if _WHOEVER_IS_FIRST.search(method.name):
        return "its name says that whoever comes first does it"
    if _is_keyed_by_caller(act, function):
        return "callers give the key, and two can give the same"
    if _opens(attribute, act):
        return "two callers would open one each, and one would be lost"
    return "an addition in between would be lost" if _counts_up(act) else ""


def why_it_serves_many(owner: ast.ClassDef, source: Source, program: Sources) -> str:
    """Say what shows that an object of a class serves several calls at once; "" if nothing."""
    if owner.name in program.made_at_import:
        return f"a module makes one {owner.name} for all"
    if _SERVES_ONE.search(owner.name):
        return ""
    if _SERVES_MANY.search(owner.name):
        return f"by its name, one {owner.name} serves many callers"
    if _has_a_lock(owner, source):
        return f"{owner.name} has a lock for other code, so several tasks use it"
    return ""


def _counts_up(act: ast.AST) -> bool:
    """Return whether an amount is added to, or set to what it was and something more."""
    value = getattr(act, "value", None)
    if isinstance(act, ast.AugAssign):
        return not isinstance(value, ast.Constant)
    return isinstance(act, ast.Assign) and isinstance(value, ast.BinOp)


def _opens(attribute: str, act: ast.AST) -> bool:
    """Return whether what is kept is a connection or the like that this opens."""
    return (
        isinstance(act, ast.Assign)
        and _EXPENSIVE.search(attribute) is not None
        and isinstance(act.value, ast.Await)
    )


def _has_a_lock(owner: ast.ClassDef, source: Source) -> bool:
    return any(
        isinstance(node, ast.Call) and _LOCKS.search(source.dotted(node.func))
        for node in ast.walk(owner)
    )


def _is_keyed_by_caller(act: ast.AST, function: FunctionNode) -> bool:
    """Return whether what is written is an entry under a key that the caller gives."""
    given = {one.arg for one in parameters(function)} - {"self", "cls"}
    keys: list[ast.expr] = []
    for change in changes_by(act):
        node = change.node
        if isinstance(node, ast.Call):
            keys += node.args[:1]
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        keys += [one.slice for one in targets if isinstance(one, ast.Subscript)]
    return any(
        isinstance(one, ast.Name) and one.id in given for key in keys for one in ast.walk(key)
    )


def _only_looks_up(path: str, act: ast.AST, function: FunctionNode, source: Source) -> bool:
    """Return whether data is fetched and kept: who fetches it twice gets the same twice."""
    value = getattr(act, "value", None)
    if not isinstance(act, ast.Assign) or value is None:
        return False
    made: list[str] = []
    pending: list[ast.AST] = [value]
    seen: set[str] = set()
    while pending:
        one = pending.pop()
        made += _awaited_names(one)
        names = {name.id for name in ast.walk(one) if isinstance(name, ast.Name)} - seen
        seen |= names
        pending += [
            node.value
            for node in source.own_nodes(function)
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in names
        ]
    # A token that is fetched or got is a new one; what is read is the one that there is.
    looks = _READS if _EXPENSIVE.search(path) else _LOOKS_UP
    return bool(made) and all(looks.match(one) for one in made)


def _notes_that_it_looked(act: ast.AST, source: Source) -> bool:
    """``if not self.polled: await self.poll(); self.polled = True``: who looks twice sees twice."""
    block = source.parents.get(act)
    if not (
        isinstance(act, ast.Assign)
        and isinstance(act.value, ast.Constant)
        and act.value.value is True
        and isinstance(block, ast.If)
        and all(isinstance(one, ast.Expr | ast.Assign) for one in block.body)
    ):
        return False
    made = [name for one in block.body for name in _awaited_names(one)]
    return bool(made) and all(_LOOKS_UP.match(re.sub(r"^_*async_", "", one)) for one in made)


def _keeps_what_it_found(path: str, act: ast.AST, function: FunctionNode, source: Source) -> bool:
    """Return whether a function that is called a look-up keeps an entry of what it returns.

    ``async def get_address(key): ...; self.addresses[key] = found; return found``, or
    ``async def has_desk(name): ...; self.known.add(name); return True``. What it makes itself, or
    what is dear, had better not be there twice.
    """
    noun = _TABLE.sub("", path.rpartition(".")[2]).rpartition("_")[2]
    if _LOOKS_UP.match(function.name) is None or _EXPENSIVE.search(noun):
        return False
    if isinstance(act, ast.Call):
        return isinstance(act.func, ast.Attribute) and act.func.attr == "add"
    if not (
        isinstance(act, ast.Assign)
        and isinstance(act.targets[0], ast.Subscript)
        and isinstance(act.value, ast.Name)
    ):
        return False
    kept = (act.value.id, ast.unparse(act.targets[0]))
    made = [
        source.called(node.value).rpartition(".")[2]
        for node in source.own_nodes(function)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == act.value.id
    ]
    return not any(one.lstrip("_")[:1].isupper() for one in made) and any(
        ast.unparse(one) in kept
        for node in source.own_nodes(function)
        if isinstance(node, ast.Return) and node.value is not None
        for one in ast.walk(node.value)
        if isinstance(one, ast.expr)
    )


def _awaited_names(value: ast.AST) -> list[str]:
    return [
        ast.unparse(node.value.func).rpartition(".")[2]
        for node in ast.walk(value)
        if isinstance(node, ast.Await) and isinstance(node.value, ast.Call)
    ]


def _is_driven_by_one(
    method: FunctionNode, owner: ast.ClassDef, source: Source, program: Sources
) -> bool:
    """Return whether only the object's own task comes here: its loop, and what that loop calls."""
    methods = {one.name: one for one in owner.body if isinstance(one, FUNCTIONS)}
    seen = {method.name}
    pending = [method]
    while pending:
        one = pending.pop()
        if is_driver(one, source):
            continue
        callers = {name for name, other in methods.items() if _uses(other, one.name)} - {one.name}
        if callers & CONSTRUCTORS:
            return False  # It is handed to somebody, as a handler.
        if LIFE_CYCLE.match(one.name) is None and (
            not callers or not program.callers_of(one.name) <= callers
        ):
            return False
        pending += [methods[name] for name in callers - seen]
        seen |= callers
    return True


def _is_called_under_lock(method: FunctionNode, owner: ast.ClassDef, source: Source) -> bool:
    """Return whether all calls of a private method in its class are made with a lock held."""
    itself = f"{first_parameter(method)}.{method.name}"
    calls = [
        node
        for node in ast.walk(owner)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == itself
    ]
    return (
        method.name.startswith("_") and bool(calls) and all(is_locked(one, source) for one in calls)
    )


def is_driver(method: FunctionNode, source: Source) -> bool:
    """Return whether an object's one task spends its life here: by its name, or in its loop.

    A loop that returns something only tries again.
    """
    if not isinstance(source.parents.get(method), ast.ClassDef):
        return re.search(r"(^|_)a?main$|_(loop|forever)$", method.name) is not None
    return _DRIVES.search(method.name) is not None or (
        method.name.startswith("_")
        and any(isinstance(one, ast.While) and _waits_in(one) for one in method.body)
        and not any(isinstance(one, ast.Return) and one.value for one in ast.walk(method))
    )


def _uses(function: FunctionNode, name: str) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr == name for node in ast.walk(function))
