"""Run the records of a batch in other processes: those of a Ray cluster."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from harness.cli._errors import InputError
from harness.cli._later import named
from harness.cli._limits import limiter_of, open_limits
from harness.cli._options import BatchOptions
from harness.cli._target import Target, agent_in, load_target
from harness.cluster import FleetLimiter, RayCluster
from harness.errors import ClusterError
from harness.limits import Limiter, LimiterStatistics

WORKERS = 4
"""How many there are on a cluster by default."""

Counts = tuple[int, int, float, int]
"""What a worker has granted, how many of that waited and for how long, and what was refused."""


class LimiterOfWorkers(FleetLimiter):
    """Limits that the calls of an agent keep to in their workers; here they are only looked at."""

    where: str
    counts: dict[str, Counts]
    """What each worker has said last."""

    def statistics(self) -> LimiterStatistics:
        """Return what there is to say about all workers together."""
        here = super().statistics()
        granted, waits, seconds, refused = map(sum, zip(*self.counts.values(), strict=True))
        return attrs.evolve(
            here, granted=granted, waits=waits, waited_seconds=seconds, rate_limited=refused
        )


def limiter_of_workers(options: BatchOptions, stack: ExitStack) -> LimiterOfWorkers:
    """Return a limiter for an agent that is limited, and runs in workers.

    Args:
      options: What the command line says.
      stack: Removes its file, if it has one of its own.
    """
    if options.fleet is None:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="harness-limits-"))
        options = attrs.evolve(options, fleet=str(Path(folder, "limits")))
    limiter = limiter_of(options, f"{__name__}:{LimiterOfWorkers.__name__}")
    assert isinstance(limiter, LimiterOfWorkers)
    limiter.where = options.fleet or ""
    limiter.counts = {"": (0, 0, 0.0, 0)}
    return limiter


# In a worker -----------------------------------------------------------------------------------

_opened: ContextVar[tuple[Target, Limiter | None]] = ContextVar("harness.cli.opened")
"""The batch's target, which a worker opens for all its calls, and what limits it there."""


@asynccontextmanager
async def opened_in_worker(options: BatchOptions, folder: str) -> AsyncGenerator[None]:
    """Load the target, and open it if it is an agent, for as long as the worker lives.

    Args:
      options: Those of the command; an agent's calls wait for their limits.
      folder: Where the command was given; only if the worker has such a folder, too.
    """
    with suppress(OSError):
        os.chdir(folder)
    target, limiter = load_target(options.target), None
    async with AsyncExitStack() as stack:
        if (agent := agent_in(target)) is not None:
            limiter = limiter_of(options)
            await stack.enter_async_context(open_limits(limiter))
            opened = named("harness.cli._agents:open_agent")(options, agent, limiter)
            target = await stack.enter_async_context(opened)
        _opened.set((target, limiter))
        yield


async def call_target(value: Any) -> tuple[Any, tuple[str, Counts] | None]:
    """Call the target; return its value, and what the limits have done in this worker."""
    target, limiter = _opened.get()
    value = await target(value)
    if limiter is None:
        return value, None
    now = limiter.statistics()
    counts = now.granted, now.waits, now.waited_seconds, now.rate_limited
    return value, (f"{platform.node()} {os.getpid()} {id(limiter)}", counts)


# In the command --------------------------------------------------------------------------------


@asynccontextmanager
async def open_workers(options: BatchOptions, limiter: Limiter | None) -> AsyncGenerator[Target]:
    """Give a function that calls the target in a worker, for the block.

    Each worker loads the target by its name: a file's functions have no module, and an agent can't
    be sent.

    Args:
      options: Those of the command.
      limiter: What limits the batch.

    Raises:
      InputError: if there are no workers to be had, or they can't use the target.
    """
    counts: dict[str, Counts] = {}
    if isinstance(limiter, LimiterOfWorkers):
        options, counts = attrs.evolve(options, fleet=limiter.where), limiter.counts
    opens = partial(opened_in_worker, options, os.getcwd())
    async with AsyncExitStack() as stack:
        try:
            cluster = await stack.enter_async_context(
                RayCluster(options.cluster, workers=options.workers or WORKERS, deps=opens)
            )
        except (ClusterError, ImportError) as error:
            if isinstance(error.__cause__, InputError):
                raise InputError(f"in a worker: {error.__cause__}") from error
            raise InputError(f"the workers can't be started: {error}") from error
        remote = cluster.remote(call_target)

        async def call(value: Any) -> Any:
            value, told = await remote(value)
            if told is not None:
                counts.update([told])
            return value

        yield call
