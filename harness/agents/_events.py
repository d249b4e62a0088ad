"""Define the payloads of an agent's events: plain frozen records.

Each is the payload of a `harness.Event`, which says whose it is and when. They hold only strings,
numbers and JSON, so the ``attrs.asdict`` of one can be written as it is.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import attrs

from harness.models import Usage


@attrs.frozen
class TurnStarted:
    """The model is about to be asked."""

    turn: int
    """Which turn of the run, counting from 1."""


@attrs.frozen
class TextDelta:
    """A piece of what the model says. The pieces of a turn make up its text."""

    text: str
    """The piece; never empty."""


@attrs.frozen
class ToolCalled:
    """The model called a tool."""

    call_id: str
    """What the result is matched by."""

    name: str
    """The tool."""

    arguments: dict[str, Any]
    """What it is called with; don't change it."""


@attrs.frozen
class ToolReturned:
    """A call has its result. Each `ToolCalled` gets one, even when the run is cancelled."""

    call_id: str
    """The call."""

    name: str
    """The tool."""

    content: str
    """What the model is told."""

    ok: bool
    """Whether that is what the tool returned, rather than that it failed or was cut short."""


@attrs.frozen
class UsageReported:
    """What this turn's request used."""

    usage: Usage
    """Its tokens, as the model reported them."""


@attrs.frozen
class Delegated:
    """A tool call was handed to another agent, and that agent's run has begun."""

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
    """The status the run ended with."""

    error: str | None = None
    """Why it failed, in words."""


AgentEvent: TypeAlias = (
    TurnStarted | TextDelta | ToolCalled | ToolReturned | UsageReported | Delegated | RunEnded
)
"""Every payload that agents emit."""

AGENT_EVENTS: frozenset[type] = frozenset(get_args(AgentEvent))
