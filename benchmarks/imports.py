"""How much longer does it take to import harness than to import what it needs?

Each import has a new interpreter, started in turn, that reports the CPU time of the import alone.
The floor is to import the three packages that the core stands on.

Run: python -m benchmarks imports
"""

import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks._measure import Bench, Row, at_most, interleaved

PROGRAM = """
import time
started_at = time.process_time()
import {packages}
print(time.process_time() - started_at)
"""


def rows(*, quick: bool) -> Iterator[Row]:
    """Measure the import of everything that `harness` exports."""
    samples = interleaved(BENCHES, count=1, rounds=3 if quick else 15)
    yield at_most(
        "import harness / import attrs, outcome, trio",
        1.2,
        samples.ratio("harness", "floor"),
        note=samples.note("harness", "floor", per="import"),
    )


def import_seconds(packages: str, count: int) -> float:
    """Return the CPU seconds of importing packages in so many new interpreters."""
    return sum(
        float(
            subprocess.run(
                [sys.executable, "-c", PROGRAM.format(packages=packages)],
                cwd=Path(__file__).parent.parent,
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        for _ in range(count)
    )


BENCHES: dict[str, Bench] = {
    "harness": functools.partial(import_seconds, "harness"),
    "floor": functools.partial(import_seconds, "attrs, outcome, trio"),
}
