"""Let each item take the track that suits it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from trio.lowlevel import enable_ki_protection

from harness._arguments import says_where_options_are
from harness.errors import UnknownTrackError
from harness.fanout import ChangingLimit, FanOutJournal, FanOutStream, Results
from harness.fanout._fan_out import gather
from harness.fanout._plan import ELSEWHERE, FAIL_FAST, LIMIT, OF_ATTEMPTS, Plan
from harness.flow._routing import Routing
from harness.flow._shared import SharedByCalls
from harness.flow._stage import In, Out, check_takes_one
from harness.flow._statistics import RouterStatistics
from harness.flow._track import Track, TrackFunction, track
from harness.flow._walks import WalkingJob, Walks
from harness.policies import JoinPolicy, Priority
from harness.runs import open_run
from harness.runs._endings import cancelled_error
from harness.runs._functions import check_callable, name_of

if TYPE_CHECKING:
    from harness.fanout._steps import Steps

First = TypeVar("First")

NAME = "router"

_OF_TRACKS = {**OF_ATTEMPTS, "each": "each=..."}
_ELSEWHERE = {**ELSEWHERE, **{name: f"track(fn, {do})" for name, do in _OF_TRACKS.items()}}

Classifier = Callable[[In], str | None] | Callable[[In], Awaitable[str | None]]
"""Chooses the track for an item: a plain or async function."""


class Router(Generic[In, Out]):
    """Several tracks, of which each item takes one.

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

    A router holds no state of what it runs: it can be used any number of times at once. The tracks'
    limits apply within one `run` or `open`; and to all calls ``await router(item)`` in one
    ``trio.run`` together.

    Args:
      classify: Returns the name of the track for an item; a plain or async function.
      tracks: The tracks by name: each made by `track`, or an async function, an agent, a pipeline
        or another router that needs no options.
      default: The track for items for which ``classify`` returns None or an unknown name. Without
        it, those fail with `UnknownTrackError`.

    Raises:
      TypeError: if an argument has the wrong type.
      ValueError: if there is no track.
      UnknownTrackError: if ``default``, or a track's ``escalate``, names none of the tracks.
    """

    @overload
    def __init__(
        self,
        classify: Classifier[In],
        *,
        tracks: Mapping[str, Track[In, Out]],
        default: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        classify: Classifier[In],
        *,
        tracks: Mapping[str, TrackFunction[In, Out]],
        default: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Router[First, Any],
        classify: Classifier[First],
        *,
        tracks: Mapping[str, Any],
        default: str | None = None,
    ) -> None: ...
    def __init__(
        self,
        classify: Classifier[Any],
        *,
        tracks: Mapping[str, Any],
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
        self._tracks: dict[str, Track[In, Out]] = {
            name: _as_track(name, given) for name, given in tracks.items()
        }
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
    def tracks(self) -> Mapping[str, Track[In, Out]]:
        """Its tracks by name."""
        return dict(self._tracks)

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """The functions of its tracks, by the tracks' names, and ``classify``."""
        tracks = {name: one.function for name, one in self._tracks.items()}
        return {"classify": self._classify, **tracks}

    @says_where_options_are(_ELSEWHERE)
    async def run(
        self,
        items: Iterable[In] | AsyncIterable[In],
        *,
        policy: JoinPolicy = FAIL_FAST,
        limit: int | ChangingLimit = LIMIT,
        key: Callable[[In], Any] | None = None,
        priority: Priority | Callable[[In], float] | None = None,
        journal: FanOutJournal | None = None,
        name: str | None = None,
        within: float | None = None,
    ) -> Results[Out]:
        """Let every item take its track, and return all results.

        Args:
          items: Any iterable or async iterable; pulled only as there is room.
          policy: When the whole is over, and whether it succeeded, as for `harness.fan_out`.
          limit: The most items in flight, including those waiting for a slot of their track.
          key: The item's key, for results, names and dumps; by default its index.
          priority: A function that returns a number for an item, or a `Priority`: of the items read
            ahead, the one with the largest number is started first.
          journal: Records the track chosen for every item, the tracks it failed on, and its result,
            so that a later call goes on behind them. What a changed function was part of is done
            again. Needs ``key``; see `harness.journal.open_journal`.
          name: The name of the router's run, and that of its batch in the journal; by default
            ``router``.
          within: Seconds after which the whole ends with what there is so far; 0: at the first
            checkpoint.

        Returns:
          One `Result` per item, in input order. Its attempts are one, plus one for every further
          attempt on a track and for an escalation.

        Raises:
          FanOutError: if the policy is broken, or the items can't be read further; with the
            results. `failed_at` says on which track an error arose.
          TypeError: if an argument has the wrong type, or a track returns no awaitable.
          ValueError: if a number is out of range.
          JournalError: if the journal can't be read or written, or an item has no key to be found
            by.

        Checkpoint: always.

        Cancellation: everything in flight is cancelled and has ended before the cancel goes on.
        Cancelling the router's own run returns the results instead.
        """
        routing = self._new_routing()
        plan = Plan(
            call="Router.run",
            function=routing.walk,
            named=NAME,
            policy=policy,
            limit=limit,
            key=key,
            priority=priority,
            journal=journal,
            steps=self._steps(journal),
            name=name,
            within=within,
        )
        return await gather(plan, items, work=Walks(routing), new_job=WalkingJob)

    @says_where_options_are(_ELSEWHERE)
    def open(
        self,
        items: Iterable[In] | AsyncIterable[In],
        *,
        policy: JoinPolicy = FAIL_FAST,
        limit: int | ChangingLimit = LIMIT,
        key: Callable[[In], Any] | None = None,
        priority: Priority | Callable[[In], float] | None = None,
        journal: FanOutJournal | None = None,
        name: str | None = None,
        within: float | None = None,
        ordered: bool = False,
        window: int | None = None,
        keep: bool = False,
    ) -> RouterStream[Out]:
        """Run as `run` does, with results to read one by one as they come.

        ::

            async with router.open(questions) as stream:
                async for result in stream:
                    ...

        Args:
          items, policy, limit, key, priority, journal, name, within: As for `run`.
          ordered: Whether to yield in input order; by default as the items end.
          window: How many items may be in flight or waiting to be read, including those read ahead
            for ``priority``. By default twice ``limit``, and with ``priority`` at least ``limit``
            and the look-ahead together.
          keep: Whether the stream's ``results`` finally has all results, or only those not read.

        Raises:
          TypeError: if an argument has the wrong type.
          ValueError: if a number is out of range, or ``ordered`` is given with ``priority``.
          FanOutError: from the iteration if the policy is broken, or the items can't be read
            further; at the end of the block if nobody was reading.
          JournalError: likewise, if the journal can't be opened or written.

        Cancellation: leaving the block cancels what is in flight and waits for it.
        """
        routing = self._new_routing()
        plan = Plan(
            call="Router.open",
            function=routing.walk,
            named=NAME,
            policy=policy,
            limit=limit,
            key=key,
            priority=priority,
            journal=journal,
            steps=self._steps(journal),
            name=name,
            within=within,
            ordered=ordered,
            window=window,
            keep=keep,
            streamed=True,
        )
        return RouterStream(plan, items, routing)

    @enable_ki_protection
    async def __call__(self, item: In) -> Out:
        """Let one item take its track, in a run of its own, and return its value.

        So a router can be the function of a fan-out, a stage or a track of another router.

        Raises:
          UnknownTrackError: if the classifier chose a track that doesn't exist.
          Exception: from the classifier or the track, with a note of its name.
          RunCancelled: if that run was cancelled.

        Checkpoint: as the track does.

        Cancellation: as on the track; nothing is left running.
        """
        async with open_run(NAME) as run:
            value: Out = await _routings_of_calls.get(self).call(item)
            return value
        raise cancelled_error(run)

    def statistics(self) -> RouterStatistics:
        """Return what happened on each track in the latest `run` or `open`, finished or not.

        For a router that is called, in all calls of this ``trio.run``. If several are in progress
        at once, ask their streams.
        """
        routing = self._latest
        if routing is None:
            routing = Routing(self._classify, self._tracks, self._default)
        return routing.statistics()

    def _steps(self, journal: FanOutJournal | None) -> Steps | None:
        """Return what a journal records of each item; None without one."""
        if journal is None:
            return None
        recorded = import_module("harness.flow._recorded")
        steps: Steps = recorded.steps_of_router(self, self._classify, self._tracks)
        return steps

    def _new_routing(self) -> Routing:
        routing = Routing(self._classify, self._tracks, self._default)
        self._latest = routing
        return routing

    def _check_name(self, where: str, name: Any) -> None:
        if name not in self._tracks:
            raise UnknownTrackError(
                f"{where} names the track {name!r}, but there is no such track; "
                f"there are {', '.join(map(repr, self._tracks))}"
            )


_routings_of_calls: SharedByCalls[Router[Any, Any], Routing] = SharedByCalls(
    "harness.flow: called routers", Router._new_routing
)


class RouterStream(FanOutStream[Out]):
    """A running router, from `Router.open`. An async iterator of `Result`."""

    def __init__(self, plan: Plan, items: Any, routing: Routing) -> None:
        super().__init__(plan, items, work=Walks(routing), new_job=WalkingJob)
        self._routing = routing

    def statistics(self) -> RouterStatistics:
        """Return what happened on each track so far."""
        return self._routing.statistics(super().statistics())


def _as_track(name: Any, given: Any) -> Track[Any, Any]:
    if not isinstance(name, str) or not name:
        raise TypeError(f"Router(tracks=...) takes names as strings, not {name!r}")
    if isinstance(given, Track):
        return given
    try:
        return track(given)
    except TypeError as error:
        error.add_note(f"in track {name!r}")
        raise
