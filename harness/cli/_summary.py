"""Say at the end of a batch what came of it: in words, as JSON, and as an exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs

from harness._pace import rate
from harness._words import masked
from harness.cli._csv_header import COMMA, shown
from harness.cli._errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    EXIT_WAITING,
    InputError,
)
from harness.cli._files import STANDARD_STREAM
from harness.cli._journal import totals_in_words
from harness.cli._limits import as_json, end_text
from harness.cli._tally import Tally
from harness.fanout import Hedges, Totals
from harness.limits import LimiterStatistics

_KINDS_SHOWN = 5

_ASYNCIO = (
    "no running event loop: the function uses asyncio, and a batch runs it on trio; call what "
    "needs asyncio with: await harness.asyncio_bridge.run_asyncio(function, record)"
)


@attrs.define(eq=False)
class Report:
    """How a batch went; complete once it is over."""

    tally: Tally
    """How its items ended."""

    seconds: float = 0.0
    """How long it took."""

    interrupted: bool = False
    """Whether Ctrl-C or a termination signal ended it."""

    limits: LimiterStatistics | None = None
    """What the limits did, if there were any."""

    feasible: str | None = None
    """How many records a minute the limits come to, if any call waited for them."""

    input_error: str | None = None
    """Why the input could not be read to its end, if so."""

    output_error: str | None = None
    """Why results could not be written, if so."""

    function_error: str | None = None
    """How the function ended the whole batch, if it did."""

    journal_error: str | None = None
    """Why the journal could not be written, if so."""

    refused: str | None = None
    """Why the journal is not that of this batch, if so. Then nothing was run."""

    over_budget: str | None = None
    """Why nothing more was started, if the budget was used up."""

    too_many_failures: str | None = None
    """Why nothing more was started, if too many items failed."""

    window_over: str | None = None
    """Why nothing more was started, if the window was over before the batch."""

    did_not_fit: int | None = None
    """How many records were left then, as far as the input was read."""

    forecast_seconds: float | None = None
    """How long it was to take, as it was forecast first."""

    totals: Totals | None = None
    """What the batch came to over all its sessions, if it has a journal."""

    cut_short: bool = False
    """Whether failed items, the budget or the window ended it, maybe before all of the input was
    read."""

    output_is_there: bool = True
    """Whether there is an output at all; one that got no line is removed again."""

    kept_missing: int = 0
    """How many of the journal's results were not written: their records aren't in the input, or
    were no longer read."""

    output_is_complete: bool = True
    """Whether the output has what was written; a resumed batch replaces it when it is over."""

    delimiter: str | None = None
    """What separated the columns of the input, if that is CSV."""

    hedges: Hedges = attrs.field(factory=Hedges)
    """The attempts that were started alongside late ones, and what came of them."""

    @property
    def is_complete(self) -> bool:
        """Whether what was written has everything that an earlier output may have."""
        unread = self.cut_short and self.kept_missing > 0
        return not (self.interrupted or self.errors or unread)

    @property
    def exit_status(self) -> int:
        """The command's exit status."""
        if self.interrupted:
            return EXIT_INTERRUPTED
        if self.input_error is not None:
            return EXIT_USAGE
        tally = self.tally
        if self.errors or tally.not_ok > tally.waiting or self.ended_early:
            return EXIT_FAILED
        return EXIT_WAITING if tally.waiting else EXIT_OK

    @property
    def ended_early(self) -> bool:
        """Whether it was ended in order, with items left to do."""
        return (self.over_budget or self.too_many_failures or self.window_over) is not None

    @property
    def errors(self) -> list[str]:
        """What ended the batch early, apart from an interruption."""
        ends = (self.input_error, self.output_error, self.function_error, self.journal_error)
        return [error for error in ends if error is not None]

    @property
    def items_per_second(self) -> float:
        """How many items ended per second, over the session; what the journal had isn't counted."""
        return self.tally.done_now / self.seconds if self.seconds > 0 else 0.0


def summary_text(report: Report, *, output: str, journal: str | None = None) -> str:
    """Return what a person wants to know at the end, in a few lines."""
    tally = report.tally
    endings = [f"{tally.ok:,} ok", *_not_ok(tally)]
    more = tally.attempts - tally.done + tally.skipped + tally.unreadable
    retries = f", {more:,} more attempts than items" if more > 0 else ""
    items = _items(tally.done)
    if tally.kept:
        items += f" ({tally.kept:,} of them from the journal)"
    pace = f"{report.seconds:.1f} s"
    if tally.done > tally.kept:
        pace += f" ({rate(report.items_per_second)})"
    lines = [f"{items} in {pace}: {', '.join(endings)}{retries}"]
    if not tally.done and not report.errors and not report.interrupted:
        lines.append("the input has no records")
    if tally.error_kinds:
        kinds = tally.error_kinds.most_common(_KINDS_SHOWN)
        others = len(tally.error_kinds) - len(kinds)
        lines.append(
            "errors: "
            + ", ".join(f"{count:,} {kind}" for kind, count in kinds)
            + (f" and {others} other types" if others else "")
        )
        lines += [f"  {_shortened(example)}" for _, example in tally.examples]
    if tally.waiting and journal is not None:
        lines.append(
            f"to answer what waits: harness journal show {journal}, harness journal approve or "
            "deny, and the same command with --resume"
        )
    elif tally.waiting:
        lines.append("what waits for approval can only go on with a --journal")
    if tally.kept_failures:
        which = "is" if tally.kept_failures == 1 else "are"
        lines.append(
            f"of the failures {tally.kept_failures:,} {which} from an earlier session; "
            "--retry-failed tries again"
        )
    if tally.missed_asyncio:
        lines.append(_ASYNCIO)
    if report.delimiter is not None and report.delimiter != COMMA:
        lines.append(f"input: columns separated by {shown(report.delimiter)}")
    if report.hedges.started:
        lines.append(
            f"hedges: {report.hedges.started:,}, of which {report.hedges.won:,} answered first, "
            f"saving about {report.hedges.seconds_saved:.1f} s over all items"
        )
    if report.limits is not None:
        lines.append(end_text(report.limits))
    if report.feasible is not None:
        lines.append(f"  {report.feasible}")
    lines += _early_ends(report)
    if report.totals is not None:
        lines.append(f"in all: {totals_in_words(report.totals)}")
    if report.interrupted and journal is None:
        lines.append("interrupted: what was not started is not in the results")
    elif report.interrupted or (report.ended_early and journal is not None):
        why = "interrupted" if report.interrupted else "unfinished"
        lines.append(f"{why}: run the same command with --resume to go on; {journal} has the rest")
    if not report.output_is_complete:
        lines.append(f"results: {journal} has them; {output} is written when the batch is over")
    elif report.output_is_there:
        lines.append(f"results: {'standard output' if output == STANDARD_STREAM else output}")
    for kind, (key, text) in tally.tracebacks.items():
        lines += [f"\nthe first {kind}, of {key}:", text]
    return "\n".join(lines)


