"""Call a function for one item in a process of its own, which has seen no other item.

A leak outlives the item that caused it, so running items one after the other in one process would
find it again, or hide it. Instead, processes are forked while nothing runs yet; each of these
*keepers* forks another one for every call, so that each call begins with what the program had been
imported with. A keeper runs nothing itself and has one thread, so that it can be forked safely.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
import tempfile
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, NoReturn

import attrs
import trio

from harness._pickled_errors import reduced
from harness._words import error_in_words
from harness.fanout import fan_out
from harness.policies import BestEffort

_ORDER = struct.Struct("!Q")
_ANSWER = struct.Struct("!iQ")


class Ended:
    """How a call ended. Its error is pickled so that it can be read back, whatever it is."""

    def __init__(self, value: Any, error: BaseException | None) -> None:
        self.value = value
        self.error = error

    def __reduce__(self) -> Any:
        return reduced(type(self), self.value, self.error)


@attrs.frozen(eq=False)
class _Keeper:
    """A process that forks one for each call."""

    pid: int
    orders: int
    """Where the numbers of items are written."""

    answers: int
    """Where it answers: first with a process, then with how the call ended."""


class Keepers:
    """Several keepers, each of which has one call at a time."""

    def __init__(self, keepers: Sequence[_Keeper]) -> None:
        self._free = list(keepers)
        self._line = trio.CapacityLimiter(len(keepers))

    async def call(self, number: int) -> Any:
        """Call the function for an item, in a new process, and return its value.

        Args:
          number: Which of the items.

        Raises:
          Exception: what the function raised.
          TypeError: if its value can't leave the process.
          RuntimeError: if the process ended without an answer.

        Checkpoint: always.

        Cancellation: the process is killed, and so is what it started in its process group.
        """
        async with self._line:
            keeper = self._free.pop()
            try:
                return await _call(keeper, number)
            finally:
                self._free.append(keeper)


async def _call(keeper: _Keeper, number: int) -> Any:
    os.write(keeper.orders, _ORDER.pack(number))
    (pid,) = _ORDER.unpack(await _read(keeper.answers, _ORDER.size, shielded=True))
    try:
        status, size = _ANSWER.unpack(await _read(keeper.answers, _ANSWER.size))
    except trio.Cancelled:
        assert pid > 0  # To kill the group 0 would be to kill this program, and who started it.
        with suppress(ProcessLookupError):  # It has just ended.
            os.killpg(pid, signal.SIGKILL)
        _, size = _ANSWER.unpack(await _read(keeper.answers, _ANSWER.size, shielded=True))
        await _read(keeper.answers, size, shielded=True)
        raise
    pickled = await _read(keeper.answers, size, shielded=True)
    if status or not pickled:
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        raise RuntimeError(f"the process that ran it was ended {how}")
    ended: Ended = pickle.loads(pickled)
    if ended.error is None:
        return ended.value
    if isinstance(ended.error, Exception):
        raise ended.error
    # Such as SystemExit, which would end this program, too.
    raise RuntimeError(f"it raised {error_in_words(ended.error)}")


async def _read(file: int, size: int, *, shielded: bool = False) -> bytes:
    """Read exactly so much from a pipe."""
    parts: list[bytes] = []
    with trio.CancelScope(shield=shielded):
        while size:
            await trio.lowlevel.wait_readable(file)
            parts.append(os.read(file, size))
            if not parts[-1]:
                raise RuntimeError("the process that runs the items one by one has gone")
            size -= len(parts[-1])
    return b"".join(parts)


@contextmanager
def open_keepers(
    function: Callable[[Any], Awaitable[Any]], items: Sequence[Any], *, count: int
) -> Iterator[Keepers]:
    """Fork keepers for the duration of a block. Call it outside trio.

    Args:
      function: What to call.
      items: What to call it with.
      count: How many calls there may be at once.

    Raises:
      RuntimeError: on a system that has no fork.
    """
    if not hasattr(os, "fork"):
        raise RuntimeError(
            "each item is run in a process of its own, by os.fork, which this system lacks; "
            "verify on Linux, macOS or in WSL"
        )
    keepers: list[_Keeper] = []
    try:
        for _ in range(count):
            keepers.append(_fork_keeper(function, items, keepers))
        yield Keepers(keepers)
    finally:
        for keeper in keepers:
            os.close(keeper.orders)
            os.close(keeper.answers)
        for keeper in keepers:
            os.waitpid(keeper.pid, 0)


def _fork_keeper(
    function: Callable[[Any], Awaitable[Any]], items: Sequence[Any], earlier: list[_Keeper]
) -> _Keeper:
    get_orders, orders = os.pipe()
    answers, give_answers = os.pipe()
    pid = _fork()
    if not pid:
        # While anybody holds the other end of its pipe, a keeper doesn't notice that it is done.
        for one in (*earlier, _Keeper(0, orders, answers)):
            os.close(one.orders)
            os.close(one.answers)
        _end_with(lambda: _keep(function, items, get_orders, give_answers))
    os.close(get_orders)
    os.close(give_answers)
    return _Keeper(pid, orders, answers)


def _fork() -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python warns if there are other threads. Those of a thread pool hold no lock here.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _end_with(work: Callable[[], None]) -> NoReturn:
    """Do this as the last thing of a forked process, which must not return into its parent's."""
    status = 1
    try:
        work()
        status = 0
    except BrokenPipeError:
        pass  # Whoever waited for the answer has gone.
    except BaseException as error:
        sys.stderr.write(f"harness: {error_in_words(error)}\n")
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


