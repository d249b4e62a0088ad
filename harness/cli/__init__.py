"""The command line: ``harness`` and ``python -m harness``.

Needs the extra ``cli`` (click and rich). Nothing else in harness imports this folder, so a program
that uses the library only never loads them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]

_EXTRA = frozenset(("click", "rich"))

try:
    from harness.cli._app import run_app
except ImportError as _error:
    if (_error.name or "").partition(".")[0] not in _EXTRA:
        raise
    _missing = _error.name

    def run_app(arguments: Sequence[str] | None) -> int:
        """Say which package is missing, and how to get it."""
        print(
            f"Error: the command line needs {_missing}, which is not installed; "
            "run: pip install 'trio-harness[cli]'",
            file=sys.stderr,
        )
        return 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
      arguments: What follows the program's name; None: what the process was given.

    Returns:
      The exit status: 0 all ok, 1 some items failed, 2 wrong usage or a missing extra,
      130 interrupted.
    """
    return run_app(arguments)