def trouble_text(report: Report) -> str | None:
    """Return in one line what isn't ok, for a batch that shows nothing else; None if all is."""
    tally = report.tally
    parts = _early_ends(report)
    if counts := _not_ok(tally):
        parts.insert(0, f"of {_items(tally.done)} {', '.join(counts)}")
    if tally.examples:
        parts.append(f"the first error is that of {_shortened(tally.examples[0][1])}")
    return "; ".join(parts) or None


def _items(count: int) -> str:
    return "1 item" if count == 1 else f"{count:,} items"


def _not_ok(tally: Tally) -> list[str]:
    """Return how many items ended in which way, of those that have no value."""
    counts = (
        (tally.failed, "failed"),
        (tally.timed_out, "timed out"),
        (tally.cancelled, "cancelled"),
        (tally.waiting, "waiting for approval"),
        (tally.skipped, "skipped"),
    )
    return [f"{count:,} {word}" for count, word in counts if count]


def _early_ends(report: Report) -> list[str]:
    """Say why nothing more was started, if the batch was ended with items left to do."""
    ends = []
    if report.over_budget is not None:
        ends.append(f"the budget is used up, and nothing more was started: {report.over_budget}")
    if report.too_many_failures is not None:
        ends.append(f"nothing more was started: {report.too_many_failures}")
    if report.window_over is not None:
        ends.append(_left_by_window(report))
    return ends


def _left_by_window(report: Report) -> str:
    """Say what didn't fit into the window, and name the first few."""
    left = "what was not read" if not report.did_not_fit else f"{report.did_not_fit:,} records"
    if report.did_not_fit == 1:
        left = "1 record"
    keys = ", ".join(_shortened(key, most=40) for key in report.tally.left_out)
    more = ", ..." if (report.did_not_fit or 0) > len(report.tally.left_out) else ""
    named = f": {keys}{more}" if keys else ""
    return f"{report.window_over}, and {left} didn't fit{named}"


def _shortened(text: str, *, most: int = 200) -> str:
    # Masked before it is cut to length, because half a secret isn't recognized.
    line = masked(" ".join(text[: 10 * most].split()))
    line = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in line)
    return line if len(line) <= most else f"{line[: most - 3]}..."


def write_summary(report: Report, path: str, write: Callable[[str], object], **named: Any) -> None:
    """Write the summary to ``path``, whole or not at all.

    Args:
      report: How the batch went.
      path: Where it is written, for messages.
      write: Writes it there.
      named: What else belongs in it, such as the target; comes first.

    Raises:
      InputError: if it can't be written.
    """
    tally = report.tally
    content = {
        **named,
        "delimiter": report.delimiter,
        "items": tally.done,
        "ok": tally.ok,
        "failed": tally.failed,
        "timed_out": tally.timed_out,
        "cancelled": tally.cancelled,
        "waiting": tally.waiting,
        "skipped": tally.skipped,
        "attempts": tally.attempts,
        "hedges": report.hedges.started,
        "hedges_won": report.hedges.won,
        "hedge_seconds_saved": round(report.hedges.seconds_saved, 6),
        "seconds": round(report.seconds, 6),
        "items_per_second": round(report.items_per_second, 3),
        "errors": dict(tally.error_kinds.most_common()),
        "limits": None if report.limits is None else as_json(report.limits),
        "from_journal": tally.kept,
        "failed_in_earlier_sessions": tally.kept_failures,
        "totals": None if report.totals is None else attrs.asdict(report.totals),
        "interrupted": report.interrupted,
        "input_error": report.input_error,
        "output_error": report.output_error,
        "function_error": report.function_error,
        "journal_error": report.journal_error,
        "over_budget": report.over_budget,
        "too_many_failures": report.too_many_failures,
        "window_over": report.window_over,
        "did_not_fit": report.did_not_fit,
        "forecast_seconds": report.forecast_seconds and round(report.forecast_seconds, 3),
        "exit_status": report.exit_status,
    }
    try:
        write(json.dumps(content, indent=2) + "\n")
    except OSError as error:
        raise InputError(
            f"the summary {path!r} can't be written: {error.strerror or error}; "
            "the results are complete without it"
        ) from error
