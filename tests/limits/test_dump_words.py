"""A dump says which limiter a run waits for."""

import trio
from trio.testing import MockClock

import harness
from harness.limits import Limiter


async def test_a_dump_names_the_limiter_and_its_line(autojump_clock: MockClock) -> None:
    """It said that the run waited for nothing that code can show: the most common wait of all."""
    limiter = Limiter("acme", concurrent=1)

    async def body(item: int) -> None:
        await trio.sleep(10)

    async with trio.open_nursery() as nursery:

        async def batch() -> None:
            await harness.fan_out(body, range(3), each=harness.Attempt(limiter=limiter))

        nursery.start_soon(batch)
        await trio.sleep(5)
        dump = harness.dump()
    assert dump.count("waits for limiter 'acme' (2 in line)") == 2
