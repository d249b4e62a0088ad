"""What is told about a worker's runs is the same once it has arrived."""

from __future__ import annotations

import pickle
import threading
from types import MappingProxyType

from harness.cluster._messages import pack_event, unpack_event
from harness.runs import Event, RunBegan, RunOver, WaitBegan


def event(payload: object) -> Event:
    return Event("w-1", "d-1", "top/1/inner", 2, 3, 100.0, payload)


def sent(payload: object, *, is_notice: bool, call: int = 0) -> tuple[Event, bool]:
    packed = pack_event(event(payload), pickle.dumps, is_notice=is_notice, offset=-40.0, call=call)
    return unpack_event(packed)


def test_an_event_arrives_with_its_place_and_the_time_here() -> None:
    assert sent({"n": 1}, is_notice=False) == (event({"n": 1})._replace(time=60.0), False)


def test_notices_arrive_though_they_cannot_be_pickled_themselves() -> None:
    came, is_notice = sent(RunBegan(None, True, 4, MappingProxyType({"a": 1})), is_notice=True)
    assert is_notice
    assert isinstance(came.payload, RunBegan)
    assert (came.payload.inline, came.payload.item, came.payload.tags) == (True, 4, {"a": 1})
    over = sent(RunOver("failed", ValueError("no")), is_notice=True)[0].payload
    assert (over.status, repr(over.error)) == ("failed", "ValueError('no')")


def test_waits_of_two_calls_are_two_waits() -> None:
    waits = [sent(WaitBegan(1, "queue", "x", ()), is_notice=True, call=call) for call in (1, 2)]
    assert len({came.payload.wait for came, _ in waits}) == 2


def test_what_cannot_be_sent_arrives_in_words() -> None:
    came, _ = sent(threading.Lock(), is_notice=False)
    assert "lock" in came.payload
