"""One Python file, read and indexed once, for all rules to query.

Nothing here imports or runs the file. Names are resolved as Python resolves them, as far as one
file can tell: a name in a function is local, belongs to a function around it, or is the module's.
"""

from __future__ import annotations

import ast
import functools
import warnings
from collections.abc import Iterator
from typing import Any, TypeAlias

import attrs

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*FUNCTIONS, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

_CALLED_BY_PYTHON = frozenset(("os.register_at_fork", "atexit.register"))

CONSTRUCTORS = frozenset(("__init__", "__new__", "__post_init__", "__attrs_post_init__"))
"""Methods that run whenever an instance is made."""

INITIALISERS = CONSTRUCTORS | {"setup", "setUp"}
"""Methods that give a new instance attributes of its own."""


@attrs.frozen(eq=False)
class Binding:
    """One assignment in a module or a class body: ``name = value``."""

    name: str
    value: ast.expr | None
    node: ast.stmt
    annotation: ast.expr | None = None

    @property
    def line(self) -> int:
        """The line it is on."""
        return self.node.lineno


class Source:
    """A parsed file.

    What is parsed takes thirty times the memory of the text. So it can be forgotten, and is parsed
    again when it is asked for; its nodes are others then.
    """

    tree: ast.Module
    parents: dict[ast.AST, ast.AST]
    nodes: list[ast.AST]
    functions: list[FunctionNode]
    classes: list[ast.ClassDef]
    bindings: dict[str, Binding]
    """What the module binds at its top level, by name; the last if there are several."""
    top_classes: dict[str, ast.ClassDef]
    _bound: dict[ast.AST, frozenset[str]]
    _own: dict[ast.AST, list[ast.AST]]

    def __init__(self, text: str, path: str) -> None:
        self.path = path
        self.text = text
        self._parse()
        self.imports = dict(_imports(self.nodes))

    @property
    def is_parsed(self) -> bool:
        """Whether its nodes are in memory."""
        return "tree" in vars(self)

    def forget(self) -> None:
        """Let go of all nodes; nobody may hold one."""
        for name in [*Source.__annotations__, "python_hooks", "events"]:
            vars(self).pop(name, None)

    def __getattr__(self, name: str) -> Any:
        if name not in Source.__annotations__:
            raise AttributeError(name)
        self._parse()
        return vars(self)[name]

    def _parse(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # About the user's own strings.
            self.tree = ast.parse(self.text, self.path)
        self.parents = {}
        self.nodes = []
        pending: list[ast.AST] = [self.tree]
        while pending:
            node = pending.pop()
            self.nodes.append(node)
            children = list(ast.iter_child_nodes(node))
            for child in children:
                self.parents[child] = node
            pending.extend(reversed(children))
        self.functions = [node for node in self.nodes if isinstance(node, FUNCTIONS)]
        self.classes = [node for node in self.nodes if isinstance(node, ast.ClassDef)]
        self.bindings = {binding.name: binding for binding in bindings_of(self.tree.body)}
        self.top_classes = {
            node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)
        }
        self._bound = {}
        self._own = {}

    # Where a node is ---------------------------------------------------------------------------

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around ``node``, from the inside out."""
        parent = self.parents.get(node)
        while parent is not None:
            yield parent
            parent = self.parents.get(parent)

    def function_of(self, node: ast.AST) -> FunctionNode | None:
        """Return the function that runs ``node``, if any.

        A default or a decorator is run by the code around its function.
        """
        inner = node
        for outer in self.around(node):
            if isinstance(outer, FUNCTIONS) and inner in outer.body:
                return outer
            inner = outer
        return None

    def class_of(self, function: ast.AST) -> ast.ClassDef | None:
        """Return the class that ``function`` is a method of, or is inside a method of."""
        for outer in self.around(function):
            if isinstance(outer, ast.ClassDef):
                return outer
        return None

    def method_of(self, node: ast.AST) -> FunctionNode | None:
        """Return the outermost function around ``node`` inside its class, or inside the module."""
        found: FunctionNode | None = None
        function = node if isinstance(node, FUNCTIONS) else self.function_of(node)
        while function is not None:
            found = function
            if isinstance(self.parents.get(function), ast.ClassDef):
                break
            function = self.function_of(function)
        return found

    def qualified_name(self, node: ast.AST) -> str:
        """Return the name of a function or class, after the names of what it is in."""
        around = [node, *self.around(node)]
        names = [one.name for one in around if isinstance(one, (*FUNCTIONS, ast.ClassDef))]
        return ".".join(reversed(names))

    def is_at_import(self, node: ast.AST) -> bool:
        """Return whether ``node`` runs when the module is imported."""
        inner = node
        for outer in self.around(node):
            if isinstance(outer, FUNCTIONS):
                if inner is not outer.args and inner not in outer.decorator_list:
                    return False
            elif isinstance(outer, ast.Lambda) and inner is not outer.args:
                return False
            if isinstance(outer, ast.If) and is_guard_of_script(outer.test):
                return False
            inner = outer
        return True

    # What a name means -------------------------------------------------------------------------

    def is_global(self, name: ast.Name) -> bool:
        """Return whether a name belongs to the module, not to a function."""
        inner: ast.AST = name
        for outer in self.around(name):
            if isinstance(outer, _COMPREHENSIONS) and name.id in _targets_of(outer):
                return False
            if isinstance(outer, (*FUNCTIONS, ast.Lambda)) and (
                inner is not outer.args or isinstance(inner, ast.arg)
            ):
                declared = self._declared_global(outer)
                if name.id in declared:
                    return True
                if name.id in self.bound_in(outer):
                    return False
            elif (
                isinstance(outer, ast.ClassDef)
                and inner in outer.body
                and self.function_of(name) is self.function_of(outer)
                and any(binding.name == name.id for binding in bindings_of(outer.body))
            ):
                return False
            inner = outer
        return True

    def is_free(self, name: ast.Name) -> bool:
        """Return whether a name belongs to a function around the one it is used in."""
        function = self.function_of(name)
        if function is None or name.id in self.bound_in(function):
            return False
        outer = self.function_of(function)
        while outer is not None:
            if name.id in self.bound_in(outer):
                return True
            outer = self.function_of(outer)
        return False

    def bound_in(self, scope: ast.AST) -> frozenset[str]:
        """Return the names that a function binds itself."""
        names = self._bound.get(scope)
        if names is None:
            names = self._bound[scope] = frozenset(_bound_in(scope))
        return names

    def own_nodes(self, function: ast.AST) -> list[ast.AST]:
        """Return the nodes that ``function`` itself runs; see `own_nodes`."""
        nodes = self._own.get(function)
        if nodes is None:
            nodes = self._own[function] = list(own_nodes(function))
        return nodes

    def _declared_global(self, scope: ast.AST) -> frozenset[str]:
        return frozenset(
            name
            for node in self.own_nodes(scope)
            if isinstance(node, ast.Global)
            for name in node.names
        )

    def dotted(self, expression: ast.expr) -> str:
        """Return ``a.b.c``, its first name resolved through the imports; "" if it isn't a name."""
        parts: list[str] = []
        while isinstance(expression, ast.Attribute):
            parts.append(expression.attr)
            expression = expression.value
        if not isinstance(expression, ast.Name):
            return ""
        parts.append(self.imports.get(expression.id, expression.id))
        return ".".join(reversed(parts))

    def called(self, expression: ast.expr | None) -> str:
        """Return the full name of what a call calls; "" if it isn't a call of a name."""
        return self.dotted(expression.func) if isinstance(expression, ast.Call) else ""

    @functools.cached_property
    def python_hooks(self) -> frozenset[str]:
        """The functions that Python itself calls when the process forks or ends."""
        return frozenset(
            inner.id
            for node in self.nodes
            if isinstance(node, ast.Call) and self.dotted(node.func) in _CALLED_BY_PYTHON
            for argument in [*node.args, *(one.value for one in node.keywords)]
            for inner in ast.walk(argument)
            if isinstance(inner, ast.Name)
        )

    @functools.cached_property
    def events(self) -> frozenset[str]:
        """The last names of what the file asks whether it is set, as one asks an event."""
        return frozenset(
            ast.unparse(node.func.value).rpartition(".")[2]
            for node in self.nodes
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and (node.func.attr == "is_set" or (node.func.attr == "wait" and not node.args))
        )


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that ``scope`` itself runs, without those of functions inside it."""
    body = scope.body if isinstance(scope, (*FUNCTIONS, ast.ClassDef, ast.Lambda)) else scope
    pending: list[ast.AST] = list(reversed(body)) if isinstance(body, list) else [body]
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, _SCOPES):
            pending.extend(reversed(list(ast.iter_child_nodes(node))))


def bindings_of(body: list[ast.stmt]) -> Iterator[Binding]:
    """Yield what a module's or class's body binds, including under ``if`` and ``try``."""
    for statement in body:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    yield Binding(target.id, statement.value, statement)
                elif isinstance(target, ast.Tuple | ast.List):
                    values = statement.value.elts if isinstance(statement.value, ast.Tuple) else []
                    for place, one in enumerate(target.elts):
                        if isinstance(one, ast.Name):
                            value = values[place] if place < len(values) else statement.value
                            yield Binding(one.id, value, statement)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield Binding(statement.target.id, statement.value, statement, statement.annotation)
        elif isinstance(statement, ast.If | ast.Try | ast.With):
            if isinstance(statement, ast.If) and is_guard_of_script(statement.test):
                continue
            yield from bindings_of(statement.body)
            yield from bindings_of(getattr(statement, "orelse", []))
            for handler in getattr(statement, "handlers", []):
                yield from bindings_of(handler.body)


def is_guard_of_script(test: ast.expr) -> bool:
    """Return whether this is the test of ``if __name__ == "__main__":`` or of ``TYPE_CHECKING``."""
    words = ast.unparse(test)
    return "__main__" in words or words.endswith("TYPE_CHECKING")


def parameters(function: FunctionNode | ast.Lambda) -> list[ast.arg]:
    """Return all parameters of a function."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return named + [extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None]


