"""Give the calls of a batch to workers, and bring back what comes of them: the near end.

Each call goes to the worker that has the fewest, so a slow one gets less. The calls that come up in
one step of trio's loop go off together, and so do their answers. A worker that ends is replaced;
its calls raise `WorkerLostError`, after which the fan-out makes another attempt at their items.

An item whose workers keep ending is a *suspect*. Suspects run one at a time, each as the only call
of its worker, the *quarantine*: so what ends a worker there is known, and what went down with
others never is to blame.

Nothing here knows what carries the messages: see `Transport`. `harness.cluster._over_ray` is one.

Invariant: a call that was sent is in the `_Link.calls` of the one worker that has it, until its
answer has come, it was given up after a cancel, or the worker is gone.
"""

from __future__ import annotations

import logging
import math
import pickle
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from harness._approvals import ParkedRuns, parked_runs
from harness._events import happened, start_task
from harness._words import repr_of
from harness.cluster._messages import CallFacts, Message, unpack_event
from harness.errors import (
    ApprovalPending,
    ClusterError,
    ClusterGoneError,
    RunTimedOut,
    WorkerLostError,
)
from harness.runs import Run, current_run
from harness.runs._accounts import NOTHING, Usage, accounts_of, units
from harness.runs._current import current
from harness.runs._tree import Above

CALLS_PER_MESSAGE = 64
"""Calls that go to a worker at once."""

CANCEL_SECONDS_AT_MOST = 1.0
"""How long a cancelled call waits for its worker to say that it has ended."""

END_SECONDS_AT_MOST = 1.0
"""How long a worker may take to leave the context of its deps."""

LOSSES_IN_COMPANY = 3
"""After how many losses an item gets a worker to itself. Many items go down with a worker, and all
but one of them are innocent; whoever survives alone is."""

LOSSES_ALONE_AT_MOST = 3
"""How many workers an item may lose in which there was nothing else, before that is its failure."""

CHECK_SECONDS = 2.0
"""How often it is checked whether the cluster's head is there, and how long it may take to answer.
"""

MISSES_AT_MOST = 3
"""After how many checks without an answer the cluster counts as gone."""

FALSE_STARTS_AT_MOST = 3
"""How many workers in a row may end before they are ready; then something is wrong with all."""


OTHERS_SECONDS_AT_MOST = 10.0
"""How long to wait for the other workers once one is ready, so that it isn't given everything."""


class WorkerGone(Exception):
    """A worker has ended, or can't be reached any more."""


class Connection(Protocol):
    """One worker, as a transport reaches it."""

    def send(self, messages: list[Message]) -> None:
        """Send messages, in order, without waiting. If the worker is gone, nothing happens."""

    async def receive(self) -> list[Message]:
        """Return the next messages.

        Raises:
          WorkerGone: if there can be none.
        """
        ...

    def kill(self) -> None:
        """End the worker at once."""


class Transport(Protocol):
    """What carries messages to workers and back."""

    def dumps(self, value: Any) -> bytes:
        """Pickle a value, functions included, so that `pickle.loads` reads it in a worker."""
        ...

    async def start(self, number: int) -> Connection:
        """Start a worker; it may not be ready yet."""
        ...

    async def check(self) -> None:
        """Return once the head of the cluster has answered.

        Raises:
          OSError: if it can't be reached.
        """
        ...

    def give_up(self) -> None:
        """Note that the head is gone, so that nobody waits for it."""


_Place = tuple[str | None, int | None]
"""An item: the run above it, and its index there."""


@attrs.define(eq=False)
class _Call:
    number: int
    run: Run
    function: int
    item: bytes
    ended: trio.Event = attrs.field(factory=trio.Event)
    status: str = ""
    packed: bytes = b""
    lost: bool = False
    alone: bool = False
    """Whether its worker had no other call when it ended."""
    link: _Link | None = None
    parked: ParkedRuns | None = None
    """What is kept of the item's agents' runs that wait for approvals, if anything can be."""


