"""How far ahead of what is done is a source read, ten at once?"""

from collections.abc import Iterator, Sequence

import aiometer
import trio
from trio.testing import MockClock

from benchmarks.comparison._source import AT_ONCE, COUNT, Source, show


class Sized(Sequence[int]):
    """aiometer takes a sequence: its result channel is as long as it."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        return iter(self.source)

    def __getitem__(self, index: object) -> int:  # type: ignore[override]
        raise NotImplementedError


async def main() -> None:
    source = Source()

    async def agent(number: int) -> int:
        await trio.sleep(1)
        source.done()
        return number

    async with aiometer.amap(agent, Sized(source), max_at_once=AT_ONCE) as results:
        async for _ in results:
            pass
    show(plain=source, bounded=source, order="amap(): as they come; run_all(): of the input")


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0))
