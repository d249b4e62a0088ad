"""``Attempt(timeout=...)`` limits each attempt, and only the time in which it works."""

import math

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError, RunTimedOut
from tests.fanout.probes import nap, nothing_left_behind, statuses

BEST_EFFORT = harness.BestEffort()


async def test_the_timeout_is_each_items_own(autojump_clock: MockClock) -> None:
    begin = trio.current_time()
    with nothing_left_behind():
        results = await harness.fan_out(
            nap, [1, 9, 2, 9], limit=2, policy=BEST_EFFORT, each=harness.Attempt(timeout=3)
        )
    assert statuses(results) == ["ok", "timed_out", "ok", "timed_out"]
    # The second ends at 3 s, as does the third; the fourth has its own 3 s after that.
    assert trio.current_time() - begin == 6


async def test_a_model_that_never_answers_does_not_keep_the_batch(
    autojump_clock: MockClock,
) -> None:
    results = await harness.fan_out(
        lambda item: nap(math.inf if item == 50 else 1),
        range(100),
        limit=10,
        policy=BEST_EFFORT,
        each=harness.Attempt(timeout=30),
    )
    assert [result.index for result in results.failed] == [50]


async def test_a_timeout_is_a_failure_for_fail_fast(autojump_clock: MockClock) -> None:
    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(nap, [9, 2, 90], each=harness.Attempt(timeout=5), name="nightly")
    entries = caught.value.exceptions
    assert {type(entry) for entry in entries} == {RunTimedOut}
    assert "nightly/0" in str(entries[0]) + "".join(getattr(entries[0], "__notes__", []))


async def test_no_timeout_and_an_infinite_one_are_the_same(autojump_clock: MockClock) -> None:
    for timeout in (None, math.inf):
        each = harness.Attempt(timeout=timeout)
        assert (await harness.fan_out(nap, [1e6], each=each)).complete


async def test_a_timeout_counts_per_attempt(autojump_clock: MockClock) -> None:
    times: list[float] = []
    begin = trio.current_time()

    async def body(item: int) -> None:
        times.append(trio.current_time() - begin)
        await trio.sleep_forever()

    each = harness.Attempt(timeout=5, retry=harness.Retry(3, first_delay=2, factor=1, jitter=0))
    [result] = await harness.fan_out(body, [1], policy=BEST_EFFORT, each=each)
    assert times == [0, 7, 14]
    assert trio.current_time() - begin == 19
    assert (result.status, result.attempts) == ("timed_out", 3)


async def test_the_run_knows_its_deadline(autojump_clock: MockClock) -> None:
    remaining: list[float] = []

    async def body(item: int) -> None:
        await trio.sleep(2)
        remaining.append(harness.current_run().remaining())

    await harness.fan_out(body, [1], each=harness.Attempt(timeout=5))
    assert remaining == [3]


async def test_attempt_as_a_function_of_the_item_is_asked_once_per_item(
    autojump_clock: MockClock,
) -> None:
    asked: list[int] = []

    def each(item: int) -> harness.Attempt:
        asked.append(item)
        return harness.Attempt(timeout=item)

    results = await harness.fan_out(
        lambda item: nap(5), [3, 7, 4, 9], policy=BEST_EFFORT, each=each
    )
    assert statuses(results) == ["timed_out", "ok", "timed_out", "ok"]
    assert asked == [3, 7, 4, 9]
