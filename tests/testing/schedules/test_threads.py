"""Run threads one at a time, in the order that a schedule says, and leave nothing behind."""

import asyncio
import concurrent.futures
import itertools
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from random import Random
from typing import Any

import attrs
import pytest
import trio

from harness.errors import DeadlockError
from harness.testing import Found, NotFound, arriving, find_schedule, run_schedule
from harness.testing.schedules import Kind, Strand
from harness.testing.schedules._choosers import Chooser, Planned, Priorities, Sticky
from harness.testing.schedules._controlled import run_controlled
from harness.testing.schedules._thread_backend import ThreadBackend
from harness.testing.schedules._thread_patches import adopting
from tests.testing.exploration.thread_races import RACES, Race, at_once

pytestmark = pytest.mark.slow

MADE_BEFORE = threading.Lock()
REENTRANT_BEFORE = threading.RLock()
POOL_BEFORE = concurrent.futures.ThreadPoolExecutor(2)

variable: ContextVar[str] = ContextVar("variable", default="nobody's")


def process_state() -> list[Any]:
    """Return what the control of threads replaces."""
    return [
        *(threading.Lock, threading.RLock, vars(threading)["_allocate_lock"]),
        *(threading.Thread.start, threading.Thread.join, threading.Thread.is_alive),
        *(time.sleep, time.monotonic, time.time, queue.SimpleQueue, vars(queue)["time"]),
        *(vars(concurrent.futures.ThreadPoolExecutor).copy(), concurrent.futures.Future),
        vars(concurrent.futures.thread)["_global_shutdown_lock"],
        *(trio.to_thread.run_sync, trio.from_thread.run, trio.from_thread.run_sync),
        *(trio.from_thread.check_cancelled, MADE_BEFORE, REENTRANT_BEFORE),
        *(sys.gettrace(), sys.getprofile(), vars(POOL_BEFORE).copy()),
        [sys.monitoring.get_tool(tool) for tool in range(6)]  # type: ignore[attr-defined,unused-ignore]
        if sys.version_info >= (3, 12)
        else [],
        threading.enumerate(),
    ]


def lost_update() -> None:
    counts = {"a": 0}

    def count() -> None:
        counts["a"] += 1

    at_once(count, count)
    assert counts["a"] == 2


# What needn't be asked ----------------------------------------------------------------------------


@attrs.define(eq=False)
class Asked:
    """A chooser that doesn't say for how long it is going to choose the same."""

    chooser: Chooser

    def choose(self, tasks: Sequence[int]) -> int:
        return self.chooser.choose(tasks)


class Looking:
    """An observer, for which threads stop exactly where a point is."""

    def before_step(self, strand: Strand) -> None:
        pass

    def after_step(self, strand: Strand) -> None:
        pass


CHOOSERS: list[Callable[[], Chooser]] = [
    lambda: Planned({3: 1, 4: 1, 17: 1, 30: 1}),
    lambda: Sticky(Random(3), 0.1),
    lambda: Priorities(Random(8), 3, 40),
]


@pytest.mark.parametrize("race", RACES, ids=lambda race: race.__name__)
def test_points_that_are_passed_without_asking_are_decisions_all_the_same(race: Race) -> None:
    """Whether it is asked at each point, and stopped exactly there, makes no difference."""
    program = partial(race, right=True)
    with adopting(program):
        for choose in CHOOSERS:
            passing = run_controlled(program, choose(), backend=ThreadBackend())
            asked = run_controlled(program, Asked(choose()), backend=ThreadBackend())
            exactly = run_controlled(
                program, choose(), backend=ThreadBackend(), observers=(Looking(),)
            )
            for other in (asked, exactly):
                assert str(other.schedule) == str(passing.schedule)
                assert other.order == passing.order
                assert other.choices == passing.choices
                assert other.widths == passing.widths
                assert other.picks == passing.picks


def test_of_many_threads_each_makes_many_steps_at_its_turn() -> None:
    """Else a hundred would do little but take turns, as nobody may be passed over for long."""

    def program() -> None:
        counts = [0] * 40

        def count(number: int) -> None:
            for _ in range(100):
                counts[number] += 1

        at_once(*(partial(count, number) for number in range(40)))

    run = run_schedule(program)
    switches = sum(one != other for one, other in itertools.pairwise(run.order))
    assert run.steps > 40 * 100 * 2
    assert switches < 40 * 20


def test_who_polls_among_many_threads_does_not_poll_for_ever() -> None:
    def program() -> None:
        arrived = [False] * 30

        def arrive(number: int) -> None:
            for _ in range(60):
                arrived[number] = False
            arrived[number] = True

        def poll() -> None:
            while not all(arrived):
                pass

        at_once(poll, *(partial(arrive, number) for number in range(30)))

    def poller_first() -> Chooser:
        chooser = Priorities(Random(0), 0, 1)
        chooser.priority[1] = 2.0
        return chooser

    with adopting(program):
        run = run_controlled(program, poller_first(), backend=ThreadBackend())
        assert run.error is None
        asked = run_controlled(program, Asked(poller_first()), backend=ThreadBackend())
        assert asked.order == run.order


