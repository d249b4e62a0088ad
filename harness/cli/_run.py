"""Run a batch: one fan-out between a source of records and a file of lines.

Everything meets here: the source feeds the fan-out, each result becomes a line as soon as its item
ends, signals end it early. Whatever ends a batch (its input, its output, a signal, a failed item),
every item that ended is in the output before this returns.
"""

from __future__ import annotations

import copy
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import attrs
import trio

from harness._budget import Budget
from harness._json_value import UnwritableValueError, encode_value
from harness._root_errors import budget_refusals
from harness.cli._errors import InputError
from harness.cli._forecast import Forecaster, Terms
from harness.cli._journal import BATCH, refusal
from harness.cli._limits import feasible_text, long_wait_text, now_text
from harness.cli._progress import Display, show_progress
from harness.cli._records import BadRecordError, Record
from harness.cli._result_line import result_line
from harness.cli._result_lines import ResultLines
from harness.cli._signals import Interrupts, interruptions
from harness.cli._source import Reading, RecordSource
from harness.cli._summary import Report
from harness.cli._tally import Tally
from harness.cli._target import Target, value_of
from harness.cli._window import Window, WithinWindow
from harness.errors import (
    ClusterGoneError,
    FanOutError,
    ItemSkipped,
    JournaledError,
    JournalError,
    TooManyFailuresError,
)
from harness.fanout import FanOutStream, Result, open_fan_out
from harness.journal import IdentifiedJournal
from harness.limits import Limiter
from harness.policies import Attempt, BestEffort, FailFast, JoinPolicy
from harness.runs import open_run

UNKEPT_AT_MOST = 20
"""If the first so many values can't be written, no other will be: the batch ends."""

_OUTLOOK_SECONDS = 5.0
"""How often the journal is told how many items are expected and how far the limits are used."""

_WINDOW_SECONDS = 5.0
"""How often it is checked whether what is started can still end within the window."""

BUDGET = "budget"
"""The run that has the budget of a batch."""

_ErrorT = TypeVar("_ErrorT", bound=BaseException)


@attrs.frozen(kw_only=True)
class Work:
    """What to do with each record, and how."""

    function: Target
    """Called with the record's value."""

    policy: JoinPolicy
    """What a failed item does to the others."""

    limit: int
    """How many items run at once."""

    attempt: Attempt
    """What happens to one item. A record that can't be read is tried once, without waiting."""

    ordered: bool
    """Whether results come in the order of the input."""

    grace: float
    """Seconds that what is in flight has when the batch is stopped."""

    tracebacks: bool = False
    """Whether each failed item's line has a traceback, and the summary one of each kind."""

    by_priority: bool = False
    """Whether the most urgent of the records read ahead is started first."""

    limiter: Limiter | None = None
    """Whose limits are reported; the attempts' own, unless the function reserves from it."""

    journal: IdentifiedJournal | None = None
    """Where finished items are recorded."""

    budget: Budget | None = None
    """What the whole batch may use."""

    terms: Terms | None = None
    """What a forecast starts from; None for none."""

    tokens_per_minute: int | None = None
    """How many tokens `limiter` allows, to warn of records that take more; None: no warning."""


async def run_batch(
    work: Work, source: RecordSource, reading: Reading, lines: ResultLines, display: Display
) -> Report:
    """Run ``work`` on every record of ``source``, and write a line for each.

    Returns:
      How it went, including failed items, unreadable input, a full disk, interruptions and a
      function that raises SystemExit; none of them raises.

    Checkpoint: always.

    Cancellation: cancels what is in flight; what had ended is written.
    """
    report = Report(Tally(with_tracebacks=work.tracebacks))
    started_at = trio.current_time()
    terms = work.terms or Terms(limit=work.limit)
    forecaster = Forecaster(terms, work.limiter)

    def to_do() -> int | None:
        expected = reading.expected()
        kept = report.tally.kept + max(0, lines.kept_missing)
        return None if expected is None else max(0, expected - kept)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_show, display, report.tally, reading, lines, work.limiter, forecaster)
        batch = _Batch(work, source, lines, display, report, forecaster, reading)
        if work.journal is not None:
            nursery.start_soon(_note_outlook, work.journal, reading, work.limiter, forecaster)
        if work.terms is not None:
            nursery.start_soon(forecaster.keep_up, to_do, lambda: reading.tokens_each, display.say)
        if batch.window is not None:
            nursery.start_soon(batch.keep_window, batch.window)
        await batch.run()
        nursery.cancel_scope.cancel()
    if forecaster.first is not None:
        report.forecast_seconds = forecaster.first.seconds
    report.seconds = trio.current_time() - started_at
    report.delimiter = reading.delimiter
    if work.limiter is not None:
        report.limits = work.limiter.statistics()
        if report.limits.waits:
            report.feasible = _feasible(work, work.limiter, report.tally)
    return report


