"""Send real Ctrl-Cs into cases of the driver, and into plain trio, and say how each ended.

A signal strikes between any two bytecodes: in our code, in the user's, and inside of trio, whose
own functions aren't all protected. `strikes` runs a kind in processes of its own. Nothing is judged
by seconds: a run hangs if trio's loop goes round and round and it doesn't end.
"""

from __future__ import annotations

import _weakrefset
import dis
import faulthandler
import gc
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import attrs
import trio

import harness
from tests.support.driver import World, carry_out, case_of, run_in_order
from tests.support.memory_journal import MemoryJournal

Kind = Literal["harness", "trio"]

ROOT = Path(__file__).parents[2]
TURNS_AT_MOST = 100_000
"""Turns of trio's loop, and steps of tasks, in one run: a case takes some hundreds. The clock is
virtual, and no thread is waited for, so a run that takes so many never ends."""

SWALLOWING = frozenset((weakref.__file__, _weakrefset.__file__, "<frozen abc>"))
"""Files whose functions Python calls while a weak reference dies, or while it raises a
`trio.Cancelled` again, and ignores what they raise."""

AWAITS_AN_EXIT = 2
"""The argument of GET_AWAITABLE for what ``__aexit__`` returned, from Python 3.11 to 3.14."""

ENDS_AFTER_SECONDS = 300
"""When a process ends itself that doesn't even come back to trio's loop."""

ROOTS = {
    "harness": str(Path(harness.__file__).parent) + os.sep,
    "trio": str(Path(trio.__file__).parent) + os.sep,
    "the user": str(ROOT / "tests") + os.sep,
}


@attrs.frozen
class Strike:
    """How the run of a seed ended."""

    seed: int
    place: str
    """In which function the signal came, and on whose behalf; empty if it came too late."""
    wrong: str
    """What was wrong; empty if nothing was."""


