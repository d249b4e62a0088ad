"""Interrupt a program at each line of ours in turn, as trio's handler of Ctrl-C would.

trio's handler raises `KeyboardInterrupt` wherever the main thread is, but in code that is protected
from it. Here a trace function raises it at the first line of ours that isn't, then at the second,
and so on until none is left. What must hold each time: the program ends with it, and neither hangs
nor breaks trio; the context is as before.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness

if sys.version_info >= (3, 12):
    pytest.skip("tracing costs a debugger its place there", allow_module_level=True)

_ki = pytest.importorskip("trio._core._ki")

HARNESS = Path(harness.__file__).parent
NOT_TRACED = (str(HARNESS / "runs" / "_yields.py"),)


class CtrlC:
    """Raises at the n-th unprotected line in some of our files."""

    def __init__(self, n: int, places: tuple[str, ...]) -> None:
        self.left = n
        self.places = places
        self.struck: str | None = None

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        filename = frame.f_code.co_filename
        if not filename.startswith(self.places) or filename.startswith(NOT_TRACED):
            return None
        return self.line

    def line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and self.struck is None and not _ki.ki_protection_enabled(frame):
            self.left -= 1
            if self.left < 0:
                self.struck = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self.line


def every_line(
    body: Callable[[], Awaitable[object]],
    places: tuple[str, ...],
    after: Callable[[], None] | None,
    *,
    first: int,
    step: int,
) -> int:
    for n in range(first, 5_000, step):
        boom = CtrlC(n, places)

        async def main(boom: CtrlC = boom) -> None:
            try:
                with trio.fail_after(1_000):
                    sys.settrace(boom)
                    await body()
            finally:
                sys.settrace(None)
                assert harness.current_run_or_none() is None, boom.struck

        try:
            trio.run(main, clock=MockClock(autojump_threshold=0))
        except BaseException as error:
            raised = error
            while isinstance(raised, BaseExceptionGroup) and len(raised.exceptions) == 1:
                (raised,) = raised.exceptions
            if boom.struck is None or type(raised) is not KeyboardInterrupt:
                error.add_note(f"struck at {boom.struck}")
                raise
        if after is not None:
            after()
        if boom.struck is None:
            return n
    raise AssertionError("it has no end")


def strike_each_line(
    body: Callable[[], Awaitable[object]],
    places: Sequence[str],
    after: Callable[[], None] | None = None,
    *,
    first: int = 0,
    step: int = 1,
) -> int:
    """Interrupt ``body`` at each unprotected line of some files; return how many there were.

    Args:
      body: The program; it must run through without the interrupt.
      places: Files and folders below the package, such as ``"runs"``.
      after: Checks what must hold after each.
      first, step: At which lines; by default all.
    """
    before = sys.gettrace()
    with warnings.catch_warnings():
        # A task that is struck before its first step leaves what it was to await.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited")
        try:
            full = tuple(str(HARNESS / place) for place in places)
            return every_line(body, full, after, first=first, step=step)
        finally:
            sys.settrace(before)
            gc.collect()
