"""Gather from a journal what a report can show of it: its items, how long they took, failures.

A journal knows of each item only its last attempt, and neither waits nor limits.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from harness.journal import JournalItem, read_journal
from harness.observe._plain import plain
from harness.observe._report_data import RUNS_SHOWN, STATUSES, Columns, Failures, data


def data_of_journal(source: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a report of a journal shows.

    Raises:
      JournalError: if it can't be read.
    """
    failures = Failures()
    count: Counter[str] = Counter()
    kept: list[tuple[str, str, JournalItem]] = []
    work = 0.0
    with read_journal(source) as journal:
        name = journal.name
        batches = [batch.name for batch in journal.batches()]
        for number, batch in enumerate(batches):
            for place, item in enumerate(journal.items(batch)):
                run_id = f"{number}-{place}"
                count[item.status] += 1
                work += item.seconds
                if item.error_type is not None:
                    lines = (item.error_traceback or "").splitlines()
                    # The frames; what else it says is different for each item.
                    frames = [line for line in lines if line.startswith(" ")]
                    failures.add(run_id, item.error_type, item.error_message or "", frames)
                if len(kept) < RUNS_SHOWN - len(batches):
                    kept.append((run_id, batch, item))
    ends = [item.ended_at for _, _, item in kept if item.ended_at is not None]
    starts = [_began(item) for _, _, item in kept if item.ended_at is not None]
    start, end = min(starts, default=0.0), max(ends, default=0.0)
    columns = Columns(end - start)
    for number, batch in enumerate(batches):
        items = [item for _, of, item in kept if of == batch and item.ended_at is not None]
        since = min(map(_began, items), default=start) - start
        until = max((item.ended_at or start for item in items), default=start) - start
        columns.add(f"{number}", None, batch, "ok", since, until)
    for run_id, _, item in kept:
        # What has no ending has no time either, and is shown at the end.
        until = (end if item.ended_at is None else item.ended_at) - start
        status = item.status if item.status in STATUSES else "waiting"
        parent = run_id.partition("-")[0]
        since = until if item.ended_at is None else _began(item) - start
        columns.add(run_id, parent, f"{item.key}", status, since, until)
    total = sum(count.values()) + len(batches)
    how = ", ".join(f"{number:,} {status}" for status, number in count.most_common())
    return data(
        columns,
        failures,
        title=plain(os.path.basename(name)),
        facts=f"{sum(count.values()):,} items of {len(batches):,} batches ({how or 'none'})",
        constraint="A journal has how items ended and how long they took; where the time went is "
        "in a trace: harness batch --trace FILE, or harness.observe.record().",
        total_runs=total,
        parts=[("attempts that were recorded last", work)],
        parts_words="All items together.",
    )


def _began(item: JournalItem) -> float:
    return (item.ended_at or 0.0) - item.seconds
