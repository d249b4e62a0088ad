"""Tell observers of each call to a model, and of each tool that it had called."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import trio

from harness.models._messages import ModelRequest, ModelResponse, ToolCall, Usage
from harness.models._price import Price
from harness.runs import Run
from harness.runs._endings import is_only_cancelled
from harness.runs._waits import Wait


class ModelCallOver(NamedTuple):
    """A model was asked once, and has answered, failed or been cut off."""

    model: str
    provider: str | None
    started_at: float
    """When it was asked, after all waits for limits."""

    status: str
    """``"ok"``, ``"failed"`` or ``"cancelled"``."""

    usage: Usage | None
    """What it used; None if that isn't known."""

    cost_usd: float | None
    """What that cost; None without a price."""

    finish: str | None
    """How its answer ended; None if it has none."""

    request: ModelRequest
    response: ModelResponse | None
    error: BaseException | None

    def said_since(self, before: int) -> tuple[int, list[tuple[str, str]]]:
        """Return how many messages there are now, and the roles and texts of the new ones.

        For a journal that keeps them. A history that was made shorter is new as a whole.

        Args:
          before: How many there were after the previous call in the same run.
        """
        asked = self.request.messages
        new = asked[before if before <= len(asked) else 0 :]
        said: list[tuple[str, str]] = [
            (one.role, _with_calls(one.text, one.tool_calls)) for one in new
        ]
        if self.response is None:
            return len(asked), said
        said.append(("assistant", _with_calls(self.response.content, self.response.tool_calls)))
        return len(asked) + 1, said


def _with_calls(text: str, calls: Iterable[ToolCall]) -> str:
    lines = [text] if text else []
    return "\n".join([*lines, *(f"calls {one.name}({one.arguments})" for one in calls)])


class AgentBegan(NamedTuple):
    """A run is that of an agent."""

    agent: str
    model: str | None
    """The model it asks, if that says its name; a model that stands for others has its own."""

    provider: str | None


class ToolCallOver(NamedTuple):
    """A tool was called, and has returned, failed or been cut off."""

    call_id: str
    name: str
    started_at: float
    status: str
    """``"ok"``, ``"failed"`` or ``"cancelled"``."""

    arguments: dict[str, Any]
    error: BaseException | None


class Called(Protocol):
    """A model, as observers see it."""

    name: str
    provider: str | None
    price: Price | None


class ModelCall:
    """One call to a model that observers hear of: a wait of the run, and its outcome."""

    __slots__ = ("_began", "_model", "_request", "_run", "_wait", "response", "usage")

    def __init__(self, run: Run, model: Called, request: ModelRequest) -> None:
        self._run, self._model, self._request = run, model, request
        self._wait = Wait(run, "model", model.name)
        self._began = trio.current_time()
        self.usage: Usage | None = None
        """What it used, once that is known."""
        self.response: ModelResponse | None = None
        """The whole answer, if there is one."""

    def __enter__(self) -> ModelCall:
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        model, response = self._model, self.response
        cost = None
        if model.price is not None and self.usage is not None:
            cost = model.price.cost_usd(self.usage)
        over = ModelCallOver(
            model.name,
            model.provider,
            self._began,
            status_of_call(error),
            self.usage,
            cost,
            None if response is None else response.finish,
            self._request,
            response,
            error,
        )
        self._wait.over()
        self._run._notice(over)


class CallOfTool:
    """One call of a tool that observers hear of."""

    __slots__ = ("_arguments", "_began", "_call_id", "_name", "_run", "_wait", "error")

    def __init__(self, run: Run, call_id: str, name: str, arguments: dict[str, Any]) -> None:
        self._run, self._call_id, self._name, self._arguments = run, call_id, name, arguments
        self._wait = Wait(run, "tool", name)
        self._began = trio.current_time()

    def __enter__(self) -> CallOfTool:
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        status = status_of_call(error)
        over = ToolCallOver(self._call_id, self._name, self._began, status, self._arguments, error)
        self._wait.over()
        self._run._notice(over)


def status_of_call(error: BaseException | None) -> str:
    """Return how a call ended."""
    if error is None:
        return "ok"
    return "cancelled" if is_only_cancelled(error) else "failed"
