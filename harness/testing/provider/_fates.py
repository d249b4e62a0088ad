"""Decide which requests go wrong at a simulated provider, and how.

What happens to a request depends on the seed, on what the request says, and on how often the same
was said before; not on when it arrives or what else is in progress. So a run repeats although tasks
race, and the retry of a failed request may get through.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Literal, TypeAlias

import attrs

from harness._arguments import says_near_options

FateKind: TypeAlias = Literal["answer", "error", "cut", "malformed", "hang"]

Latency: TypeAlias = float | tuple[float, float] | Callable[[float], float]
"""How long answers take, in seconds: always the same, evenly between two bounds, or a
function of a number from 0 to 1, such as `lognormal` returns."""

# How many different requests are told apart. One repeated after that many others counts as new.
MAX_REMEMBERED_REQUESTS = 65_536

_FIRST_ERROR_STATUS, _LAST_ERROR_STATUS = 400, 599
_DRAW_BYTES = 6


@says_near_options
@attrs.frozen(kw_only=True)
class Storm:
    """A period in which every request gets the same error."""

    status: int = attrs.field(default=429)
    """The error's status."""

    start_seconds: float = attrs.field(default=0.0)
    """When it begins, in seconds since the provider was opened."""

    duration_seconds: float = attrs.field(default=5.0)
    """How long it lasts."""

    every_seconds: float | None = None
    """If given, there is one storm in each period of that length from ``start_seconds`` on, at a
    seeded moment inside the period."""

    retry_after_seconds: float | None = None
    """The time to wait that the error names; ``None`` for what is left of the storm."""

    def __attrs_post_init__(self) -> None:
        _check_status("status", self.status)
        _check_seconds("start_seconds", self.start_seconds)
        _check_seconds("duration_seconds", self.duration_seconds)
        if self.retry_after_seconds is not None:
            _check_seconds("retry_after_seconds", self.retry_after_seconds)
        if self.every_seconds is not None and not self.every_seconds >= self.duration_seconds > 0:
            raise ValueError(
                f"a storm of {self.duration_seconds} s can't come every {self.every_seconds} s; "
                "every_seconds must be at least duration_seconds, and both above 0"
            )

    def seconds_left(self, now: float, *, seed: int) -> float:
        """Return how long the storm at ``now`` will still last, or 0 if there is none.

        Args:
          now: Seconds since the provider was opened.
          seed: The seed of its faults.
        """
        begin = self.start_seconds
        if self.every_seconds is not None and now >= begin:
            period = math.floor((now - begin) / self.every_seconds)
            (draw,) = _draws(f"storm:{seed}:{begin}:{period}".encode(), 1)
            slack = self.every_seconds - self.duration_seconds
            begin += period * self.every_seconds + draw * slack
        end = begin + self.duration_seconds
        return end - now if begin <= now < end else 0.0


def _storms(storms: Iterable[Storm]) -> tuple[Storm, ...]:
    return tuple(storms)


@says_near_options
@attrs.frozen
class Faults:
    """What goes wrong, how often, and how long answers take.

    Probabilities are per request, exclude each other and add up to at most 1. An error costs
    nothing of the provider's limits; what is cut, malformed or hangs was accepted first, and is
    charged.
    """

    seed: int = 0
    """With another seed, other requests are hit."""

    errors: Mapping[int, float] = attrs.field(factory=dict[int, float], kw_only=True)
    """Probability of each error status, such as ``{500: 0.1, 529: 0.05}``."""

    cut: float = attrs.field(default=0.0, kw_only=True)
    """Probability that the connection is cut, before the answer or inside it."""

    malformed: float = attrs.field(default=0.0, kw_only=True)
    """Probability that the answer's JSON (in a stream, one event's) breaks off."""

    hang: float = attrs.field(default=0.0, kw_only=True)
    """Probability that no answer comes, or a stream stops, with the connection left open."""

    latency_seconds: Latency = attrs.field(default=0.0, kw_only=True)
    """How long answers, and injected errors, take to begin."""

    event_gap_seconds: float = attrs.field(default=0.0, kw_only=True)
    """Pause before each further event of a stream; 0 sends them in one piece."""

    storms: tuple[Storm, ...] = attrs.field(default=(), converter=_storms, kw_only=True)
    """Periods in which every request fails."""

    retry_after_seconds: float | None = attrs.field(default=1.0, kw_only=True)
    """The time to wait that injected errors with status 429 name; ``None`` for none."""

    def __attrs_post_init__(self) -> None:
        for status in self.errors:
            _check_status("a key of errors", status)
        chances = [*self.errors.values(), self.cut, self.malformed, self.hang]
        if not all(0 <= chance <= 1 for chance in chances) or sum(chances) > 1 + 1e-9:
            raise ValueError(
                f"errors={dict(self.errors)}, cut={self.cut}, malformed={self.malformed} and "
                f"hang={self.hang} must each be from 0 to 1 and add up to at most 1"
            )
        _check_seconds("event_gap_seconds", self.event_gap_seconds)
        if self.retry_after_seconds is not None:
            _check_seconds("retry_after_seconds", self.retry_after_seconds)
        if isinstance(self.latency_seconds, tuple):
            low, high = self.latency_seconds
            _check_seconds("latency_seconds", low)
            _check_seconds("latency_seconds", high)
            if low > high:
                raise ValueError(
                    f"latency_seconds=({low}, {high}) has its bounds the wrong way round"
                )
        elif not callable(self.latency_seconds):
            _check_seconds("latency_seconds", self.latency_seconds)


