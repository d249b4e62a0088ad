"""What calls use is held by the budgets of their run before, and counted after."""

from __future__ import annotations

import contextlib
import contextvars
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import harness
from harness.agents import Agent
from harness.budgets import BudgetStatistics, budget_left, budget_statistics
from harness.errors import (
    BudgetExceeded,
    MissingPriceError,
    ModelConnectionError,
    ModelError,
    ModelReplyError,
    ModelStatusError,
    ModelUnreachableError,
)
from harness.limits import Limiter
from harness.models import (
    FunctionModel,
    Message,
    ModelRequest,
    ModelResponse,
    OpenAIModel,
    Price,
    ScriptedModel,
    Usage,
)
from harness.models._answers import ReadyBlock
from tests.models.providers import open_model

HELLO = ModelRequest([Message("user", "hello " * 20)])  # 34 tokens, by the guess.
PRICE = Price(input_usd_per_million_tokens=1_000, output_usd_per_million_tokens=10_000)


def answering(usage: Usage, **options: object) -> ScriptedModel:
    return ScriptedModel([ModelResponse("one two three", usage=usage)], **options)  # type: ignore[arg-type]


def tokens_of(statistics: tuple[BudgetStatistics, ...]) -> tuple[float, float]:
    """Return what was spent and what is held of the innermost budget."""
    tokens = statistics[-1].tokens
    assert tokens is not None
    return tokens.spent, tokens.reserved


async def test_calls_spend_what_they_used_in_tokens_and_dollars() -> None:
    model = answering(Usage(100, 10), price=PRICE)
    async with harness.open_run("paid", budget=harness.Budget(tokens=1_000, cost_usd=1.0)):
        await model.complete(HELLO)
        async with model.stream(HELLO) as stream:
            assert tokens_of(budget_statistics()) == (110, 110), "held while it streams"
            async for _ in stream:
                pass
        assert tokens_of(budget_statistics()) == (220, 0)
        assert budget_left().cost_usd == pytest.approx(1 - 2 * (0.1 + 0.1))


async def test_a_spent_budget_refuses_and_nothing_is_asked(autojump_clock: MockClock) -> None:
    limiter = Limiter("provider", requests_per_minute=600, concurrent=1)
    model = answering(Usage(100, 10), limiter=limiter)
    async with harness.open_run("paid", budget=harness.Budget(tokens=250)):
        await model.complete(HELLO)
        await model.complete(HELLO)
        granted = limiter.statistics().dimensions["requests"].used
        for _ in range(3):
            with pytest.raises(BudgetExceeded, match="'paid'"):
                await model.complete(HELLO)
            with pytest.raises(BudgetExceeded):
                async with model.stream(HELLO):
                    pass
        assert limiter.statistics().dimensions["requests"].used == granted, "it was given back"
        assert limiter.statistics().in_flight == 0


async def test_with_a_stated_maximum_calls_side_by_side_never_overrun(
    autojump_clock: MockClock,
) -> None:
    """Each holds its maximum, so of a hundred only those begin that the budget can pay for."""

    class Slow(FunctionModel):
        def __init__(self) -> None:
            super().__init__(self.answer)
            self.max_output_tokens = 50
            self.asked = 0

        async def answer(self, request: ModelRequest) -> ModelResponse:
            self.asked += 1
            await trio.sleep(1)
            return ModelResponse("x", usage=Usage(34, 50))

    model = Slow()
    async with harness.open_run("paid", budget=harness.Budget(tokens=84 * 10)):
        results = await harness.fan_out(
            model.complete, [HELLO] * 100, policy=harness.BestEffort(), limit=100
        )
        assert len(results.values()) == model.asked == 10
        assert budget_left().tokens == 0
        (budget,) = budget_statistics()
        assert budget.tokens is not None
        assert budget.tokens.overrun == 0


