"""What does trio tell of tasks? An Instrument hears of every step."""

from collections import Counter

import trio
from trio.testing import MockClock

heard: Counter[str] = Counter()


class Steps(trio.abc.Instrument):
    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        heard["task_spawned"] += 1

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        heard["before_task_step"] += 1

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        heard["task_exited"] += 1


async def main() -> None:
    await trio.sleep(2)


if __name__ == "__main__":
    trio.run(main, clock=MockClock(autojump_threshold=0), instruments=[Steps()])
    print(f"recorded of a tool turn: nothing; an Instrument hears {', '.join(sorted(heard))}")
    print("where the time went: –")
    print("to look at: –")
