"""Choose which records of an input take part: all, the first few, or a fair sample."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import islice

from harness.cli._records import Record


def selected(
    records: Iterable[Record], *, first: int | None, sample: int | None, seed: int
) -> Iterator[Record]:
    """Yield the chosen records in the order of the input.

    Args:
      records: What to choose from.
      first: How many to read; the rest of the input isn't touched.
      sample: How many of those to draw. They are drawn in one pass (a reservoir), each set with
        the same chance, so an endless input never gets to its first item.
      seed: The same seed draws the same sample from the same input.
    """
    chosen = iter(records) if first is None else islice(records, first)
    if sample is None:
        yield from chosen
    else:
        yield from _reservoir(chosen, sample, random.Random(seed))


def _reservoir(records: Iterable[Record], size: int, draw: random.Random) -> list[Record]:
    kept: list[Record] = []
    for seen, record in enumerate(records):
        if seen < size:
            kept.append(record)
        elif (place := draw.randrange(seen + 1)) < size:
            kept[place] = record
    return sorted(kept, key=lambda record: record.index)
