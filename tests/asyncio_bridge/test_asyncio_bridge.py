"""Asyncio code runs for a trio task: its context, its cancel, its errors and its end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import sniffio
import trio
import trio.lowlevel

import harness
from harness.asyncio_bridge import AsyncioLoop, call_trio, open_asyncio, run_asyncio
from harness.errors import AsyncioBridgeError, RunTimedOut
from tests.support.context import planted, third_party

pytestmark = pytest.mark.real_clock
"""A loop in another thread has a clock of its own."""

FOR_EVER_SECONDS = 3600.0


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def hang() -> None:
    await asyncio.sleep(FOR_EVER_SECONDS)


@asynccontextmanager
async def no_thread_left() -> AsyncIterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() <= before


# Values and errors -------------------------------------------------------------------------------


async def test_value_comes_back() -> None:
    async with no_thread_left():
        assert await run_asyncio(double, 21) == 42


async def test_arguments_by_name_are_passed_on() -> None:
    async def subtract(a: int, *, b: int) -> int:
        return a - b

    assert await run_asyncio(subtract, 5, b=3) == 2


async def test_error_comes_out_as_itself() -> None:
    """A caller that expects a KeyError must be able to catch one."""

    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("ticket")

    with pytest.raises(KeyError, match="ticket"):
        await run_asyncio(fail)


async def test_keyboard_interrupt_in_asyncio_doesnt_end_the_loop_for_others() -> None:
    async def interrupt() -> None:
        raise KeyboardInterrupt

    async with open_asyncio() as loop:
        with pytest.raises(KeyboardInterrupt):
            await loop.run(interrupt)
        assert await loop.run(double, 4) == 8


async def test_error_of_the_body_is_not_wrapped() -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_asyncio():
            raise ZeroDivisionError


async def test_many_calls_share_one_thread() -> None:
    threads: set[int] = set()

    async def note(number: int) -> int:
        threads.add(threading.get_ident())
        await asyncio.sleep(0.001)
        return number

    async with open_asyncio() as loop:

        async def one(number: int) -> int:
            return await loop.run(note, number)

        results = await harness.fan_out(one, range(50), limit=50)
    assert results.values() == list(range(50))
    assert len(threads) == 1


# Whose context? ----------------------------------------------------------------------------------


async def test_asyncio_code_sees_its_callers_run_and_variables() -> None:
    """With one loop for all, each call must still see its own caller, not the loop's opener."""

    async def look() -> tuple[str, str]:
        await asyncio.sleep(0)
        return harness.current_run().name, third_party.get()

    async with harness.open_run("opener"), open_asyncio() as loop:

        async def one(number: int) -> tuple[str, str]:
            with planted(f"planted {number}"):
                return await loop.run(look)

        results = await harness.fan_out(one, range(5), key=str)
        assert results.values() == [(str(n), f"planted {n}") for n in range(5)]


async def test_loop_opened_in_a_run_doesnt_keep_its_context() -> None:
    seen: list[str] = []

    async with open_asyncio() as loop:

        async def plant() -> None:
            with planted("of the first caller"):
                await loop.run(double, 1)

        await plant()

        async def look() -> None:
            seen.append(third_party.get())

        await loop.run(look)
    assert seen == ["unset"]


# Cancel and deadline -----------------------------------------------------------------------------


async def test_cancel_reaches_the_asyncio_task_and_waits_for_its_cleanup() -> None:
    events: list[str] = []

    async def work() -> None:
        try:
            await hang()
        finally:
            await asyncio.sleep(0.02)
            events.append("cleaned up")

    async with open_asyncio() as loop:
        with trio.move_on_after(0.05) as scope:
            await loop.run(work)
        events.append("left")
    assert scope.cancelled_caught
    assert events == ["cleaned up", "left"]


async def test_deadline_of_the_run_is_a_timeout() -> None:
    with pytest.raises(RunTimedOut):
        async with harness.open_run("slow", timeout=0.05):
            await run_asyncio(hang)


