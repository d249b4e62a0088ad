"""Hold the package to its floors: imports point down, are at the top, and respect privacy.

The rules read source files and run nothing, so an import that only happens sometimes, or only for
a type checker, counts like any other.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

PACKAGE = Path(__file__).parent.parent / "harness"

FLOORS = {
    "errors": 0,
    "_version": 0,
    "_approvals": 0,
    "_arguments": 0,
    "_async_with": 0,
    "_budget": 0,
    "_clock_hold": 0,
    "_content": 0,
    "_error_copies": 0,
    "_events": 0,
    "_frames": 0,
    "_http_dates": 0,
    "_is_journal": 0,
    "_json_value": 0,
    "_lazy": 0,
    "_outside_trio": 0,
    "_pace": 0,
    "_pickled_errors": 0,
    "_root_errors": 0,
    "_too_large": 0,
    "_tracebacks": 0,
    "_value_types": 0,
    "_words": 0,
    "runs": 1,
    "policies": 1,
    "asyncio_bridge": 2,
    "budgets": 2,
    "fanout": 2,
    "limits": 2,
    "shared": 2,
    "_progress": 3,
    "fanin": 3,
    "flow": 3,
    "journal": 3,
    "models": 3,
    "agents": 4,
    "observe": 4,
    "testing": 4,
    "cluster": 5,
    "evals": 5,
    "cli": 6,
    "__main__": 7,
}
"""The floor of each file or folder of the package. ``harness/__init__.py`` is the roof."""

INNER_FLOORS: dict[str, dict[str, int]] = {
    "testing": {
        "_asked": 0,
        "_clock": 0,
        "_outcomes": 0,
        "_shares": 0,
        "_users_code": 0,
        "schedules": 1,
        "objects": 2,
        "audit": 3,
        "chaos": 3,
        "exploration": 3,
        "isolation": 3,
        "provider": 3,
        "strategies": 3,
        "verification": 3,
        "ghostwriting": 4,
        "linearizability": 4,
        "pytest_plugin": 4,
    },
}
"""The floors inside of a folder, which is built by the same rules: its ``__init__.py`` is the roof.

