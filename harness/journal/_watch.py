"""Say how a batch is doing, from its journal alone, while another process writes to it.

Each look counts the records again, in a few passes without sorting: that takes half a second for a
million items and no memory, and can't get out of step with what the batch does.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections import Counter
from typing import Any, Literal

import attrs

from harness.errors import JournalError
from harness.journal._backend import Backend
from harness.journal._codec import key_from_json
from harness.journal._owner import owner_from_json
from harness.journal._queries import Change

BatchState = Literal["running", "paused", "stopped", "dead", "ended"]
"""What a batch is doing: ``"running"``; ``"paused"``: its process is suspended; ``"stopped"``: it
was ended in order, with items left to do; ``"dead"``: its process was killed; or ``"ended"``."""

RECENT_SECONDS = 60.0
"""How far back the pace is measured."""

OLDEST_SHOWN = 5

WRITTEN_OUT_AT_MOST = 10_000
"""Numbers of items in one query; more are looked for by the database, and more than once."""

_OUTLOOK = "outlook "
"""The prefix of the names of rows in ``harness_meta`` with what a batch says of itself."""


@attrs.frozen(kw_only=True)
class BatchProgress:
    """How far a batch has come, at one moment."""

    name: str
    """What the batch is called."""

    state: BatchState
    """What it is doing."""

    writer: str | None
    """The process that opened the journal last, in words; None if it left no name."""

    at: float
    """The moment, in seconds since the epoch."""

    last_record_at: float | None
    """When an attempt of it last began or ended."""

    items: int
    """Items that were begun or read ahead."""

    ok: int
    """Items with a value."""

    failed: int
    """Items that failed or timed out."""

    failures: dict[str, int]
    """How many of them by the class of the error, the most frequent first."""

    in_flight: int
    """Attempts with no ending: running, recorded ahead, or lost when the process died."""

    oldest: tuple[tuple[str | int, float], ...]
    """The keys of those that have been in flight longest, and when they began."""

    per_second: float
    """Items that ended per second in this session, during the last minute before `at`."""

    attempts: int
    """Attempts over all sessions."""

    tokens: int
    """The tokens that they used."""

    cost_usd: float
    """What they cost, in dollars."""

    expected: int | None
    """How many items there will be, as the batch itself last said; None if it hasn't."""

    limits: str | None
    """How far its limits were used then, in words; None if it has none, or hasn't said."""

    forecast: str | None
    """When it will be over, as the batch itself last said; None if it hasn't."""

    @property
    def done(self) -> int:
        """Items that have ended."""
        return self.ok + self.failed


def outlook_note(batch: str, told: dict[str, Any]) -> list[Change]:
    """Return the changes that leave a note of how a batch goes on, in place of the last one."""
    note = json.dumps({"at": time.time(), **told})
    left = ("INSERT INTO harness_meta VALUES (?, ?)", (_OUTLOOK + batch, note))
    return [forget_outlook(batch), left]


def forget_outlook(batch: str) -> Change:
    """Return the change that removes the note."""
    return "DELETE FROM harness_meta WHERE name = ?", (_OUTLOOK + batch,)


def outlook_of(backend: Backend, batch: str) -> dict[str, Any]:
    """Return the last note of a batch; empty if there is none."""
    told: dict[str, Any] = json.loads(_meta(backend, _OUTLOOK + batch) or "{}")
    return told


def latest_batch(backend: Backend) -> str | None:
    """Return the name of the batch that was opened last; None if there are none."""
    rows = backend.fetch(
        "SELECT b.name FROM harness_sessions s JOIN harness_batches b ON b.id = s.batch "
        "ORDER BY s.id DESC LIMIT 1"
    )
    return str(rows[0][0]) if rows else None


