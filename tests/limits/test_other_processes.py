"""A second process with a limiter of the same name is told, and nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from harness.errors import HarnessWarning
from harness.limits import Limiter

pytestmark = [
    pytest.mark.real_clock,
    pytest.mark.skipif(sys.platform == "win32", reason="nobody is told there"),
]

OTHER = """
    import sys, trio
    from harness.limits import Limiter

    async def main():
        async with Limiter(sys.argv[1], requests_per_minute=60).reserve():
            print("uses it", flush=True)
            await trio.to_thread.run_sync(sys.stdin.readline)

    trio.run(main)
"""


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@contextmanager
def other_process(name: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OTHER), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "uses it\n"
        try:
            yield process
        finally:
            process.kill()


def use(*names: str | None, virtual: bool = False) -> list[str]:
    """Use limiters in a run of their own; return what was told."""

    async def main() -> None:
        for name in names:
            async with Limiter(name, requests_per_minute=60).reserve():
                pass

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trio.run(main, clock=MockClock() if virtual else None)
    assert all(one.category is HarnessWarning for one in told)
    return [str(one.message) for one in told]


def test_another_process_with_the_name_is_told_of_once() -> None:
    with other_process("an account/ü") as process:
        (told,) = use("an account/ü", "an account/ü", "another")
        assert told.startswith(f"process {process.pid} has a limiter named 'an account/ü', too;")


def test_a_process_that_was_killed_holds_no_name() -> None:
    with other_process("model") as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert use("model") == []


def test_those_who_were_told_count_as_well() -> None:
    with other_process("model") as first, other_process("model") as second:
        first.kill()
        first.wait()
        (told,) = use("model")
        assert f"process {second.pid} " in told


def test_one_process_is_never_told_of_itself() -> None:
    assert use("model", "model") == []
    assert use("model") == []


def test_without_a_name_or_on_a_virtual_clock_nothing_is_locked(runtime_folder: Path) -> None:
    assert use(None) == []
    assert use("model", virtual=True) == []
    assert list(runtime_folder.iterdir()) == []


def test_without_a_folder_nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/dev/null")
    assert use("model") == []
