"""Run the tool calls of one turn concurrently, and give each a result.

Results are in the order of the calls, whatever the order they ended in. Whatever happens, even a
cancel, every call has a result in the history afterwards, so the history can be sent again.
"""

from __future__ import annotations

import contextvars
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
import trio
from trio.lowlevel import disable_ki_protection, enable_ki_protection

from harness._root_errors import budget_refusals, roots_in_words
from harness._words import repr_of
from harness.agents._approvals import Approvals
from harness.agents._events import ToolCalled, ToolReturned
from harness.agents._sendable import sendable_content
from harness.agents._tool import Tool
from harness.agents._types import to_json_text
from harness.errors import (
    ApprovalPending,
    RunCancelled,
    ToolArgumentsError,
    ToolTimeoutError,
)
from harness.models import Content, File, Message, ToolCall
from harness.models._file import (
    content_in_words,
    content_of,
    holds_file,
    is_unread,
    read_content,
)
from harness.models._notices import CallOfTool
from harness.runs import Run
from harness.runs._endings import (
    is_only_cancelled,
    most_telling,
    try_note,
    unwrap_single,
    without_cancelled,
)
from harness.runs._keys import ToolCallBlock

CALLS_AT_ONCE = 100
"""How many calls of one turn run at once. No provider makes so many; a broken one might."""

ERROR_WORDS_AT_MOST = 2_000
"""How many characters of an error a model is told: enough to learn from, but no page of HTML."""

NAMES_AT_MOST = 5
"""How many tools to name when somebody asks what a run is waiting for."""

CUT_CALL = (
    "this call was not made, because your reply reached its limit of output tokens before the end; "
    "call again, with shorter arguments"
)

_NOTHING: Mapping[int, Any] = MappingProxyType({})

# In the JSON of every file, and of hardly anything else.
_FILE_IN_JSON = '"media_type":'

CUT_SHORT = "this call was cut short before it had a result"

WAITS = "this call waits for a person's approval and has not been made"


@enable_ki_protection
async def call_tools(
    run: Run,
    tools: Mapping[str, Tool],
    calls: Sequence[ToolCall],
    history: list[Message],
    approvals: Approvals,
    last_is_cut: bool = False,
) -> None:
    """Make the calls that the model asked for, and append a result for each to ``history``.

    Calls that wait for a person, here or in a run below, are left out, and noted in ``approvals``.

    Args:
      run: The run that makes them.
      tools: Its tools by name.
      calls: The calls.
      history: Gets the results.
      approvals: Which calls have results from an earlier session, and what a person said.
      last_is_cut: Whether the answer was cut short, so that its last call may be half of one. That
        isn't made, and the model is told.

    Raises:
      Exception: the first error, in the order of the calls, of a tool that fails the run.

    Checkpoint: if a tool is called.

    Cancellation: calls in progress are cancelled; each call without a result gets one that says so.
    """
    # Worked out now, not by a function of what is still in progress: a timeout asks for the words
    # when the calls have ended.
    _waiting_for = _in_words(calls)
    turn = _Turn(run, tools, calls, last_is_cut, approvals)
    for number, call in enumerate(calls):
        if number not in approvals.results:
            run.emit_nowait(ToolCalled(call.id, call.name, call.arguments))
    try:
        turn.line_up()
        if turn.waiting:
            async with trio.open_nursery() as nursery:
                turn.nursery = nursery
                for _ in range(min(len(turn.waiting), CALLS_AT_ONCE)):
                    turn.start(turn.waiting.pop())
    except BaseExceptionGroup as group:
        if is_only_cancelled(group):
            raise
        raise most_telling(group) from None
    finally:
        turn.nursery = None
        history.extend(turn.results())
    failed = [turn.errors[number] for number in sorted(turn.errors)]
    for other in failed[1:]:
        try_note(failed[0], f"another tool failed too: {roots_in_words(other)}")
    if failed:
        raise failed[0]


def _in_words(calls: Sequence[ToolCall]) -> str:
    names = ", ".join(call.name for call in calls[:NAMES_AT_MOST])
    more = len(calls) - NAMES_AT_MOST
    return f"its tools: {names}" + (f" and {more} more" if more > 0 else "")


def _words_of(call: ToolCall) -> str:
    """Return a call as its name and arguments: equal calls give equal words in every process."""
    arguments: Any = call.arguments
    try:
        # A model that is asked again may give the arguments in another order.
        arguments = msgspec.json.encode(arguments, order="deterministic").decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        arguments = repr_of(arguments)  # Of a model in Python, which can give anything.
    return f"{call.name}({arguments})"


