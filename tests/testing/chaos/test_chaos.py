"""Chaos hits the same calls every time, whatever it wraps and in whatever order calls come."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import ChaosError, NoRunError
from harness.models import FunctionModel, Message, ModelRequest, ModelResponse
from harness.testing.chaos import Chaos

POLICY = harness.BestEffort()


async def double(number: int) -> int:
    await trio.sleep(1)
    return 2 * number


def endings(results: harness.Results[Any]) -> dict[Any, str]:
    return {result.key: result.status for result in results}


async def run(chaos: Chaos, items: Any, **options: Any) -> harness.Results[int]:
    return await harness.fan_out(chaos.wrap(double), items, policy=POLICY, key=str, **options)


async def test_the_same_calls_are_hit_in_any_order(autojump_clock: MockClock) -> None:
    """A shared generator would give each order of arrival a different outcome."""
    numbers = list(range(60))
    chaos = Chaos(5, delay=(0, 9), fail=ValueError, cancel=True, rate=0.6)
    first = endings(await run(chaos, numbers))
    statistics = chaos.statistics()
    assert min(statistics.delayed, statistics.failed, statistics.cancelled) > 3
    for limit in (1, 7, 60):
        chaos.reset()
        random.Random(limit).shuffle(numbers)
        assert endings(await run(chaos, numbers, limit=limit)) == first
        assert chaos.statistics() == attrs.evolve(
            statistics, delay_seconds=chaos.statistics().delay_seconds
        )
        assert chaos.statistics().delay_seconds == pytest.approx(statistics.delay_seconds)


async def test_another_seed_hits_other_calls(autojump_clock: MockClock) -> None:
    patterns = {
        tuple(endings(await run(Chaos(seed, fail=0.5), range(30))).values()) for seed in range(5)
    }
    assert len(patterns) == 5


@pytest.mark.slow
async def test_the_share_is_kept(autojump_clock: MockClock) -> None:
    chaos = Chaos(1, fail=0.2, cancel=0.1, delay=2, rate=0.3)
    await run(chaos, range(1000), limit=1000)
    seen = chaos.statistics()
    assert seen.calls == 1000
    assert seen.failed == pytest.approx(200, abs=45)
    assert seen.cancelled == pytest.approx(100, abs=35)
    assert seen.delayed == pytest.approx(300, abs=50)
    assert seen.untouched == 1000 - seen.failed - seen.cancelled - seen.delayed
    assert seen.delay_seconds == 2 * seen.delayed


async def test_delays_pass_on_the_clock_of_trio(autojump_clock: MockClock) -> None:
    async with harness.open_run("late"):
        assert await Chaos(0, delay=30, rate=1).wrap(double)(1) == 2
    assert trio.current_time() == 31


async def test_a_retry_is_another_call_and_may_get_through(autojump_clock: MockClock) -> None:
    chaos = Chaos(3, fail=ConnectionError, rate=0.5)
    each = harness.Attempt(retry=harness.Retry(8))
    results = await run(chaos, range(30), each=each)
    assert results.complete
    assert results.summary().attempts > 40


async def test_a_cancel_is_of_the_current_run_and_says_so(autojump_clock: MockClock) -> None:
    reached: list[int] = []

    async def note(number: int) -> None:
        reached.append(number)

    wrapped = Chaos(0, cancel="the user left", rate=1).wrap(note)
    results = await harness.fan_out(wrapped, [1], policy=POLICY)
    assert results[0].status == "cancelled"
    assert "the user left" in str(results[0].error)
    assert reached == []
    with pytest.raises(NoRunError, match=r"Chaos\(cancel="):
        await wrapped(1)


@pytest.mark.parametrize("after", [0.0, 1.0])
async def test_an_answer_can_be_lost_after_the_call(after: float) -> None:
    """The effect happened, and nobody knows: what idempotency is for."""
    effects: list[int] = []

    async def pay(amount: int) -> None:
        effects.append(amount)

    with pytest.raises(TimeoutError):
        await Chaos(0, fail=TimeoutError, rate=1, after=after).wrap(pay)(5)
    assert effects == ([5] if after else [])


class Refused(Exception):
    def __init__(self) -> None:
        super().__init__("refused")


class Answered(Exception):
    """Like those of HTTP clients: its constructor wants what isn't in ``args``."""

    def __init__(self, text: str, *, status: int) -> None:
        super().__init__(text)
        self.status = status


@pytest.mark.parametrize(
    ("fail", "expected"),
    [
        (True, {ChaosError}),
        (1.0, {ChaosError}),
        (ValueError, {ValueError}),
        (Refused, {Refused}),
        (OSError(7, "lost"), {OSError}),
        (Answered("busy", status=503), {Answered}),
        ([ValueError, KeyError], {ValueError, KeyError}),
        (lambda: RuntimeError("made"), {RuntimeError}),
    ],
)
async def test_what_is_raised(fail: Any, expected: set[type[Exception]]) -> None:
    async def work(number: int) -> None:
        pass

    wrapped = Chaos(0, fail=fail, rate=1).wrap(work)
    raised = []
    for number in range(12):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            await wrapped(number)
        raised.append(caught.value)
    assert {type(error) for error in raised} == expected
    assert len({id(error) for error in raised}) == 12  # A traceback is written to each.


