"""A journal on a PostgreSQL server. Needs the extra ``postgres``, loaded when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness._extras import load_with_extra

if TYPE_CHECKING:
    from harness.journal._postgres._backend import PostgresBackend

__all__ = ["PostgresBackend"]


def __getattr__(name: str) -> Any:
    if name != "PostgresBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load_with_extra(
        "harness.journal._postgres._backend",
        name,
        subject="a journal on a PostgreSQL server",
        extras={"psycopg": "postgres"},
        otherwise="give the journal a file",
    )
