"""Twelve items over two worker processes, one of which is killed, and what ran again.

Whoever works notes what begins and what ends in one file. The first to come to item 5 waits until
four others have ended, and kills its process.
"""

import os
import signal
import time
from pathlib import Path

ITEMS = range(12)
FATAL = 5
ENDED_BEFORE = 4


def work(number: int, folder: str) -> int:
    """Do an item."""
    notes = Path(folder) / "notes"
    note(notes, f"begun {number}")
    if number == FATAL and kills_itself(Path(folder)):
        while notes.read_text().count("ended") < ENDED_BEFORE:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    note(notes, f"ended {number}")
    return number * number


def note(notes: Path, line: str) -> None:
    """Append a line, in one write."""
    with notes.open("a") as file:
        file.write(f"{line}\n")


def kills_itself(folder: Path) -> bool:
    """Return whether this is the first to ask."""
    try:
        (folder / "killed").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def show(values: list[int], folder: str, *, keeps: str) -> None:
    """Print what came of it.

    Args:
      values: The values of the items, in any order.
      folder: Where the notes are.
      keeps: What the library keeps of it once the program that gave the items has ended.
    """
    lines = [line.split() for line in (Path(folder) / "notes").read_text().splitlines()]
    begun = [number for word, number in lines if word == "begun"]
    ended = [number for word, number in lines if word == "ended"]
    wanted = {number * number for number in ITEMS}
    print(f"results: {len(wanted & set(values))} of {len(ITEMS)}")
    print(f"ended twice: {len(ended) - len(set(ended))} of {len(ITEMS)}")
    print(f"the item that was cut off: begun {begun.count(str(FATAL))} times")
    print(f"kept afterwards: {keeps}")
