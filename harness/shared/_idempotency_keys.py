"""Give each effect of a run, or of an item, a key that none of its other effects has.

A run has one idempotency key and may have many effects; a receiver that honours keys would take the
second for a repetition of the first, and ignore it. So an effect's key is made from the run's and
the effect's own name, as `Run.effect_key` does, in whatever order effects are asked for, and by
whichever `Once`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Hashable

from harness.runs import current_run_or_none
from harness.shared._effect_store import DefaultKey


def idempotency_key_for(effect: Hashable) -> DefaultKey:
    """Return the current run's key for ``effect``, the same each time; outside any run, a new one.

    Args:
      effect: Names the effect. If it is a string, the key is that of `Run.effect_key`. If it is an
        object with no words that another process would also use, the key is new.
    """
    run = current_run_or_none()
    words = effect if isinstance(effect, str) else words_of_key(effect)
    if run is None or run.status != "running" or not words:
        return DefaultKey(uuid.uuid4().hex)
    return DefaultKey(run.effect_key(words if isinstance(effect, str) else f"{words} of a once"))


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def words_of_key(key: Hashable) -> str | None:
    """Return words for a hashable that are the same in every process; None if there are none."""
    words = _words(key)
    return None if _ADDRESS.search(words) else words


def _words(key: object) -> str:
    if isinstance(key, frozenset):
        return f"frozenset({', '.join(sorted(map(_words, key)))})"
    if type(key) is tuple:
        return f"({', '.join(map(_words, key))})"
    return repr(key)
