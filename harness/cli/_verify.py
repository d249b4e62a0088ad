"""``harness verify``: run a sample of a finished batch again, each item alone, and compare.

The results are read first, and a sample is drawn from them; then the input, for the records of the
sample and to see which are missing. So both may be larger than memory.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stdout
from functools import partial
from typing import Any

import attrs
import click

from harness._is_journal import is_journal
from harness._json_value import encode_value
from harness._progress import progress
from harness.cli._errors import EXIT_FAILED, EXIT_OK, EXIT_USAGE, InputError
from harness.cli._files import open_input
from harness.cli._forecast import tokens_of
from harness.cli._journal import content_of
from harness.cli._later import named
from harness.cli._limits import limiter_of
from harness.cli._lines import LineReader
from harness.cli._log import logging_to_stderr
from harness.cli._option_table import Facts, fields_of, refuse
from harness.cli._options import VerifyOptions
from harness.cli._record_fields import PROMPT, RecordField, with_fields
from harness.cli._recorded import results_in
from harness.cli._records import Record, parse_records
from harness.cli._run import is_worth_another_attempt
from harness.cli._target import Target, agent_in, check_values, load_comparer, load_target, value_of
from harness.cli._where import where_of
from harness.journal import JournalItem
from harness.policies import Attempt, Retry
from harness.testing.verification import Drawn, Recorded, SampleDraw, Verification, verify_sample

_NAMED = 3
"""How many keys a sentence names."""


def run(options: VerifyOptions) -> int:
    """Run the command as the command line says, and return the exit status."""
    refuse(options, Facts(form=options.form))
    # What the user's code prints must not be taken for the report.
    # harness: shared (it is the process's own, and this command is the whole process)
    with redirect_stdout(sys.stderr), logging_to_stderr("warning"):
        target = load_target(options.target)
        is_agent = agent_in(target) is not None
        if not is_agent:
            check_values(target, options.target)
        refuse(options, Facts(form=options.form, is_agent=is_agent))
        equal = None if options.compare is None else load_comparer(options.compare)
        fields = fields_of(options)
        if is_agent and options.prompt is None:
            fields.append(RecordField(PROMPT, None))
        finding = _Finding(options, fields)
        drawn = finding.draw()
        try:
            found = verify_sample(
                partial(_value_of, options, target),
                drawn,
                equal=equal,
                repeats=options.repeats,
                limit=options.limit,
                each=_attempt(options),
                showing=nullcontext if options.quiet else progress,
            )
        except RuntimeError as error:  # No fork.
            raise InputError(str(error)) from error
    found = attrs.evolve(found, notes=(*found.notes, *finding.notes))
    return _tell(found, as_json=options.json)


def _tell(found: Verification, *, as_json: bool) -> int:
    click.echo(json.dumps(found.as_json(), indent=2) if as_json else str(found))
    if found.ran:
        return EXIT_FAILED if found.differing else EXIT_OK
    vary = (
        "; for a model that varies, compare with --compare module:function, or run it and verify "
        "it with recorded replies (RecordedModel)"
    )
    click.echo(
        f"Error: nothing could be compared: no item of the sample came to the same end twice, or "
        f"all of them failed alone{vary if found.varying else ''}",
        err=True,
    )
    return EXIT_USAGE


def _attempt(options: VerifyOptions) -> Attempt:
    limiter = limiter_of(options)
    tokens = tokens_of if isinstance(options.tokens, str) else options.tokens
    return Attempt(
        timeout=options.timeout,
        retry=Retry(options.retry, on=is_worth_another_attempt),
        limiter=limiter,
        tokens=tokens,
    )


async def _value_of(options: VerifyOptions, target: Target, record: Record) -> Any:
    """Return a record's value, as the output of a batch would have it."""
    opened = nullcontext(target)
    if (agent := agent_in(target)) is not None:
        opened = named("harness.cli._agents:open_agent")(options, agent, None)
    async with opened as function:
        return json.loads(encode_value(await value_of(function, record.value)))


# What is compared with what ---------------------------------------------------------------------


