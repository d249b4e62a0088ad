"""What a batch came to over all its sessions, computed by the database from its records."""

from __future__ import annotations

from collections import Counter

from harness.fanout import Totals
from harness.journal._backend import Backend
from harness.journal._queries import span_of_batch, views_of_items


def totals_of(backend: Backend, batch: int) -> Totals:
    """Return the totals of a batch."""
    sessions, first_event, _ = span_of_batch(backend, batch)
    counts: Counter[str] = Counter()
    degraded = waiting = 0
    columns = "v.status, count(*), sum(v.degraded), count(v.parked)"
    for view in views_of_items(backend, batch):
        for status, count, by_fallback, parked in backend.fetch(
            f"SELECT {columns} FROM ({view}) v GROUP BY v.status"
        ):
            counts[status] += int(count)
            degraded += int(by_fallback)
            waiting += int(parked)

    # All the batch's attempts, even for earlier inputs or before a reopening: it was work.
    counted = cancelled = ended = tokens = 0
    cost_usd = run_seconds = 0.0
    for status, attempts, rows_tokens, rows_cost, rows_seconds in backend.fetch(
        """
        SELECT e.status, count(e.attempt), sum(e.tokens), sum(e.cost_usd),
          sum(CASE WHEN e.attempt IS NULL THEN 0 ELSE e.seconds END)
        FROM harness_endings e JOIN harness_sessions s ON s.id = e.session
        WHERE e.id >= ? AND s.batch = ?
        GROUP BY e.status
        """,
        (first_event, batch),
    ):
        tokens += int(rows_tokens)
        cost_usd += float(rows_cost)
        ended += int(attempts)
        if status == "cancelled":
            cancelled += int(attempts)
        elif status != "unstarted":
            counted += int(attempts)
            run_seconds += float(rows_seconds)
    begun = backend.fetch(
        "SELECT count(*) FROM harness_attempts a JOIN harness_sessions s ON s.id = a.session "
        "WHERE a.id >= ? AND s.batch = ?",
        (first_event, batch),
    )[0][0]
    seconds = backend.fetch(
        """
        SELECT coalesce(sum(CASE WHEN last > started_at THEN last - started_at END), 0) FROM (
          SELECT s.started_at AS started_at, max(e.ended_at) AS last
          FROM harness_sessions s JOIN harness_endings e ON e.session = s.id
          WHERE e.id >= ? AND s.batch = ?
          GROUP BY s.id, s.started_at
        ) one
        """,
        (first_event, batch),
    )[0][0]
    return Totals(
        items=sum(counts.values()),
        ok=counts["ok"],
        failed=counts["failed"],
        timed_out=counts["timed_out"],
        open=counts["open"] + counts["in_flight"] + counts["waiting"],
        waiting=waiting,
        degraded=degraded,
        attempts=counted,
        cancelled_attempts=cancelled,
        lost_attempts=int(begun) - ended,
        tokens=tokens,
        cost_usd=cost_usd,
        run_seconds=run_seconds,
        sessions=sessions,
        seconds=float(seconds),
    )
