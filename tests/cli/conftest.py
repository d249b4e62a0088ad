"""What the tests of the command line share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def clean_imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Be in an empty folder, and forget afterwards what was imported from it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        # Not what came from elsewhere: the clients of providers take a second to import.
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
