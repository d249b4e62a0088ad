"""Write one line of a trace for each notice.

Every line is put together by hand: it has to be cheap, and most of it is ours. What comes from the
program goes through `quoted`, which masks, cuts and escapes it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from json.encoder import encode_basestring_ascii
from typing import Any

from harness._root_errors import root_errors
from harness._tracebacks import frames_of
from harness._words import WORDS_AT_MOST, masked, masked_repr_of
from harness.fanout import AttemptOver, HedgeBegan, RetryPlanned
from harness.limits import ReservationOver
from harness.models import Message, ModelCallOver, ToolCallOver
from harness.runs import Event, RunBegan, RunOver, WaitBegan, WaitOver

PATH_AT_MOST = 2_000
"""How many characters of a path are written."""

UNREADABLE = "(its text could not be read)"

MESSAGE_AT_MOST = 20_000
"""How many characters of an agent's message are written, if messages are asked for."""


_USAGE = ("input_tokens", "output_tokens", "cached_input_tokens")
_USED = ("requests", "tokens", "input_tokens", "output_tokens")


class Lines:
    """Turns notices into lines."""

    def __init__(self, began_at: float, *, values: bool, messages: bool) -> None:
        self._began_at = began_at
        self._values = values
        self._messages = messages
        self._is_first = True
        self._writers: dict[type, Callable[[Any, Event], tuple[str, str, str]]] = {
            RunBegan: self._run_began,
            RunOver: self._run_over,
            AttemptOver: self._attempt,
            WaitBegan: self._wait,
            WaitOver: self._wake,
            ReservationOver: self._release,
            ModelCallOver: self._model_call,
            ToolCallOver: self._tool_call,
            RetryPlanned: self._retry,
            HedgeBegan: self._hedge,
        }

    def line(self, event: Event) -> str | None:
        """Return the line for a notice, with its line break; None for one that isn't written."""
        write = self._writers.get(type(event.payload))
        if write is None:
            return None
        kind, run_id, fields = write(event.payload, event)
        at = event.time - self._began_at
        return f'{{"type":"{kind}","time":{at:.9f},"run_id":"{run_id}"{fields}}}\n'

    def _run_began(self, began: RunBegan, event: Event) -> tuple[str, str, str]:
        path = event.path
        if len(path) > PATH_AT_MOST:  # Its end says which run it is.
            path = f"{path[: PATH_AT_MOST // 2]}...{path[-PATH_AT_MOST // 2 :]}"
        fields = f',"path":{quoted(path, PATH_AT_MOST + 3)},"depth":{event.depth}'
        if event.parent_id is not None:
            fields = f'{fields},"parent":"{event.parent_id}"'
        if event.parent_id is None or self._is_first:
            self._is_first = False
            fields = f'{fields},"unix":{time.time():.6f},"process":{os.getpid()}'
        if began.by is not None:
            fields = f'{fields},"by":"{began.by}"'
        if began.inline:
            fields = f'{fields},"inline":true'
        if began.item is not None:
            fields = f'{fields},"index":{began.item}'
        if began.tags:
            tags = (f"{quoted(str(k))}:{quoted(masked_repr_of(v))}" for k, v in began.tags.items())
            fields = f'{fields},"tags":{{{",".join(tags)}}}'
        return "run_started", event.run_id, fields

    def _run_over(self, over: RunOver, event: Event) -> tuple[str, str, str]:
        fields = f',"status":"{over.status}"'
        if over.error is not None:
            fields += _error(over.error, frames=True)
        return "run_ended", event.run_id, fields

    def _attempt(self, over: AttemptOver, event: Event) -> tuple[str, str, str]:
        fields = (
            f'{_item(over)},"number":{over.number},"status":"{over.status}",'
            f'"seconds":{event.time - over.started_at:.9f}'
        )
        if isinstance(over.value, BaseException):
            fields += _error(over.value)
        elif self._values:
            fields += f',"value":{quoted(masked_repr_of(over.value))}'
        return "attempt", over.run_id, fields

    def _wait(self, began: WaitBegan, event: Event) -> tuple[str, str, str]:
        fields = f',"wait":{began.wait},"reason":"{began.reason}","on":{quoted(began.on)}'
        if began.held_by:
            fields += f',"held_by":[{",".join(map(quoted, began.held_by))}]'
        return "wait", event.run_id, fields

    def _wake(self, over: WaitOver, event: Event) -> tuple[str, str, str]:
        fields = f',"wait":{over.wait},"reason":"{over.reason}"'
        if over.by is not None:
            fields += f',"by":"{over.by}"'
        if over.facts:
            granted = ",".join(
                f"{quoted(name)}:[{','.join(map(number, of))}]"
                for name, of in over.facts["granted"].items()
            )
            fields += (
                f',"limiter":{quoted(over.facts["limiter"])},"granted":{{{granted}}},'
                f'"in_flight":{over.facts["in_flight"]}'
            )
            if over.facts["places"] is not None:
                fields += f',"places":{number(over.facts["places"])}'
            if over.facts["input_tokens"] is not None:
                fields += f',"input_tokens":{number(over.facts["input_tokens"])}'
            for name in ("headroom", "burst_seconds"):
                if over.facts[name] != 1:
                    fields += f',"{name}":{number(over.facts[name])}'
        return "wake", event.run_id, fields

    def _release(self, over: ReservationOver, event: Event) -> tuple[str, str, str]:
        fields = f',"wait":{over.wait}'
        if over.settled is not None:
            at, used = over.settled
            fields += f',"settled":{at - self._began_at:.9f}'
            for name, amount in zip(_USED, used, strict=False):
                if amount is not None:
                    fields += f',"{name}":{number(amount)}'
        return "release", event.run_id, fields

    def _model_call(self, over: ModelCallOver, event: Event) -> tuple[str, str, str]:
        fields = f',"model":{quoted(over.model)}'
        if over.provider is not None:
            fields += f',"provider":{quoted(over.provider)}'
        fields += f',"seconds":{event.time - over.started_at:.9f},"status":"{over.status}"'
        if over.finish is not None:
            fields += f',"finish":{quoted(over.finish)}'
        if over.usage is not None:
            for name in _USAGE:
                fields += f',"{name}":{number(getattr(over.usage, name))}'
        if over.cost_usd is not None:
            fields += f',"cost_usd":{number(over.cost_usd)}'
        if over.error is not None:
            fields += _error(over.error)
        if self._messages:
            fields += f',"request":[{_messages(over.request.messages)}]'
            if over.response is not None:
                fields += f',"response":{quoted(over.response.content, MESSAGE_AT_MOST)}'
        return "model_call", event.run_id, fields

    def _tool_call(self, over: ToolCallOver, event: Event) -> tuple[str, str, str]:
        fields = (
            f',"tool":{quoted(over.name)},"call_id":{quoted(over.call_id)},'
            f'"seconds":{event.time - over.started_at:.9f},"status":"{over.status}"'
        )
        if over.error is not None:
            fields += _error(over.error)
        if self._messages:
            fields += f',"arguments":{quoted(masked_repr_of(over.arguments))}'
        return "tool_call", event.run_id, fields

    def _retry(self, planned: RetryPlanned, event: Event) -> tuple[str, str, str]:
        fields = f'{_item(planned)},"number":{planned.number},"delay":{number(planned.delay)}'
        if planned.after is not None:
            fields += f',"after":"{planned.after}"'
        return "retry", event.run_id, fields + _error(planned.error)

    def _hedge(self, began: HedgeBegan, event: Event) -> tuple[str, str, str]:
        fields = f'{_item(began)},"attempt":"{began.run_id}","beside":"{began.beside}"'
        return "hedge", event.run_id, fields


