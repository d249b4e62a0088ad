"""`Results` is a sequence of one `Result` per item in input order, and answers questions."""

import gc
import math
import pickle
import re
import sys
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.fanout import DROP
from tests.fanout.probes import Boom, fan_out_run, nap, statuses


async def mixed(item: int) -> int:
    """End in the way that the item stands for."""
    await trio.sleep((item * 7) % 5)
    if item % 4 == 1:
        raise Boom(item)
    if item % 4 == 2:
        await trio.sleep(100)
    if item % 4 == 3:
        harness.current_run().cancel("not needed")
        await trio.lowlevel.checkpoint()
    return item * 10


async def mixed_results() -> harness.Results[Any]:
    """Return eight results: two ok, two failed, two timed out, two cancelled."""
    return await harness.fan_out(
        mixed, range(8), policy=harness.BestEffort(), each=harness.Attempt(timeout=50), limit=3
    )


MIXED = ["ok", "failed", "timed_out", "cancelled"] * 2


async def test_results_are_a_sequence_in_input_order(autojump_clock: MockClock) -> None:
    results = await mixed_results()
    assert isinstance(results, Sequence)
    assert len(results) == 8
    assert statuses(results) == MIXED
    assert [result.index for result in results] == list(range(8))
    assert results[0].item == 0
    assert results[-1].item == 7
    assert [result.index for result in results[2:5]] == [2, 3, 4]
    assert [result.index for result in reversed(results)] == list(range(7, -1, -1))
    assert results[3] in results
    assert results.index(results[3]) == 3
    with pytest.raises(IndexError):
        results[8]


async def test_results_are_in_input_order_whatever_ends_first(autojump_clock: MockClock) -> None:
    seconds = [5.0, 1.0, 4.0, 2.0, 3.0]
    results = await harness.fan_out(nap, seconds)
    assert list(results.values()) == seconds


async def test_values_are_the_ok_ones_in_input_order(autojump_clock: MockClock) -> None:
    results = await mixed_results()
    assert list(results.values()) == [0, 40]


async def test_failed_are_the_failed_and_the_timed_out(autojump_clock: MockClock) -> None:
    results = await mixed_results()
    assert [result.index for result in results.failed] == [1, 2, 5, 6]
    assert isinstance(results.failed, Sequence)


async def test_gaps_are_all_that_are_not_ok_as_results(autojump_clock: MockClock) -> None:
    results = await mixed_results()
    assert type(results.gaps) is type(results)
    assert [result.index for result in results.gaps] == [1, 2, 3, 5, 6, 7]
    assert list(results.gaps.values()) == []


async def test_complete_means_no_gaps(autojump_clock: MockClock) -> None:
    assert (await harness.fan_out(nap, [1, 2])).complete is True
    assert (await mixed_results()).complete is False


async def test_degraded_counts_as_ok(autojump_clock: MockClock) -> None:
    each = harness.Attempt(fallback=lambda item, error: -1)
    results = await harness.fan_out(mixed, [0, 1], each=each)
    assert list(results.values()) == [0, -1]
    assert results.complete
    assert len(results.failed) == len(results.gaps) == 0
    results.raise_if_incomplete()


async def test_raise_if_incomplete_raises_what_is_missing(autojump_clock: MockClock) -> None:
    results = await mixed_results()
    with pytest.raises(harness.errors.FanOutError) as caught:
        results.raise_if_incomplete()
    assert {error.args for error in caught.value.exceptions if type(error) is Boom} == {(1,), (5,)}
    assert statuses(caught.value.results) == MIXED


async def test_raise_if_incomplete_does_not_pass_over_cancelled_or_skipped(
    autojump_clock: MockClock,
) -> None:
    """Without a failure there is a gap all the same, and the caller asked for none."""
    results = await harness.fan_out(nap, [1, 5, 1], within=3, limit=2)
    assert statuses(results) == ["ok", "cancelled", "ok"]
    with pytest.raises(harness.errors.FanOutError):
        results.raise_if_incomplete()
    skipped = await harness.fan_out(nap, [5, 5], within=3, limit=1)
    assert statuses(skipped) == ["cancelled", "skipped"]
    with pytest.raises(harness.errors.FanOutError):
        skipped.raise_if_incomplete()


async def test_the_summary_is_a_frozen_value_that_reads_as_text(
    autojump_clock: MockClock,
) -> None:
    results = await mixed_results()
    summary: Any = results.summary()
    assert summary == results.summary()
    assert hash(summary) == hash(results.summary())
    text = str(summary)
    assert "8" in text
    for word in ("2 of 8 ok", "2 failed", "2 timed out", "2 cancelled"):
        assert word in text
    with pytest.raises(AttributeError):
        summary.ok = 5


