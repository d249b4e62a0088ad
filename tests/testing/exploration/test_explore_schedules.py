"""The decorator: any async test, under many schedules, with a report that can be acted on."""

import asyncio
import os
import subprocess
import sys
from contextvars import ContextVar
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import harness
from harness.errors import DeadlockError, ScheduleError
from harness.testing import _asked, explore_arrivals, explore_schedules, exploring_with
from tests.scale import PATIENCE_SECONDS
from tests.testing.schedules.toys import TOYS

lost_update = TOYS["lost_update, even"]
variable: ContextVar[str] = ContextVar("variable")


async def passes() -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(trio.lowlevel.checkpoint)


# A test stays a test ----------------------------------------------------------------------------


@explore_schedules
async def test_it_works_bare() -> None:
    await passes()


@explore_schedules(schedules=20, seed=3)
async def test_it_works_with_arguments_and_fixtures(tmp_path: Path) -> None:
    assert isinstance(tmp_path, Path)
    await passes()


@explore_schedules(schedules=20)
async def test_each_schedule_has_a_clock_of_its_own(autojump_clock: MockClock) -> None:
    """A fixture's clock belongs to the outer loop, where time stands still meanwhile."""
    assert trio.lowlevel.current_clock() is autojump_clock
    began = trio.current_time()
    await trio.sleep(3_600)
    assert trio.current_time() - began == 3_600
    await passes()


class TestMethods:
    @explore_schedules(schedules=20)
    async def test_it_works_on_a_method(self) -> None:
        assert isinstance(self, TestMethods)
        await passes()


def test_it_works_by_itself() -> None:
    trio.run(explore_schedules(passes))


@pytest.mark.slow
async def test_the_outer_clock_stands_meanwhile(autojump_clock: MockClock) -> None:
    """A clock that jumps whenever its loop waits would let every timeout of the caller strike."""
    with trio.fail_after(1):
        await explore_schedules(schedules=30)(passes)()
    assert trio.current_time() == 0
    await trio.sleep(5)
    assert trio.current_time() == 5, "and it jumps again afterwards"


@pytest.mark.slow
async def test_the_context_of_the_caller_is_copied() -> None:
    variable.set("outside")

    @explore_schedules(schedules=10)
    async def test() -> None:
        assert variable.get() == "outside"
        variable.set("inside")
        await passes()

    await test()
    assert variable.get() == "outside"


@pytest.mark.slow
async def test_runs_open_in_each_schedule() -> None:
    @explore_schedules(schedules=30)
    async def test() -> None:
        results = await harness.fan_out(_double, [1, 2, 3])
        assert list(results.values()) == [2, 4, 6]

    await test()


async def _double(number: int) -> int:
    await trio.lowlevel.checkpoint()
    return 2 * number


async def test_a_cancel_ends_the_search() -> None:
    counted = 0
    outside = trio.lowlevel.current_trio_token()

    @explore_schedules(schedules=1_000_000)
    async def test() -> None:
        nonlocal counted
        counted += 1
        if counted == 10:
            outside.run_sync_soon(scope.cancel)
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(_double, 1)

    with trio.CancelScope() as scope:
        await test()
    assert scope.cancelled_caught
    assert 10 <= counted < 100_000


def test_what_is_no_test_is_refused() -> None:
    with pytest.raises(TypeError, match="only functions can be explored"):
        explore_schedules("test")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="from 1 upwards"):
        explore_schedules(schedules=0)
    with pytest.raises(TypeError, match="takes a whole number"):
        explore_schedules(schedules=1.5)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="not a replay string"):
        explore_schedules(schedule="nonsense")
    with pytest.raises(TypeError, match="seed must be an int"):
        explore_schedules(seed="seed")  # type: ignore[call-overload]


# The report -------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_failure_says_what_happened_and_how_to_see_it_again() -> None:
    with pytest.raises(ScheduleError) as caught:
        await explore_schedules(lost_update)()
    error = caught.value
    text = str(error)
    assert isinstance(error, AssertionError)
    assert isinstance(error.__cause__, AssertionError)
    assert error.schedules_run > 1
    assert "toy fails under schedule" in text
    assert "AssertionError" in text
    assert "'increase #2' goes on for" in text
    assert f'@explore_schedules(schedule="{error.schedule}")' in text
    with pytest.raises(ScheduleError, match="under the schedule that was given"):
        await explore_schedules(schedule=error.schedule)(lost_update)()


