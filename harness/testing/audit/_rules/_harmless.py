"""Tell which decisions that an await makes stale do no harm, as far as their shape says.

Each kind here came from reading findings in other people's packages: it was reported more often
than it was worth a look.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.testing.audit._changes import assigned_by, changes_by
from harness.testing.audit._rules._call_state import LIFE_CYCLE
from harness.testing.audit._rules._set_up import is_cache
from harness.testing.audit._source_file import FUNCTIONS, INITIALISERS, FunctionNode, Source

_ADDS = frozenset(("add", "append", "appendleft", "extend", "update"))
_DRIVER = re.compile(
    r"^_*(a?main|a?run)$|_(main|task|loop|forever|worker|listener)$|^_*listen(_|$)"
)
"""Names of methods in which an object's one task spends its life."""

_PLAIN = frozenset(("bool", "int", "float", "str", "bytes", "tuple", "frozenset", "len"))
"""What makes values of which a second one is as good as the first."""

_RESOURCE = re.compile(
    r"token|credential|secret|auth|session|client|conn|pool|channel|transport|socket|stream|sandbox"
    r"|browser|page|process|server|container|thread|task|queue|(?<![bc])lock|lease|index|agent|model"
    r"|engine",
    re.IGNORECASE,
)
"""Names of what costs something to have twice, or must not be there twice."""


def is_harmless(
    path: str, look: int, act: ast.stmt | ast.expr, function: FunctionNode, source: Source
) -> bool:
    """Return whether nothing is lost if another task does the same in between.

    Args:
      path: What is looked at, and written: ``self.token``.
      look: The line of the look.
      act: The write.
      function: What contains both.
      source: Its file.
    """
    tests = [
        node
        for node in source.own_nodes(function)
        if isinstance(node, ast.If | ast.While) and node.test.lineno == look
    ]
    attribute = path.rpartition(".")[2]
    return (
        _fills_a_cache(attribute, act)
        or (_RESOURCE.search(attribute) is None and _looks_up(path, tests, act))
        or _ends_a_call(act, source)
        or any(_ends_the_loop(test, act) or _looks_again(path, test, act) for test in tests)
        or any(_counts(path, test, act) or _fills_up(path, test, act) for test in tests)
        or any(_adds_to_what_is_needed(path, test, act) for test in tests)
        or _is_there(path, tests, act)
        or _notes_what_it_asked_for(path, tests, act)
        or _keeps_a_plain_answer(path, act, function, source)
        or (
            (_DRIVER.search(function.name) is not None or _converts(path, tests, act))
            and not _is_written_elsewhere(attribute, function, source)
        )
    )


def _fills_a_cache(attribute: str, act: ast.AST) -> bool:
    """``if key in self.cached: return ...; self.cached[key] = await find(key)``: found twice."""
    return is_cache(attribute) and (
        isinstance(act, ast.Call)
        or (
            isinstance(act, ast.Assign)
            and any(isinstance(target, ast.Subscript) for target in act.targets)
        )
    )


def _looks_up(path: str, tests: list[ast.If | ast.While], act: ast.AST) -> bool:
    """``if self._sender is None: self._sender = await find()``: plain data, the same for all."""
    if not isinstance(act, ast.Assign) or isinstance(act.targets[0], ast.Subscript):
        return False
    said = {part for test in tests for part in ast.unparse(test.test).split(" and ")}
    # A flag or a number is asked by its own name, and is no plain data.
    plain = set() if isinstance(act.value, ast.Constant) else {path, f"not {path}"}
    # `self.json is Empty`, as good as None.
    empty = re.compile(rf"^{re.escape(path)} is (not )?(\w+\.)*(None|_*[A-Z]\w*)$")
    return bool(said & plain) or any(map(empty.match, said))


def _looks_again(path: str, test: ast.If | ast.While, act: ast.AST) -> bool:
    """``while len(self.info) < wanted: await sleep(); self.info = await fetch()``."""
    return (
        isinstance(test, ast.While)
        and isinstance(act, ast.Assign)
        and any(isinstance(one, ast.Await) for one in ast.walk(act.value))
        and path not in ast.unparse(act.value)
    )


def _ends_a_call(act: ast.AST, source: Source) -> bool:
    """``finally: self.state = "stopped"``: what is said on every way out."""
    return (
        isinstance(act, ast.Assign)
        and isinstance(act.value, ast.Constant)
        and any(
            isinstance(outer, ast.Try)
            and any(act is one for last in outer.finalbody for one in ast.walk(last))
            for outer in source.around(act)
        )
    )


