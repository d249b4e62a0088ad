"""``harness eval``: run a function on the samples of a file, and score what it returns."""

from __future__ import annotations

import io
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, chdir, nullcontext, redirect_stdout
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs
import click
import trio

from harness._progress import progress
from harness.cli._errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, InputError
from harness.cli._files import (
    STANDARD_STREAM,
    Input,
    check_output,
    open_input,
    refuse_one_file_twice,
)
from harness.cli._journal import refuse_journal_file
from harness.cli._later import named
from harness.cli._limits import own_limiter
from harness.cli._lines import LineReader
from harness.cli._log import logging_to_stderr
from harness.cli._option_table import Facts, refuse
from harness.cli._options import EvalOptions
from harness.cli._records import Record, parse_records
from harness.cli._run import is_worth_another_attempt
from harness.cli._selection import selected
from harness.cli._signals import Interrupts, interruptions
from harness.cli._target import Target, agent_in, load_named, load_target
from harness.errors import JournalError
from harness.evals import Sample, Scorer, judge, read_samples
from harness.journal import open_journal
from harness.limits import Limiter
from harness.policies import Attempt, Retry
from harness.runs import open_run

_REASONS_SHOWN = 5

try:
    from harness.evals import Evaluation, evaluate, read_evaluation
except ImportError as _error:  # The words are those of the extra.
    raise InputError(str(_error)) from _error


def run(options: EvalOptions) -> int:
    """Run the command as the command line says, and return the exit status."""
    is_read_here = not _is_read_by_evals(options)
    form = options.form if is_read_here else "jsonl"
    refuse(options, Facts(form=form))
    _check_files(options)
    # What the user's code prints must not be taken for the means.
    # harness: shared (it is the process's own, and this command is the whole process)
    with redirect_stdout(sys.stderr), logging_to_stderr("warning"):
        before = None if options.compare is None else _earlier(options.compare)
        target = load_target(options.target)
        refuse(options, Facts(form=form, is_agent=agent_in(target) is not None))
        scorers = _scorers(options)
        judging = None if options.judge is None else load_target(options.judge)
        names = {*scorers, *(() if judging is None else ("judge",))}
        if before is not None and names.isdisjoint(before.scorers):
            raise InputError(
                f"--compare {options.compare} has scores of other scorers only: "
                f"{', '.join(before.scorers)}; add --scorer with one of them"
            )
        samples = _samples(options, is_read_here=is_read_here)
        run = partial(_evaluated, options, target, scorers, judging, samples)
        try:
            # An agent may change the folder, and the paths of the options are relative to it.
            with chdir("."), nullcontext() if options.quiet else progress():
                evaluation, interrupted = trio.run(run)
        except (JournalError, TypeError, ValueError) as error:
            raise InputError(f"{options.target} can't be evaluated: {error}") from error
    if evaluation is None:
        return EXIT_INTERRUPTED
    try:
        _write(options, evaluation)
    finally:  # What was paid for is told, even if the disk is full.
        status = _tell(options, evaluation, before)
    return EXIT_INTERRUPTED if interrupted else status


def _check_files(options: EvalOptions) -> None:
    given = {
        "--output": options.output,
        "--svg": options.svg,
        "--inspect-log": options.inspect_log,
    }
    files = {option: path for option, path in given.items() if path is not None}
    with ExitStack() as stack:
        if Path(options.input).is_dir():
            input_ = Input(source=io.BytesIO(), name=options.input, status=None)
        else:
            input_ = stack.enter_context(open_input(options.input))
        for option, path in files.items():
            if path == STANDARD_STREAM:
                raise InputError(
                    f"{option} {path} is no file; give one: the means are on standard output"
                )
            check_output(path, input_, overwrite=options.overwrite, option=option)
    refuse_one_file_twice(files)
    if options.journal is not None:
        for option, path in {"--input": options.input, **files}.items():
            refuse_journal_file(options.journal, path, option)
    if options.inspect_log is not None and find_spec("inspect_ai") is None:
        raise InputError("--inspect-log needs inspect_ai; run: pip install inspect-ai")
    if not options.scorer and options.judge is None:
        raise InputError(
            "nothing says how outputs are scored; add --scorer exact, another one, or --judge"
        )
    if options.pass_at is not None and options.pass_at > options.repeats:
        raise InputError(
            f"--pass-at {options.pass_at} needs as many calls of each sample; add --repeats "
            f"{options.pass_at} or more"
        )


