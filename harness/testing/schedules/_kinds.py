"""Know the kinds of programs that can be run under control, by the names that users write."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.testing.schedules import _step_backends
from harness.testing.schedules._backend import Backend

TRIO = "trio"

_BACKENDS: Mapping[str, Callable[[], Backend]] = {TRIO: lambda: _step_backends.backend()}


def backend_of(kind: str | None) -> Backend:
    """Return what runs programs of a kind; by default trio's.

    Raises:
      ValueError: if there is no such kind.
      RuntimeError: if the steps of such programs can't be controlled here.
    """
    make = _BACKENDS.get(kind or TRIO)
    if make is None:
        raise ValueError(f"backend= must be one of {', '.join(_BACKENDS)}, not {kind!r}")
    return make()
