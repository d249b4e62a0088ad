"""The one thread that writes a journal, and group commit.

Records go into a queue. The thread takes everything in the queue, writes it in one transaction, and
wakes trio once with all that has become durable. So one commit serves everything that arrived
during the last one: nobody waits for a batch to fill, and under load a commit holds hundreds of
records.

The thread is no task and belongs to no run. It is a plain thread, not one from trio's pool: it is
held for as long as the journal is open, and must not take a place from tools that give it back.

If a write fails, everyone waiting is told, and so is everyone after them: the file may be full or
gone, and nothing later may be recorded while something before it is not.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import attrs
import outcome
import trio

from harness._clock_hold import ClockHold
from harness._events import happened
from harness.errors import JournalClosedError, JournalError
from harness.journal._backend import Backend, Rows
from harness.journal._kept_bytes import CHARACTERS_AT_LEAST, keep_apart
from harness.journal._schema import COLUMNS
from harness.journal._schema import characters as characters_in

_WITH_BYTES = tuple(
    (table, COLUMNS[table].index(name))
    for table, name in (
        ("harness_endings", "value"),
        ("harness_inputs", "input"),
        ("harness_steps", "value"),
    )
)
"""The tables with texts that may have large bytes in them, and the places of these in a row."""

GROUP_ROWS_AT_MOST = 4_096
"""Rows in one transaction; this bounds how long the first waits for the last."""

GROUP_CHARACTERS_AT_MOST = 1 << 24
"""Characters of values in one transaction before its last record: 64 MB at most. Servers take a
gigabyte in one message, and all of it is in memory twice."""

LINGER_SECONDS = 200e-6
"""How long the thread polls for the next record before it sleeps. When a few tasks record one thing
after another, the next comes within 150 µs; a sleeping thread notices it 40 µs later."""

CLOSE_SECONDS_AT_MOST = 60.0
"""How long closing waits for the disk."""

T = TypeVar("T")

Acknowledge = Callable[[BaseException | None], None]


@attrs.frozen
class WriterJob:
    """Something the thread does with the database, between two groups."""

    run: Callable[[Backend], Any]
    then: Callable[[outcome.Outcome[Any]], None]
    """Called in trio's thread with the outcome."""


@attrs.frozen
class Shared:
    """A question whose answer changes the database; many are answered in one transaction."""

    answer: Callable[[Backend, list[Any]], list[outcome.Outcome[Any]]]
    asked: Any
    characters: int
    """How long what it writes is."""
    then: Callable[[outcome.Outcome[Any]], None]
    """Called in trio's thread with the outcome."""


@attrs.frozen
class Beat:
    """Something the thread does again and again, between two groups."""

    seconds: float
    """How long after the last time."""
    run: Callable[[Backend], object]
    then: Callable[[BaseException | None], object]
    """Called in trio's thread each time, with the error that ends the recording."""


_Queued = tuple[Rows, Acknowledge] | Shared | WriterJob | None
"""A record, a question, a job, or the end."""


