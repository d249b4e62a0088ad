"""Say on every log record which run it belongs to.

The standard way to put context on records: a filter that adds fields and lets all pass. Add it to
a handler, so that records of every logger get it::

    handler.addFilter(harness.LogFilter())
    handler.setFormatter(logging.Formatter("%(run_path)s %(message)s"))

For structlog, `add_run` is a processor that does the same.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from functools import lru_cache
from typing import Any

from harness._words import harmless
from harness.runs._current import current

OUTSIDE = "-"
"""What the fields hold outside any run, so that formats with ``%(run_path)s`` work there too."""


class LogFilter(logging.Filter):
    """Adds ``run_id``, ``run_path`` and ``run_attempt`` to every record; drops none."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields, and let the record pass."""
        vars(record).update(_fields())
        return True


def add_run(
    logger: Any, method_name: str, event_dict: MutableMapping[str, Any], /
) -> MutableMapping[str, Any]:
    """Add ``run_id``, ``run_path`` and ``run_attempt`` to an entry: a processor for structlog.

    Outside any run it adds nothing. What the entry has by these names is kept.

    Args:
      logger: Not used.
      method_name: Not used.
      event_dict: The entry, which is changed.
    """
    if current.get() is not None:
        for name, value in _fields().items():
            event_dict.setdefault(name, value)
    return event_dict


def _fields() -> dict[str, object]:
    run = current.get()
    if run is None:
        return {"run_id": OUTSIDE, "run_path": OUTSIDE, "run_attempt": OUTSIDE}
    return {"run_id": run.id, "run_path": _harmless(run.path), "run_attempt": run.attempt}


_harmless = lru_cache(maxsize=1_024)(harmless)
"""A name with a line break in it would look like a record of its own."""
