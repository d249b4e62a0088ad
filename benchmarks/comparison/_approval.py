"""A refund that a person has to allow, in two processes, and what each of them called.

The first process ends while the question is open. The second has the answer: yes. Both append to
one file whenever the model or the tool is called.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

QUESTION = "I want 20 dollars back for order 1."
TOOL = "refund"
ARGUMENTS = {"order": 1, "usd": 20}
DONE = "On their way."

_folder = os.environ.get("COMPARISON_FOLDER", "")


def folder() -> Path:
    """Return the folder that both processes share."""
    return Path(_folder)


def is_child() -> bool:
    """Return whether this is one of the two processes that work."""
    return bool(_folder)


def first_time() -> bool:
    """Return whether this is the process that nobody has answered."""
    return os.environ["COMPARISON_TIME"] == "first"


def called(what: str) -> None:
    """Note a call of the model or of the tool."""
    with (folder() / os.environ["COMPARISON_TIME"]).open("a") as notes:
        notes.write(f"{what}\n")


def run_twice(module: str, *, kept: str) -> None:
    """Run the module in two processes, and print what each called.

    Args:
      module: Its full name.
      kept: Where the open question is kept between them.
    """
    with tempfile.TemporaryDirectory() as where:
        notes: list[list[str]] = []
        for time in ("first", "second"):
            child = {**os.environ, "COMPARISON_FOLDER": where, "COMPARISON_TIME": time}
            process = subprocess.run(
                [sys.executable, "-m", module], env=child, capture_output=True, text=True
            )
            assert process.returncode == 0, process.stderr
            notes.append((Path(where) / time).read_text().split())
    for time, words in zip(("before", "after"), notes, strict=True):
        print(f"calls {time} the answer: model {words.count('model')}, tool {words.count('tool')}")
    print(f"the question is kept in: {kept}")
