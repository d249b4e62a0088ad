"""Draw a sample of recorded results in one pass, the same from the same batch in any order.

Each result has a rank, a hash of the seed and its key; the lowest ranks are drawn. So all sets of
keys have the same chance, the order of the lines doesn't matter, and of a million results only
those that may be drawn are kept.
"""

from __future__ import annotations

import hashlib
import heapq
import sys
from collections.abc import Mapping
from typing import Any

import attrs

from harness.testing.verification._checks import Recorded

_KEY_BYTES = 16

_ENDED = frozenset(("ok", "failed", "timed_out"))
"""What can be compared with; an item that was cancelled has come to nothing."""


@attrs.frozen(kw_only=True)
class Drawn:
    """What was drawn, and what it was drawn from."""

    recorded: tuple[Recorded, ...]
    """In the order of their ranks."""

    population: Mapping[str, int]
    """How many results there are of each status that takes part."""

    left_out: Mapping[str, int]
    """How many results there are of each other status."""

    duplicates: int
    """How many results were left out because an earlier one has the same key."""

    seed: int


class SampleDraw:
    """Draws while results are added."""

    def __init__(self, size: int, *, seed: int = 0, stratify: bool = False) -> None:
        """Draw ``size`` results.

        Args:
          size: How many to draw at most.
          seed: Another seed draws another sample; the same seed draws the same one.
          stratify: Whether what failed or timed out takes part, too, each with its share and with
            one result at least; else only what is ok.
        """
        self._size = size
        self._seed = seed
        self._stratify = stratify
        self._statuses: dict[bytes, str] = {}
        self._lowest: dict[str, list[tuple[int, int, Recorded]]] = {}
        self._counts: dict[str, int] = {}
        self._left_out: dict[str, int] = {}
        self._duplicates = 0

    def add(self, recorded: Recorded) -> None:
        """Add a result; if one with its key is there, that one counts."""
        key = _hashed(recorded.key)
        if key in self._statuses:
            self._duplicates += 1
            return
        status = self._statuses[key] = sys.intern(recorded.status)
        if status not in _ENDED or (not self._stratify and status != "ok"):
            self._left_out[status] = self._left_out.get(status, 0) + 1
            return
        self._counts[status] = self._counts.get(status, 0) + 1
        rank = -int.from_bytes(_hashed(recorded.key, salt=f"{self._seed} ".encode()))
        lowest = self._lowest.setdefault(status, [])
        # The highest rank comes first; the number only keeps results from being compared.
        entry = (rank, len(self._statuses), recorded)
        if len(lowest) < self._size:
            heapq.heappush(lowest, entry)
        elif entry > lowest[0]:
            heapq.heapreplace(lowest, entry)

    def __len__(self) -> int:
        """Return how many keys there are."""
        return len(self._statuses)

    def status_of(self, key: Any) -> str | None:
        """Return the status of the result with this key; None if there is none."""
        return self._statuses.get(_hashed(key))

    def draw(self) -> Drawn:
        """Return what was drawn of all that was added."""
        drawn: list[Recorded] = []
        for status, count in _shares(self._counts, self._size).items():
            lowest = sorted(self._lowest[status], reverse=True)
            drawn += [recorded for _, _, recorded in lowest[:count]]
        return Drawn(
            recorded=tuple(drawn),
            population=dict(self._counts),
            left_out=dict(self._left_out),
            duplicates=self._duplicates,
            seed=self._seed,
        )


def _hashed(key: Any, salt: bytes = b"") -> bytes:
    text = repr(key).encode(errors="surrogatepass")
    return hashlib.blake2b(salt + text, digest_size=_KEY_BYTES).digest()


def _shares(counts: Mapping[str, int], size: int) -> dict[str, int]:
    """Divide a sample among strata by their sizes; each gets one at least while there are any."""
    total = sum(counts.values())
    if size >= total:
        return dict(counts)
    largest_first = sorted(counts, key=lambda status: (-counts[status], status))
    shares = {
        status: min(counts[status], max(1, size * counts[status] // total))
        for status in largest_first[:size]
    }
    while (over := sum(shares.values()) - size) != 0:
        step = -1 if over > 0 else 1
        # Whoever is furthest from the exact share, and has something to give or to take.
        able = [
            status
            for status in shares
            if (shares[status] > 1 if over > 0 else shares[status] < counts[status])
        ]
        best = max(able, key=lambda status: step * (size * counts[status] / total - shares[status]))
        shares[best] += step
    return shares