A folder without an entry has none.
"""

CORE = {
    "errors",
    "_version",
    "_approvals",
    "_arguments",
    "_async_with",
    "_budget",
    "_clock_hold",
    "_content",
    "_error_copies",
    "_events",
    "_frames",
    "_http_dates",
    "_is_journal",
    "_json_value",
    "_lazy",
    "_pace",
    "_pickled_errors",
    "_root_errors",
    "_too_large",
    "_tracebacks",
    "_value_types",
    "_words",
    "runs",
    "policies",
    "asyncio_bridge",
    "budgets",
    "fanin",
    "fanout",
    "shared",
    "flow",
    "limits",
}
"""What must work with the core dependencies alone."""

CORE_MAY_IMPORT = {"trio", "attrs", "outcome"} | sys.stdlib_module_names

PRIVATE_IMPORTS_ALLOWED: dict[tuple[str, str], str] = {
    # (importing folder, private module of another folder): why its public names don't do.
    ("cli", "harness.runs._functions"): "a forgotten await is told in the same words as in Python",
    ("evals", "harness.journal._export"): "scores replace an earlier file once all are written",
    ("evals", "harness.fanout._plan"): "what belongs to an attempt is told as by a fan-out",
    ("fanout", "harness.runs._observers"): "what an item tells is kept by one of its observers",
    ("fanout", "harness.runs._keys"): "a step's effects have a key made from its item's",
    ("fanout", "harness.runs._carry"): (
        "an attempt is the body of a run in a task made for it alone; as a public name it "
        "would let users make runs that no block waits for"
    ),
    ("fanout", "harness.runs._current"): (
        "an item's task enters the run of the fan-out; as a public name the variable would "
        "let any code change the run it belongs to"
    ),
    ("fanout", "harness.runs._cleanup"): (
        "the owner of an async source can't enter a cleanup block, which would not nest with "
        "the scopes a generator holds open; it gives its own scope the deadline of one"
    ),
    ("fanout", "harness.runs._endings"): "a cancel is told from an error as runs tell it",
    ("fanout", "harness.runs._yields"): "a stream across a yield is noticed as a run is",
    ("fanout", "harness.runs._functions"): "functions are named and refused as by runs",
    ("fanout", "harness.runs._run"): "the type of an ending is of use to engines only",
    ("fanout", "harness.runs._scopes"): "trio is told the reason of a cancel as by runs",
    ("fanout", "harness.policies._checks"): (
        "what is no policy is refused where it is given, with the name of the call; nobody else "
        "is given any"
    ),
    ("agents", "harness.models._notices"): "a tool call is told to observers as a model's call is",
    ("fanout", "harness.runs._waits"): (
        "waits are told to observers by whoever makes a run wait; as a public name it would let "
        "any code add to a trace what it can't know"
    ),
    ("fanout", "harness.runs._notices"): "what observers are told is made as runs make it",
    ("flow", "harness.runs._waits"): "as in a fan-out",
    ("limits", "harness.runs._waits"): "as in a fan-out",
    ("models", "harness.runs._waits"): "as in a fan-out",
    ("shared", "harness.runs._waits"): "as in a fan-out",
    ("models", "harness.runs._endings"): "a cancel is told from an error as runs tell it",
    ("observe", "harness.runs._frames"): "a stack is shown without trio's frames, as runs show one",
    ("limits", "harness.runs._tree"): "a limiter tells its trio run from others as a run does",
    ("_progress", "harness.fanout._watch"): (
        "a display is told of fan-outs, whose counts are the inside of the engine"
    ),
    ("cluster", "harness.fanout._fan_out"): "its fan-out is one whose calls are made elsewhere",
    ("cluster", "harness.fanout._limit"): "it has the arguments of a fan-out",
    ("cluster", "harness.fanout._plan"): "it has the arguments of a fan-out, and their defaults",
    ("cluster", "harness.fanout._tries"): "it has the arguments of a fan-out, and their defaults",
    ("cluster", "harness.runs._accounts"): "what a worker spends is spent by the driver's run",
    ("cluster", "harness.runs._current"): "a log record of a worker belongs to the run here",
    ("cluster", "harness.runs._carry"): (
        "a worker makes the driver's attempt, in a task made for it alone; as a public name it "
        "would let users make runs that no block waits for"
    ),
    ("cluster", "harness.runs._notices"): "what observers are told is taken apart to be sent",
    ("cluster", "harness.runs._observers"): "what a worker's runs do is told to the driver's",
    ("cluster", "harness.runs._run"): "a worker's run has the key that the driver's has",
    ("cluster", "harness.runs._tree"): "a worker's run has the place that the driver's has",
    ("cluster", "harness.limits._across_processes._server_grants"): (
        "as over a file, the limits of a fleet are kept by the inside of limits"
    ),
    ("cluster", "harness.limits._across_processes._server_link"): (
        "the client of a server satisfies the protocol that the limits own"
    ),
    ("cluster", "harness.shared._cache"): "a cache of a fleet calls its loads as any cache does",
    ("cluster", "harness.shared._idempotency_keys"): (
        "words that are the same in every process name an effect, and what was loaded"
    ),
    ("cluster", "harness.limits._across_processes._shared_grants"): (
        "a fleet's limiter is a limiter that keeps its state with other processes; how is the "
        "inside of limits"
    ),
    ("cli", "harness.limits._other_processes"): (
        "a batch says in its own words that another keeps limits beside it"
    ),
    ("cluster", "harness.limits._across_processes._look"): (
        "a limiter on a server looks like one in a file"
    ),
    ("cli", "harness.fanout._watch"): "the command line has a bar of its own, and hides others",
    ("cli", "harness.observe._live"): "a batch shows what it counts itself",
    ("cli", "harness.observe._forecast"): (
        "a batch forecasts itself from what it counts; a program would first have to count that"
    ),
    ("cli", "harness.runs._accounts"): (
        "an agent's item is forecast by what its calls use, whether there is a budget or not"
    ),
    ("cli", "harness.observe._socket"): "the commands that look are no part of the library",
    ("observe", "harness.fanout._watch"): "it counts fan-outs for the whole program, as progress",
    ("observe", "harness.runs._current"): "it finds the run of each task, as a dump does",
    ("flow", "harness.fanout._engine"): (
        "a pipeline and a router are the engine with other work for each item; as a public name "
        "the engine would freeze what is the inside of every fan-out"
    ),
    ("flow", "harness.fanout._job"): "the job of an item is what walks, and is the engine's own",
    ("flow", "harness.fanout._attempts"): "a stage makes attempts with a fan-out's own code",
    ("flow", "harness.fanout._tries"): "a stage counts them as a fan-out does",
    ("flow", "harness.fanout._fan_out"): "results are gathered by the same code as a fan-out's",
    ("flow", "harness.fanout._plan"): "what is asked for is held and checked as for a fan-out",
    ("flow", "harness.fanout._ledger"): "a journal records items on their way as a fan-out's",
    ("flow", "harness.fanout._steps"): "a plan says what the journal is to record of each item",
    ("flow", "harness.fanout._journal_steps"): "the one way to a journal, loaded only with one",
    ("evals", "harness.runs._functions"): "functions are named and refused as by runs",
    ("flow", "harness.runs._carry"): (
        "an item, an output and a batch are each the body of a run in a task made for it alone"
    ),
    ("shared", "harness.runs._current"): "an entry in no run gets the error that current_run has",
    ("flow", "harness.runs._cleanup"): "a stop is kept off by a cleanup block as in a fan-out",
    ("flow", "harness.runs._inner_scope"): "a run knows of the scope that a stage puts around it",
    ("flow", "harness.runs._current"): "an item's task enters the run of the pipeline",
    ("flow", "harness.runs._endings"): "a cancel is told from an error as runs tell it",
    ("flow", "harness.runs._frames"): "an attempt that timed out says where, as a run does",
    ("flow", "harness.runs._functions"): "functions are named and refused as by runs",
    ("flow", "harness.runs._run"): "the type of an ending is of use to engines only",
    ("flow", "harness.runs._scopes"): "trio is told the reason of a cancel as by runs",
    ("agents", "harness.runs._carry"): (
        "an agent that is streamed is the body of a run in a task made for it alone"
    ),
    ("agents", "harness.runs._functions"): "functions are named and refused as by runs",
    ("agents", "harness.models._sending"): "an agent listens; users' models only speak",
    ("agents", "harness.runs._cleanup"): "a stop is kept off by a cleanup block as in a fan-out",
    ("agents", "harness.runs._endings"): "a cancel is told from an error as runs tell it",
    ("agents", "harness.runs._yields"): "a stream across a yield is noticed as a run is",
    ("agents", "harness.runs._keys"): (
        "who carries out a tool call names the effects in it; as a public name it would let any "
        "code rename them"
    ),
    ("agents", "harness.runs._events"): "a stream reads ready events as a subscription does",
    ("agents", "harness.runs._waiting"): (
        "an agent's last event comes after those of the tasks that tools gave to its run"
    ),
    ("budgets", "harness.runs._accounts"): (
        "a run's budgets are its own; as a public name they could be charged for another run"
    ),
    ("shared", "harness.runs._accounts"): "the load of a cache is paid by whoever started it",
    ("shared", "harness.runs._endings"): "a cancel is told from an error as runs tell it",
    ("shared", "harness.runs._functions"): "functions are named and refused as by runs",
    ("models", "harness.runs._functions"): "functions are named and refused as by runs",
    ("models", "harness.runs._accounts"): (
        "before every call it is asked whether anybody counts, and most often nobody does"
    ),
    ("fanout", "harness.runs._accounts"): (
        "an attempt of a journaled fan-out has a meter of its own, and budgets are charged "
        "what earlier sessions used; as a public name it would let any code add meters to any "
        "run"
    ),
    ("journal", "harness.fanout._journal_ledger"): (
        "the parts of a journaled engine are handed out by the journal, so that nobody else loads "
        "them; they are the inside of a fan-out as the engine is"
    ),
    ("journal", "harness.runs._keys"): "an item's key is made as runs make the keys below it",
    ("journal", "harness.fanout._journal"): "which batch it is goes with those parts",
    ("journal", "harness.fanout._kept"): "what is kept of an item is said where it runs",
    ("journal", "harness.fanout._steps"): "the code of each step is compared, as a function's",
    ("journal", "harness.fanout._plan"): "what was asked for goes with those parts",
    ("journal", "harness.fanout._source"): "where the items come from goes with those parts",
    ("agents", "harness.models._file"): (
        "an agent makes contents of prompts and results as models check them; users write the "
        "tuple, or give the agent a list"
    ),
    ("testing", "harness.models._file"): "the simulated provider knows a file by its first bytes",
    ("testing", "harness.models._file_sizes"): (
        "the simulated provider counts files as models expect the real one to"
    ),
    ("agents", "harness.models._sizes"): "a history is as long as a model's own guess says",
    ("agents", "harness.models._messages"): (
        "an agent refuses of any model what models refuse of the functions they are made of"
    ),
    ("asyncio_bridge", "harness.runs._endings"): "a cancel is told from an error as runs tell it",
    ("asyncio_bridge", "harness.runs._functions"): "functions are named and refused as by runs",
    ("asyncio_bridge", "harness.runs._run"): (
        "clean-up in asyncio has the time that clean-up has in a run"
    ),
    ("testing", "harness.runs._current"): (
        "a checked function is run in a loop of its own, outside the caller's run"
    ),
    ("testing", "harness.runs._frames"): "what is the user's code, and where it is, as runs say it",
    ("testing", "harness.runs._functions"): "functions are named and refused as by runs",
    ("testing", "harness.runs._yields"): (
        "a controlled program notes the runs that generators hold; as a public name it would let "
        "any code turn the warning into an error"
    ),
    ("testing.objects", "harness.testing.schedules._control"): (
        "the frames of a task are read as the control of its steps reads them"
    ),
    ("testing.objects", "harness.testing.schedules._thread_locks"): (
        "a lock under control is as little looked into as the one that it stands for"
    ),
    ("testing.isolation", "harness.testing.schedules._strand"): (
        "a plain function that returned a coroutine is refused in the same words"
    ),
    (
        "testing.audit",
        "harness.testing.schedules._run_schedule",
    ): "a loop in a loop is refused in one way",
    (
        "testing.verification",
        "harness.testing.schedules._run_schedule",
    ): "a loop in a loop is refused in one way",
    ("testing.strategies", "harness.testing.exploration._timeline"): (
        "the order of steps is told as for an explored test"
    ),
    ("testing.strategies", "harness.testing.schedules._kinds"): (
        "what kind of program the rules are is told as for a test"
    ),
    ("testing.linearizability", "harness.testing.exploration._timeline"): (
        "the order of steps is told as for an explored test"
    ),
    ("testing.linearizability", "harness.testing.schedules._at_the_switch"): (
        "a failure is held for a debugger, which only the pytest plugin opens"
    ),
    ("testing.linearizability", "harness.testing.schedules._kinds"): (
        "what kind of program an object belongs to is told as for a test"
    ),
    ("testing.linearizability", "harness.testing.schedules._strand"): (
        "a coroutine that nobody awaits is refused as everywhere in the kit"
    ),
    ("testing.linearizability", "harness.testing.schedules._thread"): (
        "only one search at a time puts back what the process shares"
    ),
    ("testing.ghostwriting", "harness.testing.schedules._kinds"): (
        "what kind of program a function belongs to is told as when it is run"
    ),
    ("testing.exploration", "harness.testing.schedules._at_the_switch"): (
        "a failure is held for a debugger, which only the pytest plugin opens"
    ),
    ("testing.isolation", "harness.testing.schedules._at_the_switch"): (
        "a failure is held for a debugger, which only the pytest plugin opens"
    ),
    ("testing.exploration", "harness.testing.schedules._blocked"): (
        "a story calls a task what a deadlock calls it"
    ),
    ("testing.exploration", "harness.testing.schedules._control"): (
        "the frames of a task are read as the control of its steps reads them"
    ),
    ("testing.exploration", "harness.testing.schedules._find_cancel"): (
        "cancels are found for a decorator; a user's own check of one is `after_cancel`"
    ),
    ("testing.exploration", "harness.testing.schedules._permits"): (
        "what a program takes is noted as long as an exploration lasts; nobody else looks at it"
    ),
    ("testing.exploration", "harness.testing.schedules._run_schedule"): (
        "a replay puts back what fixtures hold before it is begun as another kind"
    ),
    ("testing.exploration", "harness.testing.schedules._task_cancels"): (
        "an exploration makes its test a program whose tasks can be cancelled"
    ),
    ("testing", "harness.limits._reservation"): (
        "the places that reservations hold are told apart from those of other programs by the "
        "reservation; a limiter's statistics only say how many there are"
    ),
    ("testing.exploration", "harness.testing.schedules._ways"): (
        "a decorator refuses a way to search before its test runs, as the search itself would"
    ),
    ("testing.exploration", "harness.testing.schedules._kinds"): (
        "a test's marker says what kind it is, and what is given as backend= is checked"
    ),
    ("testing.exploration", "harness.testing.schedules._other_loops"): (
        "errors of two loops are told by trio's words, which nobody should build on"
    ),
    ("testing.exploration", "harness.testing.schedules._thread"): (
        "checks of a whole process take turns; users have ``trio.to_thread``"
    ),
    ("testing.isolation", "harness.testing.schedules._choosers"): (
        "a run alone has its own tasks in random orders; how one is drawn may change"
    ),
    ("testing.isolation", "harness.testing.schedules._control"): (
        "the frames of a task are read as the control of its steps reads them"
    ),
    ("testing.isolation", "harness.testing.schedules._kinds"): (
        "the kind of a function that is checked is told as a program's is"
    ),
    ("testing.isolation", "harness.testing.schedules._other_loops"): (
        "errors of two loops are told by trio's words, which nobody should build on"
    ),
    ("testing.isolation", "harness.testing.schedules._run_schedule"): (
        "a trial runs what a search wants to see, and the search is the inside of a folder"
    ),
    ("testing.isolation", "harness.testing.schedules._schedule"): (
        "a trial's replay string begins with the same version"
    ),
    ("testing.isolation", "harness.testing.schedules._search"): (
        "trials are searched as programs are; as public names the parts of a search would freeze"
    ),
    ("testing.isolation", "harness.testing.schedules._shrink"): (
        "a failing trial is shrunk by the same steps as a failing program"
    ),
    ("testing.isolation", "harness.testing.schedules._thread_pools"): (
        "plain functions in turn share a thread; users have pools of their own"
    ),
    ("testing.isolation", "harness.testing.schedules._thread"): (
        "checks of a whole process take turns; users have ``trio.to_thread``"
    ),
}


@attrs.frozen
class Import:
    """One name that a module imports."""

    module: str
    """The importing module, in full."""

    target: str
    """The module that is imported, or imported from, in full."""

    name: str | None
    """What is taken from it; None for ``import target``."""

    line: int

    inside: str | None
    """The function it stands in, if any."""

    level: int
    """The number of dots before a relative import."""

    for_checkers: bool
    """Whether it stands under ``if TYPE_CHECKING:``."""

    def __str__(self) -> str:
        return f"{self.module}:{self.line}"


def module_name(package: Path, path: Path) -> str:
    """Return the full name of the module in ``path``."""
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(package: Path, path: Path, known: set[str]) -> Iterator[Import]:
    """Yield everything that the file imports, wherever in the file."""
    module = module_name(package, path)

    def walk(node: ast.AST, inside: str | None, checkers: bool) -> Iterator[Import]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            name = "lambda" if isinstance(node, ast.Lambda) else node.name
            inside = name if inside is None else f"{inside}.{name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, alias.name, None, node.lineno, inside, 0, checkers)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            for alias in node.names:
                target, name = source, alias.name
                if f"{source}.{name}" in known:  # `from harness import errors` takes a module.
                    target, name = f"{source}.{name}", None
                yield Import(module, target, name, node.lineno, inside, node.level, checkers)
        for child in ast.iter_child_nodes(node):
            is_for = (
                isinstance(node, ast.If)
                and ast.unparse(node.test) == "TYPE_CHECKING"
                and child not in node.orelse
            )
            yield from walk(child, inside, checkers or is_for)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), None, False)


def circle_in(edges: dict[str, set[str]]) -> list[str] | None:
    """Return the nodes of one circle, from its smallest back to that again, or None."""
    done: set[str] = set()

    def visit(node: str, trail: list[str]) -> list[str] | None:
        if node in trail:
            circle = trail[trail.index(node) :]
            start = circle.index(min(circle))
            return [*circle[start:], *circle[:start], circle[start]]
        if node in done:
            return None
        for target in sorted(edges.get(node, ())):
            found = visit(target, [*trail, node])
            if found is not None:
                return found
        done.add(node)
        return None

    for node in sorted(edges):
        found = visit(node, [])
        if found is not None:
            return found
    return None


def exported(path: Path) -> set[str]:
    """Return the names in the file's ``__all__``."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            assert node.value is not None
            return set(ast.literal_eval(node.value))
    return set()


