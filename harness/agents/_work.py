"""Carry out one run of an agent: the loop, and all of its state.

A `Work` is made for one run and forgotten with it; what runs share, a `Setup`, is only read. Each
turn: wait for the readers of streams, check whether the run should stop, ask the model with the
messages that others left, run the tool calls. It ends with an answer, a stop, or an error.

Invariant: a message that others left is in the inbox, in `_taken`, in the history, or handed back.
It enters the history when a request with it is sent, and at no other time.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeGuard, cast

import attrs
import trio
from trio.lowlevel import disable_ki_protection, enable_ki_protection

from harness._approvals import Parked, ParkedRuns, WaitingCall, parked_runs
from harness._error_copies import own_copy
from harness._root_errors import roots_in_words
from harness._words import error_in_words, repr_of
from harness.agents._approvals import Approvals, Saved, restored, saved
from harness.agents._calls import call_tools
from harness.agents._conversation import Conversation
from harness.agents._events import RunEnded, TextDelta, TurnStarted, UsageReported
from harness.agents._history import HistoryProcessor, HistoryView, processed
from harness.agents._json_in_text import value_so_far
from harness.agents._output import OutputMisfit, OutputType
from harness.agents._reply import Reply
from harness.agents._reply_json import reply_from_json, reply_to_json
from harness.agents._sendable import sendable, sendable_call, sendable_content
from harness.agents._stream_buffer import StreamBuffer
from harness.agents._tool import Tool
from harness.agents._types import to_json
from harness.errors import (
    ApprovalPending,
    BudgetExceeded,
    MaxTurnsError,
    ModelError,
    ModelReplyError,
    OutputError,
    ReservationError,
)
from harness.limits import current_reservation
from harness.models import (
    AgentBegan,
    Content,
    Finish,
    Message,
    Model,
    ModelRequest,
    ModelResponse,
    ModelStream,
    NamedModel,
    ToolCall,
    ToolDescription,
    Usage,
)
from harness.models._messages import EMPTY_REPLY, misfit_in
from harness.models._sending import heard_when_sent
from harness.runs import Run, RunLocal, current_run
from harness.runs._endings import is_only_cancelled, status_of, unwrap_single
from harness.runs._keys import digest, words_of_call
from harness.runs._waiting import join_tasks, wait_for_tasks

NO_USAGE = Usage()

WITHHELD = frozenset({"content_filter", "refusal"})
"""Endings of answers that their providers take back: not even whole calls in them are made."""

CUT = {
    "length": "its model reached the largest output allowed; give it a larger max_output_tokens",
    "content_filter": "its provider's filter cut the answer off",
    "refusal": "its model refused to answer",
}
"""Endings after which an answer is at most half of one, each with its reason."""


@attrs.frozen(eq=False)
class Setup:
    """An agent's settings, worked out once when it is made."""

    name: str
    model: Model
    system: str
    """The instructions, if they are text."""
    head: tuple[Message, ...]
    """What a request begins with, if they are."""
    instruct: Callable[[Run[Any]], str | Awaitable[str]] | None
    """What gives the instructions of each run, if they aren't."""
    form: str
    """What the model is told of the form of its answer."""
    history: HistoryProcessor | None
    tools: Mapping[str, Tool]
    descriptions: tuple[ToolDescription, ...]
    max_turns: int
    output: OutputType | None
    output_check: Callable[[Any], object] | None
    output_repairs: int
    deps_type: Any


