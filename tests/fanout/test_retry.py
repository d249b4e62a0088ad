"""``Attempt(retry=Retry(...))`` tries again after a delay, and never past a deadline."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import FanOutError
from tests.fanout.probes import Boom, Flight, OtherError, nap, nothing_left_behind, statuses

BEST_EFFORT = harness.BestEffort()


class Failing:
    """A body that fails a number of times per item and notes when it was called."""

    def __init__(self, failures: int, make_error: Callable[[], BaseException] = Boom) -> None:
        """Fail ``failures`` times for each item, each time with a new error."""
        self.failures = failures
        self.make_error = make_error
        self.times: list[float] = []
        self.calls: dict[Any, int] = {}
        self.begin = trio.current_time()

    async def __call__(self, item: Any) -> Any:
        """Fail, or return the item."""
        self.times.append(trio.current_time() - self.begin)
        self.calls[item] = self.calls.get(item, 0) + 1
        await trio.lowlevel.checkpoint()
        if self.calls[item] <= self.failures:
            raise self.make_error()
        return item


def attempt(attempts: int, **arguments: Any) -> harness.Attempt:
    """Return an `Attempt` with a retry after 1, 2, 4, … seconds exactly."""
    arguments = {"first_delay": 1, "factor": 2, "jitter": 0, **arguments}
    return harness.Attempt(retry=harness.Retry(attempts, **arguments))


async def test_a_failure_is_tried_again_until_it_succeeds(autojump_clock: MockClock) -> None:
    body = Failing(2)
    with nothing_left_behind():
        [result] = await harness.fan_out(body, ["x"], each=attempt(5))
    assert (result.status, result.value, result.attempts) == ("ok", "x", 3)
    assert result.degraded is False
    assert body.times == [0, 1, 3]


async def test_the_delays_grow_by_the_factor_up_to_the_maximum(autojump_clock: MockClock) -> None:
    body = Failing(9)
    await harness.fan_out(
        body, ["x"], each=attempt(7, first_delay=0.5, factor=3, max_delay=10), policy=BEST_EFFORT
    )
    assert body.times == [0, 0.5, 2, 6.5, 16.5, 26.5, 36.5]


async def test_after_the_last_attempt_the_last_error_stands(autojump_clock: MockClock) -> None:
    errors = iter([Boom(1), Boom(2), Boom(3)])
    body = Failing(9, lambda: next(errors))
    [result] = await harness.fan_out(body, ["x"], each=attempt(3), policy=BEST_EFFORT)
    assert (result.status, result.attempts) == ("failed", 3)
    assert result.error is not None
    assert result.error.args == (3,)


async def test_one_attempt_is_no_retry(autojump_clock: MockClock) -> None:
    body = Failing(1)
    [result] = await harness.fan_out(body, ["x"], each=attempt(1), policy=BEST_EFFORT)
    assert (result.status, result.attempts, body.times) == ("failed", 1, [0])


async def test_items_are_counted_apart(autojump_clock: MockClock) -> None:
    """A retry counter on a shared object lets one item use up another's attempts."""
    body = Failing(2)
    results = await harness.fan_out(body, range(50), each=attempt(3), limit=20)
    assert statuses(results) == ["ok"] * 50
    assert {result.attempts for result in results} == {3}


async def test_fail_fast_sees_the_final_failure_only(autojump_clock: MockClock) -> None:
    results = await harness.fan_out(Failing(2), range(5), each=attempt(3))
    assert results.complete
    with pytest.raises(FanOutError) as caught:
        await harness.fan_out(Failing(3), [1], each=attempt(3))
    assert len(caught.value.exceptions) == 1


@pytest.mark.parametrize("on", [Boom, (KeyError, Boom)], ids=["class", "tuple"])
async def test_on_names_the_errors_that_are_tried_again(autojump_clock: MockClock, on: Any) -> None:
    [result] = await harness.fan_out(Failing(1), ["x"], each=attempt(3, on=on))
    assert (result.status, result.attempts) == ("ok", 2)
    [result] = await harness.fan_out(
        Failing(1, OtherError), ["x"], each=attempt(3, on=on), policy=BEST_EFFORT
    )
    assert (result.status, result.attempts) == ("failed", 1)


