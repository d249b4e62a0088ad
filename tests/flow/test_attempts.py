"""What happens to each call at a stage or on a track, inside the one run of the item."""

import contextvars
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import RunCancelled, RunTimedOut
from harness.flow import Pipeline, Router, failed_at, stage, track
from tests.fanout.probes import (
    Boom,
    FakeLimiter,
    OtherError,
    StatusError,
    echo,
    nothing_left_behind,
    statuses,
)

notes = harness.RunLocal[list[str]](list, name="notes")
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


class Flaky:
    """Fails as often as told, then answers; each call takes a second."""

    def __init__(self, *errors: Exception, seconds: float = 1) -> None:
        """Fail with these, in turn."""
        self.errors = list(errors)
        self.calls = 0
        self.seconds = seconds

    async def __call__(self, item: Any) -> Any:
        """Fail, or return the item."""
        self.calls += 1
        await trio.sleep(self.seconds)
        if self.errors:
            raise self.errors.pop(0)
        return item


def ways(fn: Any, each: Any) -> list[Any]:
    """Return a pipeline and a router that call the function under this attempt."""
    return [
        Pipeline(stage(fn, name="flaky", each=each, limit=9)),
        Router(lambda item: "flaky", tracks={"flaky": track(fn, each=each)}),
    ]


@pytest.mark.parametrize("way", [0, 1])
async def test_retries_are_made_in_the_same_run(autojump_clock: MockClock, way: int) -> None:
    flaky = Flaky(Boom(1), Boom(2))
    runs: set[str] = set()

    async def call(item: Any) -> Any:
        runs.add(harness.current_run().id)
        notes.get().append("tried")
        value = await flaky(item)
        return value, tuple(notes.get())

    each = harness.Attempt(retry=harness.Retry(3, first_delay=2, factor=3, jitter=0))
    results = await ways(call, each)[way].run([7])
    assert results.values() == [(7, ("tried", "tried", "tried"))]
    assert results[0].attempts == 3
    assert len(runs) == 1
    assert trio.current_time() == 3 + 2 + 6


@pytest.mark.parametrize("way", [0, 1])
async def test_the_last_error_counts_when_all_attempts_failed(
    autojump_clock: MockClock, way: int
) -> None:
    each = harness.Attempt(retry=harness.Retry(2, on=Boom, jitter=0))
    results = await ways(Flaky(Boom(1), Boom(2)), each)[way].run([7], policy=harness.BestEffort())
    assert str(results[0].error) == "2"
    assert results[0].attempts == 2
    assert failed_at(results[0].error) == ("flaky",)
    results = await ways(Flaky(OtherError()), each)[way].run([7], policy=harness.BestEffort())
    assert isinstance(results[0].error, OtherError)
    assert results[0].attempts == 1


async def test_attempts_add_up_over_the_stages(autojump_clock: MockClock) -> None:
    each = harness.Attempt(retry=harness.Retry(9, jitter=0))
    pipeline = Pipeline(
        stage(Flaky(Boom(), Boom()), name="a", each=each), stage(Flaky(Boom()), name="b", each=each)
    )
    assert (await pipeline.run([7]))[0].attempts == 1 + 2 + 1


async def test_a_retry_keeps_the_slot_of_its_stage(autojump_clock: MockClock) -> None:
    each = harness.Attempt(retry=harness.Retry(2, first_delay=5, jitter=0))
    await Pipeline(stage(Flaky(Boom()), limit=1, name="a", each=each)).run([1, 2])
    assert trio.current_time() == 1 + 5 + 1 + 1


async def test_a_rate_limit_spends_no_attempt(autojump_clock: MockClock) -> None:
    flaky = Flaky(StatusError(429, 10), StatusError(429, 20), Boom())
    each = harness.Attempt(retry=harness.Retry(2, first_delay=0, jitter=0))
    results = await Pipeline(stage(flaky, name="a", each=each)).run([7])
    assert results[0].attempts == 2
    assert trio.current_time() == 4 + 30


async def test_a_retry_past_the_deadline_gives_the_real_error(autojump_clock: MockClock) -> None:
    each = harness.Attempt(retry=harness.Retry(2, first_delay=60, jitter=0))
    results = await Pipeline(stage(Flaky(Boom()), name="a", each=each)).run(
        [7], within=30, policy=harness.BestEffort()
    )
    assert isinstance(results[0].error, Boom)
    assert trio.current_time() == 1


async def test_many_retries_leave_nothing_behind_in_the_run(autojump_clock: MockClock) -> None:
    each = harness.Attempt(retry=harness.Retry(50, jitter=0))

    async def look(item: int) -> int:
        await trio.lowlevel.checkpoint()
        return len(harness.current_run()._on_stop or ())

    flaky = Flaky(*(Boom() for _ in range(40)))
    results = await Pipeline(stage(flaky, name="a", each=each), look).run([7])
    assert results.values() == [0]


