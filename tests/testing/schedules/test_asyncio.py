"""asyncio programs under a schedule: what may come in any order, and what asyncio promises."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import outcome
import pytest
import trio
import trio.lowlevel

from harness.errors import DeadlockError, LivelockError
from harness.testing import (
    Found,
    NotFound,
    Schedule,
    ScheduleRun,
    faultable,
    find_schedule,
    run_schedule,
)
from harness.testing.schedules._choosers import Uniform
from harness.testing.schedules._kinds import probable_kind, surroundings
from harness.testing.schedules._run_schedule import run_probe
from harness.testing.schedules._search import Probe
from tests.testing.exploration.asyncio_races import RACES

Program = Callable[[], Awaitable[Any]]


def run(program: Program, schedule: Schedule | str = Schedule(), **settings: Any) -> ScheduleRun:  # noqa: B008 - frozen
    return run_schedule(program, schedule, backend="asyncio", **settings)


def ways(program: Program) -> set[Any]:
    """Return what a program returns, in all orders of its steps."""
    seen: set[Any] = set()

    def judge(run: ScheduleRun) -> None:
        assert isinstance(run.outcome, outcome.Value), run.error
        seen.add(run.outcome.value)

    found = find_schedule(program, judge=judge, backend="asyncio")
    assert isinstance(found, NotFound)
    assert found.exhausted
    return seen


async def letters(names: str = "abc") -> str:
    written: list[str] = []

    async def twice(letter: str) -> None:
        written.append(letter)
        await asyncio.sleep(0)
        written.append(letter)

    await asyncio.gather(*map(twice, names))
    return "".join(written)


# What a schedule chooses --------------------------------------------------------------------------


def test_tasks_go_on_in_every_order() -> None:
    assert run(letters).outcome.unwrap() == "aabbcc"
    switching = Schedule.of_choices([(0, 2), (1, 1)])
    assert run(letters, switching).outcome.unwrap() == "caabbc"
    assert ways(partial(letters, "ab")) == {"aabb", "abab", "abba", "bbaa", "baba", "baab"}


@pytest.mark.parametrize("waiting", ["future", "wait", "as_completed", "queue", "event", "shield"])
def test_what_wakes_tasks_wakes_them_in_every_order(waiting: str) -> None:
    async def program() -> str:
        order: list[str] = []
        queue: asyncio.Queue[int] = asyncio.Queue()
        event = asyncio.Event()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def wait(name: str) -> None:
            if waiting == "future":
                await future
            elif waiting == "event":
                await event.wait()
            elif waiting == "queue":
                await queue.get()
            elif waiting == "shield":
                await asyncio.shield(asyncio.sleep(1))
            order.append(name)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(wait(name)) for name in "ab"]
            await asyncio.sleep(0.5)
            future.set_result(None)
            event.set()
            queue.put_nowait(1)
            queue.put_nowait(2)
            if waiting == "wait":
                await asyncio.wait(tasks)
            elif waiting == "as_completed":
                for done in asyncio.as_completed(tasks):
                    await done
        return "".join(order)

    assert ways(program) == {"ab", "ba"}


def test_two_deadlines_at_one_moment_strike_in_either_order() -> None:
    async def program() -> str:
        try:
            async with asyncio.timeout(1):
                await asyncio.sleep(1)
        except TimeoutError:
            return "too late"
        return "in time"

    assert ways(program) == {"too late", "in time"}


def test_a_task_that_failed_may_be_too_late_to_cancel_its_siblings() -> None:
    async def program() -> int:
        async def fail() -> None:
            raise LookupError

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                group.create_task(fail())
        except* LookupError as errors:
            failed = len(errors.exceptions)
        return failed

    assert ways(program) == {1, 2}


# What asyncio promises ----------------------------------------------------------------------------


def test_callbacks_are_called_in_line_and_before_who_awaits_the_same() -> None:
    async def program() -> str:
        order: list[str] = []

        async def other() -> None:
            await asyncio.sleep(0)
            order.append("other")

        beside = asyncio.create_task(other())
        task = asyncio.create_task(asyncio.sleep(0))
        task.add_done_callback(lambda _: order.append("first"))
        task.add_done_callback(lambda _: order.append("second"))
        await task
        order.append("awaiter")
        await beside
        return " ".join(word for word in order if word != "other")

    assert ways(program) == {"first second awaiter"}


def test_a_callback_runs_before_a_task_that_gave_way_after_asking_for_it() -> None:
    async def program() -> bool:
        called: list[int] = []
        asyncio.get_running_loop().call_soon(called.append, 1)
        await asyncio.sleep(0)
        return bool(called)

    assert ways(program) == {True}


def test_a_task_has_begun_when_its_creator_gave_way_once() -> None:
    async def program() -> bool:
        begun: list[int] = []

        async def work() -> None:
            begun.append(1)

        tasks = [asyncio.create_task(work()), asyncio.create_task(work())]
        await asyncio.sleep(0)
        ready = len(begun) == 2
        await asyncio.gather(*tasks)
        return ready

    assert ways(program) == {True}


@pytest.mark.skipif(sys.version_info < (3, 12), reason="asyncio has eager tasks since 3.12")
def test_eager_tasks_and_tasks_of_other_factories_are_controlled() -> None:
    async def program(factory: Any) -> str:
        asyncio.get_running_loop().set_task_factory(factory)
        return await letters("ab")

    eager: Any = getattr(asyncio, "eager_task_factory", None)
    assert ways(partial(program, eager)) == {"abab", "abba"}
    plain = partial(program, lambda loop, coro, **named: asyncio.Task(coro, loop=loop, **named))
    assert len(ways(plain)) == 6


def test_a_cancelled_callback_or_timer_is_not_called() -> None:
    async def program() -> list[str]:
        called: list[str] = []
        loop = asyncio.get_running_loop()
        loop.call_soon(called.append, "soon").cancel()
        loop.call_later(1, called.append, "later").cancel()
        due = [loop.call_later(2, called.append, name) for name in ("a", "b")]
        loop.call_at(loop.time() + 2, due[1].cancel)
        await asyncio.sleep(3)
        return sorted(called)

    assert run(program).outcome.unwrap() in (["a"], ["a", "b"])


# Time ---------------------------------------------------------------------------------------------


def test_the_clock_jumps_when_nothing_is_ready_and_stands_still_otherwise() -> None:
    limit = 20.0

    async def program() -> None:
        loop = asyncio.get_running_loop()
        began, monotonic, wall = loop.time(), time.monotonic(), time.time()
        for _ in range(100):
            await asyncio.sleep(0)
        assert loop.time() == began
        await asyncio.sleep(86_400)
        assert loop.time() == began + 86_400
        assert time.monotonic() == monotonic + 86_400
        assert time.time() == wall + 86_400

    before = time.monotonic()
    run(program).outcome.unwrap()
    assert time.monotonic() - before < limit


def test_a_rate_limiter_that_reads_the_monotonic_clock_ends() -> None:
    """It sleeps for what is missing and looks again: without its own clock it would never end."""

    class Bucket:
        def __init__(self) -> None:
            self.tokens, self.at, self.lock = 60.0, time.monotonic(), asyncio.Lock()

        async def take(self, tokens: int) -> None:
            async with self.lock:
                while True:
                    now = time.monotonic()
                    self.tokens, self.at = min(60, self.tokens + now - self.at), now
                    if self.tokens >= tokens:
                        break
                    await asyncio.sleep(tokens - self.tokens)
                self.tokens -= tokens

    async def program() -> float:
        bucket, began = Bucket(), time.monotonic()
        await asyncio.gather(*(bucket.take(60) for _ in range(3)))
        return time.monotonic() - began

    assert run(program).outcome.unwrap() == 120


# Deadlocks and what never ends --------------------------------------------------------------------


def test_a_deadlock_names_who_waits_and_who_holds_the_lock() -> None:
    async def program() -> None:
        a, b = asyncio.Lock(), asyncio.Lock()

        async def take(first: asyncio.Lock, second: asyncio.Lock) -> None:
            async with first:
                await asyncio.sleep(1)
                async with second:
                    pass

        async with asyncio.TaskGroup() as group:
            group.create_task(take(a, b), name="ada")
            group.create_task(take(b, a), name="bob")

    made = run(program)
    assert isinstance(made.error, DeadlockError)
    words = {task.name: task for task in made.blocked}
    assert words.keys() == {"ada", "bob"}
    assert words["ada"].holder == "bob"
    assert words["bob"].holder == "ada"
    assert "take (test_asyncio.py:" in words["ada"].place


@pytest.mark.parametrize("cancels", [0, 1, 1_000_000])
def test_a_deadlock_ends_even_if_its_tasks_swallow_their_cancel(cancels: int) -> None:
    async def program() -> None:
        for _ in range(cancels + 1):
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                if not cancels:
                    raise

    assert isinstance(run(program).error, DeadlockError)


def test_a_program_that_never_ends_is_a_livelock() -> None:
    async def program() -> None:
        while True:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                pass

    made = run(program, most_steps=1_000)
    assert isinstance(made.error, LivelockError)
    assert "program" in str(made.error)


# Threads, sockets, processes ----------------------------------------------------------------------


def test_a_function_in_a_thread_runs_at_a_time_that_the_schedule_chooses() -> None:
    async def program() -> str:
        order: list[str] = []

        async def here() -> None:
            await asyncio.sleep(0)
            order.append("here")

        async def there() -> None:
            await asyncio.to_thread(order.append, "there")

        await asyncio.gather(here(), there())
        return " ".join(order)

    assert ways(program) == {"here there", "there here"}
    assert run(program).uncontrolled == frozenset()


def test_a_function_in_a_thread_sees_its_context_fails_and_may_call_back() -> None:
    async def program() -> tuple[Any, ...]:
        loop = asyncio.get_running_loop()
        main = threading.get_ident()

        async def answer() -> int:
            return 42

        def work() -> tuple[bool, int]:
            asked = asyncio.run_coroutine_threadsafe(answer(), loop)
            return threading.get_ident() != main, asked.result()

        def fail() -> None:
            raise LookupError("no")

        try:
            await asyncio.to_thread(fail)
        except LookupError as error:
            failed = str(error)
        return failed, *await loop.run_in_executor(None, work)

    made = run(program)
    assert made.outcome.unwrap() == ("no", True, 42)
    assert made.uncontrolled == frozenset()


def test_a_thread_may_wait_for_the_loop() -> None:
    async def program() -> str:
        go = threading.Event()

        async def let_it() -> None:
            await asyncio.sleep(1)
            go.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(let_it())
            waits = group.create_task(asyncio.to_thread(go.wait, 1.5))
        return "set" if waits.result() else "not set"

    made = run(program)
    assert made.uncontrolled == frozenset()
    assert made.outcome.unwrap() == "set"


def test_sockets_are_waited_for_in_real_time_while_the_clock_stands_still() -> None:
    async def program() -> bytes:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            writer.close()

        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            async with asyncio.timeout(0.001):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(b"hello\n")
                line = await reader.readline()
                writer.close()
                await writer.wait_closed()
        return line

    made = run(program)
    assert made.outcome.unwrap() == b"hello\n"
    assert made.uncontrolled == {"sockets"}


def test_what_waits_for_the_outside_is_never_said_to_be_tried_in_every_order() -> None:
    async def program(*, outside: bool) -> None:
        if outside:
            loop = asyncio.get_running_loop()
            called = asyncio.Event()

            def call_once_awaited() -> None:
                while not called._waiters:
                    time.sleep(0.001)
                loop.call_soon_threadsafe(called.set)

            threading.Thread(target=call_once_awaited).start()
            await called.wait()

    for outside in (False, True):
        found = find_schedule(partial(program, outside=outside), schedules=20, backend="asyncio")
        assert isinstance(found, NotFound)
        assert found.exhausted is not outside


def test_a_subprocess_is_refused_by_name() -> None:
    async def program() -> None:
        await asyncio.create_subprocess_exec(sys.executable)

    error = run(program).error
    assert isinstance(error, NotImplementedError)
    assert "a subprocess can't be explored" in str(error)


# The end of a program -----------------------------------------------------------------------------


def test_what_is_left_at_the_end_is_ended_as_asyncio_run_does() -> None:
    ended: list[str] = []

    async def numbers() -> Any:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            ended.append("generator")

    async def forever() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(1)
            ended.append("task")

    kept: list[Any] = []

    async def program() -> str:
        kept.append((numbers(), asyncio.create_task(forever())))
        await anext(kept[0][0])
        await asyncio.sleep(0)
        return "done"

    assert run(program).outcome.unwrap() == "done"
    assert ended == ["task", "generator"]


def test_an_error_that_nobody_waits_for_is_kept_for_the_report() -> None:
    async def program() -> None:
        asyncio.get_running_loop().call_soon(int, "x")
        await asyncio.sleep(0)

    assert "invalid literal" in run(program).unheard[0]


@pytest.mark.slow
def test_the_process_is_as_it_was() -> None:
    def state() -> tuple[Any, ...]:
        gc.collect()
        return (
            *(asyncio.Lock.acquire, time.monotonic, time.time, vars(asyncio.tasks).get("set")),
            *(sys.get_asyncgen_hooks(), sys.gettrace(), sys.getprofile()),
            *(type(asyncio.get_event_loop_policy()), asyncio._get_running_loop()),
        )

    def kept() -> tuple[set[int | None], int]:
        gc.collect()
        threads = {thread.ident for thread in threading.enumerate()}
        return threads, len(os.listdir("/proc/self/fd"))

    async def program() -> None:
        await asyncio.to_thread(int)
        await anyio.to_thread.run_sync(int)
        async with asyncio.Lock():
            await asyncio.sleep(1)

    async def deadlock() -> None:
        await asyncio.Event().wait()

    run(program)
    before = state()
    threads, descriptors = kept()

    def is_as_it_was() -> bool:
        now = kept()
        return now[0] <= threads and now[1] <= descriptors

    for _ in range(3):
        run(program).outcome.unwrap()
        assert run(deadlock).error is not None
    assert state() == before
    deadline = time.monotonic() + 5
    while not is_as_it_was() and time.monotonic() < deadline:
        time.sleep(0.01)  # anyio's threads end by themselves, as do those of other tests.
    assert is_as_it_was()


@pytest.mark.slow
def test_a_loop_beside_the_controlled_one_keeps_its_own_time_and_order() -> None:
    seen: list[float] = []

    async def beside() -> None:
        for _ in range(20):
            began = time.monotonic()
            await asyncio.sleep(0.001)
            seen.append(time.monotonic() - began)

    thread = threading.Thread(target=lambda: asyncio.run(beside()))

    async def program() -> None:
        await asyncio.sleep(3_600)

    thread.start()
    while thread.is_alive():
        run(program)
    assert len(seen) == 20
    assert max(seen) < 60


# Replays ------------------------------------------------------------------------------------------


def test_a_replay_of_other_code_says_where_it_diverged() -> None:
    schedule = run(letters, Schedule(((0, 2), (1, 1)))).schedule
    assert run(partial(letters, "abcd"), str(schedule)).diverged_at is not None


def test_sets_of_tasks_have_the_same_order_in_every_run() -> None:
    async def program() -> str:
        async def name(letter: str) -> str:
            await asyncio.sleep(0)
            return letter

        done, _ = await asyncio.wait({asyncio.create_task(name(letter)) for letter in "abcdef"})
        first = [await one for one in asyncio.as_completed([name(letter) for letter in "abcdef"])]
        return "".join([task.result() for task in done] + first)

    kept: list[object] = []
    seen: set[str] = set()
    for number in range(20):
        kept += [object() for _ in range(number)]  # So that addresses differ.
        seen.add(run(program).outcome.unwrap())
    assert len(seen) == 1


# Kinds --------------------------------------------------------------------------------------------


async def in_asyncio() -> None:
    await asyncio.sleep(0)


async def in_trio() -> None:
    await trio.lowlevel.checkpoint()


async def in_anyio() -> str:
    await anyio.lowlevel.checkpoint()
    return anyio.get_cancelled_exc_class().__module__.partition(".")[0]


def hidden(program: Program) -> Program:
    """Return the same, in code that names neither."""
    helper: list[Program] = [program]

    async def calls_it() -> None:
        await helper[0]()

    return calls_it


@pytest.mark.parametrize("begins_in", ["trio", "asyncio"])
@pytest.mark.parametrize(("program", "kind"), [(in_asyncio, "asyncio"), (in_trio, "trio")])
@pytest.mark.parametrize("show", [lambda program: program, hidden])
def test_the_kind_is_told_from_the_code_or_its_first_wait(
    program: Program, kind: str, show: Callable[[Program], Program], begins_in: str
) -> None:
    token = surroundings.set(begins_in)  # type: ignore[arg-type]
    try:
        made = run_schedule(show(program))
        assert (made.backend, made.error) == (kind, None)
        found = find_schedule(show(program), schedules=3)
        assert isinstance(found, NotFound)
        assert found.plain.backend == kind
    finally:
        surroundings.reset(token)


class Postbox:
    """What a test of somebody's library names: asyncio is only inside."""

    def __init__(self) -> None:
        self.begun = asyncio.create_task(self.work())

    async def work(self) -> None:
        await asyncio.sleep(0)


