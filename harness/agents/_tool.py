"""Make tools: functions that a model may call.

A tool is made once and never written to; what happens in a call belongs to the run that made it.
`tool` makes one from a typed function, `Agent.as_tool` from an agent. For another kind, derive a
class from `Tool`.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, overload

import attrs
import trio

from harness._arguments import check_seconds
from harness.agents._signatures import Signature, read_signature
from harness.errors import ToolArgumentsError
from harness.models import ToolDescription
from harness.policies import Retry

OnError: TypeAlias = Literal["model", "run"]

TIMEOUT_SECONDS = 60.0
"""How long a call may take, unless the tool says otherwise."""

THREADS = 40
"""Worker threads for plain functions in one ``trio.run``. A separate limit, because tools that hang
in abandoned threads mustn't take the threads of everything else."""

_threads: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("harness.tool_threads")

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What every provider accepts as the name of a tool."""


@attrs.frozen(eq=False, kw_only=True)
class Tool:
    """What a model may call. Frozen, and shared by any number of runs.

    For a new kind, derive from this class and write an `invoke`.
    """

    name: str
    """The name the model calls it by; unique among the tools of an agent."""

    description: str
    """What it is for, in words for the model."""

    parameters: dict[str, Any]
    """A JSON schema of the arguments; it describes an object."""

    timeout: float | None = TIMEOUT_SECONDS
    """Seconds that one call may take; None for no limit."""

    sequential: bool = False
    """Whether one run's calls of this tool are made one after the other, in the order asked for."""

    on_error: OnError = "model"
    """What happens when a call fails: the model is told, as the call's result, or the run fails."""

    retry: Retry | None = None
    """When a call that failed is made again before that happens; None: never. Each has `timeout`
    seconds."""

    approve: bool = False
    """Whether a person has to approve each call. Until then the run waits; see
    `harness.errors.ApprovalPending`."""

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Refuse arguments that don't fit, before a person is asked to approve the call.

        Raises:
          ToolArgumentsError: if they don't; always told to the model.
        """

    async def invoke(self, arguments: Mapping[str, Any], call_id: str) -> Any:
        """Do what the tool is for, once, as part of the current run.

        Args:
          arguments: As the model gave them; don't change them.
          call_id: The id of the call.

        Returns:
          A string, or anything that can be turned into JSON.

        Raises:
          ToolArgumentsError: if the arguments don't fit; always told to the model.
          Exception: what went wrong, handled as `on_error` says.

        Checkpoint: where the tool has one; it needn't.

        Cancellation: when its time is up, the run ends, or another call of the turn fails the run.
        """
        raise NotImplementedError

    def describe(self) -> ToolDescription:
        """Return what a model is told about this tool."""
        return ToolDescription(self.name, self.description, self.parameters)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


@attrs.frozen(eq=False, kw_only=True, repr=False)
class FunctionTool(Tool):
    """A tool that `tool` made from a function. Calling it calls the function."""

    abandon_on_cancel: bool = False
    """Whether a plain function is left alone in its thread when its time is up; what it returns
    later is discarded. Otherwise its end is waited for."""

    _function: Callable[..., Any] = attrs.field(alias="function")
    _signature: Signature = attrs.field(alias="signature")
    _is_async: bool = attrs.field(alias="is_async")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, as if it weren't a tool."""
        return self._function(*args, **kwargs)

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Refuse arguments that don't fit the parameters.

        Raises:
          ToolArgumentsError: if they don't.
        """
        self._signature.bind(arguments)

    async def invoke(self, arguments: Mapping[str, Any], call_id: str) -> Any:
        """Call the function, in a worker thread if it is plain.

        Args:
          arguments: What the model gave, by parameter; validated here.
          call_id: Not used.

        Raises:
          ToolArgumentsError: if the arguments don't fit the parameters.
          Exception: what the function raised.

        Checkpoint: where the function does, if it is async; always, if it is plain.

        Cancellation: reaches an async function. A plain one is waited for, or left alone in its
        thread if `abandon_on_cancel` says so.
        """
        args, named = self._signature.bind(arguments)
        if self._is_async:
            return await self._function(*args, **named)
        (result,) = await trio.to_thread.run_sync(
            functools.partial(_call_boxed, self._function, args, named),
            abandon_on_cancel=self.abandon_on_cancel,
            limiter=_thread_limiter(),
        )
        # The result of a plain function around an async one, as decorators leave behind.
        return await result if inspect.isawaitable(result) else result


@overload
def tool(
    fn: Callable[..., Any],
    /,
    *,
    name: str | None = None,
    timeout: float | None = TIMEOUT_SECONDS,
    sequential: bool = False,
    on_error: OnError = "model",
    retry: Retry | None = None,
    approve: bool = False,
    abandon_on_cancel: bool = False,
) -> FunctionTool: ...
@overload
def tool(
    *,
    name: str | None = None,
    timeout: float | None = TIMEOUT_SECONDS,
    sequential: bool = False,
    on_error: OnError = "model",
    retry: Retry | None = None,
    approve: bool = False,
    abandon_on_cancel: bool = False,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    timeout: float | None = TIMEOUT_SECONDS,
    sequential: bool = False,
    on_error: OnError = "model",
    retry: Retry | None = None,
    approve: bool = False,
    abandon_on_cancel: bool = False,
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Make a tool from a typed function: ``@tool``, or ``@tool(timeout=5)``.

    The model is told the function's name, its docstring and the types of its parameters. Its
    arguments are validated before the call; if they don't fit, it is told why and can try again.
    The calls of one turn run concurrently, each in a task of its own, with the context variables of
    the code that runs the agent. In the function, `harness.current_run` is the agent's run.

    Args:
      fn: Async or plain; a plain one is called in a worker thread, which has the run's context
        too. The threads are limited, for all tools together.
      name: What the model calls it by; by default the function's name.
      timeout: Seconds that one call may take; None for no limit. A thread can't be cut short:
        see ``abandon_on_cancel``.
      sequential: Whether calls of this tool in one run are made one after the other, in the order
        the model asked for them; for functions that change what they share.
      on_error: ``"model"`` tells the model what went wrong, so that it can try something else;
        ``"run"`` fails the run with the function's own error.
      retry: When a call that failed is made again before that, such as ``harness.Retry(3)``. Its
        effects have the same keys each time. None for a single attempt.
      approve: Whether a person has to approve each call. Until then the run waits, as
        `harness.errors.ApprovalPending` says; the other calls of the turn are made.
      abandon_on_cancel: Whether a plain function may be left alone in its thread when its time is
        up or the run is cancelled. What it returns later is discarded; what it does is not.

    Raises:
      TypeError: if the function has a parameter without a type, ``*args`` or ``**kwargs``, or an
        argument has the wrong type.
      ValueError: if providers wouldn't accept the name, or ``timeout`` is negative or nan.
    """

    def make(fn: Callable[..., Any]) -> FunctionTool:
        called = _called(fn)
        own_name = getattr(fn, "__name__", None) if name is None else name
        if own_name is None:
            raise TypeError(f"{fn!r} has no name for the model; write tool(name=...)")
        check_tool_name("tool(name=...)", own_name)
        check_call_options("tool", timeout, on_error)
        if retry is not None and not isinstance(retry, Retry):
            raise TypeError(
                f"tool(retry=...) takes a harness.Retry, such as Retry(3), not {retry!r}; None is "
                "for a single attempt"
            )
        if not isinstance(approve, bool):
            raise TypeError(f"tool(approve=...) takes True or False, not {approve!r}")
        signature = read_signature(fn, own_name)
        return FunctionTool(
            name=own_name,
            description=signature.description,
            parameters=signature.schema,
            timeout=timeout,
            sequential=sequential,
            on_error=on_error,
            retry=retry,
            approve=approve,
            abandon_on_cancel=abandon_on_cancel,
            function=fn,
            signature=signature,
            is_async=inspect.iscoroutinefunction(called),
        )

    return make if fn is None else make(fn)