def _feasible(work: Work, limiter: Limiter, tally: Tally) -> str | None:
    calls = max(1, tally.calls)
    tokens = work.attempt.tokens
    mean_tokens = tokens if isinstance(tokens, int) else tally.tokens / calls or None
    # An agent's call makes calls of its own, and each of those reserves.
    seconds = None if work.attempt.limiter is None else tally.call_seconds / calls
    return feasible_text(limiter, tokens=mean_tokens, seconds=seconds, limit=work.limit)


async def _show(
    display: Display,
    tally: Tally,
    reading: Reading,
    lines: ResultLines,
    limiter: Limiter | None,
    forecaster: Forecaster,
) -> None:
    await show_progress(
        display,
        tally,
        reading,
        clock=trio.current_time,
        kept_to_come=lambda: lines.kept_missing,
        limiter=limiter,
        forecast=forecaster.words,
    )


async def _note_outlook(
    journal: IdentifiedJournal, reading: Reading, limiter: Limiter | None, forecaster: Forecaster
) -> None:
    """Leave in the journal, for whoever watches, what its records don't tell."""

    async def note() -> None:
        await journal.note_outlook(
            BATCH,
            expected=reading.expected(),
            limits=None if limiter is None else now_text(limiter.statistics()),
            forecast=forecaster.words(),
            timings=forecaster.timings(),
        )

    with suppress(JournalError):  # The batch itself meets the same error, and tells it.
        await forecaster.begun.wait()
        try:
            while True:
                await trio.sleep(_OUTLOOK_SECONDS)
                await note()
        finally:
            with trio.CancelScope(shield=True):  # For the next session's forecast.
                await note()


