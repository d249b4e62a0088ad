"""Keep a history that several runs share, on purpose.

Without one, every run begins with nothing. With one, a run sees the messages that were there when
it began, then its own. What it added is appended when it ends, as one block, and never changed or
removed. So concurrent runs neither see each other's half-done turns nor mix their messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import attrs
import msgspec

from harness.models import Message


class Conversation:
    """An append-only history: ``await agent.run("And why?", conversation=conversation)``.

    A run appends when it succeeds or is stopped. One that fails or is cancelled appends nothing;
    its error's ``partial`` has what was finished, which can be kept with
    ``conversation.extend(error.partial.new_messages)``.

    Args:
      messages: What was said before.

    Raises:
      TypeError: if something in ``messages`` isn't a `harness.models.Message`.
      ValueError: if a tool call has no result, or a result no call: no model would accept it.
    """

    __slots__ = ("__weakref__", "_messages")

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._messages: list[Message] = checked_messages("Conversation(messages)", messages)

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages now, oldest first. A copy: it doesn't change when a run ends."""
        return tuple(self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    def __repr__(self) -> str:
        return f"<Conversation of {len(self)} messages>"

    def extend(self, messages: Iterable[Message]) -> None:
        """Append a block of messages at once.

        Raises:
          TypeError: if something in it isn't a `harness.models.Message`.
          ValueError: if in this block a tool call has no result, or a result no call.
        """
        self._messages.extend(checked_messages("conversation.extend()", messages))

    def to_json(self) -> str:
        """Return everything as JSON, for `from_json`."""
        saved = _Saved(1, self.messages)
        try:
            return msgspec.json.encode(saved).decode()
        except UnicodeEncodeError:  # Half a surrogate pair; see `harness.agents._sendable`.
            return json.dumps(msgspec.to_builtins(saved))

    @classmethod
    def from_json(cls, text: str | bytes) -> Conversation:
        """Return the conversation that `to_json` wrote.

        Raises:
          TypeError: if it isn't text, but an open file for instance.
          ValueError: if the text isn't a saved conversation.
        """
        if not isinstance(text, (str, bytes, bytearray, memoryview)):
            raise TypeError(
                f"Conversation.from_json() takes the text that to_json() returned, not {text!r}; "
                "for a file, pass what its read() returns"
            )
        try:
            saved = _saved(text)
        except msgspec.DecodeError as error:
            raise ValueError(
                f"this isn't a saved conversation: {error}; give what to_json() returned"
            ) from error
        if saved.version != 1:
            raise ValueError(
                f"this conversation was saved in format {saved.version}, and this harness reads "
                "format 1; load it with a newer one"
            )
        return cls(saved.messages)


@attrs.frozen
class _Saved:
    version: int
    messages: tuple[Message, ...]


def _saved(text: Any) -> _Saved:
    try:
        return msgspec.json.decode(text, type=_Saved)
    except msgspec.DecodeError as error:
        try:
            plain = json.loads(text if isinstance(text, str) else bytes(text))
            return msgspec.convert(plain, _Saved)  # With half a surrogate pair.
        except (ValueError, RecursionError):
            raise error from None


def checked_messages(call: str, messages: Iterable[Any]) -> list[Message]:
    """Return the messages as a list.

    Args:
      call: Who gives them, for the error.
      messages: What is checked.

    Raises:
      TypeError: if something in it isn't a `harness.models.Message`.
      ValueError: if a tool call has no result, or a result no call.
    """
    checked = list(messages)
    open_calls: set[str] = set()
    for message in checked:
        if not isinstance(message, Message):
            raise TypeError(f"{call} takes harness.models.Message, not {message!r}")
        if message.role == "tool":
            if message.tool_call_id not in open_calls:
                raise ValueError(
                    f"{call} got a result for the tool call {message.tool_call_id!r}, which no "
                    "assistant message before it asks for; keep both or neither"
                )
            open_calls.discard(message.tool_call_id)
        elif open_calls:
            break
        else:
            open_calls = {call.id for call in message.tool_calls}
    if open_calls:
        raise ValueError(
            f"{call} got tool calls without a result, {', '.join(sorted(open_calls))}; each must "
            "be followed by a message of role 'tool', or no model accepts the history"
        )
    return checked
