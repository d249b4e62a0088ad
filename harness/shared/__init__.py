"""State that runs share on purpose, each kind with the protection it needs.

What belongs to one run stands in a `harness.RunLocal` instead; constants need nothing.
"""

from harness.shared._counter import Counter, CounterStatistics
from harness.shared._effect_store import EffectState, EffectStore, RecordedEffect

__all__ = [
    "Counter",
    "CounterStatistics",
    "EffectState",
    "EffectStore",
    "RecordedEffect",
]