def test_the_kind_is_told_from_what_the_code_names_without_running_it() -> None:
    """A run as the wrong kind leaves a coroutine that nobody awaits; pytest warns of it."""

    async def program() -> None:
        await Postbox().begun

    async def in_anyio_only() -> None:
        await anyio.lowlevel.checkpoint()

    assert probable_kind(program) == "asyncio"
    assert probable_kind(in_anyio_only) == surroundings.get()


def test_anyio_runs_under_either_kind() -> None:
    assert run_schedule(in_anyio, backend="trio").outcome.unwrap() == "trio"
    assert run_schedule(in_anyio, backend="asyncio").outcome.unwrap() == "asyncio"


def test_anyio_in_asyncio_is_controlled() -> None:
    async def program() -> str:
        order: list[str] = []

        async def work(name: str) -> None:
            await anyio.sleep(1)
            order.append(name)

        with anyio.move_on_after(2):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(work, "a")
                tasks.start_soon(work, "b")
                await anyio.sleep_forever()
        return "".join(order)

    seen = {
        run_probe(program, Probe(Uniform(Random(seed))), backend="asyncio").outcome.unwrap()
        for seed in range(20)
    }
    assert seen == {"ab", "ba"}


def test_an_error_of_both_kinds_is_that_of_the_first() -> None:
    async def program() -> None:
        try:
            await trio.lowlevel.checkpoint()
        except RuntimeError:
            await trio.sleep(1)
        asyncio.get_running_loop()

    made = run_schedule(program)
    assert made.backend == "trio"
    assert "no running event loop" in str(made.error)