async def test_cancelling_one_run_leaves_the_others_alone() -> None:
    async with open_asyncio() as loop:
        done: list[int] = []

        async def short(number: int) -> int:
            await asyncio.sleep(0.05)
            return number

        async def one(number: int) -> None:
            async with harness.open_run(f"run {number}") as run:
                if number == 1:
                    harness.start_soon(nursery, cancel_soon, run, run=None)
                    await loop.run(hang)
                done.append(await loop.run(short, number))

        async def cancel_soon(run: harness.Run) -> None:
            await trio.sleep(0.01)
            run.cancel("enough")

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(one, number)
    assert sorted(done) == [0, 2, 3]


async def test_cancel_before_the_first_step_never_hangs() -> None:
    """The asyncio task is cancelled before it has begun, so no line of it ever runs."""
    started: list[bool] = []

    async def work() -> None:
        started.append(True)

    async with open_asyncio() as loop:
        await loop.run(double, 0)
        loop_thread_busy = threading.Event()

        async def block() -> None:
            loop_thread_busy.wait(5)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(loop.run, block)
            await trio.sleep(0.01)
            with trio.CancelScope() as scope:
                nursery.start_soon(set_later, loop_thread_busy, scope)
                await loop.run(work)
    assert scope.cancelled_caught
    assert started == []


async def set_later(event: threading.Event, scope: trio.CancelScope) -> None:
    await trio.sleep(0.01)
    scope.cancel()
    await trio.sleep(0.01)
    event.set()


async def test_value_returned_in_spite_of_a_cancel_is_kept() -> None:
    async def stubborn() -> str:
        try:
            await hang()
        except asyncio.CancelledError:
            return "late, but here"
        return "never"

    async with open_asyncio() as loop:
        with trio.move_on_after(0.02):
            assert await loop.run(stubborn) == "late, but here"


async def test_swallowed_cancel_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio cancels once; a retry loop that catches everything would then run forever."""
    monkeypatch.setattr("harness.asyncio_bridge._call.CANCEL_AGAIN_SECONDS", 0.02)
    monkeypatch.setattr("harness.asyncio_bridge._call.CLEANUP_SECONDS", 0.02)
    swallowed = 0

    async def swallow() -> None:
        nonlocal swallowed
        for _ in range(3):
            try:
                await hang()
            except asyncio.CancelledError:
                swallowed += 1
        await hang()

    async with open_asyncio() as loop:
        with trio.move_on_after(0.02) as scope:
            await loop.run(swallow)
    assert scope.cancelled_caught
    assert swallowed == 3


async def test_self_cancel_is_an_error_that_says_so() -> None:
    """An asyncio.CancelledError isn't an Exception; loose in trio, it would crash the program."""

    async def cancel_self() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    with pytest.raises(AsyncioBridgeError, match=r"cancel_self\(\) was cancelled inside asyncio"):
        await run_asyncio(cancel_self)


async def test_group_of_asyncio_cancels_is_an_error_too() -> None:
    async def cancelled_in_a_group() -> None:
        raise BaseExceptionGroup("of cancels", [asyncio.CancelledError()])

    async def with_an_error() -> None:
        raise BaseExceptionGroup("of both", [asyncio.CancelledError(), ValueError("why")])

    with pytest.raises(AsyncioBridgeError, match="cancelled inside asyncio"):
        await run_asyncio(cancelled_in_a_group)
    with pytest.raises(ExceptionGroup) as failed:
        await run_asyncio(with_an_error)
    assert [str(error) for error in failed.value.exceptions] == ["why"]


async def test_value_in_spite_of_a_cancel_is_kept_with_a_trio_function_under_way() -> None:
    """The trio function's own cancel left the caller's nursery, and hid the value or error."""

    async def keep() -> str:
        try:
            await call_trio(trio.sleep_forever)
        except asyncio.CancelledError:
            return "kept"
        return "never"  # pragma: no cover

    async def fail() -> None:
        try:
            await call_trio(trio.sleep_forever)
        except asyncio.CancelledError:
            raise ValueError("the clean-up failed") from None

    with trio.move_on_after(0.02):
        assert await run_asyncio(keep) == "kept"
    with pytest.raises(ValueError, match="the clean-up failed"):
        with trio.move_on_after(0.02):
            await run_asyncio(fail)


