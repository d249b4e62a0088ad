"""x"""

from __future__ import annotations
from harness.journal._backend import SqlBackend


class PostgresBackend(SqlBackend):
    """x"""
