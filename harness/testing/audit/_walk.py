"""Walk an async function in the order in which it runs, and see what an await makes stale.

What a condition reads is *known* from then on; at an await, everything known becomes *stale*,
unless a lock was held all the time; a new look makes it known again. It is a finding to write what
is known only by a stale look, or to write a value computed from one: between the look and the
write, other tasks ran with the same look.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

import attrs

from harness.testing.audit._changes import changes_by, is_signal
from harness.testing.audit._locks import names_a_lock
from harness.testing.audit._source_file import (
    FUNCTIONS,
    FunctionNode,
    Source,
    first_parameter,
    parameters,
)

ONE_WAY = re.compile(
    r"closed|closing|started|stopped|entered|exited|finished|exhausted|consumed|disconnected"
    r"|checked|created|answered|owner|holder|done\b|finali[sz]ed|acked|processed|committed|rolled",
    re.IGNORECASE,
)
"""Flags that only ever go one way, so setting one twice does no harm; and who holds a lock."""

_CLAIMS = frozenset(("pop", "popleft", "popitem", "setdefault"))
"""Methods that take something out, so that no other task has it, or put something in unless
another task was first: they take no look that could become stale."""


@attrs.define
class _Look:
    """What was read of a path, and when."""

    line: int
    locks: frozenset[int]
    stale: bool = False


_State = dict[str, _Look]


@attrs.define(eq=False)
class AwaitWalk:
    """One function, walked in the order in which it runs."""

    source: Source
    function: FunctionNode
    runs_as_many: bool
    """Whether several tasks of this function share variables of the function around it."""
    state: _State = attrs.field(factory=dict)
    """What conditions know, by path."""
    derived: dict[str, dict[str, _Look]] = attrs.field(factory=dict)
    """What local variables were computed from: by variable, then by path."""
    locks: frozenset[int] = frozenset()
    version_is_checked: bool = False
    """Whether a number that tells if others were here was compared, with no await since."""
    found: dict[str, tuple[int, ast.stmt | ast.expr, str]] = attrs.field(factory=dict)
    ended: bool = False
    """Whether this branch has ended: by return, raise, continue or break."""

    # Statements --------------------------------------------------------------------------------

    def block(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            if self.ended:
                return
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.If):
            self.condition(node.test)
            before = self.version_is_checked
            self.version_is_checked = before or self.checks_a_version(node.test)
            self.branches(node.body, node.orelse)
            self.version_is_checked = before
        elif isinstance(node, ast.While):
            self.condition(node.test)
            self.branches(node.body, [])
            self.condition(node.test)  # Leaving the loop means having just looked.
            self.block(node.orelse)
        elif isinstance(node, ast.For | ast.AsyncFor):
            self.expression(node.iter)
            if isinstance(node, ast.AsyncFor):
                self.awaited()
            self.branches([*node.body, *node.orelse], [])
        elif isinstance(node, ast.With | ast.AsyncWith):
            self.with_block(node)
        elif isinstance(node, ast.Try | ast.TryStar):
            self.block(node.body)
            self.block(node.orelse)
            before, self.ended = self.ended, False
            for handler in node.handlers:
                self.branches(handler.body, [])
            self.ended = False
            self.block(node.finalbody)
            self.ended = self.ended or before
        elif isinstance(node, ast.Match):
            self.condition(node.subject)
            for case in node.cases:
                self.branches(case.body, [])
        elif isinstance(node, ast.Return | ast.Raise):
            for inner in ast.iter_child_nodes(node):
                if isinstance(inner, ast.expr):
                    self.expression(inner)
            self.ended = True
        elif isinstance(node, ast.Continue | ast.Break):
            self.ended = True
        elif isinstance(node, ast.Assert):
            self.expression(node.test)
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            pass  # It runs when it is called.
        elif isinstance(node, ast.AugAssign):
            self.augmented(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            self.assignment(node)
        else:
            for inner in ast.iter_child_nodes(node):
                if isinstance(inner, ast.expr):
                    self.expression(inner)
            self.writes(node, frozenset())

    def branches(self, body: list[ast.stmt], orelse: list[ast.stmt]) -> None:
        """Walk both, each from here; what is known by one that goes on is known after them."""
        state, derived = _copy(self.state), {k: _copy(v) for k, v in self.derived.items()}
        ends: list[tuple[_State, dict[str, _State]]] = []
        for branch in (body, orelse):
            self.state = _copy(state)
            self.derived = {k: _copy(v) for k, v in derived.items()}
            self.block(branch)
            if not self.ended:
                ends.append((self.state, self.derived))
            self.ended = False
        if not ends:
            self.ended = True
            self.state, self.derived = state, derived
            return
        self.state, self.derived = ends[0]
        for other, computed in ends[1:]:
            _merge(self.state, other)
            for name, looks in computed.items():
                _merge(self.derived.setdefault(name, {}), looks)

    def with_block(self, node: ast.With | ast.AsyncWith) -> None:
        before = self.locks
        for item in node.items:
            self.expression(item.context_expr)
            if isinstance(node, ast.AsyncWith):
                self.awaited()
            if names_a_lock(item.context_expr):
                self.locks |= {id(item)}
        self.block(node.body)
        self.locks = before
        # Leaving an async block may wait, too. Leaving a lock or a scope doesn't, and nothing
        # shows which others do, so it isn't counted.

    # Expressions -------------------------------------------------------------------------------

    def condition(self, test: ast.expr) -> None:
        """Look at what a condition reads; a local computed from a path counts as a look at it."""
        self.expression(test)
        looks = [*self.paths_in(test)]
        for name in _names_in(test):
            looks += self.derived.get(name, {})
        for path in looks:
            derived = [look for looks in self.derived.values() if (look := looks.get(path))]
            direct = path in set(self.paths_in(test))
            stale = bool(derived) and not direct and all(look.stale for look in derived)
            line = derived[0].line if derived and not direct else test.lineno
            self.state[path] = _Look(line, self.locks, stale)

    def expression(self, node: ast.expr) -> None:
        """Walk an expression in order: its awaits, and the changes its calls make."""
        if isinstance(node, ast.Lambda | ast.GeneratorExp):
            return
        if isinstance(node, ast.BoolOp | ast.IfExp):
            for inner in ast.iter_child_nodes(node):
                if isinstance(inner, ast.expr):
                    self.expression(inner)
            return
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, ast.expr):
                self.expression(inner)
            elif isinstance(inner, ast.keyword):
                self.expression(inner.value)
            elif isinstance(inner, ast.comprehension):
                self.expression(inner.iter)
        if isinstance(node, ast.Await) and not _never_waits(node):
            self.awaited()
            call = node.value
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr == "acquire"
                and names_a_lock(call.func.value)
            ):
                self.locks |= {id(call)}
        elif isinstance(node, ast.Call):
            self.writes(node, frozenset())
        elif isinstance(node, ast.NamedExpr) and isinstance(node.target, ast.Name):
            self.compute(node.target.id, node.value)

    def awaited(self) -> None:
        """Note that other tasks run now."""
        self.version_is_checked = False
        for look in [*self.state.values(), *(v for d in self.derived.values() for v in d.values())]:
            if not look.locks & self.locks:
                look.stale = True

    # Writes ------------------------------------------------------------------------------------

    def assignment(self, node: ast.Assign | ast.AnnAssign) -> None:
        if node.value is None:
            return
        read_first = dict.fromkeys(self.paths_in(node.value), node.lineno)
        awaits = any(isinstance(inner, ast.Await) for inner in ast.walk(node.value))
        self.expression(node.value)
        used = frozenset(_names_in(node.value))
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            for one in ast.walk(target):
                if isinstance(one, ast.Attribute | ast.Name) and isinstance(one.ctx, ast.Store):
                    path = self.path_of(one)
                    if path is not None:
                        if awaits and path in read_first and _reads_before_await(node.value, path):
                            self.report(path, node.lineno, node, "sets")
                        self.write(path, node, "sets", used)
            if isinstance(target, ast.Name) and self.path_of(target) is None:
                self.compute(target.id, node.value)
        self.writes(node, used)

    def augmented(self, node: ast.AugAssign) -> None:
        target = node.target
        path = self.path_of(target.value if isinstance(target, ast.Subscript) else target)
        awaits = any(isinstance(inner, ast.Await) for inner in ast.walk(node.value))
        self.expression(node.value)
        if path is None:
            return
        if awaits and not self.locks:
            # Python reads the target before it runs the right side.
            self.report(path, node.lineno, node, "adds to")
        else:
            self.write(path, node, "adds to", frozenset(_names_in(node.value)))

    def writes(self, node: ast.AST, used: frozenset[str]) -> None:
        if isinstance(node, ast.Delete | ast.Assign):
            self.cut_at_stale_place(node)
        for change in changes_by(node):
            path = self.path_of(change.target)
            if _takes_out_what_may_be_gone(node) or is_signal(change, self.source):
                continue
            if path is not None and isinstance(node, ast.stmt | ast.expr):
                names = used | frozenset(
                    name for inner in ast.iter_child_nodes(node) for name in _names_in(inner)
                )
                self.write(path, node, "changes", names)

    def cut_at_stale_place(self, node: ast.Delete | ast.Assign) -> None:
        """Look at ``del history[start:]`` where start was computed before an await."""
        targets = node.targets
        for target in targets:
            if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                place = f"len({target.value.id})"
                for name in _names_in(target.slice):
                    look = self.derived.get(name, {}).get(place)
                    if look is not None and look.stale:
                        self.report(target.value.id, look.line, node, "cuts")

    def write(self, path: str, node: ast.stmt | ast.expr, how: str, used: frozenset[str]) -> None:
        look = self.state.get(path)
        if look is not None and look.stale:
            self.report(path, look.line, node, how)
        for name in used:
            computed = self.derived.get(name, {}).get(path)
            if computed is not None and computed.stale and (look is None or look.stale):
                self.report(path, computed.line, node, how)
        # From here on, what is there is this function's own doing.
        self.state.pop(path, None)
        for looks in self.derived.values():
            looks.pop(path, None)

    def checks_a_version(self, test: ast.expr) -> bool:
        """Return whether a test compares a local with what is shared: ``seen == self.version``."""
        return any(
            isinstance(node, ast.Compare)
            and isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.Is | ast.IsNot)
            and not isinstance(node.comparators[0], ast.Constant)
            and any(True for _ in self.paths_in(node))
            and any(name in self.derived for name in _names_in(node))
            for node in ast.walk(test)
        )

    def report(self, path: str, look: int, node: ast.stmt | ast.expr, how: str) -> None:
        if self.version_is_checked or _gives_back(node):
            return
        # If it is added to, it is an amount, such as `consumed`.
        if isinstance(node, ast.AugAssign) or not ONE_WAY.search(path.rpartition(".")[2]):
            self.found.setdefault(path, (look, node, how))

    def compute(self, name: str, value: ast.expr) -> None:
        """Note that a local variable gets a value, and the shared paths that it came from."""
        looks: _State = {}
        # The result of an await is made at its end, whatever its arguments read before.
        if not any(isinstance(inner, ast.Await) for inner in ast.walk(value)):
            for path in [*self.paths_in(value), *self.lengths_in(value)]:
                looks[path] = _Look(value.lineno, self.locks)
            for other in _names_in(value):
                _merge(looks, _copy(self.derived.get(other, {})))
        self.derived[name] = looks

    # Paths -------------------------------------------------------------------------------------

    def paths_in(self, node: ast.AST) -> Iterator[str]:
        """Yield the shared paths that an expression reads; ``a.b.c`` yields only the whole path."""
        pending = [node]
        while pending:
            inner = pending.pop()
            if isinstance(inner, ast.Attribute | ast.Name):
                path = self.path_of(inner)
                if path is not None:
                    parent = self.source.parents.get(inner)
                    # `self.items.get(key)` reads `self.items`; `self.load(key)` reads nothing.
                    if isinstance(parent, ast.Call) and parent.func is inner:
                        if not isinstance(inner, ast.Attribute):
                            continue
                        holder = self.path_of(inner.value)
                        if holder is not None and inner.attr not in _CLAIMS:
                            yield holder
                        continue
                    yield path
                    continue
            if isinstance(inner, ast.Lambda | ast.Await):
                continue
            pending.extend(ast.iter_child_nodes(inner))

    def lengths_in(self, node: ast.AST) -> Iterator[str]:
        """Yield ``len(x)`` for each parameter x of the function whose length is taken."""
        given = {one.arg for one in parameters(self.function)}
        for inner in ast.walk(node):
            if (
                isinstance(inner, ast.Call)
                and ast.unparse(inner.func) == "len"
                and inner.args
                and isinstance(inner.args[0], ast.Name)
                and inner.args[0].id in given
            ):
                yield f"len({inner.args[0].id})"

    def path_of(self, node: ast.expr) -> str | None:
        """Return the path in words, if it starts at something that tasks can share."""
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name):
            return None
        method = self.source.method_of(self.function) or self.function
        if (
            node is not root
            and self.source.class_of(method) is not None
            and root.id == first_parameter(method)
            and (method is self.function or root.id not in self.source.bound_in(self.function))
        ):
            return ast.unparse(node)
        if root.id in self.source.imports:
            return None
        if self.source.is_free(root):
            return ast.unparse(node) if self.runs_as_many else None
        if root.id in self.source.bindings and self.source.is_global(root):
            return ast.unparse(node)
        if root.id in self.source.top_classes and node is not root:
            return ast.unparse(node)
        return None


def _never_waits(node: ast.Await) -> bool:
    """Return whether this await lets no other task run, such as ``checkpoint_if_cancelled()``."""
    return ast.unparse(node.value).endswith("checkpoint_if_cancelled()")


def _gives_back(node: ast.AST) -> bool:
    """Return whether a statement empties what it writes to: ``self.current = None``."""
    value = getattr(node, "value", None)
    return (
        isinstance(node, ast.Assign)
        and isinstance(value, ast.Constant)
        and (value.value is None or value.value is False)
    )


def _takes_out_what_may_be_gone(node: ast.AST) -> bool:
    """Return whether this is ``x.pop(key, default)`` or ``x.discard(item)``: safe either way."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (node.func.attr == "discard" or (node.func.attr == "pop" and len(node.args) == 2))
    )


def _names_in(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
            yield inner.id


def _reads_before_await(value: ast.expr, path: str) -> bool:
    """Return whether ``value`` reads ``path`` to the left of its first await."""
    first = min(
        ((n.lineno, n.col_offset) for n in ast.walk(value) if isinstance(n, ast.Await)),
        default=None,
    )
    return first is not None and any(
        isinstance(n, ast.Attribute | ast.Name)
        and ast.unparse(n) == path
        and (n.lineno, n.col_offset) < first
        for n in ast.walk(value)
    )


def _copy(state: _State) -> _State:
    return {path: attrs.evolve(look) for path, look in state.items()}


def _merge(into: _State, other: _State) -> None:
    """Keep what is stale on either path: one on which others may have run is enough."""
    for path, look in other.items():
        if path not in into or look.stale:
            into[path] = look
