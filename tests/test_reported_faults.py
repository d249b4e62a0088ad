"""Faults that people reported in other software, each tried the way it was reported.

Most kinds of fault are covered by the tests of the part that could have them; these cut across.
"""

from __future__ import annotations

import gc
import logging
import random
import time
from contextvars import ContextVar
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import harness
from harness.errors import RunTimedOut
from harness.fanin import Fold, resolve
from harness.limits import Limiter, ProviderPool, Rate, parse_rate_limit_headers
from harness.policies import Priority
from harness.testing.provider import Faults, open_provider
from tests.support.checkpoints import cancel_at_every_checkpoint
from tests.support.context import unchanged_context

variable: ContextVar[str] = ContextVar("variable")


@pytest.mark.parametrize(
    ("cancel_at", "deadline", "done_at", "status"),
    [
        (1, 2, 3, "cancelled"),
        (1, 3, 2, "cancelled"),
        (2, 1, 3, "timed_out"),
        (3, 1, 2, "timed_out"),
        (2, 3, 1, "ok"),
        (3, 2, 1, "ok"),
    ],
)
async def test_whatever_comes_first_is_the_ending(
    autojump_clock: MockClock, cancel_at: float, deadline: float, done_at: float, status: str
) -> None:
    async with trio.open_nursery() as nursery:
        try:
            async with harness.open_run("job", timeout=deadline) as run:

                async def cancel() -> None:
                    await trio.sleep(cancel_at)
                    run.cancel()

                harness.start_soon(nursery, cancel, run=None)
                await trio.sleep(done_at)
        except RunTimedOut:
            pass
    assert run.status == status
    assert run.ended_at == min(cancel_at, deadline, done_at)


async def test_a_token_from_before_the_cancel_is_reset_in_the_cleanup(
    autojump_clock: MockClock,
) -> None:
    """Closing in a task of its own broke the tokens of context variables."""
    task = trio.lowlevel.current_task()
    with unchanged_context():
        async with harness.open_run("job") as run:
            token = variable.set("inside")
            run.cancel()
            try:
                await trio.sleep_forever()
            finally:
                with harness.cleanup(max_seconds=2):
                    await trio.sleep(1)
                    run.cancel("again, during the close")
                    await trio.sleep(0.5)
                    assert trio.lowlevel.current_task() is task
                    variable.reset(token)