class Unknown(FunctionModel):
    """A model whose use nobody knows beforehand: 60 tokens in and 40 out, after a second."""

    def __init__(self, failures: int = 0, **options: Any) -> None:
        super().__init__(self.answer, **options)
        self.failures = failures
        self.most_at_once = self.now = self.asked = 0

    async def answer(self, request: ModelRequest) -> ModelResponse:
        self.asked += 1
        number = self.asked
        self.now += 1
        self.most_at_once = max(self.most_at_once, self.now)
        try:
            await trio.sleep(1)
        finally:
            self.now -= 1
        if number <= self.failures:
            raise ModelStatusError("broken", status_code=500)
        return ModelResponse("x", usage=Usage(60, 40))


@pytest.mark.parametrize("dimension", ["tokens", "dollars"])
@pytest.mark.parametrize("failures", [0, 1])
async def test_a_first_wave_of_unknown_calls_spends_all_of_a_budget_and_no_more(
    dimension: str, failures: int, autojump_clock: MockClock
) -> None:
    """They used to hold nothing for their output, and overran the budget five times over."""
    limiter = Limiter("provider", requests_per_minute=60_000, burst_seconds=10)
    if dimension == "tokens":
        model, budget = Unknown(failures, limiter=limiter), harness.Budget(tokens=1_000)
    else:
        price = Price(input_usd_per_million_tokens=1_000, output_usd_per_million_tokens=1_000)
        model = Unknown(failures, limiter=limiter, price=price)
        budget = harness.Budget(cost_usd=1.0)
    async with harness.open_run("paid", budget=budget):
        results = await harness.fan_out(model.complete, [HELLO] * 50, policy=harness.BestEffort())
        assert len(results.values()) == 10
        assert model.asked == 10 + failures
        assert {type(gap.error) for gap in results.failed} <= {BudgetExceeded, ModelStatusError}
        (statistics,) = budget_statistics()
        spent = statistics.tokens or statistics.cost_usd
        assert spent is not None
        assert (spent.left, spent.overrun, spent.reserved) == (0, 0, 0)
    assert limiter.statistics().dimensions["requests"].used == model.asked, "the rest went back"


async def test_a_first_wave_with_a_large_budget_is_a_wave(autojump_clock: MockClock) -> None:
    model = Unknown()
    async with harness.open_run("paid", budget=harness.Budget(tokens=100_000)):
        await harness.fan_out(model.complete, [HELLO] * 50)
        assert budget_left().tokens == 100_000 - 50 * 100
    assert model.most_at_once == 50


async def test_a_budget_for_all_refuses_nobody_for_what_the_first_only_hold(
    autojump_clock: MockClock,
) -> None:
    """Forty-eight of these guesses fill the budget, which is enough for five hundred calls."""
    model = Unknown()
    async with harness.open_run("paid", budget=harness.Budget(tokens=50_000)):
        assert (await harness.fan_out(model.complete, [HELLO] * 100)).complete
    assert model.most_at_once >= 40
    assert trio.current_time() == 2


async def test_nobody_waits_for_a_stream_or_for_himself(autojump_clock: MockClock) -> None:
    """A stream ends when its reader is done with it, who may be waiting for that very call."""
    model = Unknown()
    async with harness.open_run("paid", budget=harness.Budget(tokens=500)):
        async with model.stream(HELLO) as stream:
            await anext(stream)
            with pytest.raises(BudgetExceeded):
                await model.complete(HELLO)

    async def ask_again(request: ModelRequest) -> ModelResponse:
        return await asking.complete(request)

    asking = FunctionModel(ask_again)
    async with harness.open_run("paid", budget=harness.Budget(tokens=500)):
        with trio.fail_after(10), pytest.raises(BudgetExceeded):
            await asking.complete(HELLO)


