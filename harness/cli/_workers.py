"""Run the records of a batch in other processes: those of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from typing import Any

import attrs

from harness.cli._errors import InputError
from harness.cli._options import BatchOptions
from harness.cli._target import Target, load_target
from harness.cluster import RayCluster
from harness.errors import ClusterError

WORKERS = 4
"""How many there are on a cluster by default."""


@attrs.frozen
class NamedTarget:
    """A batch's target, which each worker loads for itself: a file's functions have no module."""

    text: str
    folder: str
    """Where the command was given; only if a worker has such a folder, too."""

    async def __call__(self, value: Any) -> Any:
        """Call it."""
        return await _loaded(self)(value)


@cache
def _loaded(target: NamedTarget) -> Target:
    if os.path.isdir(target.folder):
        os.chdir(target.folder)
    return load_target(target.text)


@asynccontextmanager
async def open_workers(options: BatchOptions) -> AsyncGenerator[Target]:
    """Give a function that calls the target in a worker, for the block.

    Raises:
      InputError: if there are no workers to be had.
    """
    async with AsyncExitStack() as stack:
        try:
            cluster = await stack.enter_async_context(
                RayCluster(options.cluster, workers=options.workers or WORKERS)
            )
        except (ClusterError, ImportError) as error:
            raise InputError(f"the workers can't be started: {error}") from error
        yield cluster.remote(NamedTarget(options.target, os.getcwd()))