async def test_timeouts_are_tried_again_unless_on_says_otherwise(
    autojump_clock: MockClock,
) -> None:
    async def waits(item: int) -> None:
        await trio.sleep_forever()

    async def attempts(**arguments: Any) -> int:
        retry = harness.Retry(3, first_delay=1, jitter=0, **arguments)
        each = harness.Attempt(timeout=1, retry=retry)
        [result] = await harness.fan_out(waits, [1], each=each, policy=BEST_EFFORT)
        assert result.status == "timed_out"
        return int(result.attempts)

    assert await attempts() == 3
    assert await attempts(on=ValueError) == 1
    assert await attempts(on=trio.TooSlowError) == 3


async def test_an_error_in_a_group_of_one_is_recognised(autojump_clock: MockClock) -> None:
    """A function with a nursery of its own raises its errors in a group."""
    body = Failing(1, lambda: ExceptionGroup("nursery", [ExceptionGroup("inner", [Boom()])]))
    [result] = await harness.fan_out(body, ["x"], each=attempt(3, on=Boom))
    assert (result.status, result.attempts) == ("ok", 2)


async def test_cancelled_is_not_tried_again(autojump_clock: MockClock) -> None:
    async def body(item: int) -> None:
        harness.current_run().cancel()
        await trio.sleep(1)

    flight = Flight(body)
    [result] = await harness.fan_out(flight, [1], each=attempt(3))
    assert (result.status, result.attempts, len(flight.started)) == ("cancelled", 1, 1)


def with_attribute(seconds: Any) -> BaseException:
    """Return an error with ``.retry_after``."""
    error: Any = Boom()
    error.retry_after = seconds
    return error  # type: ignore[no-any-return]


def with_headers(seconds: Any) -> BaseException:
    """Return an error with ``.headers``."""
    error: Any = Boom()
    error.headers = {"Retry-After": str(seconds)}
    return error  # type: ignore[no-any-return]


def with_lower_case_headers(seconds: Any) -> BaseException:
    """Return an error with ``.headers``, whose names are in lower case."""
    error: Any = Boom()
    error.headers = {"content-type": "text/plain", "retry-after": str(seconds)}
    return error  # type: ignore[no-any-return]


def with_response(seconds: Any) -> BaseException:
    """Return an error with ``.response.headers``."""
    error: Any = Boom()
    error.response = SimpleNamespace(headers={"retry-after": str(seconds)}, status_code=503)
    return error  # type: ignore[no-any-return]


WAYS_TO_ASK = [with_attribute, with_headers, with_lower_case_headers, with_response]


@pytest.mark.parametrize("asks", WAYS_TO_ASK)
async def test_what_the_server_asks_for_is_a_floor_of_the_delay(
    autojump_clock: MockClock, asks: Callable[[Any], BaseException]
) -> None:
    """Above the maximum delay, too: the server knows when it will answer, and we don't."""
    body = Failing(2, lambda: asks(60))
    await harness.fan_out(body, ["x"], each=attempt(3, max_delay=5))
    assert body.times == [0, 60, 120]
    body = Failing(2, lambda: asks(0.25))
    await harness.fan_out(body, ["x"], each=attempt(3))
    assert body.times == [0, 1, 3]


@pytest.mark.slow
@pytest.mark.parametrize("asks", WAYS_TO_ASK)
@pytest.mark.parametrize("seconds", [-1, "nan", "inf", "soon", "", float("nan"), float("inf")])
async def test_a_nonsensical_wish_is_taken_for_none(
    autojump_clock: MockClock, asks: Callable[[Any], BaseException], seconds: Any
) -> None:
    """Minus one crashes a sleep; nan or infinity makes it last for ever."""
    body = Failing(1, lambda: asks(seconds))
    await harness.fan_out(body, ["x"], each=attempt(3))
    assert body.times == [0, 1]


async def test_strange_attributes_of_an_error_hurt_nobody(autojump_clock: MockClock) -> None:
    class Strange(Exception):
        retry_after = object()
        headers = 7
        status_code = "four hundred"

        @property
        def response(self) -> None:
            raise RuntimeError("there is no response yet")

    body = Failing(1, Strange)
    [result] = await harness.fan_out(body, ["x"], each=attempt(3))
    assert (result.status, body.times) == ("ok", [0, 1])


