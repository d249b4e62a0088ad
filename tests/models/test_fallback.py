"""A chain of models: the next one on a failure or an empty limiter, the first again afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.budgets import budget_statistics
from harness.errors import (
    ModelConnectionError,
    ModelError,
    ModelNotOpenError,
    ModelRateLimitedError,
    ModelReplyError,
    ModelStatusError,
)
from harness.limits import Limiter
from harness.models import (
    FallbackModel,
    FunctionModel,
    Message,
    ModelRequest,
    ModelResponse,
    ModelStream,
    Price,
    ScriptedModel,
    Usage,
)
from tests.models.providers import make_model
from tests.support.checkpoints import cancel_at_every_checkpoint

HELLO = ModelRequest([Message("user", "hello")])


class Provider:
    """A model that answers with its name, unless it is told to fail."""

    def __init__(self, name: str, **limits: float) -> None:
        self.name = name
        self.error: Exception | None = None
        self.asked = 0
        self.limiter = Limiter(name, concurrent=100, **limits)  # type: ignore[arg-type]
        self.model = FunctionModel(self.answer, name=name, limiter=self.limiter)

    def answer(self, request: ModelRequest) -> ModelResponse:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return ModelResponse(f"{self.name} says yes", usage=Usage(10, 5))


async def whole(model: FallbackModel) -> str:
    return (await model.complete(HELLO)).content


async def streamed(model: FallbackModel) -> str:
    async with model.stream(HELLO) as stream:
        pieces = [piece async for piece in stream]
    assert isinstance(pieces[-1], ModelResponse)
    text = "".join(str(piece) for piece in pieces[:-1])
    assert text == pieces[-1].content
    return text


BOTH = pytest.mark.parametrize("ask", [whole, streamed])


@BOTH
async def test_after_a_failure_the_next_answers_and_the_first_is_used_again_later(
    ask: object, autojump_clock: MockClock
) -> None:
    assert callable(ask)
    first, second = Provider("first"), Provider("second")
    model = FallbackModel([first.model, second.model])
    assert await ask(model) == "first says yes"
    first.error = ModelStatusError("broken", status_code=500)
    assert await ask(model) == "second says yes"
    assert first.asked == 2
    assert await ask(model) == "second says yes"
    assert first.asked == 2, "it rests, so no call has to find out anew"
    first.error = None
    await trio.sleep(15)
    assert await ask(model) == "first says yes"


@BOTH
async def test_an_empty_limiter_sends_calls_on(ask: object, autojump_clock: MockClock) -> None:
    assert callable(ask)
    first, second = Provider("first", requests_per_minute=60), Provider("second")
    model = FallbackModel([first.model, second.model])
    assert [await ask(model) for _ in range(3)] == [
        "first says yes",
        "second says yes",
        "second says yes",
    ]
    await trio.sleep(1)
    assert await ask(model) == "first says yes"


@BOTH
async def test_a_refusal_for_rate_sends_calls_on_without_a_wait(
    ask: object, autojump_clock: MockClock
) -> None:
    assert callable(ask)
    first, second = Provider("first"), Provider("second")
    model = FallbackModel([first.model, second.model])
    first.error = ModelRateLimitedError(
        "too many", status_code=429, headers={"retry-after": "30"}, retry_after=30
    )
    assert await ask(model) == "second says yes"
    assert trio.current_time() == 0
    assert first.limiter.statistics().paused_seconds >= 30
    second.error = first.error
    first.error = None
    assert await ask(model) == "first says yes", "both are paused, so it waits for the first"
    assert trio.current_time() >= 30


@BOTH
async def test_if_all_fail_the_error_says_why_for_each(
    ask: object, autojump_clock: MockClock
) -> None:
    assert callable(ask)
    first, second = Provider("first"), Provider("second")
    first.error = ModelStatusError("the first is broken", status_code=500)
    second.error = ModelConnectionError("the second is gone")
    model = FallbackModel([first.model, second.model], name="chain")
    async with harness.open_run("asks"):
        with pytest.raises(
            ModelError, match=r"'chain'.*first is broken.*second is gone.*'asks'"
        ) as all_:
            await ask(model)
    assert type(all_.value) is ModelError
    assert all_.value.__cause__ is second.error
    second.error = first.error
    with pytest.raises(ModelStatusError) as same:
        await ask(model)
    assert same.value.status_code == 500
    assert (first.asked, second.asked) == (2, 2), "each once for each call"


async def test_refusals_without_end_are_bounded(autojump_clock: MockClock) -> None:
    first, second = Provider("first"), Provider("second")
    for provider in (first, second):
        provider.error = ModelRateLimitedError("too many", status_code=429)
    with pytest.raises(ModelRateLimitedError):
        await whole(FallbackModel([first.model, second.model]))
    assert 300 <= trio.current_time() <= 600
    first.limiter.reset()
    second.limiter.reset()
    with pytest.raises(ModelRateLimitedError):
        async with harness.open_run("short", timeout=10):
            await whole(FallbackModel([first.model, second.model]))


async def test_when_nobody_can_be_waited_for_it_says_so(autojump_clock: MockClock) -> None:
    first, second = Provider("first"), Provider("second")
    model = FallbackModel([first.model, second.model], name="chain")
    first.limiter.pause(300)
    second.limiter.pause(400)
    with pytest.raises(ModelRateLimitedError, match="'chain' was not asked") as caught:
        await whole(model)
    assert caught.value.retry_after == pytest.approx(300)
    assert trio.current_time() == 0


class Breaking:
    """Somebody else's model that breaks off in the middle, and knows none of our errors."""

    def __init__(self, after: int, error: Exception | None = None) -> None:
        self.after = after
        self.error = error or KeyError("half of an answer")

    async def complete(self, request: ModelRequest) -> ModelResponse:
        await trio.lowlevel.checkpoint()
        raise self.error

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelStream]:
        yield self._pieces()

    async def _pieces(self) -> AsyncGenerator[str | ModelResponse]:
        for number in range(self.after):
            await trio.lowlevel.checkpoint()
            yield f"{number} "
        raise self.error


