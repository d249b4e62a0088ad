"""Orders that no assertion can tell apart are run once, and none that can be is left out."""

import array
import asyncio
import math
import random
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from functools import partial
from operator import call
from random import Random
from typing import Any, ClassVar

import attrs
import pytest
import trio
from hypothesis import HealthCheck, assume, given, settings

from harness.errors import DeadlockError
from harness.testing import Found, NotFound, OrdersSeen, RacingLines, find_schedule
from harness.testing.schedules import Kind, ScheduleRun
from tests.scale import FULL, scaled
from tests.testing.schedules import random_programs as random_threads
from tests.testing.schedules.programs import letters
from tests.testing.schedules.random_programs import (
    Plan,
    Program,
    ThreadPlan,
    end_of,
    every_order,
    plans,
    program_of,
    program_of_threads,
    thread_plans,
)


def distinct(
    program: Callable[[], Any], *, schedules: int = 2_000, backend: Kind | None = None
) -> tuple[OrdersSeen, set[str], int]:
    """Return what a search for distinct orders says, how runs ended, and how many there were."""
    ends: set[str] = set()

    def judge(run: ScheduleRun) -> None:
        ends.add(end_of(run.error, run.outcome))

    found = find_schedule(
        program, schedules=schedules, judge=judge, search="distinct", backend=backend
    )
    assert isinstance(found, NotFound)
    assert found.seen is not None
    assert found.exhausted == found.seen.exhaustive
    # The first is run once more in the end, to notice what a schedule doesn't decide.
    return found.seen, ends, found.schedules_run - found.seen.exhaustive


async def together(*works: Callable[[], Awaitable[object]]) -> None:
    async with trio.open_nursery() as nursery:
        for work in works:
            nursery.start_soon(work)


# Against every order ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_it_ends_in_every_way_that_any_order_ends(backend: Kind) -> None:
    """What is left out is the same as something that is run: checked against brute force."""
    orders_at_most = scaled(100, full=3_000)

    @settings(
        max_examples=scaled(12, full=500),
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
    )
    @given(plans)
    def check(plan: Plan) -> None:
        program = program_of(plan, backend)
        expected = every_order(program, backend, at_most=orders_at_most)
        assume(expected is not None)
        assert expected is not None
        seen, ends, _ = distinct(program, schedules=4_000, backend=backend)
        assert seen.exhaustive, seen
        assert (seen.orders, ends) == expected
        assert seen.distinct <= expected[0]

    check()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize(
    "plan",
    [
        pytest.param([[("set", 0)], [("wait", 0), ("read", 0)]], id="an event"),
        pytest.param([[("lock", 0)], [("lock", 0)]], id="a lock"),
        pytest.param([[("lend", 0)], [("lend", 0)], [("append", 0)]], id="a permit"),
        pytest.param([[("sleep", 0)], [("sleep", 0)], [("sleep", 1)]], id="time"),
        pytest.param([[("sleep", 0)], [("read", 0)], [("read", 1)]], id="time, after steps"),
    ],
)
def test_who_wakes_whom_counts(plan: Plan, backend: Kind) -> None:
    program = program_of(plan, backend)
    seen, ends, _ = distinct(program, backend=backend)
    assert seen.exhaustive
    assert (seen.orders, ends) == every_order(program, backend, at_most=1_000)


# Counted by hand --------------------------------------------------------------------------------


def independent(tasks: int, steps: int) -> Program:
    async def program() -> None:
        async def work() -> None:
            own: list[int] = []
            for number in range(steps - 1):
                own.append(number)
                await trio.lowlevel.checkpoint()

        await together(*[work] * tasks)

    return program


@pytest.mark.parametrize(("tasks", "steps"), [(2, 2), (3, 3), (4, 4)])
def test_tasks_that_share_nothing_have_one_distinct_order(tasks: int, steps: int) -> None:
    """(n·k)! / (k!)^n orders, and all are the same: 1,680 of three tasks with three steps."""
    seen, _, ran = distinct(independent(tasks, steps))
    orders = math.factorial(tasks * steps) // math.factorial(steps) ** tasks
    assert str(seen) == f"all {orders:,} orders, 1 distinct"
    assert ran == 1


async def lost_update() -> int:
    count = 0

    async def increase() -> None:
        nonlocal count
        read = count
        await trio.lowlevel.checkpoint()
        count = read + 1

    await together(increase, increase)
    return count


