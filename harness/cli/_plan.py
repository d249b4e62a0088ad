"""``harness plan``: how long a recorded batch would take with other numbers."""

from __future__ import annotations

import json

import attrs
import click

from harness._pace import clock, rate
from harness.cli._errors import EXIT_FAILED, EXIT_OK, InputError
from harness.cli._option_table import argument, command, flag, option
from harness.cli._option_values import count
from harness.observe import Plan, plan

TRIED_AT_MOST = 1_000
"""The largest limit that a plan tries."""


@attrs.frozen(kw_only=True)
class PlanOptions:
    """Say how long the batch recorded in TRACE would take with other numbers.

    TRACE is what --trace of harness batch was given, or a program's record(). The items are taken
    as they were recorded, and the limits too where no others are given.

    Exit status: 0 for a plan, 1 if it can't be trusted, 2 for wrong usage.
    """

    trace: str = argument("TRACE")
    items: int = option(
        "How many items there will be.",
        "N",
        read=count("say how many items there will be"),
        required=True,
    )
    limit: int = option(
        "How many items will run at once.",
        "N",
        read=count("say how many may run at once"),
        required=True,
    )
    rpm: float | None = option(
        "How many requests a minute there may be; by default as recorded.",
        type=click.FloatRange(0, min_open=True),
    )
    tpm: float | None = option(
        "How many tokens a minute; by default as recorded.",
        type=click.FloatRange(0, min_open=True),
    )
    json: bool = flag("Write the plan as JSON.")


def _run(options: PlanOptions) -> int:
    try:
        found = plan(
            options.trace,
            items=options.items,
            limit=options.limit,
            rpm=options.rpm,
            tpm=options.tpm,
        )
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(str(error)) from error
    click.echo(_as_json(found) if options.json else _in_words(options, found))
    for doubt in found.doubts:
        click.echo(f"can't be trusted: {doubt}", err=True)
    return EXIT_OK if found.is_trusted else EXIT_FAILED


def _in_words(options: PlanOptions, found: Plan) -> str:
    per_second = options.items / found.seconds if found.seconds else 0.0
    more = " or more" if TRIED_AT_MOST <= found.best_limit < options.items else ""
    lines = [
        f"{options.items:,} items, {options.limit:,} at once: {clock(found.seconds)} "
        f"({rate(per_second)})",
        f"99 % of the items take at most {found.p99:.3g} s",
        f"best limit: {found.best_limit:,}{more}",
    ]
    if found.runs < found.total_runs:
        lines.append(f"by the first {found.runs:,} of {found.total_runs:,} recorded runs")
    if found.cost is not None:
        lines.append(f"cost: ${found.cost:,.2f}")
    return "\n".join(lines)


def _as_json(found: Plan) -> str:
    return json.dumps({**attrs.asdict(found), "is_trusted": found.is_trusted})


plan_command = command("plan", PlanOptions, _run)
