"""Say which recorded steps of an item still count: those that today's code would make again.

Each step has a *chain*: a hash of its name, of its code and settings, and of the chain of the step
before it. A change of one step changes its chain and those of all that follow, and no other. So the
records of an older version stay, and count again if the change is taken back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from harness.fanout._journal import Step, settings_of
from harness.fanout._steps import Steps
from harness.journal._codec import Codec
from harness.journal._index import Known, KnownStep
from harness.journal._source import fingerprint
from harness.runs._keys import digest


@attrs.frozen
class BatchSteps:
    """The steps of one batch's items."""

    chains: Mapping[str, bytes]
    """The chain of each step, by its name."""

    codecs: Mapping[str | None, Codec]
    """What writes the values of a step."""

    last: str | None
    """The step that comes last for every item; None if any may be the last."""

    several: bool
    """Whether an item ends with the values of several outputs, and not with that of its last step.
    """

    by_name: bool
    """Whether what other code recorded counts, too."""

    among: Sequence[Any]
    """The values of `column` that count."""

    @property
    def column(self) -> str:
        """What tells whether a recorded step counts."""
        return "name" if self.by_name else "chain"

    def as_of_now(self, known: Known, done: Sequence[KnownStep]) -> Known:
        """Return what is known of an item, with the ending that today's code would come to.

        Args:
          known: What it ended with last, whatever the code was.
          done: Its steps that count.
        """
        whole = [one for one in done if not one.part]
        end = whole[-1] if whole else None
        if end is None or end.ending is None or not (end.for_good or self.last in (None, end.name)):
            # Attempts that led to another code's ending are no failures of this one.
            attempts = known.attempts if known.ending is None else known.lost
            return known._replace(attempts=attempts, ending=None, status=None)
        return known._replace(ending=end.ending, status=end.status)

    def with_values(self, done: Sequence[KnownStep]) -> list[Step]:
        """Return the steps that have a value for the step after them."""
        return [
            Step(one.name, one.part, one.id, one.ending, bool(one.degraded), one.further)
            for one in done
            if one.ending is None or (one.status == "ok" and not one.for_good)
        ]


def chains_of(steps: Steps, digests: dict[Any, str]) -> dict[str, bytes]:
    """Return the chain of each step, by its name.

    Args:
      steps: The steps; each comes after the one before it.
      digests: The hashes of functions already taken; more are added.
    """
    found: dict[str, bytes] = {}
    for name, (before, function) in steps.functions.items():
        code = json.dumps([fingerprint(function, digests), settings_of(function)], sort_keys=True)
        chain = "" if before is None else found[before].hex()
        found[name] = bytes.fromhex(digest("chain", chain, name, code))
    return found