class _Turn:
    """The calls of one turn, and the outcome of each."""

    # What most turns don't need is set here, which costs them nothing.
    errors: Mapping[int, Exception] = _NOTHING
    """What fails the run, by the place of the call."""
    next_of: Mapping[int, int] = _NOTHING
    """For calls of sequential tools: which call comes after which."""

    def __init__(
        self,
        run: Run,
        tools: Mapping[str, Tool],
        calls: Sequence[ToolCall],
        last_is_cut: bool,
        approvals: Approvals,
    ) -> None:
        self.run = run
        self.approvals = approvals
        self.tools = tools
        self.calls = calls
        self.cut_number = len(calls) - 1 if last_is_cut else None
        self.answers: list[Content | None] = [None] * len(calls)
        self.nursery: trio.Nursery | None = None
        # Each call starts with a copy of this, not with what the call before it has set.
        self.context = contextvars.copy_context()
        # Not a deque, which takes 700 bytes, however little is in it.
        self.waiting: list[int] = []
        """Calls that may start when there is room, the first of them last."""

    def line_up(self) -> None:
        """Note which calls may start when. Answer calls that can't be made."""
        last_of: dict[str, int] = {}
        next_of: dict[int, int] = {}
        for number, call in enumerate(self.calls):
            tool = self.tools.get(call.name)
            if number in self.approvals.results:
                pass
            elif number == self.cut_number:
                self.answer(number, CUT_CALL, False)
            elif tool is None:
                names = ", ".join(self.tools) or "none at all"
                self.answer(number, f"there is no tool {call.name!r}; there are: {names}", False)
            elif call.unreadable is not None:
                given = repr_of(call.unreadable)
                self.answer(number, f"the arguments are no JSON object: {given}", False)
            elif tool.approve and not self.may_be_made(number, tool):
                pass
            elif not tool.sequential:
                self.waiting.append(number)
            else:
                if call.name in last_of:
                    next_of[last_of[call.name]] = number
                else:
                    self.waiting.append(number)
                last_of[call.name] = number
        self.waiting.reverse()
        if next_of:
            self.next_of = next_of

    def may_be_made(self, number: int, tool: Tool) -> bool:
        """Return whether a person has approved a call; otherwise answer it, or leave it waiting."""
        call = self.calls[number]
        try:
            tool.check(call.arguments)
        except ToolArgumentsError as error:
            self.fail(number, tool, error)
            return False
        said = self.approvals.answer_to(self.run, number, call)
        if isinstance(said, str):
            words = f": {said}" if said else ""
            self.answer(number, f"a person refused this call{words}", False)
        return said is True

    @enable_ki_protection
    def start(self, number: int) -> None:
        """Start the task of one call."""
        nursery = self.nursery
        assert nursery is not None
        name = self.calls[number].name
        self.context.run(lambda: nursery.start_soon(self.make_call, number, name=name))

    def start_next(self, after: int) -> None:
        """Start the call that was waiting for one that has ended, unless all is over."""
        if trio.current_effective_deadline() == -math.inf:
            return  # Cancelled: a new call would still take its first step, and have its effect.
        if after in self.next_of:
            self.start(self.next_of[after])
        elif self.waiting:
            self.start(self.waiting.pop())

    async def make_call(self, number: int) -> None:
        """Make one call, and record its outcome."""
        call = self.calls[number]
        tool = self.tools[call.name]
        # A call cancelled before it began takes not even its first step, which may have an effect.
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            words = _words_of(call)
            with ToolCallBlock(self.run, words) as number_of_equal:
                make = self.attempt if tool.retry is None else self.attempts
                if not self.run._observers:
                    content = await make(tool, call)
                else:
                    with CallOfTool(self.run, call.id, call.name, call.arguments):
                        content = await make(tool, call)
        except BaseException as error:
            if is_only_cancelled(error):
                raise
            failure = without_cancelled(error)
            if not isinstance(failure, Exception):
                raise failure from None
            failure = unwrap_single(failure)
            if isinstance(failure, ApprovalPending):
                self.approvals.note_below(number, failure)
            else:
                self.fail(number, tool, failure)
        else:
            self.approvals.made.append((words, number_of_equal))
            self.answer(number, content, True)
        if self.next_of or self.waiting:
            self.start_next(number)

    @enable_ki_protection
    async def attempts(self, tool: Tool, call: ToolCall) -> Content:
        """Do as `attempt`, again and again as the tool's `Retry` says."""
        retry = tool.retry
        assert retry is not None
        for retries in range(1, retry.attempts):
            try:
                return await self.attempt(tool, call)
            except (ToolArgumentsError, RunCancelled):
                raise
            except Exception as error:
                if self.is_over_budget(error) or not retry.applies_to(error):
                    raise
            await trio.sleep(retry.delay_seconds(retries, draw=random.random()))
        return await self.attempt(tool, call)

    @enable_ki_protection
    async def attempt(self, tool: Tool, call: ToolCall) -> Content:
        """Return what to tell the model of what the tool returns within its time."""
        if tool.timeout is None:
            return await _invoke(tool, call)
        with trio.CancelScope(deadline=trio.current_time() + tool.timeout):
            return await _invoke(tool, call)
        raise ToolTimeoutError(
            f"tool {call.name!r} was cut short after its timeout of {tool.timeout:g} s"
        )

    def fail(self, number: int, tool: Tool, error: Exception) -> None:
        """Tell the model about an error, or fail the run."""
        if isinstance(error, ToolArgumentsError):
            self.answer(number, f"the arguments don't fit: {error}", False)
            return
        try_note(error, f"in tool {tool.name!r} of run {self.run.path}")
        words = roots_in_words(error, at_most=ERROR_WORDS_AT_MOST)
        self.answer(number, f"the tool failed: {words}", False)
        if tool.on_error == "run" or self.is_over_budget(error):
            # harness: shared (a turn belongs to one run, and each call has its own number)
            self.errors = {**self.errors, number: error}
            if self.nursery is not None:
                self.nursery.cancel_scope.cancel()

    def is_over_budget(self, error: Exception) -> bool:
        """Return whether a budget of this run, or of one above it, has nothing left.

        Whatever the model tried next would end the same way. A budget that a tool gave to a run of
        its own is that tool's business.
        """
        own = f"{self.run.path}/"
        return any(not (one.run_path or "").startswith(own) for one in budget_refusals(error))

    def answer(self, number: int, content: Content, ok: bool) -> None:
        """Record a call's result."""
        call = self.calls[number]
        content = sendable_content(content)
        # harness: shared (a turn belongs to one run, and each call has its own number)
        self.answers[number] = content
        self.run.emit_nowait(ToolReturned(call.id, call.name, content_in_words(content), ok))

    def results(self) -> list[Message]:
        """Return a result for each call, in the order of the calls."""
        approvals = self.approvals
        messages: list[Message] = []
        for number, call in enumerate(self.calls):
            if number in approvals.results:
                messages.append(approvals.results[number])
                continue
            waits = number in approvals.open
            if self.answers[number] is None and not waits:
                self.answer(number, CUT_SHORT, False)
            text = WAITS if waits else self.answers[number] or ""
            messages.append(Message("tool", text, tool_call_id=call.id))
        if approvals.open:
            approvals.results = {
                number: message
                for number, message in enumerate(messages)
                if number not in approvals.open
            }
        return messages


