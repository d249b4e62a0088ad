"""Recordings replay outcomes in other orders, and find the smallest case in which order matters."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

import harness
from harness.fanin import Fold
from harness.testing.chaos import Arrivals, Recording, all_failure_combinations
from harness.testing.chaos._orders import arrival_orders


async def test_every_order_is_tried_when_there_are_few() -> None:
    recording = Recording.of_values(["a", "b", "c", "d"])
    seen: set[tuple[str, ...]] = set()

    def note(results: Arrivals[str]) -> int:
        seen.add(tuple(results.values()))
        return len(results)

    assert await recording.assert_order_independent(note) == 24
    assert seen == set(itertools.permutations("abcd"))


async def test_an_answer_that_depends_on_the_order_is_shown_by_two_results() -> None:
    """Of eight results, two are enough to show it, so two are shown."""
    recording = Recording.of_values([5, 3, 8, 3, 9, 1, 7, 2])

    def first_even(results: Arrivals[int]) -> Any:
        return next((value for value in results.values() if value % 2 == 0), None)

    with pytest.raises(AssertionError) as caught:
        await recording.assert_order_independent(first_even)
    text = str(caught.value)
    assert text.startswith("first_even depends on the order of arrival")
    assert "arriving as 2, 7: 8" in text
    assert "arriving as 7, 2: 2" in text


async def test_errors_and_async_aggregates_are_replayed() -> None:
    async def fold(results: Arrivals[int]) -> tuple[int, int]:
        total = failed = 0
        async for result in results:
            if result.ok:
                total += result.value
            else:
                failed += 1
        return total, failed

    recording = Recording.of_values([1, ValueError("x"), 2])
    assert await recording.assert_order_independent(fold) == 6

    async def last(results: Arrivals[int]) -> str:
        status = ""
        async for result in results:
            status = result.status
        return status

    with pytest.raises(AssertionError, match="depends on the order"):
        await recording.assert_order_independent(last)


async def test_what_was_really_recorded_is_replayed(autojump_clock: MockClock) -> None:
    async def work(number: int) -> int:
        await trio.sleep(number)
        if number == 2:
            raise ValueError(number)
        return number * 10

    results = await harness.fan_out(work, [3, 1, 2], policy=harness.BestEffort())
    recording = Recording(results)
    merged = await recording.assert_order_independent(lambda some: set(some.values()))
    assert merged == 6

    arrived = []
    async with harness.open_fan_out(
        recording.worker([1, 2, 0]), [3, 1, 2], policy=harness.BestEffort()
    ) as stream:
        async for result in stream:
            arrived.append((result.item, result.status))
    assert arrived == [(1, "ok"), (2, "failed"), (3, "ok")]


async def test_a_fold_takes_a_replay_for_a_stream() -> None:
    recording = Recording.of_values([1, 2, 3])

    async def add(results: Arrivals[int]) -> int:
        fold = Fold(results, lambda total, result: total + result.value, 0, commutative=True)
        return await fold.run()

    assert await recording.assert_order_independent(add) == 6


async def test_an_aggregate_that_keeps_something_is_told_apart() -> None:
    calls: list[int] = []

    def count(results: Arrivals[int]) -> int:
        calls.append(1)
        return len(calls)

    with pytest.raises(AssertionError, match="a different answer every time"):
        await Recording.of_values([1, 2]).assert_order_independent(count)


async def test_an_error_in_some_orders_only_is_a_difference() -> None:
    def picky(results: Arrivals[int]) -> int:
        if results[0].value == 2:
            raise LookupError("two came first")
        return 0

    with pytest.raises(AssertionError, match="raised LookupError: two came first"):
        await Recording.of_values([1, 2]).assert_order_independent(picky)
    # The same error everywhere is the same answer, whatever its words.
    recording = Recording.of_values([ValueError("a"), ValueError("b")])
    await recording.assert_order_independent(lambda results: results[0].value)


async def test_answers_are_compared_by_the_function_given() -> None:
    def total(results: Arrivals[float]) -> float:
        # Not ``sum``: since Python 3.12 it makes up for what each addition loses.
        return functools.reduce(operator.add, results.values())

    recording = Recording.of_values([0.1, 0.2, 0.3])
    with pytest.raises(AssertionError):
        await recording.assert_order_independent(total)
    await recording.assert_order_independent(total, equal=math.isclose)


async def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="of_values"):
        Recording([1, 2])  # type: ignore[arg-type]
    recording = Recording.of_values([1, 2])
    with pytest.raises(ValueError, match="orders"):
        recording.replays(orders=0)
    with pytest.raises(ValueError, match="each index"):
        recording.worker([0, 0])
    with pytest.raises(KeyError):
        await recording.worker()("another")


@given(count=st.integers(0, 12), at_most=st.integers(1, 200), seed=st.integers(0, 3))
def test_orders_are_different_and_as_many_as_there_can_be(
    count: int, at_most: int, seed: int
) -> None:
    orders = list(arrival_orders(count, at_most=at_most, seed=seed))
    assert len(orders) == len(set(orders)) == min(at_most, math.factorial(count))
    assert orders[0] == tuple(range(count))
    assert all(sorted(order) == list(range(count)) for order in orders)
    assert orders == list(arrival_orders(count, at_most=at_most, seed=seed))


# Combinations ------------------------------------------------------------------------------------


@given(n=st.integers(0, 8), at_most=st.none() | st.integers(0, 9))
def test_each_combination_comes_once_the_small_ones_first(n: int, at_most: int | None) -> None:
    given_ = list(all_failure_combinations(n, at_most=at_most))
    most = n if at_most is None else min(at_most, n)
    assert len(given_) == len(set(given_)) == sum(math.comb(n, k) for k in range(most + 1))
    assert [len(one) for one in given_] == sorted(len(one) for one in given_)
    assert all(one <= set(range(n)) for one in given_)


@pytest.mark.parametrize("n", [-1, 21, 2.5, True])
def test_wrong_numbers_of_parts_are_refused(n: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        all_failure_combinations(n)


def test_many_parts_with_few_failures() -> None:
    assert sum(1 for _ in all_failure_combinations(100, at_most=2)) == 1 + 100 + 4950


async def test_every_combination_of_failures_gives_one_result_per_item() -> None:
    for failing in all_failure_combinations(4):

        async def work(number: int, failing: frozenset[int] = failing) -> int:
            if number in failing:
                raise ValueError(number)
            return number

        results = await harness.fan_out(work, range(4), policy=harness.BestEffort())
        assert {result.item for result in results.failed} == failing


async def test_a_recording_comes_back_from_a_file(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def ask(expert: str) -> dict[str, str]:
        await trio.sleep(len(expert))
        if expert == "bo":
            raise ConnectionError("busy")
        return {"says": expert.upper()}

    experts = ["ann", "bo"]
    results = await harness.fan_out(ask, experts, policy=harness.BestEffort())
    Recording(results).save(tmp_path / "asked.json")
    again = Recording.load(tmp_path / "asked.json", items=experts)
    for then, now in zip(results, again.results, strict=True):
        assert (now.key, now.item, now.status, now.run_id) == (
            *(then.key, then.item, then.status),
            then.run_id,
        )
        assert (now.started_at, now.ended_at) == (then.started_at, then.ended_at)
    assert again.results[0].value == {"says": "ANN"}
    assert str(again.results[1].error) == "ConnectionError: busy"
    assert await again.worker()("ann") == {"says": "ANN"}


def test_a_recording_of_a_changed_program_or_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "asked.json"
    asked = [("ann", "yes"), ("bo", "no")]
    Recording(
        harness.Result(index, index, item, None, "ok", value, 1, 0.0, 0.0)
        for index, (item, value) in enumerate(asked)
    ).save(path)
    changed = ((["ann", "cy"], "item 1 is 'cy', and was 'bo'"), (["ann"], "item 1 is None"))
    for items, said in changed:
        with pytest.raises(ValueError, match=f"the program has changed .* {said}"):
            Recording.load(path, items=items)
    path.write_text(path.read_text().replace('"version": 1', '"version": 9'))
    with pytest.raises(ValueError, match="is of version 9, and this harness reads 1"):
        Recording.load(path)
    for text in ("{", "[]"):
        path.write_text(text)
        with pytest.raises(ValueError, match="is no recording"):
            Recording.load(path)
    path.write_text('{"format": "harness recording", "version": 1, "results": [{"index": 0}]}')
    with pytest.raises(ValueError, match=r"can't be read \(KeyError"):
        Recording.load(path)


def test_only_what_comes_back_as_it_is_is_saved(tmp_path: Path) -> None:
    recording = Recording.of_values([(1, 2)])
    with pytest.raises(TypeError, match=r"the value \(1, 2\) doesn't come back from JSON"):
        recording.save(tmp_path / "asked.json")
    recording.save(tmp_path / "asked.json", encode=lambda it: list(it) if it == (1, 2) else it)
    again = Recording.load(
        tmp_path / "asked.json", decode=lambda it: tuple(it) if isinstance(it, list) else it
    )
    assert again.results[0].value == (1, 2)