@attrs.define(eq=False)
class _Link:
    """One worker, from its start until it is gone."""

    connection: Connection
    words: str = ""
    """Which process it is, once it is ready."""
    calls: dict[int, _Call] = attrs.field(factory=dict[int, _Call])
    known: set[int] = attrs.field(factory=set[int])
    """The numbers of the functions it has."""
    outbox: list[Message] = attrs.field(factory=list[Message])
    has_mail: trio.Event = attrs.field(factory=trio.Event)
    has_end: bool = False
    """Whether its deps have a context to leave."""
    gone: trio.Event = attrs.field(factory=trio.Event)

    def post(self, message: Message) -> None:
        self.outbox.append(message)
        self.has_mail.set()

    async def deliver(self) -> None:
        """Send what is posted in one step of trio's loop together, in small batches."""
        while True:
            await happened(self.has_mail)
            # The calls that start in this step come first.
            await trio.lowlevel.cancel_shielded_checkpoint()
            self.has_mail = trio.Event()
            outbox, self.outbox = self.outbox, []
            for start in range(0, len(outbox), CALLS_PER_MESSAGE):
                self.connection.send(outbox[start : start + CALLS_PER_MESSAGE])


class Spread:
    """The workers of one cluster, and the calls that are on their way."""

    def __init__(self, transport: Transport, workers: int, factory: bytes | None) -> None:
        """Make one.

        Args:
          transport: What carries the messages.
          workers: How many there are.
          factory: What each worker calls once to get its deps, pickled.
        """
        self._transport = transport
        self._workers = workers
        self._factory = factory
        self._links: list[_Link] = []
        """The workers that are ready."""
        self._came = trio.Event()
        """Set when a worker is ready."""
        self._waiting: deque[_Call] = deque()
        """The calls that no worker was ready for."""
        self._functions: list[bytes] = []
        self._calls = 0
        self._suspects: deque[_Call] = deque()
        """The calls that wait to run alone."""
        self._quarantine: _Link | None = None
        """The worker that has a suspect, or gets one once its other calls have ended."""
        self._losses: Counter[_Place] = Counter()
        """How often an item was lost."""
        self._losses_alone: Counter[_Place] = Counter()
        self._false_starts = 0
        self.lost = 0
        """How many workers have ended too early."""
        self._ends = False
        self.failure: str | None = None
        self._cause: BaseException | None = None
        self.fan_outs: set[trio.CancelScope] = set()
        """The scopes around the fan-outs, which a failure cancels."""

    async def run(self) -> None:
        """Keep the workers, until cancelled.

        Checkpoint: always.

        Cancellation: all workers are ended at once.
        """
        async with trio.open_nursery() as nursery:
            start_task(nursery, self._watch)
            for number in range(self._workers):
                start_task(nursery, self._keep_worker, number)

    async def _watch(self) -> None:
        """End everything once the head is gone; Ray itself would wait for it for a minute."""
        misses = 0
        while self.failure is None:
            await trio.sleep(CHECK_SECONDS)
            try:
                with trio.fail_after(CHECK_SECONDS):
                    await self._transport.check()
                misses = 0
            except (OSError, trio.TooSlowError) as error:
                misses += 1
                if misses == MISSES_AT_MOST:
                    self._transport.give_up()
                    self._fail(
                        f"the head of the cluster hasn't answered for {misses * CHECK_SECONDS:g} s "
                        f"({error!r})",
                        error,
                    )

    async def end(self) -> None:
        """Have the workers leave what deps= has opened there, for a second at most.

        Checkpoint: if there is anything to leave.

        Cancellation: it goes on to its end.
        """
        self._ends = True
        links = [link for link in self._links if link.has_end and self.failure is None]
        for link in links:
            link.post(("end",))
        with trio.move_on_after(END_SECONDS_AT_MOST) as scope:
            scope.shield = True
            for link in links:
                await happened(link.gone)

    @property
    def processes(self) -> list[str]:
        """The workers that are ready, each as its process and host."""
        return [link.words for link in self._links]

    async def until_ready(self) -> None:
        """Wait until all workers are ready, or the others take too long.

        Raises:
          ClusterGoneError: if none can be.

        Checkpoint: always.

        Cancellation: nothing is left behind.
        """
        _waiting_for = "the workers of a cluster"
        await self._has(1)
        with trio.move_on_after(OTHERS_SECONDS_AT_MOST):
            await self._has(self._workers)
        self.check()

    def check(self) -> None:
        """Refuse to go on without any worker.

        Raises:
          ClusterGoneError: if none can be started.
        """
        if self.failure is not None:
            raise ClusterGoneError(self.failure) from self._cause

    async def _has(self, workers: int) -> None:
        while len(self._links) < workers and self.failure is None:
            await happened(self._came)
            self._came = trio.Event()
        await trio.lowlevel.checkpoint()

    def register(self, function: Callable[..., Any]) -> int:
        """Return a function's number.

        Raises:
          ClusterError: if it can't be sent.
        """
        packed = pickled_for_workers(self._transport, function, "the function")
        if packed not in self._functions:
            self._functions.append(packed)
        return self._functions.index(packed)

    @enable_ki_protection
    async def call(self, function: int, item: Any) -> Any:
        """Call a function of an item in a worker, for the current run, and return its value.

        Raises:
          WorkerLostError: if the worker has ended.
          ClusterError: if the item or the value can't be sent, or no worker can be started.
          BudgetExceeded: if a budget here is used up.
          Exception: what the function raised, or a record of it.

        Checkpoint: always.

        Cancellation: the call is cancelled, and has ended, unless it or its worker takes longer
        than a second to do so.
        """
        _waiting_for = "a worker"
        self.check()
        run = current_run()
        accounts = accounts_of(run)
        unknown = Usage(None, None)
        await accounts.reserve_shared(unknown, run.path)  # The worker knows of no budget.
        accounts.settle(unknown, NOTHING)
        packed = pickled_for_workers(self._transport, item, f"the item {run.name!r}")
        call = _Call(self._calls, run, function, packed, parked=parked_runs.get())
        self._calls += 1

        def stop() -> None:
            self._ask(call, "stop", run._stop_reason)

        run._add_stop_notice(stop)
        try:
            self._place(call)
            await happened(call.ended)
        except trio.Cancelled:
            self._ask(call, "cancel", run.cancel_reason)
            if call.link is not None:
                with trio.move_on_after(CANCEL_SECONDS_AT_MOST) as scope:
                    scope.shield = True
                    await happened(call.ended)
                if scope.cancelled_caught:
                    call.link.has_end = False  # It is too busy to be asked for anything.
            raise
        finally:
            run._drop_stop_notice(stop)
            self._forget(call)
        return await self._outcome(call)

    async def _outcome(self, call: _Call) -> Any:
        run = call.run
        if not call.status and not call.lost:
            self.check()
        if call.lost:
            raise self._lost(call)
        try:
            value = pickle.loads(call.packed)
        except Exception as unread:
            raise ClusterError(
                f"the value of item {run.name!r} can't be read here ({unread!r}); return plain "
                "data, or objects of classes that this program has, too"
            ) from unread
        if call.status == "ok":
            return value
        error: BaseException = getattr(value, "error", value)
        if isinstance(error, ApprovalPending):  # It ends its run as a cancel does.
            raise error
        if call.status == "cancelled":
            run.cancel(getattr(error, "reason", None))
        if call.status == "cancelled" or (
            call.status == "timed_out"
            and run.deadline < math.inf
            and isinstance(error, RunTimedOut)
        ):
            await trio.sleep_forever()  # Until the same happens to the run here.
        raise error

    def _lost(self, call: _Call) -> WorkerLostError:
        place = _place_of(call)
        self._losses[place] += 1
        self._losses_alone[place] += call.alone
        alone = self._losses_alone[place]
        follows = alone < LOSSES_ALONE_AT_MOST
        return WorkerLostError(
            f"the worker that had the item {call.run.name!r} has ended; "
            + (
                "it is tried again in another one"
                if follows
                else f"that has happened {alone} times while it had nothing else, so the item is "
                "given up: look into what it does to its process, such as how much memory it takes"
            ),
            follows,
        )

    # Calls and workers ------------------------------------------------------------------------

    def _place(self, call: _Call) -> None:
        """Give a call to the worker that has the fewest, if any is ready."""
        links = [link for link in self._links if link is not self._quarantine]
        if self._losses[_place_of(call)] >= LOSSES_IN_COMPANY:
            self._suspects.append(call)
            self._place_suspect()
        elif links:
            self._give(call, min(links, key=lambda link: len(link.calls)))
        else:
            self._waiting.append(call)

    def _place_suspect(self) -> None:
        """Give the next suspect to the quarantine once that is empty; without any, end it."""
        if self._quarantine not in self._links:
            self._quarantine = None
            if self._suspects and self._links:
                self._quarantine = min(self._links, key=lambda link: len(link.calls))
        if self._quarantine is None or self._quarantine.calls:
            return
        if self._suspects:
            self._give(self._suspects.popleft(), self._quarantine)
        else:
            self._quarantine = None
            self._place_waiting()

    def _place_waiting(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for early in waiting:
            self._place(early)

    def _give(self, call: _Call, link: _Link) -> None:
        call.link = link
        link.calls[call.number] = call
        if call.function not in link.known:
            link.known.add(call.function)
            link.post(("function", call.function, self._functions[call.function]))
        link.post(("call", call.number, call.function, call.item, _facts_of(call)))

    def _ask(self, call: _Call, word: str, reason: str | None) -> None:
        if call.link is not None and not call.ended.is_set():
            call.link.post((word, call.number, reason))

    def _forget(self, call: _Call) -> None:
        if call.link is not None:
            call.link.calls.pop(call.number, None)
            if call.link is self._quarantine:
                self._place_suspect()
        for line in (self._waiting, self._suspects):
            if call in line:
                line.remove(call)

    async def _keep_worker(self, number: int) -> None:
        while self.failure is None and not self._ends:
            try:
                connection = await self._transport.start(number)
            except Exception as error:
                self._fail(f"a worker can't be started ({error})")
                return
            link = _Link(connection)
            try:
                async with trio.open_nursery() as nursery:
                    start_task(nursery, link.deliver)
                    level = logging.getLogger().level
                    link.post(("setup", self._factory, trio.current_time(), level))
                    while True:
                        for message in await connection.receive():
                            self._take(link, message)
            except* WorkerGone as group:
                if not self._ends:
                    self._gone(link, group.exceptions[0])
            finally:
                link.gone.set()
                connection.kill()
                if link in self._links:
                    self._links.remove(link)

    def _gone(self, link: _Link, why: BaseException) -> None:
        self.lost += 1
        if link in self._links:
            self._links.remove(link)
            self._false_starts = 0
        else:
            self._false_starts += 1
            if self._false_starts >= FALSE_STARTS_AT_MOST:
                self._fail(f"{self._false_starts} workers in a row ended as they started ({why})")
        unsent = {message[1] for message in link.outbox if message[0] == "call"}
        calls, link.calls = list(link.calls.values()), {}
        for call in calls:
            if call.number in unsent:
                self._place(call)  # It never was there.
            else:
                call.lost, call.alone = True, len(calls) == 1
                call.ended.set()
        self._place_suspect()

    def _fail(self, words: str, cause: BaseException | None = None) -> None:
        if self.failure is None:
            self.failure, self._cause = words, cause
            self._came.set()
            for scope in self.fan_outs:
                scope.cancel()
            for call in (*self._waiting, *self._suspects):
                call.ended.set()

    def _take(self, link: _Link, message: Message) -> None:
        match message:
            case "ready", words, has_end:
                link.words, link.has_end = words, has_end
                self._links.append(link)
                self._came.set()
                self._false_starts = 0
                self._place_suspect()
                self._place_waiting()
            case "unfit", packed:
                value = pickle.loads(packed)
                error = getattr(value, "error", value)
                self._fail(f"deps= raised {error!r} in a worker", error)
            case "done", number, status, packed:
                if (call := link.calls.pop(number, None)) is not None:
                    call.status, call.packed = status, packed
                    call.ended.set()
            case word, number, *said:
                if (call := link.calls.get(number)) is not None:
                    _hear(call, word, said)


def _place_of(call: _Call) -> _Place:
    run = call.run
    parent = run.parent
    if run._item_index is None or parent is None:
        return run.id, None
    return parent.id, run._item_index


def pickled_for_workers(transport: Transport, value: Any, what: str) -> bytes:
    """Return a value's pickle.

    Raises:
      ClusterError: if it has none.
    """
    try:
        return transport.dumps(value)
    except Exception as error:
        raise ClusterError(
            f"{what}, {repr_of(value)}, can't be sent to a worker ({error}); a worker is another "
            "process: give it plain data, and make connections, locks and open files there, in "
            "deps="
        ) from error


def _facts_of(call: _Call) -> CallFacts:
    run = call.run
    above = run._above
    return CallFacts(
        run.id,
        above.parent_id,
        above.path,
        above.depth,
        run.name,
        run._item_index,
        run.attempt,
        run.idempotency_key,
        run.remaining(),
        dict(run.tags),
        bool(above.tree.listeners or run._observers),
        next(run._keepers(), None) is not None,
        None if call.parked is None else call.parked.states,
    )


def _hear(call: _Call, word: str, said: list[Any]) -> None:
    """Do with what a worker says of a call as if it came up here, in the call's run."""
    run = call.run
    match word, *said:
        case "event", packed:
            _publish(run, packed)
        case "spent", tokens, cost_usd:
            accounts_of(run).settle(NOTHING, Usage(tokens, units(cost_usd)))
        case "model", model, by_kind:
            for meter in accounts_of(run).meters:
                if (tell := getattr(meter, "called_model", None)) is not None:
                    tell(model, by_kind)
        case "file", name, path, content:
            if (keeper := next(run._keepers(), None)) is not None:
                keeper.keep_file(name, path, content)
        case "log", fields, place:
            _log(run, fields, place)
        case "answers", states:
            assert call.parked is not None
            call.parked.states.update(states)
        case _:
            raise AssertionError(f"unknown message {word!r} of a call")


def _log(run: Run, fields: Mapping[str, Any], place: tuple[Any, ...]) -> None:
    run_id, name, parent_id, path, depth = place
    if run_id != run.id:  # A run below it, which only the worker knows.
        tree = run._above.tree
        run = Run(name, run, tree.now())
        run.id, run._above = run_id, Above(parent_id, path, depth, tree)
    record = logging.makeLogRecord(dict(fields))
    logger = logging.getLogger(record.name)
    before = current.set(run)
    try:
        # What a filter or a handler raises must not end the cluster.
        with suppress(Exception):
            if logger.isEnabledFor(record.levelno):
                logger.handle(record)
    finally:
        current.reset(before)


def _publish(run: Run, packed: bytes) -> None:
    """Tell an event of a worker to whoever listens to the run it belongs to."""
    if run.status != "running":
        return
    event, is_notice = unpack_event(packed)
    own = event.run_id == run.id
    if own and not is_notice:
        run._publish(event.payload)
        return
    for observer in run._observers:
        (observer.notice if is_notice else observer.observe)(event)
    if not is_notice:
        for subscription in run._listening():
            if subscription.children:
                subscription.offer_nowait(event)
