"""The options of ``harness batch``: each is declared here, and used where its attribute is read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import attrs
import click

from harness._budget import Budget
from harness._pace import span
from harness._words import masked
from harness.cli._files import STANDARD_STREAM
from harness.cli._later import named
from harness.cli._log import LEVELS
from harness.cli._option_table import (
    Facts,
    Refusal,
    argument,
    command,
    declared_in,
    flag,
    option,
)
from harness.cli._option_values import (
    FILE,
    collector,
    count,
    delimiter,
    dollars,
    duration,
    failures,
    hedge,
    mean,
    seconds,
    tokens,
)
from harness.cli._record_fields import ATTACHED, KEY, PRIORITY, PROMPT, TOKENS
from harness.cli._records import Format, delimiter_of, format_of
from harness.cli._shown import shown_path
from harness.policies import Hedge

PolicyName: TypeAlias = Literal["best-effort", "fail-fast"]
"""What a failed item does to the others."""

_OTHER_NAMES: dict[str, str] = dict.fromkeys(
    ("--concurrency", "--max-concurrency", "--max-concurrent", "--parallel"),
    "write --limit N to run at most N items at once, or --concurrent N if the provider allows N "
    "calls at once",
)
"""What to write instead of options that other programs have."""

_SERVER = re.compile(r"postgres(ql)?://")


def _refused(when: Callable[[BatchOptions, Facts], bool], words: str) -> Refusal[BatchOptions]:
    return Refusal(when, words)


_NAMES_NO_FIELD = _refused(
    lambda options, facts: facts.form == "lines",
    "{option} {value} names a field, and plain lines have none; leave it out, "
    "or say --format jsonl or csv",
)
_WITHOUT_JOURNAL = _refused(
    lambda options, facts: options.journal is None,
    "{option} says how to go on with a journal, and none is given; add --journal FILE",
)
_FOR_AGENTS = _refused(
    lambda options, facts: facts.is_agent is False,
    "{option} {value} is for agents, and {options.target} is a function; leave it out, "
    "or name an agent",
)


def _late(hedge: Hedge) -> str:
    if hedge.percentile is None:
        return f"a second attempt after {hedge.after:g} s"
    return f"a second attempt for the slowest {100 * (1 - hedge.percentile):g} %"


def _share(most: int | float) -> str:
    return f"{most:,}" if isinstance(most, int) else f"{100 * most:g} %"


def _each(tokens: int | str) -> str:
    return f"{tokens:,} for each" if isinstance(tokens, int) else f"for each what {tokens!r} says"


class _InputOptions:
    """What the options of an input come to."""

    input: str
    format: Format | None
    delimiter: str | None

    @property
    def form(self) -> Format:
        """How the input is written: as given, or as its name says."""
        if self.format is not None:
            return self.format
        return "lines" if self.input == STANDARD_STREAM else format_of(self.input)

    @property
    def given_delimiter(self) -> str | None:
        """What separates the columns of CSV, as given or as the input's name says; else None."""
        return delimiter_of(self.input) if self.delimiter is None else self.delimiter


