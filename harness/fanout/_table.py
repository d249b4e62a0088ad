"""Make tables of results, for pandas and polars.

The columns are those of a journal's exports, as far as results know them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from harness._frames import Columns
from harness._frames import to_pandas as frame_of_pandas
from harness._frames import to_polars as frame_of_polars
from harness._json_value import encode_text, encode_value
from harness._tracebacks import traceback_of
from harness._words import repr_of, told
from harness.fanout._result import Results

_COLUMNS: Columns = {
    "index": "whole",
    "key": "key",
    "status": "text",
    "input": "json",
    "value": "json",
    "error": "text",
    "error_type": "text",
    "error_message": "text",
    "traceback": "text",
    "degraded": "truth",
    "attempts": "whole",
    "seconds": "number",
    "run_id": "text",
}


def to_pandas(results: Results[Any]) -> Any:
    """Return a ``pandas.DataFrame``."""
    return frame_of_pandas(_COLUMNS, _rows(results, lambda value: value), subject="to_pandas()")


def to_polars(results: Results[Any]) -> Any:
    """Return a ``polars.DataFrame``."""
    return frame_of_polars(_COLUMNS, _rows(results, _text), subject="to_polars()")


def _rows(results: Results[Any], read: Callable[[Any], Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the row of each result.

    Args:
      results: The results.
      read: Returns what the row has of an item or a value.
    """
    for result in results:
        kind, message = (None, None) if result.error is None else told(result.error)
        has_value = result.ok and not result.dropped
        yield (
            result.index,
            result.key if isinstance(result.key, int | str) else repr_of(result.key),
            result.status,
            read(result.item),
            read(result.value) if has_value else None,
            None if kind is None else f"{kind}: {message}",
            kind,
            message,
            traceback_of(result.error),
            result.degraded,
            result.attempts,
            result.seconds,
            result.run_id,
        )


def _text(value: Any) -> str:
    """Return a value as JSON; what JSON has no form for as a string with its words."""
    try:
        return encode_value(value)
    except Exception:  # Whatever its class raises.
        return encode_text(repr_of(value))
