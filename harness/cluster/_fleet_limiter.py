"""A limiter whose limits several processes keep together. This is what users call.

Where their state is, in a file or on a server, decides which `Grants` it is made of; both have the
rules of those of one process.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import trio

from harness._arguments import check_seconds, says_near_options
from harness._async_with import AsyncWithOnly
from harness.cluster import _redis
from harness.cluster._addresses import is_server, without_password
from harness.limits import Limiter, ProviderProfile, Rate, Reservation
from harness.limits._across_processes._server_grants import OnUnreachable, ServerGrants
from harness.limits._across_processes._server_link import ServerLink
from harness.limits._across_processes._shared_grants import SharedGrants


@says_near_options
class FleetLimiter(Limiter, AsyncWithOnly):
    """A provider's limits, shared by several processes: through a file, or through Redis.

    It is a `Limiter`, and keeps the same promises for all processes together: no window over its
    limit, no place taken twice, a pause for one is a pause for all. Use it in an ``async with``
    block, wherever a limiter is taken::

        async with FleetLimiter("openai.limits", "openai", requests_per_minute=500) as limiter:
            await harness.fan_out(ask, questions, each=harness.Attempt(limiter=limiter))

    Each process states the same limits. What a process was charged stays charged when it ends,
    however it ended, since the provider has probably counted it. The places that it holds are free
    again at once where a file is shared, and after ``lease`` seconds through Redis.

    Within a process, the line has priorities as in `Limiter`. Between processes, whoever looks
    first when something is free gets it.

    Through Redis, `reserve_nowait` always refuses, since nothing is known without asking the
    server, and a `ProviderPool` or `JointLimiter` can't take it. If the server is gone while it is
    in use, each process keeps an even share of the limits by itself, with a `HarnessWarning`, until
    it is back.

    Args:
      where: The file, which is made when it is missing. In a folder, the limiter has a file of its
        own, named after it. It must be on a disk of this machine: no network's file system keeps
        locks and memory as this needs. Or the address of a Redis server, or of a node of a cluster:
        ``redis://user:password@host:port/database``, ``rediss://`` with TLS. That needs the extra
        ``redis``.
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
      lease: After how many seconds without a word a process counts as dead, through Redis. Living
        ones renew their lease three times as often.
      on_unreachable: What to do if Redis can't be reached on entering: ``"raise"``, or
        ``"local"``: begin with the whole limit, as if alone, and share it once it can be reached.

    Raises:
      TypeError, ValueError: as `Limiter`, and if ``where`` is neither a path nor such an address.
      RuntimeError: for a file on Windows.
      ImportError: for an address without the extra ``redis``.

    Entering raises:
      OSError: if the file can't be made or opened, or Redis can't be reached.
      ValueError: if it is another kind of file, or others use it with other limits or clocks.
      LimiterRunError: if it is entered already.
      TimeoutError: if a process that was stopped keeps its lock.

    Checkpoint: entering and leaving always are one.

    Cancellation: entering leaves nothing open. Leaving always gives back what the process holds.
    """

    _written = "FleetLimiter(...) as limiter"

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
        lease: float = 10.0,
        on_unreachable: OnUnreachable = "raise",
    ) -> None:
        if not isinstance(where, str | os.PathLike):
            raise TypeError(
                f"where is {where!r}, but must be the path of a file, or redis://host:port"
            )
        place = os.fspath(where)
        on_server = is_server(place)
        self._address = without_password(place) if on_server else ""
        if "://" in place and not on_server:
            raise ValueError(
                f"where is {place.partition('://')[0]}://..., but must be the path of a file on "
                "this machine, or redis://host:port"
            )
        if not on_server and sys.platform == "win32":
            raise RuntimeError(
                "a FleetLimiter over a file shares memory and locks as POSIX systems have them, "
                "and Windows has not; use it in WSL, or share a Redis server"
            )
        if concurrent is not None and not isinstance(concurrent, int):
            raise TypeError(
                f"concurrent is {concurrent!r}, but must be a number of places, since each process "
                "would adapt it in its own way"
            )
        self._lease = check_seconds(
            "FleetLimiter(lease=...)", lease, least=0.1, advice="10 is the default"
        )
        if on_unreachable not in ("raise", "local"):
            raise ValueError(
                f'on_unreachable is {on_unreachable!r}, but must be "raise" or "local"'
            )
        self._on_unreachable: OnUnreachable = on_unreachable
        self._keeps_with = ServerGrants if on_server else SharedGrants
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
        self._server = self._grants if isinstance(self._grants, ServerGrants) else None
        if isinstance(self._grants, SharedGrants):
            self._shared = self._grants
        self._place = place
        self._make_link: Callable[[], ServerLink]
        if on_server:
            self._make_link = partial(_redis.RedisLink, place)
        elif os.path.isdir(place):
            self._place = os.path.join(place, re.sub(r"[^\w.-]", "_", name) + ".limits")

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
        (self._server or self._shared).refuse_closed()
        return super().reserve(
            tokens=tokens,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            model=model,
            priority=priority,
        )

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Self:
        if self._server is not None:
            await self._server.open(
                self._make_link,
                self._address,
                lease=self._lease,
                on_unreachable=self._on_unreachable,
            )
        else:
            await self._shared.open(Path(self._place))
        return self

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await (self._server or self._shared).close()
