"""Make the calls that a driver asks for, in the trio of a worker: the far end of a cluster.

Each call has a run with the identity of the driver's: its id, path, attempt and keys. So what it
emits, opens and spends can be told to the driver as if it happened there. The rest of the tree
stays with the driver.
"""

from __future__ import annotations

import logging
import math
import pickle
from collections.abc import Awaitable, Callable
from contextlib import AsyncContextDecorator, AsyncExitStack
from functools import partial
from typing import Any

import attrs
import trio

from harness._approvals import Parked, ParkedRuns, parked_runs
from harness._events import happened, start_task
from harness.cluster._messages import CallFacts, Message, Pickle, pack_error, pack_event
from harness.errors import ApprovalPending, ClusterError
from harness.runs import Event, Run, current_run_or_none
from harness.runs._accounts import add_meter
from harness.runs._carry import carry
from harness.runs._notices import RunBegan, RunOver
from harness.runs._observers import Observer
from harness.runs._run import KEEPER, LASTING_KEY, RunKey
from harness.runs._tree import Above, Tree


class _NotForked:
    def fork_value(self, value: Any) -> Any:
        """Return what a child run starts with; it is never asked."""
        return value


LINK: RunKey = _NotForked()
"""What a call's run keeps its `RunLink` under."""


class Worker:
    """Makes calls. One per process, in its trio."""

    def __init__(self, dumps: Pickle, send: Callable[[list[Message]], object], words: str) -> None:
        """Make one.

        Args:
          dumps: What pickles.
          send: Sends messages to the driver, without waiting.
          words: Names this process.
        """
        self._dumps = dumps
        self._send = send
        self._words = words
        self._outbox: list[Message] = []
        self._has_mail = trio.Event()
        self._functions: dict[int, bytes | Callable[[Any], Awaitable[Any]]] = {}
        self._runs: dict[int, Run] = {}
        """The runs of the calls that are being made."""
        self._deps: Any = None
        self._offset = 0.0
        """What to add to the time here to get the driver's."""

    async def serve(self, inbox: trio.MemoryReceiveChannel[list[Message]]) -> None:
        """Do what comes, until the inbox is closed.

        Checkpoint: always.

        Cancellation: the calls are cancelled.
        """
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            start_task(nursery, self._deliver)
            async for messages in inbox:
                for message in messages:
                    if message == ("end",):
                        nursery.cancel_scope.cancel()
                        return
                    await self._take(message, nursery, stack)
            nursery.cancel_scope.cancel()

    async def _take(self, message: Message, nursery: trio.Nursery, stack: AsyncExitStack) -> None:
        match message:
            case "setup", factory, now, level:
                self._offset = now - trio.current_time()
                logging.getLogger().setLevel(level)
                await self._set_up(factory, stack)
            case "function", number, function:
                self._functions[number] = function
            case "call", number, function, item, facts:
                # Made here: a cancel may be the next message.
                run = self._runs[number] = self._run_for(number, facts)
                start_task(
                    nursery, self._call, number, run, function, item, facts.parked, name=run.name
                )
            case "cancel", number, reason:
                if number in self._runs:
                    self._runs[number].cancel(reason)
            case "stop", number, reason:
                if number in self._runs:
                    self._runs[number].stop(reason)
            case _:
                raise AssertionError(f"unknown message {message!r}")

    async def _set_up(self, factory: bytes | None, stack: AsyncExitStack) -> None:
        has_end = False
        try:
            if factory is not None:
                deps = pickle.loads(factory)()
                if isinstance(deps, AsyncContextDecorator):  # Made by @asynccontextmanager.
                    has_end = True
                    deps = stack.enter_async_context(deps)  # type: ignore[arg-type]
                self._deps = await deps if isinstance(deps, Awaitable) else deps
        except Exception as error:
            self._tell("unfit", pack_error(error, self._dumps))
        else:
            self._tell("ready", self._words, has_end)

    async def _call(
        self, number: int, run: Run, function: int, item: bytes, states: Parked | None
    ) -> None:
        status: str
        parked = None if states is None else ParkedRuns(states)
        parked_runs.set(parked)
        what = "function"
        try:
            made = self._functions[function]
            if isinstance(made, bytes):
                made = self._functions[function] = pickle.loads(made)
            what = "item"
            argument = pickle.loads(item)
        except Exception as error:
            unread = ClusterError(
                f"the {what} of {run.name!r} can't be read in a worker ({error!r}); a worker needs "
                'the modules that it uses: runtime_env={"working_dir": "."} sends them'
            )
            run._end("failed", trio.current_time(), unread)
            del self._runs[number]
            self._tell("done", number, "failed", pack_error(unread, self._dumps))
            return
        value: Any
        try:
            status, value = await carry(run, made, argument)
        except trio.Cancelled:
            raise
        except BaseException as error:  # Such as SystemExit: it ends the driver, not this worker.
            status, value = "failed", error
        del self._runs[number]
        if status == "ok":
            try:
                packed = self._dumps(value)
            except Exception as error:
                unsent = ClusterError(
                    f"the value of item {run.name!r} can't be sent back ({error}); return plain "
                    "data"
                )
                status, packed = "failed", pack_error(unsent, self._dumps)
        else:
            packed = pack_error(value, self._dumps)
            if parked is not None and isinstance(value, ApprovalPending):
                self._tell("answers", number, parked.kept_with({}))
        self._tell("done", number, status, packed)

    def _run_for(self, number: int, facts: CallFacts) -> Run:
        """Return the run of a call, the same as the driver's."""
        now = trio.current_time()
        deadline = now + facts.seconds if facts.seconds < math.inf else math.inf
        run = Run(facts.name, None, now, deadline)
        run.id = facts.run_id
        if facts.parent_id is not None:
            run._above = Above(facts.parent_id, facts.parent_path, facts.depth, Tree())
        run._item_index = facts.item
        run._attempt_number = facts.attempt
        run._locals = {LASTING_KEY: facts.key}
        run._tags = facts.tags
        run._deps = self._deps
        link = RunLink(partial(run._above.tree.call, self._tell), number)
        add_meter(run, link)
        run._locals[LINK] = link
        if facts.keeps:
            run._locals[KEEPER] = link
        if facts.is_heard:
            run._observers = (Observer(_Forward(self, number, run.id)),)
        return run

    def _tell(self, *message: Any) -> None:
        self._outbox.append(message)
        self._has_mail.set()

    async def _deliver(self) -> None:
        """Send all that came up in one step of trio's loop together."""
        while True:
            await happened(self._has_mail)
            self._has_mail = trio.Event()
            messages, self._outbox = self._outbox, []
            self._send(messages)