class _Batch:
    """One batch in progress."""

    def __init__(
        self,
        work: Work,
        source: RecordSource,
        lines: ResultLines,
        display: Display,
        report: Report,
        forecaster: Forecaster,
        reading: Reading,
    ) -> None:
        self._forecaster = forecaster
        self._reading = reading
        within = None if work.terms is None else work.terms.within
        self.window = None if within is None else Window(within)
        self._opened = trio.Event()
        self._work = work
        self._source = source
        self._lines = lines
        self._display = display
        self._report = report
        self._stream: FanOutStream[str] | None = None
        self._warned = False
        self._unwritable_left: float = UNKEPT_AT_MOST
        """How many more values may be lost; any number, once one was written."""
        self._started_at = trio.current_time()

    async def run(self) -> None:
        """Run it to its end, whatever ends it."""
        work = self._work
        retry = work.attempt.retry
        if retry is not None:
            retry = attrs.evolve(retry, on=is_worth_another_attempt)
        limited = attrs.evolve(work.attempt, retry=retry)
        unlimited = attrs.evolve(limited, limiter=None, tokens=None)

        policy = work.policy
        if self.window is not None:
            policy = WithinWindow(policy, self.window)

        def each(record: Record) -> Attempt:
            if record.problem is not None:
                return unlimited  # It calls nothing, so it has nothing to wait for.
            self._warn_of_long_waits(record)
            return limited

        with interruptions(Interrupts(stop=self._stop, cancel=self._cancel)):
            try:
                async with (
                    _budget_of(work),
                    open_fan_out(
                        self._call,
                        self._source,
                        policy=policy,
                        limit=work.limit,
                        each=unlimited if limited.limiter is None else each,
                        key=_key_of,
                        priority=_priority_of if work.by_priority else None,
                        journal=work.journal,
                        ordered=work.ordered,
                        name=BATCH,
                    ) as self._stream,
                ):
                    self._opened.set()
                    async for result in self._stream:
                        if not await self._keep(result):
                            break
            except FanOutError as error:
                # A failed item, which is counted; or the input, which `error` reports. What failed
                # in an earlier session is raised after all of the others have ended.
                only_kept = all(isinstance(one, JournaledError) for one in error.exceptions)
                self._report.cut_short = not only_kept
                too_many = first_of(error, TooManyFailuresError)
                self._report.too_many_failures = None if too_many is None else str(too_many)
            except JournalError as error:
                self._report.refused = refusal(error)
                self._report.journal_error = str(error)
            except BaseException as error:
                ended = first_of(error, SystemExit)
                if ended is None:
                    raise
                self._report.function_error = f"the function raised SystemExit({ended.code!r})"
            # What ended after the policy was broken, or along with a cancellation.
            for result in self._stream.results if self._stream is not None else ():
                if not await self._keep(result):
                    break
            if self.window is not None and self.window.is_over:
                await self._skip_rest(self.window)
            await self._write(self._lines.release)
        self._report.kept_missing = self._lines.kept_missing
        if self._stream is not None:
            self._report.hedges = self._stream.results.hedges
        if self._source.error is not None:
            self._report.input_error = str(self._source.error)

    async def _call(self, record: Record) -> str:
        """Make one attempt at one item; the result's value is JSON, so that it is encoded once."""
        if record.problem is not None:
            raise BadRecordError(f"line {record.line}: {record.problem}")
        value = record.value
        attempt = self._work.attempt
        if attempt.hedge is not None or (attempt.retry is not None and attempt.retry.attempts > 1):
            # An attempt that changes its record must not change the next attempt's.
            value = copy.deepcopy(value)
        tally = self._report.tally
        tally.running += 1
        started_at = trio.current_time()
        self._forecaster.call_begins(record, started_at)
        try:
            text = encode_value(await value_of(self._work.function, value))
        except UnwritableValueError as error:
            self._unwritable_left -= 1
            if not self._unwritable_left:
                self._end_for_unwritable(error)
            raise
        except ClusterGoneError as error:
            # Nobody is left to run anything.
            self._report.function_error = str(error)
            if self._stream is not None:
                self._stream.run.cancel("the workers are gone")
            raise
        finally:
            tally.running -= 1
            tally.calls += 1
            ended_at = trio.current_time()
            tally.call_seconds += ended_at - started_at
            tally.tokens += record.tokens
            self._forecaster.call_ends(record, ended_at)
        self._unwritable_left = math.inf
        self._forecaster.succeeded(record)
        return text

    def _end_for_unwritable(self, error: UnwritableValueError) -> None:
        """Spend no more: the values that are still to come can't be written either."""
        self._report.function_error = (
            f"none of the first {UNKEPT_AT_MOST} values can be written, so the batch was ended: "
            f"{error}"
        )
        if self._stream is not None:
            self._stream.run.cancel("none of its values can be written")

    def _warn_of_long_waits(self, record: Record) -> None:
        """Warn once, at the first record that takes more tokens than a minute allows."""
        allowed, tokens = self._work.tokens_per_minute, self._work.attempt.tokens
        if self._warned or allowed is None or tokens is None:
            return
        takes = tokens if isinstance(tokens, int) else tokens(record)
        if takes > allowed:
            self._warned = True
            self._display.say(f"warning: {long_wait_text(takes, allowed)}")

    async def _keep(self, result: Result[str]) -> bool:
        """Count and write a result, and return whether the output can take more."""
        if self._report.output_error is not None:
            return False
        line = result_line(result, with_traceback=self._work.tracebacks)
        is_kept = self._is_kept(result)
        if not await self._write(partial(self._lines.write, line, is_kept=is_kept)):
            return False
        self._report.tally.add(result)
        self._forecaster.ended(result)
        self._stop_if_over_budget(result)
        return True

    async def _write(self, write: Callable[[], Awaitable[None]]) -> bool:
        """Write something, and return whether the output took it; if not, the report says why."""
        try:
            await write()
        except BrokenPipeError:
            # harness: shared (one task reads the results and writes them)
            self._report.output_error = "whoever read the results has gone"
        except OSError as error:
            # Keep the first error: after it, writing what was held is still tried.
            self._report.output_error = self._report.output_error or (
                f"writing the results failed: {error.strerror or error}"
            )
        else:
            return True
        return False

    def _is_kept(self, result: Result[str]) -> bool:
        """Tell whether a result was in the journal before this session."""
        if result.run_id is not None or result.status == "skipped":
            return False
        # A record that is set aside has no run either, but it ends only now.
        return result.status == "ok" or result.ended_at < self._started_at

    def _stop_if_over_budget(self, result: Result[str]) -> None:
        """Start nothing more once the batch's budget is used up: it would only fail too."""
        if result.status == "ok" or self._report.over_budget is not None or self._stream is None:
            return
        refusals = [one for one in budget_refusals(result.error) if one.run_path == BUDGET]
        if refusals:
            self._report.over_budget = str(refusals[0])
            self._report.cut_short = True
            self._stream.run.stop("the budget is used up")

    async def keep_window(self, window: Window) -> None:
        """End the batch with its window.

        Nothing more is started when it couldn't end in time: 19 of 20 items have taken less.
        """
        end = trio.current_time() + window.seconds
        await self._opened.wait()
        while True:
            left = end - self._forecaster.typical_seconds() - trio.current_time()
            if left <= 0:
                break
            await trio.sleep(min(left, _WINDOW_SECONDS))
        window.is_over = True  # Heeded when the next item ends: only then could another start.
        await trio.sleep_until(end)
        assert self._stream is not None
        self._stream.run.cancel(window.words)

    async def _skip_rest(self, window: Window) -> None:
        """Write what doesn't fit into the window as skipped, if the whole input can be read."""
        report, tally = self._report, self._report.tally
        unread = 0
        kept = max(0, self._lines.kept_missing)
        if not report.interrupted and self._reading.size_bytes is not None:
            with suppress(InputError):  # The source keeps it.
                async for record in self._source:
                    await trio.lowlevel.checkpoint()
                    unread += 1
                    if kept:
                        continue  # It may be one of those that the journal has.
                    now = trio.current_time()
                    why = ItemSkipped(f"the item was never started: {window.words}")
                    key = _key_of(record)
                    await self._keep(
                        Result(record.index, key, record, None, "skipped", why, 0, now, now)
                    )
        left = tally.skipped + tally.cancelled + max(0, unread - kept if kept else 0)
        if left or self._reading.total is None:
            report.window_over = window.words
            report.did_not_fit = left
            report.cut_short = True

    def _stop(self, what_happened: str) -> None:
        self._report.interrupted = True
        running, grace = self._report.tally.running, self._work.grace
        limiter = self._work.limiter
        waiting = 0 if limiter is None else limiter.statistics().waiting
        if (running or waiting) and grace:
            also = f" and {waiting:,} that wait for the limits" if waiting else ""
            self._display.say(
                f"stopping after {what_happened}: {running:,} in flight{also} may finish "
                f"within {grace:g} s; Ctrl-C cancels them at once"
            )
        # Also for a signal that comes before there is a run to stop: then nothing starts.
        self._source.close()
        if self._stream is not None:
            self._stream.run.cancel(what_happened, grace=grace)

    def _cancel(self, what_happened: str) -> None:
        if self._stream is not None:
            self._stream.run.cancel(what_happened)