@attrs.frozen(kw_only=True)
class BatchOptions(_InputOptions):
    """Run an async function on every record of a file, many at once.

    TARGET is module:function or path.py:function. The function is called with one record: a dict
    for CSV, the parsed value for JSONL, a str for plain lines. Or it is an agent, which is run with
    a record's --prompt; its output is the value.

    Each item becomes one line of the output when it ends, failed or not, with the fields key,
    index, status, value, error, attempts and seconds.

    \b
    Examples:
      harness batch agent.py:triage --input tickets.csv --output results.jsonl
      harness batch app.agents:triage --input tickets.jsonl --key id --limit 50 \\
          --timeout 60 --retry 3 --output results.jsonl
      harness batch agent.py:triage --input tickets.csv --output out.jsonl --dry-run
      harness batch agent.py:triage --input tickets.csv --key id --journal run.db --output out.jsonl
      harness batch app.py:agent --input tickets.csv --prompt text --model openai:gpt-4o-mini \\
          --rpm 500 --output out.jsonl
      head -20 questions.txt | harness batch agent.py:answer --input - --output -

    \b
    Ctrl-C stops softly: nothing more is started, and what is in flight may finish
    within --grace. A second Ctrl-C cancels that as well. With --journal the same
    command goes on from there, with --resume; also after it was killed.

    \b
    Exit status: 0 if all items are ok, 1 if some are not, 2 for wrong usage or
    bad input, 130 if interrupted.
    """

    target: str = argument()

    # What is read.

    input: str = option(
        "Where the records are read from; - is standard input.", "FILE", type=FILE, required=True
    )
    format: Format | None = option(
        "Format of the input: a JSON value per line, CSV with a first row of names, or plain "
        "lines. By default the suffix decides (.jsonl, .ndjson, .csv, .tsv, else lines).",
        type=click.Choice(["jsonl", "csv", "lines"]),
        is_setting=True,
    )
    delimiter: str | None = option(
        "What separates the columns of CSV: one character, or tab. By default the first row "
        "decides: a comma, else a semicolon, tab or |. In .tsv it is a tab.",
        "CHARACTER",
        read=delimiter,
        refusals=[
            _refused(
                lambda options, facts: facts.form != "csv",
                "{option} is for CSV, and the input is read as {options.form}; leave it out, or "
                "say --format csv",
            )
        ],
    )
    key: str | None = option(
        "The field that names a record; each value may be there once. By default records are "
        "counted, from 0.",
        "FIELD",
        field=KEY,
        refusals=[_NAMES_NO_FIELD],
        is_setting=True,
    )
    skip_bad: bool = flag(
        "Write a record that can't be read as a failed result, instead of stopping at it. A key "
        "that is missing or there twice always ends the batch."
    )
    first: int | None = option(
        "Read the first N records only.", "N", read=count("say how many records to read")
    )
    sample: int | None = option(
        "Run N records drawn at random from those read. All of them are read first.",
        "N",
        read=count("say how many records to draw"),
    )
    seed: int = option(
        "Another seed draws another sample; the same seed draws the same one.", default=0
    )

    # How it is run.

    limit: int = option(
        "Run at most N items at once.",
        "N",
        read=count("say how many items may run at once"),
        default="100",
        plan="{:,} at once",
    )
    prompt: str | None = option(
        "For an agent: the field that holds the prompt. Plain lines and JSON strings are prompts "
        "themselves.",
        "FIELD",
        field=PROMPT,
        refusals=[
            _FOR_AGENTS,
            _refused(
                lambda options, facts: facts.is_agent is True and facts.form == "lines",
                "{option} {value} names a field, and plain lines have none; leave it out: each "
                "line is a prompt",
            ),
            Refusal(
                lambda options, facts: facts.is_agent is True and facts.form == "csv",
                "{options.target} is an agent, which takes text, and the records of CSV have "
                "fields; add --prompt FIELD",
                if_given=False,
            ),
        ],
        is_setting=True,
    )
    file: str | None = option(
        "For an agent: the field that holds the path of a file, such as a picture or a PDF, that "
        "goes with the prompt. Relative to the current folder; empty for none.",
        "FIELD",
        field=ATTACHED,
        refusals=[
            _FOR_AGENTS,
            Refusal(
                lambda options, _: options.prompt is None,
                "{option} {value} goes with a prompt; add --prompt FIELD",
            ),
        ],
    )
    model: str | None = option(
        "For an agent: the model to run it with, in place of its own: openai:NAME, anthropic:NAME, "
        "local:PATH of a GGUF file, or sim, which is simulated and costs nothing. Keys come from "
        "the environment (OPENAI_API_KEY, ANTHROPIC_API_KEY).",
        "MODEL",
        refusals=[
            _FOR_AGENTS,
            _refused(
                lambda options, facts: (
                    facts.is_agent is True
                    and not named("harness.models:is_model_name")(f"{options.model}")
                ),
                "{option} {value!r} names no model; write openai:NAME, anthropic:NAME, local:PATH "
                "or sim",
            ),
            _refused(
                lambda options, facts: (
                    options.budget_usd is not None
                    and facts.is_agent is True
                    and f"{options.model}".startswith(("openai:", "anthropic:"))
                    and not (options.prices or os.environ.get("HARNESS_PRICES"))
                ),
                "--budget-usd can't be kept with {option} {value}, whose price nobody knows; use "
                "--budget-tokens, add --prices FILE, or leave out --model and give the agent's "
                "own model price=Price(...)",
            ),
        ],
        is_setting=True,
    )
    prices: str | None = option(
        "For --model: what models cost, in a table that says of which day it is. By default the "
        "file that HARNESS_PRICES names; a model that isn't in it has no price.",
        "FILE",
        refusals=[
            _refused(
                lambda options, facts: options.model is None,
                "{option} {value} is for --model, and an agent's own model has its own price; "
                "leave it out, or add --model",
            )
        ],
    )
    timeout: float | None = option(
        "Give each attempt that long.",
        "SECONDS",
        read=seconds("leave it out if an attempt may take any time", zero=False),
        plan="{:g} s per attempt",
    )
    retry: int = option(
        "Make at most N attempts per item, with growing delays between them.",
        "N",
        read=count("1 is a single attempt without a retry"),
        default="1",
        plan=lambda most: "one attempt each" if most == 1 else f"up to {most} attempts",
    )
    hedge: Hedge | None = option(
        "Start a second attempt beside one that takes longer than that, and take the answer that "
        "comes first; p95 is longer than 95 % of the attempts before. A second attempt is made for "
        "one item in ten at most.",
        "SECONDS|pNN",
        read=hedge,
        plan=_late,
    )
    priority: str | None = option(
        "Start the records with the largest number in this field first, among the 100 that are "
        "read ahead. None is overtaken by more than 100 others. By default they start in the order "
        "of the input.",
        "FIELD",
        field=PRIORITY,
        refusals=[
            _NAMES_NO_FIELD,
            _refused(
                lambda options, facts: options.ordered,
                "--ordered and --priority don't go together: lines in the order of the input would "
                "wait for records that priorities put off; leave one of them out",
            ),
        ],
        plan="the largest {} first",
    )
    rpm: int | None = option(
        "Make at most N calls in any minute.",
        "N",
        read=count("say how many calls the provider allows in a minute"),
        plan="{:,} calls a minute",
    )
    tpm: int | None = option(
        "Use at most N tokens in any minute. Needs --tokens, unless the target is an agent, which "
        "counts its own.",
        "N",
        read=count("say how many tokens the provider allows in a minute"),
        refusals=[
            _refused(
                lambda options, facts: facts.is_agent is False and options.tokens is None,
                "{option} {value} needs --tokens: say how many tokens a record uses, input and "
                "output together, as a number or as the field that holds it",
            )
        ],
        plan="{:,} tokens a minute",
    )
    tokens: int | str | None = option(
        "How many tokens a record uses, input and output: a number for all, or the field that "
        "holds it. Needs --tpm.",
        "N|FIELD",
        read=tokens,
        field=TOKENS,
        plan=_each,
        refusals=[
            _refused(
                lambda options, facts: facts.is_agent is True,
                "{option} {value} is for functions: the model of an agent counts its own tokens; "
                "leave it out",
            ),
            _refused(
                lambda options, facts: facts.is_agent is False and options.tpm is None,
                "{option} {value} says what a record takes of --tpm, which is not given; give both "
                "or none",
            ),
            _refused(
                lambda options, facts: (
                    facts.is_agent is False
                    and facts.form == "lines"
                    and isinstance(options.tokens, str)
                ),
                "{option} {value} names a field, and plain lines have none; give a number, or say "
                "--format jsonl or csv",
            ),
        ],
    )
    concurrent: int | None = option(
        "Make at most N calls at once. Unlike --limit it doesn't hold back what waits for another "
        "limit or for a retry.",
        "N",
        read=count("say how many calls the provider allows at once"),
        plan="{:,} calls at once",
    )
    fleet: str | None = option(
        "Share --rpm, --tpm and --concurrent with all batches that name the same: on this machine "
        "a file, which is made if it is missing; on several, a Redis server, as in "
        "redis://host:6379#account. Each must state the same limits.",
        "FILE|URL",
        refusals=[
            _refused(
                lambda options, facts: options.rpm is options.tpm is options.concurrent is None,
                "{option} {value} shares limits, and none is given; add --rpm, --tpm or "
                "--concurrent, the same in each batch",
            )
        ],
        plan=lambda where: f"shared through {masked(where) if '://' in where else where}",
    )
    workers: int | None = option(
        "Run the records in N processes, through Ray. The limits, retries and the journal are kept "
        "for all of them. For functions, and tools of agents, that use a processor.",
        "N",
        read=count("say how many processes to use"),
        plan="in {:,} processes",
    )
    cluster: str | None = option(
        "Run them on the Ray cluster there, in --workers N processes, 4 by default. Its machines "
        "must have the target's code.",
        "ADDRESS",
        plan="on the cluster {}",
        refusals=[
            _refused(
                lambda options, facts: (
                    facts.is_agent is True
                    and not (options.rpm is options.tpm is options.concurrent is None)
                    and "://" not in (options.fleet or "")
                ),
                "{option} {value} has an agent's calls made on other machines, which keep --rpm, "
                "--tpm and --concurrent only through a server; add --fleet redis://host:6379",
            )
        ],
    )
    budget_tokens: int | None = option(
        "Use at most N tokens in all, former sessions of a journal included. Counts what models "
        "and harness.shared.reserve_budget() report.",
        "N",
        read=count("say how many tokens the batch may use in all"),
    )
    budget_usd: float | None = option(
        "Cost at most X dollars in all, counted in the same way. Needs models with a price.",
        "X",
        read=dollars,
    )
    policy: PolicyName = option(
        "After a failed item go on with the others, or stop.",
        type=click.Choice(["best-effort", "fail-fast"]),
        default="best-effort",
        plan="{}",
    )
    max_failures: int | float | None = option(
        "Start nothing more after more than N failures, or, with a percent sign, once more than "
        "that share of the items that have ended failed; judged from the 20th on. Records that "
        "can't be read count, what an earlier session has doesn't.",
        "N|N%",
        read=failures,
        refusals=[
            _refused(
                lambda options, facts: options.policy == "fail-fast",
                "{option} and --policy fail-fast don't go together: that stops at the first "
                "failure; leave one of them out",
            )
        ],
        plan=lambda most: f"at most {_share(most)} failures",
    )
    within: float | None = option(
        "Be done within that time, such as 6h or 90m: nothing is started that could no longer end "
        "in it, what is in flight at its end is cancelled, and the records that are left are "
        "skipped. --resume goes on with them.",
        "TIME",
        read=duration,
        plan=lambda seconds: f"within {span(seconds)}",
    )
    grace: float = option(
        "After Ctrl-C, how long what is in flight may take to finish.",
        "SECONDS",
        read=seconds("0 cancels at once", zero=True),
        default="30.0",
    )

    # What is remembered.

    journal: str | None = option(
        "Record there what is done, so that the batch can be resumed after it was interrupted or "
        "killed. Records are known again by their --key. A postgresql:// address works too.",
        "FILE",
        type=click.Path(),
    )
    join: bool = flag(
        "Share the batch with all processes that are given the same command: each record runs in "
        "one of them, and if that one dies, in another. Without --output: the journal has the "
        "results. Needs a postgresql:// address.",
        refusals=[
            _WITHOUT_JOURNAL,
            _refused(
                lambda options, facts: not _SERVER.match(options.journal or ""),
                "{option} needs a journal on a server, and {options.journal_shown} is a file, "
                "which one process at a time writes to; give --journal postgresql://...",
            ),
        ],
    )
    lease: float | None = option(
        "How long after its last sign of life the records of a process are given to others that "
        "--join. 30 by default.",
        "SECONDS",
        read=seconds("say how long a process may be stopped", zero=False),
        refusals=[
            _refused(
                lambda options, facts: not options.join,
                "{option} {value} is about sharing a journal; give --join, too",
            ),
            _refused(
                lambda options, facts: (options.lease or 1) < 1,
                "{option} {value} is too short: a process that is alive can't say so more often; "
                "give 1 or more",
            ),
        ],
    )
    resume: bool = flag(
        "Go on with what the journal has: what is done isn't run again. The output is written "
        "anew, what the journal has first, and replaced when the batch is over.",
        refusals=[_WITHOUT_JOURNAL],
    )
    retry_failed: bool = flag(
        "When resuming, try again what failed or timed out. By default that is kept.",
        refusals=[
            _WITHOUT_JOURNAL,
            _refused(
                lambda options, facts: not options.resume,
                "{option} needs --resume: it is about what failed before",
            ),
        ],
    )
    max_attempts: int | None = option(
        "Set an item aside as failed after N attempts over all sessions, those that ended the "
        "process counted too. By default it is tried in every session.",
        "N",
        read=count("say after how many attempts an item is set aside"),
        refusals=[_WITHOUT_JOURNAL],
    )
    code_version: str | None = option(
        "Record with the journal what the code is called, such as 2026-11 or a commit. It is "
        "refused to go on with another one. With the word source, it is refused to go on if the "
        "target, or what it uses of its file, has changed; otherwise that is only told.",
        "TEXT",
        refusals=[_WITHOUT_JOURNAL],
        is_setting=True,
    )
    keep_logs: bool = flag(
        "Keep in the journal, with each record, what is logged for it from INFO on, what its runs "
        "emit, and the messages of agents, for harness journal show.",
        refusals=[_WITHOUT_JOURNAL],
    )
    force: bool = flag(
        "Go on with a journal although the target or the settings have changed since.",
        refusals=[_WITHOUT_JOURNAL],
    )

    # What is written and shown.

    output: str = option(
        "Where the results are written, a JSON object per line; - is standard output.",
        "FILE",
        type=FILE,
        refusals=[
            _refused(
                lambda options, facts: options.join,
                "{option} {value} can't be written with --join: each process has a part of the "
                "results; leave it out, and use harness journal export when all are done",
            ),
            Refusal(
                lambda options, facts: not options.join,
                "{option} is missing; give the file for the results, or - for standard output",
                if_given=False,
            ),
        ],
    )
    overwrite: bool = flag("Replace files that are already there.")
    ordered: bool = flag(
        "Write in the order of the input, when resuming too. By default a line is written when its "
        "item ends. Not together with --priority."
    )
    summary: str | None = option(
        "Also write the summary there, as JSON.", "FILE", type=click.Path()
    )
    trace: str | None = option(
        "Record there what runs when and waits for what, for harness plan and harness.observe.",
        "FILE",
        type=click.Path(),
    )
    with_input: bool = flag(
        "Add the record as it was read to each item's line, as the field input."
    )
    traceback: bool = flag(
        "Add to each failed item's line where its error came from, without frames of harness, as "
        "the field traceback; and show one of each kind of error at the end."
    )
    report: str | None = option(
        "When the batch is over, write a page there that shows where the time went, with a "
        "timeline of all runs, failures, stragglers and limits. It needs no network.",
        "FILE",
        type=click.Path(),
    )
    dashboard: bool = flag(
        "Show the batch live on a page in a browser of this machine; its address is printed. "
        "Needs the extra dashboard. harness top shows the same on a terminal, without an option."
    )
    allow_cancel: bool = flag(
        "Let the page cancel and stop runs.",
        refusals=[
            _refused(
                lambda options, facts: not options.dashboard,
                "{option} is for the page of --dashboard; add --dashboard, or leave it out",
            )
        ],
    )
    metrics_port: int | None = option(
        "Serve metrics to a Prometheus on this machine, at http://127.0.0.1:PORT/metrics, while "
        "the batch runs; 0 chooses a port. Needs the extra prometheus.",
        "PORT",
        type=click.IntRange(0, 65_535),
        plan="metrics at http://127.0.0.1:{}/metrics",
    )
    otlp: str | None = option(
        "Send a span of each run, and of each call to a model or a tool, to the OpenTelemetry "
        "collector at URL, and metrics too. Needs the extra otel.",
        "URL",
        read=collector,
        plan=lambda url: f"spans and metrics to {masked(url)}",
    )
    quiet: bool = flag(
        "Show neither progress nor summary, only errors: of failed items one line at the end, with "
        "their number and the first of them."
    )
    log_level: str = option(
        "Show log records of this level and above, each with its run.",
        type=click.Choice(LEVELS),
        default="warning",
    )
    dry_run: bool = flag(
        "Check everything, show what would run and the first records, and run nothing."
    )

    @property
    def journal_shown(self) -> str | None:
        """The journal as it may be shown: an address without its password."""
        return None if self.journal is None else shown_path(self.journal)

    @property
    def budget(self) -> Budget | None:
        """What the whole batch may use; None: anything."""
        if self.budget_tokens is None and self.budget_usd is None:
            return None
        return Budget(tokens=self.budget_tokens, cost_usd=self.budget_usd)


