"""What the command line of a batch says, as one value."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

import attrs

from harness.budgets import Budget
from harness.cli._records import Format
from harness.policies import Hedge

PolicyName: TypeAlias = Literal["best-effort", "fail-fast"]
"""What a failed item does to the others."""


_PASSWORD = re.compile(r"(?<=://)([^:/@]*):[^/]*@")


@attrs.frozen(kw_only=True)
class BatchOptions:
    """What the command line of one batch says."""

    target: str
    """The function, as ``module:function`` or ``path.py:function``."""

    prompt: str | None
    """The field that an agent is prompted with; None: the record is the prompt."""

    model: str | None
    """The model that an agent is run with; None: its own."""

    input_path: str
    """Where records come from; ``-`` is standard input."""

    format: Format | None
    """How they are written; None: as the suffix says."""

    key: str | None
    """The field that names a record; None: records are counted."""

    skip_bad: bool
    """Whether a record that can't be read is a failed result instead of the end."""

    first: int | None
    """How many records to read; None: all."""

    sample: int | None
    """How many of those to draw; None: all."""

    seed: int
    """What `sample` draws with."""

    limit: int
    """How many items run at once."""

    priority: str | None
    """The field that says how urgent a record is; None: they start in the order of the input."""

    timeout: float | None
    """Seconds for each attempt; None: any."""

    retry: int
    """Attempts per item."""

    hedge: Hedge | None
    """When to start a second attempt beside one that is late; None: never."""

    rpm: int | None
    """Calls a minute; None: any."""

    tpm: int | None
    """Tokens a minute; None: any."""

    concurrent: int | None
    """Calls at once; None: any."""

    tokens: int | str | None
    """How many tokens each record uses, or the field that says so."""

    budget_tokens: int | None
    """Tokens that all of it may use; None: any."""

    budget_usd: float | None
    """Dollars that all of it may cost; None: any."""

    policy: PolicyName
    """What a failed item does to the others."""

    grace: float
    """Seconds for what is in flight, after Ctrl-C."""

    journal_path: str | None
    """Where it is recorded what is done; None: nowhere."""

    resume: bool
    """Whether to go on with what the journal has."""

    retry_failed: bool
    """Whether what failed in a former session is tried again."""

    force: bool
    """Whether to go on although the code or the settings have changed."""

    code_version: str | None
    """What the user calls the code as it is now; None: nothing."""

    max_attempts: int | None
    """Attempts per item over all sessions; None: any."""

    output_path: str
    """Where lines go; ``-`` is standard output."""

    overwrite: bool
    """Whether existing files are replaced."""

    ordered: bool
    """Whether lines come in the order of the input."""

    summary_path: str | None
    """Where the summary goes as JSON; None: nowhere."""

    quiet: bool
    """Whether only errors are shown."""

    log_level: str
    """Which log records are shown."""

    dry_run: bool
    """Whether to show what would run instead of running it."""

    @property
    def journal_shown(self) -> str | None:
        """The journal as it may be shown: an address without its password."""
        path = self.journal_path
        return None if path is None else _PASSWORD.sub(r"\1@", path)

    @property
    def budget(self) -> Budget | None:
        """What all of it may use; None: anything."""
        if self.budget_tokens is None and self.budget_usd is None:
            return None
        return Budget(tokens=self.budget_tokens, cost_usd=self.budget_usd)
