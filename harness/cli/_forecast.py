"""Forecast a batch: before it, from its limits and earlier nights, and while it runs.

Only what items take is noted here, as they begin and end; `harness.observe._forecast` works out
what that comes to, in steps of some milliseconds, and seldom: that costs about a percent.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import attrs
import trio

from harness._pace import span, spans
from harness.cli._journal import timings_in
from harness.cli._limits import own_limiter
from harness.cli._options import BatchOptions
from harness.cli._records import Record
from harness.fanout import Result
from harness.limits import Limiter
from harness.observe._forecast import (
    LIMIT,
    SEEN_AT_MOST,
    Forecast,
    Rest,
    Seen,
    from_items,
    from_limits,
    settled_tokens,
)
from harness.runs import current_run
from harness.runs._accounts import add_meter

logger = logging.getLogger("harness.cli")

ENOUGH = 20
"""How many items must have ended before they say how long the others take. And half as many as are
in flight: the first to end are the short ones, which say little of the long ones."""

_BYTES_PER_TOKEN = 4
"""For what nobody has counted, as models guess too."""

_TIMINGS_KEPT = 200
"""What so many items took is left in the journal."""

_LATEST = 100
"""From so many of the latest items it is judged what can still end within the window."""

_FIRST_LOOK_SECONDS = 1.0
"""How often it is checked whether enough items have ended for a first forecast."""

_LOOK_SECONDS = 10.0
_LOOKS_PART = 0.1
"""A forecast is made again after that time, or after that part of the time so far if it is more."""

WORTH_SAYING_SECONDS = 60.0
"""A batch that is over sooner, and has no window, needs no forecast."""


Say = Callable[[str], None]


class _Item:
    """What one item has taken so far."""

    __slots__ = ("busy", "calls", "is_over", "last", "requests", "since", "tokens")

    def __init__(self) -> None:
        self.busy = 0.0
        self.calls = 0
        self.requests = 0
        """Calls of models."""
        self.tokens = 0.0
        self.since: float | None = None
        """Since when a call is running."""
        self.last: float | None = None
        """When the last call ended."""
        self.is_over = False
        """Whether it has succeeded; its result may still have to wait for others."""

    def spent(self, tokens: int, cost_usd: float) -> None:
        """Hear of what was used, as a `UsageMeter`."""
        self.tokens += tokens

    def called_model(self, model: str, tokens: tuple[int, int, int, int]) -> None:
        """Hear of a call of a model, as a `UsageMeter`."""
        self.requests += 1


@attrs.frozen(kw_only=True)
class Terms:
    """What a forecast starts from."""

    limit: int
    """How many items run at once."""

    limiter: Callable[[], Limiter] | None = None
    """Makes a fresh limiter, like the one of the batch."""

    is_agent: bool = False
    """Whether an item makes calls of its own, which wait for the limiter."""

    tokens: int | Callable[[Any], int] | None = None
    """How many tokens a record uses."""

    timeout: float | None = None
    """How long an attempt may take."""

    within: float | None = None
    """How long the batch may take."""

    quiet: bool = False
    """Whether nobody wants to be told."""

    earlier: tuple[Seen, ...] = ()
    """What items took in earlier sessions."""


def terms_of(options: BatchOptions, *, is_agent: bool) -> Terms:
    """Return what a forecast of a batch from the command line starts from.

    Raises:
      InputError: if its journal can't be read.
    """
    # Its own even in a fleet: how much the others will use isn't known.
    limiter = partial(own_limiter, options)
    return Terms(
        limit=options.limit,
        limiter=None if own_limiter(options) is None else cast("Callable[[], Limiter]", limiter),
        is_agent=is_agent,
        tokens=tokens_of if isinstance(options.tokens, str) else options.tokens,
        timeout=options.timeout,
        within=options.within,
        quiet=options.quiet,
        earlier=tuple(
            Seen(float(seconds or 0), int(calls or 1), tokens)
            for seconds, calls, tokens in timings_in(options.journal)
        ),
    )


def tokens_of(record: Record) -> int:
    """Return how many tokens a record uses, as one of its fields says."""
    return record.tokens


def guess_tokens(terms: Terms) -> Callable[[Record], float]:
    """Return what says how many tokens a record will use, as far as that can be said before."""
    tokens = terms.tokens
    if tokens is not None:
        return tokens if callable(tokens) else lambda record: tokens
    limiter = terms.limiter() if terms.is_agent and terms.limiter is not None else None
    if limiter is None:
        return lambda record: 0
    return lambda record: limiter.estimate(
        input_tokens=len(f"{record.value}".encode(errors="replace")) / _BYTES_PER_TOKEN
    )


def before(terms: Terms, items: int, tokens: float | None) -> Iterator[Forecast | None]:
    """Forecast a batch that hasn't begun, in steps: what is yielded last counts.

    Args:
      terms: What to start from.
      items: How many items there are to do.
      tokens: How many tokens one of them uses, if known.
    """
    rest = Rest(items=items, limit=terms.limit, limiter=terms.limiter, most=terms.timeout)
    if items and terms.earlier:
        yield from from_items(terms.earlier, rest)
    else:
        yield from_limits(rest, tokens) if items else None


class Forecaster:
    """Notes what the items of a batch take, and forecasts when it will be over."""

    def __init__(self, terms: Terms, limiter: Limiter | None) -> None:
        self._terms = terms
        self._limiter = limiter
        self._waits = limiter is not None
        self._items: dict[int, _Item] = {}
        self._seen: deque[Seen] = deque(maxlen=SEEN_AT_MOST)
        self._busy = 0.0
        self._ended = 0
        self._latest: deque[float] = deque(maxlen=_LATEST)
        self._started_at = 0.0
        self._is_begun = False
        self.begun = trio.Event()
        """Set when the first item is called."""
        self.first: Forecast | None = None
        """What was forecast first."""
        self.now: Forecast | None = None
        """What was forecast last."""

    # What the batch tells it --------------------------------------------------------------------

    def call_begins(self, record: Record, now: float) -> None:
        """Note that a record's function is called."""
        if not self._is_begun:
            self._is_begun = True
            self._started_at = now
            self.begun.set()
        item = self._items.get(record.index)
        if item is None:
            item = self._items[record.index] = _Item()
        elif not self._waits and item.since is None and item.last is not None:
            item.busy += now - item.last  # The delay before a retry; its slot was taken.
        if self._terms.is_agent and self._waits:
            add_meter(current_run(), item)
        item.calls += 1
        if item.since is None:
            item.since = now

    def call_ends(self, record: Record, now: float) -> None:
        """Note that the call is over."""
        item = self._items.get(record.index)
        if item is None or item.since is None:
            return
        item.last = now
        item.busy += now - item.since
        item.since = None
        tokens = self._terms.tokens
        if tokens is not None:
            item.tokens += tokens(record) if callable(tokens) else tokens

    def ended(self, result: Result[Any]) -> None:
        """Note that an item has ended."""
        item = self._items.pop(result.index, None)
        if item is None:
            return
        self._busy += item.busy
        if result.ok or result.failed:
            self._latest.append(result.seconds)
        if not item.is_over:
            self._ended += 1
            if result.failed:
                self._saw(item)

    def succeeded(self, record: Record) -> None:
        """Note that a record's item has its value."""
        item = self._items.get(record.index)
        if item is not None and not item.is_over:
            item.is_over = True
            self._ended += 1
            self._saw(item)

    def _saw(self, item: _Item) -> None:
        calls = item.requests if self._terms.is_agent and item.requests else item.calls
        self._seen.append(Seen(item.busy, calls, item.tokens or None))

    # What it tells ------------------------------------------------------------------------------

    async def keep_up(
        self, items: Callable[[], int | None], tokens: Callable[[], float | None], say: Say
    ) -> None:
        """Forecast the batch again and again, until cancelled.

        Args:
          items: Returns how many items there are to do in all, without those that the journal has;
            None if nobody knows.
          tokens: Returns how many tokens one of them uses, before any has told.
          say: Is told of the first forecast, if that is worth a line.

        Checkpoint: always.

        Cancellation: leaves the last forecast.
        """
        await self.begun.wait()
        if (count := items()) is not None:
            await self._work_out(before(self._terms, count, tokens()), say)
        while True:
            passed = trio.current_time() - self._started_at
            pause = max(_LOOK_SECONDS, passed * _LOOKS_PART)
            await trio.sleep(_FIRST_LOOK_SECONDS if self._is_blind() else pause)
            count = items()
            if count is None or not self._knows_enough():
                continue
            await self._work_out(from_items(self._fair(), self._rest(count)), say)

    async def _work_out(self, steps: Iterator[Forecast | None], say: Say) -> None:
        try:
            for found in steps:
                if found is not None:
                    self._tell(found, say)
                await trio.lowlevel.checkpoint()
        except (ArithmeticError, ValueError):  # No batch ends for want of a forecast.
            logger.exception("the batch can't be forecast")

    def _is_blind(self) -> bool:
        return self.now is None or self.now.is_least

    def _tell(self, found: Forecast, say: Say) -> None:
        self.now = found
        if self.first is None:
            self.first = found
            is_long = self._terms.within is not None or found.seconds >= WORTH_SAYING_SECONDS
            if is_long and not self._terms.quiet:
                say(f"forecast: {self.words()}")

    def words(self) -> str | None:
        """Return the latest forecast in words; None if there is none yet."""
        return None if self.now is None else in_words(self.now, given=self._terms.within)

    def typical_seconds(self) -> float:
        """Return how long 19 of 20 of the latest items took at most, waits included."""
        latest = sorted(self._latest)
        return latest[len(latest) * 19 // 20] if latest else 0.0

    def timings(self) -> list[list[float | None]]:
        """Return what items took, for later sessions."""
        seen: Sequence[Seen] = self._fair()
        if len(seen) < ENOUGH and self._terms.earlier:
            seen = self._terms.earlier
        kept = random.Random(len(seen)).sample(seen, min(len(seen), _TIMINGS_KEPT))
        return [[round(one.seconds, 6), one.calls, one.tokens] for one in kept]

    def _knows_enough(self) -> bool:
        running = sum(item.since is not None for item in self._items.values())
        return len(self._seen) >= max(ENOUGH, running // 2)

    def _rest(self, items: int) -> Rest:
        now = trio.current_time()
        working = 1 - self._waiting_share()
        ages = [
            (item.busy + now - item.since) * working
            for item in self._items.values()
            if item.since is not None
        ]
        waiting = sum(item.busy for item in self._items.values() if item.since is None)
        return Rest(
            items=max(len(ages), items - self._ended),
            limit=self._terms.limit,
            limiter=self._terms.limiter,
            in_flight=ages,
            most=self._terms.timeout,
            elapsed=now - self._started_at,
            busy=(self._busy + waiting) * working + sum(ages),
            requests=0 if self._limiter is None else self._limiter.statistics().granted,
        )

    def _fair(self) -> list[Seen]:
        """Return what items took, without waits, and with the tokens that they really used."""
        working, share = 1 - self._waiting_share(), 1.0
        if self._limiter is not None and self._terms.tokens is not None and self._seen:
            stated = sum(one.tokens or 0.0 for one in self._seen) / sum(
                one.calls for one in self._seen
            )
            used = settled_tokens(self._limiter)
            share = used / stated if used and stated else 1.0
        return [
            Seen(one.seconds * working, one.calls, one.tokens and one.tokens * share)
            for one in self._seen
        ]

    def _waiting_share(self) -> float:
        """Return which part of its time an agent's item waited for the limiter, on average."""
        if not (self._terms.is_agent and self._limiter is not None and self._busy):
            return 0.0
        return min(self._limiter.statistics().waited_seconds / self._busy, 0.99)


def in_words(forecast: Forecast, *, given: float | None) -> str:
    """Return a forecast in one line, such as ``9 h needed, 6 h given: tokens bind``.

    Args:
      forecast: The forecast.
      given: How long the batch may take; None for any time.
    """
    least = "at least " if forecast.is_least else ""
    window = "" if given is None else f", {span(given)} given"
    what = "the limit binds" if forecast.binding == LIMIT else f"{forecast.binding} bind"
    words = f"{least}{spans(forecast.low, forecast.high)} needed{window}: {what}"
    if given is None or forecast.seconds <= given:
        return words
    items = (forecast.seconds - given) * forecast.per_second
    short = {"tokens": forecast.tokens_each, "requests": forecast.calls_each}.get(forecast.binding)
    if short is None:
        return f"{words}; {_amount(items)} items won't fit"
    return f"{words}; {_amount(items * short)} {forecast.binding} short, for {_amount(items)} items"


def _amount(number: float) -> str:
    if number >= 1e6:
        return f"{number / 1e6:,.0f} M" if number >= 1e7 else f"{number / 1e6:.1f} M"
    return f"{number:,.0f}"
