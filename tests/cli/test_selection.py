"""Choosing records: the first few, or a sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count

from harness.cli._records import Record
from harness.cli._selection import selected


def records(many: int | None = None) -> Iterator[Record]:
    for index in count() if many is None else range(many):
        yield Record(index, index + 1, index, str(index))


def indexes(many: int | None, **chosen: int | None) -> list[int]:
    given = {"first": None, "sample": None, "seed": 0, **chosen}
    return [r.index for r in selected(records(many), **given)]  # type: ignore[arg-type]


def test_all_by_default() -> None:
    assert indexes(5) == [0, 1, 2, 3, 4]


def test_first_reads_no_further() -> None:
    """The next record might be the one that makes a pipe wait for ever."""
    source = records()
    assert [r.index for r in selected(source, first=3, sample=None, seed=0)] == [0, 1, 2]
    assert next(source).index == 3


def test_first_of_fewer_is_all() -> None:
    assert indexes(2, first=5) == [0, 1]


def test_sample_is_in_input_order_and_repeats_with_its_seed() -> None:
    drawn = indexes(1_000, sample=20, seed=7)
    assert drawn == sorted(drawn)
    assert len(set(drawn)) == 20
    assert drawn == indexes(1_000, sample=20, seed=7)
    assert drawn != indexes(1_000, sample=20, seed=8)


def test_sample_of_fewer_is_all() -> None:
    assert indexes(3, sample=10) == [0, 1, 2]


def test_sample_is_drawn_from_the_first() -> None:
    assert set(indexes(None, first=10, sample=5)) <= set(range(10))


def test_sample_is_fair() -> None:
    """A reservoir with an off-by-one favours the start or the end of the input."""
    drawn = Counter(i for seed in range(2_000) for i in indexes(10, sample=3, seed=seed))
    assert all(480 <= drawn[i] <= 720 for i in range(10))


def test_selection_is_lazy() -> None:
    """Building the chain must not read: that belongs into the reading thread."""
    selected(records(), first=None, sample=5, seed=0)
