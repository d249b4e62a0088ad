
CREATE TABLE harness_meta (
  name TEXT PRIMARY KEY,
  value TEXT NOT NULL
);
CREATE TABLE harness_batches (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  target TEXT NOT NULL,
  version TEXT,
  settings TEXT NOT NULL,
  created_at REAL NOT NULL
);
CREATE TABLE harness_sessions (
  id INTEGER PRIMARY KEY,
  batch INTEGER NOT NULL,
  first_event INTEGER NOT NULL,
  first_item INTEGER NOT NULL,
  started_at REAL NOT NULL,
  pid INTEGER NOT NULL,
  host TEXT NOT NULL
);
CREATE TABLE harness_items (
  id INTEGER PRIMARY KEY,
  batch INTEGER NOT NULL,
  digest BLOB NOT NULL,
  key TEXT NOT NULL,
  input_hash BLOB NOT NULL
);
CREATE TABLE harness_attempts (
  id INTEGER PRIMARY KEY,
  item INTEGER NOT NULL,
  session INTEGER NOT NULL,
  alone INTEGER NOT NULL,
  begun_at REAL NOT NULL
);
CREATE TABLE harness_endings (
  id INTEGER PRIMARY KEY,
  item INTEGER NOT NULL,
  attempt INTEGER,
  session INTEGER,
  status TEXT NOT NULL,
  final INTEGER NOT NULL,
  degraded INTEGER NOT NULL,
  ended_at REAL NOT NULL,
  seconds REAL NOT NULL,
  value TEXT,
  error_type TEXT,
  error_message TEXT,
  tokens INTEGER NOT NULL,
  cost_usd REAL NOT NULL
);
CREATE INDEX harness_reopened ON harness_endings (item) WHERE status = 'reopened';
CREATE TABLE harness_effects (
  id INTEGER PRIMARY KEY,
  key TEXT NOT NULL UNIQUE,
  idempotency_key TEXT NOT NULL,
  state TEXT NOT NULL,
  value TEXT,
  intended_at REAL NOT NULL,
  done_at REAL
);
