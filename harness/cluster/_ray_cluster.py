"""Spread a batch over the processes of a Ray cluster. This is what users call."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import trio
from trio.lowlevel import enable_ki_protection

from harness._arguments import check_count, says_near_options, says_where_options_are
from harness._async_with import AsyncWithOnly
from harness.cluster import _over_ray
from harness.cluster._spread import Spread, Transport, pickled_for_workers
from harness.errors import ClusterError
from harness.fanout import FanOutJournal, Results
from harness.fanout._fan_out import gather
from harness.fanout._limit import ChangingLimit
from harness.fanout._plan import ELSEWHERE, FAIL_FAST, LIMIT, Plan, check_function
from harness.fanout._tries import ONE_ATTEMPT
from harness.policies import Attempt, JoinPolicy, Priority

ItemT = TypeVar("ItemT")
T = TypeVar("T")


@says_near_options
class RayCluster(AsyncWithOnly):
    """Worker processes, on this machine or many, that a fan-out's items run in::

        async with RayCluster(workers=4) as cluster:
            results = await cluster.fan_out(classify, tickets, limit=200)

    Each worker is a Ray actor that runs trio, and any number of items at once. Everything else
    stays here: the policy, retries, deadlines, limits, the journal and the results. An item's run
    in a worker is the same as its run here: its id, path, attempt and idempotency key, and what it
    emits and spends is told here. A worker that dies is replaced, and its unfinished items are
    tried again in others; that counts as an attempt.

    Ray listens on the network and runs what it is sent: see the page on several machines. Needs the
    extra ``ray``.

    Args:
      address: Of a running cluster, such as ``"ray://head:10001"`` or ``"auto"``; None starts one
        on this machine for the block, which is bound to loopback as far as Ray can.
      workers: How many worker processes to use.
      deps: A function without arguments that each worker calls once; what it returns is the
        ``deps`` of each run there. It may be async, or made by
        `contextlib.asynccontextmanager`: then its block lasts as long as the worker, and is left
        when the cluster is, in a second at most.
      cpus_per_worker: How many of the cluster's CPUs Ray reserves for each worker.
      runtime_env: What Ray prepares in a worker's process, such as ``{"working_dir": "."}``.

    Raises:
      TypeError, ValueError: if an argument has the wrong type, or is out of range.

    Entering raises:
      ImportError: if Ray isn't installed.
      ClusterError: if no worker can be started, or ``deps`` can't be sent there or raises.

    Checkpoint: entering and leaving always are one.

    Entering waits for the workers. Leaving ends them all.

    Cancellation: entering leaves nothing running, once Ray has answered. Leaving always goes to the
    end.
    """

    _written = "RayCluster(...) as cluster"

    def __init__(
        self,
        address: str | None = None,
        *,
        workers: int = 4,
        deps: Callable[[], Any] | None = None,
        cpus_per_worker: float = 1.0,
        runtime_env: Mapping[str, Any] | None = None,
    ) -> None:
        check_count("RayCluster(workers=...)", workers, advice="one worker is one process")
        if address is not None and not isinstance(address, str):
            raise TypeError(f"RayCluster(address) takes a string, not {address!r}")
        if deps is not None and not callable(deps):
            raise TypeError(
                f"RayCluster(deps=...) takes a function that each worker calls, not {deps!r}; for "
                "a value write deps=lambda: value"
            )
        self._address = address
        self._workers = workers
        self._deps = deps
        self._cpus_per_worker = cpus_per_worker
        self._runtime_env = runtime_env
        self._spread: Spread | None = None
        self._opened: AbstractAsyncContextManager[None] | None = None

    def _transport(self) -> AbstractAsyncContextManager[Transport]:
        """Return what carries messages to workers, to be opened."""
        if self._address is None:
            _over_ray.keep_others_out()
        opened: AbstractAsyncContextManager[Transport] = _over_ray.open_transport(
            self._address,
            workers=self._workers,
            cpus_per_worker=self._cpus_per_worker,
            runtime_env=self._runtime_env,
        )
        return opened

    async def __aenter__(self) -> Self:
        if self._opened is not None:
            raise ClusterError("this cluster is open already; make another one")
        self._opened = self._open()
        try:
            await self._opened.__aenter__()
        except BaseException:
            self._opened = None
            raise
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        opened, self._opened = self._opened, None
        assert opened is not None
        await opened.__aexit__(error_type, error, traceback)

    @asynccontextmanager
    @enable_ki_protection
    async def _open(self) -> AsyncGenerator[None]:
        error: BaseException | None = None
        async with self._transport() as transport:
            factory = None
            if self._deps is not None:
                factory = pickled_for_workers(transport, self._deps, "deps=")
            spread = Spread(transport, self._workers, factory)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(spread.run, name="workers of a cluster")
                try:
                    await spread.until_ready()
                    self._spread = spread
                    yield
                except trio.Cancelled:
                    raise
                except BaseException as raised:  # A nursery would wrap it.
                    error = raised
                finally:
                    self._spread = None
                    await spread.end()
                    nursery.cancel_scope.cancel()
        if error is not None:
            raise error

    def remote(self, fn: Callable[[ItemT], Awaitable[T]]) -> Callable[[ItemT], Awaitable[T]]:
        """Return an async function that calls ``fn`` in a worker.

        `fan_out` does this for you. It is for what else takes a function: `harness.open_fan_out`, a
        stage or a track. Call it in a run.

        Raises:
          ClusterError: if ``fn`` can't be sent to workers, or outside the ``async with`` block.
        """
        spread = self._spread
        if spread is None:
            raise ClusterError(
                "this cluster is not open; use it inside `async with RayCluster(...) as cluster`"
            )
        number = spread.register(fn)

        async def call(item: ItemT) -> T:
            value: T = await spread.call(number, item)
            return value

        return call

    @says_where_options_are(ELSEWHERE)
    async def fan_out(
        self,
        fn: Callable[[ItemT], Awaitable[T]],
        items: Iterable[ItemT] | AsyncIterable[ItemT],
        *,
        policy: JoinPolicy = FAIL_FAST,
        limit: int | ChangingLimit = LIMIT,
        within: float | None = None,
        each: Attempt | Callable[[ItemT], Attempt] = ONE_ATTEMPT,
        key: Callable[[ItemT], Any] | None = None,
        priority: Priority | Callable[[ItemT], float] | None = None,
        journal: FanOutJournal | None = None,
        name: str | None = None,
    ) -> Results[T]:
        """Do as `harness.fan_out`, with ``fn`` running in the workers.

        Args:
          fn: An async function that can be pickled: of a module that the workers have, or one that
            uses only what can be sent. Its module is imported there.
          items: As in `harness.fan_out`, as is all that follows. Items are pickled one by one.
          policy: When it is over, and whether it succeeded.
          limit: Items in flight at most, in all workers together.
          within: Seconds after which it ends with what it has.
          each: What happens to one item. Timeouts, retries, limiters and fallbacks are kept here.
          key: The item's key.
          priority: Which item is started first.
          journal: Records how each item ended; it is written here.
          name: The fan-out's name.

        Returns:
          One `Result` per item, in input order.

        Raises:
          ClusterError: if ``fn`` can't be sent to workers, before anything starts; if no worker can
            be started any more; or outside the ``async with`` block.
          FanOutError: as in `harness.fan_out`, as are all others.

        Checkpoint: always.

        Cancellation: what is in flight is cancelled in its workers, and has ended before the cancel
        goes on, or has been given up after a second.
        """
        check_function("fan_out()", fn)
        call, spread = self.remote(fn), self._spread
        assert spread is not None
        plan = Plan(
            call="fan_out",
            function=fn,
            policy=policy,
            limit=limit,
            within=within,
            each=each,
            key=key,
            priority=priority,
            journal=journal,
            name=name,
        )

        with trio.CancelScope() as scope:
            spread.fan_outs.add(scope)
            try:
                spread.check()
                return await gather(plan, items, call=call)
            finally:
                spread.fan_outs.discard(scope)
        spread.check()
        raise AssertionError("only a failure cancels a fan-out's scope")
