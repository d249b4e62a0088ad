"""A batch is killed and started again. What runs twice?"""

import trio
import trio.testing

import harness
from benchmarks.comparison import _killed, _processes
from harness.journal import open_journal


async def agent(number: int) -> int:
    if _killed.begin(number):
        await trio.sleep_forever()
    return _killed.end(number)


async def main() -> None:
    async with (
        open_journal(str(_processes.folder() / "journal.db")) as journal,
        harness.open_fan_out(
            agent, _killed.ITEMS, limit=_killed.AT_ONCE, journal=journal, key=str, name="nightly"
        ) as results,
    ):
        read = 0
        async for _ in results:  # What is read here is on the disk.
            read += 1
            if read == _killed.DONE_BEFORE and _processes.first_time():
                await trio.testing.wait_all_tasks_blocked()
                _killed.kill()


if __name__ == "__main__":
    if _processes.is_child():
        trio.run(main)
    else:
        _killed.show("benchmarks.comparison.resume.here")
