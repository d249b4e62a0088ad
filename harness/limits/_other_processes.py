"""Notice another process of this user on this machine with a limiter of the same name.

Each process keeps within the whole limit by itself, so two of them may use twice of it. They don't
share the limit; they are told.

Each holds a shared lock on a file named after the limiter, for as long as its ``trio.run``. Whoever
can't have it alone for a moment isn't the only one. The kernel gives up the lock of a process that
dies, however it dies. It is taken once per run and name, and costs some 50 µs. A virtual clock
means that nothing is really sent, so nothing is locked.
"""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
import weakref

import attrs
import trio

from harness.errors import HarnessWarning

_ours: trio.lowlevel.RunVar[dict[str, _Held]] = trio.lowlevel.RunVar("harness.limits.names")


@attrs.define(eq=False, weakref_slot=True)
class _Held:
    """A name that this run has claimed; the lock goes with it."""

    name: str


def notice_others(name: str) -> None:
    """Claim ``name`` for this ``trio.run``, and warn if another process has claimed it.

    Args:
      name: The limiter's name.
    """
    other = other_process(name)
    if other is not None:
        warnings.warn(
            f"process {other} has a limiter named {name!r}, too; each keeps within the whole "
            "limit by itself, so together they may use it twice: give each its share with "
            "headroom=, or each its own name if they use different accounts",
            HarnessWarning,
            stacklevel=3,
        )


def other_process(name: str) -> str | None:
    """Claim ``name`` for this ``trio.run``; return which other process has, the first time."""
    if sys.platform == "win32" or not is_real(trio.lowlevel.current_clock()):
        return None
    try:
        ours = _ours.get()
    except LookupError:
        ours = {}
        _ours.set(ours)
    if name in ours:
        return None
    held = ours[name] = _Held(name)
    try:
        return _claim(name, held)
    except OSError:  # No such folder, no room: then nobody is told.
        return None


def is_real(clock: trio.abc.Clock) -> bool:
    """Return whether a clock is the machine's, and not a test's."""
    return type(clock).__name__ == "SystemClock"


if sys.platform == "win32":

    def _claim(name: str, held: _Held) -> str | None:
        return None

else:
    import fcntl

    def _claim(name: str, held: _Held) -> str | None:
        """Hold the lock of ``name`` while ``held`` exists; return who else does, or ``None``."""
        fd = os.open(_path_of(name), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        weakref.finalize(held, _release, fd)
        other = None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.pread(fd, 20, 0).decode("ascii", "replace") or "of yours"
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        process = str(os.getpid())
        os.pwrite(fd, process.encode(), 0)
        os.ftruncate(fd, len(process))
        # Another run of this process, or an earlier one that wasn't collected yet.
        return None if other == process else other

    def _release(fd: int) -> None:
        # Closing isn't enough: a forked child that still has the file open would keep the lock.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)

    def _path_of(name: str) -> str:
        root = os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("TMPDIR") or "/tmp"
        folder = os.path.join(root, f"harness-{os.getuid()}")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if os.lstat(folder).st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to somebody else")
        # A name may have any characters, and be of any length.
        return os.path.join(folder, f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.limiter")
