"""Call a function for one item in a process of its own, which has seen no other item.

All attempts at an item are made in that process, in one run of trio, as in a batch: what an attempt
leaves behind, such as the state of a random generator, the next one finds.

A leak outlives the item that caused it, so running items one after the other in one process would
find it again, or hide it. Instead, processes are forked while nothing runs yet; each of these
*keepers* forks another one for every item, so that each begins with what the program had been
imported with. A keeper runs nothing itself and has one thread, so that it can be forked safely.
While the process that it forked is alive, that one reads the orders and writes the answers.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
import tempfile
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, BinaryIO, NoReturn, cast

import attrs
import trio

from harness._pickled_errors import reduced
from harness._words import error_in_words
from harness.fanout import fan_out
from harness.policies import BestEffort

_ORDER = struct.Struct("!cQ")
"""An order, and the number of an item."""

_ANSWER = struct.Struct("!?iQ")
"""Whether the process is alive; its exit code; its id at first, then the size of an answer."""

_START, _AGAIN, _CANCEL, _END = b"s", b"a", b"c", b"e"

_GRACE_SECONDS = 0.5
"""How long a process has to obey before it is killed. One that blocks never does."""


class Ended:
    """How a call ended. Its error is pickled so that it can be read back, whatever it is."""

    def __init__(self, value: Any, error: BaseException | None) -> None:
        self.value = value
        self.error = error

    def __reduce__(self) -> Any:
        return reduced(type(self), self.value, self.error)


@attrs.frozen(eq=False)
class _Keeper:
    """A process that forks one for each item."""

    pid: int
    orders: int
    """Where orders are written."""

    answers: int
    """Where it answers: first with a process, then with how calls and the process ended."""

    file: BinaryIO
    """Has the value or the error: who is killed half-way leaves half of a file, not of an answer.
    """


class Keepers:
    """Several keepers, each of which has one item at a time."""

    def __init__(self, keepers: Sequence[_Keeper]) -> None:
        self._free = list(keepers)
        self._line = trio.CapacityLimiter(len(keepers))

    @asynccontextmanager
    async def alone(self, number: int) -> AsyncIterator[Callable[[Any], Awaitable[Any]]]:
        """Lend what calls the function for an item, each time in the same new process.

        The calls are made one after the other. Each returns the function's value, or raises what
        it raised; a TypeError, if the value can't leave the process; or a RuntimeError, if the
        process ended without an answer. Then the next call is made in another one. A call that is
        cancelled is cancelled in its process, too, which is killed unless it obeys soon.

        Args:
          number: Which of the items.

        Checkpoint: always.

        Cancellation: the process is ended, and killed if need be, as is what it started in its
        process group.
        """
        async with self._line:
            keeper = self._free.pop()
            process = _Process(keeper, number)
            try:
                yield process.call
            finally:
                with trio.CancelScope(shield=True):
                    await process.end()
                self._free.append(keeper)


class _Process:
    """The process of one item, forked when it is called first, and again if it has ended."""

    def __init__(self, keeper: _Keeper, number: int) -> None:
        self._keeper = keeper
        self._number = number
        self._pid: int | None = None

    async def call(self, _: Any) -> Any:
        status = size = 0
        if self._pid is None:
            self._order(_START)
            with trio.CancelScope(shield=True):
                status, size = await self._answer()
            self._pid = size or None
        else:
            self._order(_AGAIN)
        if self._pid is not None:
            try:
                status, size = await self._answer()
            except trio.Cancelled:
                await self._obeyed(_CANCEL)
                raise
        if self._pid is None:
            how = f"by signal {-status}" if status < 0 else f"with status {status}"
            raise RuntimeError(f"the process that ran it was ended {how}")
        ended: Ended = pickle.loads(os.pread(self._keeper.file.fileno(), size, 0))
        if ended.error is None:
            return ended.value
        if isinstance(ended.error, Exception):
            raise ended.error
        # Such as SystemExit, which would end this program, too.
        raise RuntimeError(f"it raised {error_in_words(ended.error)}")

    async def end(self) -> None:
        if self._pid is not None:
            await self._obeyed(_END)

    async def _obeyed(self, order: bytes) -> None:
        """Give an order, and kill the process unless it answers soon."""
        self._order(order)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _GRACE_SECONDS):
            await self._answer()
            return
        assert self._pid  # To kill the group 0 would be to kill this program, and who started it.
        with suppress(ProcessLookupError):  # It has just ended.
            os.killpg(self._pid, signal.SIGKILL)
        with trio.CancelScope(shield=True):
            while self._pid is not None:
                await self._answer()

    def _order(self, order: bytes) -> None:
        os.write(self._keeper.orders, _ORDER.pack(order, self._number))

    async def _answer(self) -> tuple[int, int]:
        await trio.lowlevel.wait_readable(self._keeper.answers)
        # It was written at once, so it is there as a whole.
        answer = os.read(self._keeper.answers, _ANSWER.size)
        if not answer:
            raise RuntimeError("the process that runs the items one by one has gone")
        is_alive, status, size = _ANSWER.unpack(answer)
        if not is_alive:
            self._pid = None
        return status, size


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
            keeper.file.close()
        for keeper in keepers:
            os.waitpid(keeper.pid, 0)


def _fork_keeper(
    function: Callable[[Any], Awaitable[Any]], items: Sequence[Any], earlier: list[_Keeper]
) -> _Keeper:
    get_orders, orders = os.pipe()
    answers, give_answers = os.pipe()
    file = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115  # Its keeper's end closes it.
    pid = _fork()
    if not pid:
        # While anybody holds the other end of its pipe, a keeper doesn't notice that it is done.
        for one in (*earlier, _Keeper(0, orders, answers, file)):
            os.close(one.orders)
            os.close(one.answers)
        _end_with(lambda: _keep(function, items, get_orders, give_answers, file))
    os.close(get_orders)
    os.close(give_answers)
    return _Keeper(pid, orders, answers, file)


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
    function: Callable[[Any], Awaitable[Any]],
    items: Sequence[Any],
    orders: int,
    answers: int,
    file: BinaryIO,
) -> None:
    # Ctrl-C is for whoever gives the orders; a keeper ends when there are no more.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while order := os.read(orders, _ORDER.size):
        what, number = _ORDER.unpack(order)
        if what != _START:
            continue  # It was for a process that has just ended.
        pid = os.fork()
        if not pid:
            _end_with(lambda: _run(function, items[number], orders, answers, file))  # noqa: B023
        _lead_a_group(pid)
        _, status = os.waitpid(pid, 0)
        os.write(answers, _ANSWER.pack(False, os.waitstatus_to_exitcode(status), 0))


def _lead_a_group(pid: int) -> None:
    """Put a process into a group of its own, so that all it starts can be killed with it.

    Both sides call it: whoever kills the group finds it, and so does whoever adds to it.
    """
    with suppress(ProcessLookupError, PermissionError):  # It has ended meanwhile.
        os.setpgid(pid, pid)


def _run(
    function: Callable[[Any], Awaitable[Any]], item: Any, orders: int, answers: int, file: BinaryIO
) -> None:
    """Make the attempts at an item, in a process group of its own."""
    _lead_a_group(os.getpid())
    # Its keeper might tell it after its first answer.
    os.write(answers, _ANSWER.pack(True, 0, os.getpid()))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    trio.run(_attempts, function, item, orders, answers, file)


async def _attempts(
    function: Callable[[Any], Awaitable[Any]], item: Any, orders: int, answers: int, file: BinaryIO
) -> None:
    order = _START
    while order in (_START, _AGAIN):
        ended = Ended(None, None)  # Nobody reads it of a call that was cancelled.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_if_told, orders, nursery.cancel_scope)
            ended = await _ended(function, item)
            nursery.cancel_scope.cancel()
        sys.stdout.flush()
        sys.stderr.flush()
        _write(ended, file)
        os.write(answers, _ANSWER.pack(True, 0, file.tell()))
        while (order := await _next_order(orders)) == _CANCEL:
            pass  # It came when the call had just ended.


async def _cancel_if_told(orders: int, scope: trio.CancelScope) -> None:
    await _next_order(orders)
    scope.cancel()


async def _next_order(orders: int) -> bytes:
    await trio.lowlevel.wait_readable(orders)
    order = os.read(orders, _ORDER.size)
    return order[:1] or _END  # Whoever gave the orders has gone.


def _write(ended: Ended, file: BinaryIO) -> None:
    try:
        pickled = pickle.dumps(ended)
    except Exception as error:
        words = (
            f"the value, a {type(ended.value).__name__}, can't leave the process it was made in "
            f"({error_in_words(error)}); return plain data"
        )
        pickled = pickle.dumps(Ended(None, TypeError(words)))
    file.seek(0)
    file.truncate()
    file.write(pickled)
    file.flush()


async def _ended(function: Callable[[Any], Awaitable[Any]], item: Any) -> Ended:
    """Call it as an item of a fan-out, so that it has a run as in its batch."""
    try:
        results = await fan_out(function, [item], limit=1, policy=BestEffort(), name="alone")
        return Ended(results[0].value, None)
    except trio.Cancelled:
        raise
    except BaseException as error:
        return Ended(None, error)
