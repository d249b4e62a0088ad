"""What the driver of a batch and its workers tell each other, and how it is pickled.

Messages are plain tuples that begin with a word; many go in one list. The driver sends:

- ``("setup", factory, time)``: the pickled factory of the deps, and the driver's time.
- ``("function", number, function)``: a pickled function, before the first call of it.
- ``("call", call, function number, item, `CallFacts`)``.
- ``("cancel", call, reason)`` and ``("stop", call, reason)``: what the call's run is asked to do.

A worker sends ``("ready", words)`` or ``("unfit", error)``, and then for a call ``("event", call,
pickled event)`` and ``("spent", call, tokens, cost)`` as they happen, and last ``("done", call,
status, pickled value or error)``. They arrive in order.

A value, an error or an event is pickled by itself, so that one that can't be spoils no other.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import attrs

from harness._pickled_errors import recorded, reduced
from harness._words import repr_of
from harness.runs import Event
from harness.runs._notices import Notice

Message = tuple[Any, ...]

Pickle = Callable[[Any], bytes]


class CallFacts(NamedTuple):
    """What a worker has to know of the run that a call is made for."""

    run_id: str
    parent_id: str | None
    parent_path: str | None
    depth: int
    name: str
    item: int | None
    attempt: int
    key: str
    """The idempotency key."""
    seconds: float
    """How much time it has; inf for any."""
    tags: Mapping[str, Any]
    is_heard: bool
    """Whether anybody listens to its events."""


@attrs.frozen
class _Parcel:
    """An error on its way: what comes out is the error, or a record of it."""

    error: BaseException

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(_same, self.error)


def _same(error: BaseException) -> BaseException:
    return error


def pack_error(error: BaseException, dumps: Pickle) -> bytes:
    """Return an error's pickle, whatever the error is."""
    try:
        return dumps(_Parcel(error))
    except Exception:
        return pickle.dumps(recorded(error))


def pack_event(event: Event, dumps: Pickle, *, is_notice: bool, offset: float, call: int) -> bytes:
    """Return an event's pickle.

    Args:
      event: It.
      dumps: What pickles.
      is_notice: Whether harness itself tells it.
      offset: What to add to the worker's time to get the driver's.
      call: The number of the call, which tells its waits from those of others.
    """
    payload = event.payload
    fields: Any = payload
    if isinstance(payload, Notice):
        values = {name: getattr(payload, name) for name in payload.__slots__}
        if "wait" in values:  # They are counted in each process.
            values["wait"] += call << 32
        fields = [_plain(one) for one in values.values()]
    facts = event._replace(payload=None, time=event.time + offset)
    kind = type(payload) if isinstance(payload, Notice) else None
    try:
        return dumps((is_notice, kind, facts, fields))
    except Exception:
        return pickle.dumps((is_notice, None, facts, repr_of(payload)))


def unpack_event(pickled: bytes) -> tuple[Event, bool]:
    """Return the event, and whether it is harness's own."""
    is_notice, kind, facts, fields = pickle.loads(pickled)
    payload = fields if kind is None else kind(*fields)
    event: Event = facts._replace(payload=payload)
    return event, is_notice


def _plain(value: Any) -> Any:
    if isinstance(value, BaseException):
        return _Parcel(value)
    return dict(value) if isinstance(value, Mapping) else value
