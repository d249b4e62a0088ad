"""The tables of a journal, and how to migrate a file of an older version.

Everything that grows with the items is only ever appended to, under growing whole numbers: a commit
then writes a handful of pages at the ends of the tables, however many rows there are. What an item
came to is the latest of its records. Updating rows in place was as fast in SQLite but needs a
statement per row, each of which releases the GIL and has to get it back; appended rows go in by the
hundred per statement.

An attempt is a row when it begins, and a second row in another table when it ends. A result is the
last final row of its item. Attempts and endings are numbered in one sequence, so their numbers tell
which came first.

Type names are written out where both databases agree; ``{blob}`` and the like are the dialect's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

APPLICATION_ID = 0x48_52_4E_4A
"""Marks an SQLite file as a journal: ``HRNJ``."""

FIRST = """
CREATE TABLE harness_meta (
  name TEXT PRIMARY KEY,
  value TEXT NOT NULL
);
CREATE TABLE harness_batches (
  id {integer} PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  target TEXT NOT NULL,
  version TEXT,
  settings TEXT NOT NULL,
  created_at {real} NOT NULL
);
CREATE TABLE harness_sessions (
  id {integer} PRIMARY KEY,
  batch {integer} NOT NULL,
  first_event {integer} NOT NULL,
  first_item {integer} NOT NULL,
  started_at {real} NOT NULL,
  pid {integer} NOT NULL,
  host TEXT NOT NULL
);
CREATE TABLE harness_items (
  id {integer} PRIMARY KEY,
  batch {integer} NOT NULL,
  digest {blob} NOT NULL,
  key TEXT NOT NULL,
  input_hash {blob} NOT NULL
);
CREATE TABLE harness_attempts (
  id {integer} PRIMARY KEY,
  item {integer} NOT NULL,
  session {integer} NOT NULL,
  alone {integer} NOT NULL,
  begun_at {real} NOT NULL
);
CREATE TABLE harness_endings (
  id {integer} PRIMARY KEY,
  item {integer} NOT NULL,
  attempt {integer},
  session {integer},
  status TEXT NOT NULL,
  final {integer} NOT NULL,
  degraded {integer} NOT NULL,
  ended_at {real} NOT NULL,
  seconds {real} NOT NULL,
  value TEXT,
  error_type TEXT,
  error_message TEXT,
  tokens {integer} NOT NULL,
  cost_usd {real} NOT NULL
);
CREATE INDEX harness_reopened ON harness_endings (item) WHERE status = 'reopened';
CREATE TABLE harness_effects (
  id {integer} PRIMARY KEY,
  key TEXT NOT NULL UNIQUE,
  idempotency_key TEXT NOT NULL,
  state TEXT NOT NULL,
  value TEXT,
  intended_at {real} NOT NULL,
  done_at {real}
);
"""
"""Version 1. Only a few pages of the one index by item change: it has the rows of
``harness journal retry`` alone."""

TRACEBACKS = "ALTER TABLE harness_endings ADD COLUMN error_traceback TEXT"
"""Version 2."""

BYTES = """
CREATE TABLE harness_bytes (
  digest TEXT PRIMARY KEY,
  content {blob} NOT NULL
)
"""
"""Version 3. What values refer to by its digest; see `harness.journal._kept_bytes`."""

EXPORT = """
ALTER TABLE harness_endings ADD COLUMN run_id TEXT;
CREATE TABLE harness_inputs (
  item {integer} PRIMARY KEY,
  input TEXT NOT NULL
);
CREATE TABLE harness_usage (
  ending {integer} PRIMARY KEY,
  item {integer} NOT NULL,
  model TEXT NOT NULL,
  input_tokens {integer} NOT NULL,
  output_tokens {integer} NOT NULL,
  cached_input_tokens {integer} NOT NULL,
  cache_write_input_tokens {integer} NOT NULL
);
"""
"""Version 4. What only an export reads. Inputs have a table of their own, so that whoever looks
items up doesn't read past them; an attempt that called no model has no row of usage."""

STEPS = """
CREATE TABLE harness_steps (
  id {integer} PRIMARY KEY,
  item {integer} NOT NULL,
  name TEXT NOT NULL,
  part TEXT NOT NULL,
  chain {blob} NOT NULL,
  ending {integer},
  for_good {integer} NOT NULL,
  degraded {integer} NOT NULL,
  further {integer} NOT NULL,
  done_at {real} NOT NULL,
  value TEXT
)
"""
"""Version 5. A step of an item of a pipeline or a router that is done, numbered as attempts and
endings are. ``chain`` is a hash of the code up to there. The step an item ended with has the number
of its ending, and no value of its own."""

KEPT = """
CREATE TABLE harness_kept (
  id {integer} PRIMARY KEY,
  item {integer} NOT NULL,
  session {integer} NOT NULL,
  kept_at {real} NOT NULL,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  run TEXT NOT NULL,
  text TEXT,
  content {blob}
)
"""
"""Version 6. What items said, and their files, numbered as attempts and endings are."""

MIGRATIONS: tuple[str, ...] = (FIRST, TRACEBACKS, BYTES, EXPORT, STEPS, KEPT)
"""Each takes a journal from the version equal to its index here to the next."""

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "harness_items": ("id", "batch", "digest", "key", "input_hash"),
    "harness_attempts": ("id", "item", "session", "alone", "begun_at"),
    "harness_endings": (
        "id",
        "item",
        "attempt",
        "session",
        "status",
        "final",
        "degraded",
        "ended_at",
        "seconds",
        "value",
        "error_type",
        "error_message",
        "tokens",
        "cost_usd",
        "error_traceback",
        "run_id",
    ),
    "harness_inputs": ("item", "input"),
    "harness_usage": (
        "ending",
        "item",
        "model",
        "input_tokens",
        "output_tokens",
        "cached_input_tokens",
        "cache_write_input_tokens",
    ),
    "harness_steps": (
        "id",
        "item",
        "name",
        "part",
        "chain",
        "ending",
        "for_good",
        "degraded",
        "further",
        "done_at",
        "value",
    ),
    "harness_kept": (
        "id",
        "item",
        "session",
        "kept_at",
        "kind",
        "name",
        "run",
        "text",
        "content",
    ),
}
"""The tables that are appended to, in the order a transaction does so."""

TEXTS: Mapping[str, tuple[int, ...]] = {
    "harness_items": (COLUMNS["harness_items"].index("key"),),
    "harness_endings": tuple(
        COLUMNS["harness_endings"].index(name)
        for name in ("value", "error_message", "error_traceback")
    ),
    "harness_inputs": (COLUMNS["harness_inputs"].index("input"),),
    "harness_steps": (COLUMNS["harness_steps"].index("value"),),
    "harness_kept": tuple(COLUMNS["harness_kept"].index(name) for name in ("text", "content")),
}
"""The places in a row of what may be of any length."""


def characters(table: str, values: list[Any]) -> int:
    """Return the total length of the texts and bytes in some rows."""
    width = len(COLUMNS[table])
    return sum(sum(map(len, filter(None, values[at::width]))) for at in TEXTS.get(table, ()))


def statements(script: str, types: Mapping[str, str]) -> list[str]:
    """Return the statements of a migration, in a dialect."""
    text = script.format(**types)
    return [statement.strip() for statement in text.split(";") if statement.strip()]
