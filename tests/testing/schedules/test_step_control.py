"""Every step of every task is a decision, by both ways, and nobody else notices."""

import asyncio
import itertools
import random
import socket
import sys
import threading
import time
from functools import partial
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from harness.testing import Schedule, run_schedule
from harness.testing.schedules import Strand, _by_hook, _step_backends
from harness.testing.schedules._by_hook import HookBackend
from harness.testing.schedules._by_trampoline import TrampolineBackend
from harness.testing.schedules._control import Control
from harness.testing.schedules._step_backend import StepBackend
from tests.scale import PATIENCE_SECONDS
from tests.testing.schedules.programs import each_backend, letters, run_with


@each_backend
def test_every_order_of_two_tasks_can_be_had(backend: StepBackend) -> None:
    """Two letters twice: six orders, each by the choices that lead there."""
    orders = set()
    for choices in itertools.product((0, 1), repeat=4):
        schedule = Schedule.of_choices(enumerate(choices))
        orders.add(run_with(backend, lambda: letters("ab"), schedule).outcome.unwrap())
    assert orders == {"aabb", "abab", "abba", "baab", "baba", "bbaa"}


@each_backend
def test_without_a_choice_a_task_goes_on_until_it_has_to_wait(backend: StepBackend) -> None:
    run = run_with(backend, letters)
    assert run.outcome.unwrap() == "aabbcc"
    assert run.schedule == Schedule()
    assert run.widths == (3, 3, 2, 2)
    assert run.names[1:] == ("a", "b", "c")


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=8))
def test_both_ways_make_the_same_steps(deviations: list[tuple[int, int]]) -> None:
    """The slow way is only a fallback if a schedule means the same in it."""

    async def program() -> list[Any]:
        seen: list[Any] = []
        sender, receiver = trio.open_memory_channel[int](1)
        lock = trio.Lock()

        async def produce() -> None:
            async with sender:
                for number in range(3):
                    await sender.send(number)
                    seen.append(("sent", number))

        async def consume() -> None:
            async for number in receiver:
                async with lock:
                    seen.append(("got", number))
                    await trio.sleep(1)

        async def tick() -> None:
            with trio.move_on_after(2.5):
                while True:
                    async with lock:
                        seen.append(("tick", trio.current_time()))
                    await trio.sleep(0.5)

        async with trio.open_nursery() as nursery:
            for task in (produce, consume, tick):
                nursery.start_soon(task)
        return seen

    schedule = Schedule(tuple(deviations))
    runs = [run_with(backend, program, schedule) for backend in _step_backends.BACKENDS]
    assert runs[0].outcome.unwrap() == runs[1].outcome.unwrap()
    assert runs[0].order == runs[1].order[1:] or runs[0].order == runs[1].order
    assert str(runs[0].schedule) == str(runs[1].schedule)


@each_backend
def test_a_task_that_polls_does_not_starve_the_one_it_waits_for(backend: StepBackend) -> None:
    """A schedule that never switches must not turn a polite loop into an endless one."""

    async def program() -> int:
        done = False
        looks = 0

        async def work() -> None:
            nonlocal done
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            done = True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            while not done:
                looks += 1
                await trio.lowlevel.checkpoint()
        return looks

    assert run_with(backend, program).outcome.unwrap() > 1


@each_backend
def test_time_is_virtual_and_moves_only_when_all_wait(backend: StepBackend) -> None:
    async def program() -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []
        began = trio.current_time()

        async def nap(name: str, seconds: float) -> None:
            await trio.sleep(seconds)
            seen.append((name, trio.current_time() - began))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(nap, "long", 3_600)
            nursery.start_soon(nap, "short", 60)
        return seen

    assert run_with(backend, program).outcome.unwrap() == [("short", 60), ("long", 3_600)]


@each_backend
def test_waiting_for_all_others_to_be_blocked_still_means_that(backend: StepBackend) -> None:
    """Tasks that are held back are blocked to trio, and are not to the program."""

    async def program() -> list[str]:
        seen: list[str] = []

        async def work() -> None:
            seen.append("began")
            await trio.lowlevel.checkpoint()
            seen.append("waits")
            await trio.sleep(1)
            seen.append("ended")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            nursery.start_soon(work)
            await wait_all_tasks_blocked()
            seen.append("quiet")
        return seen

    seen = run_with(backend, program).outcome.unwrap()
    assert seen == ["began", "waits", "began", "waits", "quiet", "ended", "ended"]


def _compute(seconds: float) -> None:
    began = time.process_time()
    while time.process_time() - began < seconds:
        pass


