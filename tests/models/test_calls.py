"""Every call keeps its limiter: before, after, and on every way out."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import (
    ModelQuotaExhaustedError,
    ModelRateLimitedError,
    ModelStatusError,
    NestedReservationError,
)
from harness.limits import Limiter
from harness.models import (
    FallbackModel,
    FunctionModel,
    Message,
    ModelRequest,
    ModelResponse,
    Price,
    ScriptedModel,
    Usage,
)
from tests.scale import scaled
from tests.support.checkpoints import cancel_at_every_checkpoint

HELLO = ModelRequest([Message("user", "hello " * 20)])  # 120 letters: 30 tokens, and 4 around.


def used(limiter: Limiter, dimension: str = "tokens") -> float:
    """Return what has been taken of a limit."""
    return limiter.statistics().dimensions[dimension].used


def refusal(retry_after: float | None = None, status: int = 429) -> ModelRateLimitedError:
    headers = {} if retry_after is None else {"retry-after": f"{retry_after:.0f}"}
    return ModelRateLimitedError(
        "too many", status_code=status, headers=headers, retry_after=retry_after
    )


async def test_a_call_is_settled_to_its_usage(autojump_clock: MockClock) -> None:
    limiter = Limiter("provider", tokens_per_minute=10_000)
    reserved: list[float] = []

    def answer(request: ModelRequest) -> ModelResponse:
        reserved.append(used(limiter))
        return ModelResponse("yes", usage=Usage(50, 7))

    model = FunctionModel(answer, limiter=limiter)
    await model.complete(HELLO)
    assert reserved == [34 + 1_024], "the guessed input, and what is assumed of an unknown output"
    assert used(limiter) == 57
    async with model.stream(HELLO) as stream:
        assert [piece async for piece in stream][-1] == ModelResponse("yes", usage=Usage(50, 7))
        assert reserved[-1] == 57 + 34 + 7, "by now the output is known"
    assert used(limiter) == 2 * 57


async def test_without_usage_a_call_is_settled_to_what_was_said(autojump_clock: MockClock) -> None:
    limiter = Limiter("provider", tokens_per_minute=10_000)
    await ScriptedModel(["x" * 400], limiter=limiter).complete(HELLO)
    assert used(limiter) == 34 + 100


async def test_a_stream_holds_its_reservation_until_it_is_closed(autojump_clock: MockClock) -> None:
    limiter = Limiter("provider", concurrent=1, tokens_per_minute=10_000)
    model = ScriptedModel(["one two three " * 10], limiter=limiter)
    async with model.stream(HELLO) as stream:
        assert await anext(stream) == "one "
        assert limiter.statistics().in_flight == 1
    assert limiter.statistics().in_flight == 0
    assert used(limiter) == 34 + 1, "what had come when it was left"


@pytest.mark.parametrize("way", ["raises", "is cancelled"])
async def test_a_reader_that_goes_settles_to_what_had_come(
    way: str, autojump_clock: MockClock
) -> None:
    limiter = Limiter("provider", concurrent=1, tokens_per_minute=10_000)
    model = ScriptedModel(["one two three " * 10], limiter=limiter, piece_delay=1)

    async def go() -> None:
        async with model.stream(HELLO) as stream:
            await anext(stream)
            await anext(stream)
            if way == "raises":
                raise KeyError("a mistake of the reader")
            await trio.sleep_forever()

    with trio.move_on_after(5):
        if way == "raises":
            with pytest.raises(KeyError):
                await go()
        else:
            await go()
    assert limiter.statistics().in_flight == 0
    assert used(limiter) == 34 + 2
    assert limiter._grants.rests_until < trio.current_time(), "the provider did nothing wrong"


async def test_a_refusal_pauses_the_limiter_and_is_waited_out(autojump_clock: MockClock) -> None:
    """One refusal is one pause for all, and nobody's attempt."""
    limiter = Limiter("provider", requests_per_minute=600)
    asked: list[float] = []

    def answer(request: ModelRequest) -> str:
        asked.append(trio.current_time())
        if len(asked) == 1:
            raise refusal(20)
        return "at last"

    model = FunctionModel(answer, limiter=limiter)

    async def ask(number: int) -> str:
        if number % 2:
            async with model.stream(HELLO) as stream:
                pieces = [piece async for piece in stream]
                assert isinstance(pieces[-1], ModelResponse)
                return pieces[-1].content
        return (await model.complete(HELLO)).content

    results = await harness.fan_out(
        ask, range(scaled(20, full=200)), each=harness.Attempt(retry=harness.Retry(1))
    )
    assert set(results.values()) == {"at last"}
    assert {result.attempts for result in results} == {1}
    assert limiter.statistics().pauses == 1
    assert not [moment for moment in asked[1:] if 0.2 < moment - asked[0] < 20]


async def test_without_a_limiter_a_refusal_is_an_error_that_retry_knows(
    autojump_clock: MockClock,
) -> None:
    asked: list[float] = []

    def answer(request: ModelRequest) -> str:
        asked.append(trio.current_time())
        if len(asked) == 1:
            raise refusal(7)
        return "at last"

    model = FunctionModel(answer)
    with pytest.raises(ModelRateLimitedError) as caught:
        await model.complete(HELLO)
    assert caught.value.retry_after == 7

    asked.clear()
    results = await harness.fan_out(
        model.complete, [HELLO], each=harness.Attempt(retry=harness.Retry(1))
    )
    assert results.values() == [ModelResponse("at last")]
    assert asked[1] - asked[0] >= 7