async def test_jitter_never_cuts_the_floor(autojump_clock: MockClock) -> None:
    for _ in range(20):
        body = Failing(1, lambda: with_attribute(10))
        await harness.fan_out(body, ["x"], each=attempt(2, jitter=1))
        assert body.times[1] >= 10


async def test_jitter_spreads_callers_that_failed_together(autojump_clock: MockClock) -> None:
    body = Failing(1)
    await harness.fan_out(body, range(50), each=attempt(2, first_delay=10, jitter=0.5))
    again = body.times[50:]
    assert len(set(again)) > 25
    assert all(0 < time <= 15 for time in again)


@pytest.mark.parametrize("deadline", ["within", "outer run", "outer scope"])
async def test_a_retry_that_would_sleep_past_the_deadline_gives_up_at_once(
    autojump_clock: MockClock, deadline: str
) -> None:
    """With the real error: it says more than a cancel some time later would."""
    body = Failing(9)
    each = attempt(9, first_delay=60)
    begin = trio.current_time()
    if deadline == "within":
        results = await harness.fan_out(body, ["x"], each=each, within=30, policy=BEST_EFFORT)
    elif deadline == "outer run":
        async with harness.open_run("outer", timeout=30):
            results = await harness.fan_out(body, ["x"], each=each, policy=BEST_EFFORT)
    else:
        with trio.fail_after(30):
            results = await harness.fan_out(body, ["x"], each=each, policy=BEST_EFFORT)
    assert trio.current_time() == begin
    assert (results[0].status, results[0].attempts) == ("failed", 1)
    assert isinstance(results[0].error, Boom)


async def test_a_wish_of_the_server_past_the_deadline_gives_up_at_once(
    autojump_clock: MockClock,
) -> None:
    body = Failing(9, lambda: with_attribute(100))
    begin = trio.current_time()
    results = await harness.fan_out(body, ["x"], each=attempt(5), within=30, policy=BEST_EFFORT)
    assert trio.current_time() == begin
    assert statuses(results) == ["failed"]


async def test_a_cancel_ends_the_wait_between_attempts(autojump_clock: MockClock) -> None:
    body = Failing(9)
    items: list[Any] = ["x", 5]
    begin = trio.current_time()
    with nothing_left_behind():
        results = await harness.fan_out(
            lambda item: body(item) if item == "x" else nap(item),
            items,
            each=attempt(3, first_delay=60),
            policy=harness.Quorum(1),
        )
    assert trio.current_time() - begin == 5
    assert statuses(results) == ["cancelled", "ok"]
    assert len(body.times) == 1


async def test_every_attempt_is_a_fresh_child_run_with_fresh_locals(
    autojump_clock: MockClock,
) -> None:
    local: harness.RunLocal[list[int]] = harness.RunLocal(list, name="local")
    runs: list[harness.Run] = []
    parents: list[harness.Run | None] = []
    tasks: list[trio.lowlevel.Task] = []

    async def body(item: str) -> str:
        run = harness.current_run()
        runs.append(run)
        parents.append(run.parent)
        tasks.append(trio.lowlevel.current_task())
        assert local.get() == []
        local.get().append(1)
        await trio.lowlevel.checkpoint()
        if len(runs) < 3:
            raise Boom
        return item

    [result] = await harness.fan_out(body, ["x"], each=attempt(3), name="nightly", key=str)
    assert len({run.id for run in runs}) == 3
    assert [run.path for run in runs] == ["nightly/x"] * 3
    assert len(set(parents)) == 1
    assert [run.status for run in runs] == ["failed", "failed", "ok"]
    assert result.run_id == runs[-1].id
    assert all("x" in task.name for task in tasks)


async def test_all_attempts_of_an_item_share_one_idempotency_key(
    autojump_clock: MockClock,
) -> None:
    keys: dict[int, set[str]] = {}
    body = Failing(2)

    async def keeps_key(item: int) -> int:
        keys.setdefault(item, set()).add(harness.current_run().idempotency_key)
        return int(await body(item))

    await harness.fan_out(keeps_key, range(5), each=attempt(3))
    assert [len(found) for found in keys.values()] == [1] * 5
    assert len(set.union(*keys.values())) == 5
