"""What is said where the package of an extra is missing, in the same words for every extra."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness._extras import load_with_extra

EXTRAS = {"extra_package": "shiny"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder whose modules can be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("needs_extra", "extra_package"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_a_missing_package_is_named_with_its_extra_and_the_way_without(folder: Path) -> None:
    (folder / "needs_extra.py").write_text("import extra_package\nvalue = 1\n")
    with pytest.raises(ImportError) as caught:
        load_with_extra(
            "needs_extra", "value", subject="a lamp", extras=EXTRAS, otherwise="light a candle"
        )
    assert str(caught.value) == (
        "a lamp needs extra_package, which is not installed; "
        "run: pip install 'trio-harness[shiny]', or light a candle"
    )
    assert caught.value.name == "extra_package"
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize("missing", ["other_package", "extra_package.new"])
def test_what_no_install_of_the_extra_would_mend_is_not_blamed_on_it(
    missing: str, folder: Path
) -> None:
    """An old version without a submodule is there: "not installed" would send readers astray."""
    (folder / "extra_package").mkdir()
    (folder / "extra_package" / "__init__.py").touch()
    (folder / "needs_extra.py").write_text(f"import {missing}\nvalue = 1\n")
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{missing}'"):
        load_with_extra("needs_extra", "value", subject="a lamp", extras=EXTRAS)


def test_the_name_is_returned_where_the_package_is(folder: Path) -> None:
    (folder / "extra_package.py").touch()
    (folder / "needs_extra.py").write_text("import extra_package\nvalue = 1\n")
    assert load_with_extra("needs_extra", "value", subject="a lamp", extras=EXTRAS) == 1
