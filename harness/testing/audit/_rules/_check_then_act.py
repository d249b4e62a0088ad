"""Find decisions that an await makes stale: check, await, act. `AwaitWalk` looks for them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.testing.audit._finding import Rule
from harness.testing.audit._rules._evidence import why_several_decide
from harness.testing.audit._rules._harmless import is_harmless
from harness.testing.audit._rules._names import qualified_name
from harness.testing.audit._source_file import (
    FunctionNode,
    Source,
    decorator_names,
    first_parameter,
)
from harness.testing.audit._sources import Checker, Hit, Sources
from harness.testing.audit._walk import AwaitWalk

RULE = Rule(
    name="check-then-act",
    title="a decision about shared state that an await makes stale",
    why="while the function waits, another task can find the same and decide the same",
    fix="hold a lock over check and act (trio.Lock, asyncio.Lock), look again after the await, or "
    "use harness.shared (Counter.try_spend, open_cache, open_once)",
)

_LIFE_CYCLE = re.compile(
    r"(^|_)(a?enter|a?exit|anext|a?iter|a?close|connect|disconnect|reconnect|shutdown"
    r"|clean_?up|teardown|cancel|drain|receive|recv|finali[sz]e|read_?(line|chunk|until)"
    r"|peek|pump|frames|consume|keep_?alive|run_forever|acquire|locked|authenticate|authori[sz]e|handshake"
    r"|negotiate|attach|detach|lifespan|log_?in|log_?on)(_|$)|^_*a?open$|^_*on_(\w+_)?(start|stop|init|shutdown|connect|ready)"
)
"""Methods usually called by one task: those of a connection's life cycle, and those that say that
their caller holds a lock."""

_ONE_END = re.compile(
    r"^_*(a?start|a?stop|wait|next|read|send|write|feed|flush|finish|stream)"
    r"(_(all|some|bytes|data|chunk|chunks|frame|line|lines|text|json|message|event|request|response"
    r"|headers|body|stream|loop|until|for|from|to|nowait|once|now|up|down|writing|reading|eof"
    r"|audio|video|uplink|downlink|packet|ping|pong|server|connection|monitoring|buffer|sleep|init|size|or"
    r"|rejection|error|preamble|data_?gram|listening|polling))*$"
    r"|_(start|stop|wait|read|send|write|feed|flush|stream)$"
)
"""Methods of one end of a stream, which has one task: `send_frame`, but not `send_money`."""

_ONE_TASK = re.compile(
    r"(Reader|Writer|Parser|Iter|Iterator|Actor|ActorBase|Stream|Cursor|Monitor|Authenticator|Handshake"
    r"|Context|Protocol)$"
)
"""Classes whose objects serve one task at a time: one end of a stream, and an actor, which takes
its messages one after the other."""

_REFUSAL = re.compile(r"^\w*\.?(Concurren|Busy|InProgress|AlreadyRunning)")
_STARTER = re.compile(r"start_soon|create_task|ensure_future|spawn|fan_out|race|map$")
_WAITS = (ast.Await, ast.AsyncFor, ast.AsyncWith)
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.GeneratorExp, ast.SetComp)


def check(source: Source, program: Sources) -> Iterator[Hit]:
    """Yield one hit per async function: the first path, along with the others."""
    for function in source.functions:
        if not isinstance(function, ast.AsyncFunctionDef):
            continue
        if _LIFE_CYCLE.search(function.name) or _ONE_END.search(function.name):
            continue
        if _has_one_caller(function, source) or _serves_one_task(function, source, program):
            continue
        if _lets_one_in(function):
            continue
        if function.name in program.called_under_locks:
            continue
        walk = AwaitWalk(source, function, runs_as_many=_runs_as_many(function, source))
        walk.block(function.body)
        found = {
            path: (look, act, how)
            for path, (look, act, how) in walk.found.items()
            if not is_harmless(path, look, act, function, source)
        }
        if not found:
            continue
        reasons = {
            path: why
            for path, (_, act, _) in found.items()
            if not _is_one_loop(function, walk.runs_as_many, source)
            and (why := why_several_decide(path, act, function, source, program))
        }
        (path, (look, act, how)), *others = [
            one for one in found.items() if not reasons or one[0] in reasons
        ]
        also = ", ".join(other for other, _ in others)
        yield Hit(
            node=act,
            symbol=_symbol(path, function, source),
            message=f"{qualified_name(function, source)}() {how} {path} on what it saw in line "
            f"{look}, with an await in between and no lock"
            + (f"; {reasons[path]}" if reasons else "")
            + (f"; also {also}" if also else ""),
            defined_at=look,
            maybe=not reasons,
        )


def _runs_as_many(function: FunctionNode, source: Source) -> bool:
    """Return whether a function inside another is started as several tasks at once."""
    outer = source.function_of(function)
    if outer is None:
        return False
    times = 0
    for node in ast.walk(outer):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        if not (called in ("gather", "start") or _STARTER.search(called)):
            continue
        for argument in node.args:
            for inner in ast.walk(argument):
                if isinstance(inner, ast.Name) and inner.id == function.name:
                    times += 1
                    if called.endswith("fan_out") or any(
                        isinstance(one, _LOOPS) for one in source.around(inner)
                    ):
                        times += 1
    return times > 1


def _is_one_loop(function: FunctionNode, runs_as_many: bool, source: Source) -> bool:
    """Return whether a function inside another is a loop that is started once: a worker."""
    return (
        not runs_as_many
        and source.function_of(function) is not None
        and any(isinstance(one, ast.While) for one in function.body)
    )


def _has_one_caller(function: FunctionNode, source: Source) -> bool:
    """Return whether one task runs a function at a time: a generator, or one that refuses others.

    An async generator is iterated over by one task. A function that raises a ``ConcurrencyError``,
    or an error with such a name, or asserts as much, makes sure of it.
    """
    for node in source.own_nodes(function):
        if isinstance(node, ast.Yield) and not any(
            name.endswith(("contextmanager", "fixture"))
            for name in decorator_names(function, source)
        ):
            return True
        if (
            isinstance(node, ast.Raise)
            and node.exc is not None
            and _REFUSAL.search(ast.unparse(node.exc))
        ):
            return True
        if isinstance(node, ast.Assert) and node.msg and "concurrent" in ast.unparse(node.msg):
            return True
    return False


def _lets_one_in(function: FunctionNode) -> bool:
    """``if self.busy: return; self.busy = True; try: ...; finally: self.busy = False``.

    A flag that is looked at and set with no await in between is as good as a lock.
    """
    asked: set[str] = set()
    pending = list(function.body)
    while pending:
        one = pending.pop(0)
        if isinstance(one, ast.Try):
            pending = [*one.body, *pending]
        elif any(isinstance(node, _WAITS) for node in ast.walk(one)):
            return False
        elif isinstance(one, ast.If) and isinstance(one.body[-1], ast.Return | ast.Raise):
            asked.update(ast.unparse(one.test).split(" or "))
        elif _sets(one, asked, to=True):
            flag = {ast.unparse(one.targets[0])} if isinstance(one, ast.Assign) else set()
            return any(
                _sets(last, flag, to=False)
                for node in ast.walk(function)
                if isinstance(node, ast.Try)
                for last in node.finalbody
            )
    return False


def _sets(node: ast.stmt, flags: set[str], *, to: bool) -> bool:
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and node.value.value is to
        and ast.unparse(node.targets[0]) in flags
    )


def _serves_one_task(function: FunctionNode, source: Source, program: Sources) -> bool:
    owner = source.class_of(function)
    if owner is None:
        return False
    if owner.name in program.made_for_one_call:
        return True
    names = [owner.name, *(source.dotted(base) for base in owner.bases)]
    return any(_ONE_TASK.search(name) for name in names)


def _symbol(path: str, function: FunctionNode, source: Source) -> str:
    owner = source.class_of(function)
    head, dot, rest = path.partition(".")
    if (
        owner is not None
        and dot
        and head == first_parameter(source.method_of(function) or function)
    ):
        return f"{owner.name}.{rest}"
    return path


CHECK_THEN_ACT = Checker(RULE, check)