def _keep(
    function: Callable[[Any], Awaitable[Any]], items: Sequence[Any], orders: int, answers: int
) -> None:
    # Ctrl-C is for whoever gives the orders; a keeper ends when there are no more.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while order := os.read(orders, _ORDER.size):
        (number,) = _ORDER.unpack(order)
        # In a file: a process that is killed half-way leaves half of a file, not of an answer.
        with tempfile.TemporaryFile() as answer:
            pid = os.fork()
            if not pid:
                _end_with(lambda: _run(function, items[number], answer))  # noqa: B023
            _lead_a_group(pid)
            os.write(answers, _ORDER.pack(pid))
            _, status = os.waitpid(pid, 0)
            answer.seek(0)
            pickled = answer.read()
        code = os.waitstatus_to_exitcode(status)
        with open(answers, "wb", closefd=False) as pipe:
            pipe.write(_ANSWER.pack(code, len(pickled)) + pickled)


def _lead_a_group(pid: int) -> None:
    """Put a process into a group of its own, so that all it starts can be killed with it.

    Both sides call it: whoever kills the group finds it, and so does whoever adds to it.
    """
    with suppress(ProcessLookupError, PermissionError):  # It has ended meanwhile.
        os.setpgid(pid, pid)


def _run(function: Callable[[Any], Awaitable[Any]], item: Any, answer: BinaryIO) -> None:
    """Call the function, in a process group of its own, and leave its value in the file."""
    _lead_a_group(os.getpid())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        ended = Ended(trio.run(_value_of, function, item), None)
    except BaseException as error:
        ended = Ended(None, error)
    try:
        pickled = pickle.dumps(ended)
    except Exception as error:
        words = (
            f"the value, a {type(ended.value).__name__}, can't leave the process it was made in "
            f"({error_in_words(error)}); return plain data"
        )
        pickled = pickle.dumps(Ended(None, TypeError(words)))
    answer.write(pickled)
    answer.flush()


async def _value_of(function: Callable[[Any], Awaitable[Any]], item: Any) -> Any:
    """Call it as an item of a fan-out, so that it has a run as in its batch."""
    results = await fan_out(function, [item], limit=1, policy=BestEffort())
    return results[0].value