def violations(
    package: Path,
    *,
    floors: dict[str, int],
    core: set[str],
    allowed: dict[tuple[str, str], str],
    inner: dict[str, dict[str, int]],
) -> list[str]:
    """Return every breach of the rules in the package, a sentence each."""
    root = package.name
    paths = sorted(package.rglob("*.py"))
    known = {module_name(package, path) for path in paths}
    found: list[str] = []
    used: set[tuple[str, str]] = set()
    module_edges: dict[str, set[str]] = {}
    unit_edges: dict[str, set[str]] = {}

    houses = {root: floors} | {f"{root}.{folder}": its for folder, its in inner.items()}

    def is_in(house: str, module: str) -> bool:
        return f"{module}.".startswith(f"{house}.")

    def unit_of(house: str, module: str) -> str:
        return module.removeprefix(house).removeprefix(".").partition(".")[0]

    for path in paths:
        module = module_name(package, path)
        mine = [house for house in houses if is_in(house, module)]
        homeless = [
            f"{module} is on no floor: give {unit_of(house, module)!r} one in {table}"
            for house, table in zip(mine, ("FLOORS", "INNER_FLOORS"), strict=False)
            if module != house and unit_of(house, module) not in houses[house]
        ]
        found += homeless
        if homeless:
            continue
        for one in imports_of(package, path, known):
            if one.level:
                found.append(f"{one} imports by dots: write the name in full")
                continue
            if one.inside is not None:
                found.append(f"{one} imports {one.target} inside {one.inside}(): put it at the top")
            if one.target.split(".")[0] != root:
                top = one.target.split(".")[0]
                if one.for_checkers and top == "typing_extensions":
                    continue  # Checkers bring it along.
                if unit_of(root, module) in core and top not in CORE_MAY_IMPORT:
                    found.append(f"{one} imports {top}, which the core doesn't depend on")
                continue

            for house in mine:
                if not is_in(house, one.target):
                    continue
                heights, is_roof = houses[house], module == house
                if is_roof:
                    taken = one.name or one.target.rpartition(".")[2]
                    # What makes lazy names is used there, and is itself no name to give out.
                    if taken not in exported(path) and one.target != f"{root}._lazy":
                        found.append(f"{one} imports {taken} but doesn't export it in __all__")
                elif one.target == house:
                    roof = f"{house.replace('.', '/')}/__init__.py"
                    found.append(f"{one} imports from the roof, {roof}")
                    break
                unit, target_unit = unit_of(house, module), unit_of(house, one.target)
                if not is_roof and heights.get(target_unit, 0) > heights[unit]:
                    found.append(
                        f"{one} imports up: {unit} (floor {heights[unit]}) "
                        f"from {target_unit} (floor {heights[target_unit]})"
                    )
                    break  # Said once; the circles that it closes would only repeat it.
                if target_unit == unit:
                    continue
                room = f"{house}.{unit}".removeprefix(f"{root}.")
                inside = one.target.removeprefix(f"{house}.{target_unit}").split(".")
                hidden = [part for part in inside if part.startswith("_")]
                if one.name is not None and re.match(r"_(?!_)", one.name):
                    hidden.append(one.name)
                if hidden and (room, one.target) in allowed:
                    used.add((room, one.target))
                elif hidden:
                    found.append(
                        f"{one} imports {one.target}, private to {target_unit}: "
                        "take a public name, or give a reason in PRIVATE_IMPORTS_ALLOWED"
                    )
                target_room = f"{house}.{target_unit}".removeprefix(f"{root}.")
                unit_edges.setdefault(room, set()).add(target_room)
            else:
                module_edges.setdefault(module, set()).add(one.target)

    for kind, edges in (("modules", module_edges), ("folders", unit_edges)):
        circle = circle_in(edges)
        if circle is not None:
            found.append(f"{kind} import in a circle: {' -> '.join(circle)}")
    found += [
        f"{unit} doesn't import {target} any more: drop it from PRIVATE_IMPORTS_ALLOWED"
        for unit, target in allowed
        if (unit, target) not in used
    ]
    return list(dict.fromkeys(found))  # One statement can import several names.


