"""Take items through several stages at once, each with its own limit."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from importlib import import_module
from typing import Any, Generic, TypeVar, overload

from trio.lowlevel import enable_ki_protection

from harness._arguments import check_count, says_where_options_are
from harness.fanout import Drop, FanOutJournal, FanOutStream, Results
from harness.fanout._fan_out import gather
from harness.fanout._plan import FAIL_FAST, OF_ATTEMPTS, OF_LIMITS, OF_POLICIES, Plan
from harness.flow._flow import Flow
from harness.flow._shared import SharedByCalls
from harness.flow._stage import (
    AnyStage,
    In,
    One,
    OneFunction,
    Out,
    Several,
    SeveralFunction,
    Stage,
    stage,
)
from harness.flow._statistics import PipelineStatistics
from harness.flow._walks import WalkingJob, Walks
from harness.policies import FailFast, JoinPolicy
from harness.runs import open_run
from harness.runs._endings import cancelled_error

First = TypeVar("First")
Last = TypeVar("Last")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
T5 = TypeVar("T5")
T6 = TypeVar("T6")
T7 = TypeVar("T7")

Step = Stage[In, Out, One] | OneFunction[In, Out]
"""What gives one value for an item."""

AnyStep = (
    Stage[In, Out, One] | Stage[In, Out, Several] | OneFunction[In, Out] | SeveralFunction[In, Out]
)
"""What gives one value for an item, or several."""

BUFFER = 16
"""The default buffer between two stages: enough to smooth out uneven times."""

NAME = "pipeline"

_OF_STAGES = {**OF_ATTEMPTS, **OF_LIMITS, "each": "each=...", "limit": "limit=..."}
_ELSEWHERE = {**{name: f"stage(fn, {do})" for name, do in _OF_STAGES.items()}, **OF_POLICIES}


class Pipeline(Generic[In, Out]):
    """Several stages that every item goes through, one after another.

    ::

        pipeline = Pipeline(stage(fetch, limit=8), stage(parse), stage(write, limit=2))
        results = await pipeline.run(urls)

    Each item is one task and one run from the first stage to the last: `RunLocal` values, context
    variables and cancellation go with it. An item keeps its slot of a stage until there is room
    before the next, so a slow stage holds up those behind it, and finally the reading of items;
    nothing piles up.

    A pipeline holds no state of what it runs: it can be used any number of times at once. The
    limits apply within one `run` or `open`; and to all calls ``await pipeline(item)`` in one
    ``trio.run`` together.

    Its types are what it takes and what comes out: ``Pipeline[str, Page]``; a tuple of those if a
    stage yields several. A type checker finds a stage that doesn't fit the one before it, for up to
    eight stages.

    Args:
      stages: Stages made by `stage`, or async functions that need no options.
      buffer: How many items may wait between two stages; 0 hands them over directly.

    Raises:
      TypeError: if a stage is neither.
      ValueError: if there is no stage, or ``buffer`` is negative.
    """

    @overload
    def __init__(self, first: Step[In, Out], /, *, buffer: int = BUFFER) -> None: ...
    @overload
    def __init__(
        self: Pipeline[First, tuple[Last, ...]],
        first: AnyStep[First, Last],
        /,
        *,
        buffer: int = BUFFER,
    ) -> None: ...
    @overload
    def __init__(
        self,
        first: Step[In, T1],
        second: Step[T1, Out],
        /,
        *,
        buffer: int = BUFFER,
    ) -> None: ...
    @overload
    def __init__(
        self: Pipeline[First, tuple[Last, ...]],
        first: AnyStep[First, T1],
        second: AnyStep[T1, Last],
        /,
        *,
        buffer: int = BUFFER,
    ) -> None: ...
    @overload
    def __init__(
        self,
        first: Step[In, T1],
        second: Step[T1, T2],
        third: Step[T2, Out],
        /,
        *,
        buffer: int = BUFFER,
    ) -> None: ...
    @overload
    def __init__(
        self: Pipeline[First, tuple[Last, ...]],
        first: AnyStep[First, T1],
        second: AnyStep[T1, T2],
        third: AnyStep[T2, Last],
        /,
        *,
        buffer: int = BUFFER,
    ) -> None: ...
    @overload
    def __init__(
        self,
        first: Step[In, T1],
        second: Step[T1, T2],
        third: Step[T2, T3],
        fourth: Step[T3, Out],
        /,
        *,
        buffer: int = BUFFER,
    ) -> None: ...
    @overload
    def __init__(
        self: Pipeline[First, tuple[Last, ...]],
        first: AnyStep[First, T1],
        second: AnyStep[T1, T2],
        third: AnyStep[T2, T3],
        fourth: AnyStep[T3, Last],
        /,
        *,
        buffer: int = BUFFER,
    ) -> None: ...
    @overload
    def __init__(
        self,
        first: Step[In, T1],
        second: Step[T1, T2],
        third: Step[T2, T3],
        fourth: Step[T3, T4],
        fifth: Step[T4, Out],
        /,
        *,
        buffer: int = BUFFER,
    ) -> None: ...
    @overload
    def __init__(
        self: Pipeline[First, tuple[Last, ...]],
        first: AnyStep[First, T1],
        second: AnyStep[T1, T2],
        third: AnyStep[T2, T3],
        fourth: AnyStep[T3, T4],
        fifth: AnyStep[T4, Last],
        /,
        *,
        buffer: int = BUFFER,
    ) -> None: ...
    @overload
    def __init__(
        self,
        first: Step[In, T1],
        second: Step[T1, T2],
        third: Step[T2, T3],
        fourth: Step[T3, T4],
        fifth: Step[T4, T5],
        sixth: Step[T5, Out],
        /,
        *,
        buffer: int = BUFFER,
    ) -> None: ...
    @overload
    def __init__(
        self: Pipeline[First, tuple[Last, ...]],
        first: AnyStep[First, T1],
        second: AnyStep[T1, T2],
        third: AnyStep[T2, T3],
        fourth: AnyStep[T3, T4],
        fifth: AnyStep[T4, T5],
        sixth: AnyStep[T5, Last],
        /,
        *,
        buffer: int = BUFFER,
    ) -> None: ...
    @overload
    def __init__(
        self,
        first: Step[In, T1],
        second: Step[T1, T2],
        third: Step[T2, T3],
        fourth: Step[T3, T4],
        fifth: Step[T4, T5],
        sixth: Step[T5, T6],
        seventh: Step[T6, Out],
        /,
        *,
        buffer: int = BUFFER,
    ) -> None: ...
    @overload
    def __init__(
        self: Pipeline[First, tuple[Last, ...]],
        first: AnyStep[First, T1],
        second: AnyStep[T1, T2],
        third: AnyStep[T2, T3],
        fourth: AnyStep[T3, T4],
        fifth: AnyStep[T4, T5],
        sixth: AnyStep[T5, T6],
        seventh: AnyStep[T6, Last],
        /,
        *,
        buffer: int = BUFFER,
    ) -> None: ...
    @overload
    def __init__(
        self,
        first: Step[In, T1],
        second: Step[T1, T2],
        third: Step[T2, T3],
        fourth: Step[T3, T4],
        fifth: Step[T4, T5],
        sixth: Step[T5, T6],
        seventh: Step[T6, T7],
        eighth: Step[T7, Out],
        /,
        *,
        buffer: int = BUFFER,
    ) -> None: ...
    @overload
    def __init__(
        self: Pipeline[First, tuple[Last, ...]],
        first: AnyStep[First, T1],
        second: AnyStep[T1, T2],
        third: AnyStep[T2, T3],
        fourth: AnyStep[T3, T4],
        fifth: AnyStep[T4, T5],
        sixth: AnyStep[T5, T6],
        seventh: AnyStep[T6, T7],
        eighth: AnyStep[T7, Last],
        /,
        *,
        buffer: int = BUFFER,
    ) -> None: ...
    @overload
    def __init__(
        self: Pipeline[Any, Any],
        first: AnyStage,
        second: AnyStage,
        third: AnyStage,
        fourth: AnyStage,
        fifth: AnyStage,
        sixth: AnyStage,
        seventh: AnyStage,
        eighth: AnyStage,
        ninth: AnyStage,
        /,
        *more: AnyStage,
        buffer: int = BUFFER,
    ) -> None: ...
    def __init__(self, *stages: Any, buffer: int = BUFFER) -> None:
        if not stages:
            raise ValueError(
                "Pipeline() takes at least one stage, and got none; write "
                "Pipeline(stage(fetch, limit=8), stage(parse))"
            )
        check_count(
            "Pipeline(buffer=...)", buffer, advice="0 hands items over without a buffer", least=0
        )
        self._stages: tuple[AnyStage, ...] = tuple(
            one if isinstance(one, Stage) else stage(one) for one in stages
        )
        self._buffer = buffer
        self._latest: Flow | None = None

    @property
    def stages(self) -> tuple[AnyStage, ...]:
        """Its stages, in order."""
        return self._stages

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """The functions of its stages, by the stages' names."""
        return {one.name: one.function for one in self._stages}

    @says_where_options_are(_ELSEWHERE)
    async def run(
        self,
        items: Iterable[In] | AsyncIterable[In],
        *,
        policy: JoinPolicy = FAIL_FAST,
        key: Callable[[In], Any] | None = None,
        journal: FanOutJournal | None = None,
        name: str | None = None,
        within: float | None = None,
    ) -> Results[Out]:
        """Take every item through all stages, and return all results.

        Args:
          items: Any iterable or async iterable; pulled only as the first stage has room.
          policy: When the whole is over, and whether it succeeded, as for `harness.fan_out`.
          key: The item's key, for results, names and dumps; by default its index.
          journal: Records every stage of every item once it is done, so that a later call goes on
            behind it. A stage whose function has changed since is done again, and so are those
            after it. Needs ``key``; see `harness.journal.open_journal`.
          name: The name of the pipeline's run, and that of its batch in the journal; by default
            ``pipeline``.
          within: Seconds after which the whole ends with what there is so far; 0: at the first
            checkpoint.

        Returns:
          One `Result` per item, in input order. Its value is what the last stage returned, `DROP`
          if a stage returned that, or a tuple if a stage yielded several outputs. Its attempts are
          one, plus one for every further attempt at a stage.

        Raises:
          FanOutError: if the policy is broken, or the items can't be read further; with the
            results. `failed_at` says in which stage an error arose.
          TypeError: if an argument has the wrong type, or a stage returns no awaitable.
          ValueError: if a number is out of range.
          JournalError: if the journal can't be read or written, or an item has no key to be found
            by.

        Checkpoint: always.

        Cancellation: everything in flight is cancelled and has ended before the cancel goes on.
        Cancelling the pipeline's own run returns the results instead.
        """
        flow = self._new_flow(policy)
        plan = self._plan(
            "Pipeline.run",
            flow,
            policy=policy,
            key=key,
            journal=journal,
            name=name,
            within=within,
        )
        return await gather(plan, items, work=Walks(flow), new_job=WalkingJob)

    @says_where_options_are(_ELSEWHERE)
    def open(
        self,
        items: Iterable[In] | AsyncIterable[In],
        *,
        policy: JoinPolicy = FAIL_FAST,
        key: Callable[[In], Any] | None = None,
        journal: FanOutJournal | None = None,
        name: str | None = None,
        within: float | None = None,
        ordered: bool = False,
        window: int | None = None,
        keep: bool = False,
    ) -> PipelineStream[Out]:
        """Run as `run` does, with results to read one by one as they come.

        ::

            async with pipeline.open(urls) as stream:
                async for result in stream:
                    ...

        Args:
          items, policy, key, journal, name, within: As for `run`.
          ordered: Whether to yield in input order; by default as the items end.
          window: How many items may be in flight or waiting to be read; by default twice as many
            as there is room for in the stages and buffers.
          keep: Whether the stream's ``results`` finally has all results, or only those not read.

        Raises:
          TypeError: if an argument has the wrong type.
          ValueError: if a number is out of range.
          FanOutError: from the iteration if the policy is broken, or the items can't be read
            further; at the end of the block if nobody was reading.
          JournalError: likewise, if the journal can't be opened or written.

        Cancellation: leaving the block cancels what is in flight and waits for it.
        """
        flow = self._new_flow(policy)
        plan = self._plan(
            "Pipeline.open",
            flow,
            policy=policy,
            key=key,
            journal=journal,
            name=name,
            within=within,
            ordered=ordered,
            window=window,
            keep=keep,
            streamed=True,
        )
        return PipelineStream(plan, items, flow)

    @enable_ki_protection
    async def __call__(self, item: In) -> Out | Drop:
        """Take one item through all stages, in a run of its own, and return its value.

        So a pipeline can be the function of a fan-out, a stage or a track. A gathering stage gets a
        list of one.

        Raises:
          Exception: of the stage that failed, with a note of its name.
          RunCancelled: if that run was cancelled.

        Checkpoint: as the stages do.

        Cancellation: as in any of the stages; nothing is left running.
        """
        async with open_run(NAME) as run:
            out: Out | Drop = await _flows_of_calls.get(self).call(item)
            return out
        raise cancelled_error(run)

    def statistics(self) -> PipelineStatistics:
        """Return what happened at each stage in the latest `run` or `open`, finished or not.

        For a pipeline that is called, in all calls of this ``trio.run``. If several are in progress
        at once, ask their streams.
        """
        flow = self._latest
        if flow is None:
            flow = Flow(self._stages, buffer=self._buffer, fail_fast=True)
        return flow.statistics()

    def _plan(
        self,
        call: str,
        flow: Flow,
        *,
        policy: JoinPolicy,
        key: Callable[[In], Any] | None,
        journal: FanOutJournal | None,
        name: str | None,
        within: float | None,
        ordered: bool = False,
        window: int | None = None,
        keep: bool = False,
        streamed: bool = False,
    ) -> Plan:
        steps = None
        if journal is not None:
            recorded = import_module("harness.flow._recorded")
            steps = recorded.steps_of_pipeline(self, self._stages)
        return Plan(
            call=call,
            function=flow.walk,
            named=NAME,
            policy=policy,
            limit=flow.entry,
            key=key,
            journal=journal,
            steps=steps,
            name=name,
            within=within,
            ordered=ordered,
            window=window,
            usual_room=2 * flow.capacity,
            keep=keep,
            streamed=streamed,
        )

    def _new_flow(self, policy: JoinPolicy) -> Flow:
        flow = Flow(self._stages, buffer=self._buffer, fail_fast=isinstance(policy, FailFast))
        self._latest = flow
        return flow


def _flow_of_calls(pipeline: Pipeline[Any, Any]) -> Flow:
    flow = pipeline._new_flow(FAIL_FAST)
    flow.belong_to_calls()
    return flow


_flows_of_calls: SharedByCalls[Pipeline[Any, Any], Flow] = SharedByCalls(
    "harness.flow: called pipelines", _flow_of_calls
)


class PipelineStream(FanOutStream[Out]):
    """A running pipeline, from `Pipeline.open`. An async iterator of `Result`."""

    def __init__(self, plan: Plan, items: Any, flow: Flow) -> None:
        super().__init__(plan, items, work=Walks(flow), new_job=WalkingJob)
        self._flow = flow

    def statistics(self) -> PipelineStatistics:
        """Return what happened at each stage so far."""
        return self._flow.statistics(super().statistics())
