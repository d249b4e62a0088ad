"""How much longer does it take to import harness than to import what it needs?

Each import gets a new interpreter, started in turn, that reports the CPU time of the import alone.
The floor is importing the three packages that the core needs. All find their modules already
compiled, in a folder of our own, because not every environment lets Python keep them.

Run: python -m benchmarks imports
"""

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks._measure import Row, at_most, interleaved, rounds_of

PROGRAM = """
import time
started_at = time.process_time()
import {packages}
print(time.process_time() - started_at)
"""


def rows(*, quick: bool) -> Iterator[Row]:
    """Measure the import of everything that `harness` exports."""
    with tempfile.TemporaryDirectory() as compiled:
        samples = interleaved(
            {
                "harness": functools.partial(import_seconds, "harness", compiled),
                "floor": functools.partial(import_seconds, "attrs, outcome, trio", compiled),
            },
            count=1,
            rounds=rounds_of(21, quick=quick),
        )
    yield at_most(
        "import harness / import attrs, outcome, trio",
        1.2,
        samples.ratio("harness", "floor"),
        note=samples.note("harness", "floor", per="import"),
    )


def import_seconds(packages: str, compiled: str, count: int) -> float:
    """Return the CPU seconds of importing packages, each time in a new interpreter."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-X", f"pycache_prefix={compiled}"]
    return sum(
        float(
            subprocess.run(
                [*command, "-c", PROGRAM.format(packages=packages)],
                cwd=Path(__file__).parent.parent,
                env=environment,
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        for _ in range(count)
    )