@pytest.mark.slow
def test_imports_point_down() -> None:
    found = violations(
        PACKAGE, floors=FLOORS, core=CORE, allowed=PRIVATE_IMPORTS_ALLOWED, inner=INNER_FLOORS
    )
    assert found == [], "\n".join(["", *found])


# The rules can fail ------------------------------------------------------------------------------

SOUND = {
    "__init__.py": (
        "from house import errors\nfrom house.runs import Run\n__all__ = ['Run', 'errors']"
    ),
    "errors.py": "import sys",
    "_lazy.py": "import dis",
    "runs/__init__.py": "from house.runs._run import Run\n__all__ = ['Run']",
    "runs/_run.py": (
        "import trio\nfrom house.errors import Broken\nfrom house.runs._inbox import Box"
    ),
    "runs/_inbox.py": "from collections import deque",
    "fanout/__init__.py": (
        "from typing import TYPE_CHECKING\nfrom house._lazy import lazy\n"
        "if TYPE_CHECKING:\n    from house.runs import Run\n"
        "else:\n    __getattr__, __dir__ = lazy()"
    ),
    "cli/__init__.py": "import click\nfrom house.fanout import fan_out",
    "testing/__init__.py": "from house.testing.hunts import hunt\n__all__ = ['hunt']",
    "testing/_clock.py": "import trio",
    "testing/things/__init__.py": "from house.testing.things._walk import walk\n__all__ = ['walk']",
    "testing/things/_walk.py": "from house.testing._clock import Clock",
    "testing/hunts/__init__.py": "from house.testing.things import walk",
    "testing/tales/__init__.py": "from house.runs import Run",
}