def _run(options: BatchOptions) -> int:
    status: int = named("harness.cli._batch:run")(options)  # It takes long to import.
    return status


batch = command("batch", BatchOptions, _run, other_names=_OTHER_NAMES)


@attrs.frozen(kw_only=True)
class VerifyOptions(_InputOptions):
    """Run a sample of a finished batch again, each item alone, and compare.

    RESULTS is the output of harness batch, or its journal. Each item is run in a process of its
    own, which has seen no other item: what differs then came from the other items, from code or
    records that have changed, or from a model that varies. An item that differs is run again, and
    if it differs from itself, it is counted apart, since that proves nothing.

    \b
    Examples:
      harness verify results.jsonl --target agent.py:triage --input tickets.csv --sample 300
      harness verify run.db --target agent.py:triage --input tickets.csv --key id --limit 4
      harness verify results.jsonl --target app.py:agent --input tickets.csv --prompt text \\
          --compare app.checks:same_answer --repeats 3

    \b
    Exit status: 0 if none differs, 1 if some do, 2 if it can't be run or nothing
    could be compared, 130 if interrupted.
    """

    results: str = argument("RESULTS")
    target: str = option(
        "What the batch ran: module:function or path.py:function, or an agent.",
        "TARGET",
        required=True,
    )
    input: str = declared_in(BatchOptions, "input")
    format: Format | None = declared_in(BatchOptions, "format")
    delimiter: str | None = declared_in(BatchOptions, "delimiter")
    key: str | None = declared_in(BatchOptions, "key")
    batch: str | None = option(
        "The batch of a journal that has several; harness batch writes 'batch'.", "NAME"
    )

    # What is run again.

    where: str | None = option(
        "Draw only from the results that EXPR holds for, such as 'value.topic == \"refund\"'.",
        "EXPR",
    )

    sample: int = option(
        "Run N items again, drawn at random from those that are ok.",
        "N",
        read=count("say how many items to run again"),
        default="300",
    )
    seed: int = declared_in(BatchOptions, "seed")
    stratify: bool = flag(
        "Draw from what failed or timed out as well; of each status its share, and one at least."
    )

    # How it is run.

    limit: int = option(
        "Run at most N items at once, each in its own process.",
        "N",
        read=count("1 runs one item at a time"),
        default="1",
    )
    prompt: str | None = declared_in(BatchOptions, "prompt")
    model: str | None = declared_in(BatchOptions, "model")
    prices: str | None = declared_in(BatchOptions, "prices")
    timeout: float | None = declared_in(BatchOptions, "timeout")
    retry: int = declared_in(BatchOptions, "retry")
    rpm: int | None = declared_in(BatchOptions, "rpm")
    tpm: int | None = option(
        "Use at most N tokens in any minute. Needs --tokens; not for agents.",
        "N",
        read=count("say how many tokens the provider allows in a minute"),
        refusals=[
            Refusal(
                lambda options, facts: facts.is_agent is True,
                "{option} {value} is for functions: an agent's tokens are counted in the process "
                "of its item, which is a new one each time; use --rpm, or --limit 1",
            ),
            Refusal(
                lambda options, facts: facts.is_agent is False and options.tokens is None,
                "{option} {value} needs --tokens: say how many tokens a record uses, input and "
                "output together, as a number or as the field that holds it",
            ),
        ],
    )
    tokens: int | str | None = declared_in(BatchOptions, "tokens")
    concurrent: int | None = declared_in(BatchOptions, "concurrent")

    # How it is compared.

    compare: str | None = option(
        "A plain function that takes the recorded value and the new one, and tells whether they "
        "are the same. By default they must be equal.",
        "module:function",
    )
    repeats: int = option(
        "Run an item that differs at most N times, to see whether it differs from itself.",
        "N",
        read=count("2 tells what varies from what differs"),
        default="2",
    )

    # What is shown.

    json: bool = flag("Write what was found as JSON.")
    quiet: bool = flag("Show no progress.")

    @property
    def budget_usd(self) -> None:
        """No budget bounds calls in several processes."""


