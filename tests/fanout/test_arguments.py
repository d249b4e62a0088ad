"""Wrong arguments are refused before anything runs: what was given, what is allowed, what to do."""

import asyncio
import inspect
import math
import warnings
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

import harness
from harness.limits import Limiter
from tests.fanout.probes import FakeLimiter, Flight, Source, echo, leaves, nothing_left_behind


async def refuse(
    error: type[Exception], *words: str, open_only: bool = False, **arguments: Any
) -> None:
    """Assert that both forms of fan-out refuse the arguments, and neither pulls nor starts."""
    flight, source = Flight(), Source(3)
    given: dict[str, Any] = {"fn": flight, "items": source, **arguments}
    fn, items = given.pop("fn"), given.pop("items")

    async def whole() -> None:
        await harness.fan_out(fn, items, **given)

    async def stream() -> None:
        async with harness.open_fan_out(fn, items, **given):
            pytest.fail("the block was entered")

    for form in [stream] if open_only else [whole, stream]:
        with nothing_left_behind(), pytest.raises(error) as caught:
            await form()
        assert type(caught.value) is error
        for word in words:
            assert word in str(caught.value)
    assert (source.pulled, flight.started) == (0, [])


@pytest.mark.parametrize(
    ("limit", "error"),
    [
        (0, ValueError),
        (-1, ValueError),
        (None, TypeError),
        (True, TypeError),
        (2.0, TypeError),
        (math.inf, TypeError),
        ("3", TypeError),
    ],
)
async def test_a_limit_that_is_no_positive_int_is_refused(
    autojump_clock: MockClock, limit: Any, error: type[Exception]
) -> None:
    await refuse(error, "limit", repr(limit), limit=limit)


@pytest.mark.parametrize(
    ("window", "error"),
    [(0, ValueError), (-3, ValueError), (True, TypeError), (1.5, TypeError), ("4", TypeError)],
)
async def test_a_window_that_is_no_positive_int_is_refused(
    autojump_clock: MockClock, window: Any, error: type[Exception]
) -> None:
    await refuse(error, "window", repr(window), open_only=True, window=window)


@pytest.mark.parametrize(
    ("within", "error"), [(-1, ValueError), (math.nan, ValueError), ("60", TypeError)]
)
async def test_a_within_that_is_no_time_is_refused(
    autojump_clock: MockClock, within: Any, error: type[Exception]
) -> None:
    await refuse(error, "within", repr(within), within=within)


@pytest.mark.parametrize(
    "policy",
    [harness.FailFast, harness.BestEffort, harness.FirstSuccess, harness.Quorum],
    ids=lambda policy: policy.__name__,
)
async def test_a_policy_class_in_place_of_an_instance_is_refused(
    autojump_clock: MockClock, policy: Any
) -> None:
    """``policy=BestEffort`` without the parentheses must not act as if it were some default."""
    await refuse(TypeError, f"{policy.__name__}(", policy=policy)


@pytest.mark.parametrize("policy", ["fail-fast", None, 3, harness.Retry(3)])
async def test_what_is_no_policy_is_refused(autojump_clock: MockClock, policy: Any) -> None:
    await refuse(TypeError, "policy", "FailFast", policy=policy)


@pytest.mark.parametrize("each", [harness.Attempt, harness.Retry(3), 30, "30"])
async def test_an_each_that_is_neither_attempt_nor_function_is_refused(
    autojump_clock: MockClock, each: Any
) -> None:
    """The class is callable, so without a check it would pass for a function of the item."""
    await refuse(TypeError, "each", "Attempt", each=each)


async def test_a_key_that_is_no_function_is_refused(autojump_clock: MockClock) -> None:
    await refuse(TypeError, "key", "'id'", key="id")


async def test_a_name_that_is_no_text_is_refused(autojump_clock: MockClock) -> None:
    await refuse(TypeError, "name", name=7)


@pytest.mark.parametrize("fn", [None, 3, "classify", [echo]])
async def test_a_function_that_cannot_be_called_is_refused(
    autojump_clock: MockClock, fn: Any
) -> None:
    await refuse(TypeError, "async", fn=fn)