def _fills_up(path: str, test: ast.If | ast.While, act: ast.AST) -> bool:
    """``while len(self.buffer) < wanted: self.buffer += await read()``: one reads at a time."""
    return (
        isinstance(test, ast.While)
        and f"len({path}) <" in ast.unparse(test.test)
        and isinstance(act, ast.AugAssign)
    )


def _ends_the_loop(test: ast.If | ast.While, act: ast.AST) -> bool:
    """``while not self.stop: ...; self.stop = True``: whoever else says so says the same."""
    value = getattr(act, "value", None)
    return isinstance(test, ast.While) and isinstance(value, ast.Constant) and value.value is True


def _counts(path: str, test: ast.If | ast.While, act: ast.AST) -> bool:
    """``if self.attempts: await wait(); self.attempts += 1``: no limit is gone over."""
    return (
        isinstance(act, ast.AugAssign)
        and isinstance(act.op, ast.Add)
        and isinstance(act.value, ast.Constant)
        and ast.unparse(test.test) in (path, f"not {path}")
    )


def _adds_to_what_is_needed(path: str, test: ast.If | ast.While, act: ast.AST) -> bool:
    """``if not self.messages: raise ...; self.messages.append(await answer())``."""
    return (
        isinstance(act, ast.Call)
        and isinstance(act.func, ast.Attribute)
        and act.func.attr in _ADDS
        and ast.unparse(test.test) in (f"not {path}", f"{path} is None")
        and isinstance(test.body[-1], ast.Raise)
    )


def _is_there(path: str, tests: list[ast.If | ast.While], act: ast.AST) -> bool:
    """``if status is not None: async with lock: status["done"] = 1``: only asked if it is there.

    Also with ``if not self.config or not self.status: raise ...``.
    """
    if not (
        isinstance(act, ast.Call) or isinstance(getattr(act, "targets", [0])[0], ast.Subscript)
    ):
        return False
    there = {f"{path} is not None", f"{path} is None"}
    asked = [
        part in there or (part == f"not {path}" and isinstance(test.body[-1], ast.Raise))
        for test in tests
        for part in re.split(r" and | or ", ast.unparse(test.test))
        if re.search(rf"{re.escape(path)}(?!\w)", part)
    ]
    return bool(asked) and all(asked)


def _notes_what_it_asked_for(path: str, tests: list[ast.If | ast.While], act: ast.AST) -> bool:
    """``if self.saved.get(key) == value: return; await save(value); self.saved[key] = value``."""
    if not isinstance(act, ast.Assign) or isinstance(act.value, ast.Constant):
        return False
    return any(
        isinstance(one, ast.Compare)
        and isinstance(one.ops[0], ast.Is | ast.Eq | ast.IsNot | ast.NotEq)
        and ast.unparse(one.left).startswith(path)
        and ast.unparse(one.comparators[0]) == ast.unparse(act.value)
        for test in tests
        for one in ast.walk(test.test)
    )


def _keeps_a_plain_answer(path: str, act: ast.AST, function: FunctionNode, source: Source) -> bool:
    """``known = self.known.get(key); known = bool(await ask(key)); self.known[key] = known``."""
    if not isinstance(act, ast.Assign) or not isinstance(act.targets[0], ast.Subscript):
        return False
    name = ast.unparse(act.value)
    values = [
        node.value
        for node in source.own_nodes(function)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    ]
    looks = [value for value in values if ast.unparse(value).startswith(f"{path}.get(")]
    return bool(looks) and all(value in looks or source.called(value) in _PLAIN for value in values)


def _converts(path: str, tests: list[ast.If | ast.While], act: ast.AST) -> bool:
    """``if self.peer: self.peer = await input_of(self.peer)``: the same thing in another form."""
    return (
        isinstance(act, ast.Assign)
        and any(path in ast.unparse(test.test).split(" and ") for test in tests)
        and any(
            ast.unparse(argument) == path
            for call in ast.walk(act.value)
            if isinstance(call, ast.Call)
            for argument in call.args
        )
    )


def _is_written_elsewhere(attribute: str, function: FunctionNode, source: Source) -> bool:
    """Return whether a method of the class writes an attribute, other than to open or close it."""
    owner = source.class_of(source.method_of(function) or function)
    return owner is None or any(
        one is not function and attribute in _written_by(one)
        for one in owner.body
        if isinstance(one, FUNCTIONS)
        and one.name not in INITIALISERS
        and LIFE_CYCLE.match(one.name) is None
    )


def _written_by(function: FunctionNode) -> Iterator[str]:
    for node in ast.walk(function):
        for target in (*assigned_by(node), *(change.target for change in changes_by(node))):
            if isinstance(target, ast.Attribute):
                yield target.attr
