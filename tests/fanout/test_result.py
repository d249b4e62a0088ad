"""A `Result` is a plain frozen record of how one item ended."""

import outcome
import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import ItemSkipped, RunCancelled, RunTimedOut
from tests.fanout.probes import Boom, fan_out_run, nap, statuses


async def test_an_ok_result(autojump_clock: MockClock) -> None:
    seen: list[str] = []
    begin = trio.current_time()

    async def body(item: str) -> str:
        seen.append(harness.current_run().id)
        await trio.sleep(3)
        return item.upper()

    [result] = await harness.fan_out(body, ["a"], key=lambda item: f"key-{item}")
    assert isinstance(result, harness.Result)
    assert (result.index, result.key, result.item) == (0, "key-a", "a")
    assert result.run_id == seen[0]
    assert result.status == "ok"
    assert isinstance(result.outcome, outcome.Value)
    assert result.value == "A"
    assert result.error is None
    assert result.attempts == 1
    assert (result.started_at, result.ended_at) == (begin, begin + 3)
    assert result.degraded is False


async def test_a_failed_result_keeps_the_error_itself(autojump_clock: MockClock) -> None:
    boom = Boom("x")

    async def body(item: int) -> None:
        raise boom

    [result] = await harness.fan_out(body, [1], policy=harness.BestEffort())
    assert result.status == "failed"
    assert isinstance(result.outcome, outcome.Error)
    assert result.error is boom
    for _ in range(3):
        with pytest.raises(Boom) as caught:
            _ = result.value
        assert caught.value is boom


async def test_the_value_can_be_read_any_number_of_times(autojump_clock: MockClock) -> None:
    """`outcome.Value.unwrap` works once, which makes a result that can be read once."""
    [result] = await harness.fan_out(nap, [1])
    assert [result.value for _ in range(5)] == [1] * 5
    assert result.outcome.unwrap() == 1
    assert result.value == 1


async def test_the_error_says_which_run_it_belongs_to(autojump_clock: MockClock) -> None:
    async def body(item: int) -> None:
        raise Boom

    [result] = await harness.fan_out(body, [1], policy=harness.BestEffort(), name="nightly")
    assert result.error is not None
    assert any("nightly/0" in note for note in result.error.__notes__)


async def test_a_timed_out_result(autojump_clock: MockClock) -> None:
    [result] = await harness.fan_out(
        nap, [5], policy=harness.BestEffort(), each=harness.Attempt(timeout=2)
    )
    assert result.status == "timed_out"
    assert isinstance(result.error, RunTimedOut)
    assert isinstance(result.error, trio.TooSlowError)
    assert result.ended_at is not None
    assert result.started_at is not None
    assert result.ended_at - result.started_at == 2
    with pytest.raises(RunTimedOut):
        _ = result.value


async def test_a_too_slow_error_from_inside_is_just_failed(autojump_clock: MockClock) -> None:
    async def body(item: int) -> None:
        with trio.fail_after(1):
            await trio.sleep_forever()

    [result] = await harness.fan_out(
        body, [5], policy=harness.BestEffort(), each=harness.Attempt(timeout=2)
    )
    assert result.status == "failed"
    assert type(result.error) is trio.TooSlowError


async def test_an_answer_that_comes_late_is_ok(autojump_clock: MockClock) -> None:
    async def body(item: int) -> str:
        with trio.CancelScope(shield=True):
            await trio.sleep(10)
        return "late"

    [result] = await harness.fan_out(body, [5], each=harness.Attempt(timeout=2))
    assert (result.status, result.value) == ("ok", "late")


async def test_an_error_beside_the_cancel_is_failed(autojump_clock: MockClock) -> None:
    async def body(item: int) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise Boom("in the cleanup")

    [result] = await harness.fan_out(
        body, [5], policy=harness.BestEffort(), each=harness.Attempt(timeout=2)
    )
    assert result.status == "failed"
    assert isinstance(result.error, Boom)


