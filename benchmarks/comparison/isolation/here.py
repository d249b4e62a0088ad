"""Which runs of a fan-out see each other's notes?"""

import trio
from trio.testing import MockClock

import harness
from benchmarks.comparison import _notes

own: harness.RunLocal[list[int]] = harness.RunLocal(list, name="own")


async def agent(number: int) -> tuple[bool, ...]:
    for _ in range(3):
        _notes.take(number, own.get())
        await trio.sleep(1)
    return _notes.saw_others(own.get())


async def main() -> None:
    results = await harness.fan_out(agent, _notes.RUNS)
    _notes.show(results.values(), offered="RunLocal")


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0))
