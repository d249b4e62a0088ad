"""Keep the failing schedules of a session in a file, and replay them from it.

A nightly run finds a failure with thousands of schedules; whoever mends it wants that one. The file
is JSON: its format and version, and for each test the replay string. The strings themselves say at
which decision the program turns out to be another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict

import pytest

FORMAT = "harness schedules"
VERSION = 1
PROPERTY = "harness schedule"
"""The name of the property of a report that carries what is recorded of a test."""


class Recorded(TypedDict):
    """A test that failed."""

    test: str
    """Its node id."""

    schedule: str
    explore: bool
    """Whether it was explored because of ``--explore``."""

    error: str
    """The first line of what it failed with."""


def recorded(test: str, schedule: str, explore: bool, error: str) -> tuple[str, str]:
    """Return what to add to the properties of a report."""
    entry = Recorded(test=test, schedule=schedule, explore=explore, error=error)
    return PROPERTY, json.dumps(entry)


def save(path: str, properties: Iterable[tuple[str, Any]]) -> int:
    """Write what reports say to a file; return how many failures that is."""
    failures = [json.loads(text) for name, text in properties if name == PROPERTY]
    text = json.dumps({"format": FORMAT, "version": VERSION, "failures": failures}, indent=2)
    Path(path).write_text(f"{text}\n", encoding="utf-8")
    return len(failures)


def load(path: str) -> dict[str, Recorded]:
    """Return what a file holds, by node id.

    Raises:
      pytest.UsageError: if it can't be read, or is of another format or version.
    """
    option = f"--replay-schedules={path}"
    try:
        held = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"{option} can't be read: {error}") from error
    if not isinstance(held, dict) or held.get("format") != FORMAT:
        raise pytest.UsageError(f"{option} is no file that --record-schedules wrote")
    if held.get("version") != VERSION:
        raise pytest.UsageError(
            f"{option} is of version {held.get('version')}, and this harness reads {VERSION}; "
            "record it again"
        )
    try:
        return {
            one["test"]: Recorded(
                test=one["test"],
                schedule=one["schedule"],
                explore=one["explore"],
                error=one["error"],
            )
            for one in held["failures"]
        }
    except (KeyError, TypeError) as error:
        raise pytest.UsageError(f"{option} is damaged ({error!r}); record it again") from error


def choose(path: str, wanted: dict[str, Recorded], items: list[pytest.Item]) -> list[pytest.Item]:
    """Leave only recorded tests among the items, and return the others.

    Raises:
      pytest.UsageError: if a recorded test isn't among them.
    """
    here = {item.nodeid for item in items}
    missing = [test for test in wanted if test not in here]
    if missing:
        raise pytest.UsageError(
            f"--replay-schedules={path} has tests that are not here: {', '.join(missing)}; they "
            "have been renamed since, or are not among the files that were given"
        )
    others = [item for item in items if item.nodeid not in wanted]
    items[:] = [item for item in items if item.nodeid in wanted]
    return others