@each_backend
def test_a_worker_thread_holds_the_clock(backend: StepBackend) -> None:
    """Real time passes in a thread; a timeout of the program must not strike because of it.

    What sleeps in a thread sleeps on the program's own clock, and may well be too late.
    """

    async def program() -> float:
        began = trio.current_time()
        with trio.fail_after(0.001):
            await trio.to_thread.run_sync(_compute, 0.01)
        with trio.move_on_after(5):
            await trio.to_thread.run_sync(time.sleep, 60)
        return trio.current_time() - began

    run = run_with(backend, program)
    assert run.outcome.unwrap() == 60
    assert run.uncontrolled == frozenset()


@each_backend
def test_a_thread_can_call_back(backend: StepBackend) -> None:
    async def program() -> float:
        def work() -> float:
            trio.from_thread.run(trio.sleep, 5)
            return trio.from_thread.run_sync(trio.current_time)

        began = trio.current_time()
        return await trio.to_thread.run_sync(work) - began

    assert run_with(backend, program).outcome.unwrap() == 5


@each_backend
def test_what_comes_over_a_socket_is_waited_for(backend: StepBackend) -> None:
    """The other side answers in real time, and the program's deadline is virtual."""

    async def program() -> bytes:
        near, far = socket.socketpair()
        with near, far:
            near.setblocking(False)
            later = threading.Timer(0.01, far.send, [b"hello"])
            later.start()
            with trio.fail_after(1):
                answer = await trio.socket.from_stdlib_socket(near).recv(100)
            later.join()
        return answer

    run = run_with(backend, program)
    assert run.outcome.unwrap() == b"hello"
    assert run.uncontrolled == {"sockets"}


@each_backend
def test_tasks_of_the_system_nursery_are_controlled_too(backend: StepBackend) -> None:
    async def program() -> str:
        written: list[str] = []

        async def write(letter: str) -> None:
            for _ in range(2):
                written.append(letter)
                await trio.lowlevel.checkpoint()

        trio.lowlevel.spawn_system_task(write, "s")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, "n")
        return "".join(written)

    orders = {
        run_with(backend, program, Schedule.of_choices([(place, 1)])).outcome.unwrap()[:3]
        for place in range(4)
    }
    assert len(orders) > 1


@each_backend
def test_an_error_comes_out_as_it_was_raised(backend: StepBackend) -> None:
    async def program() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(letters)
            raise LookupError("mine")

    error = run_with(backend, program).error
    assert isinstance(error, ExceptionGroup)
    assert error.subgroup(LookupError) is not None


@each_backend
def test_an_observer_that_raises_ends_the_run_with_its_error(backend: StepBackend) -> None:
    """It is called between steps, where an exception would end trio itself."""

    class Strict:
        def before_step(self, task: Strand) -> None:
            pass

        def after_step(self, task: Strand) -> None:
            if task.name == "b":
                raise LookupError("no b, please")

    run = run_with(backend, letters, observers=(Strict(),))
    assert isinstance(run.error, LookupError)


@each_backend
def test_observers_see_each_step_of_the_program_once(backend: StepBackend) -> None:
    seen: list[str] = []

    class Scribe:
        def before_step(self, task: Strand) -> None:
            seen.append(f"{task.name}+")

        def after_step(self, task: Strand) -> None:
            seen.append(f"{task.name}-")

    run_with(backend, lambda: letters("ab"), observers=(Scribe(),))
    steps = [step for step in seen if step[0] in "ab"]
    assert "".join(steps[:8]) == "a+a-a+a-b+b-b+b-"


# Others in the process --------------------------------------------------------------------------


class Recorder(random.Random):
    """Notes who asks for what."""

    def __init__(self) -> None:
        super().__init__(7)
        self.asked: set[tuple[str, str]] = set()

    def random(self) -> float:
        self.asked.add((threading.current_thread().name, "random"))
        return super().random()

    def shuffle(self, x: Any) -> None:
        self.asked.add((threading.current_thread().name, "shuffle"))
        super().shuffle(x)


@pytest.mark.parametrize(("switch", "way"), [(False, "random"), (True, "shuffle")])
def test_a_loop_in_another_thread_and_its_random_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, switch: bool, way: str
) -> None:
    """The hook is in a trio module, so every loop of the process goes through it.

    The other loop goes the way that it went before, whether deterministic scheduling was on for it
    or off, and only it draws from its random object.
    """
    recorder = Recorder()
    monkeypatch.setattr("trio._core._run._r", recorder)
    monkeypatch.setattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING", switch)
    began, stop = threading.Event(), threading.Event()
    ended: list[bool] = []

    async def neighbour() -> None:
        async def spin() -> None:
            while not stop.is_set():
                began.set()
                await trio.sleep(0.0001)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(spin)
        ended.append(True)

    thread = threading.Thread(
        target=lambda: trio.run(neighbour, clock=SteadyClock()), name="neighbour"
    )
    thread.start()
    try:
        assert began.wait(5)
        for _ in range(20):
            assert run_with(HookBackend(), letters).outcome.unwrap() == "aabbcc"
    finally:
        stop.set()
        thread.join(PATIENCE_SECONDS)
    assert ended == [True]
    asked_by_others = {(who, what) for who, what in recorder.asked if who != "neighbour"}
    assert not asked_by_others
    assert ("neighbour", way) in recorder.asked
    assert len({what for _, what in recorder.asked} - {"random"}) == (1 if switch else 0)


