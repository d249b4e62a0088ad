"""The queries on a journal's tables, for both databases.

A batch's records are mixed with those of others, but none is older than the batch's first session,
which records how far the numbers had come. So opening tonight's batch reads tonight's records,
however many nights the journal holds.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from harness.journal._backend import Backend, Row
from harness.runs._keys import digest

Change = tuple[str, tuple[Any, ...]]
"""A statement that changes something, and its arguments."""

LAST_EVENT, LAST_ITEM = "last_event", "last_item"
"""Where the last numbers are kept once the rows that had them are deleted."""

EVENTS = """
  SELECT a.item AS item, a.id AS id, 1 AS begun, 0 AS ended, 0 AS given_back, NULL AS final,
    a.id AS latest
  FROM harness_attempts a WHERE a.id >= {first}{of_attempts}
  UNION ALL
  SELECT e.item, e.id, 0, CASE WHEN e.attempt IS NULL THEN 0 ELSE 1 END,
    CASE WHEN e.status IN ('cancelled', 'unstarted') THEN 1 ELSE 0 END,
    CASE WHEN e.final = 1 THEN e.id END,
    NULL
  FROM harness_endings e WHERE e.id >= {first}{of_endings}
"""

# A reopened item starts over: what came before no longer counts.
HISTORY = """
  SELECT v.item AS item, sum(v.begun) - sum(v.given_back) AS attempts,
    sum(v.begun) - sum(v.ended) AS lost, max(v.final) AS final,
    max(v.latest) AS latest
  FROM ({events}) v
  WHERE v.id > coalesce(
    (SELECT max(r.id) FROM harness_endings r WHERE r.item = v.item AND r.status = 'reopened'), 0)
  GROUP BY v.item
"""

# Whether the latest attempt with no ending was alone. Few attempts are, so only their items are
# looked at and nothing has to be sorted.
ALONE = """
  SELECT a.item AS item, max(a.id * 2 + a.alone) % 2 AS alone
  FROM harness_attempts a
  WHERE a.id >= {first} AND a.item IN ({suspects}) AND a.id NOT IN (
    SELECT e.attempt FROM harness_endings e
    WHERE e.id >= {first} AND e.attempt IS NOT NULL AND e.item IN ({suspects}))
  GROUP BY a.item
"""
SUSPECTS = "SELECT s.item FROM harness_attempts s WHERE s.id >= {first} AND s.alone = 1{of}"


def items_of_batch(
    batch: int, first_event: int, first_item: int, items: Sequence[int] | None = None
) -> tuple[str, Row]:
    """Return the query for a batch's items, in the order of `harness.journal._index.COLUMNS`.

    They come in the order in which they were recorded. An item whose input changed appears more
    than once; the newest comes last.

    Args:
      batch: The number of the batch.
      first_event, first_item: The numbers that its records start from.
      items: The numbers of the only items to look at, at least one; None for all.
    """
    first = int(first_event)
    of = {"a": "", "e": "", "s": "", "i": ""}
    if items is not None:
        numbers = ", ".join(str(int(item)) for item in items)
        of = {name: f" AND {name}.item IN ({numbers})" for name in of}
        of["i"] = f" AND i.id IN ({numbers})"
    events = EVENTS.format(first=first, of_attempts=of["a"], of_endings=of["e"])
    history = HISTORY.format(events=events)
    alone = ALONE.format(first=first, suspects=SUSPECTS.format(first=first, of=of["s"]))
    # Attempts lost before the item ended no longer make it a suspect.
    query = f"""
      SELECT i.digest, i.id, i.input_hash, coalesce(h.attempts, 0),
        CASE WHEN h.latest > coalesce(h.final, 0) THEN h.lost ELSE 0 END, h.final, f.status,
        coalesce(l.alone, 0), i.key
      FROM harness_items i
      LEFT JOIN ({history}) h ON h.item = i.id
      LEFT JOIN ({alone}) l ON l.item = i.id
      LEFT JOIN harness_endings f ON f.id = h.final
      WHERE i.id >= ? AND i.batch = ?{of["i"]}
      ORDER BY i.id
    """
    return query, (first_item, batch)


def steps_of_batch(
    batch: int,
    first_event: int,
    first_item: int,
    *,
    column: str,
    among: Sequence[Any],
    items: Sequence[int] | None = None,
) -> tuple[str, Row]:
    """Return the query for the steps of a batch's items, as `harness.journal._index` keeps them.

    Args:
      batch, first_event, first_item: Which batch, and where its records start.
      column: What tells whether a step counts: ``chain``, or ``name`` whatever its code was.
      among: The values of that column which count.
      items: The numbers of the only items to look at, at least one; None for all.
    """
    places = ", ".join("?" * len(among))
    of = "" if items is None else f" AND s.item IN ({', '.join(str(int(one)) for one in items)})"
    query = f"""
      SELECT s.item, s.id, s.name, s.part, s.ending, s.for_good, e.status, s.degraded, s.further
      FROM harness_steps s
      JOIN harness_items i ON i.id = s.item
      LEFT JOIN harness_endings e ON e.id = s.ending
      WHERE s.id >= ? AND i.id >= ? AND i.batch = ? AND s.{column} IN ({places}){of}
        AND NOT EXISTS (SELECT 1 FROM harness_endings r
          WHERE r.item = s.item AND r.status = 'reopened' AND r.id > s.id)
    """
    return query, (first_event, first_item, batch, *among)


# The latest record of an item's runs that wait, written by a session or by who answered them. It
# counts until the item starts over, or ends: whoever asks knows of the endings.
PARKED = """
  SELECT e.item AS item, max(e.id) AS id
  FROM harness_endings e
  WHERE e.id >= {first} AND e.error_type = 'ApprovalPending' AND e.final = 0{of}
    AND e.id > coalesce((SELECT max(r.id) FROM harness_endings r
      WHERE r.item = e.item AND r.status = 'reopened'), 0)
  GROUP BY e.item