def uses_argument(node: ast.AST, function: FunctionNode, first: int = 0) -> bool:
    """Return whether a part of a function depends on the function's arguments, from one on."""
    given = {parameter.arg for parameter in parameters(function)[first:]}
    return any(isinstance(one, ast.Name) and one.id in given for one in ast.walk(node))


def defaults(function: FunctionNode) -> Iterator[tuple[str, ast.expr]]:
    """Yield the name and the default of each parameter that has one."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    for parameter, default in zip(
        positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True
    ):
        yield parameter.arg, default
    for parameter, given in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if given is not None:
            yield parameter.arg, given


def first_parameter(function: FunctionNode) -> str:
    """Return the name of the first positional parameter, usually ``self``."""
    positional = [*function.args.posonlyargs, *function.args.args]
    return positional[0].arg if positional else ""


def decorator_names(node: FunctionNode | ast.ClassDef, source: Source) -> set[str]:
    """Return the full names of the decorators."""
    return {
        source.dotted(one.func if isinstance(one, ast.Call) else one) for one in node.decorator_list
    }


def _imports(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    yield alias.asname, alias.name
                else:
                    top = alias.name.partition(".")[0]
                    yield top, top
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                yield alias.asname or alias.name, f"{module}.{alias.name}"


def _bound_in(scope: ast.AST) -> Iterator[str]:
    elsewhere: set[str] = set()
    names: set[str] = set()
    if isinstance(scope, (*FUNCTIONS, ast.Lambda)):
        names.update(parameter.arg for parameter in parameters(scope))
    for node in own_nodes(scope):
        if isinstance(node, ast.Global | ast.Nonlocal):
            elsewhere.update(node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            names.add(node.id)
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            names.update([node.name] if node.name else [])
    return iter(names - elsewhere)


def _targets_of(comprehension: ast.AST) -> set[str]:
    return {
        node.id
        for generator in getattr(comprehension, "generators", [])
        for node in ast.walk(generator.target)
        if isinstance(node, ast.Name)
    }
