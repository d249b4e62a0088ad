"""Orchestrate agents from a script of your own: a plain trio nursery, and a run for each.

Nothing of harness starts or waits for the tasks here: the nursery, the cancel scope and
the channel are trio's. A run around each agent gives it state of its own, a name, a
way to cancel it alone, and a place in a tree that can be looked at from outside.

Run:     python examples/plain_nursery.py
Prints:  team/tea waits for research (plain_nursery.py:34)
         team/tea: cancelled, because it took over four seconds
         history, in team/cocoa; prices, in team/cocoa; rivals, in team/cocoa
         history, in team/coffee; prices, in team/coffee; rivals, in team/coffee
"""

import trio
from trio.testing import MockClock

import harness

notes: harness.RunLocal[list[str]] = harness.RunLocal(list)


async def look_up(topic: str) -> None:
    """Find something out, deep inside an agent: whose notes these are need not be passed."""
    await trio.sleep(1)
    notes.get().append(f"{topic}, in {harness.current_run().path}")


async def research(topic: str, found: trio.MemorySendChannel[list[str]]) -> None:
    """Be an agent: look three things up, and hand in the notes."""
    async with found:
        async with harness.open_run(topic) as run:
            for part in ("history", "prices", "rivals"):
                if topic == "tea" and part == "prices":
                    await trio.sleep_forever()  # A site that never answers.
                await look_up(part)
            await found.send(notes.get())
        if run.status == "cancelled":
            print(f"{run.path}: cancelled, because {run.cancel_reason}")


async def watch(team: harness.Run) -> None:
    """Look at who is still at work, and cut it short."""
    await trio.sleep(4)
    for run in team.children:
        print(f"{run.path} waits for {run.waiting_for}")
        run.cancel("it took over four seconds")


async def main() -> None:
    """Start three agents and somebody who watches them; collect what they find."""
    to_us, found = trio.open_memory_channel[list[str]](0)
    async with harness.open_run("team") as team, trio.open_nursery() as nursery:
        nursery.start_soon(watch, team)
        async with to_us:
            for topic in ("coffee", "tea", "cocoa"):
                nursery.start_soon(research, topic, to_us.clone())
        for lines in sorted([lines async for lines in found]):
            print("; ".join(lines))


if __name__ == "__main__":
    # A clock that skips the waiting: only the program sees the seconds.
    trio.run(main, clock=MockClock(autojump_threshold=0))