"""


def parked_in_batch(
    first_event: int, first_item: int, batch: int, items: Sequence[int] | None = None
) -> tuple[str, Row]:
    """Return the query for the items of a batch that wait for approvals, and their records.

    Args:
      first_event, first_item: The numbers that its records start from.
      batch: The number of the batch.
      items: The numbers of the only items to look at, at least one; None for all.
    """
    of = "" if items is None else f" AND e.item IN ({', '.join(str(int(item)) for item in items)})"
    query = f"""
      SELECT p.item, p.id FROM ({PARKED.format(first=int(first_event), of=of)}) p
      JOIN harness_items i ON i.id = p.item
      WHERE i.id >= ? AND i.batch = ?
    """
    return query, (first_item, batch)


def stored(endings: int) -> str:
    """Return the query for this many endings, given their numbers."""
    places = ", ".join("?" * endings)
    return f"""
      SELECT e.id, e.status, e.value, e.error_type, e.error_message, e.error_traceback,
        e.degraded, e.ended_at, e.seconds, coalesce(a.begun_at, e.ended_at)
      FROM harness_endings e LEFT JOIN harness_attempts a ON a.id = e.attempt
      WHERE e.id IN ({places})
    """


FIRST_STRETCH = 10_000
"""Items in the first query of `views_of_items`."""

# Each item of a stretch with what it came to. The attempts, tokens and cost are those since it was
# last reopened.
VIEW = """
  SELECT i.id AS id, i.key AS key, i.digest AS digest, i.input_hash AS input_hash,
    f.value AS value, f.error_type AS error_type, f.error_message AS error_message,
    f.error_traceback AS error_traceback, f.run_id AS run_id, coalesce(f.degraded, 0) AS degraded,
    coalesce(h.attempts, 0) AS attempts, f.ended_at AS ended_at, coalesce(f.seconds, 0) AS seconds,
    coalesce(h.tokens, 0) AS tokens, coalesce(h.cost_usd, 0) AS cost_usd,
    CASE WHEN f.status IS NOT NULL THEN f.status WHEN h.lost > 0 THEN 'in_flight'
      WHEN h.parked IS NOT NULL THEN 'waiting' ELSE 'open' END AS status,
    CASE WHEN f.status IS NULL THEN h.parked END AS parked
  FROM harness_items i
  LEFT JOIN (
    SELECT v.item AS item, sum(v.begun) - sum(v.given_back) AS attempts,
      sum(v.begun) - sum(v.ended) AS lost, max(v.final) AS final, max(v.parked) AS parked,
      sum(v.tokens) AS tokens, sum(v.cost_usd) AS cost_usd
    FROM (
      SELECT a.item AS item, a.id AS id, 1 AS begun, 0 AS ended, 0 AS given_back, NULL AS final,
        NULL AS parked, 0 AS tokens, 0 AS cost_usd
      FROM harness_attempts a
      WHERE a.id BETWEEN {first_event} AND {last_event} AND a.item BETWEEN {first} AND {last}
      UNION ALL
      SELECT e.item, e.id, 0, CASE WHEN e.attempt IS NULL THEN 0 ELSE 1 END,
        CASE WHEN e.status IN ('cancelled', 'unstarted') THEN 1 ELSE 0 END,
        CASE WHEN e.final = 1 THEN e.id END,
        CASE WHEN e.final = 0 AND e.error_type = 'ApprovalPending' THEN e.id END,
        e.tokens, e.cost_usd
      FROM harness_endings e
      WHERE e.id BETWEEN {first_event} AND {last_event} AND e.item BETWEEN {first} AND {last}
    ) v
    LEFT JOIN (
      SELECT r.item AS item, max(r.id) AS id FROM harness_endings r
      WHERE r.status = 'reopened' AND r.id <= {last_event} AND r.item BETWEEN {first} AND {last}
      GROUP BY r.item
    ) o ON o.item = v.item
    WHERE v.id > coalesce(o.id, 0)
    GROUP BY v.item
  ) h ON h.item = i.id
  LEFT JOIN harness_endings f ON f.id = h.final
  WHERE i.batch = {batch} AND i.id BETWEEN {first} AND {last}