async def test_the_results_say_how_the_fan_out_ended(autojump_clock: MockClock) -> None:
    async def ends(way: str) -> None:
        await trio.sleep(1)
        if way == "cancel":
            fan_out_run().cancel("enough")
        elif way == "stop":
            fan_out_run().stop("enough")
        await trio.sleep(1)

    assert (await harness.fan_out(ends, ["nothing"])).status == "ok"
    assert (await harness.fan_out(ends, ["stop"])).status == "ok"
    assert (await harness.fan_out(ends, ["cancel"])).status == "cancelled"
    assert (await harness.fan_out(nap, [9], within=1)).status == "ok"


async def test_results_survive_a_pickle(autojump_clock: MockClock) -> None:
    results = await mixed_results()
    again = pickle.loads(pickle.dumps(results))
    assert statuses(again) == MIXED
    assert list(again.values()) == [0, 40]
    assert again[1].error.args == (1,)
    assert str(again.summary()) == str(results.summary())


@pytest.mark.slow
async def test_the_repr_of_many_results_is_short(autojump_clock: MockClock) -> None:
    results = await harness.fan_out(nap, [0.0] * 5_000)
    assert len(repr(results)) < 2_000


@pytest.mark.slow
async def test_results_hold_no_run_and_cost_a_few_hundred_bytes_each(
    autojump_clock: MockClock,
) -> None:
    count = 2_000
    await harness.fan_out(nap, [0.0] * 10)
    gc.collect()
    # What other tests of this process have left is theirs.
    earlier = {id(run): run for run in runs_alive()}
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        results = await harness.fan_out(nap, [0.0] * count)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(results) == count
    assert (after - before) / count < 1_000
    assert not [run for run in runs_alive() if id(run) not in earlier]


def runs_alive() -> list[harness.Run]:
    return [thing for thing in gc.get_objects() if isinstance(thing, harness.Run)]


@pytest.mark.slow
async def test_what_a_run_held_is_freed_while_its_result_is_kept(
    autojump_clock: MockClock,
) -> None:
    class Big:
        alive = 0

        def __init__(self) -> None:
            Big.alive += 1

        def __del__(self) -> None:
            Big.alive -= 1

    big = harness.RunLocal(Big, name="big")

    async def body(item: int) -> int:
        big.get()
        await trio.sleep(1)
        return item

    results = await harness.fan_out(body, range(20), limit=4)
    gc.collect()
    assert len(results) == 20
    assert Big.alive == 0


async def test_one_hedge_is_spoken_of_in_the_singular(autojump_clock: MockClock) -> None:
    each = harness.Attempt(hedge=harness.Hedge(after=1))
    one = await harness.fan_out(nap, [5], each=each)
    assert re.search(r"\b1 hedge\b", str(one.summary()))
    two = await harness.fan_out(nap, [5, 5], each=each)
    assert re.search(r"\b2 hedges\b", str(two.summary()))


# Tables -----------------------------------------------------------------------------------------


async def hostile_results() -> harness.Results[Any]:
    """Return an odd value, one that JSON has no form for, nothing to keep, and an error."""
    values: list[Any] = [{"is": math.nan}, {1, 2}, DROP, Boom("no \ud800")]

    async def give(item: Any) -> Any:
        if isinstance(item, Boom):
            raise item
        return item

    keys = {id(value): key for value, key in zip(values, ("a", 2, (3,), "d"), strict=True)}
    return await harness.fan_out(
        give, values, key=lambda item: keys[id(item)], policy=harness.BestEffort()
    )


@pytest.mark.slow
async def test_pandas_has_a_row_for_each_item(autojump_clock: MockClock) -> None:
    pytest.importorskip("pandas")
    results = await hostile_results()
    frame = results.to_pandas()
    assert list(frame["key"]) == ["a", "2", "(3,)", "d"]
    assert list(frame["status"]) == ["ok", "ok", "ok", "failed"]
    assert list(frame["value"])[1:] == [{1, 2}, None, None]
    assert frame["input"][3] is results[3].item
    assert frame["error"][3] == "Boom: no \\ud800"
    assert frame["error_type"].isna().sum() == 3
    assert "in give" in frame["traceback"][3]
    assert list(frame["run_id"]) == [result.run_id for result in results]
    assert list(results[:0].to_pandas()) == list(frame)
    assert (await mixed_results()).to_pandas()["key"].sum() == sum(range(8))


@pytest.mark.slow
async def test_polars_has_a_row_for_each_item() -> None:
    pytest.importorskip("polars")
    results = await hostile_results()
    frame = results.to_polars()
    assert frame["value"].to_list() == ["\"{'is': nan}\"", '"{1, 2}"', None, None]
    assert results[:0].to_polars().drop("key").schema == frame.drop("key").schema


def test_a_table_names_the_extra_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ImportError, match=rf"to_{name}\(\) needs .*trio-harness\[{name}\]"):
            getattr(harness.Results([]), f"to_{name}")()
