"""Read what an agent does while it does it.

The agent's loop runs in a task of its own, next to the reader's code, which is the body of a block.
So whatever ends the run, even a cancel, never cancels the reader; and leaving the block ends the
run, however much has been read by then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, Self, TypeVar

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from harness._async_with import AsyncWithOnly
from harness._events import happened
from harness.agents._calls import read_parts
from harness.agents._conversation import Conversation
from harness.agents._reply import Reply
from harness.agents._stream_buffer import StreamBuffer
from harness.agents._work import Setup, Work, is_injectable, work_in
from harness.errors import ApprovalPending, InboxFullError, RunEndedError
from harness.models import Content, Message
from harness.models._file import is_unread
from harness.runs import Event, Run, RunBlock
from harness.runs._carry import carry
from harness.runs._endings import is_only_cancelled, most_telling, try_note
from harness.runs._yields import ASYNC_GENERATOR, look_for_yield

OutputT = TypeVar("OutputT")


@attrs.define(eq=False, repr=False)
class AgentStream(AsyncWithOnly, Generic[OutputT]):
    """An agent's run in progress, from `Agent.stream`. An async iterator of `harness.Event`.

    The events are those of the run and of the agents below it, each with the run it came from;
    the payloads are the records of `harness.agents`. Those of one run are in order, and the very
    last is the run's own `RunEnded`. Events of a private run below aren't heard.
    """

    # Ten thousand may be open at once, so each is small: what is rarely needed is made on demand.
    _written = "agent.stream(...) as stream"

    _block: RunBlock | None  # Needed until the run is made, which then holds it.
    _setup: Setup
    _prompt: Content
    _conversation: Conversation | None
    _size: int = attrs.field(alias="buffer", kw_only=True)
    _work: Work | None = attrs.field(default=None, init=False)
    _run: Run | None = attrs.field(default=None, init=False)
    _buffer: StreamBuffer | None = attrs.field(default=None, init=False)
    _nursery_block: AbstractAsyncContextManager[trio.Nursery] | None = attrs.field(
        default=None, init=False
    )
    # Waits for the agent's first step.
    _starter: trio.lowlevel.Task | None = attrs.field(default=None, init=False)
    _finished: bool = attrs.field(default=False, init=False)
    _waiting_for_end: trio.Event | None = attrs.field(default=None, init=False)
    _closed: bool = attrs.field(default=False, init=False)
    _error: Exception | None = attrs.field(default=None, init=False)
    _raised: bool = attrs.field(default=False, init=False)

    @property
    def run(self) -> Run:
        """The agent's run: to cancel or stop it, or to read its status."""
        if self._run is None:
            raise self._not_entered()
        return self._run

    @property
    def reply(self) -> Reply[OutputT]:
        """The reply; partial while the run goes on, and if it was stopped, cut short or failed.

        Raises:
          RuntimeError: before the block.
        """
        if self._run is None or self._work is None:
            raise self._not_entered()
        return self._work.reply(self._run)

    @property
    def output_so_far(self) -> Any:
        """What has come of the answer: text or, with an ``output_type``, dicts, lists and strings,
        not yet validated, without what is still missing. None if nothing has come."""
        if self._work is None:
            raise self._not_entered()
        return self._work.output_so_far()

    @property
    def dropped(self) -> int:
        """How many events found no room that others, such as tools, sent by `Run.emit_nowait`."""
        return 0 if self._buffer is None else self._buffer.dropped

    def inject(self, message: str | Message, *, children: bool = False) -> None:
        """Leave a message for the agent, which picks it up before it next asks the model.

        A message that comes too late for that is in `Reply.undelivered`. May be called from any
        task and any thread.

        Args:
          message: What the user says: text, or a `harness.models.Message` of role ``user``.
          children: Whether to tell the agents at work below this one, too.

        Raises:
          TypeError: if ``message`` is something else.
          ValueError: if it is empty, which no provider accepts.
          RunEndedError: if the run has ended; nobody would read the message.
          InboxFullError: if too many messages are waiting in one of the runs; the others have it.
          RuntimeError: before the block.
        """
        if not isinstance(message, str) and not is_injectable(message):
            raise TypeError(
                f"stream.inject() takes text or a Message of role 'user', not {message!r}"
            )
        content = message if isinstance(message, str) else message.content
        if not content:
            raise ValueError("stream.inject() takes a message with text in it, not an empty one")
        if is_unread(content):
            raise ValueError(
                f"stream.inject() takes files that have been read, not {message!r}; call "
                "File.read() in a thread first"
            )
        run = self.run
        run.inbox.put(message)
        if not children:
            return
        full: InboxFullError | None = None
        for below in list(run._with_descendants()):
            if below is run or work_in(below) is None:
                continue
            try:
                below.inbox.put(message)
            except InboxFullError as error:
                full = error
            except RunEndedError:
                continue  # As another thread sees it, it was alive a moment ago.
        if full is not None:
            raise full

    @enable_ki_protection
    async def __aenter__(self) -> Self:
        """Start the agent.

        Checkpoint: always.

        Cancellation: nothing is left running.
        """
        if self._block is None:
            raise RuntimeError(
                f"the stream of {self._setup.name!r} was already started; "
                "call agent.stream() for each block"
            )
        frame = sys._getframe(1)
        if frame.f_code.co_flags & ASYNC_GENERATOR:
            look_for_yield(frame, f"the stream of {self._setup.name!r}")
        block, self._block = self._block, None
        if type(self._prompt) is not str:
            self._prompt = await read_parts(self._prompt, f"agent {self._setup.name!r}")
        self._run = run = block._make_run()
        run._task, run._nurseries_at_start = None, 0  # It gets a task of its own.
        self._work = Work(self._setup, self._prompt, self._conversation)
        self._buffer = StreamBuffer(run, self._size)
        await self._buffer.__aenter__()  # No checkpoint.
        self._nursery_block = trio.open_nursery()
        nursery = await self._nursery_block.__aenter__()
        nursery.start_soon(self._drive, run, self._work, name=self._setup.name)
        try:
            # Wait for its first step, which asks the model, whatever the order of tasks: what is
            # injected in the block never comes in time for it. An Event would need more objects.
            self._starter = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort_start)
        except BaseException as error:
            self._closed = True
            await self._leave(error)
            raise
        return self

    @enable_ki_protection
    async def __aexit__(
        self, exc_type: object, exc: BaseException | None, traceback: object
    ) -> None:
        """End the run if it hasn't ended, and wait for that."""
        self._closed = True
        await self._leave(exc)
        if self._error is None or self._raised:
            return
        if exc is None:
            self._raised = True
            raise self._error
        try_note(exc, f"the stream of {self._setup.name!r} had failed before: {self._error}")

    async def _leave(self, exc: BaseException | None) -> None:
        """End the run and wait until its task is gone."""
        assert self._nursery_block is not None
        assert self._buffer is not None
        await self._buffer.__aexit__(None, None, None)
        if exc is None or not is_only_cancelled(exc):  # This cancel reaches the run too.
            self.run.cancel("the block of its stream was left")
        try:
            await self._nursery_block.__aexit__(None, None, None)
        except BaseException as error:
            telling = most_telling(error)
            if exc is None or not isinstance(telling, trio.Cancelled):
                raise telling from exc

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """Return the next event, waiting for one.

        Raises:
          StopAsyncIteration: if all were read, and the run succeeded, was stopped or was cancelled.
          Exception: once, after the last event: the run's own error; a `StopAsyncIteration` as a
            `RuntimeError`.
          trio.BusyResourceError: if another task is waiting for an event of this stream.
          trio.ClosedResourceError: if the block has been left.
          RuntimeError: if the block wasn't entered.

        Checkpoint: if no event is ready; otherwise once in 64.

        Cancellation: no event is lost.
        """
        if self._closed:
            raise trio.ClosedResourceError(
                f"the block of the stream of {self._setup.name!r} was left; what the agent did is "
                "in .reply"
            )
        if self._buffer is None:
            raise self._not_entered()
        try:
            return await self._buffer.__anext__()
        except StopAsyncIteration:
            while not self._finished:  # Its last event is read, and it is about to end.
                self._waiting_for_end = self._waiting_for_end or trio.Event()
                await happened(self._waiting_for_end)
        if self._error is not None and not self._raised:
            self._raised = True
            if isinstance(self._error, StopAsyncIteration):
                raise RuntimeError(
                    f"the run of {self._setup.name!r} raised StopAsyncIteration, which would "
                    "end the reader's loop as if all were well"
                ) from self._error
            raise self._error
        raise StopAsyncIteration

    async def _drive(self, run: Run, work: Work) -> None:
        """Be the agent's run, in a task next to the reader's."""
        if self._starter is not None:
            trio.lowlevel.reschedule(self._starter)
            self._starter = None
        try:
            status, error = await carry(run, work.drive, run)
            if status in ("failed", "timed_out") or isinstance(error, ApprovalPending):
                self._error = error
                work.complete_error(run, error)
        finally:
            self._finished = True
            if self._waiting_for_end is not None:
                self._waiting_for_end.set()

    def _abort_start(self, _: Callable[[], None]) -> trio.lowlevel.Abort:
        self._starter = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _not_entered(self) -> RuntimeError:
        return RuntimeError(
            f"the stream of {self._setup.name!r} does not run until its block is entered; "
            "write `async with agent.stream(...) as stream:`"
        )