def test_an_unknown_kind_is_refused() -> None:
    for function in (run_schedule, find_schedule):
        with pytest.raises(ValueError, match="'threads', not 'curio'"):
            function(in_asyncio, backend="curio")  # type: ignore[arg-type]


def test_a_thread_with_an_asyncio_loop_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"inside asyncio already.*asyncio\.to_thread"):
            find_schedule(in_asyncio)

    asyncio.run(main())


def test_a_cancel_of_the_search_finds_what_cancels_hurt() -> None:
    """`faultable` blocks of asyncio code are cancelled at each of their steps."""
    race = next(race for race in RACES if race.__name__ == "cancel_leaves_a_reply")
    found = find_schedule(partial(race, right=False), seed=1)
    assert isinstance(found, Found)
    assert found.run.schedule.faults


@pytest.mark.parametrize("fault", ["c1@1", "w1@2"])
def test_a_struck_block_is_left_quietly_and_the_task_goes_on(fault: str) -> None:
    async def program() -> tuple[bool, int]:
        with faultable(1) as scope:
            await asyncio.sleep(1)
        await asyncio.sleep(1)  # Not cancelled any more.
        current = asyncio.current_task()
        assert current is not None
        return scope.cancelled_caught, current.cancelling()

    assert run(program, f"h1:-:{fault}:-").outcome.unwrap() == (True, 0)
    assert run(program).outcome.unwrap() == (False, 0)


def test_a_cancel_of_the_whole_task_passes_through_a_struck_block() -> None:
    async def program() -> bool:
        async def work() -> None:
            with faultable(1):
                await asyncio.sleep(1)

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert run(program, "h1:0x1:c1@1:-").outcome.unwrap()
