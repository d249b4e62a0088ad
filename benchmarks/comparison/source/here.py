"""How far ahead of what is done is a source read, ten at once?"""

import trio
from trio.testing import MockClock

import harness
from benchmarks.comparison._source import AT_ONCE, Source, show


async def main() -> None:
    source = Source()

    async def agent(number: int) -> int:
        await trio.sleep(1)
        source.done()
        return number

    results = await harness.fan_out(agent, source, limit=AT_ONCE)
    assert results.values() == sorted(results.values())
    show(plain=source, bounded=source, order="of the input; open_fan_out: as they come")


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0))
