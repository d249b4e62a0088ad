"""What comes of the items of a pipeline: values, failures with the stage's name, policies."""

import pickle
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError, QuorumError, RunTimedOut
from harness.fanin import coverage, merge, resolve
from harness.flow import DROP, Pipeline, failed_at, stage
from tests.fanout.probes import Boom, echo, nap, nothing_left_behind, statuses


async def double(item: Any) -> Any:
    await trio.sleep(1)
    return 2 * item


async def odd_ones_fail(item: float) -> float:
    await trio.lowlevel.checkpoint()
    if item % 2:
        raise Boom(item)
    return item


async def test_each_stage_gets_what_the_one_before_returned(autojump_clock: MockClock) -> None:
    results = await Pipeline(double, double, stage(double, limit=5)).run([1, 2, 3])
    assert results.values() == [8, 16, 24]
    assert [result.item for result in results] == [1, 2, 3]
    assert [result.attempts for result in results] == [1, 1, 1]
    assert results.complete


async def test_a_single_stage_is_a_fan_out(autojump_clock: MockClock) -> None:
    results = await Pipeline(stage(double, limit=2)).run(range(4), name="nightly", key=str)
    assert results.values() == [0, 2, 4, 6]
    assert [result.key for result in results] == ["0", "1", "2", "3"]
    assert results.name == "nightly"
    assert trio.current_time() == 2


async def test_no_items_give_no_results() -> None:
    assert len(await Pipeline(echo).run([])) == 0


async def test_a_failed_item_carries_the_name_of_its_stage(autojump_clock: MockClock) -> None:
    """For people as a note, for programs by `failed_at`; also after a pickle."""
    pipeline = Pipeline(echo, stage(odd_ones_fail, name="parse", limit=2), echo)
    results = await pipeline.run(range(4), policy=harness.BestEffort())
    assert statuses(results) == ["ok", "failed", "ok", "failed"]
    for result in results.failed:
        assert isinstance(result.error, Boom)
        assert failed_at(result.error) == ("parse",)
        assert "in stage 'parse'" in result.error.__notes__
        assert f"in run pipeline/{result.index}" in result.error.__notes__
    again = pickle.loads(pickle.dumps(results))
    assert failed_at(again[1].error) == ("parse",)


def test_an_error_from_elsewhere_failed_in_no_stage() -> None:
    assert failed_at(Boom()) == ()
    assert failed_at(None) == ()


async def test_fail_fast_cancels_the_rest_and_names_the_stage(autojump_clock: MockClock) -> None:
    """The items in all stages have ended before the error is seen."""
    with nothing_left_behind():
        with pytest.raises(FanOutError) as caught:
            await Pipeline(stage(nap, limit=4), stage(odd_ones_fail, name="parse")).run(
                [0, 1, 50, 60, 70, 80]
            )
    error = caught.value
    assert [type(entry) for entry in error.exceptions] == [Boom]
    assert failed_at(error.exceptions[0]) == ("parse",)
    assert statuses(error.results) == ["ok", "failed"] + 4 * ["cancelled"]
    assert trio.current_time() == 1


async def test_after_a_failure_nothing_more_is_pulled(autojump_clock: MockClock) -> None:
    """A failure in the first stage frees its slot, which must not start another item."""
    started: list[int] = []

    async def fails(item: int) -> int:
        started.append(item)
        await trio.sleep(1)
        raise Boom(item)

    with pytest.raises(FanOutError):
        await Pipeline(stage(fails, limit=2), echo).run(range(10))
    assert sorted(started) == [0, 1]


async def test_a_quorum_of_items_is_enough(autojump_clock: MockClock) -> None:
    results = await Pipeline(stage(nap, limit=4), echo).run(
        [1, 2, 3, 4, 5], policy=harness.Quorum(2)
    )
    assert statuses(results) == ["ok", "ok", "cancelled", "cancelled", "cancelled"]
    with pytest.raises(FanOutError) as caught:
        await Pipeline(odd_ones_fail).run([1, 3, 5], policy=harness.FirstSuccess())
    assert isinstance(caught.value.exceptions[-1], QuorumError)


async def test_within_ends_the_whole_with_what_is_there(autojump_clock: MockClock) -> None:
    results = await Pipeline(stage(nap, limit=1), stage(double, limit=1)).run(
        [1, 1, 1, 1], within=3.5
    )
    assert statuses(results) == ["ok", "ok", "cancelled", "cancelled"]
    assert trio.current_time() == 3.5


