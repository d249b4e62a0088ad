"""Run a program twice, the first time until it kills itself, and say which items ran again.

Twenty items, four at once. The first ten end. Then four are in flight, and stay so until the
process is killed, after all ten had time to become durable.
"""

import os
import signal
import threading

from benchmarks.comparison._processes import first_time, note, notes_of

ITEMS = range(20)
AT_ONCE = 4
DONE_BEFORE = 10


def begin(number: int) -> bool:
    """Note that an item begins; return whether it has to wait until the process is killed.

    The last of those kills the process in 3 s, unless the program does it itself, when it knows
    that what ended is durable.
    """
    note(f"begun {number}")
    if not first_time() or number < DONE_BEFORE:
        return False
    if number == DONE_BEFORE + AT_ONCE - 1:
        threading.Timer(3, kill).start()
    return True


def kill() -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def end(number: int) -> int:
    """Note that an item ended."""
    note(f"ended {number}")
    return number


def show(module: str) -> None:
    """Run the module in two processes, and print what the second one did."""
    both = list(notes_of(module, first_status=-signal.SIGKILL))
    begun, ended = (
        [{int(line.split()[1]) for line in notes if line.startswith(kind)} for notes in both]
        for kind in ("begun", "ended")
    )
    in_flight = begun[0] - ended[0]
    print(f"done before the kill, and run again: {len(ended[0] & begun[1])} of {len(ended[0])}")
    print(f"in flight, and run again: {len(in_flight & begun[1])} of {len(in_flight)}")
    print(f"never done: {len(set(ITEMS) - ended[0] - ended[1])} of {len(ITEMS)}")