class SteadyClock(trio.abc.Clock):
    """The real time; unlike trio's own clock it draws nothing at random when it is made."""

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return time.monotonic()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self.current_time()


def test_everything_is_put_back_after_many_runs_at_once() -> None:
    trio_run: Any = _trio_run()
    before = trio_run._r, trio_run._ALLOW_DETERMINISTIC_SCHEDULING
    results: list[str] = []
    threads = [
        threading.Thread(
            target=lambda: results.append(run_schedule(letters, "h1:1x1:-:-").outcome.unwrap())
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert results == ["abbacc"] * 8
    assert (trio_run._r, trio_run._ALLOW_DETERMINISTIC_SCHEDULING) == before
    assert not _by_hook._replacement.sessions


def test_an_error_inside_the_hook_does_not_end_trio(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be a TrioInternalError in the middle of the loop, with every task lost."""

    def broken(*_: object) -> None:
        raise LookupError("in the hook")

    monkeypatch.setattr(_by_hook.HookSession, "arrange", broken)
    ended: list[bool] = []

    async def program() -> None:
        try:
            await letters()
        finally:
            ended.append(True)

    run = run_with(HookBackend(), program)
    assert isinstance(run.error, LookupError)
    assert ended == [True]


def test_a_task_in_a_nursery_of_another_loop_is_noticed() -> None:
    """It would run in the wrong loop without a word."""

    async def main() -> None:
        async with trio.open_nursery() as outside:

            async def program() -> None:
                outside.start_soon(trio.lowlevel.checkpoint, name="lost")
                await letters()

            run = await trio.to_thread.run_sync(lambda: run_with(HookBackend(), program))
        assert run.strangers == ("lost",)

    trio.run(main)


def test_inside_of_trio_it_says_what_to_do() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"trio\.to_thread\.run_sync\(run_schedule"):
            run_schedule(letters)

    trio.run(main)


# Which way --------------------------------------------------------------------------------------


def _trio_run() -> Any:
    return sys.modules["trio._core._run"]


@pytest.fixture
def fresh_choice() -> Any:
    _step_backends._tried.cache_clear()
    yield
    _step_backends._tried.cache_clear()


@pytest.mark.usefixtures("fresh_choice")
def test_the_fast_way_is_taken_where_it_works() -> None:
    assert isinstance(_step_backends.backend(), HookBackend)


@pytest.mark.usefixtures("fresh_choice")
def test_where_it_does_not_the_slow_way_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Private names go without a notice; the self-test finds out, not a wrong result."""
    monkeypatch.setattr(_by_hook._Random, "shuffle", lambda self, batch: None)
    assert isinstance(_step_backends.backend(), TrampolineBackend)
    assert run_schedule(letters, "h1:1x1:-:-").outcome.unwrap() == "abbacc"


@pytest.mark.usefixtures("fresh_choice")
def test_a_private_name_that_is_gone_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("trio._core._run.GLOBAL_RUN_CONTEXT")
    monkeypatch.setattr(_step_backends, "BACKENDS", (HookBackend(),))
    assert not _step_backends.works(HookBackend())


@pytest.mark.usefixtures("fresh_choice")
def test_where_none_works_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_step_backends, "works", lambda candidate: False)
    with pytest.raises(RuntimeError, match="can't be controlled with trio"):
        run_schedule(letters)


@pytest.mark.parametrize("tasks", [2, 200])
def test_a_step_costs_the_same_however_many_tasks_there_are(
    tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step looked at every task that could go on: 13 times a plain run with a hundred."""
    run_schedule(letters)  # The first one tries the ways of control.
    looks = 0
    add = Control.add

    def counted(control: Control, strand: Strand) -> None:
        nonlocal looks
        looks += 1
        add(control, strand)

    monkeypatch.setattr(Control, "add", counted)

    async def on_asyncio() -> None:
        async def work() -> None:
            for _ in range(9):
                await asyncio.sleep(0)

        await asyncio.gather(*(work() for _ in range(tasks)))

    def in_threads() -> None:
        seen: list[int] = []
        threads = [threading.Thread(target=seen.append, args=(1,)) for _ in range(tasks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    for program in (partial(letters, "a" * tasks), on_asyncio):
        looks = 0
        run = run_schedule(program)
        run.outcome.unwrap()
        assert looks <= 2 * run.steps + 2
    looks = 0
    run = run_schedule(in_threads)
    assert looks <= 2 * run.steps + 2