async def test_a_dropped_item_is_ok_and_has_no_value(autojump_clock: MockClock) -> None:
    """It ends where it is dropped; later stages never see it."""
    seen: list[int] = []

    async def odd_only(item: int) -> Any:
        await trio.lowlevel.checkpoint()
        return item if item % 2 else DROP

    async def see(item: int) -> int:
        seen.append(item)
        return await echo(item)  # type: ignore[no-any-return]

    pipeline = Pipeline(odd_only, see)
    results = await pipeline.run(range(5))
    assert statuses(results) == ["ok"] * 5
    assert results.values() == [1, 3]
    assert results[0].value is DROP
    assert [result.dropped for result in results] == [True, False, True, False, True]
    assert results.complete
    assert sorted(seen) == [1, 3]
    assert [one.dropped for one in pipeline.statistics().stages] == [3, 0]
    assert pickle.loads(pickle.dumps(results)).values() == [1, 3]
    assert repr(DROP) == "DROP"


async def test_fan_in_passes_over_what_was_dropped(autojump_clock: MockClock) -> None:
    async def odd_only(item: int) -> Any:
        await trio.lowlevel.checkpoint()
        return item if item % 2 else DROP

    results = await Pipeline(odd_only).run(range(4))
    assert [one.value for one in merge(results)] == [1, 3]
    answers = await resolve(results, key=str, judge=lambda key, found: found[0].value)
    assert [one.value for one in answers] == [1, 3]
    assert coverage(results).complete


async def test_none_is_a_value_like_any_other() -> None:
    async def nothing(item: int) -> None:
        await trio.lowlevel.checkpoint()

    assert (await Pipeline(nothing, echo).run(range(2))).values() == [None, None]


async def test_an_item_that_cancels_its_run_ends_alone(autojump_clock: MockClock) -> None:
    async def may_give_up(item: int) -> int:
        if item == 1:
            harness.current_run().cancel("not needed")
        await trio.sleep(1)
        return item

    results = await Pipeline(echo, may_give_up, echo).run(range(3))
    assert statuses(results) == ["ok", "cancelled", "ok"]
    assert "not needed" in str(results[1].error)


async def test_a_function_that_is_not_async_ends_everything_at_once(
    autojump_clock: MockClock,
) -> None:
    """A mistake in the program isn't an item's failure: it comes out unchanged, and says where."""

    def plain_function(item: int) -> int:
        return item

    plain: Any = plain_function
    stages: list[Any] = [
        stage(plain, limit=1, name="parse"),
        stage(
            plain, limit=1, name="parse", each=harness.Attempt(timeout=1, retry=harness.Retry(3))
        ),
        stage(plain, limit=1, name="parse", each=harness.Attempt(hedge=harness.Hedge(after=1))),
    ]
    for one in stages:
        for policy in (harness.FailFast(), harness.BestEffort()):
            with pytest.raises(
                TypeError, match=r"stage 'parse': .*plain_function\(\) returned 0 where"
            ):
                await Pipeline(stage(echo, limit=1), one).run(range(3), policy=policy)
        with pytest.raises(
            TypeError, match=r"stage 'parse': .*plain_function\(\) returned 0 where"
        ):
            await Pipeline(stage(echo, limit=1), one)(0)


async def test_a_type_error_of_the_function_is_the_item_s_failure() -> None:
    async def clumsy(item: int) -> int:
        await trio.lowlevel.checkpoint()
        return item + "1"  # type: ignore[operator]

    def clumsier(item: int) -> Any:
        raise TypeError("before it even began")

    for function in (clumsy, clumsier):
        results = await Pipeline(echo, stage(function, name="add")).run(
            [1], policy=harness.BestEffort()
        )
        assert isinstance(results[0].error, TypeError)
        assert failed_at(results[0].error) == ("add",)


async def test_a_key_that_can_t_be_read_fails_the_item(autojump_clock: MockClock) -> None:
    """It never gets on its way, and doesn't keep the entry either."""
    results = await Pipeline(double, double).run(
        [1, "x", 2, "y", 3], key=lambda item: item + 0, policy=harness.BestEffort()
    )
    assert statuses(results) == ["ok", "failed", "ok", "failed", "ok"]


async def test_a_timeout_of_a_stage_is_a_timeout_of_the_item(autojump_clock: MockClock) -> None:
    """Its run says so too: whoever looks at it sees what the result says."""
    runs: list[harness.Run] = []

    async def hang(item: int) -> None:
        runs.append(harness.current_run())
        await trio.sleep_forever()

    pipeline = Pipeline(double, stage(hang, each=harness.Attempt(timeout=2)))
    results = await pipeline.run([1], policy=harness.BestEffort())
    assert statuses(results) == ["timed_out"]
    assert [run.status for run in runs] == ["timed_out"]
    assert isinstance(results[0].error, RunTimedOut)
    assert failed_at(results[0].error) == ("hang",)
    assert "stage 'hang' of run 'pipeline/0' ran out of time after 2 s, in " in str(
        results[0].error
    )
    assert trio.current_time() == 3


async def test_outside_trio_it_says_so() -> None:
    stream = Pipeline(echo).open([1])

    def outside() -> None:
        with pytest.raises(RuntimeError, match="outside trio"):
            stream.__aenter__().send(None)

    await trio.to_thread.run_sync(outside)