class Work:
    """One run of an agent."""

    # What most runs don't need is set here, which costs them nothing.
    _start = 0
    """How much of the history was there before."""
    _skipped = 0
    """How much of the history the head replaces."""
    _system: str | None = None
    """The instructions, if they aren't the agent's."""
    _sent: list[Message] | None = None
    """What the history processor gave last; None if there is none, or it wasn't called."""
    _covered = 0
    """How much of the history has been in it."""
    _made: list[tuple[str, int]] | None = None
    """See `Approvals.made`."""
    _last_usage = NO_USAGE
    _earlier_usage = _earlier_delegated = NO_USAGE
    """What was used before this run waited for an approval, in an earlier run."""
    _resumed: tuple[str, dict[str, Any]] | None = None
    """The key and the state of that run."""
    _kept: Reply[Any] | None = None
    """The answer that an earlier session had, before another run of the item waited."""
    _key: str | None = None
    """What the run is known by in every session, once somebody has asked."""
    _call_words = ""
    """The tool call that it was started in."""
    _waiting: tuple[WaitingCall, ...] = ()
    _taken: tuple[Any, ...] = ()
    """Messages from the inbox that go into the next request, if that is sent."""
    _undelivered: tuple[Any, ...] = ()
    """Messages that no model can be told, and those that came too late for agents below."""

    def __init__(
        self,
        setup: Setup,
        prompt: Content,
        conversation: Conversation | None,
        resumed: tuple[str, dict[str, Any]] | None = None,
    ) -> None:
        self._setup = setup
        self._conversation = conversation
        self._messages: list[Message] = []
        self._head = setup.head
        if conversation is not None:
            self._messages += conversation.messages
            self._start = len(self._messages)
            self._head, self._skipped = _system_messages(setup, setup.system, self._messages)
        said = sendable(prompt) if isinstance(prompt, str) else sendable_content(prompt)
        self._messages.append(Message("user", said))
        self._usage = self._delegated_usage = NO_USAGE
        if resumed is not None:
            self._resumed = resumed
            self._key = resumed[0]
        self._turns = 0
        self._text: str | list[str] = ""  # What the model said last; a list of pieces meanwhile.
        self._output: Any = None
        self._finish: Finish = "other"
        self._reasoning = ""
        self._has_told_of_empty = False
        self._repairs = 0
        self._own_error: MaxTurnsError | OutputError | ModelError | None = None

    def reply(self, run: Run) -> Reply[Any]:
        """Return the run's result, once it has ended."""
        if self._kept is not None:
            return self._kept
        output, usage, delegated = self._output, self._usage, self._delegated_usage
        if self._earlier_usage is not NO_USAGE:
            usage += self._earlier_usage
            delegated += self._earlier_delegated
        if output is None and self._setup.output is None:
            output = self._text if isinstance(self._text, str) else "".join(self._text)
        return Reply(
            output,
            tuple(self._messages),
            usage,
            self._turns,
            run.id,
            run.undelivered,
            delegated,
            self._finish,
            self._reasoning,
            self._waiting,
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

    @disable_ki_protection
    async def drive(self, run: Run) -> None:
        """Be the body of ``run``, which is the current one.

        Raises:
          TypeError: if the run's deps aren't what the agent works with.
          MaxTurnsError: if there is no answer after `Agent.max_turns` turns.
          OutputError: if the answer doesn't fit, even after `Agent.output_repairs`.
          ApprovalPending: if calls of tools wait for a person's approval.
          ModelReplyError: if the model's reply makes no sense.
          Exception: the model's, or that of a tool that fails the run.

        Checkpoint: always.

        Cancellation: the history is valid; nothing is appended to the conversation.
        """
        _work._ready(run)[_work] = self  # A new run has no values yet, which `set` is slow to see.
        if run._observers:
            model: Any = self._setup.model
            named = (getattr(model, field, None) for field in ("name", "provider"))
            run._notice(AgentBegan(self._setup.name, *named))
        try:
            if self._setup.deps_type is not None:
                current_run(self._setup.deps_type)
            if words := words_of_call():
                self._call_words = words
            parked = parked_runs.get()
            if self._resumed is None and parked is not None:
                self._look_for_state(run, parked)
            if self._setup.instruct is not None and self._resumed is None:
                await self._make_instructions(run, self._setup.instruct)
            model = self._setup.model
            if isinstance(model, NamedModel) and self._kept is None:
                async with model:  # Open from the first turn to the last.
                    await self._take_turns(run)
            elif self._kept is None:
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
            if parked is not None:
                self._keep_answer(run, parked)
            run._emit_new(RunEnded, "ok")
        finally:
            if self._taken or self._undelivered:
                run.inbox.put_back([*self._undelivered, *self._taken])
            above = work_above(run)
            if above is not None:
                above._delegated_usage += self._usage + self._delegated_usage
                if self._made and above._made is not None:  # It is in a turn of its own.
                    above._made += self._made

    async def _take_turns(self, run: Run) -> None:
        """Take turns until there is an answer, or the run should stop."""
        setup = self._setup
        if self._resumed is not None:
            await self._go_on(run, restored(self._resumed[1]))
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
            if self._turns >= setup.max_turns:
                self._own_error = MaxTurnsError(
                    f"agent {setup.name!r} used all its turns, max_turns={setup.max_turns}, "
                    "without an answer; what it did is in .partial. Allow it more, or ask for less"
                )
                raise self._own_error
            self._turns += 1
            run._emit_new(TurnStarted, self._turns)
            try:
                response = await self._ask(run)
            except (ModelError, ExceptionGroup) as error:
                # A group comes from a model that opens a nursery for each request.
                own = self._as_own(run, unwrap_single(error))
                if own is error:
                    raise
                raise own from own.__cause__
            used = self._usage  # In its first turn nothing; to add up costs more than to ask.
            self._usage = response.usage if used is NO_USAGE else used + response.usage
            if setup.history is not None:
                self._last_usage = response.usage
            run._emit_new(UsageReported, response.usage)
            self._reasoning = sendable(response.reasoning)
            # That it stopped makes it an answer only once it is found to be one.
            self._finish = "other" if response.finish == "stop" else response.finish
            if response.tool_calls and response.finish not in WITHHELD:
                calls = _fit_for_a_history(response.tool_calls)
                self._messages.append(Message("assistant", sendable(response.content), calls))
                cut = response.finish == "length"
                approvals = self._approvals()
                # Awaited here: a method in between costs each live run 340 bytes.
                await call_tools(run, setup.tools, calls, self._messages, approvals, cut)
                if approvals.open:
                    raise self._parked(run, approvals, len(calls))
            elif await self._is_answer(response):
                return

    async def _ask(self, run: Run) -> ModelResponse:
        """Ask the model once, with what others left for it, and report the text as it comes."""
        _waiting_for = "an answer of its model"
        setup = self._setup
        output = setup.output
        if setup.history is None:
            history = self._messages[self._skipped :] if self._skipped else self._messages
        else:
            history = self._sent = await self._processed(run, setup.history)
        if run._inbox is not None:
            self._take_messages(run)
        request = ModelRequest(
            (*self._head, *history, *map(_as_message, self._taken)),
            setup.descriptions,
            None if output is None else output.schema,
        )
        if not self._taken:
            return await self._answer_to(run, request)
        with heard_when_sent(self._deliver):
            response = await self._answer_to(run, request)
        self._deliver()  # Not every model says when it sends.
        return response

    async def _answer_to(self, run: Run, request: ModelRequest) -> ModelResponse:
        setup = self._setup
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
                run._emit_new(TextDelta, response.content)
        self._text = response.content
        return response

    @enable_ki_protection  # A stream that a Ctrl-C finds between its lines is never closed.
    async def _ask_for_stream(self, run: Run, request: ModelRequest) -> ModelResponse:
        async with self._setup.model.stream(request) as stream:
            return await self._read(run, stream)

    @disable_ki_protection
    async def _read(self, run: Run, stream: ModelStream) -> ModelResponse:
        pieces: list[str] = []
        self._text = pieces
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

    async def _processed(self, run: Run, processor: HistoryProcessor) -> list[Message]:
        """Return what the history processor makes of what it gave last, and what came since."""
        _waiting_for = "its history processor"
        view = HistoryView(
            run=run,
            usage=self._earlier_usage + self._usage,
            last_usage=self._last_usage,
            context_tokens=getattr(self._setup.model, "context_tokens", None),
            spend=self._spend,
        )
        start = max(self._covered, self._skipped)
        history = [*(self._sent or ()), *self._messages[start:]]
        covered = len(self._messages)
        made = await processed(processor, history, view)
        self._covered = covered
        return made

    def _spend(self, usage: Usage) -> None:
        self._usage += usage

    async def _make_instructions(
        self, run: Run, instruct: Callable[[Run[Any]], str | Awaitable[str]]
    ) -> None:
        """Have the user's function say what the model is told first."""
        made = instruct(run)
        text: Any = await made if isinstance(made, Awaitable) else made
        if not isinstance(text, str):
            raise TypeError(
                f"the function of Agent(instructions=...) of agent {self._setup.name!r} returned "
                f"{text!r}, where text was expected"
            )
        self._system = text
        self._head, _ = _system_messages(self._setup, text, self._messages)

    # Approvals ------------------------------------------------------------------------------------

    def _own_key(self, run: Run) -> str:
        """Return what the run is known by in every session, if it waits for an approval.

        It is made of what asked for the run, and of its prompt.
        """
        if self._key is None:
            asker = ""
            for above in run._ancestors():
                if (work := work_in(above)) is not None:
                    asker = work._own_key(above)
                    break
            name, asked = self._setup.name, self._messages[self._start]
            prompt = digest(asked.text, *(file.digest or str(file.url) for file in asked.files))
            self._key = digest("agent", asker, self._call_words, name, prompt)
        return self._key

    def _look_for_state(self, run: Run, parked: ParkedRuns) -> None:
        """Find out whether this run waited in an earlier session."""
        key = self._own_key(run)
        if number := parked.number(key):
            key = self._key = digest("again", key, str(number))
        state = parked.states.get(key)
        if state is None:
            return
        if "reply" in state:
            self._kept = reply_from_json(state["reply"], self._setup.output)
            self._messages = [*self._kept.messages]
            self._start = len(self._messages) - len(self._kept.new_messages)
            self._finish = self._kept.finish
        else:
            self._resumed = (key, state)

    def _keep_answer(self, run: Run, parked: ParkedRuns) -> None:
        """Have the answer kept, in case another run of the item waits."""
        key = self._own_key(run)
        if self._finish not in ("tool_calls", "other"):  # The run wasn't stopped.
            parked.states.pop(key, None)
            if work_above(run) is None:  # Otherwise it is in the history of that one.
                parked.ended[key] = functools.partial(reply_to_json, self.reply(run))

    async def _go_on(self, run: Run, state: Saved) -> None:
        """Take up where an earlier run of this one waited, in the middle of a turn."""
        if state.agent != self._setup.name:
            raise ValueError(
                f"agent {self._setup.name!r} can't resume a run of agent {state.agent!r}"
            )
        self._messages = [*state.messages]
        self._start = state.start
        self._system = state.system
        self._head, self._skipped = _system_messages(self._setup, state.system, self._messages)
        self._sent = None if state.sent is None else [*state.sent]
        self._covered = state.covered
        self._turns = state.turns
        self._earlier_usage, self._earlier_delegated = state.usage, state.delegated_usage
        self._repairs, self._has_told_of_empty = state.repairs, state.told_of_empty
        self._reasoning = state.reasoning
        self._finish = "tool_calls"
        self._made = [*state.made]
        for words, number in state.made:
            run._take_number("call", words, number)
        results = {int(place): message for place, message in state.results.items()}
        approvals = self._approvals()
        approvals.answers, approvals.results = state.answers, results
        calls = self._messages[-1].tool_calls
        await call_tools(run, self._setup.tools, calls, self._messages, approvals)
        if approvals.open:
            raise self._parked(run, approvals, len(calls))

    def _approvals(self) -> Approvals:
        if self._made is None:
            self._made = []
        return Approvals(self._own_key, self._made)

    def _parked(self, run: Run, approvals: Approvals, calls: int) -> ApprovalPending:
        """Return the error of a run that waits for a person, after a turn of so many calls."""
        states: Parked = dict(approvals.below)
        key = self._own_key(run)
        states[key] = saved(
            Saved(
                agent=self._setup.name,
                system=self._setup.system if self._system is None else self._system,
                messages=tuple(self._messages[:-calls]),
                sent=None if self._sent is None else tuple(self._sent),
                covered=self._covered,
                start=self._start,
                turns=self._turns,
                usage=self._earlier_usage + self._usage,
                delegated_usage=self._earlier_delegated + self._delegated_usage,
                repairs=self._repairs,
                told_of_empty=self._has_told_of_empty,
                reasoning=self._reasoning,
                made=approvals.made,
                results={str(place): message for place, message in approvals.results.items()},
                waiting=approvals.waiting,
                answers={},
            )
        )
        error = ApprovalPending(states, key, run_id=run.id)
        error._runs_above = tuple(run._above.ids())
        self._waiting = error.waiting
        error.partial = self.reply(run)
        return error

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

    async def _is_answer(self, response: ModelResponse) -> bool:
        """Record what the model said without calling a tool, and return whether that is the end."""
        setup = self._setup
        finish = response.finish
        text = sendable(response.content)
        if text.strip():
            self._messages.append(Message("assistant", text))
        elif finish not in WITHHELD:
            # Not kept: providers refuse a history with an empty message in it.
            if finish == "length" or self._has_told_of_empty:
                self._own_error = ModelReplyError(
                    f"the model of agent {setup.name!r} "
                    + (
                        "used all its allowed output before it said anything; give it a larger "
                        "max_output_tokens"
                        if finish == "length"
                        else "gave an empty reply twice: neither text nor tool calls. Look at its "
                        "instructions"
                    )
                )
                raise self._own_error
            self._has_told_of_empty = True
            self._messages.append(Message("user", EMPTY_REPLY))
            return False
        if finish in CUT:
            if setup.output is None:
                self._output = text
                self._finish = finish
                return True
            self._own_error = OutputError(
                f"agent {setup.name!r} has no value of its output_type, because {CUT[finish]}; its "
                f"answer is {repr_of(text)}"
            )
            raise self._own_error
        try:
            self._output = await self._checked_value(text)
        except OutputMisfit as error:
            if self._repairs >= setup.output_repairs:
                turns = "a repair turn" if self._repairs == 1 else f"{self._repairs} repair turns"
                after = f", also after {turns}" if self._repairs else ""
                self._own_error = OutputError(
                    f"the answer of agent {setup.name!r} does not fit what was asked for{after}: "
                    f"{error}"
                )
                raise self._own_error from error
            self._repairs += 1
            form = "" if setup.output is None else ", as JSON alone that satisfies the schema"
            self._messages.append(
                Message(
                    "user",
                    f"Your answer does not fit what was asked for: {error}. Give the whole answer "
                    f"again{form}.",
                )
            )
            return False
        self._finish = finish
        return True

    async def _checked_value(self, text: str) -> Any:
        """Return the value that the answer holds, if it is one that will do.

        Raises:
          OutputMisfit: if not.
        """
        setup = self._setup
        value: Any = text
        if setup.output is not None:
            value, thoughts = setup.output.parse(text)
            self._reasoning = "\n\n".join(filter(None, (self._reasoning, thoughts)))
        if setup.output_check is not None:
            try:
                checked = setup.output_check(value)
                if isinstance(checked, Awaitable):
                    await checked
            except ValueError as error:
                raise OutputMisfit(str(error) or error_in_words(error)) from error
        return value

    def output_so_far(self) -> Any:
        """Return what has come of the answer, in JSON form; None if nothing has."""
        if self._output is not None:
            return to_json(self._output)
        text = self._text if isinstance(self._text, str) else "".join(self._text)
        return (text or None) if self._setup.output is None else value_so_far(text)

    def _take_messages(self, run: Run) -> None:
        """Take what others left for this run, to be said in the next request."""
        messages = run.inbox.take_all()
        self._taken += tuple(filter(_is_sayable, messages))
        self._undelivered += tuple(itertools.filterfalse(_is_sayable, messages))

    def _deliver(self) -> None:
        """Put what was taken into the history, as the user's words: the model is being told."""
        taken, self._taken = self._taken, ()
        self._messages.extend(map(_as_message, taken))

    def hand_back(self, messages: Iterable[Any]) -> None:
        """Take messages that came too late for an agent below, whose reply nobody else reads."""
        self._undelivered += tuple(messages)

    def _as_own(self, run: Run, error: Exception) -> Exception:
        """Return a model's error as that of this run alone, which can carry its partial reply."""
        if not isinstance(error, ModelError):
            return error
        if error.partial is not None:  # A function can raise one and the same in many runs.
            error = cast("ModelError", own_copy(error))
        error.partial = self.reply(run)
        self._own_error = error
        return error

    def _tell_of_failure(self, run: Run, error: BaseException) -> None:
        if is_only_cancelled(error) or isinstance(error, ApprovalPending):
            run.emit_nowait(RunEnded("cancelled"))
        else:
            run.emit_nowait(RunEnded(status_of(error, run), roots_in_words(error)))


_work: RunLocal[Work | None] = RunLocal(lambda: None, name="the work of an agent")


def work_above(run: Run) -> Work | None:
    """Return the work of the nearest agent's run above ``run``; None if there is none."""
    above = run._parent
    while above is not None:  # No generator: every run asks when it ends.
        if (work := work_in(above)) is not None:
            return work
        above = above._parent
    return None


def work_in(run: Run) -> Work | None:
    """Return the work of an agent's run; None of any other, or after its end."""
    values = run._locals
    return None if values is None else values.get(_work)


def _as_message(message: str | Message) -> Message:
    return Message("user", sendable(message)) if isinstance(message, str) else message


def _is_sayable(message: Any) -> bool:
    return bool(message.content if is_injectable(message) else isinstance(message, str) and message)


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
    setup: Setup, instructions: str, history: list[Message]
) -> tuple[tuple[Message, ...], int]:
    """Return what a request begins with, and how much of the history that replaces.

    A history may begin with a system message of its own. Models take only one, so the two are
    merged.
    """
    own = history[0] if history and history[0].role == "system" else None
    if own is None and instructions is setup.system:
        return setup.head, 0
    texts = (instructions, setup.form, "" if own is None else own.text)
    text = "\n\n".join(filter(None, texts))
    return ((Message("system", text),) if text else ()), int(own is not None)


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
