"""What the driver of a batch and its workers tell each other, and how it is pickled.

Messages are plain tuples that begin with a word; many go in one list. The driver sends:

- ``("setup", factory, time)``: the pickled factory of the deps, and the driver's time.
- ``("function", number, function)``: a pickled function, before the first call of it.
- ``("call", call, function number, item, `CallFacts`)``.
- ``("cancel", call, reason)`` and ``("stop", call, reason)``: what the call's run is asked to do.

- ``("end",)``: it is to leave the context of its deps, and end.

A worker sends ``("ready", words)`` or ``("unfit", error)``, and then for a call, as they happen:

- ``("event", call, pickled event)`` and ``("log", call, fields of a log record, its run)``.
- ``("file", call, name, run's path, content)``: to be kept with the item.
- ``("spent", call, tokens, cost)`` and ``("model", call, model, tokens by kind)``.
- ``("answers", call, states)``: of agents that have ended, in an item that waits for approvals.
- last ``("done", call, status, pickled value or error)``.

They arrive in order. A value, an error or an event is pickled by itself, so that one that can't be,
or can't be read, spoils no other.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import attrs

from harness._approvals import Parked
from harness._pickled_errors import recorded, reduced
from harness._words import repr_of
from harness.runs import Event
from harness.runs._notices import Notice

Message = tuple[Any, ...]

Pickle = Callable[[Any], bytes]

_TIMES = ("started_at", "ended_at")
"""The fields of notices that are times, by the clock of their process."""


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
    keeps: bool
    """Whether files are kept with its item."""
    parked: Parked | None
    """What is kept of its agents' runs that wait for approvals; None if nothing can be."""


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
    kind = None
    fields: Any = payload
    if isinstance(payload, Notice):
        kind = type(payload)
        fields = {name: getattr(payload, name) for name in payload.__slots__}
    elif is_notice and hasattr(payload, "_asdict"):
        kind = type(payload)
        fields = payload._asdict()
    if kind is not None:
        fields = [_sent(name, value, offset, call) for name, value in fields.items()]
    try:
        packed = dumps((kind, fields))
    except Exception:
        packed = pickle.dumps((None, repr_of(payload)))
    facts = event._replace(payload=None, time=event.time + offset)
    return pickle.dumps((is_notice, facts, packed))


def unpack_event(pickled: bytes) -> tuple[Event, bool]:
    """Return the event, and whether it is harness's own."""
    is_notice, facts, packed = pickle.loads(pickled)
    try:
        kind, payload = pickle.loads(packed)
        if kind is not None:
            payload = kind(*payload)
    except Exception as error:  # Whatever a class of the user's does, or if it isn't here.
        payload = f"(an event of a worker can't be read here: {error!r})"
    event: Event = facts._replace(payload=payload)
    return event, is_notice


def _sent(name: str, value: Any, offset: float, call: int) -> Any:
    """Return a field of a notice as it is for the driver."""
    if name == "wait":
        return value + (call << 32)  # They are counted in each process.
    if name in _TIMES:
        return value + offset
    if name == "settled" and value is not None:
        return (value[0] + offset, *value[1:])
    if isinstance(value, BaseException):
        return _Parcel(value)
    return dict(value) if isinstance(value, Mapping) else value
