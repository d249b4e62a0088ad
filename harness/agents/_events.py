"""What an agent's run tells: the payloads of its events, plain frozen records.

Each stands in the payload of a `harness.Event`, which says whose it is and when. They hold nothing
but strings, numbers and JSON, so ``attrs.asdict`` of one can be written as it is.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import attrs

from harness.models import Usage


@attrs.frozen
class TurnStarted:
    """The model is about to be asked."""

    turn: int
    """Which turn of the run, counting from 1."""


@attrs.frozen
class TextDelta:
    """A piece of what the model says. All pieces of a turn together are its text."""

    text: str
    """The piece; never empty."""


@attrs.frozen
class ToolCalled:
    """The model wants a tool called."""

    call_id: str
    """What the result is matched by."""

    name: str
    """The tool."""

    arguments: dict[str, Any]
    """What it is called with; not to be changed."""


@attrs.frozen
class ToolReturned:
    """A call has its result. Each `ToolCalled` has one, also when the run is cancelled."""

    call_id: str
    """The call."""

    name: str
    """The tool."""

    content: str
    """What the model is told."""

    ok: bool
    """Whether that is what the tool returned, and not that it failed or was cut short."""


@attrs.frozen
class UsageReported:
    """What the request of this turn used."""

    usage: Usage
    """Its tokens, as the model told them."""


@attrs.frozen
class Delegated:
    """A tool call was handed to another agent, whose run has begun."""

    call_id: str
    """The call."""

    agent: str
    """The other agent's name."""

    run_id: str
    """Its run; its events carry this id."""


@attrs.frozen
class RunEnded:
    """The last event of a run."""

    status: Literal["ok", "failed", "timed_out", "cancelled"]
    """The status that the run ends with."""

    error: str | None = None
    """What it failed of, in words."""


AgentEvent: TypeAlias = (
    TurnStarted | TextDelta | ToolCalled | ToolReturned | UsageReported | Delegated | RunEnded
)
"""Every payload that agents emit."""

AGENT_EVENTS: frozenset[type] = frozenset(
    {TurnStarted, TextDelta, ToolCalled, ToolReturned, UsageReported, Delegated, RunEnded}
)
