"""Numbers that are drawn at random are chance, not a leak; the verdict is the same each time."""

import asyncio
import random
import time
from pathlib import Path

import pytest
import trio

from harness.errors import ScheduleError
from harness.testing import assert_isolated

pytestmark = pytest.mark.slow

GENERATOR = random.Random()
TICKETS = ["lost card", "wrong fee", "new pin"]
messages: list[str] = []


class OverloadedError(Exception):
    """What the simulated model fails with now and then."""


async def ask(text: str) -> str:
    await trio.sleep(GENERATOR.uniform(0.1, 0.5))
    if GENERATOR.random() < 0.3:
        raise OverloadedError
    return f"{text} {GENERATOR.random()}"


async def ask_twice(ticket: str) -> str:
    return await ask(ticket) + await ask(ticket)


async def ask_with_global_numbers(ticket: str) -> str:
    first = random.random()
    await trio.sleep(first)
    return f"{ticket} {first} {random.random()}"


async def ask_in_asyncio(ticket: str) -> str:
    first = GENERATOR.random()
    await asyncio.sleep(first)
    return f"{ticket} {first} {GENERATOR.random()}"


def ask_in_a_thread(ticket: str) -> str:
    first = GENERATOR.random()
    time.sleep(0)
    return f"{ticket} {first} {GENERATOR.random()}"


async def leaks(ticket: str) -> str:
    messages.clear()
    messages.append(ticket)
    await trio.sleep(random.random())
    return messages[0]


@pytest.mark.parametrize(
    ("agent", "drawn"),
    [
        (ask_twice, f"{__name__}.GENERATOR"),
        (ask_with_global_numbers, "random"),
        (ask_in_asyncio, f"{__name__}.GENERATOR"),
        (ask_in_a_thread, f"{__name__}.GENERATOR"),
    ],
)
async def test_numbers_drawn_without_a_seed_are_each_runs_own(agent, drawn) -> None:  # type: ignore[no-untyped-def]
    for start in range(3):
        GENERATOR.seed(start)
        random.seed(start)
        before = GENERATOR.getstate(), random.getstate()
        seen = await assert_isolated(agent, TICKETS, schedules=10)
        assert seen.drawn == (drawn,)
        assert not seen.per_run
        assert (GENERATOR.getstate(), random.getstate()) == before


async def fail_half_the_time(ticket: str) -> str:
    await trio.lowlevel.checkpoint()
    if random.random() < 0.5:
        raise OverloadedError
    return ticket


async def test_whether_all_runs_fail_alone_depends_on_the_seed_of_the_check_only() -> None:
    verdicts: list[list[bool]] = []
    for start in range(2):
        verdicts.append([])
        for seed in range(6):
            random.seed(start)
            try:
                await assert_isolated(fail_half_the_time, TICKETS[:2], schedules=2, seed=seed)
                verdicts[-1].append(True)
            except ValueError:
                verdicts[-1].append(False)
    assert verdicts[0] == verdicts[1]
    assert sum(verdicts[0]) > 3, "each run draws numbers of its own, so seldom do both fail"


async def test_a_leak_beside_random_numbers_is_found_and_the_generator_not_blamed() -> None:
    with pytest.raises(ScheduleError) as caught:
        await assert_isolated(leaks, TICKETS, schedules=100)
    assert caught.value.objects == (f"{__name__}.messages",)
    text = str(caught.value)
    assert "\nproof: " in text
    assert "writes random" not in text
    assert "runs draw from random without seeding it; here each had numbers of its own" in text


async def test_what_no_object_shows_is_not_blamed_on_the_generator(tmp_path: Path) -> None:
    place = tmp_path / "ticket"

    async def agent(ticket: str) -> str:
        place.write_text(ticket)
        await trio.sleep(random.random())
        return place.read_text()

    with pytest.raises(ScheduleError, match="no object that the function can reach was written"):
        await assert_isolated(agent, TICKETS, schedules=20)


class Worker:
    """Works for all; the first who asks starts it, and it ends with that loop."""

    jobs: trio.MemorySendChannel[trio.MemorySendChannel[str]] | None = None

    async def ask(self, ticket: str) -> str:
        number = random.random()
        if self.jobs is None:
            self.jobs, jobs = trio.open_memory_channel[trio.MemorySendChannel[str]](0)
            trio.lowlevel.spawn_system_task(self.work, jobs)
        put, replies = trio.open_memory_channel[str](1)
        await self.jobs.send(put)
        return f"{ticket} {number} {await replies.receive()}"

    async def work(self, jobs: trio.MemoryReceiveChannel[trio.MemorySendChannel[str]]) -> None:
        async for reply in jobs:
            reply.send_nowait("done")


WORKER = Worker()


async def test_who_draws_and_needs_what_ended_with_another_loop_is_isolated() -> None:
    await assert_isolated(WORKER.ask, TICKETS, schedules=5)