def quoted(text: str, at_most: int = WORDS_AT_MOST) -> str:
    """Return a text as JSON, without secrets, cut, and with every control character escaped."""
    if type(text) is not str:  # A class of the program's, or no text at all.
        text = _exact(text)
    text = masked(text) if len(text) <= at_most else f"{masked(text[:at_most])}..."
    as_json = encode_basestring_ascii(text)
    return as_json.replace("\x7f", "\\u007f") if "\x7f" in as_json else as_json


def _exact(text: object) -> str:
    try:
        return str.__str__(text) if isinstance(text, str) else str(text)
    except Exception:
        return UNREADABLE


def number(value: float) -> str:
    """Return a number as JSON; those of NumPy, for instance, have words in their own text."""
    return float.__repr__(value) if isinstance(value, float) else int.__repr__(value)


def _item(of: AttemptOver | RetryPlanned | HedgeBegan) -> str:
    key = of.key
    if of.item is None:
        return f',"key":{quoted(key)}'
    key = number(key) if isinstance(key, int) else quoted(masked_repr_of(key))
    return f',"index":{of.item},"key":{key}'


def _error(error: BaseException, *, frames: bool = False) -> str:
    roots = root_errors(error) or [error]
    root = roots[0]
    try:
        message = str(root)
    except Exception:
        message = UNREADABLE
    fields = f',"error":{quoted(type(root).__name__)},"message":{quoted(message)}'
    if len(roots) > 1:
        fields += f',"errors":{len(roots)}'
    if frames and (found := frames_of(root)):
        fields += f',"traceback":[{",".join(map(quoted, found))}]'
    return fields


def _messages(messages: Iterable[Message]) -> str:
    return ",".join(
        f'{{"role":"{one.role}","text":{quoted(one.text, MESSAGE_AT_MOST)}}}' for one in messages
    )
