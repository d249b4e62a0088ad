"""What can be reached is found, by the shortest path, and named as a reader would."""

import array
import functools
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trio
import trio.lowlevel

from harness.errors import ScheduleError
from harness.testing import assert_isolated
from harness.testing.isolation._declared import checks_of
from harness.testing.objects import _reach
from harness.testing.objects._places import place_of_definition
from harness.testing.objects._reach import Reached
from tests.testing.isolation import kinds, library

HERE = __name__


class Tool:
    made: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.notes: dict[str, list[str]] = {"a": []}
        self.view = types.MappingProxyType({"b": [1]})
        self.pair = ([], {1})

    @staticmethod
    def count() -> int:
        return len(COUNTED)

    @property
    def first(self) -> str:
        return FIRST[0]

    @functools.cached_property
    def late(self) -> str:
        return LATE[0]


COUNTED: list[int] = []
FIRST = ["x"]
LATE = ["x"]
NUMBERS = array.array("i", [1])
TOOL = Tool()
BASE: dict[str, int] = {}
ADD = Tool.made.append


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


@decorated
def uses_tool(extra: Any = None) -> Any:
    return TOOL, extra, NUMBERS


def uses_a_module() -> Any:
    return kinds.STATE, library.api_key


def uses_a_bound_method() -> Any:
    return ADD


bound = functools.partial(uses_tool, BASE)


def paths_from(function: Callable[..., Any]) -> set[str]:
    reached = Reached()
    reached.add(place_of_definition(function), function)
    assert not reached.cut_short
    return {str(part.place) for part in reached.parts}


def test_through_objects_and_containers() -> None:
    assert paths_from(uses_tool) >= {
        f"{HERE}.TOOL",
        f"{HERE}.TOOL.notes",
        f"{HERE}.TOOL.notes['a']",
        f"{HERE}.TOOL.view['b']",
        f"{HERE}.TOOL.pair[0]",
        f"{HERE}.TOOL.pair[1]",
        f"{HERE}.Tool",
        f"{HERE}.Tool.made",
        f"{HERE}.NUMBERS",
    }


def test_through_methods_of_all_kinds() -> None:
    assert paths_from(uses_tool) >= {f"{HERE}.COUNTED", f"{HERE}.FIRST", f"{HERE}.LATE"}


def test_through_a_module_of_the_users_but_only_what_is_named() -> None:
    found = paths_from(uses_a_module)
    assert "tests.testing.isolation.kinds.STATE" in found
    assert "tests.testing.isolation.kinds.STORE" not in found
    assert not any("library" in path for path in found)


def test_through_a_bound_method_of_a_list() -> None:
    assert f"{HERE}.ADD" in paths_from(uses_a_bound_method)


def test_through_a_partial() -> None:
    reached = Reached()
    reached.add(place_of_definition(uses_tool), bound)
    assert f"{HERE}.uses_tool.args[0]" in {str(part.place) for part in reached.parts}


def test_a_walk_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_reach, "OBJECTS_AT_MOST", 5)
    reached = Reached()
    reached.add(place_of_definition(uses_tool), uses_tool)
    assert reached.cut_short
    assert len(reached.seen) == 5


def test_an_array_of_numpy_is_put_back_in_place() -> None:
    numpy = pytest.importorskip("numpy")
    numbers = numpy.arange(6).reshape(2, 3)
    reached = Reached()
    reached.add(place_of_definition(uses_tool), {"numbers": numbers})
    (part,) = [part for part in reached.parts if part.kind == "numpy array"]
    before = part.take()
    numbers[1, 2] = 7
    assert part.changed(before, part.take())
    part.put(before)
    assert numbers.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("path", ["TOOL.notes['a']", "TOOL.pair[0]", "Tool.made", "BASE"])
def test_a_path_of_a_report_can_be_declared(path: str) -> None:
    seen: list[Any] = []

    def check(thing: Any) -> bool:
        seen.append(thing)
        return True

    checks_of({f"{HERE}.{path}": check}, {HERE: globals()})
    assert seen == [eval(path)]


@pytest.mark.parametrize("path", ["TOOL.nothing", "TOOL.notes['z']", "TOOL(", "TOOL.first + 1"])
def test_a_path_that_names_nothing_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=r"names nothing|is not an object path"):
        checks_of({f"{HERE}.{path}": bool}, {HERE: globals()})


def test_a_path_of_no_module_is_refused() -> None:
    with pytest.raises(ValueError, match="begins with no module that is loaded"):
        checks_of({"nowhere.THING": bool}, {HERE: globals()})


async def _imports_late(text: str) -> list[str]:
    from harness_test_late import NOTES  # type: ignore[import-not-found]  # noqa: PLC0415

    notes: list[str] = NOTES
    notes.append(text)
    await trio.lowlevel.checkpoint()
    return list(notes)


@pytest.mark.slow
async def test_a_module_that_only_a_run_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first run left in it was taken for how the module begins."""
    (tmp_path / "harness_test_late.py").write_text("NOTES = []\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(_imports_late, ["a", "b"])
    assert caught.value.objects == ("harness_test_late.NOTES",)
    assert sys.modules["harness_test_late"].NOTES == []
    monkeypatch.delitem(sys.modules, "harness_test_late")
