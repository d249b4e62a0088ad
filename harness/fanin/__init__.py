"""Make one answer of many results: what comes after a fan-out.

`merge` joins equal values into one, `resolve` lets a judge decide between answers, `Fold` combines
results as they arrive, and `coverage` says what is missing. They give the same answer for every
order of arrival.
"""

from harness._content import content_hash
from harness.fanin._coverage import Coverage, coverage
from harness.fanin._fold import Fold
from harness.fanin._merge import Merged, merge
from harness.fanin._resolve import UNDECIDED, Resolution, Undecided, resolve
from harness.fanin._similar import Similar

__all__ = [
    "UNDECIDED",
    "Coverage",
    "Fold",
    "Merged",
    "Resolution",
    "Similar",
    "Undecided",
    "content_hash",
    "coverage",
    "merge",
    "resolve",
]