async def test_a_task_that_catches_its_cancel_in_a_loop_is_named(
    mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It never sleeps, so it looks busy; and it returns, so its run is ok."""
    over = False

    async def stubborn() -> None:
        nonlocal over
        async with harness.open_run("stubborn") as run:
            run.cancel()
            for _ in range(40):
                try:
                    await trio.lowlevel.checkpoint()
                except trio.Cancelled:
                    mock_clock.jump(0.5)
            over = "over the time" in str(harness.dump())

    with caplog.at_level(logging.WARNING):
        await stubborn()
    assert over
    (record,) = [record for record in caplog.records if record.name.startswith("harness")]
    assert "stubborn" in record.getMessage()


@pytest.mark.slow
async def test_breaking_out_of_a_stream_leaves_nothing_behind(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Warnings are errors; so is an unraisable one that the collector finds."""

    async def body(item: int) -> int:
        await trio.sleep(item)
        return item

    with unchanged_context():
        async with harness.open_fan_out(body, range(5)) as stream:
            async for _ in stream:
                break
        del stream
        gc.collect()
        await trio.lowlevel.checkpoint()
        async with harness.open_run("next") as run:
            assert harness.current_run() is run
            assert run.parent is None
    assert caplog.records == []


@pytest.mark.parametrize("kind", ["list", "async generator"])
async def test_priorities_leave_nothing_at_any_checkpoint(
    autojump_clock: MockClock, kind: str
) -> None:
    bodies = sources = 0

    async def body(item: int) -> None:
        nonlocal bodies
        bodies += 1
        try:
            await trio.sleep(1)
        finally:
            bodies -= 1

    async def numbers() -> Any:
        nonlocal sources
        sources += 1
        try:
            for number in range(6):
                await trio.lowlevel.checkpoint()
                yield number
        finally:
            sources -= 1

    async def run() -> None:
        items: Any = numbers() if kind == "async generator" else range(6)
        priority = Priority(lambda item: -item, lookahead=3)
        await harness.fan_out(body, items, limit=2, priority=priority)

    def check() -> None:
        assert bodies == sources == 0
        assert harness.current_run_or_none() is None

    assert await cancel_at_every_checkpoint(run, check) >= 3


async def test_resolve_leaves_nothing_at_any_checkpoint(autojump_clock: MockClock) -> None:
    async def itself(item: int) -> int:
        return item

    results = await harness.fan_out(itself, range(4))
    judging = 0

    async def judge(key: object, answers: object) -> int:
        nonlocal judging
        judging += 1
        try:
            await trio.sleep(1)
            return 1
        finally:
            judging -= 1

    async def run() -> None:
        await resolve(results, key=lambda value: value % 2, judge=judge)

    def check() -> None:
        assert judging == 0

    assert await cancel_at_every_checkpoint(run, check) >= 3


@pytest.mark.parametrize("function", ["plain", "async"])
async def test_a_fold_cancelled_at_any_checkpoint_loses_no_result(
    autojump_clock: MockClock, function: str
) -> None:
    made: list[tuple[Any, Any]] = []

    async def body(item: int) -> int:
        await trio.sleep(item)
        return item

    def plain(folded: list[int], result: Any) -> list[int]:
        return [*folded, result.index]

    async def slow(folded: list[int], result: Any) -> list[int]:
        await trio.sleep(0.1)
        return [*folded, result.index]

    async def run() -> None:
        made.clear()
        async with harness.open_fan_out(body, range(4), ordered=True) as stream:
            chosen: Any = plain if function == "plain" else slow
            fold = Fold(stream, chosen, list[int]())
            made.append((fold, stream))
            await fold.run()

    def check() -> None:
        for fold, stream in made:
            unread = [result.index for result in stream.results]
            in_hand = [] if fold.in_hand is None else [fold.in_hand.index]
            assert sorted([*fold.partial, *in_hand, *unread]) == [0, 1, 2, 3]

    assert await cancel_at_every_checkpoint(run, check) >= 4


@pytest.mark.parametrize("what", ["limiter", "pool"])
async def test_reservations_leave_nothing_at_any_checkpoint(
    autojump_clock: MockClock, what: str
) -> None:
    limiters = [Limiter(name, requests=Rate(2, 10), concurrent=1) for name in ("a", "b")]
    source: Any = ProviderPool(limiters) if what == "pool" else limiters[0]

    async def call() -> None:
        async with source.reserve() as reservation:
            await trio.sleep(1)
            reservation.settle()

    async def run() -> None:
        for limiter in limiters:
            limiter.reset()
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(call)

    def check() -> None:
        for limiter in limiters:
            statistics = limiter.statistics()
            assert (statistics.in_flight, statistics.waiting) == (0, 0)
            assert statistics.dimensions["requests"].unsettled == 0

    assert await cancel_at_every_checkpoint(run, check) >= 4


@pytest.mark.speed
async def test_a_run_costs_the_same_beside_ten_and_ten_thousand_others() -> None:
    """Each run looked through all live ones of the same name."""

    async def cost(live: int) -> float:
        async def idle() -> None:
            async with harness.open_run("same"):
                await trio.sleep_forever()

        best = float("inf")
        async with trio.open_nursery() as nursery, harness.open_run("parent"):
            async with trio.open_nursery() as idlers:
                for _ in range(live):
                    idlers.start_soon(idle)
                await wait_all_tasks_blocked()
                for _ in range(7):
                    started = time.process_time()
                    for _ in range(500):
                        async with harness.open_run("same"):
                            pass
                    best = min(best, time.process_time() - started)
                idlers.cancel_scope.cancel()
            nursery.cancel_scope.cancel()
        return best

    assert await cost(10_000) < 2 * await cost(10)


async def test_a_model_that_never_answers_is_named_while_the_batch_waits(
    autojump_clock: MockClock,
) -> None:
    async def ask_the_model(item: int) -> None:
        if item == 7:
            await trio.sleep_forever()
        await trio.sleep(1)

    async def batch() -> None:
        results = await harness.fan_out(
            ask_the_model,
            range(20),
            key=lambda item: f"ticket-{item}",
            each=harness.Attempt(timeout=60),
            policy=harness.BestEffort(),
        )
        assert [result.index for result in results.failed] == [7]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(batch)
        await trio.sleep(30)
        dump = str(harness.dump())
    assert "ticket-7" in dump
    assert "ticket-6" not in dump
    assert "ask_the_model" in dump
    assert trio.current_time() == 60


@pytest.mark.slow
@pytest.mark.parametrize("judged", ["bucket", "minute", "second"])
@pytest.mark.parametrize("cap", [None, 100])
async def test_a_known_token_limit_that_binds_is_never_broken(
    autojump_clock: MockClock, judged: Any, cap: int | None
) -> None:
    """Requests are plenty, so tokens are what limits; some requests say their maximum."""
    draws = random.Random(3)
    async with open_provider(
        answer=lambda request: "word " * 60,
        requests_per_minute=3_000,
        tokens_per_minute=30_000,
        judged=judged,
        http=False,
        faults=Faults(seed=2, latency_seconds=(1, 10)),
    ) as provider:
        limiter = Limiter(
            "azure" if judged == "second" else "openai",
            requests_per_minute=3_000,
            tokens_per_minute=30_000,
        )

        async def call() -> None:
            question = "word " * draws.randint(10, 200)
            body: dict[str, Any] = {
                "model": "m",
                "messages": [{"role": "user", "content": question}],
            }
            if cap is not None:
                body["max_tokens"] = cap
            asked: dict[str, Any] = {"tokens": len(question) // 4 + 120}
            if cap is not None:
                asked = {"input_tokens": len(question) // 4 + 20, "output_tokens": cap}
            async with limiter.reserve(**asked) as reservation:
                reply = await provider.request("/v1/chat/completions", body)
                assert reply.status == 200
                reservation.settle(
                    tokens=reply.body["usage"]["total_tokens"], headers=reply.headers, status=200
                )

        async with trio.open_nursery() as nursery:
            for _ in range(600):
                nursery.start_soon(call)
        assert provider.statistics().violations == 0


@pytest.mark.parametrize("name", ["reset", "retry-after"])
@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1s", 1),
        ("6m0s", 360),
        ("12ms", 0.012),
        ("1h2m3.5s", 3723.5),
        ("17", 17),
        ("1700000090", 90),
        ("1700000090000", 90),
        ("2023-11-14T22:14:50Z", 90),
    ],
)
def test_a_duration_reads_the_same_wherever_it_stands(
    name: str, value: str, seconds: float
) -> None:
    headers = (
        {"X-RateLimit-Remaining-Tokens": "0", "X-RateLimit-Reset-Tokens": value}
        if name == "reset"
        else {"Retry-After": value}
    )
    heard = parse_rate_limit_headers(headers, status=429, now=1_700_000_000)
    assert heard.wait_seconds == pytest.approx(seconds)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["input", "output"])
