"""A journal on a PostgreSQL server. Needs the extra ``postgres``, loaded when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.journal._postgres._backend import PostgresBackend

__all__ = ["PostgresBackend"]


def __getattr__(name: str) -> Any:
    if name != "PostgresBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from harness.journal._postgres._backend import PostgresBackend  # noqa: PLC0415 (lazy)
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise ImportError(
            "a journal on a PostgreSQL server needs psycopg; install trio-harness[postgres], or "
            "give the journal a file"
        ) from error
    return PostgresBackend