_FORMATTER = logging.Formatter()

_PLAIN = (str, int, float, bool, type(None))


@attrs.frozen
class RunLink:
    """Tells the driver what comes up in the runs of a call, in threads too."""

    _tell: Callable[..., object]
    _number: int
    logs: None = None
    """What a journal here would keep of them: the driver's does."""

    def spent(self, tokens: int, cost_usd: float) -> None:
        """Tell what was used, as a `UsageMeter`."""
        self._tell("spent", self._number, tokens, cost_usd)

    def called_model(self, model: str, tokens: tuple[int, int, int, int]) -> None:
        """Tell what a call of a model used, by kind."""
        self._tell("model", self._number, model, tokens)

    def keeper_of(self, run: Run) -> RunLink:
        """Return itself, as what keeps files with the item."""
        return self

    def keep_file(self, name: str, run: str, content: bytes) -> None:
        """Have a file kept."""
        self._tell("file", self._number, name, run, content)

    def log(self, record: logging.LogRecord, run: Run) -> None:
        """Tell of a log record, as far as it is plain data, and of the run that it was made in."""
        text = record.exc_text
        if record.exc_info and not text:
            text = _FORMATTER.formatException(record.exc_info)
        said = {**vars(record), "msg": record.getMessage(), "args": None, "exc_text": text}
        plain = {name: value for name, value in said.items() if type(value) in _PLAIN}
        above = run._above
        place = run.id, run.name, above.parent_id, above.path, above.depth
        self._tell("log", self._number, plain, place)


class LogsToDriver(logging.Handler):
    """Hands the log records of calls to the driver, for the handlers there."""

    def emit(self, record: logging.LogRecord) -> None:
        """Tell of a record, or show it here if it is about no call."""
        run = current_run_or_none()
        for one in () if run is None else (run, *run._ancestors()):
            assert run is not None
            if one._locals is not None and LINK in one._locals:
                one._locals[LINK].log(record, run)
                return
        last = logging.lastResort
        if last is not None and record.levelno >= last.level:
            last.handle(record)


@attrs.frozen
class _Forward:
    """An observer that tells the driver."""

    _worker: Worker
    _number: int
    _run_id: str

    def __call__(self, event: Event) -> None:
        """Tell what the program emitted."""
        self._tell(event, is_notice=False)

    def notice(self, event: Event) -> None:
        """Tell what harness did, but for the call's own run: that is the driver's to tell."""
        own = event.run_id == self._run_id
        if not (own and isinstance(event.payload, RunBegan | RunOver)):
            self._tell(event, is_notice=True)

    def _tell(self, event: Event, *, is_notice: bool) -> None:
        worker = self._worker
        packed = pack_event(
            event, worker._dumps, is_notice=is_notice, offset=worker._offset, call=self._number
        )
        worker._tell("event", self._number, packed)