class UnknownInPieces(Unknown):
    """One that streams what it says in five pieces, a second apart."""

    async def answer(self, request: ModelRequest) -> ModelResponse:
        await super().answer(request)
        return ModelResponse("a b c d e", usage=Usage(60, 40))

    def _open(self, request: ModelRequest) -> ReadyBlock:
        return ReadyBlock(self._ask, request, piece_delay=1)

    async def read(self, request: ModelRequest = HELLO) -> None:
        async with self.stream(request) as stream:
            async for _ in stream:
                pass


async def test_a_budget_for_all_refuses_no_stream_for_what_the_first_only_hold(
    autojump_clock: MockClock,
) -> None:
    """Nobody used to wait for a stream, so a hundred were refused where plain calls weren't."""
    model = UnknownInPieces()
    async with harness.open_run("paid", budget=harness.Budget(tokens=50_000)):
        assert (await harness.fan_out(model.read, [HELLO] * 100)).complete
        assert tokens_of(budget_statistics()) == (100 * 100, 0)
    assert model.most_at_once >= 40
    assert trio.current_time() == 10, "five seconds each, in two waves"


async def test_whole_answers_and_streams_wait_for_each_other(autojump_clock: MockClock) -> None:
    model = UnknownInPieces()
    async with harness.open_run("paid", budget=harness.Budget(tokens=500)):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(model.read)
            await wait_all_tasks_blocked()
            await model.complete(HELLO)
            assert trio.current_time() == 6
    model = UnknownInPieces()
    async with harness.open_run("paid", budget=harness.Budget(tokens=500)):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(model.complete, HELLO)
            await wait_all_tasks_blocked()
            await model.read()
            assert trio.current_time() == 12


@pytest.mark.parametrize("waiting", [1, 3])
async def test_nobody_waits_for_a_reader_who_does_not_read(
    waiting: int, autojump_clock: MockClock
) -> None:
    """The reader may be waiting for exactly those that wait for the stream."""
    model = UnknownInPieces()
    refused: list[float] = []

    async def ask() -> None:
        with pytest.raises(BudgetExceeded):
            await model.complete(HELLO)
        refused.append(trio.current_time())

    async with harness.open_run("paid", budget=harness.Budget(tokens=500)):
        with trio.fail_after(60):
            async with model.stream(HELLO) as stream:
                async with trio.open_nursery() as nursery:
                    for _ in range(waiting):
                        nursery.start_soon(ask)
                    await wait_all_tasks_blocked()
                    assert refused == [trio.current_time()] * waiting, "at once"
                assert await anext(stream) == "a "
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(anext, stream)
                    await wait_all_tasks_blocked()
                    for _ in range(waiting):
                        nursery.start_soon(ask)
                    await wait_all_tasks_blocked()
                    assert len(refused) == waiting, "while he reads they wait"
                assert refused[waiting:] == [2.0] * waiting


@pytest.mark.parametrize("way", ["break", "cancel", "failure"])
async def test_a_stream_that_ends_early_lets_those_in_line_go_on(
    way: str, autojump_clock: MockClock
) -> None:
    model = UnknownInPieces(failures=1 if way == "failure" else 0)
    scope = trio.CancelScope()

    async def leave() -> None:
        with scope, contextlib.suppress(ModelStatusError):
            async with model.stream(HELLO) as stream:
                async for piece in stream:
                    if piece == "b " and way == "break":
                        break
                    if piece == "b ":
                        scope.deadline = trio.current_time() + 0.5

    async with harness.open_run("paid", budget=harness.Budget(tokens=1_500)):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leave)
            await wait_all_tasks_blocked()
            nursery.start_soon(model.read)
            await wait_all_tasks_blocked()
            async with trio.open_nursery() as waiting:
                for _ in range(3):
                    waiting.start_soon(model.complete, HELLO)
            assert trio.current_time() < 5, "before the other stream ends"
        spent, held = tokens_of(budget_statistics())
        assert held == 0
        assert 400 <= spent <= 460


