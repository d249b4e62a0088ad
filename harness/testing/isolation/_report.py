"""Put a leak in words: which object, who wrote it, who read it, the proof, and what to do.

Plain text, since a test's failure is read in a terminal or a log.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness._words import error_in_words
from harness.testing._outcomes import first_difference
from harness.testing.isolation._causes import Candidate
from harness.testing.isolation._findings import Findings, run_words
from harness.testing.isolation._fix import fix
from harness.testing.isolation._line_watch import Access
from harness.testing.isolation._table import table
from harness.testing.isolation._trials import Difference, InOrder, Trial
from harness.testing.objects import WHOLE, OpaquePart

LONG_OUTPUT = 100
"""How long an output must be, in characters, for a report to say where it differs."""


def report(findings: Findings) -> str:
    """Return the report."""
    lines = [_headline(findings), ""]
    for difference in findings.verdict.differences:
        lines += _difference(findings, difference)
    lines += _program_faults(findings)
    if lines[-1]:
        lines.append("")
    lines += _objects(findings)
    lines += table(findings)
    if findings.leakage is not None:
        lines += [*str(findings.leakage).splitlines(), ""]
    if findings.outliving:
        lines.append("outlives the run (changed by a run alone, and still so after it):")
        lines += [f"  {path}" for path in findings.outliving]
    if findings.not_put_back:
        lines.append("could not be put back between the runs:")
        lines += [f"  {words}" for words in findings.not_put_back]
    if findings.not_looked_at:
        lines.append("not looked at:")
        lines += [f"  {words}" for words in findings.not_looked_at]
    lines += [f"note: {note}" for note in findings.notes]
    # For a method, that is the name of its class, which isn't what was checked.
    function = findings.function if findings.function.isidentifier() else "agent_fn"
    how = "same_run=True, " if findings.inside_one_run else ""
    lines.append(
        f"replay: await assert_isolated({function}, inputs, {how}schedule={findings.replay!r})"
    )
    lines.append(f"fix: {fix(findings)}")
    return "\n".join(lines)


# What went wrong ---------------------------------------------------------------------------------


def _headline(findings: Findings) -> str:
    verdict = findings.verdict
    found = f"(schedule {findings.schedules_run})" if findings.schedules_run else ""
    later = any(difference.later for difference in verdict.differences)
    how = f"{findings.function} is not isolated"
    if findings.isolated_per_run:
        how = f"{findings.function} is isolated per run, not per call"
    inside = "inside one run, " if findings.inside_one_run else ""
    if isinstance(findings.trial, InOrder) and not later:
        last = verdict.differences[-1].member if verdict.differences else findings.trial.members[-1]
        before = ", ".join(findings.name_of(member) for member in findings.trial.members[:-1])
        words = f"{findings.name_of(last)} after {before} gives something else than alone"
        return f"{how}: {inside}{words}; no concurrency is needed"
    wrong = [findings.name_of(difference.member) for difference in verdict.differences]
    if wrong:
        words = f"{_and(wrong)} {'gives' if len(wrong) == 1 else 'give'} something else than alone"
    elif verdict.broken is not None:
        words = f"{verdict.broken.path} gets out of order"
    else:
        words = "the program as a whole fails"
    return f"{how}: {inside}together, {words} {found}".rstrip()


def _difference(findings: Findings, difference: Difference) -> list[str]:
    later = " (changed after it had been returned)" if difference.later else ""
    lines = [
        f"  {run_words(findings, difference.member)}",
        f"    alone:    {difference.alone}",
        f"    {_mode(findings.trial)} {difference.got}{later}",
    ]
    where = first_difference(difference.alone.value, difference.got.value)
    if where and len(lines[1]) > LONG_OUTPUT:
        lines.append(f"    differ    {where}")
    return lines


def _mode(trial: Trial) -> str:
    return "after:   " if isinstance(trial, InOrder) else "together:"


def _program_faults(findings: Findings) -> list[str]:
    verdict = findings.verdict
    lines: list[str] = []
    if verdict.run is not None:
        lines += [
            f"  task {name!r} belongs to another event loop: something that was made there is used"
            for name in verdict.run.strangers
        ]
        lines += [f"  with a fault: {fault.in_words()}" for fault in verdict.run.schedule.faults]
    broken = verdict.broken
    if broken is not None:
        name = findings.name_of(broken.member)
        lines.append(
            f"  {broken.path} is out of order after step {broken.step}, a step of "
            f"{name} in {broken.waits_in or 'its last line'}: {broken.why}"
        )
    if verdict.error is not None:
        # Only the first line of a deadlock: who waits where comes below.
        lines.append(f"  {error_in_words(verdict.error).splitlines()[0].rstrip(':')}")
    lines += [f"    {words}" for words in verdict.blocked]
    return lines


# Which objects -----------------------------------------------------------------------------------


def _objects(findings: Findings) -> list[str]:
    causes = findings.causes
    lines: list[str] = []
    if not causes.candidates and findings.run_was_cancelled:
        return ["a call cancelled the run, which is that of the other calls too", ""]
    if not causes.candidates and (findings.not_looked_at or findings.not_put_back):
        return [
            "no object that was looked at was written; the cause may be in what was not: see below",
            "",
        ]
    if not causes.candidates:
        return [
            "no object that the function can reach was written; the runs may share something "
            "outside of Python's objects: a file, a server, a process",
            "",
        ]
    if findings.verdict.broken is not None and not findings.verdict.differences:
        lines.append("what was changed of it:")
    elif not causes.proven:
        lines.append("suspected, but not proven:")
    for candidate in causes.candidates:
        lines.append(f"{candidate.path}  ({candidate.kind})")
        lines += _accesses(findings, candidate)
    if causes.proven:
        what = "contents of their own" if causes.joint else "contents of its own"
        one = "call" if findings.inside_one_run else "run"
        subject = "these objects together had" if causes.joint else "it had"
        count = causes.replays
        lines.append(
            f"proof: in {count} replay{'s' if count != 1 else ''} in which {subject} {what} for "
            f"each {one}, every {one} gave what it gives alone"
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
        return [f"  used by {run_words(findings, member)} at {where}" for member, where in used]
    writes = [access for access in own if access.is_write]
    lines = [
        f"  written by {run_words(findings, member)} at {where}"
        for member, where in dict.fromkeys((access.member, access.where) for access in writes)
    ]
    if not lines:
        steps = [
            step
            for step in findings.steps
            if any(
                write.part is suspect.part
                and (suspect.key is WHOLE or write.path == candidate.path)
                for write in step.writes
                for suspect in candidate.suspects
            )
        ]
        lines = [
            f"  written by {run_words(findings, member)} in a step up to {where or 'its end'}"
            for member, where in dict.fromkeys((step.member, step.waits_in) for step in steps)
        ] or ["  not written here, since no run got so far; each run alone writes it"]
    readers = victims_reads(own, [difference.member for difference in findings.verdict.differences])
    lines += [
        f"  read by {run_words(findings, member)} at {where}"
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


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
