"""`Priority(serial_by=)`: of one key one item at a time, in input order; others overtake."""

import random
from collections import defaultdict
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

import harness
from harness.fanout import Priority
from harness.fanout._lookahead import Lookahead
from harness.flow import Router
from harness.journal import open_journal
from tests.fanout.probes import AsyncSource, Boom, Source, living_tasks, nothing_left_behind

Ending = Literal["ok", "fails", "fails once", "cancels itself"]


@attrs.frozen
class Ticket:
    """An item with a key."""

    number: int
    customer: str
    seconds: float = 1
    ending: Ending = "ok"


def customer(ticket: Ticket) -> str:
    """Return the key."""
    return ticket.customer


@attrs.define
class Desk:
    """Works on tickets, and writes down who was worked on when."""

    began: list[int] = attrs.field(factory=list)
    busy: dict[str, int] = attrs.field(factory=dict)
    in_flight: int = 0
    peak: int = 0
    attempts: dict[int, int] = attrs.field(factory=lambda: defaultdict(int))

    async def work(self, ticket: Ticket) -> int:
        """Work on a ticket, and see that nobody else works for its customer."""
        assert self.busy.setdefault(ticket.customer, ticket.number) == ticket.number
        self.attempts[ticket.number] += 1
        if self.attempts[ticket.number] == 1:
            self.began.append(ticket.number)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        last = True
        try:
            await trio.sleep(ticket.seconds)
            if ticket.ending == "cancels itself":
                harness.current_run().cancel()
                await trio.lowlevel.checkpoint()
            last = ticket.ending != "fails once" or self.attempts[ticket.number] > 1
            if ticket.ending == "fails" or not last:
                raise Boom(ticket.number)
        finally:
            self.in_flight -= 1
            if last:
                del self.busy[ticket.customer]
        return ticket.number


def tickets(customers: str) -> list[Ticket]:
    """Return a ticket per letter, which is its customer."""
    return [Ticket(number, letter) for number, letter in enumerate(customers)]


async def test_items_of_one_key_run_one_after_the_other_and_others_overtake(
    autojump_clock: MockClock,
) -> None:
    desk = Desk()
    begin = trio.current_time()
    with nothing_left_behind():
        results = await harness.fan_out(
            desk.work, tickets("aaabbc"), priority=Priority(serial_by=customer)
        )
    assert trio.current_time() - begin == 3
    assert desk.peak == 3
    assert sorted(desk.began[:3]) == [0, 3, 5]
    assert results.values() == [0, 1, 2, 3, 4, 5]


async def test_a_turn_lasts_over_retries_and_the_waits_between(autojump_clock: MockClock) -> None:
    desk = Desk()
    items = [Ticket(0, "a", ending="fails once"), Ticket(1, "a"), Ticket(2, "b")]
    begin = trio.current_time()
    results = await harness.fan_out(
        desk.work,
        items,
        priority=Priority(serial_by=customer),
        each=harness.Attempt(retry=harness.Retry(2, first_delay=10, jitter=0)),
    )
    assert trio.current_time() - begin == 13
    assert desk.began == [0, 2, 1] or desk.began == [2, 0, 1]
    assert results.complete


async def test_no_more_is_read_than_the_lookahead_and_a_slot_waits_for_its_key(
    autojump_clock: MockClock,
) -> None:
    """A million tickets of one customer are not read to find one of another."""
    desk, source = Desk(), iter(tickets("a" * 50 + "b"))
    async with harness.open_fan_out(
        desk.work, source, priority=Priority(serial_by=customer, lookahead=5), limit=4
    ) as stream:
        await trio.sleep(0.5)
        assert desk.began == [0]
        assert stream.statistics().waiting == 5
        assert next(source).number == 6


async def test_of_the_first_of_each_key_the_largest_number_is_next(
    autojump_clock: MockClock,
) -> None:
    desk = Desk()
    numbers = {0: 1, 1: 99, 2: 5, 3: 4}
    priority = Priority(lambda ticket: numbers[ticket.number], serial_by=customer)
    await harness.fan_out(desk.work, tickets("aabc"), priority=priority, limit=1)
    # 1 has the largest number, and is behind 0 all the same.
    assert desk.began == [2, 3, 0, 1]


async def test_a_key_that_can_not_be_had_fails_its_item_alone(autojump_clock: MockClock) -> None:
    def wrong(ticket: Ticket) -> Any:
        if ticket.number == 0:
            raise Boom("no customer")
        if ticket.number == 1:
            return ["a list"]
        return customer(ticket)

    results = await harness.fan_out(
        Desk().work,
        tickets("aaaa"),
        policy=harness.BestEffort(),
        priority=Priority(serial_by=wrong),
    )
    assert [result.status for result in results] == ["failed", "failed", "ok", "ok"]
    assert isinstance(results[0].error, Boom)
    assert "something hashable for an item, but returned ['a list']" in str(results[1].error)


async def test_the_items_of_a_router_take_turns_too(autojump_clock: MockClock) -> None:
    desk = Desk()
    router: Router[Ticket, int] = Router(lambda item: "all", tracks={"all": desk.work})
    await router.run(tickets("abab"), priority=Priority(serial_by=customer))
    assert sorted(desk.began[:2]) == [0, 1]
    assert sorted(desk.began[2:]) == [2, 3]