def test_a_thread_is_there_as_soon_as_it_was_started() -> None:
    """Its thread is made at its first turn, which nobody notices."""
    seen: list[object] = []

    def program() -> None:
        thread = threading.Thread(target=time.sleep, args=(1,))
        assert thread.ident is None
        thread.start()
        seen.append((thread.is_alive(), thread in threading.enumerate(), "started" in repr(thread)))
        with pytest.raises(RuntimeError, match="threads can only be started once"):
            thread.start()
        assert thread.native_id is not None
        seen.append(thread.ident)
        thread.join()
        assert seen[-1] == thread.ident

    run_schedule(program).outcome.unwrap()
    assert seen[0] == (True, True, True)


def test_a_thread_that_never_had_its_turn_is_not_left_half_started() -> None:
    threads: list[threading.Thread] = []

    def program() -> None:
        threads.append(threading.Thread(target=time.sleep, args=(1,)))
        threads[0].start()

    before = threading.enumerate()
    run_schedule(program).outcome.unwrap()
    threads[0].join()
    assert not threads[0].is_alive()
    assert threading.enumerate() == before


# Switches ----------------------------------------------------------------------------------------


def test_a_finding_says_whether_this_build_of_python_switches_there() -> None:
    found = find_schedule(lost_update)
    assert isinstance(found, Found)
    (where,) = found.run.unswitchable
    assert "count (test_threads.py:" in where

    def with_a_call() -> None:
        counts = {"a": 0}

        def count() -> None:
            before = counts["a"]
            counts["a"] = abs(before) + 1

        at_once(count, count)
        assert counts["a"] == 2

    found = find_schedule(with_a_call)
    assert isinstance(found, Found)
    # There is a call between the two: any Python may switch after it.
    assert found.run.unswitchable == ()


def test_nothing_else_runs_between_two_points_of_a_thread() -> None:
    """A library's code, and what only works with variables of its own, is one step."""

    def program() -> None:
        seen: list[int] = []

        def work() -> None:
            total = 0
            for number in range(50):
                total += number
            seen.append(total)

        at_once(work, work)
        assert seen == [1225, 1225]

    found = find_schedule(program, schedules=20)
    assert isinstance(found, NotFound)


def test_a_variable_of_the_function_around_races_too() -> None:
    def program() -> None:
        total = 0

        def add() -> None:
            nonlocal total
            total += 1

        at_once(add, add)
        assert total == 2

    assert isinstance(find_schedule(program), Found)


# Waits -------------------------------------------------------------------------------------------


def test_time_is_virtual_for_threads() -> None:
    def program() -> tuple[float, float, bool]:
        began, clock = time.monotonic(), time.time()
        event = threading.Event()
        threading.Timer(3600, event.set).start()
        came = event.wait(7200)
        time.sleep(3600)
        return time.monotonic() - began, time.time() - clock, came

    began = time.monotonic()
    passed, shown, came = run_schedule(program).outcome.unwrap()
    assert (passed, came) == (7200, True)
    assert shown == pytest.approx(7200)
    assert time.monotonic() - began < 60


def test_a_wait_with_a_timeout_ends_when_nobody_can_end_it() -> None:
    def program() -> tuple[Any, ...]:
        lock = threading.Lock()
        lock.acquire()
        answers: queue.Queue[int] = queue.Queue()
        try:
            answers.get(timeout=60)
        except queue.Empty:
            empty = True
        forever = threading.Thread(target=threading.Event().wait, args=(90,))
        forever.start()
        forever.join(30)
        alive = forever.is_alive()
        forever.join()
        return lock.acquire(timeout=5), empty, alive, forever.is_alive()

    assert run_schedule(program).outcome.unwrap() == (False, True, True, False)


