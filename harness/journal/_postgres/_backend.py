"""A journal in a database on a PostgreSQL server.

The tables are in the connection's current schema, so a database can hold several journals:
``postgresql:///batches?options=-csearch_path%3Dnightly``. The single writer holds an advisory lock,
which the server releases when the connection ends, however it ends; the token is still checked,
since an administrator may end a connection whose process goes on. Sessions that join each other
hold that lock together, and each item by a lease (`harness.journal._leases`).

A lost connection is reopened: the lock is taken again, and if the token is still there, nobody has
written meanwhile, so anything that may have been on its way can be written once more. Whether it
had arrived shows then too: the numbers of its rows are there.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import islice
from types import MappingProxyType
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from harness.errors import JournalError, JournalFormatError, JournalLockedError
from harness.journal import _schema
from harness.journal._backend import Backend, Row, Rows, T
from harness.journal._leases import Leases, forget_holders
from harness.journal._owner import Owner, words_for

CONNECT_SECONDS_AT_MOST = 10
LOCK_SECONDS_AT_MOST = 1.0
RECONNECT_SECONDS_AT_MOST = 30.0
"""How long to try when a connection was lost. A restarted server is back by then, and leaving the
journal's block waits twice as long."""

SECONDS_PER_TRY = 0.25

CONNECTIONS_AT_MOST = 4
"""How many are tried for one thing. A server may be restarted twice in a row, but what ends every
connection must not be sent forever."""

ROWS_PER_FETCH = 1_000

ROWS_PER_STATEMENT = (256, 64, 16, 4, 1)
"""One statement per size is prepared once; a group of records is cut into these sizes."""

TOKEN_OR_ERROR = (
    "SELECT 1 / count(*) FROM "
    "(SELECT 1 FROM harness_meta WHERE name = 'owner' AND value = ? FOR UPDATE) ours"
)
"""Divides by zero if the token isn't ours: an error stops the statements on their way."""
LOCK = "hashtext('harness journal'), hashtext(current_schema())"
CHANGING = "hashtext('harness journal changes'), hashtext(current_schema())"
"""The lock under which sessions that share the journal open batches, claim items and note effects,
one at a time."""
LOCK_AS_OIDS = ", ".join(
    f"(hashtext({of})::bigint & 4294967295)::oid"
    for of in ("'harness journal'", "current_schema()")
)
"""The same as ``pg_locks`` shows it."""


