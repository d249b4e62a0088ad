"""Run far more at once than expected, and report the first result that differs from alone."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import attrs
import trio

from harness._arguments import check_count
from harness._outside_trio import refuse_outside_trio
from harness._words import error_in_words, repr_of
from harness.fanout import Result, open_fan_out
from harness.policies import BestEffort
from harness.testing._outcomes import comparable
from harness.testing.chaos._consistent import assert_consistent

FACTORS = (5, 10)


@attrs.frozen(kw_only=True)
class StressReport:
    """What held."""

    runs: int
    """Runs under load that were compared."""

    at_once: int
    """The most in flight at once."""

    seconds: float
    """How long it took, on trio's clock."""


async def assert_stable_under_load(
    fn: Callable[[Any], Awaitable[Any]],
    items: Iterable[Any],
    *,
    expected: int,
    factors: Sequence[int] = FACTORS,
    rounds: int = 3,
    equal: Callable[[Any, Any], bool] | None = None,
) -> StressReport:
    """Check that each item gives the same under 5 and 10 times the expected load as alone.

    First each item runs alone. Then, for each factor, the items run repeatedly with ``expected`` ×
    factor of them in flight, and each result is compared as it comes.

    Args:
      fn: The function of an item, or an agent.
      items: A few that differ from each other, so that a mix-up shows.
      expected: The most that will be in flight in real use.
      factors: How many times as many to try, one factor after the other.
      rounds: How many times over each load is filled.
      equal: Compares two values; by default ``==``, ignoring the ids of runs, which are new each
        time. Errors are compared by class and text.

    Returns:
      What held.

    Raises:
      AssertionError: at the first result that differs: which item, what it gave alone and under
        load, the load, and after how many runs. What is in flight is cancelled.
      TypeError, ValueError: if an argument is wrong, or an item alone doesn't give the same twice.

    Checkpoint: always.

    Cancellation: everything in flight is cancelled and waited for.
    """
    given = list(items)
    if not given:
        raise ValueError("assert_stable_under_load() was given no items; a few that differ do")
    check_count("assert_stable_under_load(expected=...)", expected, advice="how many at once")
    check_count("assert_stable_under_load(rounds=...)", rounds, advice="how often to fill it")
    for factor in factors:
        check_count("assert_stable_under_load(factors=...)", factor, advice="such as (5, 10)")
    refuse_outside_trio("assert_stable_under_load() was called")
    began = trio.current_time()
    alone = [await _ended(fn, item) for item in given]
    for item, before in zip(given, alone, strict=True):
        again = await _ended(fn, item)
        if not _same(before, again, equal):
            raise ValueError(
                f"item {repr_of(item)} doesn't give the same alone twice: {_words(before)}, then "
                f"{_words(again)}; make it repeat (a seeded model, no clock) or pass equal="
            )
    runs = 0
    for factor in factors:
        at_once = expected * factor
        many = itertools.islice(itertools.cycle(enumerate(given)), at_once * rounds)

        async def one(pair: tuple[int, Any]) -> Any:
            return await fn(pair[1])

        async with open_fan_out(one, many, limit=at_once, policy=BestEffort(), name="load") as flow:
            async for result in flow:
                runs += 1
                place, item = result.item
                if not _same(alone[place], result, equal):
                    raise AssertionError(
                        f"with {at_once} in flight ({factor} times what is expected), run {runs} "
                        f"gave something else than alone\n"
                        f"  item:       {repr_of(item)}\n"
                        f"  alone:      {_words(alone[place])}\n"
                        f"  under load: {_words(result)}\n"
                        "runs share something; harness.testing.assert_isolated names it"
                    )
        assert_consistent()
    return StressReport(
        runs=runs,
        at_once=expected * max(factors, default=0),
        seconds=trio.current_time() - began,
    )


async def _ended(fn: Callable[[Any], Awaitable[Any]], item: Any) -> Result[Any]:
    async with open_fan_out(fn, [item], limit=1, policy=BestEffort(), name="alone") as flow:
        async for result in flow:
            return result
    raise AssertionError("a fan-out of one item gave no result")


def _same(one: Result[Any], other: Result[Any], equal: Callable[[Any, Any], bool] | None) -> bool:
    if one.status != other.status:
        return False
    if one.status != "ok":
        return _words(one) == _words(other)
    if equal is not None:
        return bool(equal(one.value, other.value))
    return bool(comparable(one.value) == comparable(other.value))


def _words(result: Result[Any]) -> str:
    if result.status == "ok":
        return repr_of(result.value)
    return f"{result.status}: {error_in_words(result.error or Exception())}"