def test_a_deadlock_says_who_holds_what_since_which_line() -> None:
    def program() -> None:
        first, second = threading.Lock(), threading.Lock()

        def there() -> None:
            with first, second:
                pass

        def back() -> None:
            with second, first:
                pass

        threads = [threading.Thread(target=there, name="east"), threading.Thread(target=back)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    found = find_schedule(program)
    assert isinstance(found, Found)
    assert isinstance(found.error, DeadlockError)
    east, back = sorted(found.run.blocked, key=lambda blocked: blocked.name, reverse=True)
    assert (east.name, east.holder) == ("east", "back")
    assert (back.name, back.holder) == ("back", "east")
    assert east.taken_at is not None
    assert ".back (test_threads.py:" in east.taken_at
    assert str(back).startswith("thread 'back' waits in ")


def test_a_thread_that_takes_its_own_lock_again_is_named() -> None:
    def program() -> None:
        lock = threading.Lock()
        with lock:
            lock.acquire()

    made = run_schedule(program)
    assert isinstance(made.error, DeadlockError)
    assert "for a lock that it holds itself since" in str(made.error)


def test_a_thread_blocked_in_something_uncontrolled_is_named_within_a_second() -> None:
    one, other = socket.socketpair()

    def receive() -> None:
        other.recv(1)

    def program() -> None:
        at_once(receive)

    began = time.monotonic()
    made = run_schedule(program)
    took = time.monotonic() - began
    one.send(b"x")  # So that it ends after all.
    assert isinstance(made.error, DeadlockError)
    assert "receive (test_threads.py:" in str(made.error)
    assert "for something that no schedule controls" in str(made.error)
    assert len(made.uncontrolled) == 1
    assert took < 1.5  # The rest is the machine's.
    deadline = time.monotonic() + 5
    while threading.active_count() > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    one.close()
    other.close()


def test_others_go_on_meanwhile_and_what_comes_back_waits_for_its_turn() -> None:
    one, other = socket.socketpair()
    got: list[bytes] = []

    def program() -> None:
        def send() -> None:
            time.sleep(1)
            one.send(b"x")

        at_once(lambda: got.append(other.recv(1)), send)

    made = run_schedule(program)
    assert made.error is None
    assert got == [b"x"]
    one.close()
    other.close()


def test_locks_and_pools_that_were_made_before_are_controlled() -> None:
    def program() -> None:
        inside: list[int] = []
        most: list[int] = []

        def work() -> None:
            with MADE_BEFORE, REENTRANT_BEFORE, REENTRANT_BEFORE:
                inside.append(1)
                time.sleep(1)
                most.append(len(inside))
                inside.pop()

        for future in [POOL_BEFORE.submit(work) for _ in range(2)]:
            future.result()
        assert most == [1, 1]

    found = find_schedule(program, schedules=50)
    assert isinstance(found, NotFound), found.error
    assert not found.plain.uncontrolled


def test_a_new_thread_has_a_context_of_its_own() -> None:
    seen: list[str] = []

    def program() -> None:
        variable.set("main's")
        at_once(lambda: seen.append(variable.get()))

    run_schedule(program).outcome.unwrap()
    assert seen == ["nobody's"]


def test_replies_arrive_in_any_order() -> None:
    def program() -> None:
        came: list[int] = []
        ask = arriving(lambda number: number)
        at_once(lambda: came.append(ask(1)), lambda: came.append(ask(2)))
        assert came == [1, 2]

    assert isinstance(find_schedule(program, arrivals_only=True), Found)


# Worker threads of the loops ---------------------------------------------------------------------


def in_two_threads(count: Callable[[], None]) -> dict[str, Callable[[], Any]]:
    async def in_trio() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(trio.to_thread.run_sync, count)

    async def in_asyncio() -> None:
        await asyncio.gather(asyncio.to_thread(count), asyncio.to_thread(count))

    return {"trio": in_trio, "asyncio": in_asyncio}


@pytest.mark.parametrize("kind", ["trio", "asyncio"])
def test_worker_threads_of_a_loop_race(kind: Kind) -> None:
    async def program() -> None:
        counts = {"a": 0}

        def count() -> None:
            counts["a"] += 1

        await in_two_threads(count)[kind]()
        assert counts["a"] == 2

    found = find_schedule(program, backend=kind)
    assert isinstance(found, Found)
    assert found.run.backend == kind
    assert found.run.schedule.switches <= 3
    for _ in range(20):
        again = run_schedule(program, str(found.run.schedule), backend=kind)
        assert (again.diverged_at, repr(again.error)) == (None, repr(found.error))


@pytest.mark.parametrize("kind", ["trio", "asyncio"])
def test_worker_threads_with_a_lock_raise_no_alarm(kind: Kind) -> None:
    async def program() -> None:
        counts = {"a": 0}
        lock = threading.Lock()

        def count() -> None:
            with lock:
                before = counts["a"]
                time.sleep(1)
                counts["a"] = before + 1

        await in_two_threads(count)[kind]()
        assert counts["a"] == 2

    found = find_schedule(program, backend=kind, schedules=100)
    assert isinstance(found, NotFound), found.error
    assert not found.plain.uncontrolled


@pytest.mark.parametrize("kind", ["trio", "asyncio"])
def test_a_deadlock_of_worker_threads_is_named(kind: Kind) -> None:
    async def program() -> None:
        first, second = threading.Lock(), threading.Lock()
        orders = [(first, second), (second, first)]

        def transfer() -> None:
            one, other = orders.pop()
            with one, other:
                pass

        await in_two_threads(transfer)[kind]()

    found = find_schedule(program, backend=kind)
    assert isinstance(found, Found)
    assert isinstance(found.error, DeadlockError)
    assert str(found.error).count("for a lock that task ") == 2


def test_a_worker_thread_of_trio_calls_back_and_hears_of_a_cancel() -> None:
    async def program() -> list[Any]:
        seen: list[Any] = []

        def work() -> None:
            began = trio.from_thread.run_sync(trio.current_time)
            trio.from_thread.run(trio.sleep, 60)
            seen.append(trio.from_thread.run_sync(trio.current_time) - began)
            try:
                while True:
                    trio.from_thread.check_cancelled()
                    time.sleep(1)
            except trio.Cancelled:
                seen.append("cancelled")

        with trio.move_on_after(90):
            await trio.to_thread.run_sync(work)
        return seen

    assert run_schedule(program).outcome.unwrap() == [60, "cancelled"]


# What is left ------------------------------------------------------------------------------------


def test_nothing_is_left() -> None:
    def hangs() -> None:
        jobs: queue.Queue[int] = queue.Queue()
        threading.Thread(target=jobs.get).start()
        threading.Timer(5, print).start()
        POOL_BEFORE.submit(threading.Event().wait)
        with MADE_BEFORE:
            raise LookupError("no")

    def ignores_its_end() -> None:
        def poll() -> None:
            while True:
                try:
                    time.sleep(1)
                except BaseException as error:
                    if len(swallowed) > 3:
                        raise
                    swallowed.append(error)

        swallowed: list[BaseException] = []
        threading.Thread(target=poll).start()

    async def of_a_loop() -> None:
        await trio.to_thread.run_sync(time.sleep, 1)

    before = process_state()
    for program in (hangs, ignores_its_end, lost_update, of_a_loop):
        find_schedule(program, schedules=20)
    assert process_state() == before


def test_a_thread_that_never_ends_is_cut_short() -> None:
    def program() -> None:
        state = {"done": False}

        def poll() -> None:
            while not state["done"]:
                pass

        at_once(poll)

    made = run_schedule(program, most_steps=500)
    assert "had not ended after 500 steps" in str(made.error)
    assert threading.active_count() == 1 or not [
        thread for thread in threading.enumerate() if thread.name == "main"
    ]


def test_an_error_in_a_thread_is_told_and_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    def program() -> None:
        at_once(lambda: dict[str, int]()["missing"])

    made = run_schedule(program)
    assert made.unheard == ("thread '<lambda>' ended with KeyError: 'missing'",)
    assert capsys.readouterr().err == ""


# Threads of pools --------------------------------------------------------------------------------


LOCAL = threading.local()


def visits() -> int:
    """Return how many calls the thread has worked for."""
    LOCAL.visits = getattr(LOCAL, "visits", 0) + 1
    return int(LOCAL.visits)


async def visits_on_trio(at_once: int) -> list[int]:
    seen: list[int] = []

    async def visit() -> None:
        seen.append(await trio.to_thread.run_sync(visits))

    for _ in range(2):
        async with trio.open_nursery() as nursery:
            for _ in range(at_once):
                nursery.start_soon(visit)
    return seen


async def visits_on_asyncio(at_once: int) -> list[int]:
    rounds = [
        await asyncio.gather(*(asyncio.to_thread(visits) for _ in range(at_once))) for _ in range(2)
    ]
    return [*rounds[0], *rounds[1]]


def visits_in_a_pool(at_once: int) -> list[int]:
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        rounds = [list(pool.map(lambda _: visits(), range(at_once))) for _ in range(2)]
    return [*rounds[0], *rounds[1]]


@pytest.mark.parametrize(
    ("program", "kind"),
    [(visits_on_trio, "trio"), (visits_on_asyncio, "asyncio"), (visits_in_a_pool, "threads")],
)
def test_a_worker_works_for_one_call_after_the_other(
    program: Callable[[int], Any], kind: Kind
) -> None:
    """And no program meets a thread of the one before."""
    for _ in range(3):
        assert run_schedule(lambda: program(1), backend=kind).outcome.unwrap() == [1, 2]
    found = find_schedule(
        lambda: program(2),
        judge=lambda run: AssertionError() if repr(run.outcome).startswith("Value([1, 1") else None,
        backend=kind,
    )
    assert isinstance(found, Found)  # Two calls at once have a thread each.


def test_threads_of_an_executor_begin_as_it_says() -> None:
    async def program() -> list[int]:
        pool = concurrent.futures.ThreadPoolExecutor(
            1, initializer=lambda visits: setattr(LOCAL, "visits", visits), initargs=(10,)
        )
        loop = asyncio.get_running_loop()
        return [await loop.run_in_executor(pool, visits) for _ in range(2)]

    assert run_schedule(program).outcome.unwrap() == [11, 12]
