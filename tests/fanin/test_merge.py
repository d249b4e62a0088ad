"""`merge` gives each value once, with all its sources, whatever the order of arrival."""

import itertools
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.fanin import Merged, merge
from harness.fanout import Result
from tests.fanin.made_results import arrivals, failed, ok, values
from tests.fanout.probes import Boom


def indexes(merged: list[Merged[Any]]) -> list[list[int]]:
    return [[source.index for source in one.sources] for one in merged]


def test_equal_content_becomes_one_value_that_keeps_its_sources() -> None:
    results = values({"a": 1, "b": 2}, "text", {"b": 2, "a": 1}, "other", "text")
    for order in arrivals(results):
        merged = merge(order)
        assert [one.value for one in merged] == [{"a": 1, "b": 2}, "text", "other"]
        assert indexes(merged) == [[0, 2], [1, 4], [3]]
        assert merged[0].sources == (results[0], results[2])


def test_a_function_says_what_makes_two_values_the_same() -> None:
    results = values({"url": "x", "n": 1}, {"url": "y", "n": 2}, {"url": "x", "n": 3})
    for order in arrivals(results):
        merged = merge(order, dedupe=lambda value: value["url"])
        assert [one.value["n"] for one in merged] == [1, 2]
        assert indexes(merged) == [[0, 2], [1]]


def test_items_without_a_value_are_passed_over() -> None:
    results = [failed(0, Boom()), ok(1, "a"), failed(2, Boom()), ok(3, "a")]
    for order in arrivals(results):
        assert indexes(merge(order)) == [[1, 3]]
    assert merge([failed(0, Boom())]) == []
    assert merge([]) == []


def test_values_of_every_kind_can_be_merged() -> None:
    """Lists and dicts can't be keys of a dict; their content can."""
    results = values([1, [2]], {1, 2}, [1, [2]], {2, 1}, None, None)
    for order in arrivals(results):
        assert indexes(merge(order)) == [[0, 2], [1, 3], [4, 5]]


async def test_the_arrival_order_of_a_real_fan_out_makes_no_difference(
    autojump_clock: MockClock,
) -> None:
    answers = ["b", "a", "b", "c", "a"]
    seen = []
    for delays in itertools.permutations(range(5)):

        async def body(index: int, delays: tuple[int, ...] = delays) -> str:
            await trio.sleep(delays[index])
            return answers[index]

        arrived: list[Result[str]] = []
        async with harness.open_fan_out(body, range(5)) as stream:
            arrived.extend([result async for result in stream])
        merged = merge(arrived)
        seen.append(([one.value for one in merged], indexes(merged)))
    assert seen == [(["b", "a", "c"], [[0, 2], [1, 4], [3]])] * 120


def test_results_of_several_fan_outs_have_an_order_too() -> None:
    results = [ok(0, "x", key="a"), ok(0, "y", key="b"), ok(1, "x", key="c")]
    for order in arrivals(results):
        merged = merge(order)
        assert [one.value for one in merged] == ["x", "y"]
        assert [source.key for source in merged[0].sources] == ["a", "c"]


# Bad input ---------------------------------------------------------------------------------------


class Connection:
    pass


def test_a_value_without_content_is_refused_and_named() -> None:
    with pytest.raises(TypeError, match="content of a Connection can't be hashed") as caught:
        merge([ok(0, 1), ok(1, Connection(), key="ticket-7")])
    assert caught.value.__notes__ == ["this is the value of item 'ticket-7'"]


def test_a_key_that_is_not_hashable_is_refused_and_named() -> None:
    with pytest.raises(TypeError, match=r"something hashable.* returned \[1\] for item 'a'"):
        merge([ok(0, 1, key="a")], dedupe=lambda value: [value])


@pytest.mark.parametrize("wrong", ["url", None, 1, str])
def test_what_says_nothing_about_sameness_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"merge\(dedupe=\.\.\.\) takes \"content\""):
        merge([], dedupe=wrong)


def test_values_instead_of_results_are_refused() -> None:
    with pytest.raises(TypeError, match="instead of their values"):
        merge(["a", "b"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"merge\(\) takes the results of a fan-out"):
        merge(3)  # type: ignore[arg-type]