def test_a_lost_update_has_four_distinct_orders() -> None:
    """One after the other, in both ways; and both read first, then either writes first."""
    seen, ends, ran = distinct(lost_update)
    assert (seen.orders, seen.distinct, ran) == (6, 4, 4)
    assert ends == {"Value(1)", "Value(2)"}


def philosophers(count: int) -> Program:
    async def program() -> None:
        forks = [trio.Lock() for _ in range(count)]

        async def dine(seat: int) -> None:
            async with forks[seat], forks[(seat + 1) % count]:
                pass

        async with trio.open_nursery() as nursery:
            for seat in range(count):
                nursery.start_soon(dine, seat)

    return program


def test_two_philosophers_have_eight_orders_of_which_five_are_distinct() -> None:
    """Each of three steps: take a fork, take the other, put both down.

    One eats before the other sits down, or while the other waits for the first fork: four orders,
    all distinct. Or both take one fork, in two orders, and wait for the other, in two: all the
    same.
    """
    seen, ends, _ = distinct(philosophers(2))
    assert (seen.orders, seen.distinct, seen.exhaustive) == (8, 5, True)
    assert ends == {"Value(None)", "DeadlockError"}


@pytest.mark.slow
def test_three_philosophers_are_found_to_deadlock() -> None:
    found = find_schedule(philosophers(3), search="distinct")
    assert isinstance(found, Found)
    assert isinstance(found.error, DeadlockError)


@pytest.mark.slow
def test_tasks_that_all_write_to_one_list_have_only_distinct_orders() -> None:
    seen, _, ran = distinct(lambda: letters("abc"))
    assert (seen.orders, seen.distinct, ran) == (90, 90, 90)


def test_the_issue_s_sentence() -> None:
    """Three tasks of three steps, of which two touch one list once each: 2 of 1,680."""

    async def program() -> None:
        shared: list[int] = []

        async def work(me: int) -> None:
            await trio.lowlevel.checkpoint()
            if me:
                shared.append(me)
            await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for me in range(3):
                nursery.start_soon(work, me)

    seen, _, _ = distinct(program)
    assert str(seen).startswith("all 1,680 orders, 2 distinct; 1 pair of lines raced")


def test_asyncio_programs_are_reduced_too() -> None:
    async def program() -> int:
        queue: asyncio.Queue[int] = asyncio.Queue()
        got: list[int] = []

        async def put(number: int) -> None:
            await asyncio.sleep(0)
            await queue.put(number)

        async def get() -> None:
            got.append(await queue.get())

        await asyncio.gather(put(1), put(2), get())
        return got[0]

    seen, ends, ran = distinct(program)
    every = every_order(program, "asyncio", at_most=200)
    assert every is not None
    assert (seen.orders, ends) == every
    assert seen.exhaustive
    assert ran < every[0]


def test_waits_for_time_are_in_their_order() -> None:
    """Nothing that happens at one moment can be swapped with what happens at another."""

    async def program() -> list[int]:
        order: list[int] = []

        async def work(seconds: int) -> None:
            await trio.sleep(seconds)
            order.append(seconds)

        async with trio.open_nursery() as nursery:
            for seconds in (1, 2, 2):
                nursery.start_soon(work, seconds)
        return order

    seen, _, ran = distinct(program)
    assert (seen.orders, seen.distinct, seen.exhaustive, ran) == (12, 2, True, 2)


# What can't be seen -----------------------------------------------------------------------------


def test_a_step_that_is_not_seen_depends_on_everything_and_is_named() -> None:
    async def program() -> None:
        async def work() -> None:
            random.seed()
            compile("1", "", "eval")
            await trio.lowlevel.checkpoint()

        await together(work, work)

    seen, _, ran = distinct(program)
    assert any("compile" in words and "test_distinct_orders.py" in words for words in seen.unseen)
    assert seen.distinct == ran - 1 > 1
    assert not seen.exhaustive


def test_exhaustive_is_not_said_of_what_was_not_seen() -> None:
    async def program() -> None:
        async def see() -> None:
            await trio.lowlevel.checkpoint()

        async def unseen() -> None:
            compile("1", "", "eval")

        await together(see, see, unseen)

    seen, _, _ = distinct(program)
    assert seen.unseen
    assert not seen.exhaustive
    assert "not seen: compile" in str(seen)


