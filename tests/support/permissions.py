"""Become a user whom permissions restrict, which a container's root isn't."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

needs_permissions = pytest.mark.skipif(
    not hasattr(os, "geteuid"), reason="permissions as POSIX has them"
)

NOBODY = 65534


@contextmanager
def as_somebody(*folders: Path) -> Iterator[None]:
    """Become nobody in particular, who may look into these folders and nothing more."""
    if os.geteuid() != 0:
        yield
        return
    for folder in folders:
        for parent in (folder, *list(folder.parents)[:3]):
            parent.chmod(parent.stat().st_mode | 0o055)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
