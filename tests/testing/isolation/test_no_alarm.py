"""Correct agents of unusual shape raise no alarm."""

import pytest
import trio

from harness.testing import assert_isolated
from tests.scale import scaled
from tests.testing.isolation.kinds import INPUTS

pytestmark = pytest.mark.slow


async def fails_in_a_task(text: str) -> str:
    async def fail() -> None:
        await trio.sleep(1)
        raise ValueError(text)

    if text == "ab":
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            nursery.start_soon(trio.sleep, 5)
    return text


async def test_a_cancel_that_comes_together_with_an_error() -> None:
    """The two leave the run in one group, and then the error without the cancel.

    That was taken for a failure of the whole program.
    """
    await assert_isolated(fails_in_a_task, INPUTS, schedules=scaled(60, full=300))


class Service:
    """Has one worker for all, which the first who asks starts."""

    jobs: trio.MemorySendChannel[tuple[str, trio.MemorySendChannel[str]]] | None = None

    async def ask(self, question: str) -> str:
        if self.jobs is None:
            self.jobs, jobs = trio.open_memory_channel[tuple[str, trio.MemorySendChannel[str]]](0)
            trio.lowlevel.spawn_system_task(self.work, jobs)
        put, replies = trio.open_memory_channel[str](1)
        await self.jobs.send((question, put))
        return await replies.receive()

    async def work(
        self, jobs: trio.MemoryReceiveChannel[tuple[str, trio.MemorySendChannel[str]]]
    ) -> None:
        async for question, reply in jobs:
            await trio.sleep(1)
            reply.send_nowait(question.upper())


SERVICE = Service()


async def test_a_service_that_the_first_run_starts() -> None:
    """Its worker ends with its loop, and each run alone has a loop of its own.

    The second run after the first one waited for ever for a worker that was gone, and the channel
    was named as a leak that needs no concurrency.
    """
    seen = await assert_isolated(SERVICE.ask, INPUTS, schedules=scaled(60, full=300))
    assert seen.outliving == (f"{__name__}.SERVICE.jobs",)
