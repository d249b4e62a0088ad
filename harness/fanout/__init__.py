"""Run many items at once, each a run of its own, and trust every result.

`fan_out` returns all results at the end, `open_fan_out` yields them as they come, `race` returns
the first success. One engine does the work for all. What comes after is in `harness.fanin`.
"""

from typing import TYPE_CHECKING

from harness._lazy import lazy
from harness.fanout._drop import DROP, Drop
from harness.fanout._fan_out import fan_out
from harness.fanout._gather import gather
from harness.fanout._limit import ChangingLimit, Limit
from harness.fanout._notices import (
    AttemptOver,
    FanOutBegan,
    HedgeBegan,
    ItemOver,
    RetryPlanned,
)
from harness.fanout._plan import FanOutJournal
from harness.fanout._race import race
from harness.fanout._result import Hedges, Result, Results, ResultStatus, Summary
from harness.fanout._source import TimedSource
from harness.fanout._stream import FanOutStream, open_fan_out
from harness.policies import Priority

if TYPE_CHECKING:
    from harness.fanout._backlog import Backlog
    from harness.fanout._journal import (
        Ending,
        Entry,
        FanOutBatch,
        Stored,
        Totals,
        ValueForm,
    )
    from harness.fanout._snapshot import FanOutStatistics
else:
    __getattr__, __dir__ = lazy()

__all__ = [
    "DROP",
    "AttemptOver",
    "Backlog",
    "ChangingLimit",
    "Drop",
    "Ending",
    "Entry",
    "FanOutBatch",
    "FanOutBegan",
    "FanOutJournal",
    "FanOutStatistics",
    "FanOutStream",
    "HedgeBegan",
    "Hedges",
    "ItemOver",
    "Limit",
    "Priority",
    "Result",
    "ResultStatus",
    "Results",
    "RetryPlanned",
    "Stored",
    "Summary",
    "TimedSource",
    "Totals",
    "ValueForm",
    "fan_out",
    "gather",
    "open_fan_out",
    "race",
]