@attrs.frozen(kw_only=True)
class RequestFate:
    """What happens to one request."""

    kind: FateKind = "answer"
    status: int = 200
    retry_after_seconds: float | None = None
    latency_seconds: float = 0.0
    where: float = 0.0
    """How far into the answer it is cut, breaks off or hangs, from 0 to 1."""


@attrs.define(eq=False)
class RequestFates:
    """Deals out fates, from the faults and how often each request came before."""

    faults: Faults
    _seen: OrderedDict[bytes, int] = attrs.field(init=False, factory=OrderedDict[bytes, int])
    _calm: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        faults = self.faults
        self._calm = not (
            any(faults.errors.values())
            or faults.cut
            or faults.malformed
            or faults.hang
            or faults.storms
            or callable(faults.latency_seconds)
            or isinstance(faults.latency_seconds, tuple)
        )

    def fate_of(self, identify: Callable[[], bytes], now: float) -> RequestFate:
        """Return what happens to a request that arrives at ``now``.

        Args:
          identify: Returns what tells this request from others: its dialect and body. Called only
            if any fault is possible.
          now: Seconds since the provider was opened; only storms ask for it.
        """
        faults = self.faults
        if self._calm:
            assert isinstance(faults.latency_seconds, (int, float))
            return RequestFate(latency_seconds=faults.latency_seconds)
        key = hashlib.blake2b(identify(), digest_size=16).digest()
        times = self._seen.pop(key, 0)
        self._seen[key] = times + 1  # Popped and put back, to keep the order of last use.
        if len(self._seen) > MAX_REMEMBERED_REQUESTS:
            self._seen.popitem(last=False)
        chance, speed, where = _draws(b"%d:%d:%b" % (faults.seed, times, key), 3)
        latency = _latency_seconds(faults.latency_seconds, speed)
        error = partial(RequestFate, kind="error", latency_seconds=latency)

        for storm in faults.storms:
            left = storm.seconds_left(now, seed=faults.seed)
            if left > 0:
                wait = storm.retry_after_seconds
                wait = left if wait is None else wait
                return error(status=storm.status, retry_after_seconds=wait)
        for status, probability in faults.errors.items():
            if chance < probability:
                wait = faults.retry_after_seconds if status == 429 else None
                return error(status=status, retry_after_seconds=wait)
            chance -= probability
        chances: tuple[tuple[FateKind, float], ...] = (
            ("cut", faults.cut),
            ("malformed", faults.malformed),
            ("hang", faults.hang),
        )
        for kind, probability in chances:
            if chance < probability:
                return RequestFate(kind=kind, latency_seconds=latency, where=where)
            chance -= probability
        return RequestFate(latency_seconds=latency)


def lognormal(*, median_seconds: float, p99_seconds: float) -> Callable[[float], float]:
    """Return a latency with the long tail that real providers have.

    Args:
      median_seconds: Half of the answers are quicker.
      p99_seconds: One answer in a hundred is slower.

    Raises:
      ValueError: unless ``0 < median_seconds <= p99_seconds``.
    """
    if not 0 < median_seconds <= p99_seconds < math.inf:
        raise ValueError(
            f"median_seconds={median_seconds} and p99_seconds={p99_seconds} must be finite, "
            "above 0, and the median at most the other"
        )
    normal = statistics.NormalDist()
    spread = math.log(p99_seconds / median_seconds) / normal.inv_cdf(0.99)

    def latency_seconds(draw: float) -> float:
        # The ends would be 0 and infinity; both are cut off at one in a million.
        return median_seconds * math.exp(spread * normal.inv_cdf(min(max(draw, 1e-6), 1 - 1e-6)))

    return latency_seconds


def _latency_seconds(latency: Latency, draw: float) -> float:
    if callable(latency):
        return max(0.0, latency(draw))
    if isinstance(latency, tuple):
        low, high = latency
        return low + draw * (high - low)
    return latency


def _draws(what: bytes, count: int) -> list[float]:
    """Return ``count`` numbers from 0 to below 1 that depend only on ``what``."""
    digest = hashlib.blake2b(what, digest_size=count * _DRAW_BYTES).digest()
    return [
        int.from_bytes(digest[start : start + _DRAW_BYTES], "big") / 2 ** (8 * _DRAW_BYTES)
        for start in range(0, len(digest), _DRAW_BYTES)
    ]


def _check_status(name: str, status: int) -> None:
    if isinstance(status, bool) or not isinstance(status, int):
        raise TypeError(f"{name} must be an HTTP status, not {status!r}")
    if not _FIRST_ERROR_STATUS <= status <= _LAST_ERROR_STATUS:
        raise ValueError(f"{name} must be an error's status, from 400 to 599, not {status}")


def _check_seconds(name: str, seconds: float) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, not {seconds!r}")
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"{name} must be finite and at least 0, not {seconds}")
