"""Make commits overwrite a WAL that is there, where they would make it longer.

SQLite appends to its WAL until a checkpoint, and from then on writes over it from its start. A
commit that makes the file longer has to have its new length synced too, and takes twice as long
(measured on an SSD with ext4: 240 µs against 120 µs). A journal of some thousand items would end
before the first checkpoint; so its WAL is given the length that it will get, early and at once.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3

GROWN_AFTER_COMMITS = 64
"""By then it has been worth it: what it costs, some 8 ms, is what so many commits save."""

SPARE_PAGES = 100
"""Beyond a checkpoint's: a commit may go past that number before it is noticed."""

PAGE_BYTES = 4_096

FREE_BYTES_AT_LEAST = 1 << 28
"""256 MiB. On a disk with less room nothing is taken that isn't needed yet."""

SMALL_CACHE_PAGES = 8
"""A cache so small that what is inserted goes to the WAL before it is committed, or rolled back."""


def grow_wal(connection: sqlite3.Connection, path: str, *, pages: int) -> None:
    """Make the WAL as long as ``pages`` and some more, unless there is little room on the disk.

    A transaction too large for the cache spills into the WAL. Rolled back, it leaves nothing there
    but the length: what reads a WAL stops at the last commit.

    Args:
      connection: In WAL mode and outside a transaction; is left so, whatever goes wrong.
      path: The database file.
      pages: How many the WAL holds before a checkpoint.
    """
    # What goes wrong here makes commits slower, and nothing else. Whether there is room for them is
    # for them to say.
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
            with contextlib.suppress(sqlite3.Error):  # No transaction was begun.
                connection.execute("ROLLBACK")
            connection.execute(f"PRAGMA cache_size={cache}")
