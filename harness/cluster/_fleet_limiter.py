"""A limiter whose limits several processes keep together. This is what users call."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import trio

from harness._arguments import says_near_options
from harness._async_with import AsyncWithOnly
from harness.limits import Limiter, ProviderProfile, Rate, Reservation
from harness.limits._across_processes._shared_grants import SharedGrants


@says_near_options
class FleetLimiter(Limiter, AsyncWithOnly):
    """A provider's limits, shared by processes of one machine through a file.

    It is a `Limiter`, and keeps the same promises for all processes together: no window over its
    limit, no place taken twice, a pause for one is a pause for all. Use it in an ``async with``
    block, wherever a limiter is taken::

        async with FleetLimiter("openai.limits", "openai", requests_per_minute=500) as limiter:
            await harness.fan_out(ask, questions, each=harness.Attempt(limiter=limiter))

    Each process states the same limits. The places that a process holds are free again as soon as
    it has ended, however it ended; what it was charged stays charged, since the provider has
    probably counted it.

    Within a process, the line has priorities as in `Limiter`. Between processes, whoever looks
    first when something is free gets it.

    Args:
      where: The file, which is made when it is missing. In a folder, the limiter has a file of its
        own, named after it. It must be on a disk of this machine: no network's file system keeps
        locks and memory as this needs.
      name: The provider, or the account at it, as for `Limiter`.
      requests_per_minute: As for `Limiter`, as are all that follow.
      tokens_per_minute: How many tokens, input and output.
      input_tokens_per_minute: How many tokens of input.
      output_tokens_per_minute: How many tokens of output.
      requests: A limit on requests over another period.
      tokens: A limit on tokens over another period.
      input_tokens: A limit on tokens of input over another period.
      output_tokens: A limit on tokens of output over another period.
      concurrent: How many reservations may be held at once.
      headroom: The share of each limit to use.
      burst_seconds: How much may go at once after an idle time, in seconds' worth of the limit.
      provider: The profile to use, or its name, if ``name`` doesn't say it.

    Raises:
      TypeError, ValueError: as `Limiter`, and if ``where`` isn't a path.
      RuntimeError: on Windows.

    Entering raises:
      OSError: if the file can't be made or opened.
      ValueError: if it is another kind of file, or others use it with other limits or clocks.
      LimiterRunError: if it is entered already.
      TimeoutError: if a process that was stopped keeps its lock.

    Checkpoint: entering and leaving always are one.

    Cancellation: entering leaves nothing open. Leaving always gives back what the process holds.
    """

    _written = "FleetLimiter(...) as limiter"
    _keeps_with = SharedGrants

    def __init__(
        self,
        where: str | os.PathLike[str],
        name: str,
        *,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        input_tokens_per_minute: float | None = None,
        output_tokens_per_minute: float | None = None,
        requests: Rate | None = None,
        tokens: Rate | None = None,
        input_tokens: Rate | None = None,
        output_tokens: Rate | None = None,
        concurrent: int | None = None,
        headroom: float = 1.0,
        burst_seconds: float = 1.0,
        provider: str | ProviderProfile | None = None,
    ) -> None:
        if sys.platform == "win32":
            raise RuntimeError(
                "a FleetLimiter shares memory and locks as POSIX systems have them, and Windows "
                "has not; use it in WSL"
            )
        if not isinstance(where, str | os.PathLike):
            raise TypeError(f"where is {where!r}, but must be the path of a file")
        if "://" in os.fspath(where):
            raise ValueError(f"where is {where!r}, but must be the path of a file on this machine")
        if concurrent is not None and not isinstance(concurrent, int):
            raise TypeError(
                f"concurrent is {concurrent!r}, but must be a number of places, since each process "
                "would adapt it in its own way"
            )
        super().__init__(
            name,
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
            input_tokens_per_minute=input_tokens_per_minute,
            output_tokens_per_minute=output_tokens_per_minute,
            requests=requests,
            tokens=tokens,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            concurrent=concurrent,
            headroom=headroom,
            burst_seconds=burst_seconds,
            provider=provider,
        )
        assert isinstance(self._grants, SharedGrants)
        self._shared = self._grants
        path = Path(where)
        if path.is_dir():
            path /= re.sub(r"[^\w.-]", "_", name) + ".limits"
        self._path = path

    def reserve(
        self,
        *,
        tokens: float | None = None,
        input_tokens: float | None = None,
        output_tokens: float | None = None,
        model: str | None = None,
        priority: float = 0,
    ) -> Reservation:
        """Return a reservation to enter with ``async with``, as `Limiter.reserve` does.

        Args:
          tokens: As in `Limiter.reserve`, as are the others.
          input_tokens: The input among them.
          output_tokens: The output among them.
          model: The model called.
          priority: The larger goes first, among the tasks of this process.

        Raises:
          LimiterRunError: outside the ``async with`` block of this limiter.
          TypeError, ValueError: as `Limiter.reserve`.
        """
        self._shared.refuse_closed()
        return super().reserve(
            tokens=tokens,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            model=model,
            priority=priority,
        )

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Self:
        await self._shared.open(self._path)
        return self

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._shared.close()
