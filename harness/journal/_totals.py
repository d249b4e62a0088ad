"""What a batch came to over all its sessions, computed by the database from its records."""

from __future__ import annotations

from harness.fanout import Totals
from harness.journal._backend import Backend
from harness.journal._queries import EVENTS, HISTORY, PARKED, newest_items, span_of_batch


def totals_of(backend: Backend, batch: int) -> Totals:
    """Return the totals of a batch."""
    sessions, first_event, first_item = span_of_batch(backend, batch)
    history = HISTORY.format(events=EVENTS.format(first=first_event))
    counts: dict[str, int] = {}
    degraded = waiting = 0
    for status, count, by_fallback, parked in backend.fetch(
        f"""
        SELECT coalesce(f.status, 'open'), count(*), coalesce(sum(f.degraded), 0), count(p.id)
        FROM ({newest_items(first_item)}) n
        LEFT JOIN ({history}) h ON h.item = n.id
        LEFT JOIN harness_endings f ON f.id = h.final
        LEFT JOIN ({PARKED.format(first=int(first_event))}) p ON p.item = n.id
        GROUP BY coalesce(f.status, 'open')
        """,
        (batch,),
    ):
        counts[status] = int(count)
        degraded += int(by_fallback)
        if status == "open":
            waiting = int(parked)

    # All the batch's attempts, even for earlier inputs or before a reopening: it was work.
    counted = cancelled = ended = tokens = 0
    cost_usd = run_seconds = 0.0
    for status, attempts, rows_tokens, rows_cost, rows_seconds in backend.fetch(
        """
        SELECT e.status, count(e.attempt), sum(e.tokens), sum(e.cost_usd), sum(e.seconds)
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
        ok=counts.get("ok", 0),
        failed=counts.get("failed", 0),
        timed_out=counts.get("timed_out", 0),
        open=counts.get("open", 0),
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