async def test_an_item_may_cancel_its_own_run(autojump_clock: MockClock) -> None:
    """That is a decision, not a failure: no policy raises, nothing is retried or replaced."""
    calls: list[int] = []

    async def body(item: int) -> int:
        calls.append(item)
        if item == 1:
            harness.current_run().cancel("not needed")
        await trio.sleep(1)
        return item

    each = harness.Attempt(retry=harness.Retry(3), fallback=lambda item, error: -1)
    results = await harness.fan_out(body, range(3), each=each)
    assert statuses(results) == ["ok", "cancelled", "ok"]
    assert sorted(calls) == [0, 1, 2]
    assert isinstance(results[1].error, RunCancelled)
    assert "not needed" in str(results[1].error)
    with pytest.raises(RunCancelled):
        _ = results[1].value


async def test_an_item_cancelled_by_another_task_leaves_its_siblings_alone(
    autojump_clock: MockClock,
) -> None:
    async def body(item: int) -> int:
        if item == 2:
            next(iter(fan_out_run().children)).cancel("from outside")
        await trio.sleep(1)
        return item

    results = await harness.fan_out(body, range(3))
    assert sorted(statuses(results)) == ["cancelled", "ok", "ok"]


async def test_a_skipped_result_was_never_started(autojump_clock: MockClock) -> None:
    results = await harness.fan_out(nap, [5, 5, 5], limit=1, within=2)
    skipped = results[2]
    assert skipped.status == "skipped"
    assert isinstance(skipped.error, ItemSkipped)
    assert (skipped.index, skipped.key, skipped.item, skipped.attempts) == (2, 2, 5, 0)
    with pytest.raises(ItemSkipped):
        _ = skipped.value


async def test_no_result_stores_a_cancelled(autojump_clock: MockClock) -> None:
    """A stored `trio.Cancelled` that is raised later would corrupt some other scope."""

    async def group(item: int) -> None:
        caught: list[BaseException] = []

        async def wait() -> None:
            try:
                await trio.sleep_forever()
            except trio.Cancelled as cancelled:
                caught.append(cancelled)
                raise

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                nursery.start_soon(wait)
        except BaseException:  # Made anew as the group that older trios raise.
            raise BaseExceptionGroup("both", caught) from None

    for each in (harness.Attempt(), harness.Attempt(timeout=1)):
        results = await harness.fan_out(
            group, range(2), each=each, within=2, policy=harness.BestEffort()
        )
        assert {result.status for result in results} <= {"cancelled", "timed_out"}
        for result in results:
            assert isinstance(result.error, RunCancelled | RunTimedOut)


async def test_a_group_with_one_leaf_is_unwrapped_and_keeps_its_cause(
    autojump_clock: MockClock,
) -> None:
    cause = KeyError("cause")

    async def fails() -> None:
        raise Boom("inside") from cause

    async def body(item: int) -> None:
        async with trio.open_nursery() as outer, trio.open_nursery() as inner:
            outer.start_soon(trio.sleep_forever)
            inner.start_soon(fails)

    [result] = await harness.fan_out(body, [1], policy=harness.BestEffort())
    assert type(result.error) is Boom
    assert result.error.__cause__ is cause


async def test_a_group_of_several_stays_a_group(autojump_clock: MockClock) -> None:
    async def body(item: int) -> None:
        raise ExceptionGroup("two", [Boom(1), Boom(2)])

    [result] = await harness.fan_out(body, [1], policy=harness.BestEffort())
    assert isinstance(result.error, ExceptionGroup)
    assert len(result.error.exceptions) == 2


async def test_a_result_is_frozen_and_its_repr_names_key_and_status(
    autojump_clock: MockClock,
) -> None:
    [result] = await harness.fan_out(nap, [1], key=lambda item: "ticket-17")
    with pytest.raises(AttributeError):
        result.status = "failed"  # type: ignore[misc]
    assert "ticket-17" in repr(result)
    assert "ok" in repr(result)


async def test_keys_are_kept_as_given_and_may_repeat(autojump_clock: MockClock) -> None:
    keys = [("a", 1), ("a", 1), None, 3.5, ("a", 1)]
    results = await harness.fan_out(nap, range(5), key=lambda item: keys[item])
    assert [result.key for result in results] == keys
    assert all(result.status == "ok" for result in results)
