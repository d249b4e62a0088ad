"""Every public name can be found: by ``dir``, which the reference is made from, and by use."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import harness

FOLDERS = [
    "harness",
    "harness.runs",
    "harness.policies",
    "harness.asyncio_bridge",
    "harness.budgets",
    "harness.evals",
    "harness.fanout",
    "harness.fanin",
    "harness.flow",
    "harness.limits",
    "harness.agents",
    "harness.observe",
    "harness.testing",
    "harness.testing.exploration",
    "harness.testing.schedules",
    "harness.testing.provider",
]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_public_name_is_listed_and_can_be_had(folder: str) -> None:
    """Names that are loaded when first used were missing in the reference."""
    module = importlib.import_module(folder)
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("folder", ["harness", "harness.runs", "harness.fanout", "harness.agents"])
def test_a_name_that_does_not_exist_is_an_attribute_error(folder: str) -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = importlib.import_module(folder).nothing


def test_no_two_public_classes_have_one_name() -> None:
    """There were two of ``Batch`` and two of ``Journal``, which readers took for one."""
    found: dict[str, set[type]] = {}
    for place in pkgutil.walk_packages(harness.__path__, "harness."):
        if place.ispkg and "._" not in place.name:
            module = importlib.import_module(place.name)
            for name in module.__all__:
                if isinstance(thing := getattr(module, name), type):
                    found.setdefault(name, set()).add(thing)
    assert len(found) > 100
    assert {name for name, classes in found.items() if len(classes) > 1} == set()


def public_functions() -> dict[str, Callable[..., object]]:
    """Return all public functions and methods, by where they are found first."""
    found: dict[Callable[..., object], str] = {}
    for folder in FOLDERS:
        module = importlib.import_module(folder)
        for name in module.__all__:
            thing = getattr(module, name)
            methods = vars(thing).items() if isinstance(thing, type) else ()
            candidates = {f"{folder}.{name}": thing}
            candidates |= {f"{folder}.{name}.{key}": it for key, it in methods if key[0] != "_"}
            for path, candidate in candidates.items():
                function = inspect.unwrap(getattr(candidate, "__func__", candidate))
                if inspect.isfunction(function) and function.__module__.startswith("harness"):
                    found.setdefault(function, path)
    return {path: function for function, path in found.items()}


@pytest.mark.slow  # It loads every part of harness, and what these need.
def test_the_reference_says_what_a_caller_has_to_know() -> None:
    """It is made from docstrings: arguments, and of what is async, when it lets others run."""
    missing: list[str] = []
    functions = public_functions()
    assert len(functions) > 200
    for path, function in functions.items():
        said = function.__doc__ or ""
        needed = ["Checkpoint:", "Cancellation:"] if inspect.iscoroutinefunction(function) else []
        if len(set(inspect.signature(function).parameters) - {"self", "cls"}) > 1:
            needed.append("Args:")
        if not said or any(word not in said for word in needed):
            missing.append(path)
    assert missing == []


@pytest.mark.slow
def test_no_module_has_any_name_for_a_type_checker() -> None:
    """Where a type checker sees ``__getattr__``, it takes every misspelt name of the module."""
    for path in Path(harness.__path__[0]).rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            assert getattr(node, "name", "") != "__getattr__", path
            assert "__getattr__" not in assigned(node), path


def assigned(node: ast.stmt) -> set[str]:
    """Return the names that a statement of a module assigns to."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    return {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}


@pytest.mark.slow
def test_import_harness_loads_nothing_that_few_programs_use() -> None:
    """Each of these takes part of a millisecond, of the few that ``import harness`` may take."""
    few = {
        "datetime",
        "harness.budgets",
        "harness.fanin",
        "harness.fanout._by_priority",
        "harness.fanout._lookahead",
        "harness.runs._strays",
    }
    code = f"import attrs, trio, sys; before = set(sys.modules); import harness; few = {few}\n"
    code += "loaded = (few & set(sys.modules)) - before; assert not loaded, loaded"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_nothing_but_the_bridge_and_the_kit_loads_asyncio() -> None:
    """A program on trio has no use for it."""
    code = (
        "import sys, harness, harness.budgets, harness.fanin, harness.fanout, harness.flow, "
        "harness.limits, harness.policies, harness.runs, harness.shared\n"
        "for name in harness.__all__: getattr(harness, name)\n"
        "assert 'asyncio' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
