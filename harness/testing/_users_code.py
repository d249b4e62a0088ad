"""Tell which code is the user's."""

from __future__ import annotations

import sys
from types import FrameType

from harness.runs._frames import is_user_code


def is_users_file(filename: str) -> bool:
    """Return whether this file belongs to neither harness, an installed package nor Python.

    Code typed into an interpreter or given as text has no file, and is the user's.
    """
    if filename.startswith("<"):
        return not filename.startswith("<frozen")
    return is_user_code(filename)


def is_users_module(name: str | None) -> bool:
    """Return whether the module of this name is the user's."""
    if name is None or name == "__main__":
        return True
    module = sys.modules.get(name)
    if module is None:  # Loaded by hand and never registered: no package does that.
        return True
    filename = getattr(module, "__file__", None)
    # Modules written in C or built into Python have none; a namespace package has no code.
    return isinstance(filename, str) and is_users_file(filename)


def is_users_frame(frame: FrameType) -> bool:
    """Return whether a frame runs the user's code."""
    filename = frame.f_code.co_filename
    if filename.startswith("<"):
        return is_users_module(frame.f_globals.get("__name__"))
    return is_users_file(filename)