def progress_of(backend: Backend, batch: int, name: str) -> BatchProgress:
    """Return how far a batch has come."""
    # First, or a batch that ends during this look would seem to be dead.
    is_written = backend.is_written()
    now = time.time()
    sessions = backend.fetch(
        "SELECT id, first_event, first_item, started_at, pid, host FROM harness_sessions "
        "WHERE batch = ? ORDER BY id",
        (batch,),
    )
    if not sessions:
        raise JournalError(f"the batch {name!r} of the journal {backend.name!r} was never opened")
    first_event, first_item = int(sessions[0][1]), int(sessions[0][2])
    session, session_event, _, started_at, _, _ = sessions[-1]

    ours = f"(SELECT id FROM harness_sessions WHERE batch = {int(batch)})"
    [(ok, recent, ended, unstarted, tokens, cost_usd)] = backend.fetch(
        f"""
        SELECT sum(CASE WHEN e.final = 1 AND e.status = 'ok' THEN 1 ELSE 0 END),
          sum(CASE WHEN e.final = 1 AND e.session = ? AND e.ended_at >= ? THEN 1 ELSE 0 END),
          sum(CASE WHEN e.attempt IS NOT NULL AND e.session = ? THEN 1 ELSE 0 END),
          sum(CASE WHEN e.status = 'unstarted' THEN 1 ELSE 0 END),
          sum(e.tokens), sum(e.cost_usd)
        FROM harness_endings e WHERE e.id >= {first_event} AND e.session IN {ours}
        """,
        (session, now - RECENT_SECONDS, session),
    )
    [(attempts, begun)] = backend.fetch(
        "SELECT count(*), sum(CASE WHEN a.session = ? THEN 1 ELSE 0 END) FROM harness_attempts a "
        f"WHERE a.id >= {first_event} AND a.session IN {ours}",
        (session,),
    )
    [(items,)] = backend.fetch(
        f"SELECT count(*) FROM harness_items WHERE id >= {first_item} AND batch = ?", (batch,)
    )
    replaced = ""
    if len(sessions) > 1:
        [(keys,)] = backend.fetch(
            "SELECT count(*) FROM (SELECT max(id) FROM harness_items "
            f"WHERE id >= {first_item} AND batch = ? GROUP BY digest) k",
            (batch,),
        )
        if keys < items:
            replaced = _replaced(backend, batch, int(sessions[1][2]), int(items - keys))
        items = keys
    unsure = _unsure(batch, first_event, replaced)
    failures: Counter[str] = Counter()
    ok = int(ok or 0)
    for status, error_type, count, counted_ok in backend.fetch(unsure):
        ok -= int(counted_ok)
        if status == "ok":
            ok += int(count)
        elif status != "reopened":
            failures[error_type or status] += int(count)
    in_flight = max(0, int(begun or 0) - int(ended or 0))
    state = _state(backend, is_written=is_written, session=sessions[-1], lost=in_flight)
    failed = failures.total()
    told = outlook_of(backend, name)
    if told.get("at", 0) < float(started_at):  # From an earlier session.
        told = {}
    expected: int | None = told.get("expected")
    if state == "ended" and max(items, expected or 0) > ok + failed:
        state = "stopped"
    oldest = _oldest(backend, int(session), int(session_event)) if in_flight else ()
    times = backend.fetch(
        f"""
        SELECT max(x.at) FROM (
          SELECT ended_at AS at FROM harness_endings
          WHERE id = (SELECT max(id) FROM harness_endings WHERE session IN {ours})
          UNION ALL
          SELECT begun_at FROM harness_attempts
          WHERE id = (SELECT max(id) FROM harness_attempts WHERE session IN {ours})
        ) x
        """
    )
    writer = owner_from_json(_meta(backend, "owner"))
    return BatchProgress(
        name=name,
        state=state,
        writer=None if writer is None else str(writer),
        at=now,
        last_record_at=times[0][0],
        items=int(items),
        ok=ok,
        failed=failed,
        failures=dict(failures.most_common()),
        in_flight=in_flight,
        oldest=oldest,
        per_second=int(recent or 0) / max(1.0, min(RECENT_SECONDS, now - started_at)),
        attempts=int(attempts) - int(unstarted or 0),
        tokens=int(tokens or 0),
        cost_usd=float(cost_usd or 0),
        expected=expected,
        limits=told.get("limits") if state in ("running", "paused") else None,
        forecast=told.get("forecast") if state in ("running", "paused") else None,
    )