@pytest.mark.slow
def test_a_program_that_differs_by_chance_is_not_called_exhaustive() -> None:
    chance = Random(1)

    async def program() -> None:
        order: list[int] = []

        async def work() -> None:
            for _ in range(chance.randrange(1, 4)):
                await trio.lowlevel.checkpoint()
                order.append(1)

        await together(work, work)

    seen, _, _ = distinct(program, schedules=60)
    assert not seen.exhaustive
    assert any("Random.getrandbits" in words for words in seen.unseen)


def test_a_program_that_another_run_changes_is_noticed() -> None:
    runs = 0

    async def program() -> None:
        nonlocal runs
        runs += 1
        order: list[int] = []

        async def work(steps: int) -> None:
            for _ in range(steps):
                order.append(1)
                await trio.lowlevel.checkpoint()

        await together(*[partial(work, 1 + (runs > 2))] * 2)

    seen, _, _ = distinct(program, schedules=60)
    assert not seen.exhaustive
    assert any("differs from run to run" in words for words in seen.unseen)


@pytest.mark.slow
def test_too_many_orders_are_left_to_the_usual_search() -> None:
    seen, _, ran = distinct(lambda: letters("abcd", 5), schedules=60)
    assert (seen.schedules, ran) == (50, 60)
    assert not seen.exhaustive
    assert str(seen).startswith("50 distinct orders in 50 schedules")


@attrs.define
class Slotted:
    value: int = 0


@pytest.mark.parametrize(
    ("write", "read"),
    [
        pytest.param(lambda x: setattr(x[0], "value", 1), lambda x: x[0].value, id="attribute"),
        pytest.param(lambda x: x[1].append(1), lambda x: len(x[1]), id="list"),
        pytest.param(lambda x: x[1].extend([1]), lambda x: [*x[1]], id="list, copied"),
        pytest.param(lambda x: x[2].update(a=1), lambda x: x[2].get("a"), id="dict"),
        pytest.param(lambda x: x[2].setdefault("a", 1), lambda x: "a" in x[2], id="dict, asked"),
        pytest.param(lambda x: x[3].add(1), lambda x: bool(x[3]), id="set"),
        pytest.param(lambda x: x[4].appendleft(1), lambda x: list(x[4]), id="deque"),
        pytest.param(lambda x: x[1].append(1), lambda x: f"{x}", id="formatted"),
        pytest.param(lambda x: x[1].append(1), lambda x: [y == [] for y in x], id="compared"),
        pytest.param(lambda x: x[1].append(1), lambda x: sorted(x[1]), id="sorted"),
        pytest.param(lambda x: x[2].update(a=1), lambda x: dict(x[2].items()), id="items"),
        pytest.param(lambda x: x[2].update(a=1), lambda x: [*map(x[2].get, "a")], id="passed on"),
        pytest.param(lambda x: [*map(x[1].append, "a")], lambda x: x[1][:], id="passed to write"),
        pytest.param(lambda x: x[1].append(1), lambda x: [y for y in x[1] if y], id="gone through"),
        pytest.param(lambda x: x.__setitem__(0, 1), lambda x: x[0], id="element"),
        pytest.param(lambda x: x.pop(), lambda x: x[-1], id="last element"),
    ],
)
def test_a_write_and_a_read_are_seen_whatever_does_them(
    write: Callable[[Any], object], read: Callable[[Any], object]
) -> None:
    """Two orders, of which each is distinct."""

    async def program() -> str:
        shared = [Slotted(), [], {}, set[int](), deque[int]()]
        got: list[object] = []

        async def writer() -> None:
            write(shared)

        async def reader() -> None:
            got.append(read(shared))

        await together(writer, reader)
        return repr(got)

    seen, ends, ran = distinct(program)
    assert (seen.orders, seen.distinct, ran, len(ends)) == (2, 2, 2, 2)


class Counted:
    count = 0
    more: ClassVar[dict[str, int]] = {}


COUNTED = Counted()
TOTAL = 0


def add_to_total() -> None:
    global TOTAL
    TOTAL += 1


@pytest.mark.parametrize(
    ("write", "read"),
    [
        pytest.param(lambda: setattr(Counted, "count", 1), lambda: COUNTED.count, id="class"),
        pytest.param(add_to_total, lambda: sys.modules[__name__].TOTAL, id="global"),
        pytest.param(lambda: Counted.more.update(a=1), lambda: {**Counted.more}, id="unpacked"),
        pytest.param(lambda: Counted.more.update(a=1), lambda: Counted.more | {}, id="joined"),
    ],
)
def test_what_outlives_a_run_is_seen_whichever_way_it_is_reached(
    write: Callable[[], object], read: Callable[[], object]
) -> None:
    async def program() -> None:
        async def writer() -> None:
            write()

        async def reader() -> None:
            read()

        await together(writer, reader)

    seen, _, ran = distinct(program)
    assert (seen.orders, seen.distinct, ran, seen.unseen) == (2, 2, 2, ())