@pytest.mark.parametrize("way", [0, 1])
async def test_a_stop_wakes_up_who_sleeps_before_a_retry(
    autojump_clock: MockClock, way: int
) -> None:
    """The item has not failed: it is cancelled, and says what it last failed with."""
    runs: list[harness.Run] = []

    async def call(item: Any) -> Any:
        run = harness.current_run()
        assert run.parent is not None
        runs.append(run.parent)
        await trio.sleep(1)
        raise Boom(item)

    async def stop() -> None:
        await trio.sleep(5)
        runs[0].stop("enough")

    each = harness.Attempt(retry=harness.Retry(9, first_delay=100, max_delay=100, jitter=0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop)
        results = await ways(call, each)[way].run([7], policy=harness.BestEffort())
    assert statuses(results) == ["cancelled"]
    assert isinstance(results[0].error, RunCancelled)
    assert isinstance(results[0].error.__cause__, Boom)
    assert "enough" in str(results[0].error)
    assert trio.current_time() == 5


async def test_the_timeout_is_for_each_attempt(autojump_clock: MockClock) -> None:
    seconds = [9.0, 9.0, 1.0]

    async def uneven(item: int) -> int:
        await trio.sleep(seconds.pop(0))
        return item

    each = harness.Attempt(timeout=3, retry=harness.Retry(3, first_delay=0, jitter=0))
    results = await Pipeline(stage(uneven, each=each), echo).run([7])
    assert results[0].attempts == 3
    assert trio.current_time() == 7


async def test_a_late_return_counts(autojump_clock: MockClock) -> None:
    """A function that was cancelled but returns all the same has returned; the item goes on."""

    async def stubborn(item: int) -> int:
        with trio.CancelScope(shield=True):
            await trio.sleep(9)
        return item

    results = await Pipeline(stage(stubborn, each=harness.Attempt(timeout=3)), Flaky()).run([7])
    assert results.values() == [7]
    assert trio.current_time() == 10


async def test_a_timeout_from_inside_is_a_failure(autojump_clock: MockClock) -> None:
    """As with a run: only the stage's own time makes the item timed out."""

    async def impatient(item: int) -> None:
        with trio.fail_after(1):
            await trio.sleep(2)

    async def inner(item: int) -> None:
        async with harness.open_run("inner", timeout=1):
            await trio.sleep(2)

    for function in (impatient, inner):
        results = await Pipeline(stage(function, each=harness.Attempt(timeout=9))).run(
            [7], policy=harness.BestEffort()
        )
        assert statuses(results) == ["failed"]
        assert isinstance(results[0].error, trio.TooSlowError)


@pytest.mark.parametrize("way", [0, 1])
async def test_a_hedge_runs_beside_a_late_attempt(autojump_clock: MockClock, way: int) -> None:
    """The first answer wins, the other is cancelled, and both are in the item's run."""
    seconds = [30.0, 1.0]
    runs: set[str] = set()
    cancelled: list[float] = []

    async def uneven(item: int) -> float:
        runs.add(harness.current_run().id)
        mine = seconds.pop(0)
        try:
            await trio.sleep(mine)
        except trio.Cancelled:
            cancelled.append(mine)
            raise
        return mine

    each = harness.Attempt(hedge=harness.Hedge(after=2))
    with nothing_left_behind():
        results = await ways(uneven, each)[way].run([7])
    assert results.values() == [1.0]
    assert results[0].attempts == 2
    assert results.summary().hedges == 1
    assert cancelled == [30.0]
    assert len(runs) == 1
    assert trio.current_time() == 3


async def test_with_a_hedge_one_failure_is_not_the_end(autojump_clock: MockClock) -> None:
    plans: list[tuple[float, bool]] = [(5, False), (1, True)]

    async def uneven(item: int) -> int:
        seconds, fails = plans.pop(0)
        await trio.sleep(seconds)
        if fails:
            raise Boom(item)
        return item

    each = harness.Attempt(hedge=harness.Hedge(after=2))
    results = await Pipeline(stage(uneven, each=each)).run([7])
    assert results.values() == [7]
    assert trio.current_time() == 5


async def test_a_hedge_by_percentile_learns_from_its_stage(autojump_clock: MockClock) -> None:
    calls = 0

    async def uneven(item: int) -> int:
        nonlocal calls
        calls += 1
        await trio.sleep(100 if calls == 25 else 2 if calls <= 20 and calls % 5 == 0 else 1)
        return item

    each = harness.Attempt(hedge=harness.Hedge(percentile=0.9))
    results = await Pipeline(stage(uneven, limit=1, each=each)).run(range(30))
    assert results.complete
    assert results.summary().hedges == 1
    assert trio.current_time() == 20 + 4 + 9 + 2 + 1  # Late after two seconds, as a tenth was.


async def test_time_runs_from_the_grant_of_the_limiter(autojump_clock: MockClock) -> None:
    limiter = FakeLimiter(wait_seconds=10)
    each = harness.Attempt(
        timeout=2,
        limiter=limiter,
        tokens=lambda item: item * 2,
        retry=harness.Retry(2, jitter=0),
        hedge=harness.Hedge(after=5),
    )
    results = await Pipeline(stage(Flaky(Boom()), name="a", each=each)).run([7])
    assert results[0].attempts == 2
    assert limiter.asked == [14, 14]
    assert limiter.granted == limiter.returned == 2
    assert trio.current_time() == 10 + 1 + 0.5 + 10 + 1


async def test_tokens_of_no_limiter_are_refused(autojump_clock: MockClock) -> None:
    each = harness.Attempt(tokens=5)
    for make in (stage, track):
        with pytest.raises(ValueError, match=r"echo.*each=.*tokens=5.*without a limiter"):
            make(echo, each=each)
    results = await Pipeline(stage(echo, each=lambda _: each)).run([1], policy=harness.BestEffort())
    assert "without a limiter" in str(results[0].error)


@pytest.mark.parametrize("way", [0, 1])
async def test_a_fallback_replaces_a_final_failure_and_the_item_goes_on(
    autojump_clock: MockClock, way: int
) -> None:
    async def guess(item: int, error: Exception) -> str:
        await trio.sleep(1)
        return f"{item} in spite of {type(error).__name__}"

    each = harness.Attempt(fallback=guess)
    results = await ways(Flaky(Boom()), each)[way].run([7])
    assert results.values() == ["7 in spite of Boom"]
    assert results[0].degraded
    assert results.summary().degraded == 1


async def test_a_fallback_that_fails_tells_of_both(autojump_clock: MockClock) -> None:
    def worse(item: int, error: Exception) -> None:
        raise OtherError

    results = await Pipeline(
        stage(Flaky(Boom()), name="a", each=harness.Attempt(fallback=worse))
    ).run([7], policy=harness.BestEffort())
    assert isinstance(results[0].error, OtherError)
    assert isinstance(results[0].error.__context__, Boom)


async def test_an_attempt_may_depend_on_the_item(autojump_clock: MockClock) -> None:
    def plan(item: int) -> harness.Attempt:
        if item == 3:
            return "patience"  # type: ignore[return-value]
        return harness.Attempt(timeout=item)

    async def nap(item: int) -> int:
        await trio.sleep(1.5)
        return item

    results = await Pipeline(stage(nap, each=plan)).run([1, 2, 3], policy=harness.BestEffort())
    assert statuses(results) == ["timed_out", "ok", "failed"]
    assert "each= of stage 'nap'" in str(results[2].error)
    assert failed_at(results[2].error) == ("nap",)


async def test_attempts_one_after_another_share_context_variables_and_a_hedge_does_not(
    autojump_clock: MockClock,
) -> None:
    """As documented: an item's task goes its whole way; only a hedge has a task of its own."""
    seen: list[str] = []

    async def sets(item: int) -> int:
        seen.append(variable.get())
        variable.set(f"{item} set")
        await trio.sleep(3)
        if len(seen) == 1:
            raise Boom(item)
        return item

    async def look(item: int) -> str:
        await trio.lowlevel.checkpoint()
        return variable.get()

    each = harness.Attempt(retry=harness.Retry(2))
    assert (await Pipeline(stage(sets, each=each), look).run([7])).values() == ["7 set"]
    assert seen == ["unset", "7 set"]
    each = harness.Attempt(hedge=harness.Hedge(after=9))
    assert (await Pipeline(stage(sets, each=each), look).run([8])).values() == ["unset"]


async def test_an_error_in_a_group_of_one_is_looked_at_itself(autojump_clock: MockClock) -> None:
    """A stage that opens a nursery raises groups; a retry for `Boom` is meant for those too."""
    calls = 0

    async def with_nursery(item: int) -> int:
        nonlocal calls
        calls += 1
        async with trio.open_nursery() as nursery:
            if calls == 1:
                nursery.start_soon(Flaky(Boom()), item)
        return item

    each = harness.Attempt(retry=harness.Retry(2, on=Boom))
    assert (await Pipeline(stage(with_nursery, each=each)).run([7])).values() == [7]


async def test_the_error_of_a_timeout_says_where_it_was(autojump_clock: MockClock) -> None:
    results = await Pipeline(
        stage(trio.sleep, name="nap", each=harness.Attempt(timeout=2)),
    ).run([7], policy=harness.BestEffort())
    error = results[0].error
    assert isinstance(error, RunTimedOut)
    assert error.run_id == results[0].run_id
    assert "stage 'nap' of run 'pipeline/0' ran out of time after 2 s" in str(error)