async def test_a_stream_that_could_not_be_opened_lets_those_in_line_go_on(
    autojump_clock: MockClock,
) -> None:
    model = UnknownInPieces(failures=1)

    async def fail() -> None:
        with pytest.raises(ModelStatusError):
            await model.read()

    async with harness.open_run("paid", budget=harness.Budget(tokens=1_500)):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            await trio.sleep(0.5)
            nursery.start_soon(model.complete, HELLO)
            await wait_all_tasks_blocked()
            await model.complete(HELLO)
            assert trio.current_time() == 2, "one second from when the first had failed"


async def test_agents_that_stream_wait_as_agents_that_run(autojump_clock: MockClock) -> None:
    agent = Agent("a", model=UnknownInPieces())

    async def read(prompt: str) -> str:
        async with agent.stream(prompt, buffer=1) as stream:
            async for _ in stream:
                pass
        return stream.reply.output

    async with harness.open_run("paid", budget=harness.Budget(tokens=2_500)):
        results = await harness.fan_out(read, ["hello " * 20] * 20)
        assert results.values() == ["a b c d e"] * 20


async def test_a_trio_in_another_thread_wakes_nobody_here() -> None:
    """It took tasks of this one for its own, and broke both."""
    may_end = trio.Event()
    asked: list[object] = []

    async def answer(request: ModelRequest) -> ModelResponse:
        asked.append(trio.lowlevel.current_trio_token())
        if len(asked) == 1:
            await may_end.wait()
        await trio.lowlevel.checkpoint()
        return ModelResponse("x", usage=Usage(60, 40))

    model = FunctionModel(answer)

    async def elsewhere() -> None:
        async with harness.open_run("elsewhere", budget=harness.Budget(tokens=500)):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(model.complete, HELLO)

    async with harness.open_run("paid", budget=harness.Budget(tokens=500)):
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(model.complete, HELLO)
                    await wait_all_tasks_blocked()
                assert len(asked) == 1
                await trio.to_thread.run_sync(
                    lambda: contextvars.Context().run(lambda: trio.run(elsewhere))
                )
                await wait_all_tasks_blocked()
                assert len(asked) == 4
                # Paid by the run here, of which all is held; and there is nobody to wait for there.
                with pytest.raises(BudgetExceeded):
                    await trio.to_thread.run_sync(lambda: trio.run(model.complete, HELLO))
                may_end.set()
    assert len(asked) == 6


async def test_cancelled_while_it_waits_for_the_first_it_holds_nothing(
    autojump_clock: MockClock,
) -> None:
    limiter = Limiter("provider", concurrent=2)
    model = Unknown(limiter=limiter)
    async with harness.open_run("paid", budget=harness.Budget(tokens=500)):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(model.complete, HELLO)
            await wait_all_tasks_blocked()
            with trio.move_on_after(0.5) as scope:
                await model.complete(HELLO)
            assert scope.cancelled_caught
            assert limiter.statistics().in_flight == 1
            assert model.asked == 1
        assert tokens_of(budget_statistics()) == (100, 0)


async def test_what_a_script_says_is_known_before_it_is_asked(autojump_clock: MockClock) -> None:
    model = answering(Usage(90, 10), delay=1)
    async with harness.open_run("paid", budget=harness.Budget(tokens=1_000)):

        async def read(request: ModelRequest) -> None:
            async with model.stream(request) as stream:
                async for _ in stream:
                    pass

        results = await harness.fan_out(read, [HELLO] * 50, policy=harness.BestEffort())
        assert len(results.values()) == 10
        assert trio.current_time() == 1
        assert tokens_of(budget_statistics()) == (1_000, 0)


async def test_who_waits_for_the_limiter_holds_nothing_of_the_budget(
    autojump_clock: MockClock,
) -> None:
    """Otherwise a line would use up a budget that its calls never touch."""
    limiter = Limiter("provider", concurrent=1)
    model = answering(Usage(34, 10), limiter=limiter, delay=1)
    model.max_output_tokens = 100
    async with harness.open_run("paid", budget=harness.Budget(tokens=44 * 19 + 134)):
        results = await harness.fan_out(model.complete, [HELLO] * 20)
        assert results.complete