async def test_any_task_factory_will_do() -> None:
    """One that didn't know ``context=`` made each call wait forever."""

    async def set_factory(factory: Any) -> None:
        asyncio.get_running_loop().set_task_factory(factory)

    def refuse_once(loop: asyncio.AbstractEventLoop, coroutine: Any, **named: Any) -> Any:
        loop.set_task_factory(None)
        raise ValueError("no task for you")

    async def current() -> str:
        return third_party.get()

    async with open_asyncio() as loop:
        await loop.run(set_factory, lambda loop, coroutine: asyncio.Task(coroutine, loop=loop))
        with trio.fail_after(10), planted("mine"):
            assert await loop.run(current) == "mine"
            await loop.run(set_factory, refuse_once)
            with pytest.raises(ValueError, match="no task for you"):
                await loop.run(double, 1)


def test_libraries_that_ask_for_the_loop_find_asyncio_below_anyio() -> None:
    """anyio notes in the context that trio runs, and HTTP clients in asyncio believed it."""

    async def main() -> None:
        async def sleep() -> str:
            await anyio.sleep(0.001)
            return sniffio.current_async_library()

        assert await run_asyncio(sleep) == "asyncio"
        assert sniffio.current_async_library() == "trio"

    anyio.run(main, backend="trio")


# The end of the loop -----------------------------------------------------------------------------


async def test_task_left_behind_that_swallows_a_cancel_is_cancelled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Leaving the block waited for it forever, and a dump didn't say what for."""
    monkeypatch.setattr("harness.asyncio_bridge._loop.CANCEL_AGAIN_SECONDS", 0.02)
    monkeypatch.setattr("harness.asyncio_bridge._loop.CLEANUP_SECONDS", 0.2)
    swallowed = 0

    async def leave_a_task() -> None:
        async def swallow() -> None:
            nonlocal swallowed
            for _ in range(3):
                try:
                    await hang()
                except asyncio.CancelledError:
                    swallowed += 1

        task = asyncio.create_task(swallow(), name="the one that stays")
        await asyncio.sleep(0)
        assert not task.done()

    async def leave() -> None:
        async with open_asyncio() as loop:
            await loop.run(leave_a_task)

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leave)
            while "the one that stays" not in harness.dump():  # noqa: ASYNC110 (no event tells)
                await trio.sleep(0.01)
    assert swallowed == 3


async def test_clean_up_of_a_call_that_outlives_the_block_is_not_cut() -> None:
    """It was cancelled twice: as a call, and once more as a task of the loop."""
    cleaned = False

    async def clean_up() -> None:
        nonlocal cleaned
        try:
            await hang()
        finally:
            await asyncio.sleep(0.02)
            cleaned = True

    async def outlive(loop: AsyncioLoop) -> None:
        with pytest.raises(AsyncioBridgeError, match="its asyncio loop was closed"):
            await loop.run(clean_up)

    async with trio.open_nursery() as nursery:
        async with open_asyncio() as loop:
            nursery.start_soon(outlive, loop)
            await loop.run(asyncio.sleep, 0.01)
    assert cleaned


@pytest.mark.parametrize("repeat", range(10))
async def test_cancel_of_a_call_whose_loop_has_just_closed(repeat: int) -> None:
    """The cancel couldn't be handed to the loop, and an error came out of ``cancel()``.

    Whether trio hears of the end before the cancel is chance, so it is tried several times.
    """
    scope = trio.CancelScope()
    loop = open_asyncio()
    opened, leaving = trio.Event(), trio.Event()

    async def outlive() -> None:
        with scope, pytest.raises(AsyncioBridgeError):
            await opened.wait()
            await loop.run(hang)

    async def cancel_when_closed() -> None:
        await leaving.wait()
        while loop._loop is not None and not loop._loop.is_closed():
            time.sleep(0.001)  # noqa: ASYNC251 (trio must not make a step in between)
        scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(outlive)
        nursery.start_soon(cancel_when_closed)
        async with loop:
            opened.set()
            await loop.run(asyncio.sleep, 0.01)
            leaving.set()


async def test_asyncio_code_that_cancels_all_tasks_doesnt_end_the_loop() -> None:
    async def cancel_all() -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    async with open_asyncio() as loop:
        await loop.run(cancel_all)
        assert await loop.run(double, 4) == 8


