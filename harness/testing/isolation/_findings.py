"""All that is known of a failing trial, and what reports call its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from harness._words import repr_of
from harness.testing.isolation._causes import Causes
from harness.testing.isolation._leakage import Leakage
from harness.testing.isolation._line_watch import Access
from harness.testing.isolation._program import call_name, run_name
from harness.testing.isolation._trials import Trial, Verdict
from harness.testing.isolation._watch import Step

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
    """Paths of what a run alone leaves changed."""
    not_put_back: Sequence[str]
    not_looked_at: Sequence[str]
    """Where the walk through what the function reaches has ended."""
    schedules_run: int
    notes: Sequence[str] = ()
    same_keys: Sequence[Any] = ()
    """The keys that several runs write when alone, if the first cause is a dict as a whole."""
    inside_one_run: bool = False
    """Whether it was found among calls inside one run."""
    run_was_cancelled: bool = False
    """Whether a call has cancelled that run."""
    isolated_per_run: bool = False
    """Whether each is right where it has a run of its own."""
    replay: str = ""
    leakage: Leakage | None = None
    """How often runs leak, if that was measured."""

    def name_of(self, member: int) -> str:
        """Return what the report calls the run, or the call, on the input of this index."""
        return call_name(member) if self.inside_one_run else run_name(member)


def run_words(findings: Findings, member: int) -> str:
    """Return what a report calls a run: its number, and its input."""
    given = shortened(repr_of(findings.inputs[member]), _WORDS_AT_MOST)
    return f"{findings.name_of(member)} ({given})"


def shortened(text: str, most: int) -> str:
    """Return the text, cut to at most ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