def test_an_async_generator_that_tasks_share_is_seen() -> None:
    async def program() -> list[int]:
        async def count() -> AsyncGenerator[int, None]:
            number = 0
            while True:
                number += 1
                yield number

        numbers = count()
        got = [0, 0]

        async def take(which: int) -> None:
            async for number in numbers:
                got[which] = number
                break

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take, 0)
            nursery.start_soon(take, 1)
        await numbers.aclose()
        return got

    _, ends, _ = distinct(program)
    assert ends == {"Value([1, 2])", "Value([2, 1])"}


def test_what_only_c_code_can_look_into_is_named() -> None:
    async def program() -> None:
        numbers = array.array("i", [0])

        async def work() -> None:
            numbers[0] += 1
            await trio.lowlevel.checkpoint()

        await together(work, work)

    seen, _, _ = distinct(program)
    assert not seen.exhaustive
    assert any("array" in words for words in seen.unseen)


# Races ------------------------------------------------------------------------------------------


def test_racing_lines_are_named_with_what_they_touch() -> None:
    class Account:
        left = 100

    async def program() -> None:
        account = Account()

        async def spend() -> None:
            if account.left >= 60:
                await trio.lowlevel.checkpoint()
                account.left -= 60

        await together(spend, spend)

    seen, _, _ = distinct(program)
    first = program.__code__.co_firstlineno + 4
    looks, takes = (f"test_distinct_orders.py:{line}" for line in (first, first + 2))
    assert seen.races == (
        RacingLines(looks, takes, "Account.left", True),
        RacingLines(takes, takes, "Account.left", True),
    )
    assert seen.one_way == ()


def test_what_came_in_one_order_only_is_told() -> None:
    """With too few schedules the other order was never seen."""

    async def program() -> None:
        places = [[0], [0]]

        async def read(where: int) -> None:
            assert places[where][0] in (0, 1)

        async def write(where: int) -> None:
            places[where][0] = 1

        async with trio.open_nursery() as nursery:
            for where in range(2):
                nursery.start_soon(write, where)
                nursery.start_soon(read, where)

    found = find_schedule(program, schedules=1, search="distinct")
    assert isinstance(found, NotFound)
    assert found.seen is not None
    (race,) = found.seen.one_way
    read, write = (program.__code__.co_firstlineno + line for line in (4, 7))
    first, second = (f"test_distinct_orders.py:{line}" for line in (write, read))
    assert race == RacingLines(first, second, "a list", False), "the one that came first is first"
    assert f"1 in one order only: {first} and {second} (a list)" in found.in_words


def test_an_order_that_the_program_keeps_is_no_race_once_all_orders_were_run() -> None:
    async def program() -> None:
        is_there = False
        value = [0]

        async def put() -> None:
            nonlocal is_there
            value[0] = 1
            is_there = True

        async def get() -> None:
            if is_there:
                assert value[0]

        await together(put, get)

    seen, _, _ = distinct(program)
    assert [race.what for race in seen.one_way] == ["a list"]
    assert str(seen) == "all 2 orders, 2 distinct; 1 pair of lines raced"


def test_what_is_ordered_by_start_and_end_does_not_race() -> None:
    async def program() -> int:
        state = {"a": 0}

        async def work() -> None:
            state["a"] += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
        return state["a"]

    seen, _, _ = distinct(program)
    assert seen.races == ()


# Threads ----------------------------------------------------------------------------------------


def all_ends(plan: ThreadPlan, *, at_most: int) -> tuple[int, set[str]] | None:
    return every_order(program_of_threads(plan), "threads", at_most=at_most)