@pytest.mark.parametrize("items", [None, 3, object()])
async def test_items_that_cannot_be_iterated_are_refused(
    autojump_clock: MockClock, items: Any
) -> None:
    await refuse(TypeError, "items", "iterable", items=items)


async def test_an_async_generator_function_that_was_not_called_is_refused_as_items(
    autojump_clock: MockClock,
) -> None:
    async def numbers() -> AsyncGenerator[int]:
        yield 1

    await refuse(TypeError, "items", "numbers", items=numbers)


class _Handler:
    async def __call__(self, item: int) -> int:
        return item

    async def handle(self, item: int) -> int:
        return item


async def test_a_class_and_a_method_of_one_are_told_to_be_instances(
    autojump_clock: MockClock,
) -> None:
    await refuse(TypeError, "it is a class", "an instance with an async __call__", fn=_Handler)
    await refuse(TypeError, "taken from the class", "_Handler(...).handle", fn=_Handler.handle)
    await refuse(TypeError, "write `lambda item: ...`", fn=lambda: None)


async def test_a_class_that_takes_an_item_is_told_to_be_an_instance(
    autojump_clock: MockClock,
) -> None:
    class Question:
        def __init__(self, item: int) -> None:
            pass

    with pytest.raises(TypeError, match="it is a class: give an instance"):
        await harness.fan_out(Question, [1])  # type: ignore[arg-type]


async def test_with_instead_of_async_with_says_what_to_write(autojump_clock: MockClock) -> None:
    blocks: list[tuple[Any, str]] = [
        (harness.open_run("name"), "async with harness.open_run(...) as run:"),
        (harness.open_fan_out(echo, [1]), "async with harness.open_fan_out(...) as stream:"),
        (
            Limiter("model", concurrent=1).reserve(),
            "async with limiter.reserve(...) as reservation:",
        ),
    ]
    for block, written in blocks:
        with pytest.raises(TypeError) as caught, block:
            pytest.fail("the block was entered")
        assert written in str(caught.value)


async def test_an_async_generator_function_is_refused_as_the_body(
    autojump_clock: MockClock,
) -> None:
    async def numbers(item: int) -> AsyncGenerator[int]:
        yield item

    await refuse(TypeError, "numbers", fn=numbers)