async def test_asyncio_code_that_stops_the_loop_is_named() -> None:
    """Later calls waited forever for a loop that wasn't running."""

    async def stop() -> None:
        asyncio.get_running_loop().stop()
        await hang()

    async with no_thread_left():
        async with open_asyncio() as loop:
            for fn in (stop, hang):
                with trio.fail_after(10), pytest.raises(AsyncioBridgeError, match="has stopped"):
                    await loop.run(fn)


async def test_tasks_left_behind_end_with_the_loop() -> None:
    ended: list[str] = []

    async def leave_a_task() -> None:
        async def stay() -> None:
            try:
                await hang()
            finally:
                ended.append("stay")

        task = asyncio.create_task(stay())
        await asyncio.sleep(0)
        assert not task.done()

    async with no_thread_left():
        async with open_asyncio() as loop:
            await loop.run(leave_a_task)
            assert ended == []
    assert ended == ["stay"]


async def test_call_that_outlives_the_block_is_told() -> None:
    errors: list[BaseException] = []

    async def outlive(loop: AsyncioLoop) -> None:
        try:
            await loop.run(hang)
        except AsyncioBridgeError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        async with open_asyncio() as loop:
            nursery.start_soon(outlive, loop)
            await loop.run(double, 1)
    assert len(errors) == 1
    assert "its asyncio loop was closed" in str(errors[0])


async def test_cancel_of_the_block_ends_the_thread() -> None:
    async with no_thread_left():
        with trio.move_on_after(0.02) as scope:
            async with open_asyncio() as loop:
                await loop.run(hang)
    assert scope.cancelled_caught


# Calling back into trio --------------------------------------------------------------------------


async def test_trio_function_called_from_asyncio_runs_in_the_callers_run() -> None:
    async def tool(question: str) -> str:
        await trio.lowlevel.checkpoint()
        return f"{question} in {harness.current_run().path}"

    async def framework() -> str:
        return await call_trio(tool, "asked")

    async with harness.open_run("outer"), open_asyncio() as loop:
        assert await loop.run(framework) == "asked in outer"


async def test_error_of_a_trio_function_reaches_the_asyncio_code() -> None:
    async def tool() -> None:
        await trio.lowlevel.checkpoint()
        raise KeyError("no such ticket")

    async def framework() -> str:
        try:
            await call_trio(tool)
        except KeyError as error:
            return f"caught {error.args[0]}"
        return "nothing"

    assert await run_asyncio(framework) == "caught no such ticket"


async def test_cancel_of_the_caller_reaches_a_trio_function_in_asyncio() -> None:
    """Both sides are told of the one cancel, and each has ended before the block is left."""
    events: list[str] = []

    async def tool() -> None:
        try:
            await trio.sleep_forever()
        finally:
            events.append("tool")

    async def framework() -> None:
        try:
            await call_trio(tool)
        finally:
            events.append("framework")

    with trio.move_on_after(0.05) as scope:
        await run_asyncio(framework)
    assert scope.cancelled_caught
    assert events == ["tool", "framework"]


async def test_asyncio_timeout_cancels_a_trio_function() -> None:
    ended = threading.Event()

    async def tool() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async def framework() -> str:
        try:
            async with asyncio.timeout(0.02):
                await call_trio(tool)
        except TimeoutError:
            return "in time" if ended.is_set() else "too early"
        return "never"

    assert await run_asyncio(framework) == "in time"


async def test_error_of_a_trio_functions_clean_up_reaches_the_asyncio_code() -> None:
    """It is what trio code would see; and it must not fail the whole call as a group."""

    async def clean_up_badly() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("bad clean-up")

    async def framework() -> str:
        try:
            async with asyncio.timeout(0.02):
                await call_trio(clean_up_badly)
        except ExceptionGroup as group:
            return str(group.exceptions[0])
        return "nothing"  # pragma: no cover

    assert await run_asyncio(framework) == "bad clean-up"


async def test_keyboard_interrupt_in_a_trio_function_comes_out_bare() -> None:
    async def interrupt() -> None:
        raise KeyboardInterrupt

    async def framework() -> None:
        await call_trio(interrupt)

    with pytest.raises(KeyboardInterrupt):
        await run_asyncio(framework)