class PostgresBackend(Backend):
    """One connection to a server."""

    types = MappingProxyType({"integer": "BIGINT", "real": "DOUBLE PRECISION", "blob": "BYTEA"})
    begin_statement = "BEGIN"
    # A process taking over changes this row, and so has to wait for the transaction to end.
    token_query = "SELECT value FROM harness_meta WHERE name = 'owner' FOR UPDATE"

    def __init__(self, address: str, leases: Leases | None = None) -> None:
        try:
            parts = conninfo_to_dict(address)
        except psycopg.Error as error:
            # What the driver quotes may be the password, or the whole address with it.
            why = str(error).strip().partition(': "')[0]
            raise JournalError(
                f"the address of the journal's database can't be read ({why}); give "
                "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with special characters as their "
                "codes, such as %40 for @"
            ) from None
        self._conninfo = make_conninfo(
            address, connect_timeout=CONNECT_SECONDS_AT_MOST, application_name="harness"
        )
        port = f":{parts['port']}" if parts.get("port") else ""
        super().__init__(f"postgresql://{parts.get('host', '')}{port}/{parts.get('dbname', '')}")
        self._connection: psycopg.Connection[Row] | None = None
        self._repeats = False
        """Whether what is being written may have been written already."""
        self.leases = leases
        if leases is not None:
            self.token_query = leases.token_query

    def open(self, owner: Owner) -> None:
        """Open for writing, and create the tables if there are none; close it even if this fails.

        Raises:
          JournalError: if that is not possible; nothing has changed then.
        """
        self._connect()
        with self.translating():
            if not self._lock():
                raise JournalLockedError(
                    f"the journal {self.name!r} is being written to by {self._last_owner()}; wait "
                    "until that has ended, or write to another database or schema (reading is "
                    "possible meanwhile, and sessions that join write side by side)"
                )
            self._set_up()
        with self.alone():
            self.prepare(owner)
            with self.all_or_nothing():
                self.execute(self.begin_statement)
                if self.leases is None:
                    forget_holders(self)
                else:
                    self.leases.join(self, owner)
                self.commit()

    def open_read_only(self) -> None:
        """Open for reading, even while another process writes; close it even if this fails.

        Raises:
          JournalError: if there is no journal to read.
        """
        self._connect()
        with self.translating():
            self.execute("SET default_transaction_read_only = on")
        self.check_version(self.version(), migrates=False)

    def is_written(self) -> bool:
        """Return whether a process has it open for writing, as far as this user can tell."""
        query = f"""
          SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
          WHERE l.locktype = 'advisory' AND l.granted AND d.datname = current_database()
            AND (l.classid, l.objid) IN (SELECT {LOCK_AS_OIDS})
        """
        return bool(self.fetch(query)[0][0])

    def execute(self, statement: str, arguments: Sequence[Any] = ()) -> psycopg.Cursor[Row]:
        """Execute a statement, and return its cursor."""
        assert self._connection is not None
        return self._connection.execute(_in_dialect(statement), arguments)

    def write(self, rows: Rows) -> None:
        """Append rows to tables, all or none, and return when they are durable.

        All statements go to the server at once, instead of each waiting for the one before: there
        are many, and the server may be far away.
        """
        with self.all_or_nothing():
            try:
                self.through(lambda: self._write(rows))
            except psycopg.errors.DivisionByZero as error:
                self.roll_back()
                raise self.taken_over(self._owner_now()) from error

    def taken_over(self, text: str | None) -> JournalLockedError:
        """Return the error for a token or a lease that is no longer ours."""
        if self.leases is not None and self._owner is not None and text == self._owner.text:
            return self.leases.lost(self.name)
        return super().taken_over(text)

    def _write(self, rows: Rows) -> None:
        assert self._connection is not None
        assert self._owner is not None, "opened for reading"
        leases = self.leases
        if leases is not None and self._repeats and leases.has(self, rows):
            return  # It had arrived; with it the leases of what ended were given up.
        with self._connection.pipeline():
            self.execute(self.begin_statement)
            if leases is None:
                self.execute(TOKEN_OR_ERROR, (self._owner.text,))
            else:
                leases.check(self, rows)
            for table in _schema.COLUMNS:
                self._append(table, rows.get(table, []))
            if leases is not None:
                leases.end(self, rows)
            self.commit()
        if leases is not None:
            leases.have_ended(rows)

    def begin(self) -> None:
        """Start a transaction, and check for our token and all leases."""
        if self.leases is None:
            super().begin()
            return
        self.execute(self.begin_statement)
        self.execute(f"SELECT pg_advisory_xact_lock({CHANGING})")
        text = self._owner_now()
        if text is None or not self.leases.are_ours(self):
            raise self.taken_over(text)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other sessions from opening or claiming anything in the block."""
        with self.translating():
            self.execute(f"SELECT pg_advisory_lock({CHANGING})")
        try:
            yield
        finally:
            with suppress(psycopg.Error):  # A lost connection has given it up.
                self.execute(f"SELECT pg_advisory_unlock({CHANGING})")

    def _append(self, table: str, values: list[Any]) -> None:
        columns = len(_schema.COLUMNS[table])
        # Not always: two rows with one number would be a bug that must not go unnoticed.
        if_there = " ON CONFLICT DO NOTHING" * self._repeats
        start = 0
        for size in ROWS_PER_STATEMENT:
            width = size * columns
            while len(values) - start >= width:
                self.execute(_insert(table, size) + if_there, values[start : start + width])
                start += width

    def through(self, work: Callable[[], T]) -> T:
        """Do something with the connection, and again with a new one if it is lost.

        Raises:
          JournalLockedError: if somebody else has written meanwhile.
        """
        try:
            for _ in range(CONNECTIONS_AT_MOST - 1):
                try:
                    return work()
                except psycopg.Error as error:
                    # Opening and reading fail at once.
                    if self._owner is None or self._connection is None or not self._is_lost(error):
                        raise
                    self._connection.close()
                self._connect_anew(self._owner)
                self._repeats = True
            return work()
        finally:
            self._repeats = False

    def _is_lost(self, error: psycopg.Error) -> bool:
        """Return whether the connection has ended, which it may not know yet.

        A server that shuts down says so first; statements on their way then fail in the driver.
        """
        assert self._connection is not None
        is_drivers_own = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
        is_fatal = error.diag.severity_nonlocalized in ("FATAL", "PANIC")
        return self._connection.closed or is_drivers_own or is_fatal

    def _connect_anew(self, owner: Owner) -> None:
        deadline = time.monotonic() + RECONNECT_SECONDS_AT_MOST
        while True:  # Ends at the deadline at the latest.
            try:
                self._connect()
                is_locked = self._lock()
                if (left := self._owner_now()) != owner.text:
                    raise self.taken_over(left)
                if is_locked:
                    self._set_up()
                    if self.leases is not None:
                        self.leases.come_back(self)
                    return
                # Held by our own connection, which the server believes to be alive.
                why: Exception = JournalError(
                    f"the server of the journal {self.name!r} still has the connection that was "
                    "lost; what was acknowledged is kept: resume once that has ended"
                )
            except JournalLockedError:
                raise
            except (psycopg.Error, JournalError) as error:
                why = self.translate(error)
            if time.monotonic() > deadline:
                raise why
            if self._connection is not None:
                self._connection.close()
            time.sleep(SECONDS_PER_TRY)

    def _set_up(self) -> None:
        self.execute("SET synchronous_commit = on")
        if self.leases is not None:
            # A process that is stopped in a transaction must not hold up the others with its locks.
            most = round(1_000 * self.leases.seconds)
            self.execute(f"SET idle_in_transaction_session_timeout = {most}")
        # The lock of a machine that vanished is free after a minute.
        for setting in ("idle = 30", "interval = 10", "count = 3"):
            self.execute(f"SET tcp_keepalives_{setting}")

    def _owner_now(self) -> str | None:
        query = self.token_query.removesuffix(" FOR UPDATE")
        row = self.execute(query).fetchone()
        return row[0] if row else None

    def stream(self, query: str, arguments: Row = ()) -> Iterator[Row]:
        """Yield the rows of a query, holding few of them in memory."""
        assert self._connection is not None
        # A server-side cursor, which lives as long as its transaction.
        with self.translating(), self._connection.transaction():
            with self._connection.cursor(name="harness_rows") as cursor:
                cursor.itersize = ROWS_PER_FETCH
                yield from cursor.execute(_in_dialect(query), arguments)

    def fill(self, index: sqlite3.Connection, insert: str, query: str, arguments: Row) -> None:
        """Insert the rows of a query into ``index``."""
        index.execute("BEGIN")
        streamed = self.stream(query, arguments)
        while chunk := list(islice(streamed, ROWS_PER_FETCH)):
            # The values are numbers, texts and hashes; sums come as decimals.
            rows = [tuple(map(_plain, row)) for row in chunk]
            index.executemany(f"{insert} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        index.execute("COMMIT")

    def vacuum(self) -> int:
        """Give the space of deleted rows back to the disk; return how many bytes that was."""
        self.change([])  # Checks for our token.
        tables = [
            *_schema.COLUMNS,
            "harness_sessions",
            "harness_batches",
            "harness_effects",
            "harness_bytes",
        ]
        sizes = " + ".join(f"pg_total_relation_size('{table}')" for table in tables)
        [[before]] = self.fetch(f"SELECT {sizes}")
        with self.translating():
            self.execute(f"VACUUM (FULL) {', '.join(tables)}")
        [[after]] = self.fetch(f"SELECT {sizes}")
        return max(0, int(before) - int(after))

    def version(self) -> int | None:
        """Return the version of the tables; 0 if there are none."""
        with self.translating():
            # In the schema where tables would be created, not in any that is merely visible.
            schema, tables = self.fetch(
                "SELECT current_schema(), (SELECT count(*) FROM pg_tables "
                "WHERE schemaname = current_schema() AND tablename = 'harness_meta')"
            )[0]
            if schema is None:
                raise JournalError(
                    f"the database {self.name!r} has no schema to hold a journal's tables; make "
                    "the one that the address's search_path names"
                )
            if not tables:
                return 0
            rows = self.execute("SELECT value FROM harness_meta WHERE name = 'version'").fetchall()
        return int(rows[0][0]) if rows else None

    def translate(self, error: Exception) -> Exception:
        """Return what an error of the server means for a journal."""
        if not isinstance(error, psycopg.Error):
            return error
        what = f"the journal {self.name!r}"
        words = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if isinstance(error, psycopg.errors.DiskFull):
            return JournalError(
                f"{what} can't grow: the server's disk is full ({words}); what was acknowledged "
                "stays: make room, and resume"
            )
        if isinstance(
            error, psycopg.errors.InsufficientPrivilege | psycopg.errors.ReadOnlySqlTransaction
        ):
            return JournalError(
                f"{what} can't be written to ({words}); allow this user to make and change tables "
                "in the schema"
            )
        if isinstance(error, psycopg.errors.DataCorrupted | psycopg.errors.IndexCorrupted):
            return JournalFormatError(f"{what} is damaged ({words}); nothing was changed")
        if isinstance(error, psycopg.OperationalError):
            return JournalError(
                f"the server of {what} can't be reached ({words}); what was acknowledged is kept: "
                "check the address and that it runs, and resume"
            )
        return JournalError(
            f"{what} failed: {words} ({type(error).__name__}); what was acknowledged is kept"
        )

    def close(self) -> None:
        """Close the connection, which releases the lock."""
        if self.leases is not None and self._owner is not None and self._connection is not None:
            with suppress(psycopg.Error):  # Else its items are free once their lease is over.
                self.leases.leave(self)
        connection, self._connection = self._connection, None
        if connection is not None:
            # If the connection is broken, the server does it.
            with suppress(psycopg.Error):
                # The server would release it too, but some time after the connection has ended.
                connection.execute("SELECT pg_advisory_unlock_all()")
            connection.close()

    def _lock(self) -> bool:
        """Take the lock of the one writer; return whether that was possible.

        It tries for a while: when a process is killed, the server takes a moment to notice.
        """
        deadline = time.monotonic() + LOCK_SECONDS_AT_MOST
        how = "" if self.leases is None else "_shared"
        while self.execute(f"SELECT pg_try_advisory_lock{how}({LOCK})").fetchone() != (True,):
            if time.monotonic() > deadline:
                return False
            time.sleep(LOCK_SECONDS_AT_MOST / 20)
        return True

    def _connect(self) -> None:
        with self.translating():
            self._connection = psycopg.connect(self._conninfo, autocommit=True)
            [encoding] = self.execute("SHOW server_encoding").fetchone() or [None]
        if encoding != "UTF8":
            raise JournalError(
                f"the database {self.name!r} has the encoding {encoding}, which can't hold every "
                "text: an answer with any other character would end the batch; make a database "
                "with `createdb --encoding UTF8 --template template0`"
            )

    def _last_owner(self) -> str:
        try:
            last = self.execute("SELECT value FROM harness_meta WHERE name = 'owner'").fetchone()
            return words_for(last[0] if last else None)
        except psycopg.Error:
            return words_for(None)


@cache
def _insert(table: str, size: int) -> str:
    columns = _schema.COLUMNS[table]
    places = f"({', '.join('?' * len(columns))})"
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES {', '.join([places] * size)}"


def _in_dialect(statement: str) -> bytes:
    """Return the statement with the driver's placeholders; ours have no ``?`` in a literal."""
    return statement.replace("%", "%%").replace("?", "%s").encode()


def _plain(value: Any) -> Any:
    return int(value) if type(value).__name__ == "Decimal" else value
