"""Run a program in two processes, one after the other, which share a folder."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

SECONDS_AT_MOST = 100

_folder = os.environ.get("COMPARISON_FOLDER", "")


def folder() -> Path:
    """Return the folder that both processes share."""
    return Path(_folder)


def is_child() -> bool:
    """Return whether this is one of the two."""
    return bool(_folder)


def first_time() -> bool:
    """Return whether this is the first of them."""
    return time() == "first"


def time() -> str:
    """Return which of them this is."""
    return os.environ["COMPARISON_TIME"]


def note(line: str) -> None:
    """Append to what this process has done, in one write."""
    with (folder() / time()).open("a") as notes:
        notes.write(f"{line}\n")


def notes_of(module: str, *, first_status: int = 0) -> Iterator[list[str]]:
    """Run the module in two processes, and yield what each has noted.

    Args:
      module: Its full name.
      first_status: How the first process has to end; the second ends with 0.
    """
    with tempfile.TemporaryDirectory() as where:
        for each in ("first", "second"):
            process = subprocess.run(
                [sys.executable, "-m", module],
                env={**os.environ, "COMPARISON_FOLDER": where, "COMPARISON_TIME": each},
                capture_output=True,
                text=True,
                timeout=SECONDS_AT_MOST,
            )
            wanted = first_status if each == "first" else 0
            assert process.returncode == wanted, process.stderr
            yield (Path(where) / each).read_text().splitlines()
