"""Watch what the tests reach, in each worker of pytest-xdist: ``-p tests.support.covered``.

Loaded before anything of harness is, unlike tests/conftest.py. What the processes reach that tests
start isn't watched.
"""

import os
from pathlib import Path

import coverage

FOLDER = Path(__file__).parents[2] / "build" / "coverage"

_watching = coverage.Coverage(data_file=FOLDER / f"worker-{os.getpid()}")
_watching.start()


def pytest_unconfigure() -> None:
    """Keep what was reached."""
    _watching.stop()
    _watching.save()
