"""Keep the log records of a program with the items they are about.

Each journal that asks for it has a handler at the root logger as long as it is open. The item is
found by the run that the record was made in, also in a worker thread.

A program that has set up no logging gets its warnings on standard error, until there is any
handler. So this one passes them on, as if it weren't there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness.fanout._kept import ItemLogs
from harness.runs import Run, current_run_or_none

_FORMAT = "%(levelname)s %(name)s: %(message)s"


class _Handler(logging.Handler):
    def __init__(self, logs: ItemLogs, level: int) -> None:
        super().__init__()
        self._logs = logs
        self._kept_from = level
        self.setFormatter(logging.Formatter(_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record that was made in an item of this journal."""
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and self._is_alone(record):
            last.handle(record)
        run = current_run_or_none()
        if run is None or record.levelno < self._kept_from:
            return
        for keeper in run._keepers():
            if keeper.logs is self._logs:
                self._keep_in(keeper, record, run)
                return

    def _keep_in(self, keeper: Any, record: logging.LogRecord, run: Run) -> None:
        try:
            run._above.tree.call(keeper.keep_log, record.name, run.path, self.format(record))
        except Exception:
            self.handleError(record)

    def _is_alone(self, record: logging.LogRecord) -> bool:
        """Return whether a record comes to no handler but this, and others like it."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        found: list[logging.Handler] = []
        while logger is not None:
            found += logger.handlers
            logger = logger.parent if logger.propagate else None
        return all(isinstance(one, _Handler) for one in found) and found[0] is self


@contextmanager
def log_records_kept(logs: ItemLogs | None) -> Iterator[None]:
    """Keep log records inside the block, with the items whose keepers have these very ``logs``."""
    if logs is None or logs.level is None:
        yield
        return
    handler = _Handler(logs, logs.level)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