async def test_saturated_input_and_output_tokens_never_exceed(
    autojump_clock: MockClock, kind: str
) -> None:
    draws = random.Random(kind)
    limiter = (
        Limiter("anthropic", input_tokens_per_minute=60_000)
        if kind == "input"
        else Limiter("anthropic", output_tokens_per_minute=60_000)
    )
    stamps: list[tuple[float, int]] = []

    async def call() -> None:
        reserved = draws.randint(30, 120)
        async with limiter.reserve(input_tokens=reserved, output_tokens=reserved) as reservation:
            used = draws.randint(reserved // 2, reserved)
            stamps.append((trio.current_time(), used))
            reservation.settle(input_tokens=used, output_tokens=used)

    with trio.move_on_after(180):
        async with trio.open_nursery() as nursery:
            for _ in range(3_900):
                nursery.start_soon(call)
    for moment, _ in stamps:
        assert sum(used for at, used in stamps if at <= moment and moment - at < 60) <= 60_000
    assert sum(used for at, used in stamps if 60 <= at < 120) >= 0.995 * 60_000


@pytest.mark.parametrize("kind", ["list", "async generator"])
async def test_priority_functions_and_read_ahead_items_see_the_context_of_the_call(
    autojump_clock: MockClock, kind: str
) -> None:
    seen: list[tuple[str, str]] = []

    def saw(who: str) -> None:
        seen.append((who, variable.get()))

    async def numbers() -> Any:
        for number in range(8):
            saw("source")
            yield number

    def urgency(item: int) -> float:
        saw("priority")
        return item

    async def body(item: int) -> None:
        saw("item")
        variable.set(f"item {item}")
        await trio.sleep(item % 3)

    token = variable.set("call")
    try:
        items: Any = numbers() if kind == "async generator" else range(8)
        await harness.fan_out(body, items, limit=2, priority=Priority(urgency, lookahead=4))
    finally:
        variable.reset(token)
    assert {context for _, context in seen} == {"call"}
    assert {who for who, _ in seen} >= {"priority", "item"}


async def test_judges_and_fold_functions_see_the_context_of_the_call(
    autojump_clock: MockClock,
) -> None:
    seen: list[tuple[str, str]] = []

    async def itself(item: int) -> int:
        return item

    async def judge(key: object, answers: object) -> int:
        seen.append((variable.get(), harness.current_run().path.split("/")[0]))
        variable.set(f"judge of {key}")
        return 1

    def add(total: int, result: harness.Result[int]) -> int:
        seen.append((variable.get(), harness.current_run().path))
        return total + result.value

    results = await harness.fan_out(itself, range(4))
    token = variable.set("call")
    try:
        async with harness.open_run("caller"):
            await resolve(results, key=lambda value: value % 2, judge=judge)
            async with harness.open_fan_out(itself, range(4), ordered=True) as stream:
                assert await Fold(stream, add, 0).run() == 6
    finally:
        variable.reset(token)
    assert set(seen) == {("call", "caller")}
