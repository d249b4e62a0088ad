"""Keep what a turn's calls came to that needs a person's approval, and what it waits for.

A run that waits is cut off in the middle of a turn: some calls have results, others wait, and some
were made by an agent below that waits itself. `Approvals` is that turn, `saved` and `restored` turn
the run's state into JSON and back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import msgspec

from harness._approvals import Answer, digest_of_call
from harness.agents._types import to_json
from harness.errors import ApprovalPending
from harness.models import Message, ToolCall, Usage
from harness.runs import Run

_NOTHING: Mapping[Any, Any] = MappingProxyType({})


@attrs.define(eq=False)
class Approvals:
    """What is known of the calls of one turn; one is made for each, and few have anything in it."""

    key_of: Callable[[Run], str]
    """Returns the key of the turn's run, the same in every session."""

    made: list[tuple[str, int]]
    """The run's calls that returned, in words, each with its occurrence; see `ToolCallBlock`."""

    answers: Mapping[str, Answer] = _NOTHING
    """What a person said, by the digest of the call."""

    results: Mapping[int, Message] = _NOTHING
    """The results of calls that are over, by their place in the turn. Of this session's only if
    another call waits."""

    open: frozenset[int] = frozenset()
    """The places of calls that wait."""

    waiting: tuple[dict[str, Any], ...] = ()
    """Calls of this run that wait, in the form of `harness._approvals`."""

    below: Mapping[str, dict[str, Any]] = _NOTHING
    """The runs below that wait."""

    def answer_to(self, run: Run, number: int, call: ToolCall) -> Answer | None:
        """Return what a person said of a call; None if nothing yet, so that it waits."""
        arguments = to_json(call.arguments)
        digest = digest_of_call(self.key_of(run), number, call.name, arguments)
        said = self.answers.get(digest)
        if said is None:
            self.open |= {number}
            self.waiting += ({"id": digest, "tool": call.name, "arguments": arguments},)
        return said

    def note_below(self, number: int, error: ApprovalPending) -> None:
        """Note that a call waits, because a run that it started does."""
        self.open |= {number}
        self.below = {**self.below, **error._states}


@attrs.frozen(kw_only=True)
class Saved:
    """A run that waits, in the middle of a turn."""

    agent: str
    """The name of its agent."""

    system: str
    """Its instructions."""

    messages: tuple[Message, ...]
    """Its history up to the calls."""

    sent: tuple[Message, ...] | None
    """The same as the history processor left it; None if there is none."""

    covered: int
    """How many of the messages that has in it."""

    start: int
    """How many messages were there before it."""

    turns: int
    usage: Usage
    delegated_usage: Usage
    repairs: int
    told_of_empty: bool
    reasoning: str

    results: dict[str, Message]
    """Of the calls that were made, by their place."""

    made: list[tuple[str, int]]
    """See `Approvals.made`. Effects of later calls mustn't get the keys of these."""

    waiting: tuple[dict[str, Any], ...]
    answers: dict[str, Any]


def saved(state: Saved) -> dict[str, Any]:
    """Return the state as plain JSON."""
    plain: dict[str, Any] = to_json(state)
    return plain


def restored(plain: Mapping[str, Any]) -> Saved:
    """Return the state that `saved` wrote.

    Raises:
      msgspec.ValidationError: if it doesn't fit.
    """
    return msgspec.convert(plain, Saved)
