"""Say how long what is left of a batch takes, as a range, from what its items have taken so far.

How fast items end in the long run follows from what binds: how many run at once, or what the
limiter's `feasible` says. What that doesn't tell, the way in and the stragglers at the end, is
simulated as for a plan. Both are worked out from many samples, each drawn from the items seen, so
that the range shows how little a few items say.

The items that have ended so far aren't a fair sample: the short ones end first. So those still in
flight count too, as items that take longer than they have taken by now (the Kaplan-Meier estimate).
"""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from statistics import NormalDist, correlation, fmean, linear_regression

import attrs

from harness.limits import Limiter
from harness.observe._simulate import Grant, Release, Steps, Tokens, simulate

DRAWS = 200
"""How many samples are drawn."""

SIMULATED = 16
"""How many of them are simulated: that takes the most time, and the stragglers differ little."""

SLOWLY_SIMULATED = 200
"""How many items are simulated each time, if they wait for a limiter."""

SEEN_AT_MOST = 500
"""Of more items only the latest count."""

LOWEST, HIGHEST = 0.02, 0.99
"""Which part of the samples the range has. More of the high ones: if the longest items are missing
among those seen, nothing tells how much longer they would be."""

FEW = 15
"""Says how much wider a range is made of a few items: with 30 half as wide again."""

UNUSED = 0.03
"""If so much of what binds wasn't used so far, something else held the batch up, and will again."""

POINTS = 50
"""How many of the items the distribution of the longest is fitted to; more say hardly more."""

STEPS = 10
"""In how many steps it is told how long the longest items take."""

SLOPE_AT_MOST = 1.5
"""Of the logarithms of durations: a few odd items mustn't make the longest take for ever."""

LONGER_AT_MOST = 30
"""No item takes more than that many times as long as any has taken so far."""

LIMIT = "limit"
"""What binds if it is the number of items in flight."""

_LIMITER = "batch"

_NORMAL = NormalDist()


@attrs.frozen
class Seen:
    """What one item took."""

    seconds: float
    """How long it was in progress, without the time that it waited for limits."""

    calls: int = 1
    """How many requests it made."""

    tokens: float | None = None
    """How many tokens they used in all; None if nobody knows."""


@attrs.frozen(kw_only=True)
class Rest:
    """What is left of a batch, and how it is limited."""

    items: int
    """How many items haven't ended."""

    limit: int
    """How many are in flight at once."""

    limiter: Callable[[], Limiter] | None = None
    """Makes a fresh limiter like the one that they wait for."""

    in_flight: Sequence[float] = ()
    """For how long each item in flight has been in progress, as in `Seen.seconds`."""

    most: float | None = None
    """How long an item is allowed to take; None for any time."""

    elapsed: float = 0.0
    """For how long the batch has been running."""

    busy: float = 0.0
    """For how long items were in progress in all that time, all together."""

    requests: int = 0
    """How many requests were granted in that time."""


@attrs.frozen
class Forecast:
    """When a batch will be over, counted from its beginning."""

    seconds: float
    """The middle: as likely too long as too short."""

    low: float
    """The range: it will take this long at least, and at most `high`."""

    high: float

    binding: str
    """What holds it back: a dimension of the limiter, its ``"places"``, or the ``"limit"``."""

    per_second: float
    """How many items end per second, in the long run."""

    tokens_each: float | None
    """How many tokens an item uses; None if nobody knows."""

    calls_each: float = 1.0
    """How many requests it makes."""

    is_least: bool = False
    """Whether it will take that long at least: nobody knows how long an item takes."""


def settled_tokens(limiter: Limiter) -> float | None:
    """Return how many tokens requests really used of late; None if none has told."""
    mean: float | None = limiter._grants.estimates.mean_tokens()
    return mean


def from_limits(rest: Rest, tokens: float | None) -> Forecast | None:
    """Return what the limits alone say, if nothing is known of how long an item takes.

    Args:
      rest: What is to be done. It needs a limiter.
      tokens: How many tokens an item uses, if known.
    """
    if rest.limiter is None:
        return None
    try:
        found = rest.limiter().feasible(tokens=tokens)
    except ValueError:  # Nobody knows how many tokens.
        return None
    if found.per_minute is None:
        return None
    pace = found.per_minute / 60
    seconds = rest.items / pace
    return Forecast(seconds, seconds, seconds, found.binding, pace, tokens, is_least=True)