async def test_the_items_of_a_journal_take_turns_in_every_session(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    priority = Priority(serial_by=customer)
    items = tickets("aabbaacc" * 5)

    def key(ticket: Ticket) -> int:
        return ticket.number

    async with open_journal(tmp_path / "j") as journal:
        for within in (3.5, None):
            desk = Desk()
            results = await harness.fan_out(
                desk.work,
                items,
                policy=harness.BestEffort(),
                priority=priority,
                journal=journal,
                key=key,
                within=within,
                name="turns",
            )
            assert desk.peak == 3
            for letter in "abc":
                own = [number for number in desk.began if items[number].customer == letter]
                assert own == sorted(own)
    assert results.complete


@pytest.mark.parametrize("wrong", [3, "customer", True])
def test_what_is_no_function_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="serial_by"):
        Priority(serial_by=wrong)


def test_an_async_function_is_refused() -> None:
    async def asks(item: Ticket) -> str:
        return item.customer

    with pytest.raises(TypeError, match="plain function"):
        Priority(serial_by=asks)  # type: ignore[arg-type]


def test_a_priority_of_nothing_is_refused() -> None:
    with pytest.raises(TypeError, match=r"serial_by=; write Priority\(lambda"):
        Priority()


def test_nothing_that_may_run_is_overtaken_more_often_than_the_lookahead_is_deep() -> None:
    """The oldest may wait for its key; that must not make the others wait for it, nor starve."""
    lookahead = Lookahead(Priority(lambda item: item[1], lookahead=4, serial_by=lambda i: i[0]))
    for item in [("a", 0), ("a", 0), ("b", -1)]:
        lookahead.put(item)
    first = lookahead.take()
    assert first.item == ("a", 0)
    order = []
    for number in range(8):
        lookahead.put((number, 99))
        order.append(lookahead.take().item)
    assert ("b", -1) in order
    assert order.index(("b", -1)) == 3
    lookahead.ended(first.index)
    second = [lookahead.take(), lookahead.take()]
    assert [one.item for one in second] == [(7, 99), ("a", 0)]
    assert not lookahead.ready


@attrs.frozen
class Case:
    """A fan-out whose items have keys, and what befalls it."""

    items: list[tuple[str, int, Ending]]
    kind: Any
    limit: int
    lookahead: int
    numbers: list[int] | None
    policy: Any
    outside: Literal["nothing", "outer cancel", "run cancel", "run stop"]
    outside_at: float


cases = st.builds(
    Case,
    items=st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.integers(0, 3),
            st.sampled_from(["ok", "ok", "ok", "fails", "fails once", "cancels itself"]),
        ),
        max_size=12,
    ),
    kind=st.sampled_from([list, Source, AsyncSource]),
    limit=st.integers(1, 4),
    lookahead=st.integers(1, 6),
    numbers=st.none() | st.lists(st.integers(0, 3), min_size=12, max_size=12),
    policy=st.sampled_from([harness.BestEffort(), harness.FailFast(), harness.Quorum(2)]),
    outside=st.sampled_from(["nothing"] * 3 + ["outer cancel", "run cancel", "run stop"]),
    outside_at=st.integers(0, 9).map(lambda n: n + 0.5),
)


@given(case=cases, seed=st.integers(0, 99))
def test_whatever_happens_keys_take_turns_in_order_and_nothing_is_lost(
    case: Case, seed: int
) -> None:
    random.seed(seed)
    trio.run(_check, case, clock=MockClock(autojump_threshold=0))


async def _check(case: Case) -> None:
    items = [Ticket(number, *rest) for number, rest in enumerate(case.items)]
    desk = Desk()
    function = None
    if case.numbers is not None:
        numbers = case.numbers

        def function(ticket: Ticket) -> float:
            return numbers[ticket.number]

    source = items if case.kind is list else _as(case.kind, items)
    tasks = living_tasks()
    results: Any = None
    at = case.outside_at
    with trio.move_on_after(at if case.outside == "outer cancel" else 10_000) as scope:
        async with harness.open_run("outer") as run, trio.open_nursery() as nursery:
            if case.outside.startswith("run"):
                nursery.start_soon(_later, run, case.outside, at)
            try:
                results = await harness.fan_out(
                    desk.work,
                    source,
                    policy=case.policy,
                    limit=case.limit,
                    priority=Priority(function, lookahead=case.lookahead, serial_by=customer),
                    each=harness.Attempt(retry=harness.Retry(2, first_delay=1, jitter=0)),
                )
            except harness.errors.FanOutError as error:
                results = error.results
            nursery.cancel_scope.cancel()
    assert living_tasks() == tasks
    assert desk.busy == {} or results is None or not results.complete
    assert desk.peak <= case.limit
    for letter in "abc":
        own = [number for number in desk.began if items[number].customer == letter]
        assert own == sorted(own)
    if results is not None:
        indexes = [result.index for result in results]
        assert indexes == list(range(len(indexes)))
        if case.kind is list:
            assert len(results) == len(items)
        if case.outside == "nothing" and isinstance(case.policy, harness.BestEffort):
            assert len(desk.began) == len(items) == len(results)
    else:
        assert scope.cancelled_caught or case.outside == "run cancel"


def _as(kind: Any, items: list[Ticket]) -> Any:
    if kind is Source:
        return iter(items)

    async def give() -> Any:
        for number, item in enumerate(items):
            if number % 3 == 2:
                await trio.sleep(1)
            yield item

    return give()


async def _later(run: harness.Run, what: str, seconds: float) -> None:
    await trio.sleep(seconds)
    if what == "run stop":
        run.stop()
    else:
        run.cancel()
