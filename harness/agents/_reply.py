"""Hold what a run of an agent gives back."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import attrs

from harness._approvals import WaitingCall
from harness.models import Finish, Message, Usage

OutputT_co = TypeVar("OutputT_co", covariant=True)


@attrs.frozen
class Reply(Generic[OutputT_co]):
    """What an agent answered, and how it got there.

    A run that was stopped, cancelled or ended by an error leaves one too, with what was finished.
    It isn't `complete`; nor is one whose answer was cut short, filtered or refused. A value: it
    holds no run and no agent.
    """

    output: OutputT_co
    """The answer: text or, with an ``output_type``, a value of that type. In a partial reply, the
    text so far, or None if a value was asked for."""

    messages: tuple[Message, ...]
    """The whole history: what the conversation had at the start, then what this run added. It can
    be sent again: every tool call has its result. Without the agent's instructions."""

    usage: Usage
    """What this run's model requests used, without those of runs below it."""

    turns: int
    """How often the model was asked."""

    run_id: str
    """The run's id."""

    undelivered: tuple[Any, ...] = ()
    """Messages that were accepted for the run, or for an agent it had called as a tool, and that no
    model was told, oldest first."""

    delegated_usage: Usage = attrs.field(default=Usage())
    """What agents below this run used in total, whether they succeeded or not."""

    finish: Finish = "stop"
    """How the model's last answer ended: ``"stop"`` if the agent finished. Any other says what
    ended it: the model's limit of output, a filter, a refusal; ``"tool_calls"`` if the run was
    stopped between two turns; ``"other"`` if there is no answer, or none that would do."""

    reasoning: str = ""
    """What the model thought before its last answer, if it or its provider told. Not part of
    `output`."""

    waiting: tuple[WaitingCall, ...] = ()
    """The calls that wait for a person's approval, for which the run ended; see
    `harness.errors.ApprovalPending`."""

    _history_length: int = attrs.field(default=0, alias="history_length", repr=False)

    @property
    def complete(self) -> bool:
        """Whether the agent finished: `finish` is ``"stop"``. False for a partial reply."""
        return self.finish == "stop"

    @property
    def new_messages(self) -> tuple[Message, ...]:
        """What this run added to the history."""
        return self.messages[self._history_length :]