async def test_a_wait_past_the_deadline_gives_the_refusal_at_once(
    autojump_clock: MockClock,
) -> None:
    limiter = Limiter("provider", requests_per_minute=600)

    def refuse(request: ModelRequest) -> str:
        raise refusal(30)

    model = FunctionModel(refuse, limiter=limiter)
    with pytest.raises(ModelRateLimitedError):
        async with harness.open_run("short", timeout=20):
            await model.complete(HELLO)
    assert trio.current_time() < 1


@pytest.mark.parametrize("retry_after", [None, 0.0, 10.0])
async def test_refusals_without_end_are_waited_for_ten_minutes_at_most(
    retry_after: float | None, autojump_clock: MockClock
) -> None:
    """Even if the provider says to come back at once, every time."""
    limiter = Limiter("provider", concurrent=1_000)
    asked = 0

    def refuse(request: ModelRequest) -> str:
        nonlocal asked
        asked += 1
        raise refusal(retry_after)

    with pytest.raises(ModelRateLimitedError):
        await FunctionModel(refuse, limiter=limiter).complete(HELLO)
    assert 540 <= trio.current_time() <= 600
    assert asked <= 605


async def test_a_limiter_that_is_closed_says_which_model_was_not_asked(
    autojump_clock: MockClock,
) -> None:
    limiter = Limiter("provider", concurrent=10)
    model = ScriptedModel(["hello"], limiter=limiter, name="careful")
    limiter.pause(300)
    async with harness.open_run("early"):
        with pytest.raises(
            ModelRateLimitedError, match=r"'careful' was not asked.*'early'"
        ) as late:
            await model.complete(HELLO)
    assert late.value.retry_after == pytest.approx(300)
    limiter.reset()
    limiter.observe(status=429, body={"error": {"code": "insufficient_quota"}})
    with pytest.raises(ModelQuotaExhaustedError, match=r"'careful' was not asked"):
        async with model.stream(HELLO):
            pass
    assert trio.current_time() == 0


async def test_what_is_no_request_is_refused() -> None:
    model = ScriptedModel(["a"])
    chain = FallbackModel([(Limiter("a", concurrent=1), model)])
    history: Any = HELLO.messages
    for asked in (model, chain):
        with pytest.raises(TypeError, match="takes a ModelRequest, not"):
            await asked.complete(history)
        with pytest.raises(TypeError, match="takes a ModelRequest, not"):
            async with asked.stream(history):
                raise AssertionError


async def test_a_failure_is_heard_by_the_limiter(autojump_clock: MockClock) -> None:
    limiter = Limiter("provider", concurrent=10)

    def fail(request: ModelRequest) -> str:
        raise ModelStatusError("broken", status_code=500)

    with pytest.raises(ModelStatusError):
        await FunctionModel(fail, limiter=limiter).complete(HELLO)
    assert limiter._grants.rests_until > trio.current_time()


async def test_a_model_inside_a_reservation_of_its_own_limiter_is_refused(
    autojump_clock: MockClock,
) -> None:
    limiter = Limiter("provider", concurrent=1)
    model = ScriptedModel(["hello"], limiter=limiter)
    results = await harness.fan_out(
        model.complete,
        [HELLO],
        policy=harness.BestEffort(),
        each=harness.Attempt(limiter=limiter),
    )
    assert isinstance(results[0].error, NestedReservationError)


async def test_cancelled_anywhere_the_limiter_has_its_places_back(
    autojump_clock: MockClock,
) -> None:
    limiter = Limiter("provider", concurrent=1, requests_per_minute=600_000)
    refused = False

    def answer(request: ModelRequest) -> str:
        nonlocal refused
        refused = not refused
        if refused:
            raise refusal(1)
        return "one two"

    model = FunctionModel(answer, limiter=limiter)

    async def use() -> None:
        nonlocal refused
        refused = False
        await model.complete(HELLO)
        async with model.stream(HELLO) as stream:
            async for _ in stream:
                pass

    def check() -> None:
        statistics = limiter.statistics()
        assert (statistics.in_flight, statistics.waiting) == (0, 0)

    assert await cancel_at_every_checkpoint(use, check) >= 4


def test_a_price_is_a_value() -> None:
    price = Price(input_usd_per_million_tokens=2, output_usd_per_million_tokens=10)
    assert price.cost_usd(Usage(1_000_000, 500_000)) == 7
    cheaper = Price(
        input_usd_per_million_tokens=2,
        output_usd_per_million_tokens=10,
        cached_input_usd_per_million_tokens=0.5,
    )
    assert cheaper.cost_usd(Usage(1_000_000, 0, cached_input_tokens=400_000)) == pytest.approx(1.4)
    written = attrs.evolve(cheaper, cache_write_usd_per_million_tokens=2.5)
    used = Usage(1_000_000, 0, cached_input_tokens=400_000, cache_write_input_tokens=200_000)
    assert cheaper.cost_usd(used) == pytest.approx(1.4)
    assert written.cost_usd(used) == pytest.approx(1.5)
    with pytest.raises(ValueError, match=r"Price\(input_usd_per_million_tokens=...\) .* not -1"):
        Price(input_usd_per_million_tokens=-1, output_usd_per_million_tokens=1)
    with pytest.raises(TypeError, match=r"Price\(output_usd_per_million_tokens=...\) .* not '1'"):
        Price(input_usd_per_million_tokens=1, output_usd_per_million_tokens="1")  # type: ignore[arg-type]
