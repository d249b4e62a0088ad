"""How long does it take until a command answers, or a batch begins with its first item?

Each command gets a new interpreter, started in turn. What counts is the CPU time of the process
from its start, that of the interpreter included; up to its end, or up to the first call of the
function.
All find their modules compiled, in a folder of our own, since not every environment lets Python
keep them. The floor of a batch is a program that does nothing but enter trio.

Run: python -m benchmarks command_line
"""

import functools
import os
import re
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from benchmarks._measure import Measured, Row, at_most, interleaved, rounds_of

ROOT = Path(__file__).parent.parent
HELP_SECONDS = 0.4
FIRST_ITEM_SECONDS = 0.8

AT_THE_END = """
import atexit, sys, time
atexit.register(lambda: print("took", time.process_time(), file=sys.__stderr__))
sys.argv[0] = "harness"
from harness.cli import main
sys.exit(main())
"""

TO_FIRST_ITEM = """
import sys
from harness.cli import main
sys.exit(main())
"""

BARE = """
import sys, time, trio

async def main():
    print("took", time.process_time(), file=sys.stderr)

trio.run(main)
"""

AGENT = """
import sys, time

async def answer(record):
    print("took", time.process_time(), file=sys.stderr)
"""

BATCH = ("batch", "agent.py:answer", "--input", "in.csv", "--output", "-", "--quiet")
COMPLETING = {
    "_HARNESS_COMPLETE": "bash_complete",
    "COMP_WORDS": "harness batch --su",
    "COMP_CWORD": "2",
}


def rows(*, quick: bool) -> Iterator[Row]:
    """Measure what a person waits for."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "agent.py").write_text(AGENT)
        (folder / "in.csv").write_text("id,text\n1,one\n")
        timed = functools.partial(seconds_taken, folder)
        samples = interleaved(
            {
                "help": functools.partial(timed, AT_THE_END, ("--help",)),
                "help of batch": functools.partial(timed, AT_THE_END, ("batch", "--help")),
                "completion": functools.partial(timed, AT_THE_END, (), variables=COMPLETING),
                "batch": functools.partial(timed, TO_FIRST_ITEM, BATCH),
                "journaled": functools.partial(
                    timed, TO_FIRST_ITEM, (*BATCH, "--journal", "NEW.db")
                ),
                "bare trio": functools.partial(timed, BARE, ()),
            },
            count=1,
            rounds=rounds_of(15, quick=quick),
        )
    seconds = samples.seconds
    for what, case in (
        ("harness --help", "help"),
        ("harness batch --help", "help of batch"),
        ("a completion of an option", "completion"),
    ):
        yield at_most(what, HELP_SECONDS, Measured.of(seconds[case]), unit="s")
    for what, case in (
        ("harness batch to its first item, over bare trio", "batch"),
        ("the same with a journal", "journaled"),
    ):
        over = Measured.of(
            mine - its for mine, its in zip(seconds[case], seconds["bare trio"], strict=True)
        )
        yield at_most(what, FIRST_ITEM_SECONDS, over, unit="s")


def seconds_taken(
    folder: Path,
    program: str,
    arguments: Sequence[str],
    count: int,
    *,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> float:
    """Return the CPU seconds that a program says it took, each time in a new interpreter."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-X", f"pycache_prefix={folder / 'compiled'}", "-c", program]
    total = 0.0
    for number in range(count):
        # A journal that is there has the item already.
        new = [word.replace("NEW", f"{number}-{uuid.uuid4()}") for word in arguments]
        ran = subprocess.run(
            [*command, *new], cwd=folder, env=environment, capture_output=True, text=True
        )
        said = re.search(r"took ([\d.]+)", ran.stderr)
        if said is None:
            raise RuntimeError(f"{new} didn't say what it took: {ran.stderr}")
        total += float(said[1])
    return total