@disable_ki_protection
async def _invoke(tool: Tool, call: ToolCall) -> Content:
    """Call the user's function, which Ctrl-C can end."""
    result = await tool.invoke(call.arguments, call.id)
    if isinstance(result, str):
        return result
    is_several = isinstance(result, list | tuple) and any(isinstance(one, File) for one in result)
    if not is_several and not isinstance(result, File):
        return as_text(result, call.name)
    parts = tuple(
        part if isinstance(part, File) else as_text(part, call.name)
        for part in (result if isinstance(result, list | tuple) else (result,))
    )
    return await read_parts(parts, f"the result of tool {call.name!r}")


async def read_parts(parts: Iterable[Any], what: str) -> Content:
    """Return parts as the content of a message, its files read.

    Args:
      parts: Texts, files and paths.
      what: What takes them, for the error.

    Raises:
      TypeError: if something else is among them.
      ValueError: if they are empty or too large, or nothing says of what type a file is.
      OSError: if a file can't be read.

    Checkpoint: if a file has to be read.

    Cancellation: nothing is left behind; a file is read to its end.
    """
    content = content_of(parts, what)
    if not is_unread(content):
        return content
    _waiting_for = "a file to be read"
    return await trio.to_thread.run_sync(read_content, content, what)


def as_text(result: Any, tool: str) -> str:
    """Return what to tell the model of a tool's result: text as it is, anything else as JSON.

    Raises:
      TypeError: if it can't be turned into JSON.
    """
    if isinstance(result, str):
        return result
    try:
        text = to_json_text(result)
        if _FILE_IN_JSON in text and holds_file(result):
            raise TypeError("a File is inside it; return the file, or a list of files and texts")
        return text
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(
            f"tool {tool!r} returned {type(result).__name__}, which can't be written as JSON: "
            f"{error}; return text, plain data, or a dataclass, attrs or msgspec class"
        ) from error
