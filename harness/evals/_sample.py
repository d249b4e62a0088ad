"""Samples: what a function under evaluation is asked, and what it should answer.

They come as objects, as dicts with the same names, or from a file, whose columns have names of
their own. Each has an id that no other has, since scores are paired, journaled and shown by it.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs

_NAMES_SHOWN = 12


@attrs.frozen
class Sample:
    """One question of an evaluation, and what is known of it."""

    id: str | int
    """What names it; no other sample has the same."""

    input: Any
    """What the function gets. Each call gets a copy of its own."""

    expected: Any = None
    """The right answer, for the scorers; the function never sees it."""

    group: Any = None
    """What `Evaluation.by_group` puts it with, such as a category; None: no group."""

    cluster: Any = None
    """What it has in common with samples that are right or wrong together, such as the text that
    several questions are about; None: nothing. Intervals and tests take it into account."""


_FIELDS = tuple(field.name for field in attrs.fields(Sample))


def as_samples(samples: Iterable[Sample | Mapping[str, Any]]) -> tuple[Sample, ...]:
    """Return the samples, dicts turned into objects, each with an id of its own.

    Raises:
      TypeError: if one is neither a sample nor a dict.
      ValueError: if there are none, two have the same id, or a dict has no input or other names.
    """
    found: dict[str, Sample] = {}
    for index, one in enumerate(samples):
        sample = one if isinstance(one, Sample) else _of_dict(one, index)
        if found.setdefault(str(sample.id), sample) is not sample:
            raise ValueError(
                f"two samples have the id {sample.id!r}, so nobody could tell their scores apart; "
                "give each its own, or leave out the ids to have the samples counted"
            )
    if not found:
        raise ValueError("there are no samples, so there is nothing to evaluate; give at least one")
    return tuple(found.values())


def _of_dict(given: object, index: int) -> Sample:
    if not isinstance(given, Mapping):
        raise TypeError(
            f"sample {index} is {given!r}; give a Sample, or a dict with the keys "
            f"{', '.join(_FIELDS)}, of which only 'input' is needed"
        )
    unknown = [name for name in given if name not in _FIELDS]
    if unknown or "input" not in given:
        raise ValueError(
            f"sample {index} has the keys {', '.join(map(repr, given))}; a sample has 'input', and "
            "may have 'id', 'expected', 'group' and 'cluster'. For records with other names, say "
            "which is which: read_samples(records, input=..., expected=...)"
        )
    return Sample(**{"id": index, **given})


def read_samples(
    source: str | os.PathLike[str] | Iterable[Mapping[str, Any]],
    *,
    input: str | None = None,
    expected: str | None = None,
    id: str | None = None,
    group: str | None = None,
    cluster: str | None = None,
) -> list[Sample]:
    """Make samples of the records of a file or of a data set.

    Args:
      source: A file of records, by its suffix CSV (``.csv``, ``.tsv``), JSONL (``.jsonl``,
        ``.ndjson``) or Parquet (``.parquet``, which needs the extra ``arrow``); a folder that the
        package ``datasets`` wrote with ``save_to_disk``; or the records themselves: any iterable of
        dicts, such as a split of a Hugging Face data set.
      input: The field that the function gets; None: a dict of all fields but ``expected``.
      expected: The field with the right answer; None: there is none.
      id: The field that names a record; None: they are counted, from 0.
      group: The field with its group.
      cluster: The field with its cluster.

    Raises:
      ImportError: if the package for such a file isn't installed.
      OSError: if the file can't be read.
      TypeError: if a record isn't a dict.
      ValueError: if a record can't be read, or lacks one of the fields; or if there are none.
    """
    records = _records_in(Path(source)) if isinstance(source, str | os.PathLike) else source
    fields = {
        name: field
        for name, field in (("expected", expected), ("id", id), ("group", group))
        if field is not None
    } | ({} if cluster is None else {"cluster": cluster})
    return list(as_samples(_samples_of(records, input, fields)))


def _samples_of(
    records: Iterable[Mapping[str, Any]], input: str | None, fields: Mapping[str, str]
) -> Iterator[Sample]:
    for index, record in enumerate(records):
        if not isinstance(record, Mapping):
            raise TypeError(
                f"record {index} is {record!r}, and its fields are asked for; give records that "
                "are dicts, and of a data set with several splits one of them"
            )
        for field in (*fields.values(), *(() if input is None else (input,))):
            if field not in record:
                names = ", ".join(map(repr, list(record)[:_NAMES_SHOWN]))
                raise ValueError(f"record {index} has no field {field!r}; its fields are {names}")
        # Whoever sees the answer needs no model.
        asked = {key: one for key, one in record.items() if key != fields.get("expected")}
        known = {name: record[field] for name, field in fields.items()}
        yield Sample(**{"id": index, "input": asked if input is None else record[input], **known})


# Files ------------------------------------------------------------------------------------------


def _records_in(path: Path) -> Iterable[Mapping[str, Any]]:
    suffix = path.suffix.lower()
    if path.is_dir():
        found = _package("datasets", "a folder of a data set", "datasets").load_from_disk(str(path))
        if isinstance(found, Mapping):
            raise ValueError(
                f"{str(path)!r} has several splits ({', '.join(found)}); give the folder of one"
            )
        rows: Iterable[Mapping[str, Any]] = found
        return rows
    if suffix == ".parquet":
        return _parquet_records(path)
    if suffix in (".csv", ".tsv"):
        return _csv_records(path, "\t" if suffix == ".tsv" else ",")
    if suffix in (".jsonl", ".ndjson"):
        return _json_records(path)
    raise ValueError(
        f"{str(path)!r} is read by its suffix, and that is none of .csv, .tsv, .jsonl, .ndjson and "
        ".parquet; convert it, or give its records instead"
    )


def _parquet_records(path: Path) -> Iterator[Mapping[str, Any]]:
    with _package("pyarrow.parquet", "a Parquet file", "trio-harness[arrow]").ParquetFile(
        path
    ) as file:
        for batch in file.iter_batches():
            yield from batch.to_pylist()


def _csv_records(path: Path, delimiter: str) -> Iterator[Mapping[str, Any]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file, delimiter=delimiter, strict=True)
        for row in rows:
            if None in row or None in row.values():
                columns: Sequence[str] = rows.fieldnames or ()
                raise ValueError(
                    f"{path}, line {rows.line_num}: this row hasn't the {len(columns)} columns of "
                    "the first; quote what has a delimiter in it"
                )
            yield row


def _json_records(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise ValueError(
                        f"{path}, line {number}: expected one JSON value, but {error}"
                    ) from error


def _package(module: str, what: str, install: str) -> Any:
    """Import what few need, and say how to install it if it isn't there."""
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"reading {what} needs {package}, which is not installed; run: pip install '{install}'",
            name=package,
        ) from error
