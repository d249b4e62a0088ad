"""What is left to do is found far ahead of the results that a journal has."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import harness
from harness.errors import FanOutError, JournalKeyError
from harness.fanout._glimpsed import PUT_ASIDE_AT_ONCE, GlimpsedItems
from harness.journal import open_journal
from harness.journal._codec import Codec, digest_of_key, key_to_json

KEPT = 10_000
READ_AT_MOST = 2_000
"""Results handed on before the first new item is called: the rest must not be waited for."""

Item = dict[str, Any]


def item(number: int) -> Item:
    return {"id": number, "text": "where is my order?"}


async def answer(item: Item) -> int:
    number: int = item["id"]
    await trio.lowlevel.checkpoint()
    return number


async def _open(path: Path) -> None:
    async with (
        open_journal(path) as journal,
        harness.open_fan_out(answer, [item(0)], key=key_of, journal=journal) as stream,
    ):
        async for _ in stream:
            pass


def key_of(item: Item) -> int:
    number: int = item["id"]
    return number


def fill(path: Path, numbers: Iterable[int]) -> None:
    """Write what a batch of these items left."""
    trio.run(_open, path)
    codec = Codec()
    items, attempts, endings = [], [], []
    for place, number in enumerate(numbers, 2):
        if number == 0:
            continue
        key = key_to_json(number)
        items.append((place, 1, digest_of_key(1, key), key, codec.hash_input(item(number))))
        attempts.append((2 * place, place, 1, 0, 0.0))
        endings.append((2 * place + 1, place, 2 * place, str(number)))
    with sqlite3.connect(path) as journal:
        journal.executemany("INSERT INTO harness_items VALUES (?, ?, ?, ?, ?)", items)
        journal.executemany("INSERT INTO harness_attempts VALUES (?, ?, ?, ?, ?)", attempts)
        journal.executemany(
            "INSERT INTO harness_endings VALUES (?, ?, ?, 1, 'ok', 1, 0, 1, 1, ?, NULL, NULL, 0, "
            "0, NULL, NULL)",
            endings,
        )
    journal.close()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("resumed") / "run.db"
    fill(path, range(KEPT))
    return path


@pytest.fixture
def path(filled: Path, tmp_path: Path) -> Path:
    copied = tmp_path / "run.db"
    copied.write_bytes(filled.read_bytes())
    return copied


def generated(numbers: Iterable[int]) -> Iterator[Item]:
    for number in numbers:
        yield item(number)


async def sent(numbers: Iterable[int]) -> AsyncIterator[Item]:
    for number in numbers:
        yield item(number)


class Session:
    """What a session did."""

    def __init__(self) -> None:
        self.called: list[int] = []
        self.read_before = -1
        """How many results were read before the first call."""
        self.values: list[Any] = []

    async def go(self, path: Path, items: Any, **options: Any) -> None:
        async def called(item: Item) -> int:
            if not self.called:
                self.read_before = len(self.values)
            self.called.append(item["id"])
            return await answer(item)

        called.__module__, called.__qualname__ = answer.__module__, answer.__qualname__
        async with open_journal(path, force=True) as journal:
            async with harness.open_fan_out(
                called, items, key=key_of, journal=journal, name="answer", **options
            ) as stream:
                async for result in stream:
                    self.values.append(result.value if result.ok else result.status)


def as_list(numbers: Iterable[int]) -> list[Item]:
    return [item(number) for number in numbers]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "ordered"), [(generated, False), (as_list, True), (sent, False)]
)
def test_a_new_item_does_not_wait_for_the_results_before_it(
    path: Path, source: Callable[[Iterable[int]], Any], ordered: bool
) -> None:
    session = Session()
    trio.run(partial(session.go, path, source(range(KEPT + 1)), ordered=ordered))
    assert session.called == [KEPT]
    assert session.read_before < READ_AT_MOST
    assert sorted(session.values) == list(range(KEPT + 1))
    if ordered:
        assert session.values == sorted(session.values)


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 200])
def test_new_items_between_the_others_are_called_and_the_order_is_kept(
    tmp_path: Path, window: int
) -> None:
    path, count = tmp_path / "run.db", 300
    fill(path, (number for number in range(count) if number % 100))
    session = Session()
    trio.run(
        partial(
            session.go,
            path,
            generated(range(count)),
            ordered=True,
            limit=min(window, 100),
            window=window,
        )
    )
    assert sorted(session.called) == list(range(100, count, 100))
    assert session.values == list(range(count))


@pytest.mark.parametrize("numbers", [range(299, -1, -1), [(7 * n) % 300 for n in range(300)]])
def test_items_that_come_in_another_order_are_found(tmp_path: Path, numbers: Iterable[int]) -> None:
    path = tmp_path / "run.db"
    fill(path, range(300))
    session = Session()
    trio.run(partial(session.go, path, generated(numbers)))
    assert session.called == []
    assert session.values == list(numbers)


def test_an_item_whose_input_has_changed_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    fill(path, range(300))
    items = as_list(range(300))
    for text in ("and now?", "where is my order?"):
        items[40]["text"] = text
        session = Session()
        trio.run(partial(session.go, path, items, ordered=True))
        assert session.called == [40]
        assert session.values == list(range(300))


def test_a_key_that_comes_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    fill(path, range(30))
    with pytest.raises(JournalKeyError, match="two items of batch 'answer' have the key 3"):
        trio.run(Session().go, path, generated([1, 2, 3, 4, 3]))


def test_with_a_quick_failure_the_results_that_were_kept_are_there(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    fill(path, range(3_000))

    async def fails(item: Item) -> int:
        raise ValueError("no")

    async def main() -> None:
        async with open_journal(path, force=True) as journal:
            await harness.fan_out(
                fails, as_list(range(3_001)), key=key_of, journal=journal, name="answer"
            )

    with pytest.raises(FanOutError) as caught:
        trio.run(main)
    ok = [result for result in caught.value.results if result.ok]
    assert len(caught.value.results) == 3_001
    assert len(ok) > 1_500


@pytest.mark.parametrize("sized", [False, True])
def test_what_was_not_read_is_among_the_results_if_their_number_is_known(
    tmp_path: Path, sized: bool
) -> None:
    path = tmp_path / "run.db"
    fill(path, range(3_000))
    items: Any = as_list(range(3_000)) if sized else generated(range(3_000))
    read = 0

    async def main() -> harness.Results[int]:
        nonlocal read
        async with open_journal(path, force=True) as journal:
            async with harness.open_fan_out(
                answer, items, key=key_of, journal=journal, name="answer", keep=True
            ) as stream:
                async for _ in stream:
                    read += 1
                    if read == 10:
                        break
            return stream.results

    results = trio.run(main)
    indexes = [result.index for result in results]
    assert indexes == sorted(set(indexes))
    assert {result.status for result in results if result.index >= 1_000} <= {"skipped"}
    assert len(results) == 3_000 if sized else len(results) < 1_000


def put_all(queue: GlimpsedItems, items: Iterable[Any]) -> int:
    index = -1
    for index, one in enumerate(items):
        queue.put((index, one, index, (index, b"hash")))
    return index + 1


def test_what_is_put_aside_comes_back_in_order() -> None:
    queue, count = GlimpsedItems(), 5 * PUT_ASIDE_AT_ONCE
    put_all(queue, generated(range(count)))
    assert not queue.is_full
    taken = queue.take(10)
    put_all(queue, generated([count]))
    while queue:
        taken += queue.take(700)
    assert [one[1] for one in taken] == [item(number) for number in range(count + 1)]
    assert taken[1_500][2:] == (1_500, (1_500, b"hash"))


@pytest.mark.parametrize("nested", [False, True])
def test_what_somebody_else_holds_is_not_copied(nested: bool) -> None:
    held = [[number] for number in range(2 * PUT_ASIDE_AT_ONCE)]
    queue = GlimpsedItems(at_most=PUT_ASIDE_AT_ONCE)
    put_all(queue, ([one] for one in held) if nested else iter(held))
    assert queue.is_full
    for one, (_, taken, *_) in zip(held, queue.take(len(held)), strict=True):
        assert (taken[0] if nested else taken) is one


def test_the_items_of_a_list_are_its_own() -> None:
    held = [[number] for number in range(3 * PUT_ASIDE_AT_ONCE)]
    queue = GlimpsedItems(held, at_most=PUT_ASIDE_AT_ONCE + 2)
    put_all(queue, held)
    assert not queue.is_full
    assert all(taken is one for one, (_, taken, *_) in zip(held, queue.take(9_999), strict=True))


def test_objects_of_classes_stay_in_memory() -> None:
    queue = GlimpsedItems(at_most=PUT_ASIDE_AT_ONCE)
    put_all(queue, (Session() for _ in range(2 * PUT_ASIDE_AT_ONCE)))
    assert queue.is_full
    assert isinstance(queue.take(1)[0][1], Session)


class Fielded:
    def __init__(self, number: int) -> None:
        self.number = number

    def _harness_fields_(self) -> tuple[int]:
        return (self.number,)


def test_items_of_our_own_are_made_again_of_their_fields() -> None:
    count = 3 * PUT_ASIDE_AT_ONCE
    queue = GlimpsedItems(at_most=PUT_ASIDE_AT_ONCE + 2)
    put_all(queue, map(Fielded, range(count)))
    assert not queue.is_full
    assert [one[1].number for one in queue.take(count)] == list(range(count))
