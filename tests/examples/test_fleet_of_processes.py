"""The example of processes that share a limit."""

import subprocess
import sys

import pytest

import fleet_of_processes
from tests.examples.headers import promised_output


@pytest.mark.real_clock
@pytest.mark.slow
def test_it_prints_what_its_header_promises() -> None:
    done = subprocess.run(
        [sys.executable, str(fleet_of_processes.__file__)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == promised_output(fleet_of_processes)