@asynccontextmanager
async def _budget_of(work: Work) -> AsyncIterator[None]:
    """Apply the batch's budget, if it has one, to all of it."""
    if work.budget is None:
        yield
        return
    async with open_run(BUDGET, budget=work.budget):
        yield


def first_of(error: BaseException, kind: type[_ErrorT]) -> _ErrorT | None:
    """Return the first exception of ``kind`` that ``error`` is or holds, or None."""
    if isinstance(error, BaseExceptionGroup):
        found = (first_of(inner, kind) for inner in error.exceptions)
        return next((inner for inner in found if inner is not None), None)
    return error if isinstance(error, kind) else None


def _key_of(record: Record) -> str:
    return f"line-{record.line}" if record.key is None else record.key


def _priority_of(record: Record) -> float:
    return record.priority


def is_worth_another_attempt(error: Exception) -> bool:
    """Tell whether the same call may end differently; a bad record stays bad."""
    return not isinstance(error, BadRecordError | UnwritableValueError | InputError)


def policy_named(
    name: Any, *, skip_bad: bool, max_failures: int | float | None = None
) -> JoinPolicy:
    """Return the policy that ``--policy`` asks for.

    With ``skip_bad`` a record that can't be read doesn't count as a failure that stops the batch:
    that is what the option is for.
    """
    if name == "best-effort":
        return BestEffort(max_failures=max_failures)
    return BestEffort(critical=_is_readable) if skip_bad else FailFast()


def _is_readable(record: Record) -> bool:
    return record.problem is None
