"""Give each effect of a run, or of an item, a key that no other effect of it has.

A run has one idempotency key and may have many effects; a receiver that honours keys would take
the second of them for a repetition of the first, and not have it. So the first effect gets the
key as it is, and others get one made from it. Which effect got which is kept on the run, and not
on a `Once`, since two of those may have the same receiver. All attempts at an item are one here.
"""

from __future__ import annotations

import uuid
from collections.abc import Hashable

from harness.runs import RunLocal, current_run_or_none
from harness.shared._effect_store import DefaultKey


class _Given:
    """What was given away of the keys of one run, or of all items below it."""

    def __init__(self) -> None:
        # Most have one effect, and a dict for each would be felt with a million items.
        self._first: dict[str, Hashable] = {}
        self._others: dict[str, dict[Hashable, str]] = {}

    def key_for(self, effect: Hashable, own: str) -> str:
        """Return the key for ``effect`` made from the run's or the item's own."""
        if self._first.setdefault(own, effect) == effect:
            return own
        others = self._others.setdefault(own, {})
        return others.setdefault(effect, f"{own}:{len(others) + 2}")


_given = RunLocal(_Given, name="idempotency keys of effects")


def idempotency_key_for(effect: Hashable) -> DefaultKey:
    """Return the current run's key for ``effect``, the same each time; outside of any, a new one.

    Args:
      effect: Names the effect.
    """
    run = current_run_or_none()
    if run is None or run.status != "running":
        return DefaultKey(uuid.uuid4().hex)
    keeper = run
    if run._item_index is not None and run.parent is not None:
        keeper = run.parent  # An attempt is over before the next begins.
    return DefaultKey(_given.get_in(keeper).key_for(effect, run.idempotency_key))