def check_threads(plan: ThreadPlan, expected: tuple[int, set[str]]) -> None:
    seen, ends, _ = distinct(program_of_threads(plan), schedules=8_000, backend="threads")
    assert seen.exhaustive, seen
    assert (seen.orders, ends) == expected
    assert seen.distinct <= expected[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "does",
    [
        pytest.param([["add"], ["add"]], id="a number"),
        pytest.param([["lock"], ["lock"]], id="a lock"),
        pytest.param([["try"], ["lock"]], id="a lock that is only tried"),
        pytest.param([["look"], ["set"]], id="an event"),
    ],
)
def test_threads_end_in_every_way_that_any_order_ends(does: list[list[str]]) -> None:
    plan = [[getattr(random_threads, f"_{one}") for one in own] for own in does]
    expected = all_ends(plan, at_most=1_000)
    assert expected is not None
    check_threads(plan, expected)


@pytest.mark.long
@pytest.mark.skipif(not FULL, reason="only with HARNESS_FULL=1")
def test_threads_drawn_at_random_end_in_every_way_that_any_order_ends() -> None:
    @settings(
        max_examples=60,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
    )
    @given(thread_plans)
    def check(plan: ThreadPlan) -> None:
        expected = all_ends(plan, at_most=8_000)
        assume(expected is not None)
        assert expected is not None
        check_threads(plan, expected)

    check()


def threads_that(
    *works: Callable[[], object], meanwhile: Iterable[Callable[[], object]] = ()
) -> None:
    """Run threads; what starts and joins them is written in C, and has no points."""
    threads = [threading.Thread(target=work) for work in works]
    begin = [partial(threading.Thread.start, thread) for thread in threads]
    join = [partial(threading.Thread.join, thread) for thread in threads]
    does: list[Any] = [*begin, *meanwhile, *join]
    deque(map(call, does), 0)


@attrs.define(eq=False)
class Own:
    value: int = 0


def test_threads_that_share_nothing_have_one_distinct_order() -> None:
    """The three steps of each end at the first attribute, at the second, and with the thread.

    The main thread makes a step when each of them has been joined, so there are more than 1,680.
    """

    def program() -> None:
        def work(own: Own) -> None:
            own.value = 1
            own.value = 2

        threads_that(*(partial(work, Own()) for _ in range(3)))

    seen, _, runs = distinct(program)
    assert (seen.distinct, runs) == (1, 1)
    assert str(seen) == "all 5,775 orders, 1 distinct"


@pytest.mark.slow
def test_whoever_waits_for_a_lock_may_be_the_next_to_get_it() -> None:
    """Two may wait while the main thread has it, and either may get it then."""

    def work(lock: threading.Lock, got: list[str], name: str) -> None:
        with lock:
            got.append(name)

    def change(own: Own) -> None:
        own.value = 1

    def program() -> list[str]:
        lock = threading.Lock()
        got: list[str] = []
        works = [partial(work, lock, got, name) for name in "ab"]
        lock.acquire()
        threads_that(*works, meanwhile=[partial(change, Own()), lock.release])
        return got

    expected = every_order(program, "threads", at_most=8_000)
    seen, ends, _ = distinct(program)
    assert seen.exhaustive
    assert (seen.orders, ends) == expected
    assert len(ends) == 2


def test_racing_lines_of_threads_are_named_with_what_they_touch() -> None:
    def program() -> None:
        own, lock = Own(), threading.Lock()

        def look() -> None:
            if own.value < 1:
                with lock:
                    own.value += 1

        threads_that(look, look)

    seen, _, _ = distinct(program)
    first = program.__code__.co_firstlineno + 4
    looks, adds = (f"test_distinct_orders.py:{line}" for line in (first, first + 2))
    assert seen.races == (
        RacingLines(looks, adds, "Own.value", True),
        RacingLines(adds, adds, "Own.value", True),
    )
    found = find_schedule(program, schedules=1, search="distinct")
    assert isinstance(found, NotFound)
    assert found.seen is not None
    assert found.seen.one_way == (RacingLines(adds, looks, "Own.value", False),)


def test_what_threads_start_and_join_does_not_race() -> None:
    def program() -> None:
        own = Own()

        def work() -> None:
            own.value += 1

        own.value = 1
        threads_that(work)
        assert own.value == 2
        threads_that(work)

    seen, _, _ = distinct(program)
    assert seen.races == ()
    assert seen.exhaustive


def test_what_a_thread_does_that_is_not_seen_is_named() -> None:
    def program() -> None:
        def work() -> None:
            compile("1", "", "eval")

        threads_that(work, work)

    seen, _, _ = distinct(program)
    assert not seen.exhaustive
    line = program.__code__.co_firstlineno + 2
    assert seen.unseen == (f"compile (test_distinct_orders.py:{line})",)