async def test_a_stream_goes_on_only_before_its_first_piece(autojump_clock: MockClock) -> None:
    second = Provider("second")
    chain = FallbackModel([(Limiter("first", concurrent=1), Breaking(0)), second.model])
    assert await streamed(chain) == "second says yes"
    for error in (KeyError("half of an answer"), ModelConnectionError("cut")):
        limiter = Limiter("another", concurrent=1)
        chain = FallbackModel([(limiter, Breaking(2, error)), second.model])
        read: list[object] = []
        with pytest.raises(type(error)):
            async with chain.stream(HELLO) as stream:
                async for piece in stream:
                    read.append(piece)
        assert read == ["0 ", "1 "]
        assert limiter._grants.rests_until > trio.current_time(), "and the limiter has heard of it"
    assert second.asked == 1


async def test_models_of_others_fail_over_too(autojump_clock: MockClock) -> None:
    second = Provider("second")
    chain = FallbackModel([(Limiter("first", concurrent=1), Breaking(0)), second.model])
    assert await whole(chain) == "second says yes"
    alone = FallbackModel([(Limiter("alone", concurrent=1), Breaking(0))])
    with pytest.raises(ModelError, match="failed: KeyError: 'half of an answer'"):
        await whole(alone)


@BOTH
@pytest.mark.parametrize("error", [ConnectionError("down"), ValueError("a mistake")])
async def test_whatever_a_function_raises_is_its_failure(
    ask: object, error: Exception, autojump_clock: MockClock
) -> None:
    assert callable(ask)
    first, second = Provider("first"), Provider("second")
    first.error = error
    assert await ask(FallbackModel([first.model, second.model])) == "second says yes"
    assert first.limiter._grants.rests_until > trio.current_time()
    scripted = ScriptedModel([error], limiter=Limiter("scripted", concurrent=1))
    with pytest.raises(ModelError, match=r"model 'scripted' failed: .*Error: .*") as caught:
        await ask(FallbackModel([scripted]))
    assert isinstance(caught.value.__cause__, ModelError)
    assert type(caught.value.__cause__.__cause__) is type(error)


