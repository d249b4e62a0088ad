"""Show what the user's code logs, each record with the run that it belongs to."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from harness.runs import LogFilter

LEVELS = ("debug", "info", "warning", "error")
"""What ``--log-level`` takes."""


class _StandardError(logging.StreamHandler[TextIO]):
    """Write to whatever standard error is at the time: a progress bar replaces it for a while."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.addFilter(LogFilter())
        self.setFormatter(
            logging.Formatter("%(asctime)s %(levelname)s %(run_path)s %(name)s: %(message)s")
        )

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


@contextmanager
def logging_to_stderr(level: str, *, kept: bool = False) -> Iterator[None]:
    """Send log records of ``level`` and above to standard error inside the block.

    Args:
      level: One of `LEVELS`.
      kept: Whether a journal keeps those from INFO on, so that they have to be let through.
    """
    root = logging.getLogger()
    handler, level_before = _StandardError(), root.level
    handler.setLevel(level.upper())
    root.addHandler(handler)
    root.setLevel(min(handler.level, logging.INFO) if kept else handler.level)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level_before)