HOUSE_FLOORS = {
    "errors": 0,
    "_lazy": 0,
    "runs": 1,
    "policies": 1,
    "fanout": 2,
    "testing": 3,
    "cli": 6,
}

HOUSE_INNER_FLOORS = {"testing": {"_clock": 0, "things": 1, "hunts": 2, "tales": 2}}


def breaches(
    folder: Path,
    changes: dict[str, str],
    allowed: dict[tuple[str, str], str] | None = None,
) -> list[str]:
    """Write a small sound package with ``changes`` made to it, and judge it."""
    package = folder / "house"
    for name, text in (SOUND | changes).items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    return violations(
        package,
        floors=HOUSE_FLOORS,
        core={"errors", "_lazy", "runs", "policies", "fanout"},
        allowed=allowed or {},
        inner=HOUSE_INNER_FLOORS,
    )


def test_a_sound_package_passes(tmp_path: Path) -> None:
    assert breaches(tmp_path, {}) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(
            {"runs/_inbox.py": "from house.fanout import fan_out"},
            ["house.runs._inbox:1 imports up: runs (floor 1) from fanout (floor 2)"],
            id="up",
        ),
        pytest.param(
            {
                "runs/_inbox.py": "from typing import TYPE_CHECKING\n"
                "if TYPE_CHECKING:\n    from house.cli import main"
            },
            ["house.runs._inbox:3 imports up: runs (floor 1) from cli (floor 6)"],
            id="up for a type checker only",
        ),
        pytest.param(
            {"runs/_inbox.py": "from house import Run"},
            ["house.runs._inbox:1 imports from the roof, house/__init__.py"],
            id="from the roof",
        ),
        pytest.param(
            {"runs/_inbox.py": "from . import _run"},
            ["house.runs._inbox:1 imports by dots: write the name in full"],
            id="relative",
        ),
        pytest.param(
            {"runs/_inbox.py": "class A:\n    def f(self):\n        import json"},
            ["house.runs._inbox:3 imports json inside f(): put it at the top"],
            id="inside a function",
        ),
        pytest.param(
            {"fanout/__init__.py": "def __getattr__(name):\n    from house.runs import Run"},
            ["house.fanout:2 imports house.runs inside __getattr__(): put it at the top"],
            id="inside a __getattr__",
        ),
        pytest.param(
            {
                "fanout/__init__.py": "from typing import TYPE_CHECKING\n"
                "from house._lazy import lazy\n"
                "if TYPE_CHECKING:\n    from house.cli import main\n"
                "else:\n    __getattr__, __dir__ = lazy()"
            },
            ["house.fanout:4 imports up: fanout (floor 2) from cli (floor 6)"],
            id="up when first used",
        ),
        pytest.param(
            {"fanout/_a.py": "from house.runs._run import Run"},
            [
                "house.fanout._a:1 imports house.runs._run, private to runs: "
                "take a public name, or give a reason in PRIVATE_IMPORTS_ALLOWED"
            ],
            id="a private module",
        ),
        pytest.param(
            {"fanout/_a.py": "from house.runs import _run"},
            [
                "house.fanout._a:1 imports house.runs._run, private to runs: "
                "take a public name, or give a reason in PRIVATE_IMPORTS_ALLOWED"
            ],
            id="a private module, as a name",
        ),
        pytest.param(
            {"fanout/_a.py": "from house.runs import _hidden"},
            [
                "house.fanout._a:1 imports house.runs, private to runs: "
                "take a public name, or give a reason in PRIVATE_IMPORTS_ALLOWED"
            ],
            id="a private name",
        ),
        pytest.param(
            {"runs/_inbox.py": "import click.testing"},
            ["house.runs._inbox:1 imports click, which the core doesn't depend on"],
            id="a dependency of an extra in the core",
        ),
        pytest.param(
            {"runs/_inbox.py": "import house.runs._run"},
            [
                "modules import in a circle: "
                "house.runs._inbox -> house.runs._run -> house.runs._inbox"
            ],
            id="a circle of modules",
        ),
        pytest.param(
            {
                "policies/__init__.py": "from house.policies._a import A\n__all__ = ['A']",
                "policies/_a.py": "import trio",
                "policies/_b.py": "from house.runs import Run",
                "runs/_inbox.py": "from house.policies import A",
            },
            ["folders import in a circle: policies -> runs -> policies"],
            id="a circle of folders within a floor",
        ),
        pytest.param(
            {"__init__.py": "from house.runs import Run\n__all__ = ['errors']"},
            ["house:1 imports Run but doesn't export it in __all__"],
            id="the roof keeps a name for itself",
        ),
        pytest.param(
            {"attic.py": "import trio"},
            ["house.attic is on no floor: give 'attic' one in FLOORS"],
            id="a new folder without a floor",
        ),
        pytest.param(
            {"testing/things/_walk.py": "from house.testing.hunts import hunt"},
            ["house.testing.things._walk:1 imports up: things (floor 1) from hunts (floor 2)"],
            id="up inside a folder",
        ),
        pytest.param(
            {"testing/things/_walk.py": "from house.cli import main"},
            ["house.testing.things._walk:1 imports up: testing (floor 3) from cli (floor 6)"],
            id="up out of a folder with floors",
        ),
        pytest.param(
            {"testing/things/_walk.py": "from house.testing import hunt"},
            ["house.testing.things._walk:1 imports from the roof, house/testing/__init__.py"],
            id="from the roof of a folder",
        ),
        pytest.param(
            {"testing/hunts/_a.py": "from house.testing.things._walk import walk"},
            [
                "house.testing.hunts._a:1 imports house.testing.things._walk, private to things: "
                "take a public name, or give a reason in PRIVATE_IMPORTS_ALLOWED"
            ],
            id="a private module inside a folder",
        ),
        pytest.param(
            {
                "testing/tales/__init__.py": "from house.testing.hunts import hunt",
                "testing/hunts/_a.py": "from house.testing.tales import tell",
            },
            ["folders import in a circle: testing.hunts -> testing.tales -> testing.hunts"],
            id="a circle of folders within an inner floor",
        ),
        pytest.param(
            {"testing/shed/__init__.py": "import trio"},
            ["house.testing.shed is on no floor: give 'shed' one in INNER_FLOORS"],
            id="a new folder without an inner floor",
        ),
    ],
)
def test_each_breach_is_named(tmp_path: Path, changes: dict[str, str], expected: list[str]) -> None:
    assert breaches(tmp_path, changes) == expected


def test_a_private_import_can_be_allowed_and_the_permit_lapses(tmp_path: Path) -> None:
    permit = {("fanout", "house.runs._run"): "measured: the public way costs a call"}
    assert breaches(tmp_path, {"fanout/_a.py": "from house.runs._run import Run"}, permit) == []
    assert breaches(tmp_path, {"fanout/_a.py": "import trio"}, permit) == [
        "fanout doesn't import house.runs._run any more: drop it from PRIVATE_IMPORTS_ALLOWED"
    ]
    permit = {("testing.hunts", "house.testing.things._walk"): "a hunt walks as things do"}
    changes = {"testing/hunts/_a.py": "from house.testing.things._walk import walk"}
    assert breaches(tmp_path / "inner", changes, permit) == []
