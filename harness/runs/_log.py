"""Say on every log record which run it belongs to.

The standard way to put context on records: a filter that adds fields and lets all pass. Add it to
a handler, so that records of every logger get it::

    handler.addFilter(harness.LogFilter())
    handler.setFormatter(logging.Formatter("%(run_path)s %(message)s"))
"""

from __future__ import annotations

import logging

from harness.runs._current import current

OUTSIDE = "-"
"""What the fields hold outside any run, so that formats with ``%(run_path)s`` work there too."""


class LogFilter(logging.Filter):
    """Adds ``run_id`` and ``run_path`` to every record; drops none."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields, and let the record pass."""
        run = current.get()
        record.run_id = OUTSIDE if run is None else run.id
        record.run_path = OUTSIDE if run is None else run.path
        return True