def strikes(kind: Kind, first: int, last: int) -> list[Strike]:
    """Run the seeds from ``first`` to before ``last``, each struck by one signal."""
    found: list[Strike] = []
    while first < last:
        ended = subprocess.run(
            [sys.executable, "-m", "tests.support.signals", kind, str(first), str(last)],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        lines = [json.loads(line) for line in ended.stdout.splitlines()]
        found += [Strike(**line) for line in lines]
        first += len(lines)
        if ended.returncode:
            # It brought the process down.
            found.append(Strike(first, place_in(ended.stderr, first), ended.stderr[-3_000:]))
            first += 1
    return found


def place_in(said: str, seed: int) -> str:
    """Return where a process said that a seed was struck; empty if it wasn't."""
    return "".join(
        line.partition(" struck in ")[2]
        for line in said.splitlines()
        if line.startswith(f"{seed} struck in ")
    )


# The process ------------------------------------------------------------------------------------


class Shooter:
    """Sends a Ctrl-C some time after its block is entered, and notes where it comes.

    By the system's timer, which comes at any bytecode. A thread that sends a signal gets its turn
    only where the main thread waits.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._share = random.Random(f"signal {seed}").random()
        self.place = ""
        """Where the signal came; empty if it didn't come in the block."""

    @contextmanager
    def in_sight(self, seconds: float, hit: Callable[[], None]) -> Iterator[None]:
        """Send it into the block, which takes about so many seconds, and call ``hit``."""
        trios: Any = signal.getsignal(signal.SIGINT)
        inside = True

        def strike(number: int, frame: FrameType | None) -> None:
            if not inside:
                return
            if frame is not None and (
                frame.f_code.co_filename in SWALLOWING or is_leaving_a_block(frame)
            ):
                # Python ignores it there, or leaves the block open; so a moment later.
                signal.setitimer(signal.ITIMER_REAL, 1e-4)
            else:
                self.place = place_of(frame)
                os.write(2, f"{self._seed} struck in {self.place}\n".encode())
                hit()
                trios(signal.SIGINT, frame)

        signal.signal(signal.SIGALRM, strike)
        signal.setitimer(signal.ITIMER_REAL, self._share * seconds + 1e-6)
        try:
            yield
        finally:
            inside = False
            signal.setitimer(signal.ITIMER_REAL, 0)


class Endless(trio.abc.Instrument):
    """Notices that a run never ends: it waits for nothing, or goes on forever."""

    def __init__(self, noticed: Callable[[], None]) -> None:
        self._left = TURNS_AT_MOST
        self._noticed = noticed

    def before_io_wait(self, timeout: float) -> None:
        self._left -= 1
        if not self._left:
            self._noticed()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.before_io_wait(0)


def is_leaving_a_block(frame: FrameType) -> bool:
    """Return whether an ``async with`` has called ``__aexit__``, and hasn't begun to await it.

    What is raised there leaves the block open, whoever wrote it: the code in which the statement is
    would have to be protected.
    """
    instructions = iter(dis.get_instructions(frame.f_code))
    here = next((one for one in instructions if one.offset == frame.f_lasti), None)
    after = next(instructions, None)
    if here is None or after is None:
        return False
    return here.opname == "CALL" and after.opname == "GET_AWAITABLE" and after.arg == AWAITS_AN_EXIT


def place_of(frame: FrameType | None) -> str:
    """Return in which function of ours, of trio or of the tests a signal came, and on whose behalf.

    Code of the tests stands for the user's. trio's loop works on nobody's behalf. Of trio it is the
    function that was called from outside.
    """
    called = ""
    foreign = ""
    if frame is not None and not frame.f_code.co_filename.startswith(tuple(ROOTS.values())):
        foreign = f" in {Path(frame.f_code.co_filename).name}:{frame.f_code.co_qualname}"
    while frame is not None:
        code = frame.f_code
        for owner, root in ROOTS.items():
            if code.co_filename.startswith(root):
                if code is run_in_order.__code__:
                    return "trio's loop"
                here = f"{owner}:{code.co_qualname}"
                if owner != "trio":
                    return (f"{called} for {here}" if called else here) + foreign
                called = here
        frame = frame.f_back
    return called


def strike_case(seed: int, shooter: Shooter, endless: Endless) -> None:
    case = case_of(seed)
    # A disk that is slow in virtual time is a task here, which the signal could strike.
    case = attrs.evolve(case, options={**case.options, "slow_disk": False})
    world = World(case, MemoryJournal())

    def hit() -> None:
        world.struck = "a signal"

    began = time.perf_counter()
    carry_out(case, World(case, MemoryJournal()))
    seconds = time.perf_counter() - began
    carry_out(case, world, shooter.in_sight(seconds, hit), instruments=[endless])


class Plain:
    """What a case is made of, in plain trio."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.limiter = trio.CapacityLimiter(2)
        self.live = 0

    async def item(self, send: trio.MemorySendChannel[int], number: int) -> None:
        self.live += 1
        try:
            with trio.move_on_after(2.5):
                async with self.limiter:
                    await trio.sleep(self.draw.randrange(4))
            with suppress(trio.BrokenResourceError):
                await send.send(number)
        finally:
            self.live -= 1

    async def run(self) -> None:
        send, receive = trio.open_memory_channel[int](1)
        with trio.fail_after(10_000):
            async with trio.open_nursery() as nursery, receive:
                for number in range(7):
                    nursery.start_soon(self.item, send, number)
                for _ in range(7):
                    await receive.receive()

    def check(self) -> None:
        assert self.live == 0, "tasks are alive"
        assert self.limiter.borrowed_tokens == 0, "a slot is held"


def strike_plain(seed: int, shooter: Shooter, endless: Endless) -> None:
    began = time.perf_counter()
    run_in_order(seed, Plain(seed).run)
    seconds = time.perf_counter() - began
    plain = Plain(seed)

    async def main() -> None:
        with shooter.in_sight(seconds, lambda: None):
            await plain.run()

    try:
        run_in_order(seed, main, [endless])
    except KeyboardInterrupt:
        pass
    except BaseExceptionGroup as error:
        if error.split(KeyboardInterrupt)[1] is not None:
            raise
    else:
        assert not shooter.place, "Ctrl-C was swallowed"
    plain.check()


def strike(kind: Kind, seed: int) -> Strike:
    faulthandler.dump_traceback_later(ENDS_AFTER_SECONDS, exit=True)
    shooter = Shooter(seed)

    def ended(wrong: str) -> Strike:
        return Strike(seed, shooter.place, wrong)

    def never_ends() -> None:
        tell(ended(f"it never ends: {waiting_tasks()}"))
        os._exit(0)

    try:
        strike_one = strike_plain if kind == "trio" else strike_case
        strike_one(seed, shooter, Endless(never_ends))
    except BaseException as error:
        shown = "".join(traceback.format_exception(error))
        return ended(f"{error!r}\n{shown[-3_000:]}")
    finally:
        gc.collect()  # What is left half done must not be closed in the next seed's run.
    return ended("")


def waiting_tasks() -> list[str]:
    """Return where each task waits, by name."""
    found: list[str] = []
    tasks = [trio.lowlevel.current_root_task()]
    for task in filter(None, tasks):
        frames = [frame.f_code.co_qualname for frame, _ in task.iter_await_frames()]
        found.append(f"{task.name}: {' > '.join(frames[-6:])}")
        tasks += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return found


def tell(strike: Strike) -> None:
    print(json.dumps(attrs.asdict(strike)), flush=True)


def main(words: list[str]) -> None:
    kind: Any = words[0]
    gc.freeze()
    for seed in range(int(words[1]), int(words[2])):
        tell(strike(kind, seed))


if __name__ == "__main__":
    main(sys.argv[1:])
