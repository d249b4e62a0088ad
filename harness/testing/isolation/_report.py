"""Put a leak in words: which object, who wrote it, who read it, the proof, and what to do.

Plain text, since a test's failure is read in a terminal or a log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import attrs

from harness._words import error_in_words, repr_of
from harness.testing.isolation._causes import Candidate, Causes
from harness.testing.isolation._lines import Access
from harness.testing.isolation._outputs import first_difference
from harness.testing.isolation._program import run_name
from harness.testing.isolation._special import OpaquePart
from harness.testing.isolation._trials import Difference, InOrder, Trial, Verdict
from harness.testing.isolation._watch import Step

ROWS_AT_MOST = 40
"""Rows of the table of steps; what is between the first and the last ones is left out."""

CELL_AT_MOST = 56
"""Characters of a cell."""

LONG_OUTPUT = 100
"""Characters of an output from which on a report says where it differs."""

_WORDS_AT_MOST = 60


@attrs.frozen(eq=False)
class Findings:
    """All that is known of a failing trial."""

    function: str
    """The name of the agent function."""
    inputs: Sequence[Any]
    trial: Trial
    verdict: Verdict
    causes: Causes
    steps: Sequence[Step]
    accesses: Sequence[Access]
    initial: Mapping[str, Any]
    """What the guilty things held at first, by path."""
    outliving: Sequence[str]
    """Paths of what a run alone leaves changed behind."""
    not_put_back: Sequence[str]
    schedules_run: int
    notes: Sequence[str] = ()


def report(findings: Findings) -> str:
    """Return the report."""
    lines = [_headline(findings), ""]
    for difference in findings.verdict.differences:
        lines += _difference(findings, difference)
    lines += _program_faults(findings.verdict)
    if lines[-1]:
        lines.append("")
    lines += _objects(findings)
    lines += _table(findings)
    if findings.outliving:
        lines.append("outlives the run (changed by a run alone, and still so after it):")
        lines += [f"  {path}" for path in findings.outliving]
    if findings.not_put_back:
        lines.append("could not be put back between the runs:")
        lines += [f"  {words}" for words in findings.not_put_back]
    lines += [f"note: {note}" for note in findings.notes]
    lines.append(
        f"replay: await assert_isolated({findings.function}, inputs, "
        f"schedule={findings.trial.replay!r})"
    )
    lines.append(f"fix: {fix(findings)}")
    return "\n".join(lines)


# What went wrong ---------------------------------------------------------------------------------


def _headline(findings: Findings) -> str:
    verdict = findings.verdict
    found = f"(schedule {findings.schedules_run})" if findings.schedules_run else ""
    if isinstance(findings.trial, InOrder):
        last = verdict.differences[-1].member if verdict.differences else findings.trial.members[-1]
        before = ", ".join(run_name(member) for member in findings.trial.members[:-1])
        words = f"{run_name(last)} after {before} gives something else than alone"
        return f"{findings.function} is not isolated: {words}; no concurrency is needed"
    wrong = [run_name(difference.member) for difference in verdict.differences]
    if wrong:
        words = f"{_and(wrong)} {'gives' if len(wrong) == 1 else 'give'} something else than alone"
    elif verdict.broken is not None:
        words = f"{verdict.broken.path} gets out of order"
    else:
        words = "the program as a whole fails"
    return f"{findings.function} is not isolated: together, {words} {found}".rstrip()


def _difference(findings: Findings, difference: Difference) -> list[str]:
    later = " (changed after it had been returned)" if difference.later else ""
    lines = [
        f"  {_run(findings, difference.member)}",
        f"    alone:    {difference.alone}",
        f"    {_mode(findings.trial)} {difference.got}{later}",
    ]
    where = first_difference(difference.alone.value, difference.got.value)
    if where and len(lines[1]) > LONG_OUTPUT:
        lines.append(f"    differ    {where}")
    return lines


def _mode(trial: Trial) -> str:
    return "after:   " if isinstance(trial, InOrder) else "together:"


def _program_faults(verdict: Verdict) -> list[str]:
    lines: list[str] = []
    if verdict.run is not None:
        lines += [f"  with a fault: {fault.in_words()}" for fault in verdict.run.schedule.faults]
    broken = verdict.broken
    if broken is not None:
        lines.append(
            f"  {broken.path} is out of order after step {broken.step}, a step of "
            f"{run_name(broken.member)} in {broken.waits_in or 'its last line'}: {broken.why}"
        )
    if verdict.error is not None:
        lines.append(f"  {error_in_words(verdict.error)}")
    lines += [f"    {words}" for words in verdict.blocked]
    return lines


# Which objects -----------------------------------------------------------------------------------


def _objects(findings: Findings) -> list[str]:
    causes = findings.causes
    lines: list[str] = []
    if not causes.candidates:
        return [
            "no object that the function can reach was written; the runs may share something "
            "outside of Python's objects: a file, a server, a process",
            "",
        ]
    if not causes.proven:
        lines.append("suspected, but not proven:")
    for candidate in causes.candidates:
        lines.append(f"{candidate.path}  ({candidate.kind})")
        lines += _accesses(findings, candidate)
    if causes.proven:
        what = "contents of their own" if causes.joint else "contents of its own"
        subject = "these objects together had" if causes.joint else "it had"
        count = causes.replays
        lines.append(
            f"proof: in {count} replay{'s' if count != 1 else ''} in which {subject} {what} for "
            "each run, every run gave what it gives alone"
        )
    if causes.raced:
        lines.append("also changed by runs behind each other's back (not proven to matter):")
    for candidate in causes.raced:
        lines.append(f"{candidate.path}  ({candidate.kind})")
        lines += _accesses(findings, candidate)
    lines.append("")
    return lines


def _accesses(findings: Findings, candidate: Candidate) -> list[str]:
    own = [access for access in findings.accesses if access.suspect in candidate.suspects]
    if isinstance(candidate.suspects[0].part, OpaquePart):
        used = dict.fromkeys((access.member, access.where) for access in own)
        return [f"  used by {_run(findings, member)} at {where}" for member, where in used]
    writes = [access for access in own if access.is_write]
    lines = [
        f"  written by {_run(findings, member)} at {where}"
        for member, where in dict.fromkeys((access.member, access.where) for access in writes)
    ]
    if not lines:
        steps = [
            step
            for step in findings.steps
            if any(
                write.part is suspect.part
                for write in step.writes
                for suspect in candidate.suspects
            )
        ]
        lines = [
            f"  written by {_run(findings, member)} in a step that ends in {where or 'its end'}"
            for member, where in dict.fromkeys((step.member, step.waits_in) for step in steps)
        ]
    readers = victims_reads(own, [difference.member for difference in findings.verdict.differences])
    lines += [
        f"  read by {_run(findings, member)} at {where}"
        for member, where in dict.fromkeys((access.member, access.where) for access in readers)
    ]
    return lines


def victims_reads(accesses: Sequence[Access], victims: Sequence[int]) -> list[Access]:
    """Return where the runs that went wrong read what another run had written.

    Reads at lines that only write are left out, if there are others.
    """
    found: list[Access] = []
    writers: dict[int, set[int]] = {}
    write_places = {access.where for access in accesses if access.is_write}
    for access in accesses:
        so_far = writers.setdefault(id(access.suspect), set())
        if access.is_write:
            so_far.add(access.member)
        elif access.member in victims and so_far - {access.member}:
            found.append(access)
    return [access for access in found if access.where not in write_places] or found


# What happened -----------------------------------------------------------------------------------


def _table(findings: Findings) -> list[str]:
    """Return the steps in order, with a column for each run."""
    members = list(dict.fromkeys(findings.trial.members))
    rows: list[tuple[str, int, str]] = []
    causes = findings.causes
    named = (*causes.candidates, *causes.raced)
    paths = {id(suspect): one.path for one in named for suspect in one.suspects}
    for step in findings.steps:
        rows.append((str(step.number), step.member, _cell(findings, step, paths)))
    if not rows:
        return []
    head = [_short(_run(findings, member), CELL_AT_MOST) for member in members]
    widths = [
        max(len(title), *(len(cell) for _, who, cell in rows if who == member), 0)
        if any(who == member for _, who, _ in rows)
        else len(title)
        for title, member in zip(head, members, strict=True)
    ]
    number_width = max(4, len(rows[-1][0]))
    lines = [_row("step".rjust(number_width), head, widths)]
    lines.append("-+-".join(["-" * number_width, *("-" * width for width in widths)]))
    shown: Iterable[tuple[str, int, str] | None] = rows
    if len(rows) > ROWS_AT_MOST:
        half = ROWS_AT_MOST // 2
        shown = [*rows[:half], None, *rows[-half:]]
    for row in shown:
        if row is None:
            lines.append(f"{'...'.rjust(number_width)} | {len(rows) - ROWS_AT_MOST} more steps")
            continue
        number, who, cell = row
        cells = [cell if member == who else "" for member in members]
        lines.append(_row(number.rjust(number_width), cells, widths))
    return [line.rstrip() for line in [*lines, ""]]


def _cell(findings: Findings, step: Step, paths: dict[int, str]) -> str:
    """Return what a step did to the guilty objects, else where it came to a halt."""
    own = [a for a in findings.accesses if a.step == step.number and id(a.suspect) in paths]
    # A line that appends reads the list in order to write it: once is enough.
    written_at = {access.where for access in own if access.is_write}
    did: list[str] = []
    for access in own:
        if access.is_write or access.where not in written_at:
            verb = "writes" if access.is_write else "reads"
            name = paths[id(access.suspect)].partition(" (local of")[0].rpartition(".")[2]
            did.append(f"{verb} {name}")
    kept = [words for words, _ in groupby(did)]
    halt = step.waits_in.rpartition("(")[2].rstrip(")") if step.waits_in else "ends"
    return _short(f"{', '.join(kept)}; {halt}" if kept else halt, CELL_AT_MOST)


def _row(number: str, cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    return " | ".join([number, *padded])


# What to do --------------------------------------------------------------------------------------


def fix(findings: Findings) -> str:
    """Return what to do about it, in one sentence."""
    if not findings.causes.candidates:
        return "find what outside of the program the runs share, and give each its own"
    if findings.verdict.broken is not None:
        return (
            f"change {findings.verdict.broken.path} in one step, without a checkpoint between "
            "looking at it and changing it, or under a trio.Lock"
        )
    first = findings.causes.candidates[0]
    name = _identifier(first.path)
    faults = findings.verdict.run.schedule.faults if findings.verdict.run is not None else ()
    if "__defaults__" in first.path or "__kwdefaults__" in first.path:
        return "make the default None, and make a new object in the function when it is None"
    if first.path.startswith("inputs["):
        return "don't change an input that runs share; copy it first"
    if isinstance(first.suspects[0].part, OpaquePart):
        return f"give each run a {first.kind} of its own, or let only one use it at a time"
    if first.kind == "random generator":
        return "give each run a generator of its own: random.Random(seed)"
    if first.kind in ("environment", "working directory"):
        return "pass it as an argument; there is only one of it in the whole process"
    if first.kind == "functools cache":
        return "don't cache what runs change; return a copy, or keep it in a harness.RunLocal"
    if faults:
        return (
            f"put {first.path} in order when a run is cancelled (try/finally), or throw it away, "
            "or give each run its own"
        )
    return (
        f"keep it per run, as in {name} = harness.RunLocal({_factory(findings.initial[first.path])}"
        f", name={name!r}), or make it a local variable of the function"
    )


def _identifier(path: str) -> str:
    name = path.partition(" (local of")[0].partition("[")[0].rpartition(".")[2]
    return name if name.isidentifier() else "state"


def _factory(value: Any) -> str:
    """Return code for a function that makes another value like this one."""
    if isinstance(value, list | dict | set | deque | bytearray):
        return type(value).__name__
    if value is None or isinstance(value, bool | int | str):
        return f"lambda: {repr_of(value)}"
    return "factory"


def _run(findings: Findings, member: int) -> str:
    return f"{run_name(member)} ({_short(repr_of(findings.inputs[member]), _WORDS_AT_MOST)})"


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
