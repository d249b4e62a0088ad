"""Write rows as Parquet or Arrow; only loaded for that, since it needs pyarrow.

The rows of a group are in memory together, so a group ends with its rows or with their texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import pyarrow  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]

from harness._frames import Columns, Kind, utf8

ROWS_AT_MOST = 1 << 14
"""Rows in a group. Files of larger ones are hardly smaller."""

CHARACTERS_AT_MOST = 1 << 24
"""Characters in a group before its last row."""

_TYPES: Mapping[Kind, pyarrow.DataType] = {
    "text": pyarrow.string(),
    "json": pyarrow.string(),
    "truth": pyarrow.bool_(),
    "whole": pyarrow.int64(),
    "number": pyarrow.float64(),
    "time": pyarrow.timestamp("us", "UTC"),
}


def write(
    rows: Iterable[tuple[Any, ...]],
    file: BinaryIO,
    *,
    form: str,
    columns: Columns,
    whole_keys: bool,
) -> None:
    """Write rows.

    Args:
      rows: The rows.
      file: Where they go. If this raises, it isn't complete although it may look so.
      form: ``"parquet"`` or ``"arrow"``.
      columns: The names and the kinds of what is in a row.
      whole_keys: Whether keys are whole numbers; else they are texts.
    """
    key: Kind = "whole" if whole_keys else "text"
    kinds: list[Kind] = [key if kind == "key" else kind for kind in columns.values()]
    schema = pyarrow.schema(
        [(name, _TYPES[kind]) for name, kind in zip(columns, kinds, strict=True)]
    )
    if form == "parquet":
        writer = pyarrow.parquet.ParquetWriter(file, schema, compression="zstd")
    else:
        options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
        writer = pyarrow.ipc.new_file(file, schema, options=options)
    with writer:
        for group in _groups(rows):
            arrays = [
                pyarrow.array(_utf8(values) if kind in ("text", "json") else values, _TYPES[kind])
                for kind, values in zip(kinds, zip(*group, strict=True), strict=True)
            ]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))


def _utf8(values: Iterable[Any]) -> list[str | None]:
    return [None if value is None else utf8(str(value)) for value in values]


def _groups(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    group: list[tuple[Any, ...]] = []
    characters = 0
    for row in rows:
        group.append(row)
        characters += sum(len(value) for value in row if type(value) is str)
        if len(group) >= ROWS_AT_MOST or characters >= CHARACTERS_AT_MOST:
            yield group
            group, characters = [], 0
    if group:
        yield group