@pytest.mark.parametrize(
    ("error", "spent"),
    [
        (ModelStatusError("refused", status_code=400), 0),
        (ModelUnreachableError("not there"), 0),
        (ModelConnectionError("cut"), 34),
        (ModelReplyError("malformed"), 34),
        (KeyError("a mistake"), 34),
    ],
)
async def test_a_failure_costs_what_it_may_have_used(error: Exception, spent: int) -> None:
    async with harness.open_run("paid", budget=harness.Budget(tokens=1_000)):
        with pytest.raises(type(error)):
            await ScriptedModel([error]).complete(HELLO)
        assert tokens_of(budget_statistics()) == (spent, 0)


async def test_who_is_cut_off_is_not_billed_for_a_guess(autojump_clock: MockClock) -> None:
    """Otherwise the losers of a race would use up a budget with what they never said."""
    model = Unknown()
    async with harness.open_run("paid", budget=harness.Budget(tokens=100_000)):
        with trio.move_on_after(0.5):
            await harness.fan_out(model.complete, [HELLO] * 50)
        assert tokens_of(budget_statistics()) == (50 * 34, 0)
        await model.complete(HELLO)
        with trio.move_on_after(0.5):
            await model.complete(HELLO)
        assert tokens_of(budget_statistics()) == (50 * 34 + 100 + 100, 0)


async def test_a_stream_left_early_costs_what_came(autojump_clock: MockClock) -> None:
    model = answering(Usage(100, 10), piece_delay=1)
    async with harness.open_run("paid", budget=harness.Budget(tokens=1_000)):
        async with model.stream(HELLO) as stream:
            await anext(stream)
        assert tokens_of(budget_statistics()) == (34 + 1, 0)
        with trio.move_on_after(1.5):
            async with model.stream(HELLO) as stream:
                async for _ in stream:
                    pass
        assert tokens_of(budget_statistics()) == (35 + 34 + 2, 0)


async def test_an_error_inside_an_open_stream_is_not_taken_for_its_own() -> None:
    """A call that fails while a stream of the same model is open is another call."""
    model = answering(Usage(100, 10))
    async with harness.open_run("paid", budget=harness.Budget(tokens=1_000)):
        with pytest.raises(ModelStatusError):
            async with model.stream(HELLO) as stream:
                async for _ in stream:
                    pass
                await ScriptedModel([ModelStatusError("no", status_code=500)]).complete(HELLO)
        assert tokens_of(budget_statistics()) == (110, 0)


async def test_dollars_can_be_kept_only_with_a_price() -> None:
    async with (
        open_model("chat", answer=lambda request: "yes") as (model, provider),
        harness.open_run("paid", budget=harness.Budget(cost_usd=1.0)),
    ):
        with pytest.raises(MissingPriceError, match=r"model 'm' of openai has no price.*'paid'"):
            await model.complete(HELLO)
        assert provider.statistics().requests == 0
        await ScriptedModel(["it costs nothing"]).complete(HELLO)
        priced = OpenAIModel("m", base_url=provider.base_url, api_key="any", price=PRICE)
        async with priced:
            await priced.complete(HELLO)
        assert (budget_left().cost_usd or 0) < 1.0


async def test_those_who_only_count_hear_of_every_call() -> None:
    """Tokens of calls below a run, by whatever model, with or without a limiter."""
    async with harness.open_run("outer", budget=harness.Budget(tokens=10_000)):
        async with harness.open_run("inner"):
            await answering(Usage(100, 10)).complete(HELLO)
            await answering(Usage(100, 10), limiter=Limiter("p", concurrent=1)).complete(HELLO)
            with pytest.raises(ModelError):
                await ScriptedModel([]).complete(HELLO)
        assert tokens_of(budget_statistics()) == (220, 0)
