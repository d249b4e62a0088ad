"""Load what needs an extra when it is first used, and name the extra where it is missing.

Every folder whose names need an extra calls this from its module-level ``__getattr__``, so that
users read the same words everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def load_with_extra(
    module: str, name: str, *, subject: str, extras: Mapping[str, str], otherwise: str = ""
) -> Any:
    """Return a name of a module that needs a package of an extra.

    Args:
      module: The module's full name.
      name: The name in it.
      subject: What needs the package, as the user knows it, such as ``harness.agents.Agent``.
      extras: By top-level package, the extra that brings it.
      otherwise: What to do without the package, as the end of a sentence; empty for nothing.

    Raises:
      ImportError: if such a package is not installed. Its ``name`` is the package's.
    """
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        package = error.name or ""
        # Anything else has words of its own that say more: a fault of ours, or a package that is
        # there, but in a version without that submodule.
        if package not in extras:
            raise
        advice = f"run: pip install 'trio-harness[{extras[package]}]'"
        if otherwise:
            advice += f", or {otherwise}"
        raise ImportError(
            f"{subject} needs {package}, which is not installed; {advice}", name=package
        ) from error