def _called(fn: Any) -> Any:
    """Return the function that a call of ``fn`` calls; refuse what can't be a tool."""
    if isinstance(fn, Tool):
        raise TypeError(f"{fn!r} is a tool already; give tool() the function")
    if callable(getattr(fn, "as_tool", None)) and not inspect.isclass(fn):
        raise TypeError(
            f"{fn!r} isn't a function; for a tool that hands a task to it, write .as_tool()"
        )
    if not callable(fn) or inspect.isclass(fn):
        raise TypeError(f"tool() takes a function, async or plain, not {fn!r}")
    called = fn if inspect.isroutine(fn) else type(fn).__call__
    if inspect.isasyncgenfunction(called) or inspect.isgeneratorfunction(called):
        raise TypeError(
            f"tool() takes a function that returns its result, not the generator {fn!r}; "
            "return a list"
        )
    return called


def check_call_options(call: str, timeout: float | None, on_error: str) -> None:
    """Refuse a timeout or an ``on_error`` that a tool can't have."""
    if timeout is not None:
        check_seconds(f"{call}(timeout=...)", timeout, advice="None is for no limit")
    if on_error not in ("model", "run"):
        raise ValueError(f'{call}(on_error=...) takes "model" or "run", not {on_error!r}')


def name_for_models(name: str) -> str:
    """Return the name in a form that every provider accepts; MCP allows other and longer ones."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64]


def check_tool_name(call: str, name: object) -> None:
    """Refuse a name that some provider would refuse.

    Raises:
      TypeError: if it isn't a string.
      ValueError: if it has characters other than letters, digits, ``_`` and ``-``, or over 64.
    """
    if not isinstance(name, str):
        raise TypeError(f"{call} takes a name as a string, not {name!r}")
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{call} takes up to 64 letters, digits, '_' and '-', as providers do, not {name!r}"
        )


def one_string(arguments: Mapping[str, Any], tool: str) -> str:
    """Return the one argument of a tool that takes a string, whatever the model called it.

    Raises:
      ToolArgumentsError: if it isn't one string.
    """
    values = list(arguments.values())
    if len(values) != 1 or not isinstance(values[0], str):
        raise ToolArgumentsError(
            f"{tool} takes one argument, a string, and got {dict(arguments)!r}"
        )
    return values[0]


def _call_boxed(fn: Callable[..., Any], args: list[Any], named: dict[str, Any]) -> tuple[Any]:
    """Call a function in a thread, boxing its result; trio lets no bare coroutine out of one."""
    return (fn(*args, **named),)


def _thread_limiter() -> trio.CapacityLimiter:
    try:
        return _threads.get()
    except LookupError:
        limiter = trio.CapacityLimiter(THREADS)
        _threads.set(limiter)
        return limiter
