"""Carry out one run of an agent: the loop, and all of its state.

A `Work` is made for one run and forgotten with it; what runs share, a `Setup`, is only read. Each
turn: wait for the readers of streams, check whether the run should stop, take the messages that
others left, ask the model, run the tool calls. It ends with an answer, a stop, or an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import attrs
import trio

from harness._words import error_in_words, repr_of
from harness.agents._calls import call_tools
from harness.agents._conversation import Conversation
from harness.agents._events import RunEnded, TextDelta, TurnStarted, UsageReported
from harness.agents._output import OutputMisfit, OutputType
from harness.agents._reply import Reply
from harness.agents._sendable import sendable, sendable_call
from harness.agents._stream_buffer import StreamBuffer
from harness.agents._tool import Tool
from harness.errors import (
    BudgetExceeded,
    MaxTurnsError,
    ModelReplyError,
    OutputError,
    ReservationError,
)
from harness.limits import current_reservation
from harness.models import (
    Message,
    Model,
    ModelRequest,
    ModelResponse,
    NamedModel,
    ToolCall,
    ToolDescription,
    Usage,
)
from harness.models._messages import misfit_in
from harness.runs import Run, RunLocal, current_run
from harness.runs._endings import is_only_cancelled, status_of, unwrap_single
from harness.runs._waiting import join_tasks, wait_for_tasks

NO_USAGE = Usage()

EMPTY_REPLY = "Your last reply was empty. Give your answer, or call a tool."


@attrs.frozen(eq=False)
class Setup:
    """An agent's settings, worked out once when it is made."""

    name: str
    model: Model
    system: Message | None
    tools: Mapping[str, Tool]
    descriptions: tuple[ToolDescription, ...]
    max_turns: int
    output: OutputType | None
    deps_type: Any


