"""What an audit finds, as plain values."""

from __future__ import annotations

import attrs

KEEP_IT_PER_CALL = (
    'keep it in a local variable; or open a run for each call, with @harness.open_run("name"), '
    "and keep it in a harness.RunLocal; a RunLocal of the surrounding run is for what several "
    "calls are meant to share"
)
"""What to do with the state of a call, simplest first."""


@attrs.frozen(kw_only=True)
class Rule:
    """One kind of state that outlives a run."""

    name: str
    """Its name, as findings carry it."""

    title: str
    """What it looks for, in a few words."""

    why: str
    """What goes wrong because of it."""

    fix: str
    """What to do instead."""


@attrs.frozen(kw_only=True)
class Finding:
    """One place in the code, or one object, that is worth a look."""

    rule: str
    """The name of the `Rule`."""

    path: str
    """The file, as it was reached from the path that was given."""

    line: int
    """The line, from 1."""

    column: int
    """The column, from 1."""

    symbol: str
    """What is shared: ``Agent.messages``, ``_workspace``, ``Agent.__init__(tools=)``."""

    message: str
    """What the code does with it."""

    why: str
    """What goes wrong because of it."""

    fix: str
    """What to do instead."""

    function: str = ""
    """The function that it is in, as ``Agent.ask``; empty outside any function."""

    maybe: bool = False
    """Whether nothing in the code shows that calls at the same time reach it."""

    def __str__(self) -> str:
        doubt = "maybe: " if self.maybe else ""
        return f"{self.path}:{self.line}:{self.column}: {self.rule}: {doubt}{self.message}"