async def test_a_plain_function_in_a_thread(autojump_clock: MockClock) -> None:
    def add(number: int) -> int:
        return number + 1

    late = Chaos(0, delay=60, rate=1).wrap(add)
    assert await trio.to_thread.run_sync(late, 1) == 2
    assert trio.current_time() == 60
    with pytest.raises(KeyError):
        await trio.to_thread.run_sync(Chaos(0, fail=KeyError, rate=1).wrap(add), 1)
    async with harness.open_run("cut") as run:
        await trio.to_thread.run_sync(Chaos(0, cancel=True, rate=1).wrap(add), 1)
    assert run.status == "cancelled"
    with pytest.raises(RuntimeError, match="worker thread"):
        late(1)


# Models and tools --------------------------------------------------------------------------------

REQUEST = ModelRequest([Message("user", "Hello")])


@pytest.mark.parametrize("faults", [{"delay": 3}, {"cancel": True}, {"fail": ValueError}])
@pytest.mark.parametrize("after", [0.0, 1.0])
async def test_a_lambda_that_gives_an_awaitable(
    autojump_clock: MockClock, faults: dict[str, Any], after: float
) -> None:
    """It is a worker like any other, though nothing but its call says so."""
    chaos = Chaos(3, **faults, rate=1.0, after=after)
    worker = chaos.wrap(lambda number: double(number))
    results = await harness.fan_out(worker, [1, 2], policy=POLICY)
    status = {"delay": "ok", "cancel": "cancelled", "fail": "failed"}[next(iter(faults))]
    assert [result.status for result in results] == [status, status]
    assert trio.current_time() == {"delay": 4.0}.get(next(iter(faults)), after)


async def test_a_model_is_wrapped_as_a_model(autojump_clock: MockClock) -> None:
    model = FunctionModel(lambda request: request.messages[-1].text.upper())
    kind: Any = Chaos(0, delay=5, rate=1).wrap(model)
    assert (await kind.complete(REQUEST)).content == "HELLO"
    async with kind.stream(REQUEST) as pieces:
        read = [piece async for piece in pieces]
    assert isinstance(read[-1], ModelResponse)
    assert trio.current_time() == 10

    broken: Any = Chaos(0, fail=ConnectionError, rate=1).wrap(model)
    with pytest.raises(ConnectionError):
        await broken.complete(REQUEST)
    with pytest.raises(ConnectionError):
        async with broken.stream(REQUEST):
            pass


async def test_a_stream_can_break_before_its_last_piece() -> None:
    class Words:
        async def complete(self, request: ModelRequest) -> ModelResponse:
            return ModelResponse("a b")

        @asynccontextmanager
        async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Any]]:
            async def pieces() -> AsyncGenerator[Any, None]:
                yield "a"
                yield "b"
                yield ModelResponse("a b")

            async with aclosing(pieces()) as stream:
                yield stream

    model: Any = Chaos(0, fail=ConnectionError, rate=1, after=1).wrap(Words())
    read: list[Any] = []
    with pytest.raises(ConnectionError):
        async with model.stream(REQUEST) as pieces:
            async for piece in pieces:
                read.append(piece)
    assert read == ["a", "b"]


@attrs.frozen(kw_only=True)
class Lookup:
    """What a tool is to chaos: it has parameters, and is invoked."""

    name: str = "lookup"
    parameters: Mapping[str, Any] = attrs.field(factory=dict)

    async def invoke(self, arguments: Mapping[str, Any], call_id: str) -> str:
        return f"{arguments['key']}!"


async def test_a_tool_stays_a_tool_of_its_class() -> None:
    tool = Lookup()
    quiet = Chaos(0, fail=0.0, rate=0).wrap(tool)
    assert isinstance(quiet, Lookup)
    assert quiet.name == "lookup"
    assert await quiet.invoke({"key": "a"}, "1") == "a!"
    with pytest.raises(ChaosError):
        await Chaos(0, fail=1.0).wrap(tool).invoke({"key": "a"}, "1")
    assert await tool.invoke({"key": "a"}, "1") == "a!"  # The tool itself is as it was.


# Arguments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        pytest.param({}, ValueError, id="nothing asked"),
        pytest.param({"fail": 1.5}, ValueError, id="more than all"),
        pytest.param({"fail": 0.7, "cancel": 0.7}, ValueError, id="more than all together"),
        pytest.param({"fail": True, "rate": -1}, ValueError, id="negative rate"),
        pytest.param({"fail": True, "rate": "x"}, TypeError, id="no number"),
        pytest.param({"fail": "x"}, TypeError, id="no error"),
        pytest.param({"fail": []}, ValueError, id="no errors"),
        pytest.param({"fail": KeyboardInterrupt}, TypeError, id="not an Exception"),
        pytest.param({"delay": (3, 1)}, ValueError, id="bounds the wrong way round"),
        pytest.param({"delay": -1}, ValueError, id="negative delay"),
        pytest.param({"delay": float("nan")}, ValueError, id="nan"),
        pytest.param({"fail": True, "seed": "x"}, TypeError, id="no seed"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="Chaos"):
        Chaos(**settings)


async def test_what_cannot_be_wrapped_is_refused() -> None:
    async def endless() -> AsyncIterator[int]:
        yield 1

    for thing in (3, "text", endless, Lookup):
        with pytest.raises(TypeError, match="wrap"):
            Chaos(0, fail=True).wrap(thing)

    async def worker(number: int) -> int:
        return number

    with pytest.raises(TypeError, match=r"not the coroutine .* write worker instead of worker"):
        Chaos(1, fail=ValueError).wrap(worker(1))  # type: ignore[unused-coroutine]


def test_a_wrapped_function_says_what_it_is() -> None:
    async def look_up(key: str) -> str:
        """Find a thing."""
        return key

    wrapped = Chaos(0, fail=True).wrap(look_up)
    assert wrapped.__name__ == "look_up"
    assert wrapped.__doc__ == "Find a thing."
