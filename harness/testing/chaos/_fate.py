"""Decide what happens to a call from a seed and from which call it is.

Nothing is drawn from a generator that calls share: then the fate of one would depend on how many
came before it, and a failing test might not fail again. It is a hash of the seed, the run's path,
what is called with what, and how often that has been called the same way before.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Literal, TypeAlias

import attrs

from harness._words import repr_of

Kind: TypeAlias = Literal["nothing", "delay", "fail", "cancel"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_DRAW_BYTES = 6


@attrs.frozen(kw_only=True)
class CallFate:
    """What happens to one call."""

    kind: Kind = "nothing"
    """What."""

    delay_seconds: float = 0.0
    """How long it is held up before anything else."""

    after: bool = False
    """Whether the fault comes after the call, so that it was made and its answer is lost."""

    which: float = 0.0
    """A number from 0 to 1 that picks one of several errors."""


@attrs.frozen(kw_only=True)
class Odds:
    """How likely each fault is, and how long a delay lasts."""

    delay: float = 0.0
    fail: float = 0.0
    cancel: float = 0.0
    delay_seconds: tuple[float, float] = (0.0, 0.0)
    after: float = 0.0


def fate_of(call: str, odds: Odds) -> CallFate:
    """Return what happens to the call with this description."""
    which, how_long, when, error = _draws(call)
    low, high = odds.delay_seconds
    kinds: tuple[tuple[Kind, float], ...] = (
        ("fail", odds.fail),
        ("cancel", odds.cancel),
        ("delay", odds.delay),
    )
    for kind, chance in kinds:
        if which < chance:
            if kind == "delay":
                return CallFate(kind=kind, delay_seconds=low + (high - low) * how_long)
            return CallFate(kind=kind, after=when < odds.after, which=error)
        which -= chance
    return CallFate()


def describe_call(seed: int, path: str, name: str, args: tuple[Any, ...], named: Any) -> str:
    """Return which call this is, in words that are the same in every process."""
    given = ", ".join(
        [*map(repr_of, args), *(f"{key}={repr_of(value)}" for key, value in sorted(named.items()))]
    )
    return _ADDRESS.sub("", f"{seed}|{path}|{name}({given})")


def _draws(text: str) -> tuple[float, ...]:
    digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=4 * _DRAW_BYTES).digest()
    scale = float(1 << 8 * _DRAW_BYTES)
    return tuple(
        int.from_bytes(digest[place : place + _DRAW_BYTES], "big") / scale
        for place in range(0, len(digest), _DRAW_BYTES)
    )
