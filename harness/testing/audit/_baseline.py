"""Tell new findings from those that old code is known to have.

A finding is recognized by its rule, its file, what is shared and the function it is in: not by its
line, which moves with every edit above it. If one function has several such findings, they are
counted, so one more is new.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

import attrs

from harness._words import repr_of
from harness.testing.audit._finding import Finding

_Mark: TypeAlias = tuple[str, str, str, str]


@attrs.frozen
class Baseline:
    """The findings that are known."""

    marks: Counter[_Mark]

    @classmethod
    def read(cls, text: str) -> Baseline:
        """Return the baseline that ``--format json`` wrote.

        Raises:
          ValueError: if the text isn't such a report.
        """
        try:
            held = json.loads(text)
            return cls(Counter(_mark_of(one) for one in held["findings"]))
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(
                f"{repr_of(text)} is not a baseline; write one with "
                "`harness audit ... --format json`"
            ) from error

    def new(self, findings: Sequence[Finding]) -> list[Finding]:
        """Return the findings that aren't known, in order.

        Of several with the same marks, the last ones in the file are called new.
        """
        left = self.marks.copy()
        found: list[Finding] = []
        for finding in findings:
            mark = _mark_of(attrs.asdict(finding))
            if left[mark] > 0:
                left[mark] -= 1
            else:
                found.append(finding)
        return found


def _mark_of(finding: dict[str, Any]) -> _Mark:
    path = os.path.relpath(finding["path"]).replace(os.sep, "/")
    return finding["rule"], path, finding["symbol"], finding.get("function", "")
