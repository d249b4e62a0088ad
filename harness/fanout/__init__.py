"""Run many items at once, each a run of its own, and trust every result.

`fan_out` returns all results at the end, `open_fan_out` yields them as they come, `race` returns
the first success. One engine does the work for all.
"""

from harness.fanout._drop import DROP, Drop
from harness.fanout._fan_out import fan_out
from harness.fanout._race import race
from harness.fanout._result import Result, Results, ResultStatus, Summary
from harness.fanout._stream import FanOutStream, open_fan_out

__all__ = [
    "DROP",
    "Drop",
    "FanOutStream",
    "Result",
    "ResultStatus",
    "Results",
    "Summary",
    "fan_out",
    "open_fan_out",
    "race",
]