def _verify(options: VerifyOptions) -> int:
    status: int = named("harness.cli._verify:run")(options)
    return status


verify = command("verify", VerifyOptions, _verify, other_names=_OTHER_NAMES)


@attrs.frozen(kw_only=True)
class EvalOptions(_InputOptions):
    """Run a function or an agent on the samples of a file, and score what it returns.

    TARGET is module:function or path.py:function, or an agent. It gets a record of the input
    without the field --expected, or the one field that --prompt names.

    \b
    Examples:
      harness eval agent.py:answer --input qa.csv --prompt question --expected answer \\
          --scorer exact
      harness eval app.py:agent --input qa.jsonl --prompt question --expected answer \\
          --scorer number --repeats 5 --pass-at 3 --group topic --cluster text_id
      harness eval app.py:agent --input qa.csv --prompt question --expected answer \\
          --judge app.py:judge --journal eval.db --output new.jsonl --compare old.jsonl

    \b
    A call that fails counts as wrong, and is told. Means have 95 % intervals.

    \b
    Exit status: 0 if every call has its scores, 1 if some have not or a mean is below
    --at-least, 2 for wrong usage or bad input, 130 if interrupted.
    """

    target: str = argument()

    # What is read.

    input: str = option(
        "Where the samples are read from: CSV, JSONL, plain lines, Parquet, or a folder that the "
        "package datasets wrote; - is standard input.",
        "FILE",
        type=FILE,
        required=True,
    )
    format: Format | None = declared_in(BatchOptions, "format")
    delimiter: str | None = declared_in(BatchOptions, "delimiter")
    key: str | None = option(
        "The field that names a sample; each value may be there once. By default they are counted, "
        "from 0.",
        "FIELD",
    )
    prompt: str | None = option(
        "The field that the target gets. By default it gets the whole record, without --expected.",
        "FIELD",
    )
    expected: str | None = option("The field with the right answer, for the scorers.", "FIELD")
    group: str | None = option("Also show the means of each group, by this field.", "FIELD")
    cluster: str | None = option(
        "Samples with the same value here are right or wrong together, such as questions about one "
        "text; intervals take it into account.",
        "FIELD",
    )
    first: int | None = declared_in(BatchOptions, "first")
    sample: int | None = declared_in(BatchOptions, "sample")
    seed: int = declared_in(BatchOptions, "seed")

    # How it is scored.

    scorer: tuple[str, ...] = option(
        "How outputs are scored: exact, contains, number, choice or fields; or a function of the "
        "sample and the output, plain or async, as module:function. May be given several times.",
        "NAME|module:function",
        many=True,
    )
    judge: str | None = option(
        "Also ask this agent, or async function of a text, whether each answer is right.",
        "module:agent",
    )
    repeats: int = option(
        "Ask each sample N times.", "N", read=count("1 asks each sample once"), default="1"
    )
    pass_at: int | None = option(
        "Also show how likely one of K calls is right, without bias; needs as many --repeats.",
        "K",
        read=count("1 is the share of calls that are right"),
    )
    at_least: float | None = option(
        "The mean of the first scorer below which the exit status is 1.", "MEAN", read=mean
    )
    compare: str | None = option(
        "Compare with an earlier evaluation of the same samples, which --output wrote there.",
        "FILE",
        type=click.Path(),
    )

    # How it is run.

    limit: int = declared_in(BatchOptions, "limit")
    model: str | None = declared_in(BatchOptions, "model")
    prices: str | None = declared_in(BatchOptions, "prices")
    timeout: float | None = declared_in(BatchOptions, "timeout")
    retry: int = declared_in(BatchOptions, "retry")
    rpm: int | None = declared_in(BatchOptions, "rpm")
    tpm: int | None = declared_in(BatchOptions, "tpm")
    tokens: int | None = option(
        "How many tokens a call takes, input and output. Needs --tpm; not for agents, which count "
        "their own.",
        "N",
        read=count("say how many tokens a call takes"),
        refusals=[
            _refused(
                lambda options, facts: facts.is_agent is True,
                "{option} {value} is for functions: the model of an agent counts its own tokens; "
                "leave it out",
            ),
            _refused(
                lambda options, facts: options.tpm is None,
                "{option} {value} says what a call takes of --tpm, which is not given; give both "
                "or none",
            ),
        ],
    )
    concurrent: int | None = declared_in(BatchOptions, "concurrent")
    journal: str | None = option(
        "Record outputs and judgements there, so that the same command goes on where it was "
        "interrupted, and pays for nothing twice.",
        "FILE",
        type=click.Path(),
    )
    retry_failed: bool = flag(
        "With a journal, try again what failed or timed out. By default that is kept.",
        refusals=[_WITHOUT_JOURNAL],
    )

    # What is written and shown.

    output: str | None = option(
        "Write the scores there, a JSON object per call.", "FILE", type=click.Path()
    )
    svg: str | None = option(
        "Draw the means and their intervals there, by --group if that is given.",
        "FILE",
        type=click.Path(),
    )
    inspect_log: str | None = option(
        "Write a log there that the viewer of inspect-ai opens (.eval). Needs that package.",
        "FILE",
        type=click.Path(),
    )
    overwrite: bool = flag("Replace files that are already there.")
    confusion: bool = flag(
        "Also show what was answered instead of what.",
        refusals=[
            Refusal[Any](
                lambda options, facts: options.json,
                "{option} is a table for people, and --json is none; leave one of them out",
            ),
            Refusal[Any](
                lambda options, facts: options.expected is None,
                "{option} sets answers against the right ones; add --expected FIELD",
            ),
        ],
    )
    json: bool = flag("Write the means as JSON.")
    quiet: bool = flag("Show no progress.")

    @property
    def budget_usd(self) -> None:
        """No budget bounds an evaluation from the command line."""


def _eval(options: EvalOptions) -> int:
    status: int = named("harness.cli._eval:run")(options)
    return status


evaluation = command("eval", EvalOptions, _eval, other_names=_OTHER_NAMES)
