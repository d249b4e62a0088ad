"""Define the agent: a model with instructions and tools, safe to run many times at once.

Nothing is ever written to an agent. Its attributes are fixed when it is made, and everything that
happens belongs to a run: history, usage, events, injected messages, cancellation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, overload

from trio.lowlevel import enable_ki_protection

from harness._approvals import ParkedRuns, parked_runs
from harness._arguments import check_count, says_near_options
from harness.agents._calls import read_parts
from harness.agents._conversation import Conversation
from harness.agents._delegation import DelegateTool, delegate_tool
from harness.agents._history import HistoryProcessor
from harness.agents._output import read_output_type
from harness.agents._reply import Reply
from harness.agents._reply_json import reply_from_json, reply_to_json
from harness.agents._stream import AgentStream
from harness.agents._tool import Tool, tool
from harness.agents._types import to_json
from harness.agents._work import Setup, Work
from harness.errors import ApprovalPending
from harness.models import Content, File, Message, Model, NamedModel, Prompt
from harness.models._file import content_of
from harness.runs import Run, current_run_or_none, open_run
from harness.runs._cleanup import shielded_from
from harness.runs._endings import cancelled_error
from harness.runs._functions import refuse_mismatch

OutputT = TypeVar("OutputT")
OtherT = TypeVar("OtherT")
if TYPE_CHECKING:
    # Type checkers know it without its being installed. `Agent[str]` is `Agent[str, Any]`.
    from typing_extensions import TypeVar as TypeVarWithDefault

    DepsT_contra = TypeVarWithDefault("DepsT_contra", contravariant=True, default=Any)
    OtherDepsT = TypeVarWithDefault("OtherDepsT", default=Any)
else:
    DepsT_contra = TypeVar("DepsT_contra", contravariant=True)
    OtherDepsT = TypeVar("OtherDepsT")

STREAM_BUFFER = 256
"""How many events may wait for a stream's reader before the agent waits for it between turns."""