@pytest.mark.slow
async def test_a_deadlock_is_the_cause() -> None:
    with pytest.raises(ScheduleError, match="'both' waits in") as caught:
        await explore_schedules(TOYS["two_locks, even"])()
    assert isinstance(caught.value.__cause__, DeadlockError)
    assert "to its end" not in str(caught.value), "what it does while it is ended isn't told"


async def test_a_test_that_fails_in_every_order_says_so() -> None:
    async def test() -> None:
        await trio.lowlevel.checkpoint()
        raise LookupError("always")

    with pytest.raises(ScheduleError, match="without any switch") as caught:
        await explore_schedules(test)()
    assert isinstance(caught.value.__cause__, LookupError)
    assert caught.value.schedules_run == 1


@pytest.mark.slow
async def test_a_replay_of_other_code_is_told() -> None:
    with pytest.raises(ScheduleError) as caught:
        await explore_schedules(lost_update)()
    with pytest.raises(ScheduleError, match=r"diverged at decision \d+ of .*passes"):
        await explore_schedules(schedule=caught.value.schedule)(passes)()


async def test_what_one_schedule_leaves_behind_is_put_back() -> None:
    """Otherwise a fault shows in a later schedule than its own, and no replay shows it."""
    await explore_schedules(schedules=50)(_counts_to_two)()
    assert _count == [0]


_count = [0]


async def _counts_to_two() -> None:
    async def one() -> None:
        await trio.lowlevel.checkpoint()
        _count[0] += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one)
        nursery.start_soon(one)
    assert _count == [2]


async def test_a_test_that_depends_on_more_than_order_says_so() -> None:
    calls: list[int] = []

    class Unseen:
        """Keeps its state where nobody can put it back."""

        __slots__ = ()

        def draw(self) -> int:
            return next(_numbers)

    _numbers = iter(range(1_000_000))
    unseen = Unseen()

    async def test() -> None:
        await passes()
        assert unseen.draw() != 7

    with pytest.raises(ScheduleError, match="did not fail again"):
        await explore_schedules(test)()
    assert not calls


async def test_an_object_of_the_loop_outside_is_told() -> None:
    event = trio.Event()

    async def test() -> None:
        event.set()
        await passes()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_until_set, event)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ScheduleError, match="another event loop"):
            await explore_schedules(test)()
        nursery.cancel_scope.cancel()


async def _until_set(event: trio.Event) -> None:
    await event.wait()


async def test_trio_run_inside_is_told() -> None:
    async def test() -> None:
        await trio.lowlevel.checkpoint()
        trio.run(passes)

    with pytest.raises(ScheduleError, match=r"inside trio already: await the function"):
        await explore_schedules(test)()


async def test_a_skip_is_no_failure() -> None:
    async def test() -> None:
        await trio.lowlevel.checkpoint()
        pytest.skip("not today")

    with pytest.raises(pytest.skip.Exception):
        await explore_schedules(test)()


@pytest.mark.slow
async def test_options_from_outside_come_first() -> None:
    runs = 0

    @explore_schedules(schedules=5)
    async def test() -> None:
        nonlocal runs
        runs += 1
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(_double, 1)

    with exploring_with(schedules=9):
        await test()
    assert runs == 9
    with exploring_with(schedule="h1:1x1:-:-"):
        await test()
    assert runs == 10
    await test()
    assert runs == 15


async def test_a_replay_of_what_is_begun_twice_starts_from_the_same_state() -> None:
    """It met what had been left before its first wait showed that it is of asyncio."""

    @explore_schedules(schedules=3)
    async def test(numbers: list[int]) -> None:
        numbers.append(1)
        await _waits_in_asyncio()
        assert numbers != [1]

    with pytest.raises(ScheduleError, match=r"assert \[1\] != \[1\]") as caught:
        await test([])
    with (
        exploring_with(schedule=caught.value.schedule),
        pytest.raises(ScheduleError, match="under the schedule that was given"),
    ):
        await test([])


async def _waits_in_asyncio() -> None:
    await asyncio.sleep(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "says"),
    [
        ("distinct", "all 90 orders, 1 distinct"),
        ("priorities", "with a chance of at least 1 in "),
        ("random", "one more shows a new one with a chance of"),
        ("mixed", ""),
    ],
)
async def test_the_command_line_says_how_to_search(
    monkeypatch: pytest.MonkeyPatch, way: str, says: str
) -> None:
    monkeypatch.setattr(_asked, "_asked", _asked.Wishes(search=way))
    _asked.told()

    @explore_schedules(schedules=20, search="random", enough_below=0.5)
    async def test() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(_double, 1)

    @explore_schedules(schedules=20, cancel=True)
    async def cancelled() -> None:
        await trio.lowlevel.checkpoint()

    @explore_arrivals(orders=20)
    async def one_by_one() -> None:
        await trio.lowlevel.checkpoint()

    await test()
    ((_, words),) = _asked.told()
    assert says in words
    assert bool(words) is bool(says)
    # What can be searched in one way only still is.
    await cancelled()
    await one_by_one()