async def test_call_trio_in_trio_is_refused() -> None:
    async def trio_function() -> None:
        await call_trio(trio.sleep, 0)

    async def framework() -> None:
        await call_trio(trio_function)

    with pytest.raises(RuntimeError, match="was called outside"):
        await run_asyncio(framework)


async def test_what_is_no_trio_function_is_refused() -> None:
    async def framework() -> None:
        await call_trio(lambda: 5)  # type: ignore[arg-type, return-value]

    with pytest.raises(TypeError, match="which trio can't wait for"):
        await run_asyncio(framework)


async def test_trio_functions_called_side_by_side() -> None:
    async def tool(number: int) -> int:
        await trio.sleep(0.01)
        return number

    async def framework() -> list[int]:
        return await asyncio.gather(*(call_trio(tool, number) for number in range(20)))

    assert await run_asyncio(framework) == list(range(20))


async def test_left_behind_task_cant_call_trio_for_an_ended_call() -> None:
    said: list[str] = []

    async def tool() -> None:  # pragma: no cover (never called)
        raise AssertionError

    async def leave() -> None:
        async def later() -> None:
            await asyncio.sleep(0.02)
            try:
                await call_trio(tool)
            except AsyncioBridgeError as error:
                said.append(str(error))

        strays.append(asyncio.create_task(later()))

    strays: list[asyncio.Task[None]] = []
    async with open_asyncio() as loop:
        await loop.run(leave)
        await trio.sleep(0.1)
    assert len(said) == 1
    assert "left behind when it ended" in said[0]


# Bad input ---------------------------------------------------------------------------------------


def plain(number: int) -> int:
    return number


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: plain, "asyncio can't wait for"),
        (lambda: "fn", "not 'fn'"),
        (lambda: double(1), "not the coroutine double()"),
    ],
)
async def test_what_is_no_asyncio_function_is_refused(make: Callable[[], Any], words: str) -> None:
    call: Any = run_asyncio
    with pytest.raises(TypeError) as refused:
        await call(make(), *([1] if words.startswith("asyncio") else []))
    assert words in str(refused.value)


async def test_loop_outside_of_its_block_is_refused() -> None:
    loop = open_asyncio()
    with pytest.raises(RuntimeError, match="it isn't open"):
        await loop.run(double, 1)
    async with loop:
        pass
    with pytest.raises(RuntimeError, match="its block has been left"):
        await loop.run(double, 1)
    with pytest.raises(RuntimeError, match="already opened"):
        async with loop:
            pass  # pragma: no cover


def test_call_trio_outside_of_a_bridge_is_refused() -> None:
    with pytest.raises(RuntimeError, match="outside what a run called in asyncio"):
        asyncio.run(call_trio(trio.sleep, 0))


async def test_dump_says_what_is_waited_for() -> None:
    async with harness.open_run("waits") as run, open_asyncio() as loop:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(loop.run, hang)
            await trio.sleep(0.01)
            text = harness.dump()
            nursery.cancel_scope.cancel()
    assert "hang() in asyncio" in text, run


def test_hundred_calls_take_as_long_as_one() -> None:
    async def main() -> float:
        async with open_asyncio() as loop:
            started_at = time.perf_counter()
            await harness.fan_out(lambda _: loop.run(asyncio.sleep, 0.1), range(100))
            return time.perf_counter() - started_at

    assert trio.run(main) < 2.0


# What it needs -----------------------------------------------------------------------------------


WITH_THE_CORE_ALONE = """
import sys
for extra in ("msgspec", "anyio", "httpx", "openai", "anthropic", "mcp"):
    sys.modules[extra] = None

import asyncio
import trio
from harness.asyncio_bridge import call_trio, run_asyncio

async def double(number):
    await trio.lowlevel.checkpoint()
    return 2 * number

async def framework():
    await asyncio.sleep(0)
    return await call_trio(double, 21)

print(trio.run(run_asyncio, framework))
print(sorted(name for name in sys.modules if name.startswith(("harness.agents", "harness.models"))))
"""


def test_it_needs_the_core_alone() -> None:
    """It was among the agents, whose models and schemas it has no use for."""
    done = subprocess.run(
        [sys.executable, "-c", WITH_THE_CORE_ALONE], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["42", "[]"]
