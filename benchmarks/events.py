"""What does it cost a run to emit an event, with nobody listening and with a reader?

With nobody listening the floor is reading a bare context variable; with a reader it is a trio
channel. One task does both ends: it emits an event and reads it.

Run: python -m benchmarks events
"""

from collections.abc import Iterator
from contextvars import ContextVar

import trio

import harness
from benchmarks._measure import (
    Bench,
    Row,
    at_most,
    interleaved,
    rounds_of,
    timed_in_trio,
    timed_statement,
)

DEPTHS = (1, 10)


def rows(*, quick: bool) -> Iterator[Row]:
    """Measure `Run.emit_nowait`, and a subscription."""
    rounds = rounds_of(45, quick=quick)
    for depth in DEPTHS:
        samples = interleaved(
            {
                "emit_nowait": timed_statement(
                    "run.emit_nowait(payload)", NAMES, setup="run = current_run()", depth=depth
                ),
                "ContextVar.get": timed_statement(
                    "variable.get()", NAMES, setup="variable.set(payload)", depth=depth
                ),
            },
            count=10_000 if quick else 20_000,
            rounds=rounds,
        )
        yield at_most(
            f"emit_nowait, nobody listening / ContextVar.get, depth {depth}",
            10.0,
            samples.ratio("emit_nowait", "ContextVar.get"),
            note=samples.note("emit_nowait", "ContextVar.get", per="call"),
        )
    samples = interleaved(WITH_A_READER, count=500 if quick else 2_000, rounds=rounds)
    yield at_most(
        "emit_nowait + read / channel's send_nowait + receive",
        0.4,
        samples.ratio("subscription", "channel"),
        note=samples.note("subscription", "channel", per="event"),
    )


variable: ContextVar[str] = ContextVar("benchmark")
NAMES: dict[str, object] = {
    "current_run": harness.current_run,
    "variable": variable,
    "payload": "payload",
}


async def subscription(count: int) -> None:
    run = harness.current_run()
    async with run.subscribe() as events:
        for number in range(count):
            run.emit_nowait(number)
            await anext(events)


async def channel(count: int) -> None:
    send, receive = trio.open_memory_channel[int](256)
    with send, receive:
        for number in range(count):
            send.send_nowait(number)
            await receive.receive()


WITH_A_READER: dict[str, Bench] = {
    "subscription": timed_in_trio(subscription, depth=1),
    "channel": timed_in_trio(channel, depth=1),
}
