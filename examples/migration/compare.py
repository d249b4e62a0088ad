"""Compare seven ways to keep the state of calls apart, on one task.

The task: 1,000 tickets, at most 100 at once. A call asks a model twice, a second each, on a virtual
clock; the second question is made of the state that the first has left. What is printed for each
way: how many answers are wrong; how long all took, in the model's time; the processor's time for a
call, which is this machine's; and the most objects with state that were alive at once. `nested` is
a second task: 20 calls at once, each of which asks the same desk again before it goes on, as an
agent does that hands a task to itself. It is right, wrong, refused, or stuck.

Run:     python examples/migration/compare.py
Prints:  way                      wrong    time  per call  states  nested
         one object for all        1000    20 s  ...  1  wrong
         a lock                       0  2000 s  ...  1  refused
         a pool of 10                 0   200 s  ...  10  stuck
         an object for each call      0    20 s  ...  100  right
         a context variable, set      0    20 s  ...  100  wrong
         the same, and reset          0    20 s  ...  100  right
         a run for each call          0    20 s  ...  100  right
"""

import gc
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import trio
from trio.testing import MockClock

import harness

CALLS = 1_000
AT_ONCE = 100
NESTED = 20
POOLED = 10
PATIENCE_SECONDS = 10_000

Answer = Callable[[str], Awaitable[str]]
"""Answers a ticket. One that begins with ``"nested"`` is asked about once more on the way."""


class State:
    """What is known of a ticket; counts how many there are."""

    alive = most = 0

    def __init__(self) -> None:
        self.messages: list[str] = []
        State.alive += 1
        State.most = max(State.most, State.alive)

    def __del__(self) -> None:
        State.alive -= 1


async def take_turns(messages_now: Callable[[], list[str]], ticket: str, again: Answer) -> str:
    """Answer a ticket in two turns. State is looked up whenever it is needed, as methods do."""
    messages_now().clear()
    messages_now().append(ticket)
    await trio.sleep(1)
    if ticket.startswith("nested"):
        await again(f"check {ticket}")
    messages_now().append(f"about {messages_now()[0]}")
    await trio.sleep(1)
    return " / ".join(messages_now())


def one_object() -> Answer:
    """Leave it as it is."""
    state = State()

    async def answer(ticket: str) -> str:
        return await take_turns(lambda: state.messages, ticket, answer)

    return answer


def lock() -> Answer:
    """Let one call in at a time."""
    state, one_at_a_time = State(), trio.Lock()

    async def answer(ticket: str) -> str:
        async with one_at_a_time:
            return await take_turns(lambda: state.messages, ticket, answer)

    return answer


def pool() -> Answer:
    """Lend each call one of a few objects."""
    give_back, take = trio.open_memory_channel[State](POOLED)
    for _ in range(POOLED):
        give_back.send_nowait(State())

    async def answer(ticket: str) -> str:
        state = await take.receive()
        try:
            return await take_turns(lambda: state.messages, ticket, answer)
        finally:
            give_back.send_nowait(state)

    return answer


def object_per_call() -> Answer:
    """Make an object for each call, and hand it on."""

    async def answer(ticket: str) -> str:
        state = State()
        return await take_turns(lambda: state.messages, ticket, answer)

    return answer


_state: ContextVar[State] = ContextVar("state")


def context_variable() -> Answer:
    """Set a context variable at the beginning of each call."""

    async def answer(ticket: str) -> str:
        _state.set(State())
        return await take_turns(lambda: _state.get().messages, ticket, answer)

    return answer


def context_variable_reset() -> Answer:
    """Set it, and put it back at the end: the call may be one of its caller's own."""

    async def answer(ticket: str) -> str:
        token = _state.set(State())
        try:
            return await take_turns(lambda: _state.get().messages, ticket, answer)
        finally:
            _state.reset(token)

    return answer


_local = harness.RunLocal(State, name="state")


def run_per_call() -> Answer:
    """Open a run for each call, and keep the state in a `RunLocal`."""

    @harness.open_run("answer")
    async def answer(ticket: str) -> str:
        return await take_turns(lambda: _local.get().messages, ticket, answer)

    return answer


WAYS: dict[str, Callable[[], Answer]] = {
    "one object for all": one_object,
    "a lock": lock,
    "a pool of 10": pool,
    "an object for each call": object_per_call,
    "a context variable, set": context_variable,
    "the same, and reset": context_variable_reset,
    "a run for each call": run_per_call,
}


async def wrong_answers(answer: Answer, tickets: list[str]) -> int:
    """Return how many tickets get another answer than alone."""
    wrong = 0
    slots = trio.CapacityLimiter(AT_ONCE)

    async def one(ticket: str) -> None:
        nonlocal wrong
        async with slots:
            right = await answer(ticket) == f"{ticket} / about {ticket}"
        wrong += not right

    async with trio.open_nursery() as nursery:
        for ticket in tickets:
            nursery.start_soon(one, ticket)
    return wrong


async def nested(answer: Answer) -> str:
    """Return what becomes of calls that call again."""
    tickets = [f"nested {number}" for number in range(NESTED)]
    try:
        with trio.fail_after(PATIENCE_SECONDS):
            return "wrong" if await wrong_answers(answer, tickets) else "right"
    except trio.TooSlowError:
        return "stuck"
    except ExceptionGroup as group:
        if group.split(RuntimeError)[1] is not None:
            raise
        return "refused"  # By trio's lock, which no task can take twice.


async def measure(way: str) -> None:
    """Print the row of one way."""
    gc.collect()
    State.most = before = State.alive
    began, cpu = trio.current_time(), time.process_time()
    wrong = await wrong_answers(WAYS[way](), [f"ticket {number}" for number in range(CALLS)])
    took, cpu = trio.current_time() - began, time.process_time() - cpu
    states = State.most - before
    print(
        f"{way:23}  {wrong:5}  {took:4.0f} s  {cpu / CALLS * 1e6:5.0f} µs  {states:6}  "
        f"{await nested(WAYS[way]())}"
    )


def main() -> None:
    """Print a table, each way on a clock of its own."""
    print(f"{'way':23}  wrong    time  per call  states  nested")
    for way in WAYS:
        trio.run(measure, way, clock=MockClock(autojump_threshold=0))


if __name__ == "__main__":
    main()
