"""Make commits overwrite an existing WAL instead of lengthening it.

SQLite appends to its WAL until a checkpoint, and then overwrites it from the start. A commit that
lengthens the file has to sync the new length too, and takes twice as long (measured on an SSD with
ext4: 240 µs against 120 µs). A journal of a few thousand items would end before the first
checkpoint, so its WAL is given its final length early and in one go.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3

GROWN_AFTER_COMMITS = 64
"""By then it has paid off: its cost, some 8 ms, is what this many commits save."""

SPARE_PAGES = 100
"""On top of a checkpoint's: a commit may pass that number before it is noticed."""

PAGE_BYTES = 4_096

FREE_BYTES_AT_LEAST = 1 << 28
"""256 MiB. On a disk with less room nothing is taken that isn't needed yet."""

SMALL_CACHE_PAGES = 8
"""A cache so small that what is inserted goes to the WAL before it is committed, or rolled back."""


def grow_wal(connection: sqlite3.Connection, path: str, *, pages: int) -> None:
    """Make the WAL a little longer than ``pages``, unless the disk has little room.

    A transaction too large for the cache spills into the WAL. Rolled back, it leaves only the
    length there: readers of a WAL stop at the last commit.

    Args:
      connection: In WAL mode and outside a transaction; left that way, whatever goes wrong.
      path: The database file.
      pages: How many pages the WAL holds before a checkpoint.
    """
    # A failure here only makes commits slower. Whether they have room is for them to report.
    with contextlib.suppress(OSError, sqlite3.Error):
        if shutil.disk_usage(os.path.dirname(path)).free < FREE_BYTES_AT_LEAST:
            return
        [cache] = connection.execute("PRAGMA cache_size").fetchone()
        try:
            connection.execute(f"PRAGMA cache_size={SMALL_CACHE_PAGES}")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("CREATE TABLE harness_spilled (bytes BLOB)")
            size = (pages + SPARE_PAGES) * PAGE_BYTES
            connection.execute("INSERT INTO harness_spilled VALUES (zeroblob(?))", (size,))
        finally:
            with contextlib.suppress(sqlite3.Error):  # No transaction had begun.
                connection.execute("ROLLBACK")
            connection.execute(f"PRAGMA cache_size={cache}")