def from_items(seen: Sequence[Seen], rest: Rest, *, seed: int = 0) -> Iterator[Forecast | None]:
    """Work out a forecast, in steps of a few milliseconds: None is yielded until it is there."""
    known = sorted(
        [(one.seconds, 0, one) for one in seen[-SEEN_AT_MOST:]]
        + [(seconds, 1, None) for seconds in rest.in_flight],
        key=lambda one: one[:2],
    )
    middle = _Sample(known, rest.most)
    per_second, binding = _pace(middle, rest)
    idle = _idle(middle, rest, per_second, binding)
    coming = max(0, rest.items - len(rest.in_flight))
    # As many as leave the same doubt as those seen, and as those to come, which differ too.
    size = max(1, round(len(known) * coming / (len(known) + coming))) if coming else len(known)
    draw = random.Random(seed)
    found: list[float] = []
    overheads: list[float] = []
    # With a limiter one takes ten times as long, and the limiter counts for more than the limit.
    simulated = min(coming, SLOWLY_SIMULATED if rest.limiter else rest.limit + 100)
    for number in range(DRAWS):
        sample = _Sample([known[place] for place in _drawn(known, size, draw)], rest.most)
        pace, _ = _pace(sample, rest)
        if number < SIMULATED:
            ends = simulate(_items(sample, rest, simulated, draw), _limit(rest), _limiters(rest))
            until = ends.seconds if simulated == coming else ends.last_began
            overheads.append(until - simulated / pace)
        left = coming / pace + overheads[number % len(overheads)]
        if simulated < coming:
            left += sample.tail.straggler(pace, draw.random())
        found.append(rest.elapsed + max(0.0, left) * idle)
        yield None
    found.sort()
    seconds = found[DRAWS // 2]
    # Of a few items, samples drawn from them differ less than the few do from others.
    wider = 1 + FEW / len(middle.items)
    low = seconds - (seconds - found[round(DRAWS * LOWEST)]) * wider
    high = seconds + (found[round(DRAWS * HIGHEST)] - seconds) * wider
    yield Forecast(
        seconds,
        max(rest.elapsed, low),
        high,
        binding,
        per_second / idle,
        middle.tokens,
        middle.calls,
    )


_Known = tuple[float, int, Seen | None]
"""The seconds of an item, and the item if it has ended; else 1, which sorts it behind."""


class _Sample:
    """Items, each with how often it may be expected."""

    def __init__(self, known: Sequence[_Known], most: float | None) -> None:
        """Weigh ``known``, in order of its seconds; at least one has ended."""
        self.items: list[Seen] = []
        self.upto: list[float] = []
        """For each item the weight of all up to it; the last is 1."""
        share, left = 1.0, len(known)
        for _, _, one in known:
            if one is not None:
                share -= share / left
                self.items.append(one)
                self.upto.append(1 - share)
            left -= 1
        tokens = [one.tokens for one in self.items if one.tokens is not None]
        most = min(LONGER_AT_MOST * known[-1][0], math.inf if most is None else most)
        self.tail = _Tail(self.items, self.upto, most)
        if share > 1e-9:  # The longest are still in flight.
            calls = round(sum(one.calls for one in self.items) / len(self.items))
            mean_tokens = sum(tokens) / len(tokens) if tokens else None
            for seconds in self.tail.beyond(known[-1][0]):
                self.items.append(Seen(seconds, calls, mean_tokens))
                self.upto.append(self.upto[-1] + share / STEPS)
        self.upto[-1] = 1.0
        self.weights = [upto - before for before, upto in itertools.pairwise([0.0, *self.upto])]
        self.seconds = self._mean([one.seconds for one in self.items])
        self.calls = self._mean([one.calls for one in self.items])
        self.tokens = self._mean([one.tokens or 0.0 for one in self.items]) if tokens else None

    def _mean(self, values: Sequence[float]) -> float:
        return sum(value * weight for value, weight in zip(values, self.weights, strict=True))

    def remaining(self, seconds: float, draw: random.Random) -> float:
        """Draw how much longer an item takes that has taken ``seconds``."""
        place = bisect_right(self.items, seconds, key=lambda one: one.seconds)
        before = self.upto[place - 1] if place else 0.0
        if before > 1 - 1e-9:  # Longer than any of this sample.
            return draw.choice(self.tail.beyond(seconds)) - seconds
        place = bisect_right(self.upto, before + (1 - before) * draw.random())
        return self.items[min(place, len(self.items) - 1)].seconds - seconds


class _Tail:
    """How long the longest items take: longer than any that has ended.

    As if durations were log-normal or had a Weibull distribution, whichever fits better: how long
    something takes that waits for a network or a model nearly always looks like one of them. On a
    plot made for it, either is a straight line; it is drawn through the items that have ended.
    """

    def __init__(self, items: Sequence[Seen], upto: Sequence[float], most: float) -> None:
        before = [0.0, *upto]
        step = max(1, len(items) // POINTS)
        points = range(step // 2, len(items), step)
        shares = [1 - (before[point] + upto[point]) / 2 for point in points]
        logs = [math.log(max(items[point].seconds, 1e-6)) for point in points]
        self._most = most
        self._slope, self._middle, self._scale = 0.0, fmean(logs), _normal_scale
        best = -1.0
        if logs[0] == logs[-1]:
            return
        for scale in (_normal_scale, _weibull_scale):
            places = [scale(share) for share in shares]
            fit = correlation(places, logs)
            if fit > best:
                best, self._scale = fit, scale
                self._slope = min(linear_regression(places, logs).slope, SLOPE_AT_MOST)
                self._middle = fmean(logs) - self._slope * fmean(places)

    def exceeded(self, share: float) -> float:
        """Return what this share of the items exceed."""
        return min(math.exp(self._middle + self._slope * self._scale(share)), self._most)

    def beyond(self, seconds: float) -> list[float]:
        """Return how long items take that take longer than ``seconds``, in `STEPS` steps."""
        low, high = 1e-12, 1 - 1e-12
        for _ in range(40):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.exceeded(middle) > seconds else (low, middle)
        return [max(seconds, self.exceeded(low * (n + 0.5) / STEPS)) for n in range(STEPS)]

    def straggler(self, per_second: float, chance: float) -> float:
        """Return how long the last item takes after the last was started.

        Items were started all along, so how many are still running ``x`` seconds later is a
        Poisson number: as many as are started in the time that an item takes beyond ``x``.

        Args:
          per_second: How many items were started per second.
          chance: How likely it takes no longer than that.
        """
        allowed = -math.log(max(chance, 1e-12)) / per_second
        share, seconds, beyond = _SHARES[0], self.exceeded(_SHARES[0]), 0.0
        for larger in _SHARES[1:]:
            shorter = self.exceeded(larger)
            beyond += (seconds - shorter) * (share + larger) / 2
            if beyond > allowed:
                break
            share, seconds = larger, shorter
        return seconds


_SHARES = [10 ** (-step / 8) for step in range(64, -1, -1)]


def _normal_scale(share: float) -> float:
    return -_NORMAL.inv_cdf(min(max(share, 1e-12), 1 - 1e-12))


def _weibull_scale(share: float) -> float:
    return math.log(-math.log(min(max(share, 1e-12), 1 - 1e-12)))


def _drawn(known: Sequence[_Known], size: int, draw: random.Random) -> list[int]:
    """Return the places of a sample, in order; one of them at least has ended."""
    while True:  # Ends: some have.
        places = sorted(draw.choices(range(len(known)), k=size))
        if any(known[place][2] is not None for place in places):
            return places


def _pace(sample: _Sample, rest: Rest) -> tuple[float, str]:
    """Return how many items can end per second in the long run, and what keeps more from it."""
    paces = {LIMIT: rest.limit / max(sample.seconds, 1e-9)}
    if rest.limiter is not None:
        tokens = (sample.tokens or 0.0) / sample.calls
        found = rest.limiter().feasible(tokens=tokens, seconds=sample.seconds / sample.calls)
        if found.per_minute is not None:
            paces[found.binding] = found.per_minute / 60 / sample.calls
    binding = min(paces, key=lambda name: paces[name])
    return paces[binding], binding


def _idle(sample: _Sample, rest: Rest, per_second: float, binding: str) -> float:
    """Return how many times longer everything has taken than what binds explains; 1 if it does."""
    if not rest.elapsed:
        return 1.0
    if binding == LIMIT and rest.limiter is None:
        used = rest.busy / (rest.elapsed * rest.limit)
    elif binding in (LIMIT, "places"):
        return 1.0  # Who isn't in progress waits for the limiter.
    else:
        used = rest.requests / sample.calls / (rest.elapsed * per_second)
    return 1 / used if 0 < used < 1 - UNUSED else 1.0


def _limit(rest: Rest) -> int:
    return max(rest.limit, len(rest.in_flight))


def _limiters(rest: Rest) -> dict[str, Limiter]:
    return {} if rest.limiter is None else {_LIMITER: rest.limiter()}


def _items(sample: _Sample, rest: Rest, coming: int, draw: random.Random) -> Iterator[Steps]:
    """Yield what those in flight still do, and what those do that come after them."""
    holds_place = rest.limiter is not None and rest.limiter().statistics().concurrent is not None
    for seconds in rest.in_flight:
        remaining = sample.remaining(seconds, draw)
        # What they have of other limits was granted before.
        yield (Grant(_LIMITER, Tokens(0)), remaining) if holds_place else (remaining,)
    for one in draw.choices(sample.items, cum_weights=sample.upto, k=coming):
        if rest.limiter is None:
            yield (one.seconds,)
            continue
        tokens = Tokens((one.tokens or 0.0) / one.calls)
        call = (Grant(_LIMITER, tokens), one.seconds / one.calls, Release(_LIMITER))
        yield call * one.calls