class Work:
    """One run of an agent."""

    def __init__(self, setup: Setup, prompt: str, conversation: Conversation | None) -> None:
        self._setup = setup
        self._conversation = conversation
        self._messages: list[Message] = [] if conversation is None else [*conversation.messages]
        self._start = len(self._messages)
        self._head, self._skipped = _system_messages(setup.system, self._messages)
        self._messages.append(Message("user", sendable(prompt)))
        self._usage = self._delegated_usage = NO_USAGE
        self._turns = 0
        self._text: str | list[str] = ""  # What the model said last; a list of pieces meanwhile.
        self._output: Any = None
        self._complete = False
        self._has_told_of_empty = False
        self._has_told_of_misfit = False
        self._not_text: list[Any] = []
        self._own_error: MaxTurnsError | OutputError | None = None

    def reply(self, run: Run) -> Reply[Any]:
        """Return the run's result, once it has ended."""
        output = self._output
        if output is None and self._setup.output is None:
            output = self._text if isinstance(self._text, str) else "".join(self._text)
        return Reply(
            output,
            tuple(self._messages),
            self._usage,
            self._turns,
            run.id,
            (*self._not_text, *run.undelivered),
            self._delegated_usage,
            self._complete,
            self._start,
        )

    def complete_error(self, run: Run, error: Exception) -> None:
        """Give the error that this run failed with its partial reply, if the error is ours.

        An error from a tool may belong to another agent, and have that agent's reply.
        """
        if isinstance(error, BudgetExceeded):
            # On its way up it ends each agent, and whoever catches it sees what their own has done.
            error.partial = self.reply(run)
        elif (own_error := self._own_error) is error and own_error is not None:
            own_error.partial = self.reply(run)
            self._own_error = None  # Its traceback holds this object.

    async def drive(self, run: Run) -> None:
        """Be the body of ``run``, which is the current one.

        Raises:
          TypeError: if the run's deps aren't what the agent works with.
          MaxTurnsError: if there is no answer after `Agent.max_turns` turns.
          OutputError: if the answer doesn't fit twice.
          ModelReplyError: if the model's reply makes no sense.
          Exception: the model's, or that of a tool that fails the run.

        Checkpoint: always.

        Cancellation: the history is valid; nothing is appended to the conversation.
        """
        _work.set(self)
        try:
            if self._setup.deps_type is not None:
                current_run(self._setup.deps_type)
            model = self._setup.model
            if isinstance(model, NamedModel):
                async with model:  # Open from the first turn to the last.
                    await self._take_turns(run)
            else:
                await self._take_turns(run)
            if run._tasks:
                await wait_for_tasks(run)
        except BaseException as error:
            if run._tasks:
                await join_tasks(run, error)
            self._tell_of_failure(run, error)
            raise
        else:
            if self._conversation is not None:
                self._conversation.extend(self._messages[self._start :])
            run.emit_nowait(RunEnded("ok"))
        finally:
            above = work_above(run)
            if above is not None:
                above._delegated_usage += self._usage + self._delegated_usage

    async def _take_turns(self, run: Run) -> None:
        """Take turns until there is an answer, or the run should stop."""
        setup = self._setup
        while True:
            # Here and no earlier, so that a run cancelled during a call doesn't ask the model
            # again.
            await trio.lowlevel.checkpoint_if_cancelled()
            tree = run._above.tree
            if tree.listeners:
                await _wait_for_readers(run)
            if run.stopping:
                if not self._turns:
                    await trio.lowlevel.checkpoint()
                return
            if run._inbox is not None:
                self._take_messages(run)
            if self._turns >= setup.max_turns:
                self._own_error = MaxTurnsError(
                    f"agent {setup.name!r} took all its turns, max_turns={setup.max_turns}, and "
                    "has no answer yet; what it did is in .partial. Allow it more, or ask for less"
                )
                raise self._own_error
            self._turns += 1
            run.emit_nowait(TurnStarted(self._turns))
            try:
                response = await self._ask(run)
            except ExceptionGroup as group:  # From a model that opens a nursery for each request.
                if (error := unwrap_single(group)) is group:
                    raise
                raise error from error.__cause__
            self._usage += response.usage
            run.emit_nowait(UsageReported(response.usage))
            calls = response.tool_calls
            if calls:
                calls = _fit_for_a_history(calls)
                self._messages.append(Message("assistant", sendable(response.content), calls))
                await call_tools(run, setup.tools, calls, self._messages)
            elif self._is_answer(response):
                return

    async def _ask(self, run: Run) -> ModelResponse:
        """Ask the model once, and report the text as it comes."""
        _waiting_for = "an answer of its model"
        setup = self._setup
        output = setup.output
        request = ModelRequest(
            (*self._head, *self._messages[self._skipped :]),
            setup.descriptions,
            None if output is None else output.schema,
        )
        if run._above.tree.listeners and any(_streams_to(run)):
            response = await self._ask_for_stream(run, request)
        else:
            response = await setup.model.complete(request)
            if type(response) is not ModelResponse and not isinstance(response, ModelResponse):
                raise ModelReplyError(
                    f"the model of agent {setup.name!r} returned {repr_of(response)} in run "
                    f"{run.path!r}, where a ModelResponse was expected; see harness.models.Model"
                )
            self._refuse_malformed(run, response)
            if response.content:
                run.emit_nowait(TextDelta(response.content))
        self._text = response.content
        return response

    async def _ask_for_stream(self, run: Run, request: ModelRequest) -> ModelResponse:
        pieces: list[str] = []
        self._text = pieces
        async with self._setup.model.stream(request) as stream:
            async for piece in stream:
                if isinstance(piece, str):
                    if piece:
                        pieces.append(piece)
                        run.emit_nowait(TextDelta(piece))
                elif isinstance(piece, ModelResponse):
                    self._refuse_malformed(run, piece)
                    return piece
                else:
                    raise ModelReplyError(
                        f"the model of agent {self._setup.name!r} streamed {repr_of(piece)} in run "
                        f"{run.path!r}, where text or a ModelResponse was expected; "
                        "see harness.models.Model"
                    )
        raise ModelReplyError(
            f"the stream of the model of agent {self._setup.name!r} ended in run {run.path!r} "
            f"after {len(pieces)} pieces of text and without a ModelResponse, so the answer may be "
            "cut short; see harness.models.Model"
        )

    def _refuse_malformed(self, run: Run, response: ModelResponse) -> None:
        """Refuse a response that holds anything it shouldn't; nobody has checked it yet.

        Raises:
          ModelReplyError: if it does.
        """
        misfit = misfit_in(response)
        if misfit is not None:
            given, wanted = misfit
            raise ModelReplyError(
                f"the model of agent {self._setup.name!r} gave {repr_of(given)} in run "
                f"{run.path!r}, where a ModelResponse has {wanted}; see harness.models.Model"
            )

    def _is_answer(self, response: ModelResponse) -> bool:
        """Record what the model said without calling a tool, and return whether that is the end."""
        setup = self._setup
        text = sendable(response.content)
        if not text.strip():
            # Not kept: providers refuse a history with an empty message in it.
            if self._has_told_of_empty:
                raise ModelReplyError(
                    f"the model of agent {setup.name!r} gave an empty reply twice: neither text "
                    "nor tool calls. Look at its instructions and its limit of output tokens"
                )
            self._has_told_of_empty = True
            self._messages.append(Message("user", EMPTY_REPLY))
            return False
        self._messages.append(Message("assistant", text))
        if setup.output is None:
            self._output = text
        else:
            try:
                self._output = setup.output.parse(text)
            except OutputMisfit as error:
                if self._has_told_of_misfit:
                    self._own_error = OutputError(
                        f"the answer of agent {setup.name!r} does not fit its output_type, also "
                        f"after a repair turn: {error}"
                    )
                    raise self._own_error from error
                self._has_told_of_misfit = True
                self._messages.append(
                    Message(
                        "user",
                        f"Your answer does not fit what was asked for: {error}. Give the whole "
                        "answer again, as JSON alone that satisfies the schema.",
                    )
                )
                return False
        self._complete = not response.truncated
        return True

    def _take_messages(self, run: Run) -> None:
        """Put what others left for this run into the history, as the user's words."""
        for message in run.inbox.take_all():
            if isinstance(message, str) and message:
                self._messages.append(Message("user", sendable(message)))
            elif is_injectable(message) and message.content:
                self._messages.append(message)
            else:
                self._not_text.append(message)  # Handed back, because no model can be told.

    def _tell_of_failure(self, run: Run, error: BaseException) -> None:
        if is_only_cancelled(error):
            run.emit_nowait(RunEnded("cancelled"))
        else:
            run.emit_nowait(RunEnded(status_of(error, run), error_in_words(error)))


