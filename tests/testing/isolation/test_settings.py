"""Where `assert_isolated` is called from: clocks, threads, objects of other kinds."""

import contextlib
import functools
import sqlite3
import threading
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.lowlevel
import trio.testing
from trio.testing import MockClock

from harness import open_run
from harness.errors import ScheduleError
from harness.limits import Limiter
from harness.testing import assert_isolated

pytestmark = pytest.mark.slow


class Service:
    def __init__(self) -> None:
        self.last = ""

    async def ask(self, text: str) -> str:
        self.last = text
        await trio.lowlevel.checkpoint()
        return self.last

    async def __call__(self, text: str) -> str:
        return await self.ask(text)


SERVICE = Service()


async def call(service: Service, text: str) -> str:
    return await service.ask(text)


async def test_a_bound_method_is_named_by_the_global_that_holds_its_object() -> None:
    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(SERVICE.ask, ["a", "b"])
    assert caught.value.objects == (f"{__name__}.SERVICE.last",)


@pytest.mark.parametrize("how", ["method", "callable", "partial"])
async def test_an_object_of_the_test_is_named_by_its_class(how: str) -> None:
    service = Service()
    agents: dict[str, Callable[[str], Awaitable[str]]] = {
        "method": service.ask,
        "callable": service,
        "partial": functools.partial(call, service),
    }
    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(agents[how], ["a", "b"])
    (path,) = caught.value.objects
    assert path == "Service.last (local of test_an_object_of_the_test_is_named_by_its_class)"


async def test_a_clock_that_jumps_stands_meanwhile(autojump_clock: MockClock) -> None:
    """A deadline around the check would strike at once if virtual time went on."""

    async def agent(text: str) -> str:
        await trio.sleep(60)
        return text

    with trio.fail_after(5):
        await assert_isolated(agent, ["a", "b"], schedules=20)
    assert trio.current_time() == 0
    await trio.sleep(1)
    assert trio.current_time() == 1


async def test_inside_of_a_run() -> None:
    """The caller's run belongs to another `trio.run`, so the runs that are checked aren't in it."""

    async def agent(text: str) -> str:
        async with open_run("inner") as run:
            await trio.lowlevel.checkpoint()
            path = run.path
        return path.partition("/")[0]

    async with open_run("outer"):
        await assert_isolated(agent, ["a", "b"], schedules=10)


async def test_a_shared_limiter_is_no_leak() -> None:
    limiter = Limiter("model", requests_per_minute=600, concurrent=2)

    async def agent(text: str) -> str:
        async with limiter.reserve():
            await trio.sleep(0.1)
        return text

    await assert_isolated(agent, ["a", "b", "c"], schedules=20)


async def test_locks_and_threads_raise_no_alarm() -> None:
    lock = trio.Lock()
    guard = threading.Lock()

    async def agent(text: str) -> str:
        async with lock:
            with guard:
                length = len(text)
            return text * await trio.to_thread.run_sync(lambda: length)

    await assert_isolated(agent, ["a", "bb"], schedules=10)


async def test_a_shared_input_that_is_changed_is_named() -> None:
    ticket = {"status": "new"}

    async def agent(given: dict[str, str]) -> str:
        before = given["status"]
        given["status"] = "seen"
        await trio.lowlevel.checkpoint()
        return before

    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(agent, [ticket, ticket])
    assert caught.value.objects == ("inputs[0]['status']",)
    assert "fix: don't change an input" in str(caught.value)
    assert ticket == {"status": "new"}
    # To change an input that no other run has is allowed.
    await assert_isolated(agent, [{"status": "new"}, {"status": "new"}], schedules=10)


async def test_a_later_input_can_spoil_an_earlier_one() -> None:
    broken: list[str] = []

    async def agent(text: str) -> str:
        await trio.lowlevel.checkpoint()
        if text == "b":
            broken[:] = ["since b"]
        return text if text == "b" else text + "".join(broken)

    with pytest.raises(ScheduleError, match="run 1 after run 2 gives something else") as caught:
        await assert_isolated(agent, ["a", "b"])
    assert caught.value.schedule == "o1:2,1"
    assert caught.value.objects == (
        "broken (local of test_a_later_input_can_spoil_an_earlier_one)",
    )


