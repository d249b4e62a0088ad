"""Take items through several stages at once, each with its own limit."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any, cast

from harness._arguments import check_count
from harness.fanout import FanOutStream, Results
from harness.fanout._fan_out import gather
from harness.fanout._options import FAIL_FAST, ONE_ATTEMPT, check_options
from harness.fanout._source import open_source
from harness.flow._engine import PipelineEngine
from harness.flow._flow import Flow
from harness.flow._shared import SharedByCalls
from harness.flow._stage import Stage, StageFunction, stage
from harness.flow._statistics import PipelineStatistics
from harness.policies import FailFast, JoinPolicy
from harness.runs import open_run

BUFFER = 16
"""Items between two stages unless told otherwise: enough to smooth out uneven times."""

NAME = "pipeline"


class Pipeline:
    """Several stages that every item goes through, one after another.

    ::

        pipeline = Pipeline(stage(fetch, limit=8), stage(parse), stage(write, limit=2))
        results = await pipeline.run(urls)

    Each item is one task and one run from the first stage to the last: `RunLocal` values, context
    variables and cancellation go along. An item keeps its slot of a stage until there is room
    before the next, so a slow stage holds up those behind it, and in the end the reading of the
    items; nothing piles up.

    A pipeline holds no state of what it runs: it can be used any number of times at once. The
    limits hold within one `run` or `open`; and among all calls ``await pipeline(item)`` of one
    ``trio.run`` together.

    Args:
      stages: Stages as made by `stage`, or async functions with nothing to say about.
      buffer: How many items may wait between two stages; 0 hands them over.

    Raises:
      TypeError: if a stage is neither.
      ValueError: if there is no stage, or ``buffer`` is negative.
    """

    def __init__(self, *stages: Stage | StageFunction, buffer: int = BUFFER) -> None:
        if not stages:
            raise ValueError(
                "Pipeline() takes at least one stage, and got none; write "
                "Pipeline(stage(fetch, limit=8), stage(parse))"
            )
        check_count(
            "Pipeline(buffer=...)", buffer, advice="0 hands items over without a buffer", least=0
        )
        self._stages = tuple(one if isinstance(one, Stage) else stage(one) for one in stages)
        self._buffer = buffer
        self._latest: Flow | None = None

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Its stages, in order."""
        return self._stages

    async def run(
        self,
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        policy: JoinPolicy = FAIL_FAST,
        key: Callable[[Any], Any] | None = None,
        name: str | None = None,
        within: float | None = None,
    ) -> Results[Any]:
        """Take every item through all stages, and return all results.

        Args:
          items: Any iterable or async iterable; pulled only as the first stage has room.
          policy: When the whole is over, and whether it succeeded, as for `harness.fan_out`.
          key: The item's key, for results, names and dumps; by default its index.
          name: The name of the pipeline's run.
          within: Seconds after which the whole ends with what is there.

        Returns:
          One `Result` per item, in input order. Its value is what the last stage returned, `DROP`
          if a stage returned that, or a tuple where a stage yielded several outputs. Its attempts
          are one, and one more for every further attempt at a stage.

        Raises:
          FanOutError: if the policy is broken, or the items can't be read further; with the
            results. `failed_at` says in which stage an error arose.
          TypeError: if an argument has the wrong type, or a stage returns no awaitable.
          ValueError: if a number is out of range.

        Checkpoint: always.

        Cancellation: everything in flight is cancelled and has ended before the cancel goes on.
        Cancelling the pipeline's own run returns the results instead.
        """
        _check("Pipeline.run", policy=policy, key=key, name=name, within=within)
        return await gather(
            functools.partial(
                PipelineEngine,
                self._new_flow(policy),
                open_source("Pipeline.run()", items),
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
        key: Callable[[Any], Any] | None = None,
        name: str | None = None,
        within: float | None = None,
        ordered: bool = False,
        window: int | None = None,
        keep: bool = False,
    ) -> PipelineStream:
        """Like `run`, with the results to be read one by one as they come.

        ::

            async with pipeline.open(urls) as stream:
                async for result in stream:
                    ...

        Args:
          items, policy, key, name, within: As for `run`.
          ordered: Whether to yield in input order; by default as the items end.
          window: How many items may be in flight or waiting to be read; by default twice as many
            as there is room for in the stages and buffers.
          keep: Whether the stream's `results` has all results in the end, or what was not read.

        Raises:
          TypeError: if an argument has the wrong type.
          ValueError: if a number is out of range.
          FanOutError: from the iteration if the policy is broken, or the items can't be read
            further; at the end of the block if nobody was reading.

        Cancellation: leaving the block cancels what is in flight and waits for it.
        """
        _check("Pipeline.open", policy=policy, key=key, name=name, within=within)
        flow = self._new_flow(policy)
        if window is not None:
            check_count(
                "Pipeline.open(window=...)",
                window,
                advice="None is for twice the room in the stages and buffers",
            )
        return PipelineStream(
            flow,
            items,
            policy=policy,
            within=within,
            key=key,
            name=NAME if name is None else name,
            ordered=ordered,
            window=2 * flow.capacity if window is None else window,
            keep=keep,
        )

    async def __call__(self, item: Any) -> Any:
        """Take one item through all stages, in a run of its own, and return its value.

        So a pipeline can be the function of a fan-out, a stage or a track. A stage that gathers
        gets a list of one.

        Raises:
          Exception: of the stage that failed, with a note of its name.

        Checkpoint: as the stages do.

        Cancellation: as in any of the stages; nothing is left running.
        """
        flow = _flows_of_calls.get(self)
        async with open_run(NAME):
            return await flow.call(item)

    def statistics(self) -> PipelineStatistics:
        """Return what happened at each stage, in the latest `run` or `open`, over or not.

        Of a pipeline that is called, with all calls of this ``trio.run``. Where several are under
        way at once, ask their streams.
        """
        flow = self._latest
        if flow is None:
            flow = Flow(self._stages, buffer=self._buffer, fail_fast=True)
        return flow.statistics()

    def _new_flow(self, policy: JoinPolicy) -> Flow:
        flow = Flow(self._stages, buffer=self._buffer, fail_fast=isinstance(policy, FailFast))
        self._latest = flow
        return flow


def _flow_of_calls(pipeline: Pipeline) -> Flow:
    flow = pipeline._new_flow(FAIL_FAST)
    flow.belong_to_calls()
    return flow


_flows_of_calls: SharedByCalls[Pipeline, Flow] = SharedByCalls(
    "harness.flow: called pipelines", _flow_of_calls
)


class PipelineStream(FanOutStream[Any]):
    """A pipeline under way; what `Pipeline.open` returns. An async iterator of `Result`."""

    def __init__(self, flow: Flow, items: Any, **options: Any) -> None:
        super().__init__(
            flow.walk,
            items,
            limit=0,
            each=ONE_ATTEMPT,
            engine=functools.partial(_engine, flow),
            call="Pipeline.open()",
            **options,
        )

    def statistics(self) -> PipelineStatistics:
        """Return what happened at each stage so far."""
        return cast("PipelineStatistics", self._engine.statistics())


def _engine(flow: Flow, walk: Any, source: Any, *, limit: int, **options: Any) -> PipelineEngine:
    """Make the engine of a stream; the flow knows its limit."""
    return PipelineEngine(flow, source, **options)


def _check(call: str, *, policy: Any, key: Any, name: Any, within: Any) -> None:
    check_options(call, policy=policy, limit=1, within=within, each=ONE_ATTEMPT, key=key, name=name)
