"""Cache, once and journal keep their promises under every order of steps."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

import harness
from harness.journal import open_journal
from harness.shared import Counter, open_cache, open_once
from harness.testing import NotFound, explore_schedules, faultable, find_schedule
from tests.scale import scaled

pytestmark = pytest.mark.slow

SCHEDULES = scaled(60, full=400)


@explore_schedules(schedules=SCHEDULES)
async def test_all_who_ask_a_cache_at_once_share_one_load() -> None:
    loads = 0

    async def load() -> str:
        nonlocal loads
        loads += 1
        await trio.lowlevel.checkpoint()
        return f"value {loads}"

    values: list[str] = []
    async with open_cache() as cache:

        async def ask() -> None:
            values.append(await cache.get("key", load))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
        cache.check()
    assert values == ["value 1"] * 3


def test_a_cancelled_caller_takes_no_load_from_the_others() -> None:
    async def program() -> None:
        values: list[str] = []
        struck = 0

        async def load() -> str:
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            return "value"

        async with open_cache() as cache:

            async def ask(number: int) -> None:
                nonlocal struck
                with faultable(number) as scope:
                    values.append(await cache.get("key", load))
                struck += scope.cancelled_caught

            async with trio.open_nursery() as nursery:
                for number in (1, 2, 3):
                    nursery.start_soon(ask, number)
            cache.check()
        assert values == ["value"] * (3 - struck)

    found = find_schedule(program, schedules=3 * SCHEDULES)
    assert isinstance(found, NotFound), found.error


def test_no_waiter_of_a_counter_is_forgotten_whoever_is_cancelled() -> None:
    """Waiters are woken one after the other; one that is cancelled on waking wakes the next."""

    async def program() -> None:
        counter = Counter()
        passed: list[int] = []

        async def wait(number: int) -> None:
            with faultable(number):
                await counter.wait_for(1)
                passed.append(number)

        async def add() -> None:
            await trio.lowlevel.checkpoint()
            counter.add(1)

        async with trio.open_nursery() as nursery:
            for number in (1, 2, 3):
                nursery.start_soon(wait, number)
            nursery.start_soon(add)
        counter.check()
        assert counter.statistics().tasks_waiting == 0

    found = find_schedule(program, schedules=3 * SCHEDULES)
    assert isinstance(found, NotFound), found.error


@explore_schedules(schedules=SCHEDULES)
async def test_an_effect_takes_place_once() -> None:
    effects: list[str] = []

    async def effect(idempotency_key: str) -> str:
        await trio.lowlevel.checkpoint()
        effects.append(idempotency_key)
        await trio.lowlevel.checkpoint()
        return "done"

    answers: list[str] = []
    async with open_once() as once:

        async def ask() -> None:
            answers.append(await once("pay", effect))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
        once.check()
    assert answers == ["done"] * 3
    assert len(effects) == 1


def test_a_batch_with_a_journal_is_whole_in_every_order(tmp_path: Path) -> None:
    """Its writer is a thread, so the clock has to stand still while it works."""
    files = _fresh_files(tmp_path)

    async def program() -> None:
        path = next_file = files()
        done: list[int] = []

        async def work(number: int) -> int:
            await trio.sleep(1)
            done.append(number)
            return number

        for _ in range(2):
            async with open_journal(path) as journal:
                results = await harness.fan_out(
                    work, range(3), key=str, limit=2, journal=journal, name="batch"
                )
                assert list(results.values()) == [0, 1, 2]
        assert sorted(done) == [0, 1, 2], "what is done is not done again"
        next_file.unlink()

    found = find_schedule(program, schedules=scaled(8, full=200))
    assert isinstance(found, NotFound), found.error
    assert found.plain.uncontrolled


def _fresh_files(folder: Path) -> Callable[[], Path]:
    count = 0

    def fresh() -> Path:
        nonlocal count
        count += 1
        return folder / f"{count}.journal"

    return fresh
