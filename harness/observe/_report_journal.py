"""Gather from a journal what a report can show of it: its items, how long they took, failures.

A journal has of each item how its last attempt went, and nothing of what it waited for, nor of what
it did inside. What follows from that is shown: whether anything was under way, the pace, how many
at once, and which items were far slower than others. What doesn't, the page says is not known.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Iterator
from heapq import nlargest
from statistics import median
from typing import Any

import attrs

from harness.journal import JournalItem, JournalReader, read_journal
from harness.observe._plain import plain
from harness.observe._report_data import (
    LIMITS_SHOWN,
    POINTS_SHOWN,
    RUNS_SHOWN,
    STATUSES,
    STRAGGLERS_SHOWN,
    Columns,
    Failures,
    data,
)
from harness.observe._stragglers import ITEMS_AT_LEAST, TIMES

_NOT_KNOWN = (
    "A journal has of each item how its last attempt ended, how long that took and what the item "
    "used. It has no waits, no limits, no runs inside of items and no messages, so it can't tell "
    "what binds; a trace can: harness batch --trace FILE, or harness.observe.record()."
)


@attrs.define(eq=False)
class _Batch:
    """What the items of one batch came to; a few bytes for each, as there may be millions."""

    name: str
    limits: str | None
    """How far its limits were used, as it last said itself."""
    ended: array[float] = attrs.Factory(lambda: array("d"))
    seconds: array[float] = attrs.Factory(lambda: array("d"))
    tokens: array[float] = attrs.Factory(lambda: array("d"))
    slowest: list[tuple[float, str, str]] = attrs.Factory(list)
    """Their times, ids and keys."""

    def add(self, run_id: str, item: JournalItem) -> None:
        """Note one of its items, which has ended."""
        assert item.ended_at is not None
        self.ended.append(item.ended_at)
        self.seconds.append(item.seconds)
        self.tokens.append(item.tokens)
        self.slowest.append((item.seconds, run_id, f"{item.key}"))
        if len(self.slowest) > 2 * STRAGGLERS_SHOWN:
            self.slowest = nlargest(STRAGGLERS_SHOWN, self.slowest)

    def began(self) -> Iterator[float]:
        """Yield when each last attempt began."""
        return (end - took for end, took in zip(self.ended, self.seconds, strict=True))


def data_of_journal(source: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a report of a journal shows.

    Raises:
      JournalError: if it can't be read.
    """
    with read_journal(source) as journal:
        return _data_of(journal)


def _data_of(journal: JournalReader) -> dict[str, Any]:
    failures = Failures()
    count: Counter[str] = Counter()
    attempts = tokens = 0
    cost = 0.0
    kept: list[tuple[str, JournalItem]] = []
    batches = [
        _Batch(one.name, journal.progress(one.name).limits if one.sessions else None)
        for one in journal.batches()
    ]
    for number, batch in enumerate(batches):
        for place, item in enumerate(journal.items(batch.name)):
            run_id = f"{number}-{place}"
            count[item.status] += 1
            attempts += item.attempts
            tokens += item.tokens
            cost += item.cost_usd
            if item.ended_at is not None:
                batch.add(run_id, item)
            if item.error_type is not None:
                lines = (item.error_traceback or "").splitlines()
                # The frames; what else it says is different for each item.
                frames = [line for line in lines if line.startswith(" ")]
                failures.add(run_id, item.error_type, item.error_message or "", frames)
            if len(kept) < RUNS_SHOWN - len(batches):
                kept.append((run_id, item))
    start = min((min(batch.began()) for batch in batches if batch.ended), default=0.0)
    end = max((max(batch.ended) for batch in batches if batch.ended), default=0.0)
    columns = Columns(end - start)
    for number, batch in enumerate(batches):
        since, until = min(batch.began(), default=start), max(batch.ended, default=start)
        columns.add(f"{number}", None, batch.name, "ok", since - start, until - start)
    for run_id, item in kept:
        # What has no ending has no time either, and is shown at the end.
        until = (end if item.ended_at is None else item.ended_at) - start
        status = item.status if item.status in STATUSES else "waiting"
        parent = run_id.partition("-")[0]
        since = until if item.ended_at is None else until - item.seconds
        columns.add(run_id, parent, f"{item.key}", status, since, until)
    total = sum(count.values())
    how = ", ".join(f"{number:,} {status}" for status, number in count.most_common())
    of = "1 batch" if len(batches) == 1 else f"{len(batches):,} batches"
    facts = f"{total:,} items of {of} ({how or 'none'}), {attempts:,} attempts"
    if tokens:
        facts += f", {tokens:,} tokens"
    if cost:
        facts += f", ${cost:,.4f}"
    busy, most = _under_way(batches)
    mean = sum(sum(batch.seconds) for batch in batches) / busy if busy else 0.0
    return data(
        columns,
        failures,
        title=plain(os.path.basename(journal.name)),
        facts=facts,
        constraint=_NOT_KNOWN,
        total_runs=total + len(batches),
        parts=[
            ("an item's last attempt under way", busy),
            ("nothing: between sessions, earlier attempts, waits before them", end - start - busy),
        ],
        parts_words="Of the time from the first last attempt's start to the end, as far as a "
        "journal tells.",
        stragglers=_stragglers(batches, columns),
        limits=_pace(batches, columns, start, end),
        ceiling={
            "rows": [],
            "words": f"At most {most:,} last attempts were under way at once, {mean:,.1f} on "
            "average while there were any. How many more workers could do isn't known.",
        },
    )