def _replaced(backend: Backend, batch: int, later: int, count: int) -> str:
    """Return the items that were replaced, since their input has changed: for a query's ``IN``.

    Args:
      backend: The journal.
      batch: The number of the batch.
      later: The number of the first item that its second session could make.
      count: How many there are.
    """
    query = (
        "SELECT DISTINCT o.id FROM harness_items n "
        "JOIN harness_items o ON o.digest = n.digest AND o.id < n.id "
        f"WHERE n.batch = {int(batch)} AND o.batch = {int(batch)} AND n.id >= {later}"
    )
    if count > WRITTEN_OUT_AT_MOST:
        return query
    return ", ".join(str(int(row[0])) for row in backend.fetch(query))


def _unsure(batch: int, first_event: int, replaced: str) -> str:
    """Return the query for how the items ended whose last ending may not be their only one.

    These failed once, were reopened, or were replaced. They are few, and all others ended ok once.
    The rows: a status, an error, how many of these items came to that last, and how many endings of
    theirs are ok.
    """
    within = (
        f"e.item IN (SELECT s.item FROM harness_endings s WHERE s.id >= {first_event} "
        "AND (s.status = 'reopened' OR (s.final = 1 AND s.status <> 'ok')))"
    )
    left_out = ""
    if replaced:
        within += f" OR e.item IN ({replaced})"
        left_out = f"WHEN m.item IN ({replaced}) THEN 'reopened'"
    return f"""
      SELECT x.status, x.error_type, count(*), sum(x.oks) FROM (
        SELECT CASE {left_out} WHEN 1 = 1 THEN f.status END AS status,
          f.error_type AS error_type, m.oks AS oks
        FROM (
          SELECT e.item AS item, max(e.id) AS id,
            sum(CASE WHEN e.final = 1 AND e.status = 'ok' THEN 1 ELSE 0 END) AS oks
          FROM harness_endings e
          WHERE e.id >= {first_event} AND (e.final = 1 OR e.status = 'reopened')
            AND ({within})
          GROUP BY e.item
        ) m
        JOIN harness_endings f ON f.id = m.id
        JOIN harness_items i ON i.id = m.item
        WHERE i.batch = {int(batch)}
      ) x GROUP BY x.status, x.error_type
    """


def _oldest(
    backend: Backend, session: int, first_event: int
) -> tuple[tuple[str | int, float], ...]:
    rows = backend.fetch(
        f"""
        SELECT i.key, a.begun_at FROM harness_attempts a JOIN harness_items i ON i.id = a.item
        WHERE a.session = ? AND a.id >= {first_event} AND a.id NOT IN (
          SELECT e.attempt FROM harness_endings e
          WHERE e.id >= {first_event} AND e.attempt IS NOT NULL)
        ORDER BY a.id LIMIT {OLDEST_SHOWN}
        """,
        (session,),
    )
    return tuple((key_from_json(key), float(begun_at)) for key, begun_at in rows)


def _state(backend: Backend, *, is_written: bool, session: Any, lost: int) -> BatchState:
    *_, pid, host = session
    owner = owner_from_json(_meta(backend, "owner"))
    is_last = owner is not None and (owner.pid, owner.host) == (pid, host)
    if is_written and is_last:
        return "paused" if _is_suspended(int(pid), str(host)) else "running"
    # A file that was closed in order doesn't say that it is open.
    if lost or (is_last and not is_written and _meta(backend, "open") is not None):
        return "dead"
    return "ended"


def _meta(backend: Backend, name: str) -> str | None:
    rows = backend.fetch("SELECT value FROM harness_meta WHERE name = ?", (name,))
    return str(rows[0][0]) if rows else None


def _is_suspended(pid: int, host: str) -> bool:
    """Return whether a process of this machine is stopped, as by Ctrl-Z, where that can be told."""
    if host != socket.gethostname():
        return False
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in ("T", "t")
    return False
