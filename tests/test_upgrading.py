"""The page about upgrading names what there is now, and nothing that there still is."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import attrs
import pytest

PAGE = Path(__file__).parent.parent / "docs" / "upgrading.md"
ROWS = re.findall(r"^\| `(harness\.[\w.]+)` \| (.+?) \|$", PAGE.read_text(), re.MULTILINE)


def public(name: str) -> bool:
    """Return whether a name is that of a module, or listed by one, or an attribute of a class."""
    place, _, last = name.rpartition(".")
    module_name, _, class_name = place.rpartition(".")
    if class_name[:1].isupper():
        owner = getattr(importlib.import_module(module_name), class_name)
        return last in {field.name for field in attrs.fields(owner)}
    module = importlib.import_module(place)
    if last in getattr(module, "__all__", ()):
        return getattr(module, last) is not None
    if hasattr(module, "__path__"):
        try:
            importlib.import_module(name)
        except ImportError:
            return False
        return True
    return not hasattr(module, "__all__") and hasattr(module, last)


@pytest.mark.parametrize(("old", "new"), ROWS)
def test_an_old_name_is_gone_and_the_new_one_is_there(old: str, new: str) -> None:
    assert not public(old)
    assert new.startswith("none; ") or public(new.strip("`"))


def test_the_table_has_what_has_moved() -> None:
    assert len(ROWS) == 42
    assert public("harness.fanin.merge")
    assert public("harness.asyncio_bridge")
    assert not public("harness.nothing")