@says_near_options
class Agent(Generic[OutputT, DepsT_contra]):
    """A model with instructions and tools. Frozen: run it as often as you like, any number at once.

    An agent is also an async function of its prompt, so ``fan_out(agent, prompts)`` runs it on
    many; the values are replies.

    Args:
      name: For people: the name of its runs. Need not be unique.
      model: Who answers; see `harness.models`. Or the name of a model, such as
        ``"openai:gpt-5-mini"``, for a `harness.models.NamedModel`.
      instructions: What the model is told first: text, or a function of the run that returns it,
        plain or async, called once per run. It can look at ``run.deps``.
      tools: What the model may call: tools, or functions that `tool` turns into tools.
      max_turns: How often the model may be asked in one run.
      output_type: What an answer must be: an attrs or msgspec class, a dataclass, a pydantic model,
        or a plain type such as ``list[str]``. The model is told, its answer is validated, and it is
        told what doesn't fit. None for text.
      output_check: Called with each answer, plain or async; a ``ValueError`` tells the model what
        won't do, as if the answer didn't fit. None for no check beyond `output_type`.
      output_repairs: How often the model is told that its answer doesn't fit, and gives another.
      history: A function from messages to messages, plain or async, called before each request
        with the history and a `HistoryView`: what it returns is sent. Ready ones are
        `keep_last_turns` and `summarise`. The reply and the conversation keep everything.
      deps_type: The class that the deps of its runs must be of, their own or inherited; checked
        before the model is asked. None for any. To type checkers such an agent is an
        ``Agent[str, Database]``.

    Raises:
      TypeError: if an argument has the wrong type.
      ValueError: if the name is empty, two tools share a name, or ``max_turns`` is less than 1.
    """

    if not TYPE_CHECKING:

        def __class_getitem__(cls, types: Any) -> Any:
            """Let ``Agent[str]`` be, as for type checkers: older Pythons know no default."""
            return super().__class_getitem__(types if isinstance(types, tuple) else (types, Any))

    name: str
    """The name of its runs."""

    model: Model
    """Who answers."""

    instructions: str | Callable[[Run[Any]], str | Awaitable[str]]
    """What the model is told before everything else, or what gives that."""

    tools: tuple[Tool, ...]
    """What the model may call."""

    max_turns: int
    """How often the model may be asked in one run."""

    output_type: Any
    """What an answer must be; None for text."""

    output_check: Callable[[Any], object] | None
    """What an answer must pass besides; None for nothing."""

    output_repairs: int
    """How often the model is told that its answer doesn't fit."""

    history: HistoryProcessor | None
    """What shortens a long history before each request; None for nothing."""

    deps_type: Any
    """The class that the deps of its runs must be of; None for any."""

    _setup: Setup
    _options: dict[str, Any]

    @overload
    def __init__(
        self: Agent[str, OtherDepsT],
        name: str,
        *,
        model: Model | str,
        instructions: str | Callable[[Run[OtherDepsT]], str | Awaitable[str]] = "",
        tools: Iterable[Tool | Callable[..., Any]] = (),
        max_turns: int = 10,
        output_type: None = None,
        output_check: Callable[[str], object] | None = None,
        output_repairs: int = 1,
        history: HistoryProcessor | None = None,
        deps_type: type[OtherDepsT] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[OtherT, OtherDepsT],
        name: str,
        *,
        model: Model | str,
        instructions: str | Callable[[Run[OtherDepsT]], str | Awaitable[str]] = "",
        tools: Iterable[Tool | Callable[..., Any]] = (),
        max_turns: int = 10,
        output_type: type[OtherT],
        output_check: Callable[[OtherT], object] | None = None,
        output_repairs: int = 1,
        history: HistoryProcessor | None = None,
        deps_type: type[OtherDepsT] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[Any, OtherDepsT],
        name: str,
        *,
        model: Model | str,
        instructions: str | Callable[[Run[OtherDepsT]], str | Awaitable[str]] = "",
        tools: Iterable[Tool | Callable[..., Any]] = (),
        max_turns: int = 10,
        output_type: Any = None,
        output_check: Callable[[Any], object] | None = None,
        output_repairs: int = 1,
        history: HistoryProcessor | None = None,
        deps_type: type[OtherDepsT] | None = None,
    ) -> None: ...
    def __init__(
        self,
        name: str,
        *,
        model: Model | str,
        instructions: str | Callable[[Run[Any]], str | Awaitable[str]] = "",
        tools: Iterable[Tool | Callable[..., Any]] = (),
        max_turns: int = 10,
        output_type: Any = None,
        output_check: Callable[[Any], object] | None = None,
        output_repairs: int = 1,
        history: HistoryProcessor | None = None,
        deps_type: Any = None,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"Agent(name=...) takes a string, not {name!r}")
        if not isinstance(instructions, str):
            if not callable(instructions):
                raise TypeError(
                    "Agent(instructions=...) takes a string, or a function of the run that returns "
                    f"one, not {instructions!r}"
                )
            refuse_mismatch("Agent(instructions=...)", instructions, "the run", "run")
        if history is not None and not callable(history):
            raise TypeError(
                "Agent(history=...) takes a function from messages to messages, such as "
                f"keep_last_turns(20), not {history!r}"
            )
        if not name:
            raise ValueError("Agent() takes a readable name, not ''")
        if isinstance(model, str):
            model = NamedModel(model)
        if isinstance(model, type):
            raise TypeError(
                f"Agent(model=...) takes a model, not the class {model.__name__}; make one of it"
            )
        if not callable(getattr(model, "complete", None)) or not callable(
            getattr(model, "stream", None)
        ):
            raise TypeError(
                f"Agent(model=...) takes a model with `complete` and `stream`, not {model!r}; "
                "for a plain function there is harness.models.FunctionModel"
            )
        if deps_type is not None:
            try:
                isinstance(None, deps_type)
            except TypeError as error:
                raise TypeError(
                    f"Agent(deps_type=...) takes a class, not {deps_type!r} ({error}); None allows "
                    "any deps"
                ) from None
        check_count("Agent(max_turns=...)", max_turns, advice="the default is 10")
        if output_check is not None:
            if not callable(output_check):
                raise TypeError(
                    f"Agent(output_check=...) takes a function of the answer, not {output_check!r}"
                )
            refuse_mismatch("Agent(output_check=...)", output_check, "the answer", "answer")
        check_count("Agent(output_repairs=...)", output_repairs, advice="0 for none", least=0)
        made = _as_tools(name, tools)
        by_name = {one.name: one for one in made}
        output = read_output_type(output_type)
        form = "" if output is None else output.instructions
        instruct = None if isinstance(instructions, str) else instructions
        system = instructions if isinstance(instructions, str) else ""
        text = "\n\n".join(part for part in (system, form) if part)
        setup = Setup(
            name=name,
            model=model,
            system=system,
            head=(Message("system", text),) if text else (),
            instruct=instruct,
            form=form,
            history=history,
            tools=by_name,
            descriptions=tuple(one.describe() for one in made),
            max_turns=max_turns,
            output=output,
            output_check=output_check,
            output_repairs=output_repairs,
            deps_type=deps_type,
        )
        options = {
            "model": model,
            "instructions": instructions,
            "tools": made,
            "max_turns": max_turns,
            "output_type": output_type,
            "output_check": output_check,
            "output_repairs": output_repairs,
            "history": history,
            "deps_type": deps_type,
        }
        attributes = {"name": name, **options, "_setup": setup, "_options": options}
        for attribute, set_to in attributes.items():
            object.__setattr__(self, attribute, set_to)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(
            f"agent {self.name!r} is frozen, so that any number of runs can share it; what belongs "
            "to one run goes into its deps or a RunLocal, and another agent is made with Agent()"
        )

    def __delattr__(self, name: str) -> NoReturn:
        self.__setattr__(name, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_again, (type(self), self.name, self._options)

    def __repr__(self) -> str:
        return f"<Agent {self.name!r}>"

    async def run(
        self,
        prompt: Prompt,
        *,
        deps: DepsT_contra | None = None,
        conversation: Conversation | None = None,
    ) -> Reply[OutputT]:
        """Answer ``prompt``, in a run of its own below the current one.

        Args:
          prompt: What the user says: text, or a list of texts, files (`harness.models.File`) and
            paths (`pathlib.Path`). Files that are named by a path are read first, in a thread.
          deps: What tools work with, as ``current_run().deps``; None for those of the surrounding
            run.
          conversation: A history to continue; this run's messages are appended to it when it ends.
            None for none.

        Returns:
          The reply; a partial one if this run, or one above it, was asked to stop.

        Raises:
          TypeError: if an argument has the wrong type, or the run's deps are no `deps_type`.
          ValueError: if ``prompt`` is empty, or a file in it is empty, too large or of an unknown
            type.
          OSError: if a file can't be read.
          ModelFileError: if the model can't take a file; has ``.partial``.
          MaxTurnsError: if there is no answer after `max_turns` turns; has ``.partial``.
          OutputError: if the answer doesn't fit `output_type` or doesn't pass `output_check`, even
            after `output_repairs`; has ``.partial``.
          RunCancelled: if this run itself was cancelled by `Run.cancel`; has ``.partial``.
          ApprovalPending: if tool calls wait for a person's approval; see `resume`. The reply so
            far is its ``.partial``, and what waits its ``.waiting``.
          ModelError: what the model raised, or that its reply makes no sense; has ``.partial``.
          Exception: what the model raised, or a tool with ``on_error="run"``.

        Checkpoint: always.

        Cancellation: the model request and tool calls in progress are cancelled and waited for;
        nothing is appended to the conversation.
        """
        return await self._run(prompt, deps=deps, conversation=conversation)

    async def resume(
        self,
        pending: ApprovalPending,
        *,
        deps: DepsT_contra | None = None,
        conversation: Conversation | None = None,
    ) -> Reply[OutputT]:
        """Go on with a run that waited for a person's approval, in a new run::

            try:
                reply = await agent.run("Refund order 7")
            except ApprovalPending as pending:
                pending.approve()
                reply = await agent.resume(pending)

        Calls that nobody has answered wait on: this raises `ApprovalPending` again, when the others
        are made. In a batch with a journal, the next session does the same by itself.

        Args:
          pending: What the run raised, after its ``approve`` and ``deny``. It isn't changed, so
            resuming it twice makes the calls twice.
          deps: As for `run`.
          conversation: The conversation of that run, if it had one.

        Raises:
          TypeError: if ``pending`` isn't an `ApprovalPending`.
          ValueError: if another agent raised it, or several runs did.
          Exception: what `run` raises.

        Checkpoint: always.

        Cancellation: as for `run`.
        """
        if not isinstance(pending, ApprovalPending):
            raise TypeError(
                f"agent.resume() takes the ApprovalPending that a run raised, not {pending!r}"
            )
        root = pending._root
        if root is None:
            raise ValueError(
                "agent.resume() goes on with one run, and these are several that waited in one "
                "item; catch the ApprovalPending of each agent.run()"
            )
        token = parked_runs.set(ParkedRuns(pending._states))
        try:
            return await self._run(
                "", deps=deps, conversation=conversation, resumed=(root, pending._states[root])
            )
        finally:
            parked_runs.reset(token)

    def stream(
        self,
        prompt: Prompt,
        *,
        deps: DepsT_contra | None = None,
        conversation: Conversation | None = None,
        buffer: int = STREAM_BUFFER,
    ) -> AgentStream[OutputT]:
        """Answer as `run` does, and report what happens while it happens::

            async with agent.stream("Where is my card?") as stream:
                async for event in stream:
                    ...
            stream.reply

        Args:
          prompt, deps, conversation: As for `run`.
          buffer: How many events may wait for the reader. When that many do, pieces of text are
            joined, and the agent waits before its next turn until the reader has caught up.

        Raises:
          TypeError: if an argument has the wrong type.
          ValueError: if ``prompt`` is empty or ``buffer`` less than 1.
          OSError: on entry, if a file can't be read.
          Exception: whatever `run` would have raised, except `RunCancelled`: from the iteration,
            after the last event; at the end of the block if nobody was reading.

        Cancellation: leaving the block cancels the run and waits for it.
        """
        check_count("agent.stream(buffer=...)", buffer, advice=f"the default is {STREAM_BUFFER}")
        return AgentStream(
            open_run(self.name, deps=deps),
            self._setup,
            self._checked(prompt, conversation),
            conversation,
            buffer=buffer,
        )

    async def __call__(self, item: Prompt) -> Reply[OutputT]:
        """Answer one item of a fan-out, a pipeline or a router, as `run` does.

        Raises:
          RunCancelled: also if a run above it was asked to stop before there was an answer. A
            partial reply in its place would be handed on as one, and a journal would never ask for
            it again.
        """
        reply = await self._run(item)
        around = current_run_or_none()
        if around is not None and reply.finish in ("tool_calls", "other"):  # No answer yet.
            words = around._stop_words(shielded_from())
            if words is not None:
                error = cancelled_error(around, reply)
                error.reason = words
                raise error
        return reply

    def with_model(self, model: Model) -> Agent[OutputT, DepsT_contra]:
        """Return an agent like this one except for its model.

        Args:
          model: Who answers; see `harness.models`. Or the name of a model, such as
        ``"openai:gpt-5-mini"``, for a `harness.models.NamedModel`.

        Raises:
          TypeError: if ``model`` isn't a model.
        """
        return _make_again(Agent, self.name, {**self._options, "model": model})

    def with_models(self, exchange: Callable[[Model], Model]) -> Agent[OutputT, DepsT_contra]:
        """Return an agent like this one with other models, all the way down.

        Args:
          exchange: Called with the model of this agent, of each agent it hands tasks to by
            `as_tool`, and so on; returns the model that answers instead.

        Raises:
          TypeError: if it returns something else than a model.
        """

        def exchanged(answer: Any) -> Any:
            return answer.__self__.with_models(exchange)._run

        model = exchange(self.model)
        tools = [
            one.with_answer(exchanged) if isinstance(one, DelegateTool) else one
            for one in self.tools
        ]
        return _make_again(Agent, self.name, {**self._options, "model": model, "tools": tools})

    @staticmethod
    def output_as_json(output: Any) -> Any:
        """Return an output in JSON form: dicts, lists, strings and numbers.

        Args:
          output: A reply's output, of any ``output_type``.

        Raises:
          TypeError: if something in it has no JSON form.
        """
        return to_json(output)

    def batch_settings(self) -> dict[str, Any]:
        """Return what decides its answers, as plain data: a journal compares it on resuming.

        That is the instructions, the name of the model, what each tool is described by, for an
        agent as a tool its settings too, and the schema of the output type.
        """
        output = self._setup.output
        settings: dict[str, Any] = {
            "instructions": _text_of(self.instructions),
            "model": getattr(self.model, "name", None) or type(self.model).__name__,
        }
        if output is not None:
            settings["output_type"] = output.schema
        for one in self.tools:
            told: dict[str, Any] = {"description": one.description, "parameters": one.parameters}
            if isinstance(one, DelegateTool):
                told["agent"] = one.settings()
            settings[f"tool {one.name}"] = told
        return settings

    def value_to_json(self, value: Any) -> Any:
        """Return a reply in JSON form, as a fan-out of this agent with a journal keeps it.

        Args:
          value: A reply; or something already in JSON form, as a fallback may give.

        Raises:
          TypeError: if the output, or an argument of a tool call, has no JSON form.
        """
        return {"reply": reply_to_json(value)} if isinstance(value, Reply) else {"value": value}

    def value_from_json(self, plain: Any) -> Any:
        """Return the reply that `value_to_json` was given.

        Args:
          plain: What it returned.

        Raises:
          Exception: if it doesn't fit, for instance because `output_type` was different.
        """
        if "reply" not in plain:
            return plain["value"]
        return reply_from_json(plain["reply"], self._setup.output)

    def as_tool(self, *, private: bool = False) -> Tool:
        """Return a tool that hands a task to this agent, for the ``tools`` of another.

        It takes one string, the task, and returns the agent's output. Each call is a run of its
        own, below the run of the calling agent.

        Args:
          private: Whether the events of those runs stay hidden from the streams and subscribers
            of the runs above.
        """
        return delegate_tool(self.name, self._setup.system, self._run, private=private)

    @enable_ki_protection
    async def _run(
        self,
        prompt: Prompt,
        *,
        deps: Any = None,
        conversation: Conversation | None = None,
        private: bool = False,
        on_start: Callable[[Run], None] | None = None,
        resumed: tuple[str, dict[str, Any]] | None = None,
    ) -> Reply[OutputT]:
        content = "" if resumed is not None else self._checked(prompt, conversation)
        if type(content) is not str:
            content = await read_parts(content, f"agent {self.name!r}")
        work = Work(self._setup, content, conversation, resumed)
        run: Run | None = None
        try:
            async with open_run(self.name, deps=deps, private=private) as run:
                if on_start is not None:
                    on_start(run)
                await work.drive(run)
        except Exception as error:
            if run is not None:
                work.complete_error(run, error)
            raise
        reply = work.reply(run)
        if run.status == "cancelled":
            raise cancelled_error(run, reply)
        return reply

    def _checked(self, prompt: object, conversation: object) -> Content:
        """Return the prompt as the content of a message, whose files may not have been read."""
        content: Any = prompt
        if isinstance(prompt, str):
            if not prompt:
                raise ValueError(f"agent {self.name!r} takes a prompt with text in it, not ''")
        elif isinstance(prompt, list | tuple | File | PurePath):
            parts = prompt if isinstance(prompt, list | tuple) else [prompt]
            content = content_of(parts, f"agent {self.name!r}")
        else:
            raise TypeError(
                f"agent {self.name!r} takes its prompt as a string, or a list of texts and files, "
                f"not {prompt!r}; for other items write a function that makes the prompt and "
                "awaits agent.run(prompt)"
            )
        if conversation is not None and not isinstance(conversation, Conversation):
            raise TypeError(
                "agent.run(conversation=...) takes a harness.agents.Conversation, "
                f"not {conversation!r}"
            )
        checked: Content = content
        return checked


def _make_again(cls: type[Agent[Any]], name: str, options: dict[str, Any]) -> Agent[Any]:
    """Make an agent for ``copy`` and ``pickle``, which can't set frozen attributes."""
    return cls(name, **options)


def _text_of(instructions: str | Callable[..., object]) -> str:
    """Return instructions as text; a function's by its name, as its text may differ in each run."""
    if isinstance(instructions, str):
        return instructions
    return f"{instructions.__module__}.{getattr(instructions, '__qualname__', type(instructions))}"


def _as_tools(agent: str, tools: Iterable[Tool | Callable[..., Any]]) -> tuple[Tool, ...]:
    if isinstance(tools, (str, Tool)) or not isinstance(tools, Iterable):
        raise TypeError(f"Agent(tools=...) takes several tools, such as [lookup], not {tools!r}")
    made = tuple(one if isinstance(one, Tool) else tool(one) for one in tools)
    names: set[str] = set()
    for one in made:
        if one.name in names:
            raise ValueError(
                f"agent {agent!r} has two tools of the name {one.name!r}, which a model can't tell "
                "apart; give one another name: with tool(name=...), the name of the agent that is "
                "handed the task, or open_mcp_tools(prefix=...)"
            )
        names.add(one.name)
    return made
