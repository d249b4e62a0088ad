"""Look at a limiter that processes share from outside, without holding any of them up.

Of a file, whatever is read was true at one moment: the numbers are read until nobody has replaced
them meanwhile. Who is alive is asked of the kernel, for each process by itself.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import attrs

from harness.limits._across_processes._shared_file import (
    BLOCK_SIZE,
    BLOCKS,
    CELLS,
    HEADER_BYTES,
    MEMBER_NUMBERS,
    MEMBERS,
    MOST_MEMBERS,
    header_in,
)
from harness.limits._across_processes._shared_grants import (
    HEALTH_NUMBERS,
    PAUSE_NUMBERS,
    WINDOW_NUMBERS,
    machine_clock,
)
from harness.limits._across_processes._shared_window import RING, SharedWindow
from harness.limits._dimension_meter import METER_NUMBERS

if sys.platform != "win32":
    import fcntl

_TRIES = 100
_SECONDS_PER_TRY = 0.001


@attrs.frozen(kw_only=True)
class SeenLimit:
    """A limit, as the processes stated it."""

    dimension: str
    amount: float
    period: float
    """In how many seconds."""
    used: float | None
    """What is used of it now; None if that can't be told from outside."""


@attrs.frozen(kw_only=True)
class Holder:
    """A process that uses the limiter."""

    process: str
    """Its number, or what a server knows it by."""
    is_alive: bool
    """If it isn't, its places are given back as soon as another one looks."""
    places: int
    """How many reservations it holds."""


@attrs.frozen(kw_only=True)
class SeenLimiter:
    """What is known of a limiter that processes share."""

    name: str
    limits: tuple[SeenLimit, ...]
    concurrent: int | None
    headroom: float
    in_flight: int
    paused_seconds: float | None
    """For how long nothing will be granted; 0: it isn't paused; None: that can't be told."""
    holders: tuple[Holder, ...]
    note: str = ""
    """What else is to be known, in words."""


def limiter_in(path: Path) -> SeenLimiter:
    """Look at the file of a limiter.

    Raises:
      OSError: if it can't be read.
      ValueError: if it is another kind of file, or an empty one.
      RuntimeError: on Windows, where no such files are.
    """
    if sys.platform == "win32":
        raise RuntimeError("a FleetLimiter over a file doesn't exist on Windows")
    fd = os.open(path, os.O_RDONLY)
    try:
        is_locked = not _can_be_locked(fd)
        try:
            header = header_in(os.pread(fd, HEADER_BYTES, 0), path)
        except ValueError as error:
            raise ValueError("it is neither a journal nor the file of a limiter") from error
        if header is None:
            raise ValueError("it is empty, or no limiter has used it yet")
        return _seen(header, *_numbers_in(fd), prefix=_lock_prefix(path, fd), is_locked=is_locked)
    finally:
        os.close(fd)


def _seen(
    header: dict[str, Any], numbers: memoryview[float], newer: int, *, prefix: str, is_locked: bool
) -> SeenLimiter:
    rates: list[tuple[str, float, float]] = header["rates"]
    places, in_flight, _, _, _, closed_until, *_ = numbers[newer + 1 :]
    tells_time = header["clock"] == machine_clock()
    now = time.monotonic()
    notes = []
    if is_locked:
        notes.append("a process keeps it locked, probably because it was stopped")
    if not tells_time:
        notes.append(
            "its times are of a test's clock"
            if header["clock"].startswith("virtual")
            else "its times are from before this machine was started"
        )
    meters = newer + 1 + 2 + PAUSE_NUMBERS + HEALTH_NUMBERS
    windows = meters + METER_NUMBERS * len(rates)
    each = 2 if header["headroom"] < 1 else 1
    limits = []
    for index, (dimension, _, period) in enumerate(rates):
        amount = numbers[meters + METER_NUMBERS * index]  # It may have been changed since.
        window = SharedWindow(
            limit=amount,
            period=period,
            shift=0.0,
            memory=numbers,
            start=CELLS + index * each * 2 * RING,
            poke=_unchanged,
        )
        start = windows + WINDOW_NUMBERS * each * index
        window.restore(tuple(numbers[start : start + WINDOW_NUMBERS]))
        used = window.used(now) if tells_time else None
        limits.append(SeenLimit(dimension=dimension, amount=amount, period=period, used=used))
    return SeenLimiter(
        name=header["limiter"],
        limits=tuple(limits),
        concurrent=None if places < 0 else int(places),
        headroom=header["headroom"],
        in_flight=int(in_flight),
        paused_seconds=max(0.0, closed_until - now) if tells_time else None,
        holders=tuple(_holders(numbers, prefix)),
        note="; ".join(notes),
    )


def _unchanged(index: int, number: float) -> None:
    """Change nothing: whoever looks has a copy."""


def _numbers_in(fd: int) -> tuple[memoryview[float], int]:
    """Return the file's numbers, and where the newer block begins."""
    while True:  # Ends: a commit takes longer than a look at its number.
        numbers = _doubles(fd, os.fstat(fd).st_size - HEADER_BYTES)
        newer = _newer(numbers)
        if _newer(_doubles(fd, 8 * MEMBERS)) == newer:
            return numbers, newer


def _doubles(fd: int, size: int) -> memoryview[float]:
    return memoryview(os.pread(fd, size, HEADER_BYTES)).cast("d")


def _newer(numbers: memoryview[float]) -> int:
    second = BLOCKS + BLOCK_SIZE
    return second if numbers[second] > numbers[BLOCKS] else BLOCKS


def _holders(numbers: memoryview[float], prefix: str) -> list[Holder]:
    found = []
    for member in range(MOST_MEMBERS):
        start = MEMBERS + member * MEMBER_NUMBERS
        if pid := int(numbers[start]):
            found.append(
                Holder(
                    process=str(pid),
                    is_alive=_is_held(f"{prefix}{member}"),
                    places=int(numbers[start + 1]),
                )
            )
    return found


def _lock_prefix(path: Path, fd: int) -> str:
    return f"{path.absolute()}.{os.fstat(fd).st_ino}."


def _is_held(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _can_be_locked(fd, tries=1)
    finally:
        os.close(fd)


def _can_be_locked(fd: int, *, tries: int = _TRIES) -> bool:
    """Return whether nobody has the lock; processes have it for moments only."""
    for left in reversed(range(tries)):
        try:
            # Shared, so that two who look don't take each other for a process.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if left:
                time.sleep(_SECONDS_PER_TRY)
        else:
            fcntl.flock(fd, fcntl.LOCK_UN)
            return True
    return False
