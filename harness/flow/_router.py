"""Let each item take the track that suits it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from typing import Any, cast

from harness._arguments import check_count
from harness.errors import UnknownTrackError
from harness.fanout import FanOutStream, Results
from harness.fanout._fan_out import gather
from harness.fanout._options import FAIL_FAST, LIMIT, ONE_ATTEMPT, check_options
from harness.fanout._source import open_source
from harness.flow._engine import PriorityRouterEngine, RouterEngine
from harness.flow._routing import Routing
from harness.flow._shared import SharedByCalls
from harness.flow._stage import check_takes_one
from harness.flow._statistics import RouterStatistics
from harness.flow._track import Track, TrackFunction, track
from harness.policies import JoinPolicy, Priority
from harness.policies._checks import as_priority
from harness.runs import open_run
from harness.runs._functions import check_callable, name_of

NAME = "router"

Classifier = Callable[[Any], str | None] | Callable[[Any], Awaitable[str | None]]
"""Chooses the track for an item: a plain or async function."""


class Router:
    """A choice of tracks, one of which every item takes.

    ::

        router = Router(
            how_hard,
            tracks={
                "fast": track(small_model, limit=50, escalate="full"),
                "full": track(large_model, limit=5, each=harness.Attempt(timeout=60)),
            },
            default="full",
        )
        results = await router.run(questions)

    Each item is one task and one run; the classifier and the track are called in it.

    A router holds no state of what it runs: it can be used any number of times at once. The limits
    of the tracks hold within one `run` or `open`; and among all calls ``await router(item)`` of
    one ``trio.run`` together.

    Args:
      classify: Returns the name of the track for an item; a plain or async function.
      tracks: The tracks by name: each made by `track`, or an async function, an agent, a pipeline
        or another router with nothing to say about.
      default: The track for items for which ``classify`` returns None, or a name that there isn't.
        Without it those fail with `UnknownTrackError`.

    Raises:
      TypeError: if an argument has the wrong type.
      ValueError: if there is no track.
      UnknownTrackError: if ``default``, or a track's ``escalate``, names none of the tracks.
    """

    def __init__(
        self,
        classify: Classifier,
        *,
        tracks: Mapping[str, Track | TrackFunction],
        default: str | None = None,
    ) -> None:
        check_callable("Router(classify)", classify)
        if inspect.isasyncgenfunction(classify):
            raise TypeError(
                f"Router(classify) takes a function that returns the name of a track, not the "
                f"async generator {name_of(classify)}"
            )
        check_takes_one("Router(classify)", classify)
        if not isinstance(tracks, Mapping):
            raise TypeError(
                f"Router(tracks=...) takes a mapping of names to tracks, not {tracks!r}; "
                'write tracks={"fast": track(fn, limit=50)}'
            )
        if not tracks:
            raise ValueError(
                'Router() takes at least one track, and got none; write tracks={"fast": track(fn)}'
            )
        self._classify = classify
        self._tracks = {name: _as_track(name, given) for name, given in tracks.items()}
        self._default = default
        if default is not None:
            self._check_name("Router(default=...)", default)
        for name, given in self._tracks.items():
            if given.escalate is not None:
                self._check_name(f"track {name!r}: escalate=", given.escalate)
                if given.escalate == name:
                    raise ValueError(
                        f"track {name!r} escalates to itself; name another track, or give it "
                        "each=harness.Attempt(retry=...) to try again"
                    )
        self._latest: Routing | None = None

    @property
    def tracks(self) -> Mapping[str, Track]:
        """Its tracks by name."""
        return dict(self._tracks)

    async def run(
        self,
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        policy: JoinPolicy = FAIL_FAST,
        limit: int = LIMIT,
        key: Callable[[Any], Any] | None = None,
        priority: Priority | Callable[[Any], float] | None = None,
        name: str | None = None,
        within: float | None = None,
    ) -> Results[Any]:
        """Let every item take its track, and return all results.

        Args:
          items: Any iterable or async iterable; pulled only as there is room.
          policy: When the whole is over, and whether it succeeded, as for `harness.fan_out`.
          limit: Items in flight at most, those that wait for a slot of their track included.
          key: The item's key, for results, names and dumps; by default its index.
          priority: A function that returns a number for an item, or a `Priority`: of the items
            that were read ahead the one with the largest number is started first.
          name: The name of the router's run.
          within: Seconds after which the whole ends with what is there.

        Returns:
          One `Result` per item, in input order. Its attempts are one, and one more for every
          further attempt on a track and for an escalation.

        Raises:
          FanOutError: if the policy is broken, or the items can't be read further; with the
            results. `failed_at` says on which track an error arose.
          TypeError: if an argument has the wrong type, or a track returns no awaitable.
          ValueError: if a number is out of range.

        Checkpoint: always.

        Cancellation: everything in flight is cancelled and has ended before the cancel goes on.
        Cancelling the router's own run returns the results instead.
        """
        _check("Router.run", policy=policy, limit=limit, key=key, name=name, within=within)
        order = None if priority is None else as_priority("Router.run(priority=...)", priority)
        return await gather(
            functools.partial(
                _engine_for,
                self._new_routing(),
                order,
                open_source("Router.run()", items),
                limit=limit,
                within=within,
                each=ONE_ATTEMPT,
                key=key,
            ),
            policy=policy,
            run_name=NAME if name is None else name,
        )

    def open(
        self,
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        policy: JoinPolicy = FAIL_FAST,
        limit: int = LIMIT,
        key: Callable[[Any], Any] | None = None,
        priority: Priority | Callable[[Any], float] | None = None,
        name: str | None = None,
        within: float | None = None,
        ordered: bool = False,
        window: int | None = None,
        keep: bool = False,
    ) -> RouterStream:
        """Like `run`, with the results to be read one by one as they come.

        ::

            async with router.open(questions) as stream:
                async for result in stream:
                    ...

        Args:
          items, policy, limit, key, priority, name, within: As for `run`.
          ordered: Whether to yield in input order; by default as the items end.
          window: How many items may be in flight or waiting to be read, those that are read
            ahead for ``priority`` included. By default twice ``limit``, and with ``priority`` at
            least ``limit`` and the look-ahead together.
          keep: Whether the stream's `results` has all results in the end, or what was not read.

        Raises:
          TypeError: if an argument has the wrong type.
          ValueError: if a number is out of range, or ``ordered`` is given with ``priority``.
          FanOutError: from the iteration if the policy is broken, or the items can't be read
            further; at the end of the block if nobody was reading.

        Cancellation: leaving the block cancels what is in flight and waits for it.
        """
        _check("Router.open", policy=policy, limit=limit, key=key, name=name, within=within)
        if window is not None:
            check_count("Router.open(window=...)", window, advice="None is for twice the limit")
        order = None if priority is None else as_priority("Router.open(priority=...)", priority)
        if ordered and order is not None:
            raise ValueError(
                "Router.open() takes either ordered=True or priority=, not both: results in input "
                "order would wait for items that priorities put off; leave one of them out"
            )
        default_window = 2 * limit if order is None else limit + max(limit, order.lookahead)
        return RouterStream(
            self._new_routing(),
            items,
            policy=policy,
            limit=limit,
            within=within,
            key=key,
            name=NAME if name is None else name,
            ordered=ordered,
            window=default_window if window is None else window,
            priority=order,
            keep=keep,
        )

    async def __call__(self, item: Any) -> Any:
        """Let one item take its track, in a run of its own, and return its value.

        So a router can be the function of a fan-out, a stage or a track of another router.

        Raises:
          UnknownTrackError: if the classifier chose a track that there isn't.
          Exception: of the classifier or the track, with a note of its name.

        Checkpoint: as the track does.

        Cancellation: as on the track; nothing is left running.
        """
        routing = _routings_of_calls.get(self)
        async with open_run(NAME):
            return await routing.call(item)

    def statistics(self) -> RouterStatistics:
        """Return what happened on each track, in the latest `run` or `open`, over or not.

        Of a router that is called, with all calls of this ``trio.run``. Where several are under
        way at once, ask their streams.
        """
        routing = self._latest
        if routing is None:
            routing = Routing(self._classify, self._tracks, self._default)
        return routing.statistics()

    def _new_routing(self) -> Routing:
        routing = Routing(self._classify, self._tracks, self._default)
        self._latest = routing
        return routing

    def _check_name(self, where: str, name: Any) -> None:
        if name not in self._tracks:
            raise UnknownTrackError(
                f"{where} names the track {name!r}, and there is none of that name; "
                f"there are {', '.join(map(repr, self._tracks))}"
            )


_routings_of_calls: SharedByCalls[Router, Routing] = SharedByCalls(
    "harness.flow: called routers", Router._new_routing
)


class RouterStream(FanOutStream[Any]):
    """A router under way; what `Router.open` returns. An async iterator of `Result`."""

    def __init__(
        self, routing: Routing, items: Any, *, priority: Priority | None, **options: Any
    ) -> None:
        super().__init__(
            routing.route,
            items,
            each=ONE_ATTEMPT,
            engine=functools.partial(_engine_of_stream, routing, priority),
            call="Router.open()",
            **options,
        )

    def statistics(self) -> RouterStatistics:
        """Return what happened on each track so far."""
        return cast("RouterStatistics", self._engine.statistics())


def _engine_for(
    routing: Routing, priority: Priority | None, source: Any, **options: Any
) -> RouterEngine:
    """Return the engine, with a look-ahead if items have priorities."""
    if priority is None:
        return RouterEngine(routing, source, **options)
    return PriorityRouterEngine(routing, source, **options, priority=priority)


def _engine_of_stream(
    routing: Routing, priority: Priority | None, route: Any, source: Any, **options: Any
) -> RouterEngine:
    return _engine_for(routing, priority, source, **options)


def _as_track(name: Any, given: Any) -> Track:
    if not isinstance(name, str) or not name:
        raise TypeError(f"Router(tracks=...) takes names as strings, not {name!r}")
    if isinstance(given, Track):
        return given
    try:
        return track(given)
    except TypeError as error:
        error.add_note(f"in track {name!r}")
        raise


def _check(call: str, *, policy: Any, limit: Any, key: Any, name: Any, within: Any) -> None:
    check_options(
        call, policy=policy, limit=limit, within=within, each=ONE_ATTEMPT, key=key, name=name
    )