"""

# What only an export asks for. Of an item that was reopened, what it used since.
DETAILED = """
  SELECT w.*, n.input AS input, m.model AS model, u.input_tokens AS input_tokens,
    u.output_tokens AS output_tokens, u.cached_input_tokens AS cached_input_tokens,
    u.cache_write_input_tokens AS cache_write_input_tokens
  FROM ({view}) w
  LEFT JOIN harness_inputs n ON n.item = w.id
  LEFT JOIN (
    SELECT g.item AS item, max(g.ending) AS ending, sum(g.input_tokens) AS input_tokens,
      sum(g.output_tokens) AS output_tokens, sum(g.cached_input_tokens) AS cached_input_tokens,
      sum(g.cache_write_input_tokens) AS cache_write_input_tokens
    FROM harness_usage g
    WHERE g.ending BETWEEN {first_event} AND {last_event} AND g.item BETWEEN {first} AND {last}
      AND g.ending > coalesce((SELECT max(r.id) FROM harness_endings r
        WHERE r.item = g.item AND r.status = 'reopened' AND r.id <= {last_event}), 0)
    GROUP BY g.item
  ) u ON u.item = w.id
  LEFT JOIN harness_usage m ON m.ending = u.ending
"""

# Only a later session makes another item of a key, since its input had changed.
NEWEST = """
  AND i.id NOT IN (
    SELECT o.id FROM harness_items n
    JOIN harness_items o ON o.digest = n.digest AND o.id < n.id
    WHERE n.batch = {batch} AND n.id BETWEEN {later} AND {last_item}
      AND o.batch = {batch} AND o.id BETWEEN {first} AND {last})
"""


def views_of_items(
    backend: Backend, batch: int, item: int | None = None, *, details: bool = False
) -> Iterator[str]:
    """Yield queries that together give a batch's items with what they came to.

    Each is for the next stretch of items, twice as long as the one before: so a million items take
    seven passes over the records, and the first of them is there after one. All see the records
    there are now; more may be added meanwhile.

    Args:
      backend: The journal.
      batch: The number of the batch.
      item: Only the item with this number.
      details: Whether they also give what only an export asks for.
    """
    sessions = backend.fetch(
        "SELECT first_event, first_item FROM harness_sessions WHERE batch = ? ORDER BY id LIMIT 2",
        (batch,),
    )
    if not sessions:
        return
    last_event, last_item = last_numbers(backend)
    first, stretch = int(sessions[0][1]), FIRST_STRETCH
    if item is not None:
        first, last_item, stretch = item, max(item, last_item), 1
    view = VIEW + (NEWEST if len(sessions) > 1 and item is None else "")
    if details:
        view = DETAILED.replace("{view}", view)
    while first <= last_item:
        last = min(first + stretch - 1, last_item)
        yield view.format(
            batch=int(batch),
            first=first,
            last=last,
            first_event=int(sessions[0][0]),
            last_event=last_event,
            last_item=last_item,
            later=int(sessions[-1][1]),
        )
        if item is not None:
            return
        first, stretch = last + 1, 2 * stretch


def span_of_batch(backend: Backend, batch: int) -> tuple[int, int, int]:
    """Return a batch's number of sessions, and the event and item its records start from."""
    sessions, event, item = backend.fetch(
        "SELECT count(*), coalesce(min(first_event), 0), coalesce(min(first_item), 0) "
        "FROM harness_sessions WHERE batch = ?",
        (batch,),
    )[0]
    return int(sessions), int(event), int(item)