@pytest.mark.long
def test_it_works_under_anyios_plugin(tmp_path: Path) -> None:
    """A failing explored test fails, and a passing one passes, on trio and even on asyncio."""
    (tmp_path / "test_some.py").write_text(SOME_TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ended = subprocess.run(
        [*command, "-p", "no:trio", "-p", "no:randomly", "--anyio-mode=auto", "test_some.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
        env={**os.environ, "PYTHONPATH": str(Path(harness.__file__).parent.parent)},
    )
    assert "2 failed, 2 passed" in ended.stdout, ended.stdout + ended.stderr
    assert ended.stdout.count("test_bad fails under schedule") == 2


SOME_TESTS = """
import pytest, trio
from harness.testing import explore_schedules

@pytest.fixture(params=["trio", "asyncio"])
def anyio_backend(request):
    return request.param

@explore_schedules(schedules=50)
async def test_good(tmp_path):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 1)
        nursery.start_soon(trio.sleep, 2)

@explore_schedules
async def test_bad():
    count = 0
    async def increase():
        nonlocal count
        read = count
        await trio.lowlevel.checkpoint()
        count = read + 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(increase)
        nursery.start_soon(increase)
    assert count == 2
"""


@pytest.mark.slow
async def test_what_a_test_imports_is_not_imported_before_it_has_set_things_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many tests set the environment first, and then import what reads it."""
    (tmp_path / "harness_test_settings.py").write_text(
        "import os\nMODE = os.environ.get('HARNESS_TEST_MODE', 'none')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    modes: list[str] = []

    @explore_schedules(schedules=2)
    async def test() -> None:
        os.environ["HARNESS_TEST_MODE"] = "set up"
        from harness_test_settings import MODE  # type: ignore[import-not-found]  # noqa: PLC0415

        modes.append(MODE)

    await test()
    assert set(modes) == {"set up"}
    assert "HARNESS_TEST_MODE" not in os.environ
    monkeypatch.delitem(sys.modules, "harness_test_settings")


async def test_a_story_without_a_line_is_left_out() -> None:
    @explore_schedules
    async def test() -> None:
        raise ValueError("at once")

    with pytest.raises(ScheduleError) as caught:
        await test()
    assert "in this order:" not in str(caught.value)


# How to search ----------------------------------------------------------------------------------


class Account:
    """Something whose check and use are apart."""

    def __init__(self, left: int) -> None:
        self.left = left

    async def spend(self, amount: int) -> None:
        if self.left >= amount:
            await trio.lowlevel.checkpoint()
            self.left -= amount


async def spend(*amounts: int, left: int) -> None:
    account = Account(left)
    async with trio.open_nursery() as nursery:
        for amount in amounts:
            nursery.start_soon(account.spend, amount)
    assert account.left >= 0


@explore_schedules(search="distinct")
@pytest.mark.slow
async def test_a_test_can_ask_for_every_distinct_order() -> None:
    await spend(10, 20, left=30)


@explore_schedules(search="priorities", depth=2, schedules=20)
async def test_a_test_can_ask_for_priorities() -> None:
    await spend(10, 20, left=30)


@explore_schedules(search="random", enough_below=0.3, starved_after=100, schedules=200)
async def test_a_test_can_ask_to_stop_when_enough_was_seen() -> None:
    await spend(10, 20, left=30)


@pytest.mark.slow
async def test_a_failure_of_a_watched_search_replays_and_names_lines_of_one_order() -> None:
    explored = explore_schedules(search="distinct")(lambda: spend(70, 60, left=100))
    with pytest.raises(ScheduleError) as caught:
        await explored()
    assert "to run only this schedule" in str(caught.value)
    assert "lines that raced, and came in this order only before the failure" in str(caught.value)
    assert "(Account.left)" in str(caught.value)
    replayed = explore_schedules(schedule=caught.value.schedule)(lambda: spend(70, 60, left=100))
    with pytest.raises(ScheduleError, match="under the schedule that was given"):
        await replayed()


def test_a_search_that_does_not_exist_is_refused_where_it_is_asked_for() -> None:
    with pytest.raises(ValueError, match="must be one of 'mixed'"):
        explore_schedules(search="depth-first")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="with cancel=True there is no search='distinct'"):
        explore_schedules(search="distinct", cancel=True)