def _earlier(path: str) -> Evaluation:
    try:
        return read_evaluation(path)
    except (OSError, ValueError) as error:
        raise InputError(f"--compare {path} can't be compared with: {error}") from error


# Samples and scorers ----------------------------------------------------------------------------


def _is_read_by_evals(options: EvalOptions) -> bool:
    path = Path(options.input)
    return options.format is None and (path.suffix.lower() == ".parquet" or path.is_dir())


def _samples(options: EvalOptions, *, is_read_here: bool) -> list[Sample]:
    fields = {
        "input": options.prompt,
        "expected": options.expected,
        "id": options.key,
        "group": options.group,
        "cluster": options.cluster,
    }
    try:
        with ExitStack() as stack:
            read = _lines_in(options, stack) if is_read_here else _rows_in(options.input)
            chosen = selected(read, first=options.first, sample=options.sample, seed=options.seed)
            records = list(chosen)
        if any(fields.values()):
            samples = read_samples((record.value for record in records), **fields)
        else:
            samples = [Sample(record.index, record.value) for record in records]
    except (OSError, TypeError, ValueError, ImportError) as error:
        raise InputError(f"{options.input}: {error}") from error
    if options.key is not None:
        return samples
    # Their places in the input, so that a part of it is known again when all of it is evaluated.
    pairs = zip(samples, records, strict=True)
    return [attrs.evolve(sample, id=record.index) for sample, record in pairs]


def _lines_in(options: EvalOptions, stack: ExitStack) -> Iterator[Record]:
    input_ = stack.enter_context(open_input(options.input))
    for record in parse_records(
        LineReader(input_.source),
        options.form,
        source=input_.name,
        delimiter=options.given_delimiter,
    ):
        if record.problem is not None:
            raise InputError(f"{input_.name}, line {record.line}: {record.problem}")
        yield record


def _rows_in(path: str) -> Iterator[Record]:
    """Yield the records of what isn't written in lines."""
    for index, sample in enumerate(read_samples(path)):
        yield Record(index, index + 1, sample.input, str(index))


def _scorers(options: EvalOptions) -> dict[str, Scorer | str]:
    found: dict[str, Scorer | str] = {}
    for given in options.scorer:
        is_named = ":" not in given
        if is_named and options.expected is None:
            raise InputError(
                f"--scorer {given} compares with the right answer; add --expected FIELD"
            )
        name = given if is_named else given.rpartition(":")[2]
        if name in found or (name == "judge" and options.judge is not None):
            raise InputError(
                f"--scorer {given}: another scorer is called {name!r} too, and means are told by "
                "their names; leave one of them out, or rename the function"
            )
        found[name] = given if is_named else load_named(given, "--scorer")[0]
    return found


# Running ----------------------------------------------------------------------------------------


async def _evaluated(
    options: EvalOptions,
    target: Target,
    scorers: dict[str, Scorer | str],
    judging: Target | None,
    samples: list[Sample],
) -> tuple[Evaluation | None, bool]:
    """Return the evaluation, if it wasn't cancelled, and whether it was interrupted."""
    limiter = own_limiter(options)
    interrupted = False
    evaluation: Evaluation | None = None
    retry = Retry(options.retry, on=is_worth_another_attempt)
    async with AsyncExitStack() as stack:
        function = await _opened(stack, options, target, limiter)
        if judging is not None:
            # With its own model, and without the limits of the target's.
            own = attrs.evolve(options, model=None)
            scorers = {**scorers, "judge": judge(await _opened(stack, own, judging, None))}
        journal = None
        if options.journal is not None:
            journal = await stack.enter_async_context(
                open_journal(options.journal, retry_failed=options.retry_failed, kept="return")
            )
        run = await stack.enter_async_context(open_run("eval"))

        def stop(what_happened: str) -> None:
            nonlocal interrupted
            interrupted = True
            click.echo(
                f"stopping after {what_happened}: what is in flight may finish; Ctrl-C cancels it",
                err=True,
            )
            run.stop(what_happened)

        with interruptions(Interrupts(stop=stop, cancel=run.cancel)):
            evaluation = await evaluate(
                function,
                samples,
                scorers=scorers,
                repeats=options.repeats,
                limit=options.limit,
                each=Attempt(
                    timeout=options.timeout,
                    retry=retry,
                    limiter=None if agent_in(target) is not None else limiter,
                    tokens=options.tokens,
                ),
                judging=Attempt(retry=retry),
                journal=journal,
                name=options.target,
            )
    return evaluation, interrupted