async def test_a_coroutine_in_place_of_the_function_is_refused_by_name(
    autojump_clock: MockClock,
) -> None:
    """It can be awaited only once, so it can't serve as the body; and it must not warn later."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await refuse_coroutine("echo", "coroutine")


async def refuse_coroutine(*words: str) -> None:
    """Assert that ``fan_out(echo(1), ...)`` is refused, with these words."""
    for form in (harness.fan_out, enter):
        coroutine: Any = echo(1)
        with pytest.raises(TypeError) as caught:
            await form(coroutine, [1])
        for word in words:
            assert word in str(caught.value)
        assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


async def enter(fn: Callable[..., Any], items: Any) -> None:
    """Open a stream and leave it."""
    async with harness.open_fan_out(fn, items):
        pytest.fail("the block was entered")


async def test_a_coroutine_in_place_of_the_function_says_which_line_to_change(
    autojump_clock: MockClock,
) -> None:
    frame = inspect.currentframe()
    assert frame is not None
    coroutine: Any = echo(1)
    with pytest.raises(TypeError) as caught:
        await harness.fan_out(coroutine, [1])
    line = frame.f_lineno - 1
    # The traceback names the line; the message must, too, or say how it should read.
    assert f"{Path(__file__).name}:{line}" in str(caught.value) or (
        "fan_out(echo, " in str(caught.value)
    )


async def test_a_plain_function_as_the_body_is_a_type_error_that_names_it(
    autojump_clock: MockClock,
) -> None:
    """A plain callable may return an awaitable, so what it is can be seen at the first call."""

    def plain(item: int) -> int:
        return item

    fn: Any = plain
    with nothing_left_behind(), pytest.raises((TypeError, harness.errors.FanOutError)) as caught:
        await harness.fan_out(fn, [1, 2, 3])
    found = leaves(caught.value)
    assert {type(error) for error in found} == {TypeError}
    assert "plain" in str(found[0])
    assert "async" in str(found[0])


async def test_any_callable_that_returns_an_awaitable_is_a_body(autojump_clock: MockClock) -> None:
    class Classifier:
        async def method(self, item: int) -> int:
            return int(await echo(item)) + 1

        async def __call__(self, item: int) -> int:
            return int(await echo(item)) + 2

    async def added(amount: int, item: int) -> int:
        return int(await echo(item)) + amount

    async def values(fn: Callable[[int], Any]) -> list[int]:
        return list((await harness.fan_out(fn, [10])).values())

    assert await values(Classifier().method) == [11]
    assert await values(Classifier()) == [12]
    assert await values(partial(added, 3)) == [13]
    assert await values(lambda item: added(4, item)) == [14]


@pytest.mark.parametrize("form", ["fan_out", "open_fan_out", "race"])
def test_outside_trio_the_error_says_so(form: str) -> None:
    async def main() -> None:
        if form == "fan_out":
            await harness.fan_out(echo, [1])
        elif form == "race":
            await harness.race(partial(echo, 1))
        else:
            async with harness.open_fan_out(echo, [1]):
                pytest.fail("the block was entered")

    with pytest.raises(RuntimeError, match=r"trio\.run"):
        asyncio.run(main())
    coroutine = main()
    with pytest.raises(RuntimeError, match=r"trio\.run"):
        coroutine.send(None)


async def test_a_race_without_functions_or_with_a_coroutine_is_refused(
    autojump_clock: MockClock,
) -> None:
    with pytest.raises((TypeError, ValueError)):
        await harness.race()
    coroutine: Any = echo(1)
    with pytest.raises(TypeError, match="echo"):
        await harness.race(coroutine)
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


@pytest.mark.parametrize("option", ["key", "each"])
async def test_an_async_function_in_place_of_a_plain_one_is_refused(
    autojump_clock: MockClock, option: str
) -> None:
    """Every key was a coroutine that nobody awaited; every item failed for its ``each``."""

    async def ask(item: int) -> Any:
        return item

    arguments: dict[str, Any] = {option: ask}
    await refuse(TypeError, option, "plain", "ask", **arguments)


async def test_a_body_that_returns_none_is_told_what_was_expected(
    autojump_clock: MockClock,
) -> None:
    """The commonest slip, a ``def`` for an ``async def``; None was taken for "not called yet"."""

    def forgot(item: int) -> None:
        pass

    fn: Any = forgot
    limited = harness.Attempt(limiter=FakeLimiter())
    hedged = harness.Attempt(hedge=harness.Hedge(after=1))
    for each in (harness.Attempt(), limited, hedged):
        with (
            nothing_left_behind(),
            pytest.raises((TypeError, harness.errors.FanOutError)) as caught,
        ):
            await harness.fan_out(fn, [1], each=each)
        [error] = leaves(caught.value)
        assert type(error) is TypeError
        assert "forgot() returned None where an awaitable was expected" in str(error)


async def test_an_error_of_the_items_own_iter_is_not_about_the_argument(
    autojump_clock: MockClock,
) -> None:
    class Broken:
        def __iter__(self) -> Any:
            raise TypeError("a slip in iter")

    with pytest.raises(TypeError, match="a slip in iter"):
        await harness.fan_out(echo, Broken())


@pytest.mark.parametrize("fn", [echo, lambda item: echo(item)])
async def test_a_racer_that_takes_an_argument_is_refused(
    autojump_clock: MockClock, fn: Any
) -> None:
    """As a failure of that racer it went unseen when another one won."""
    flight = Flight()
    with nothing_left_behind(), pytest.raises(TypeError, match="no argument"):
        await harness.race(partial(flight, 1), fn)
    assert flight.started == []


async def test_a_function_of_several_arguments_is_told_how_to_get_them() -> None:
    async def power(base: int, exponent: int) -> float:
        return float(base**exponent)

    fn: Any = power
    with pytest.raises(TypeError, match=r"that are tuples: lambda item: power\(\*item\)"):
        await harness.fan_out(fn, [(2, 3)])
    results = await harness.fan_out(lambda item: power(*item), [(2, 3)])
    assert results.values() == [8]
