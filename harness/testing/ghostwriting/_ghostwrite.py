"""Write a test for a function: its calls must give the same alone, in turn, and at once.

A test is a plain function that starts the loop it needs, so it runs under any plugin or none. What
can't be guessed is a TODO in it; it runs all the same.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Sequence
from types import CodeType, ModuleType
from typing import Any

import attrs

from harness.testing.audit import Finding, audit_paths
from harness.testing.ghostwriting._guesses import COUNT, Guess, guesses_for, parameters_of
from harness.testing.ghostwriting._layout import WIDTH, comment, fitted, snake_case
from harness.testing.schedules import Kind
from harness.testing.schedules._kinds import by_names, globals_used, is_plain, kind_by_marker

FINDINGS_AT_MOST = 5
"""How many findings of the audit a test quotes."""

DRAWN_SCHEDULES = 50
"""Under how many schedules inputs that Hypothesis draws are tried, each time."""

_STARTS_TASKS = {
    *("open_nursery", "start_soon", "TaskGroup", "create_task_group", "gather", "create_task"),
    *("ensure_future", "as_completed", "Thread", "ThreadPoolExecutor", "fan_out", "to_thread"),
}
"""Names in the code of a function that starts tasks or threads itself."""


def ghostwrite(value: Any, module: ModuleType, name: str) -> str:
    """Return the text of a test that proves or refutes that calls of a function share something.

    For a class it is a test of whether its objects do the right thing for several callers.

    Args:
      value: What is tested: an async or a plain function, a method taken from its class, or a
        class.
      module: The module that it is found in. The test imports it by its name.
      name: Its name there, such as ``answer`` or ``Agent.answer``.

    Raises:
      TypeError: if it is neither, or a class without methods.
    """
    if not callable(value):
        raise TypeError(
            f"{name} is of type {type(value).__name__}; name a function, a class, or a method as "
            "Class.method"
        )
    if inspect.isclass(value) and not _methods(value):
        raise TypeError(f"{name} has no methods of its own that could be called at once")
    owner = _owner(value, module, name)
    parameters = parameters_of(value, skip_first=owner is not None)
    test = _Test(value, module, name, kind_of(value, module), owner, parameters)
    return test.text()


def kind_of(value: Any, module: ModuleType) -> Kind:
    """Return what kind of program a function belongs to, as far as its code tells."""
    if (marked := kind_by_marker(value)) is not None:
        return marked
    if is_plain(value):
        return "threads"
    # Code that names neither is mostly asyncio's; if not, its first wait shows it.
    return by_names(globals_used(value)) or by_names(vars(module).values()) or "asyncio"


def _owner(value: Any, module: ModuleType, name: str) -> type[Any] | None:
    """Return the class of which an object is needed to call a method."""
    found: Any = module
    for part in name.split(".")[:-1]:
        found = getattr(found, part)
    # A static method needs none, and a class method has its class already.
    static = isinstance(
        inspect.getattr_static(found, name.rpartition(".")[2], None), staticmethod | classmethod
    )
    return found if inspect.isclass(found) and not static else None


def _methods(cls: type[Any]) -> list[Any]:
    """Return the public methods of a class whose calls need no names."""
    return [
        method
        for name, method in vars(cls).items()
        if not name.startswith("_")
        and inspect.isfunction(method)
        and not inspect.isasyncgenfunction(method)
        and all(one.kind is not one.KEYWORD_ONLY for one in parameters_of(method))
    ]


def _starts_tasks(value: Any) -> bool:
    pending = [code] if isinstance(code := getattr(value, "__code__", None), CodeType) else []
    while pending:
        code = pending.pop()
        if _STARTS_TASKS.intersection(code.co_names):
            return True
        pending += [const for const in code.co_consts if isinstance(const, CodeType)]
    return False


@attrs.define(eq=False)
class _Test:
    """A test that is being written."""

    value: Any
    module: ModuleType
    name: str
    kind: Kind
    owner: type[Any] | None
    parameters: Sequence[inspect.Parameter]
    _names: dict[str, set[str]] = attrs.field(factory=dict[str, set[str]], init=False)
    """What is imported from each module; an empty name stands for the module itself."""

    _todos: dict[str, None] = attrs.field(factory=dict[str, None], init=False)

    def text(self) -> str:
        """Write it."""
        if inspect.isclass(self.value):
            body = self._linearizable(self.value)
        else:
            body = self._in_every_order() if self._is_program else self._kept_apart()
        return "\n".join([*self._docstring(), "", *self._imports(), *body, ""])

    @property
    def _is_program(self) -> bool:
        """Whether it starts tasks itself, so that one call is enough."""
        starts = not inspect.isclass(self.value) and _starts_tasks(self.value)
        return self.owner is None and not self.parameters and starts

    # An object that several use at once -----------------------------------------------------------

    def _linearizable(self, cls: type[Any]) -> list[str]:
        self._import("harness.testing", "assert_linearizable")
        operations: list[str] = []
        name = self._named(self.name)
        for method in _methods(cls):
            needed = parameters_of(method, skip_first=True)
            guesses = self._noted(guesses_for(method, needed))
            for one, guess in zip(needed, guesses, strict=True):
                if guess.type_source:
                    todo = f"{one.name} of {method.__name__}() takes {guess.type_source}"
                    self._todos[todo] = None
            rows = zip(*(one.values or ("None",) * COUNT for one in guesses), strict=True)
            # With two values for each, calls can agree in one, and differ in another.
            shown = [f"({name}.{method.__name__}, {', '.join(row)})" for row in rows][:2]
            operations += shown or [f"{name}.{method.__name__}"]
        made = self._made(cls)
        make = name if made.endswith("()") else f"lambda: {made}"
        todos = [line for todo in self._todos for line in comment(f"TODO: {todo}")]
        listed = [line[4:] for line in fitted(f"    operations = [{', '.join(operations)}]")]
        test = f"def test_{snake_case(self.name)}_does_right_by_several_callers() -> None:"
        lines = [*todos, *listed, f"assert_linearizable({make}, operations)"]
        return ["", "", test, *(f"    {line}" for line in lines)]

    # A program that starts its own tasks ----------------------------------------------------------

    def _in_every_order(self) -> list[str]:
        self._import("harness.testing", "explore_schedules")
        call = f"{self._named(self.name)}()"
        call = call if self.kind == "threads" else f"await {call}"
        check = getattr(self.module, "check", None)
        if inspect.isfunction(check) and len(parameters_of(check)) == 1:
            line = f"    {self._named('check')}({call})"
        else:
            line = f"    {call}  # TODO: assert what must hold of what it returns"
        test = f"def test_{snake_case(self.name)}_in_every_order() -> None:"
        if self.kind == "threads":
            return ["", "", "@explore_schedules", test, line]
        explored = ["", "", "@explore_schedules", "async def explored() -> None:", line]
        run = "trio.run(explored)" if self.kind == "trio" else "asyncio.run(explored())"
        self._import(self.kind)
        return [*explored, "", "", test, f"    {run}"]

    # Calls that should know nothing of each other -------------------------------------------------

    def _kept_apart(self) -> list[str]:
        self._import("harness.testing", "assert_isolated")
        guesses = self._noted(guesses_for(self.value, self.parameters))
        lines, function = self._function()
        calls = self._call(function)
        is_drawn = any(guess.type_source for guess in guesses)
        inputs = "inputs" if is_drawn else "INPUTS"
        above: list[str] = []
        if is_drawn:
            above = self._drawn(guesses)
        elif len(self.parameters) == 1 and isinstance(getattr(self.module, "INPUTS", None), list):
            self._todos.clear()
            inputs = self._named("INPUTS")
        else:
            above = fitted(f"INPUTS = [{', '.join(self._inputs(guesses))}]")
        lines += [*calls, *self._run("call" if calls else function, inputs, is_drawn=is_drawn)]
        todos = [line for todo in self._todos for line in comment(f"TODO: {todo}")]
        # Decorators belong to the test; variables stand apart.
        if is_drawn:
            above = ["", "", *todos, *above]
        elif todos or above:
            above = ["", *todos, *above, "", ""]
        else:
            above = ["", ""]
        parameter = "inputs: list[Any]" if is_drawn else ""
        test = f"def test_{snake_case(self.name)}_keeps_its_calls_apart({parameter}) -> None:"
        return [*above, test, *(f"    {line}".rstrip() for line in lines)]

    def _function(self) -> tuple[list[str], str]:
        """Return lines that make the object of a method, if it needs one, and what is called."""
        if self.owner is None:
            return [], self._named(self.name)
        return (
            fitted(f"subject = {self._made(self.owner)}"),
            f"subject.{self.name.rpartition('.')[2]}",
        )

    def _made(self, cls: type[Any]) -> str:
        """Return how an object of a class is made."""
        needed = parameters_of(cls)
        given: list[str] = []
        for one, guess in zip(needed, self._noted(guesses_for(cls, needed)), strict=True):
            if guess.type_source:
                self._todos[f"{one.name} of {cls.__name__} takes {guess.type_source}"] = None
            value = guess.values[0] if guess.values else "None"
            given.append(f"{one.name}={value}" if one.kind is one.KEYWORD_ONLY else value)
        name = self.name if cls is self.value else self.name.rpartition(".")[0]
        return f"{self._named(name)}({', '.join(given)})"

    @property
    def _takes_one(self) -> bool:
        return [one.kind is not one.KEYWORD_ONLY for one in self.parameters] == [True]

    def _call(self, function: str) -> list[str]:
        """Return a function of one argument that makes the call; none if it takes just one."""
        is_stream = inspect.isasyncgenfunction(inspect.unwrap(self.value))
        if self._takes_one and not is_stream:
            return []
        self._import("typing", "Any")
        names = [one.name for one in self.parameters]
        by_name = [one.kind is one.KEYWORD_ONLY for one in self.parameters]
        given = [f"{name}={name}" if by else name for name, by in zip(names, by_name, strict=True)]
        made = f"{function}({', '.join(given)})"
        if is_stream:
            made = f"[part async for part in {made}]"
        elif self.kind != "threads":
            made = f"await {made}"
        taken, unpacked = "given: tuple[Any, ...]", [f"    {', '.join(names)} = given"]
        if self._takes_one:
            taken, unpacked = f"{names[0]}: Any", []
        elif not names:
            taken, unpacked = "number: int", []
        elif len(names) == 1:
            unpacked = [f"    ({names[0]},) = given"]
        prefix = "def" if self.kind == "threads" else "async def"
        returned = [line[4:] for line in fitted(f"        return {made}")]
        return ["", f"{prefix} call({taken}) -> Any:", *unpacked, *returned, ""]

    def _inputs(self, guesses: Sequence[Guess]) -> list[str]:
        if not guesses:
            return [str(number + 1) for number in range(COUNT)]
        rows = zip(*(guess.values for guess in guesses), strict=True)
        if self._takes_one:
            return [value for (value,) in rows]
        return [f"({row[0]},)" if len(row) == 1 else f"({', '.join(row)})" for row in rows]

    def _drawn(self, guesses: Sequence[Guess]) -> list[str]:
        """Return the decorators that have Hypothesis draw the inputs."""
        self._import("typing", "Any")
        for name in ("given", "settings", "strategies as st"):
            self._import("hypothesis", name)
        each = [
            f"st.from_type({guess.type_source})"
            if guess.type_source
            else f"st.sampled_from([{', '.join(guess.values)}])"
            for guess in guesses
        ]
        one = each[0] if self._takes_one else f"st.tuples({', '.join(each)})"
        drawn = f"@given(st.lists({one}, min_size=2, max_size=3, unique_by=repr))"
        return ["@settings(max_examples=5, deadline=None)", *fitted(drawn)]

    def _run(self, function: str, inputs: str, *, is_drawn: bool) -> list[str]:
        given = f"{function}, {inputs}"
        if is_drawn:
            given += f", schedules={DRAWN_SCHEDULES}"
        if self.kind == "trio":
            self._import("trio")
            run = f"trio.run(assert_isolated, {given})"
            if is_drawn:
                self._import("functools", "partial")
                run = f"trio.run(partial(assert_isolated, {given}))"
        else:
            self._import("asyncio")
            run = f"asyncio.run(assert_isolated({given}))"
        return [line[4:] for line in fitted(f"    {run}")]

    # What is above it -----------------------------------------------------------------------------

    def _noted(self, guesses: list[Guess]) -> list[Guess]:
        for guess in guesses:
            for module, name in guess.imports:
                self._import(module, name)
            if guess.todo:
                self._todos[guess.todo] = None
        return guesses

    def _import(self, module: str, name: str = "") -> None:
        self._names.setdefault(module, set()).add(name)

    def _named(self, name: str) -> str:
        """Return what the test calls something in the module, and have it imported."""
        if all(part.isidentifier() for part in self.module.__name__.split(".")):
            self._import(self.module.__name__, name.partition(".")[0])
            return name
        self._import("importlib", "import_module")  # Its name can't be in an import statement.
        return f"program.{name}"

    def _imports(self) -> list[str]:
        plain = sorted(module for module, names in self._names.items() if "" in names)
        lines = [f"import {module}" for module in plain]
        for module, names in sorted(self._names.items()):
            if named := ", ".join(sorted(names - {""})):
                lines += fitted_import(module, named)
        if "importlib" in self._names:
            lines += ["", f'program = import_module("{self.module.__name__}")']
        return lines

    def _docstring(self) -> list[str]:
        place = f"{self.module.__name__}:{self.name}"
        question = f"Does {place} do the same in every order of its tasks?"
        if inspect.isclass(self.value):
            question = f"Does {place} do the right thing for several callers at once?"
        elif not self._is_program:
            question = f"Do calls of {place} know nothing of each other?"
        findings = [f"{one.rule} in line {one.line}: {one.message}" for one in self._findings()]
        written = f"Written by `harness ghostwrite {place}`."
        written += " The audit finds:" if findings else " The audit finds nothing there."
        return [f'"""{question}', "", *textwrap.wrap(written, WIDTH), *_listed(findings), '"""']

    def _findings(self) -> list[Finding]:
        """Return what the audit finds in the function, or in the class or program that it is."""
        file = getattr(self.module, "__file__", None)
        if not file or not file.endswith(".py"):
            return []
        about = self.name if self.owner is None else self.name.rpartition(".")[0]
        return [
            one
            for one in audit_paths([file])
            if self._is_program
            or f"{one.function}.".startswith(f"{about}.")
            or one.symbol.startswith(f"{about}.")
        ][:FINDINGS_AT_MOST]


def fitted_import(module: str, names: str) -> list[str]:
    """Return an import statement, in several lines if it has to be."""
    line = f"from {module} import {names}"
    if len(line) <= WIDTH:
        return [line]
    return [f"from {module} import (", *(f"    {name}," for name in names.split(", ")), ")"]


def _listed(items: Iterable[str]) -> list[str]:
    """Return a list as part of a docstring."""
    return [
        line.replace("\\", "\\\\").replace('"""', "'''")
        for item in items
        for line in textwrap.wrap(item, WIDTH - 4, initial_indent="- ", subsequent_indent="  ")
    ]
