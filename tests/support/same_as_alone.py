"""Check that an agent function gives each input the answer that the input gets alone.

State that runs share by accident shows only when they overlap: one after another they are all
right. So each input is run alone first, then all of them at once, and the endings are compared.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import harness

T = TypeVar("T")

MOST_SHOWN = 3


async def assert_same_as_alone(
    fn: Callable[[T], Awaitable[object]],
    inputs: Sequence[T],
    *,
    each: harness.Attempt | None = None,
) -> None:
    """Run ``fn`` on each of ``inputs`` alone and on all of them at once, and compare.

    Args:
      fn: The agent function. Its values must be comparable; an error counts as an answer too.
      inputs: Enough of them to overlap, and of more than one answer.
      each: How each input is attempted, both times.

    Raises:
      AssertionError: if any input gave something else than alone; names the first of them.

    Checkpoint: always.

    Cancellation: passes through; nothing is left running.
    """
    each = each or harness.Attempt()
    best_effort = harness.BestEffort()
    alone: list[object] = []
    for item in inputs:
        (result,) = await harness.fan_out(fn, [item], each=each, policy=best_effort)
        alone.append(_ending(result))
    together = await harness.fan_out(
        fn, inputs, each=each, policy=best_effort, limit=max(1, len(inputs))
    )
    assert len(together) == len(inputs)
    differences = [
        f"{result.item!r}\n  alone:    {expected}\n  together: {_ending(result)}"
        for result, expected in zip(together, alone, strict=True)
        if _ending(result) != expected
    ]
    assert not differences, (
        f"{len(differences)} of {len(inputs)} inputs gave something else together than alone:\n"
        + "\n".join(differences[:MOST_SHOWN])
    )


def _ending(result: harness.Result[Any]) -> object:
    """Return what an item came to, in a form that two runs of it have in common."""
    if result.status == "ok":
        return result.value
    return result.status, type(result.error), str(result.error)
