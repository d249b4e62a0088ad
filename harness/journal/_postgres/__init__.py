"""A journal on a PostgreSQL server. Needs the extra ``postgres``, loaded when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness._lazy import lazy

if TYPE_CHECKING:
    from harness.journal._postgres._backend import PostgresBackend
else:
    __getattr__, __dir__ = lazy(
        extras={"psycopg": "postgres"},
        subject="a journal on a PostgreSQL server",
        otherwise="give the journal a file",
    )

__all__ = ["PostgresBackend"]
