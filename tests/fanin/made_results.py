"""Make results without a fan-out, and put them into every order in which they could arrive."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

from harness.errors import RunTimedOut
from harness.fanout import Result

PERMUTATIONS_AT_MOST = 720


def ok(index: int, value: Any, key: Any = None) -> Result[Any]:
    """Return the result of an item with a value."""
    name = index if key is None else key
    return Result(index, name, f"item {index}", f"run {index}", "ok", value, 1, 0.0, 1.0)


def failed(index: int, error: Exception, key: Any = None) -> Result[Any]:
    """Return the result of an item without one."""
    name = index if key is None else key
    status: Any = "timed_out" if isinstance(error, RunTimedOut) else "failed"
    return Result(index, name, f"item {index}", f"run {index}", status, error, 1, 0.0, 1.0)


def values(*given: Any) -> list[Result[Any]]:
    """Return results with these values."""
    return [ok(index, value) for index, value in enumerate(given)]


def arrivals(results: list[Result[Any]]) -> Iterator[list[Result[Any]]]:
    """Yield the results in every order; in many of them if there are too many to try."""
    if len(results) <= 6:
        for order in itertools.permutations(results):
            yield list(order)
        return
    rng = random.Random(1)
    for _ in range(PERMUTATIONS_AT_MOST):
        yield rng.sample(results, len(results))