_work: RunLocal[Work | None] = RunLocal(lambda: None, name="the work of an agent")


def work_above(run: Run) -> Work | None:
    """Return the work of the nearest agent's run above ``run``; None if there is none."""
    return next((work for above in run._ancestors() if (work := work_in(above))), None)


def work_in(run: Run) -> Work | None:
    """Return the work of an agent's run; None of any other, or after its end."""
    values = run._locals
    return None if values is None else values.get(_work)


def is_injectable(message: Any) -> TypeGuard[Message]:
    """Return whether this is a message of the user that calls and answers no tool."""
    return (
        isinstance(message, Message)
        and message.role == "user"
        and not message.tool_calls
        and message.tool_call_id is None
    )


def _streams_to(run: Run) -> list[StreamBuffer]:
    """Return the streams that report this run: its own, and those above it."""
    return [one for one in run._listening() if isinstance(one, StreamBuffer)]


async def _wait_for_readers(run: Run) -> None:
    """Wait until the readers of the streams that report this run have room.

    Code that holds a reservation never waits for a reader: others wait for the reservation.
    """
    for buffer in _streams_to(run):
        if not buffer.has_room and not _holds_reservation():
            await buffer.wait_for_room()


def _holds_reservation() -> bool:
    try:
        current_reservation()
    except ReservationError:
        return False
    return True


def _system_messages(
    instructions: Message | None, history: list[Message]
) -> tuple[tuple[Message, ...], int]:
    """Return what a request begins with, and how much of the history that replaces.

    A history may begin with a system message of its own. Models take only one, so the two are
    merged.
    """
    own = history[0] if history and history[0].role == "system" else None
    if own is None:
        return (() if instructions is None else (instructions,)), 0
    if instructions is None:
        return (own,), 1
    return (Message("system", f"{instructions.content}\n\n{own.content}"),), 1


def _fit_for_a_history(calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    """Return the calls in a form fit for a history: new ids where two are equal or one is empty.

    A result is matched by its call's id, and no provider accepts a history in which that fails. Nor
    one with arguments that aren't an object: those become the text that couldn't be read.
    """
    if any(type(call.arguments) is not dict for call in calls):
        calls = tuple(
            attrs.evolve(call, arguments={}, unreadable=repr_of(call.arguments))
            if not isinstance(call.arguments, Mapping)
            else attrs.evolve(call, arguments=dict(call.arguments))
            for call in calls
        )
    calls = tuple(sendable_call(call) if call.arguments else call for call in calls)
    ids = {call.id for call in calls}
    if len(ids) == len(calls) and all(ids):
        return calls
    seen: set[str] = set()
    renamed: list[ToolCall] = []
    for number, call in enumerate(calls, start=1):
        id_ = call.id or f"call-{number}"
        while id_ in seen or (id_ != call.id and id_ in ids):
            id_ = f"{id_}-{number}"
        seen.add(id_)
        renamed.append(call if id_ == call.id else attrs.evolve(call, id=id_))
    return tuple(renamed)