async def test_what_a_reader_raises_is_no_failure_of_the_model(autojump_clock: MockClock) -> None:
    first, second = Provider("first"), Provider("second")
    chain = FallbackModel([first.model, second.model])
    with pytest.raises(ValueError, match="of the reader"):
        async with chain.stream(HELLO) as stream:
            await anext(stream)
            raise ValueError("a mistake of the reader")
    assert (first.asked, second.asked) == (1, 0)
    assert first.limiter._grants.rests_until <= trio.current_time()


async def test_an_option_that_there_is_not_stays_a_mistake() -> None:
    model = make_model(
        "chat",
        "http://127.0.0.1:9",
        options={"colour": "red"},
        limiter=Limiter("first", concurrent=1),
    )
    async with FallbackModel([model, Provider("second").model]) as chain:
        with pytest.raises(TypeError, match="colour"):
            await whole(chain)


async def test_each_call_is_settled_and_billed_once(autojump_clock: MockClock) -> None:
    """To whichever answered, at its own price; those that failed cost nothing."""
    first = Provider("first", tokens_per_minute=10_000)
    second = Provider("second", tokens_per_minute=10_000)
    first.error = ModelStatusError("broken", status_code=500)
    second.model.price = Price(
        input_usd_per_million_tokens=1_000, output_usd_per_million_tokens=2_000
    )
    chain = FallbackModel([first.model, second.model])
    async with harness.open_run("paid", budget=harness.Budget(tokens=10_000, cost_usd=5)):
        await whole(chain)
        await streamed(chain)
        (budget,) = budget_statistics()
    assert budget.tokens is not None
    assert budget.cost_usd is not None
    assert (budget.tokens.spent, budget.tokens.reserved) == (30, 0)
    assert budget.cost_usd.spent == pytest.approx(0.04)
    assert second.limiter.statistics().dimensions["tokens"].used == 30


async def test_it_opens_what_has_to_be_opened() -> None:
    opening = [
        make_model(way, "http://127.0.0.1:9", limiter=Limiter(way, concurrent=1))
        for way in ("chat", "messages")
    ]
    chain = FallbackModel(opening)
    with pytest.raises(ModelNotOpenError):
        await whole(chain)
    async with chain:
        assert all(model._clients is not None for model in opening)
    assert all(model._clients is None for model in opening)


async def test_many_at_once_share_the_chain(autojump_clock: MockClock) -> None:
    first, second = Provider("first", requests_per_minute=600), Provider("second")
    chain = FallbackModel([first.model, second.model])
    results = await harness.fan_out(lambda _: whole(chain), range(200), limit=200)
    counts = Counter(results.values())
    assert counts["first says yes"] == 10, "the burst that the first one takes"
    assert counts.total() == 200


async def test_cancelled_anywhere_nothing_is_held(autojump_clock: MockClock) -> None:
    first, second = Provider("first"), Provider("second")
    first.error = ModelReplyError("empty")
    chain = FallbackModel([first.model, second.model])

    async def use() -> None:
        await whole(chain)
        await streamed(chain)

    def check() -> None:
        for provider in (first, second):
            statistics = provider.limiter.statistics()
            assert (statistics.in_flight, statistics.waiting) == (0, 0)

    assert await cancel_at_every_checkpoint(use, check) >= 4


def test_bad_chains_are_refused() -> None:
    limiter = Limiter("a", concurrent=1)
    with pytest.raises(ValueError, match="at least 1 model"):
        FallbackModel([])
    with pytest.raises(TypeError, match=r"put it in \[\]"):
        FallbackModel(ScriptedModel(["a"], limiter=limiter))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="has no limiter"):
        FallbackModel([ScriptedModel(["a"])])
    with pytest.raises(ValueError, match="same name"):
        FallbackModel(
            [
                ScriptedModel(["a"], limiter=limiter),
                ScriptedModel(["b"], limiter=Limiter("a", concurrent=1)),
            ]
        )
    with pytest.raises(ValueError, match="another limiter itself"):
        FallbackModel([(Limiter("b", concurrent=1), ScriptedModel(["a"], limiter=limiter))])
