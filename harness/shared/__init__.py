"""State that runs share on purpose, each kind with the protection it needs.

What belongs to one run goes in a `harness.RunLocal` instead; constants need nothing.
"""

from harness.shared._append_log import AppendLog, AppendLogStatistics, Segment
from harness.shared._awaited_counter import AwaitedCounter, awaited
from harness.shared._cache import Cache, CacheStatistics, open_cache
from harness.shared._counter import Counter, CounterStatistics
from harness.shared._effect_store import DefaultKey, EffectState, EffectStore, RecordedEffect
from harness.shared._once import (
    Done,
    Once,
    OnceStatistics,
    OnUnknown,
    UnknownCheck,
    open_once,
)

__all__ = [
    "AppendLog",
    "AppendLogStatistics",
    "AwaitedCounter",
    "Cache",
    "CacheStatistics",
    "Counter",
    "CounterStatistics",
    "DefaultKey",
    "Done",
    "EffectState",
    "EffectStore",
    "OnUnknown",
    "Once",
    "OnceStatistics",
    "RecordedEffect",
    "Segment",
    "UnknownCheck",
    "awaited",
    "open_cache",
    "open_once",
]