ORIGIN = "origin"
"""The row of ``harness_meta`` with the journal's unique name."""

FORGOTTEN = "forgotten "
"""The prefix of the names of rows that say how often an item or a batch was forgotten."""


def forgotten_name(batch: str, key_json: str | None = None) -> str:
    """Return the name of the row that says how often an item or a whole batch was forgotten."""
    return FORGOTTEN + digest("forgotten", batch, key_json or "")


def origin_of(backend: Backend) -> tuple[str, list[Change]]:
    """Return the journal's origin, and the changes to make if it had none."""
    rows = backend.fetch("SELECT value FROM harness_meta WHERE name = ?", (ORIGIN,))
    if rows:
        return str(rows[0][0]), []
    origin = secrets.token_hex(16)
    insert = "INSERT INTO harness_meta VALUES (?, ?) ON CONFLICT DO NOTHING"
    return origin, [(insert, (ORIGIN, origin))]


def forgotten_in(backend: Backend) -> dict[str, str]:
    """Return how often each thing was forgotten, by `forgotten_name`."""
    query = "SELECT name, value FROM harness_meta WHERE name LIKE ?"
    return {str(name): str(times) for name, times in backend.fetch(query, (f"{FORGOTTEN}%",))}


def forget_again(backend: Backend, names: Sequence[str]) -> list[Change]:
    """Return the changes that add one to the rows with these names."""
    changes: list[Change] = []
    for name in names:
        rows = backend.fetch("SELECT value FROM harness_meta WHERE name = ?", (name,))
        times = int(rows[0][0]) if rows else 0
        changes.append(("DELETE FROM harness_meta WHERE name = ?", (name,)))
        changes.append(("INSERT INTO harness_meta VALUES (?, ?)", (name, str(times + 1))))
    return changes


def last_numbers(backend: Backend) -> tuple[int, int]:
    """Return the last event and item numbers given out.

    None is given out again, even after items were forgotten: a reference to a number must never be
    taken for another item's.
    """
    *last, items, first_event, first_item = backend.fetch(
        """
        SELECT (SELECT max(id) FROM harness_attempts), (SELECT max(id) FROM harness_endings),
          (SELECT max(id) FROM harness_steps), (SELECT max(id) FROM harness_kept),
          (SELECT max(id) FROM harness_items),
          (SELECT max(first_event) FROM harness_sessions),
          (SELECT max(first_item) FROM harness_sessions)
        """
    )[0]
    kept: dict[str, str] = dict(
        backend.fetch(
            "SELECT name, value FROM harness_meta WHERE name IN (?, ?)", (LAST_EVENT, LAST_ITEM)
        )
    )
    given_out = [one or 0 for one in last]
    event = max(*given_out, (first_event or 1) - 1, int(kept.get(LAST_EVENT, 0)))
    return event, max(items or 0, (first_item or 1) - 1, int(kept.get(LAST_ITEM, 0)))


def keep_last_numbers(event: int, item: int) -> list[tuple[str, Row]]:
    """Return the statements that keep the last numbers when the rows with them are deleted."""
    return [
        ("DELETE FROM harness_meta WHERE name IN (?, ?)", (LAST_EVENT, LAST_ITEM)),
        ("INSERT INTO harness_meta VALUES (?, ?)", (LAST_EVENT, str(event))),
        ("INSERT INTO harness_meta VALUES (?, ?)", (LAST_ITEM, str(item))),
    ]
