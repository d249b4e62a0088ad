"""Write a reply in JSON form, and read it back: for journals."""

from __future__ import annotations

from typing import Any

import msgspec

from harness._approvals import WaitingCall
from harness._words import repr_of
from harness.agents._output import OutputType
from harness.agents._reply import Reply
from harness.agents._types import to_json
from harness.models import Message, Usage


def reply_to_json(reply: Reply[Any]) -> dict[str, Any]:
    """Return the reply as dicts, lists, strings and numbers.

    Raises:
      TypeError: if its output, or an argument of a tool call, has no JSON form.
    """
    plain: dict[str, Any] = to_json(
        {
            "output": reply.output,
            "messages": reply.messages,
            "usage": reply.usage,
            "turns": reply.turns,
            "run_id": reply.run_id,
            # An inbox may hold anything; that is no reason to lose an answer that was paid for.
            "undelivered": [
                one if isinstance(one, str | Message) else repr_of(one) for one in reply.undelivered
            ],
            "delegated_usage": reply.delegated_usage,
            "finish": reply.finish,
            "reasoning": reply.reasoning,
            "waiting": reply.waiting,
            "history_length": len(reply.messages) - len(reply.new_messages),
        }
    )
    return plain


def reply_from_json(plain: dict[str, Any], output_type: OutputType | None) -> Reply[Any]:
    """Return the reply that `reply_to_json` wrote.

    Args:
      plain: What it wrote.
      output_type: What the output is, if the run finished; None for text.

    Raises:
      Exception: if it doesn't fit.
    """
    output = plain["output"]
    if output_type is not None and (plain["finish"] == "stop" or output is not None):
        output = output_type.convert(output)
    return Reply(
        output,
        msgspec.convert(plain["messages"], tuple[Message, ...]),
        msgspec.convert(plain["usage"], Usage),
        plain["turns"],
        plain["run_id"],
        msgspec.convert(plain["undelivered"], tuple[str | Message, ...]),
        msgspec.convert(plain["delegated_usage"], Usage),
        plain["finish"],
        plain["reasoning"],
        msgspec.convert(plain["waiting"], tuple[WaitingCall, ...]),
        plain["history_length"],
    )
