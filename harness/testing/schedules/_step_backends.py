"""Pick how steps are controlled: the fast way if it works with this trio.

What works is tried, not guessed from a version: the first time anybody asks, a small program with a
known answer runs under each way until one gives it.
"""

from __future__ import annotations

import functools
import threading
from contextvars import Context

import trio

from harness.testing.schedules._by_hook import HookBackend
from harness.testing.schedules._by_trampoline import TrampolineBackend
from harness.testing.schedules._choosers import Planned
from harness.testing.schedules._controlled import run_controlled
from harness.testing.schedules._step_backend import StepBackend

BACKENDS: tuple[StepBackend, ...] = (HookBackend(), TrampolineBackend())
"""All the ways, best first."""

_KNOWN = {
    (): "aabbcc",
    ((1, 1),): "abbacc",
    ((0, 2), (1, 1)): "caabbc",
}
"""What the self-test's program writes, by the choices made."""


def backend() -> StepBackend:
    """Return the first way that works with this trio.

    Raises:
      RuntimeError: if none does.
    """
    return _tried()


@functools.cache
def _tried() -> StepBackend:
    found = [candidate for candidate in BACKENDS if works(candidate)]
    if not found:
        raise RuntimeError(
            f"the steps of tasks can't be controlled with trio {trio.__version__}: neither of "
            f"the ways that this harness knows ({', '.join(way.name for way in BACKENDS)}) works"
        )
    return found[0]


def works(candidate: StepBackend) -> bool:
    """Return whether the self-test's program does as it is told."""
    results: list[bool] = []

    def try_it() -> None:
        for choices, expected in _KNOWN.items():
            try:
                run = run_controlled(
                    _write, Planned(dict(choices)), backend=candidate, context=Context()
                )
                results.append(run.outcome.unwrap() == expected)
            except Exception:
                results.append(False)

    # In a thread of its own: the caller's may have an event loop.
    thread = threading.Thread(target=try_it, name="harness: tries to control steps", daemon=True)
    thread.start()
    thread.join(timeout=10)
    return len(results) == len(_KNOWN) and all(results)


async def _write() -> str:
    written: list[str] = []

    async def twice(letter: str) -> None:
        written.append(letter)
        await trio.lowlevel.checkpoint()
        written.append(letter)

    async with trio.open_nursery() as nursery:
        for letter in "abc":
            nursery.start_soon(twice, letter)
    return "".join(written)