class _Finding:
    """Finds a sample of results, and the records that they are of."""

    def __init__(self, options: VerifyOptions, fields: list[RecordField]) -> None:
        self._options = options
        self._fields = fields
        self._excluded: set[str] = set()
        """The keys of the results that --where leaves out."""
        self.notes: list[str] = []
        """What was found on the way, a sentence each."""

    def draw(self) -> Drawn:
        """Return the sample, with the records.

        Raises:
          InputError: if the results or the input can't be read, or have nothing in common.
        """
        options = self._options
        sample = SampleDraw(options.sample, seed=options.seed, stratify=options.stratify)
        for recorded in self._recorded():
            sample.add(recorded)
        drawn = sample.draw()
        if not drawn.recorded:
            other = ", ".join(f"{count:,} {status}" for status, count in drawn.left_out.items())
            raise InputError(
                f"{options.results!r} has no result to verify{f' ({other})' if other else ''}; "
                "--stratify verifies what failed, too"
            )
        return self._with_records(drawn, sample)

    def _recorded(self) -> Iterator[Recorded]:
        options = self._options
        where = where_of(options.where)
        unreadable = 0

        def without_key() -> None:
            nonlocal unreadable
            unreadable += 1

        for found in results_in(
            options.results,
            batch=options.batch,
            without_key=without_key,
            inputs=where is not None and where.needs_input,
        ):
            if where is not None and not where.matches(found.field):
                self._excluded.add(str(found.key))
            else:
                # The item stands for its record until that is found.
                yield Recorded(
                    key=str(found.key),
                    item=found.item,
                    status=found.status,
                    value=found.value,
                    error=found.error,
                )
        self._note(unreadable, "records that couldn't be read, so have no key: {}")
        if not is_journal(options.results):
            self._note_changes()

    def _note_changes(self) -> None:
        try:
            changed_at = os.stat(self._options.input).st_mtime
            written_at = os.stat(self._options.results).st_mtime
        except OSError:
            return
        if changed_at > written_at:
            self.notes.append(
                "the input was changed after the results were written, and these don't tell of "
                "which records they are; a journal does"
            )

    def _with_records(self, drawn: Drawn, sample: SampleDraw) -> Drawn:
        wanted = {one.key: one for one in drawn.recorded}
        found: dict[Any, Record] = {}
        changed: list[Any] = []
        missing: list[str | None] = []
        counts: Counter[str] = Counter()
        for record in self._records():
            status = None if record.problem is not None else sample.status_of(record.key)
            if status is None:
                if record.problem is None and record.key not in self._excluded:
                    missing.append(record.key)
                continue
            counts[status] += 1
            if record.key in wanted:
                item = wanted[record.key].item
                if isinstance(item, JournalItem) and not item.is_of(content_of(record)):
                    changed.append(record.key)
                else:
                    found[record.key] = record
        if not counts:
            raise InputError(
                f"no record of {self._options.input!r} has the key of a result in "
                f"{self._options.results!r}; give the --key and the --input of the batch"
            )
        self._note(len(missing), "records without a result, so not verified: {}", missing)
        self._note(len(sample) - counts.total(), "results without a record, so not verified: {}")
        self._note(
            len(changed), "records of the sample that have changed, so not compared: {}", changed
        )
        if not found:
            raise InputError("no result of the sample has a record that is as it was")
        return attrs.evolve(
            drawn,
            recorded=tuple(attrs.evolve(wanted[key], item=record) for key, record in found.items()),
            population={status: counts[status] for status in drawn.population if counts[status]},
        )

    def _records(self) -> Iterator[Record]:
        options = self._options
        with open_input(options.input) as input_:
            records = parse_records(
                LineReader(input_.source),
                options.form,
                source=input_.name,
                delimiter=options.given_delimiter,
            )
            if self._fields:
                records = with_fields(records, self._fields, source=input_.name)
            yield from records

    def _note(self, count: int, words: str, keys: list[Any] | None = None) -> None:
        if count:
            shown = ", ".join(map(str, (keys or ())[:_NAMED]))
            more = ", ..." if keys and len(keys) > _NAMED else ""
            self.notes.append(words.format(f"{count:,}" + (f" ({shown}{more})" if shown else "")))