class Writer:
    """Owns a backend from the first record to the last. Used in one ``trio.run``."""

    def __init__(self, backend: Backend, beat: Beat | None = None) -> None:
        self._backend = backend
        self._beat = beat
        self._next_beat = time.monotonic()
        self._token = trio.lowlevel.current_trio_token()
        self._process = os.getpid()
        self._queue: queue.SimpleQueue[_Queued] = queue.SimpleQueue()
        self._broken: BaseException | None = None
        """Why nothing more can be recorded. Set by the thread, read by both."""
        self.kept_bytes: set[str] = set()
        """Digests of large bytes that this session has kept. For the thread."""
        self._lingers = False
        """Whether the thread polls before it sleeps: the last record came soon."""
        self._closed = False
        self._ended = trio.Event()
        self._hold = ClockHold()
        self._thread = threading.Thread(
            target=self._work, name=f"harness journal {backend.name}", daemon=True
        )
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether the journal's block was left; then all that was recorded is durable."""
        return self._closed

    # In trio's thread -------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse use outside the trio run and the process it was opened in.

        Raises:
          JournalClosedError: if this is outside them, or the journal's block was left.
          JournalError: if an earlier write failed.
        """
        if os.getpid() != self._process:
            raise JournalClosedError(
                f"the journal {self._backend.name!r} was opened by process {self._process}, and "
                f"this is a fork of it ({os.getpid()}); open it again here, once the other "
                "process has closed it"
            )
        if self._closed:
            raise JournalClosedError(
                f"the journal {self._backend.name!r} was used outside its block; use it inside "
                "`async with open_journal(...)`"
            )
        if trio.lowlevel.current_trio_token() is not self._token:
            raise JournalClosedError(
                f"the journal {self._backend.name!r} was opened in another trio.run; open one in "
                "each"
            )
        if self._broken is not None:
            raise _again(self._broken)

    def record(self, rows: Rows, then: Acknowledge) -> None:
        """Write rows; ``then`` is called in trio's thread once they are durable, or can't be.

        Call `check` first; it isn't repeated here, as its cost per record would show.
        """
        self._hold.begin()
        self._queue.put((rows, then))

    async def recorded(self, rows: Rows) -> None:
        """Write rows, and return once they are durable. Call `check` first.

        Cancellation: the rows are written anyway; only the wait ends.
        """
        wait = _Wait()
        self.record(rows, wait.acknowledge)
        await wait.until_acknowledged()

    async def ask(self, job: Callable[[Backend], T]) -> T:
        """Let the thread do something with the database, after everything recorded before.

        Cancellation: the job is done anyway; only the wait ends.
        """
        return await self._answered(lambda then: WriterJob(job, then))

    def do(self, job: Callable[[Backend], T], then: Callable[[outcome.Outcome[T]], None]) -> None:
        """Let the thread do something; ``then`` is called in trio's thread. Call `check` first."""
        self._hold.begin()
        self._queue.put(WriterJob(job, then))

    async def share(
        self,
        answer: Callable[[Backend, list[Any]], list[outcome.Outcome[Any]]],
        asked: Any,
        *,
        characters: int = 0,
    ) -> Any:
        """Ask something that changes the database, in one transaction with other questions.

        Args:
          answer: Called in the thread with everything asked meanwhile, to answer it all in one
            transaction. The same function whoever asks.
          asked: The question.
          characters: How long what it writes is.

        Cancellation: it is done anyway; only the wait ends.
        """
        return await self._answered(lambda then: Shared(answer, asked, characters, then))

    async def _answered(
        self, queued: Callable[[Callable[[outcome.Outcome[T]], None]], Shared | WriterJob]
    ) -> T:
        self.check()
        done: list[outcome.Outcome[T]] = []
        wait = _Wait()

        def then(result: outcome.Outcome[T]) -> None:
            done.append(result)
            wait.acknowledge(None)

        self._hold.begin()
        self._queue.put(queued(then))
        await wait.until_acknowledged()
        return done[0].unwrap()

    async def flush(self) -> None:
        """Wait until everything recorded before is durable.

        Raises:
          JournalError: if it can't be made durable.
        """
        await self.ask(lambda _: None)
        if self._broken is not None:
            raise _again(self._broken)

    async def close(self) -> None:
        """Write what is in the queue, end the thread, and close the database.

        Raises:
          JournalError: if something could not be written, or the disk doesn't answer in time.

        Cancellation: shielded for up to a minute; nothing recorded is lost.
        """
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        self._hold.begin()
        self._queue.put(None)
        with trio.move_on_after(CLOSE_SECONDS_AT_MOST) as scope:
            scope.shield = True  # The oldest trio supported has no such argument.
            await happened(self._ended)
        if not self._ended.is_set():
            raise JournalError(
                f"the disk didn't take the last records of the journal {self._backend.name!r} "
                f"within {CLOSE_SECONDS_AT_MOST:g} s; what was acknowledged before stays"
            )
        self._thread.join()  # It has reported its end, and has nothing more to do.
        if self._broken is not None:
            raise _again(self._broken)

    def _acknowledge(self, group: list[Acknowledge], error: BaseException | None) -> None:
        self._hold.end(len(group))
        for then in group:
            then(error)

    def _finish(self, answered: list[tuple[Shared | WriterJob, outcome.Outcome[Any]]]) -> None:
        self._hold.end(len(answered))
        for one, result in answered:
            one.then(result)

    def _end(self) -> None:
        self._hold.end(1)
        self._ended.set()

    # In the thread ----------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            self._beat_if_due()
            following = self._next()
            if following == "beat":
                continue
            is_of_group = isinstance(following, (tuple, Shared))
            after = self._write_group(following) if is_of_group else following
            if isinstance(after, WriterJob):
                self._do(after)
            elif after is None:
                break
        try:
            self._backend.close()
        except Exception as error:
            self._broken = self._broken or error
        self._tell(self._end)

    def _next(self) -> _Queued | Literal["beat"]:
        """Wait for what comes next, polling first if the last one came within the polling time."""
        awake_until = time.perf_counter() + LINGER_SECONDS
        while self._lingers:
            try:
                return self._queue.get_nowait()
            except queue.Empty:
                time.sleep(0)  # Releases the GIL for trio's thread.
            self._lingers = time.perf_counter() < awake_until
        left = None if self._beat is None else max(0.0, self._next_beat - time.monotonic())
        try:
            following = self._queue.get(timeout=left)
        except queue.Empty:
            return "beat"
        self._lingers = time.perf_counter() < awake_until
        return following

    def _beat_if_due(self) -> None:
        beat = self._beat
        if beat is None or self._broken is not None or time.monotonic() < self._next_beat:
            return
        try:
            beat.run(self._backend)
        except BaseException as error:
            self._broken = error
        self._next_beat = time.monotonic() + beat.seconds
        self._tell(beat.then, self._broken)

    def _write_group(self, first: _Queued) -> WriterJob | tuple[()] | None:
        """Write everything in the queue up to a job; return that job.

        Records go in one transaction, questions in another. Nobody has been told of anything in the
        queue yet, so nothing in it depends on anything else in it.

        Returns:
          The job that comes next, None if the end comes next, ``()`` if the queue was empty.
        """
        together: dict[str, list[Any]] = {table: [] for table in COLUMNS}
        group: list[Acknowledge] = []
        shared: list[Shared] = []
        count = characters = 0
        following: _Queued = first
        after: WriterJob | tuple[()] | None = ()
        while True:
            if isinstance(following, tuple):
                for table, values in following[0].items():
                    together[table] += values
                    count += len(values) // len(COLUMNS[table])
                    characters += characters_in(table, values)
                group.append(following[1])
            elif isinstance(following, Shared):
                shared.append(following)
                count += 1
                characters += following.characters
            else:
                after = following
                break
            if count >= GROUP_ROWS_AT_MOST or characters >= GROUP_CHARACTERS_AT_MOST:
                break
            try:
                following = self._queue.get_nowait()
            except queue.Empty:
                break
        if group:
            if self._broken is None:
                try:
                    for table, place in _WITH_BYTES:
                        self._keep_bytes(together[table], place, len(COLUMNS[table]))
                    self._backend.write(together)
                except BaseException as error:
                    self._broken = error
            self._tell(self._acknowledge, group, self._broken)
        if shared:
            self._tell(self._finish, list(zip(shared, self._answers(shared), strict=True)))
        return after

    def _keep_bytes(self, values: list[Any], place: int, width: int) -> None:
        """Keep large bytes once, before what refers to them is written."""
        for at in range(place, len(values), width):
            text = values[at]
            if text is not None and len(text) >= CHARACTERS_AT_LEAST:
                values[at] = keep_apart(self._backend, text, self.kept_bytes)

    def _answers(self, shared: list[Shared]) -> list[outcome.Outcome[Any]]:
        """Answer all, with one transaction for those that one function answers."""
        answers: dict[int, outcome.Outcome[Any]] = {}
        for answer in dict.fromkeys(one.answer for one in shared):
            mine = [at for at, one in enumerate(shared) if one.answer == answer]
            asked = [shared[at].asked for at in mine]
            try:
                if self._broken is not None:
                    raise self._broken
                answers.update(zip(mine, answer(self._backend, asked), strict=True))
            except BaseException as error:
                answers.update((at, outcome.Error(_again(error))) for at in mine)
        return [answers[at] for at in range(len(shared))]

    def _do(self, job: WriterJob) -> None:
        if self._broken is not None:
            result: outcome.Outcome[Any] = outcome.Error(_again(self._broken))
        else:
            result = outcome.capture(job.run, self._backend)
        self._tell(self._finish, [(job, result)])

    def _tell(self, function: Callable[..., object], *args: Any) -> None:
        try:
            self._token.run_sync_soon(function, *args)
        except trio.RunFinishedError:
            pass  # Trio ended without leaving the block: there is nobody to tell.


class _Wait:
    """One task that waits until it is told."""

    __slots__ = ("_error", "_task")

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None
        self._error: BaseException | None = None

    def acknowledge(self, error: BaseException | None) -> None:
        self._error = error
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    async def until_acknowledged(self) -> None:
        _waiting_for = "the disk"
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)
        if self._error is not None:
            raise _again(self._error)

    def _abort(self, _: Callable[[], None]) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


def _again(error: BaseException) -> BaseException:
    """Return an error like the first, to raise in one task of many.

    Raising one object in many tasks would pile up their tracebacks on it.
    """
    copy = (
        type(error)(*error.args)
        if isinstance(error, JournalError)
        else JournalError(f"the journal's writer failed with {type(error).__name__}: {error}")
    )
    copy.__cause__ = error
    return copy
