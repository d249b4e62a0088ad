"""Run many items at once, each a run of its own, and trust every result.

`fan_out` returns all results at the end, `open_fan_out` yields them as they come, `race` returns
the first success. One engine does the work for all. What comes after: `merge` makes one of equal
values, `resolve` lets a judge decide between answers, `Fold` combines results as they arrive, and
`coverage` says what is missing. Those give the same answer for every order of arrival, and are
loaded when first used: they bring hashing along, which few programs need at their start.
"""

from typing import TYPE_CHECKING

from harness._lazy import lazy
from harness.fanout._drop import DROP, Drop
from harness.fanout._fan_out import fan_out
from harness.fanout._race import race
from harness.fanout._result import Hedges, Result, Results, ResultStatus, Summary
from harness.fanout._snapshot import FanOutStatistics
from harness.fanout._stream import FanOutStream, open_fan_out
from harness.policies import Priority

if TYPE_CHECKING:
    from harness.fanout._content import content_hash
    from harness.fanout._coverage import Coverage, coverage
    from harness.fanout._fold import Fold
    from harness.fanout._journal import (
        Ending,
        Entry,
        FanOutBatch,
        FanOutJournal,
        Stored,
        Totals,
        ValueForm,
    )
    from harness.fanout._merge import Merged, merge
    from harness.fanout._resolve import UNDECIDED, Resolution, Undecided, resolve
    from harness.fanout._similar import Similar
else:
    __getattr__, __dir__ = lazy()

__all__ = [
    "DROP",
    "UNDECIDED",
    "Coverage",
    "Drop",
    "Ending",
    "Entry",
    "FanOutBatch",
    "FanOutJournal",
    "FanOutStatistics",
    "FanOutStream",
    "Fold",
    "Hedges",
    "Merged",
    "Priority",
    "Resolution",
    "Result",
    "ResultStatus",
    "Results",
    "Similar",
    "Stored",
    "Summary",
    "Totals",
    "Undecided",
    "ValueForm",
    "content_hash",
    "coverage",
    "fan_out",
    "merge",
    "open_fan_out",
    "race",
    "resolve",
]