def _under_way(batches: list[_Batch]) -> tuple[float, int]:
    """Return for how long any last attempt was under way, and how many at most."""
    begun = sorted(at for batch in batches for at in batch.began())
    ended = sorted(at for batch in batches for at in batch.ended)
    busy, now, most, place = 0.0, 0, 0, 0
    since = 0.0
    for at in begun:
        while place < len(ended) and ended[place] <= at and now:
            now -= 1
            if not now:
                busy += ended[place] - since
            place += 1
        if not now:
            since = at
        now += 1
        most = max(most, now)
    if now:
        busy += ended[-1] - since
    return busy, most


def _stragglers(batches: list[_Batch], columns: Columns) -> dict[str, Any]:
    rows: list[tuple[int, str, float, float]] = []
    total = 0
    for batch in batches:
        usual = median(batch.seconds) if len(batch.seconds) >= ITEMS_AT_LEAST else float("inf")
        total += sum(took > TIMES * usual for took in batch.seconds)
        rows += [
            (columns.numbers.get(run_id, -1), plain(f"{batch.name}/{key}"), took, usual)
            for took, run_id, key in batch.slowest
            if took > TIMES * usual
        ]
    words = (
        "Items whose last attempt took more than three times as long as the middle one of their "
        "batch. What they cost the whole isn't known."
        if total
        else "No item's last attempt took more than three times as long as the middle one."
    )
    rows.sort(key=lambda row: -row[2])
    return {"total": total, "shown": rows[:STRAGGLERS_SHOWN], "words": words}


def _pace(batches: list[_Batch], columns: Columns, start: float, end: float) -> dict[str, Any]:
    """Return how many items ended per minute, and how many tokens they had used, over time."""
    shown = []
    minutes = max(end - start, 1e-6) / POINTS_SHOWN / 60
    for batch in batches:
        ones = array("d", [1]) * len(batch.ended)
        for what, amounts in (("items", ones), ("tokens", batch.tokens)):
            if not any(amounts):
                continue
            ended = [0.0] * POINTS_SHOWN
            for at, amount in zip(batch.ended, amounts, strict=True):
                place = int((at - start) / 60 / minutes)
                ended[min(place, POINTS_SHOWN - 1)] += amount
            most = max(ended)
            shown.append(
                {
                    "name": plain(batch.name),
                    "of": f"{what} of items that ended" if what == "tokens" else "items that ended",
                    "words": f"The line is the share of the fastest {minutes * 60:.3g} s, with "
                    f"{most / minutes:,.0f} {what} per minute; on average "
                    f"{sum(ended) / minutes / POINTS_SHOWN:,.0f}.",
                    "points": [
                        (
                            columns.units((number + 1) * minutes * 60),
                            round(amount / most, 4),
                        )
                        for number, amount in enumerate(ended)
                    ],
                }
            )
    notes = [f"{plain(one.name)}: {plain(one.limits)}" for one in batches if one.limits]
    words = "How far limits were used over time isn't in a journal; this is the pace."
    if notes:
        words += f" As the batch last noted: {'; '.join(notes)}."
    shown_first = shown[:LIMITS_SHOWN]
    return {"total": len(shown), "shown": shown_first, "words": words, "what": "measures"}
