"""Programs with reported leaks are found from every seed; their corrections raise no alarm."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import re
import signal
import socket
import sys
import threading
import warnings
from collections import deque
from collections.abc import Mapping
from types import FunctionType
from typing import Any

import pytest
import trio

from harness.errors import ScheduleError
from harness.testing import assert_isolated, explore_schedules
from harness.testing.audit import audit_paths
from tests.scale import scaled, some_of
from tests.testing.corpus import asyncio_leaks, seed_leaks, thread_leaks, trio_leaks
from tests.testing.corpus.leak import INPUTS, Leak, deviations

pytestmark = pytest.mark.slow

SEEDS = scaled(1, full=30)
SCHEDULES = scaled(20, full=300)
PACKAGE = "tests.testing.corpus"
KINDS = {"trio": trio_leaks, "asyncio": asyncio_leaks, "threads": thread_leaks}
LEAKS = [
    *((kind, leak) for kind, module in KINDS.items() for leak in module.LEAKS),
    *seed_leaks.LEAKS,
]

TRIED = some_of(LEAKS, one_in=2)

each_leak = pytest.mark.parametrize(
    ("kind", "leak"), TRIED, ids=[f"{kind}-{leak.wrong.__name__}" for kind, leak in TRIED]
)


def check(kind: str, leak: Leak, *, right: bool, **settings: Any) -> None:
    """Check a program as its users would, in a process that runs nothing else."""
    program = leak.right if right else leak.wrong
    if not leak.takes_input and kind == "threads":
        explore_schedules(**settings)(program)()
        return

    async def main() -> None:
        if leak.takes_input:
            await assert_isolated(program, INPUTS, **settings)
        else:
            await explore_schedules(**settings)(program)()

    if kind == "asyncio":
        asyncio.run(main())
    else:
        trio.run(main)


def plain(value: object, depth: int = 5) -> object:
    """Return what can be compared with what the value is later."""
    if isinstance(value, Mapping):
        return {repr(key): plain(one, depth) for key, one in value.items()}
    if isinstance(value, list | tuple | deque):
        return [plain(one, depth) for one in value]
    if isinstance(value, Leak):
        return value.report
    if isinstance(value, FunctionType):
        return value.__name__, plain(value.__defaults__, depth)
    owner = value if isinstance(value, type) else type(value)
    if depth and owner.__module__.startswith(PACKAGE):
        own = {name: one for name, one in vars(value).items() if not name.startswith("__")}
        return owner, plain(own, depth - 1)
    return value


def programs() -> object:
    """Return the state of all programs of the corpus.

    Without ``__warningregistry__``: Python throws it away itself once the filters have changed.
    """
    return [
        plain({name: one for name, one in vars(module).items() if name[:2] != "__"})
        for module in (*KINDS.values(), seed_leaks)
    ]


def process() -> dict[str, object]:
    """Return what a check must leave as it was."""
    return {
        "programs": programs(),
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "path": list(sys.path),
        "prints": sys.stdout,
        "warnings": list(warnings.filters),
        "random": random.getstate(),
        "threads": [one for one in threading.enumerate() if not one.name.startswith("Trio")],
        "logging": (logging.root.level, list(logging.root.handlers), logging.raiseExceptions),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "sockets": socket.getdefaulttimeout(),
        "garbage": (gc.isenabled(), gc.get_threshold()),
        "tracing": (sys.gettrace(), sys.getprofile()),
    }


def test_there_are_thirty_of_each_kind_and_each_report_is_told_once() -> None:
    for kind, module in KINDS.items():
        assert len(module.LEAKS) >= 30, kind
        assert len({leak.report for leak in module.LEAKS}) == len(module.LEAKS), kind


@each_leak
def test_a_reported_leak_is_found_named_and_proven(kind: str, leak: Leak) -> None:
    for seed in range(SEEDS):
        before = process()
        with pytest.raises(ScheduleError) as caught:
            check(kind, leak, right=False, seed=seed)
        error = caught.value
        assert error.schedules_run <= 500
        assert error.schedule is not None
        assert deviations(error.schedule) <= 3, error.schedule
        names = {re.sub(rf"^{PACKAGE}\.\w+\.", "", path) for path in error.objects}
        assert names, error
        assert names <= set(leak.names), error
        assert ("\nproof: in " in str(error)) == leak.takes_input, error
        assert process() == before


@pytest.mark.parametrize("seed", [0, 26, 28])
def test_what_belongs_together_is_named_though_a_cancel_kept_a_run_from_one(seed: int) -> None:
    """With the last two seeds a run is cancelled between its two writes."""
    with pytest.raises(ScheduleError, match="these objects together") as caught:
        asyncio.run(assert_isolated(asyncio_leaks.rotating_token, INPUTS, seed=seed))
    tado = f"{PACKAGE}.asyncio_leaks.TADO"
    assert set(caught.value.objects) == {f"{tado}.valid", f"{tado}.refresh_token"}
    assert ("not written here" in str(caught.value)) is (seed > 0)


@each_leak
def test_its_correction_raises_no_alarm(kind: str, leak: Leak) -> None:
    before = process()
    check(kind, leak, right=True, schedules=SCHEDULES)
    assert process() == before


def test_an_executor_for_all_raises_no_alarm() -> None:
    isolated = assert_isolated(seed_leaks.bounded, INPUTS, schedules=SCHEDULES)
    assert asyncio.run(isolated).schedules_run == SCHEDULES


def test_the_audit_sees_most_of_what_reading_the_code_can_show() -> None:
    """At least 28 of 32, which is seven of eight, and nothing in a correction."""
    modules = (trio_leaks, asyncio_leaks, seed_leaks)
    found = [one for module in modules for one in audit_paths([str(module.__file__)])]
    symbols = {one.symbol for one in found if not one.maybe}
    seen = [leak.seen for _, leak in LEAKS if leak.seen]
    assert len(seen) >= 32
    assert sum(symbol in symbols for symbol in seen) >= len(seen) * 28 / 32
    assert not [one for one in found if one.function.endswith("_right")]
