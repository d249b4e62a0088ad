"""Describe one track of a router: a function, its limit, what happens to each call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic

import attrs

from harness._arguments import check_count, says_where_options_are
from harness.fanout._plan import ELSEWHERE, check_each
from harness.fanout._tries import ONE_ATTEMPT
from harness.flow._stage import (
    EachItem,
    In,
    In_contra,
    Out,
    Out_co,
    check_takes_one,
    is_async_generator,
)
from harness.policies import Attempt
from harness.runs._functions import check_callable, name_of

TrackFunction = Callable[[In], Awaitable[Out]]
"""What a track calls: an async function, an agent, a pipeline, another router."""


@attrs.frozen(kw_only=True)
class Track(Generic[In_contra, Out_co]):
    """One track of a router; made by `track`."""

    function: Callable[[In_contra], Awaitable[Out_co]]
    """What it calls."""

    limit: int | None
    """How many items on it at once; None: as many as the router lets in."""

    each: EachItem
    """What happens to each call."""

    escalate: str | None
    """The track that an item goes to if it fails here; None: it has failed."""


@says_where_options_are(ELSEWHERE)
def track(
    fn: TrackFunction[In, Out],
    *,
    limit: int | None = None,
    each: Attempt | Callable[[In], Attempt] = ONE_ATTEMPT,
    escalate: str | None = None,
) -> Track[In, Out]:
    """Describe one track of a `Router`.

    Args:
      fn: Called with an item: an async function, an agent, a pipeline or another router.
      limit: How many items on the track at once; None: as many as the router lets in.
      each: What happens to each call: timeout, retries, hedge, fallback, limiter; or a function
        that returns an `Attempt` for an item.
      escalate: The name of the track that takes an item that failed or timed out here, after
        everything that ``each`` allows. Only once: if it fails there too, it has failed.

    Raises:
      TypeError: if an argument has the wrong type.
      ValueError: if ``limit`` is less than 1, or ``each`` has tokens and no limiter.
    """
    check_callable("track()", fn)
    what = f"track({name_of(fn)})"
    check_takes_one(what, fn)
    if is_async_generator(fn):
        raise TypeError(
            f"{what} takes an async function that returns a value, not an async generator; "
            "make it the stage of a pipeline, and that the track"
        )
    if limit is not None:
        check_count(f"{what}: limit=", limit, advice="None is for no limit but the router's")
    check_each(f"{what}: each=", each)
    if escalate is not None and not isinstance(escalate, str):
        raise TypeError(f"{what}: escalate= takes the name of another track, not {escalate!r}")
    return Track(function=fn, limit=limit, each=each, escalate=escalate)
