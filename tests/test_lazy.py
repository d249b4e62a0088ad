"""Names that are loaded when first used: where from, and what is said where an extra is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = """
from typing import TYPE_CHECKING
from harness._lazy import lazy

if TYPE_CHECKING:
    import needs_nothing
    from needs_extra import first, value, value as number
else:
    __getattr__, __dir__ = lazy({arguments})
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder whose modules can be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("needs_extra", "extra_package"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def lamp(**arguments: object) -> ModuleType:
    """Make a module whose names come from ``needs_extra`` when they are first used.

    It has no file, as in a frozen or zipped program.
    """
    given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    module = ModuleType("lamp")
    exec(PROGRAM.format(arguments=given), module.__dict__)
    return module


EXTRAS = {"extra_package": "shiny"}


def test_a_name_is_loaded_from_the_module_it_is_imported_from_for_type_checkers(
    folder: Path,
) -> None:
    module = lamp()
    assert {"first", "value", "number"} <= set(dir(module))
    assert "needs_extra" not in sys.modules
    (folder / "needs_extra.py").write_text("first = 1\nvalue = 2\n")
    assert (module.first, module.value, module.number) == (1, 2, 2)


def test_any_other_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'lamp' has no attribute 'needs_nothing'"):
        _ = lamp().needs_nothing


def test_a_missing_package_is_named_with_its_extra_and_the_way_without(folder: Path) -> None:
    (folder / "needs_extra.py").write_text("import extra_package\nvalue = 1\n")
    with pytest.raises(ImportError) as caught:
        _ = lamp(extras=EXTRAS, subject="a lamp", otherwise="light a candle").value
    assert str(caught.value) == (
        "a lamp needs extra_package, which is not installed; "
        "run: pip install 'trio-harness[shiny]', or light a candle"
    )
    assert caught.value.name == "extra_package"
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_what_needs_a_package_is_named_in_full(folder: Path) -> None:
    (folder / "needs_extra.py").write_text("import extra_package\nvalue = 1\n")
    with pytest.raises(ImportError, match=r"^lamp\.value needs extra_package, which is not"):
        _ = lamp(extras=EXTRAS).value


@pytest.mark.parametrize("missing", ["other_package", "extra_package.new"])
def test_what_no_install_of_the_extra_would_mend_is_not_blamed_on_it(
    missing: str, folder: Path
) -> None:
    """An old version without a submodule is there: "not installed" would send readers astray."""
    (folder / "extra_package").mkdir()
    (folder / "extra_package" / "__init__.py").touch()
    (folder / "needs_extra.py").write_text(f"import {missing}\nvalue = 1\n")
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{missing}'"):
        _ = lamp(extras=EXTRAS).value


def test_the_name_is_returned_where_the_package_is(folder: Path) -> None:
    (folder / "extra_package.py").touch()
    (folder / "needs_extra.py").write_text("import extra_package\nvalue = 1\n")
    assert lamp(extras=EXTRAS).value == 1