async def _opened(
    stack: AsyncExitStack, options: EvalOptions, target: Target, limiter: Limiter | None
) -> Target:
    agent = agent_in(target)
    if agent is None:
        return target
    opening = named("harness.cli._agents:open_agent")(options, agent, limiter)
    opened: Target = await stack.enter_async_context(opening)
    return opened


# What it came to --------------------------------------------------------------------------------


def _write(options: EvalOptions, evaluation: Evaluation) -> None:
    try:
        if options.output is not None:
            evaluation.write(options.output)
        if options.svg is not None:
            parts = {"all": evaluation} if options.group is None else evaluation.by_group()
            named("harness.evals:write_chart")(parts, options.svg, title=evaluation.name)
        if options.inspect_log is not None:
            named("harness.evals:write_inspect_log")(
                evaluation, options.inspect_log, model=options.model or "none/none"
            )
    except ImportError as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(
            f"writing {error.filename or 'a file'} failed: {error.strerror or error}"
        ) from error


def _tell(options: EvalOptions, evaluation: Evaluation, before: Evaluation | None) -> int:
    try:
        means = [evaluation.mean_score(scorer) for scorer in evaluation.scorers]
        if options.pass_at is not None:
            means += [
                evaluation.pass_at(options.pass_at, scorer)
                for scorer in evaluation.scorers
                if evaluation.counted(scorer).are_bools
            ]
        shared = [one for one in evaluation.scorers if before is not None and one in before.scorers]
        compared = [] if before is None else [before.compare(evaluation, one) for one in shared]
    except ValueError as error:
        raise InputError(str(error)) from error
    if options.json:
        parts = evaluation.by_group() if options.group is not None else {}
        told = {
            "means": [_plain(one) for one in means],
            "groups": {str(group): _means_in(part) for group, part in parts.items()},
            "compared": [_plain(one) for one in compared],
        }
        click.echo(json.dumps(told, indent=2))
    else:
        click.echo(str(evaluation))
        for mean in means[len(evaluation.scorers) :]:
            click.echo(f"{mean.scorer}: {mean}")
        for comparison in compared:
            click.echo(f"compared with {options.compare}: {comparison}")
        if options.confusion:
            click.echo(str(evaluation.confusion()))
    for reason, count in _reasons(evaluation).most_common(_REASONS_SHOWN):
        click.echo(f"{count:,} without a score: {reason}", err=True)
    is_low = options.at_least is not None and means[0].mean < options.at_least
    if is_low:
        click.echo(f"the mean is below --at-least {options.at_least:g}", err=True)
    complete = not any(one.failed or one.unscored or one.not_run for one in means)
    return EXIT_OK if complete and not is_low else EXIT_FAILED


def _means_in(evaluation: Evaluation) -> list[dict[str, Any]]:
    scored = dict.fromkeys(name for one in evaluation.scores for name in one.scores)
    return [_plain(evaluation.mean_score(name)) for name in scored]


def _plain(figures: Any) -> dict[str, Any]:
    """Return figures as JSON has them: it knows neither nan nor infinity."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in attrs.asdict(figures).items()
    }


def _reasons(evaluation: Evaluation) -> Counter[str]:
    """Return why calls have no score, and how many."""
    reasons: Counter[str] = Counter()
    for one in evaluation.scores:
        reasons.update([one.error] if one.error else one.unscored.values())
    return reasons