async def test_what_does_not_fail_again_is_told_so() -> None:
    """It is no less a failure; but who replays it in a debugger should not wonder."""
    done = iter(range(10_000))

    async def agent(text: str) -> str:
        await trio.lowlevel.checkpoint()
        return "late" if next(done) == 30 else text

    with pytest.raises(ScheduleError, match="it did not fail again when it was replayed"):
        await assert_isolated(agent, ["a", "b"])


async def test_many_inputs() -> None:
    """More than can be tried all at once: each is in some group."""
    current: list[str] = []

    async def agent(text: str) -> str:
        current[:] = [text]
        await trio.lowlevel.checkpoint()
        return current[0]

    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(agent, [str(number) for number in range(30)])
    assert caught.value.objects == ("current (local of test_many_inputs)",)


async def test_what_belongs_to_the_loop_around_is_told() -> None:
    async with trio.open_nursery() as nursery:

        async def agent(text: str) -> str:
            nursery.start_soon(trio.lowlevel.checkpoint)
            await trio.lowlevel.checkpoint()
            return text

        with pytest.raises(ScheduleError, match="belongs to the event loop around the check"):
            await assert_isolated(agent, ["a", "b"])
        nursery.cancel_scope.cancel()


async def test_what_can_not_be_looked_into_is_suspected_if_several_runs_use_it() -> None:
    """A connection of a C library shows nothing of what it holds."""
    with contextlib.closing(sqlite3.connect(":memory:", check_same_thread=False)) as database:
        database.execute("create table notes (text)")

        async def agent(text: str) -> list[tuple[str]]:
            database.execute("delete from notes")
            database.execute("insert into notes values (?)", (text,))
            await trio.lowlevel.checkpoint()
            return database.execute("select text from notes").fetchall()

        with pytest.raises(ScheduleError, match="suspected, but not proven") as caught:
            await assert_isolated(agent, ["a", "b"])
    function = "test_what_can_not_be_looked_into_is_suspected_if_several_runs_use_it"
    assert caught.value.objects == (f"database (local of {function})",)
    assert "used by run 2 ('b') at" in str(caught.value)


class Odd:
    """Answers no question without an error."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    def __hash__(self) -> int:
        raise RuntimeError("hash")

    def __bool__(self) -> bool:
        raise RuntimeError("bool")

    def __repr__(self) -> str:
        raise RuntimeError("repr")


async def test_odd_objects_are_looked_at_without_asking_them() -> None:
    odd = [Odd(), {"odd": Odd()}, (Odd(),)]

    async def agent(text: str) -> str:
        odd.append(text)
        await trio.lowlevel.checkpoint()
        return str(odd.pop())

    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(agent, ["a", "b"])
    function = "test_odd_objects_are_looked_at_without_asking_them"
    assert caught.value.objects == (f"odd (local of {function})",)
    assert len(odd) == 3


OPEN: dict[str, str] = {}


async def keeps_its_own_entry(text: str) -> str:
    OPEN[text] = text
    try:
        await trio.lowlevel.checkpoint()
        return OPEN[text]
    finally:
        del OPEN[text]


async def test_checks_at_once_do_not_disturb_each_other(autojump_clock: MockClock) -> None:
    """Each works in a thread, and they put back the same objects: it was seen as a false alarm.

    The first to end also gave the clock back, and the last one stopped it for good.
    """
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(assert_isolated, keeps_its_own_entry, ["a", "b"])
    assert trio.current_time() == 0
    with trio.fail_after(10):
        await trio.sleep(5)


async def test_a_check_that_waits_for_its_turn_can_be_cancelled() -> None:
    ended: list[str] = []

    async def check(name: str, scope: trio.CancelScope) -> None:
        with scope:
            await assert_isolated(keeps_its_own_entry, ["a", "b"], schedules=1_000_000)
        ended.append(name)

    first, second = trio.CancelScope(), trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(check, "first", first)
        nursery.start_soon(check, "second", second)
        await trio.testing.wait_all_tasks_blocked()
        second.cancel()
        while "second" not in ended:
            await trio.lowlevel.checkpoint()
        first.cancel()
    assert ended == ["second", "first"]
    assert OPEN == {}


async def test_an_event_of_the_loop_around_is_explained() -> None:
    outer = trio.Event()

    async def agent(text: str) -> str:
        outer.set()
        return text

    async with trio.open_nursery() as nursery:
        nursery.start_soon(outer.wait)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ValueError, match="of the event loop around the check; make such"):
            await assert_isolated(agent, ["a", "b"])
        outer.set()
