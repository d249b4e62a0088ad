"""Nothing is lost and nothing is minted, whatever callers do and in whatever order.

A machine of random steps drives a limiter and, alongside it, an obvious model: a list of charges.
After each step the two must agree.
"""

from __future__ import annotations

import itertools
from typing import Literal, TypeVar

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from harness.limits import Limiter, Rate, Reservation

Ending = Literal["settle", "settle for more", "refund", "leave", "raise", "cancel", "refused"]
ENDINGS: st.SearchStrategy[Ending] = st.sampled_from(
    ["settle", "settle for more", "refund", "leave", "raise", "cancel", "refused"]
)
TOKENS = st.sampled_from([1, 30, 90, 200, 700])
LIMIT, PERIOD, PLACES = 50, 10.0, 3

T = TypeVar("T")


@attrs.define(eq=False)
class Caller:
    """A task with a reservation, and what the model knows of it."""

    number: int
    tokens: int
    priority: int
    go: trio.Event = attrs.field(factory=trio.Event)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    ending: Ending = "leave"
    granted_at: float | None = None
    charged: int = 0
    settled: bool = False
    done: bool = False


class Machine:
    """A limiter, its callers, and the model."""

    def __init__(self, nursery: trio.Nursery, clock: MockClock) -> None:
        self.nursery = nursery
        self.clock = clock
        self.limiter = Limiter(
            "model",
            requests=Rate(LIMIT, PERIOD),
            tokens=Rate(LIMIT * 10, PERIOD),
            concurrent=PLACES,
            burst_seconds=2,
        )
        self.callers: list[Caller] = []
        self.grants: list[Caller] = []
        self.overruns: list[float] = []
        self.numbers = itertools.count()

    async def call(self, caller: Caller) -> None:
        with caller.scope:
            try:
                async with self.limiter.reserve(
                    tokens=caller.tokens, priority=caller.priority
                ) as reservation:
                    caller.granted_at = reservation.granted_at
                    caller.charged = caller.tokens
                    self.grants.append(caller)
                    await caller.go.wait()
                    if caller.ending == "settle":
                        caller.charged = caller.tokens // 2
                        reservation.settle(tokens=caller.charged)
                    elif caller.ending == "settle for more":
                        self.settle_for_more(caller, reservation)
                    elif caller.ending == "refund":
                        self.grants.remove(caller)
                        reservation.refund()
                    elif caller.ending == "refused":
                        reservation.settle(status=429, headers={"retry-after": "1"})
                    elif caller.ending == "raise":
                        raise ValueError
                    caller.settled = True
            except ValueError:
                pass
        caller.done = True

    def settle_for_more(self, caller: Caller, reservation: Reservation) -> None:
        reservation.settle(tokens=caller.tokens + 7)
        now = trio.current_time()
        assert caller.granted_at is not None
        if now - caller.granted_at < PERIOD:
            caller.charged += 7
        else:
            # The charge has left the window; what went beyond it is charged now.
            self.overruns.append(now)

    def start(self, tokens: int, priority: int) -> None:
        caller = Caller(next(self.numbers), tokens, priority)
        self.callers.append(caller)
        self.nursery.start_soon(self.call, caller)

    def end(self, caller: Caller, ending: Ending) -> None:
        caller.ending = ending
        if ending == "cancel":
            caller.scope.cancel()
        caller.go.set()

    async def check(self) -> None:
        await wait_all_tasks_blocked()
        self.callers = [caller for caller in self.callers if not caller.done]
        now = trio.current_time()
        held = [caller for caller in self.callers if caller.granted_at is not None]
        waiting = len(self.callers) - len(held)
        in_window = [
            caller
            for caller in self.grants
            if caller.granted_at is not None and now - caller.granted_at < PERIOD
        ]
        statistics = self.limiter.statistics()
        assert statistics.in_flight == len(held) <= PLACES
        assert statistics.waiting == waiting
        requests = statistics.dimensions["requests"]
        tokens = statistics.dimensions["tokens"]
        assert requests.used == len(in_window) <= LIMIT
        overruns = 7 * sum(now - moment < PERIOD for moment in self.overruns)
        assert tokens.used == sum(caller.charged for caller in in_window) + overruns
        assert tokens.unsettled == sum(caller.tokens for caller in held)
        assert requests.unsettled == len(held)
        head = self.limiter._grants.line.head()
        assert (head is not None) == (waiting > 0)
        if head is not None:
            assert self.limiter._grants.free_at(head, now) > now, (
                "somebody waits who could be granted"
            )


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_charges_places_and_tokens_are_conserved(data: st.DataObject) -> None:
    clock = MockClock()

    def draw(strategy: st.SearchStrategy[T], label: str) -> T:
        return data.draw(strategy, label=label)

    async def drive(machine: Machine) -> None:
        for _ in range(draw(st.integers(1, 25), "steps")):
            step = draw(st.sampled_from(["start", "start", "end", "time"]), "step")
            if step == "start":
                for _ in range(draw(st.integers(1, 4), "how many")):
                    machine.start(draw(TOKENS, "tokens"), draw(st.integers(-1, 1), "priority"))
            elif step == "end" and machine.callers:
                somebody = st.lists(st.sampled_from(machine.callers), max_size=3)
                for caller in draw(somebody, "who"):
                    machine.end(caller, draw(ENDINGS, "how"))
            else:
                clock.jump(draw(st.sampled_from([0.02, 0.5, 2.0, 10.0]), "time"))
            await machine.check()
        for caller in machine.callers:
            machine.end(caller, "leave")

    async def main() -> None:
        with trio.fail_after(10_000):
            async with trio.open_nursery() as nursery:
                machine = Machine(nursery, clock)
                await drive(machine)
                clock.autojump_threshold = 0
        clock.autojump_threshold = float("inf")
        clock.jump(PERIOD)
        await machine.check()
        assert not machine.callers

    trio.run(main, clock=clock)
