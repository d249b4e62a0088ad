"""The model that the examples call."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock

from simulated_model import (
    MOST_FAILURES_PER_KEY,
    MOST_KEYS_REMEMBERED,
    Message,
    ModelOverloadedError,
    SimulatedModel,
)


def echo(messages: Sequence[Message]) -> str:
    return f"you said {messages[-1]['content']}"


def user(content: str) -> list[Message]:
    return [{"role": "user", "content": content}]


async def ending(model: SimulatedModel, content: str, key: str) -> tuple[str, float]:
    """Return what a request came to, and how long it took."""
    started_at = trio.current_time()
    try:
        said = (await model.complete(user(content), idempotency_key=key))["content"]
    except ModelOverloadedError:
        said = "overloaded"
    return said, round(trio.current_time() - started_at, 9)


async def test_latency_and_failures_do_not_depend_on_the_company(autojump_clock: MockClock) -> None:
    """If they were drawn in order of arrival, a sample run alone would meet a different model."""
    requests = [f"request {number}" for number in range(200)]
    alone = {}
    for content in requests:
        alone[content] = await ending(SimulatedModel(answer=echo, failure_rate=0.2), content, "key")

    model = SimulatedModel(answer=echo, failure_rate=0.2)
    together: dict[str, tuple[str, float]] = {}

    async def ask(content: str) -> None:
        together[content] = await ending(model, content, content)

    async with trio.open_nursery() as nursery:
        for content in reversed(requests):
            nursery.start_soon(ask, content)

    assert together == alone
    assert 20 < sum(said == "overloaded" for said, _ in alone.values()) < 60
    assert all(0.05 <= seconds <= 0.25 for _, seconds in alone.values())


async def test_the_third_attempt_gets_through(autojump_clock: MockClock) -> None:
    model = SimulatedModel(answer=echo, failure_rate=1)
    for key in ("a", "b"):
        said = [(await ending(model, "hello", key))[0] for _ in range(3)]
        assert said == ["overloaded"] * MOST_FAILURES_PER_KEY + ["you said hello"]


async def test_another_seed_fails_elsewhere(autojump_clock: MockClock) -> None:
    async def failed(seed: int) -> list[int]:
        model = SimulatedModel(answer=echo, failure_rate=0.2, seed=seed)
        return [n for n in range(50) if (await ending(model, f"{n}", f"{n}"))[0] == "overloaded"]

    assert await failed(1) == await failed(1) != await failed(2)


async def test_a_request_on_its_way_does_not_change(autojump_clock: MockClock) -> None:
    messages = user("before")
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def ask() -> None:
            reply = await SimulatedModel(answer=echo, failure_rate=0).complete(
                messages, idempotency_key="key"
            )
            assert reply == {"role": "assistant", "content": "you said before"}

        await trio.testing.wait_all_tasks_blocked()
        messages += user("after")


async def test_a_cancelled_request_leaves_no_trace(autojump_clock: MockClock) -> None:
    model = SimulatedModel(answer=echo, failure_rate=1)
    with trio.move_on_after(0.01) as scope:
        await model.complete(user("hello"), idempotency_key="key")
    assert scope.cancelled_caught
    said = [(await ending(model, "hello", "key"))[0] for _ in range(3)]
    assert said == ["overloaded", "overloaded", "you said hello"]


@pytest.mark.slow
async def test_items_given_up_are_forgotten_at_last(autojump_clock: MockClock) -> None:
    """A model lives as long as the program, so what it remembers has a bound."""
    model = SimulatedModel(answer=echo, failure_rate=1)
    async with trio.open_nursery() as nursery:
        for number in range(MOST_KEYS_REMEMBERED + 5):
            nursery.start_soon(ending, model, "hello", f"{number}")
    assert len(model._failures) == MOST_KEYS_REMEMBERED


def test_a_negative_failure_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="failure_rate"):
        SimulatedModel(answer=echo, failure_rate=-0.1)
