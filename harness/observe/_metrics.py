"""Count what runs do, in bounded memory: how busy, how long, how often it fails, what it costs.

Nothing is sampled. Each notice moves a few numbers, and only what is still running is kept: a
fan-out until its run is over, an item until it has its result. So the size is that of the program,
not of its history.

How busy a fan-out is follows from the moments at which its items begin to work and cease to.
Between two such moments nothing changes, so each adds the time since the last, multiplied by what
was so. An item ceases to work while its run waits for a limit, for a slot of a stage, or for its
next attempt.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol
from weakref import WeakMethod

import attrs
import trio
from trio.lowlevel import enable_ki_protection

from harness.fanout import FanOutBegan, FanOutStatistics, HedgeBegan, ItemOver, RetryPlanned
from harness.limits import LimiterStatistics, LimiterUsed
from harness.models import ModelCallOver, ToolCallOver
from harness.observe._distribution import Distribution
from harness.runs import Event, RunBegan, RunOver, WaitBegan, WaitOver

RUNS_REMEMBERED = 1_000
"""Of so many runs that are over and spent something, it is known how much."""

KINDS_AT_MOST = 200
"""So many models, or tools, are told apart; all others are counted under `OTHERS`."""

OTHERS = "(others)"
"""What stands for models or tools beyond that."""

IDLE_WAITS = frozenset({"limiter", "queue", "retry"})
"""While an item waits for one of these, its worker does nothing."""

ENDED = frozenset({"ok", "failed", "timed_out"})
"""How items end that nobody cut short: these are what an aggregation waits for."""


@attrs.frozen
class Spent:
    """What calls to models used."""

    calls: int = 0
    """How many calls there were, failed ones included."""

    input_tokens: int = 0
    """Their input, as far as it is known."""

    output_tokens: int = 0
    """Their output."""

    cached_input_tokens: int = 0
    """The part of the input that came from a provider's cache."""

    cost_usd: float = 0.0
    """What that cost, of models that have a price."""

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def plus(self, call: ModelCallOver) -> Spent:
        """Return this with one more call."""
        usage = call.usage
        if usage is None:
            return attrs.evolve(self, calls=self.calls + 1)
        return Spent(
            self.calls + 1,
            self.input_tokens + usage.input_tokens,
            self.output_tokens + usage.output_tokens,
            self.cached_input_tokens + usage.cached_input_tokens,
            self.cost_usd + (call.cost_usd or 0.0),
        )


class _Observed(Protocol):
    """A fan-out as it can be asked while it runs."""

    @property
    def slots(self) -> int: ...

    def statistics(self) -> FanOutStatistics: ...


class _FanOut:
    """One fan-out that is running."""

    __slots__ = (
        "ended",
        "fan_out",
        "idle",
        "idle_at_end",
        "in_flight",
        "items",
        "last",
        "peak",
        "slot_seconds",
        "slots",
        "work_seconds",
        "working",
    )

    def __init__(self, fan_out: _Observed, now: float) -> None:
        self.fan_out = fan_out
        self.slots = fan_out.slots
        self.last = now
        self.items: dict[int, int] = {}
        """How many attempts at each item in flight work at the moment."""
        self.working = 0
        """Items that somebody works on."""
        self.in_flight = 0
        self.peak = 0
        """The most that were in flight."""
        self.work_seconds = 0.0
        self.slot_seconds = 0.0
        self.ended: tuple[float, float] | None = None
        """When the first item ended, and the latest; cancelled ones don't count."""
        self.idle = 0.0
        """For how long, since the first end, slots that had been in use were not."""
        self.idle_at_end = 0.0
        """That, as it was at the latest end."""

    def advance(self, now: float) -> None:
        """Count the time until now, before anything changes."""
        seconds = now - self.last
        if seconds > 0:
            self.last = now
            self.work_seconds += self.working * seconds
            self.slot_seconds += self.slots * seconds
            if self.ended is not None:
                self.idle += (self.peak - self.in_flight) * seconds
        self.slots = self.fan_out.slots

    def work(self, index: int, change: int) -> None:
        """Note that one more attempt at an item works, or one less."""
        before = self.items.get(index)
        if before is None:
            if change < 0:
                return  # A late end of an attempt, as of a hedge that lost.
            before = 0
            self.in_flight += 1
            self.peak = max(self.peak, self.in_flight)
        self.items[index] = now = before + change
        self.working += (now > 0) - (before > 0)

    def item_over(self, over: ItemOver) -> None:
        """Note that an item has its result."""
        left = self.items.pop(over.item, None)
        if left is not None:
            self.in_flight -= 1
            self.working -= left > 0
        if over.status in ENDED:
            first = over.ended_at if self.ended is None else self.ended[0]
            self.ended = first, over.ended_at
            self.idle_at_end = self.idle


class _LiveRun:
    """One run that is running."""

    __slots__ = ("began_at", "fan_out", "index", "item", "of", "parent", "spent", "waits")

    def __init__(self, parent: _LiveRun | None, began_at: float) -> None:
        self.parent = parent
        self.began_at = began_at
        self.fan_out: _FanOut | None = None
        """What it is the run of."""
        self.of: _FanOut | None = None
        """What it is an attempt at an item of."""
        self.index = 0
        """Which item."""
        self.item: _LiveRun | None = None
        """The attempt at an item in whose task it is, or which it is."""
        self.waits = 0
        """How many waits there are because of which nobody works on that item."""
        self.spent: Spent | None = None


class Metrics:
    """Count what the runs in a block do: ``with harness.observing(metrics): ...``.

    One object may watch any number of blocks, after each other or at once. All attributes may be
    read at any time; those about what is running now, in trio's thread.

    Times are those of trio's clock, in seconds.
    """

    def __init__(self) -> None:
        self.parallel_completion_time: Distribution = Distribution()
        """From the start of a fan-out, pipeline or router to its end, one value for each."""
        self.item_time: Distribution = Distribution()
        """From the start of an item to its result, with all attempts and waits; without items that
        were cancelled or never started."""
        self.aggregation_wait_time: Distribution = Distribution()
        """For each fan-out, pipeline or router: from the end of its first item to that of the last
        one that it waited for. What cutting stragglers short could save at most."""
        self.aggregation_idle_time: Distribution = Distribution()
        """What that wait cost: the seconds for which slots that had been in use stood empty during
        it, summed over all of them."""
        self.model_time: Distribution = Distribution()
        """How long calls to models took, without the waits for limits."""
        self.tool_time: Distribution = Distribution()
        """How long tool calls of agents took."""
        self.limiter_wait_time: Distribution = Distribution()
        """How long reservations waited for limiters, those that needn't included."""
        self._lock = threading.Lock()
        self._runs: dict[str, _LiveRun] = {}
        self._fan_outs: dict[str, _FanOut] = {}
        self._waits: dict[int, float] = {}
        """When each wait for a limiter that is in progress began."""
        self._items: Counter[str] = Counter()
        self._runs_over: Counter[str] = Counter()
        self._work_seconds = 0.0
        self._slot_seconds = 0.0
        self._spent = Spent()
        self._spent_on: dict[tuple[str, str], Spent] = {}
        self._spent_in: OrderedDict[str, Spent] = OrderedDict()
        self._tools: Counter[tuple[str, str]] = Counter()
        self._limiters: dict[str, list[WeakMethod[Callable[[], LimiterStatistics]]]] = {}
        self._last = 0.0
        self._retries = self._hedges = 0

    # What it has found ------------------------------------------------------------------------

    @property
    def worker_utilization(self) -> float:
        """The share of the time of all slots in which an item was worked on, from 0 to 1.

        A fan-out has as many slots as its limit, a pipeline as its stages together. A slot is idle
        if there is no item for it, or its item waits for a limit, for a slot of a stage, or for its
        next attempt. 0 before anything ran.
        """
        work, slots = self._work_seconds, self._slot_seconds
        for fan_out in self._live():
            work += fan_out.work_seconds
            slots += fan_out.slot_seconds
        return work / slots if slots else 0.0

    @property
    def worker_failure_rate(self) -> float:
        """The share of items that failed or timed out, of those that weren't cut short; 0 to 1."""
        items = self._items
        ended = sum(items[status] for status in ENDED)
        return (ended - items["ok"]) / ended if ended else 0.0

    @property
    def queue_depth_by_priority(self) -> Mapping[float, int]:
        """How much waits for its turn now, by priority, the largest first.

        Items that fan-outs have read ahead, and reservations in the lines of limiters.
        """
        depths: Counter[float] = Counter()
        for fan_out in self._live():
            depths.update(fan_out.fan_out.statistics().waiting_by_priority)
        for limit in self.limits.values():
            depths.update(limit.waiting_by_priority)
        return {priority: depths[priority] for priority in sorted(depths, reverse=True)}

    @property
    def limits(self) -> Mapping[str, LimiterStatistics]:
        """Every limiter that was used and still exists, by name: its use, its line, its slowing.

        Further limiters of one name get a number, as in ``"openai #2"``.
        """
        found: dict[str, LimiterStatistics] = {}
        for name, methods in list(self._limiters.items()):
            living = [statistics for method in methods if (statistics := method()) is not None]
            for number, statistics in enumerate(living, 1):
                found[name if number == 1 else f"{name} #{number}"] = statistics()
        return found

    @property
    def workers(self) -> int:
        """How many slots there are now."""
        return sum(fan_out.fan_out.slots for fan_out in self._live())

    @property
    def working(self) -> int:
        """In how many of them an item is worked on now."""
        return sum(fan_out.working for fan_out in self._live())

    @property
    def items(self) -> Mapping[str, int]:
        """How many items ended, by status: ``ok failed timed_out cancelled skipped``."""
        return MappingProxyType(self._items)

    @property
    def runs(self) -> Mapping[str, int]:
        """How many runs ended, by status, and how many are ``running``."""
        return {"running": len(self._runs), **self._runs_over}

    @property
    def retries(self) -> int:
        """How many attempts followed a failed one."""
        return self._retries

    @property
    def hedges(self) -> int:
        """How many attempts began beside a late one."""
        return self._hedges

    @property
    def spent(self) -> Spent:
        """What all calls to models used."""
        return self._spent

    @property
    def tokens(self) -> int:
        """The tokens that all calls to models used."""
        return self._spent.tokens

    @property
    def cost_usd(self) -> float:
        """What those cost, in dollars, of models that have a price."""
        return self._spent.cost_usd

    @property
    def spent_by_model(self) -> Mapping[tuple[str, str], Spent]:
        """The same by provider and model; an unknown provider is ``""``."""
        return MappingProxyType(self._spent_on)

    def spent_in(self, run_id: str) -> Spent:
        """Return what a run and all below it used.

        Args:
          run_id: A run that is running, or one of the last 1,000 that used anything and are over.
            Of any other run nothing is known, and the answer is that it used nothing.
        """
        run = self._runs.get(run_id)
        spent = self._spent_in.get(run_id) if run is None else run.spent
        return spent or _NOTHING

    @property
    def tool_calls(self) -> Mapping[tuple[str, str], int]:
        """How many tool calls ended, by tool and status: ``ok failed cancelled``."""
        return MappingProxyType(self._tools)

    def _live(self) -> list[_FanOut]:
        """Return the running fan-outs, with their times up to now."""
        with self._lock:
            now = time_here(self._last)
            for fan_out in self._fan_outs.values():
                fan_out.advance(now)
            return list(self._fan_outs.values())

    # What it is told --------------------------------------------------------------------------

    def __call__(self, event: Event) -> None:
        """Do nothing: what programs emit isn't counted."""

    @enable_ki_protection  # Or a Ctrl-C in here would lose what is told only once.
    def notice(self, event: Event) -> None:
        """Count what harness did; called by the runs that are observed."""
        count = _COUNT.get(type(event.payload))
        if count is not None:
            with self._lock:  # A thread may have runs of its own, that own only state.
                self._last = event.time
                count(self, event, event.payload)

    def _run_began(self, event: Event, began: RunBegan) -> None:
        parent = self._runs.get(event.parent_id or "")
        self._runs[event.run_id] = run = _LiveRun(parent, event.time)
        if parent is None:
            return
        if began.item is not None:
            if parent.fan_out is not None:
                run.item, run.of, run.index = run, parent.fan_out, began.item
                run.of.advance(event.time)
                run.of.work(run.index, +1)
        elif began.inline:
            run.item = parent.item

    def _run_over(self, event: Event, over: RunOver) -> None:
        self._runs_over[over.status] += 1
        run = self._runs.pop(event.run_id, None)
        if run is None:  # It began before anybody observed it.
            return
        if run.of is not None and not run.waits:
            run.of.advance(event.time)
            run.of.work(run.index, -1)
        if run.spent is not None:
            self._spent_in[event.run_id] = run.spent
            if len(self._spent_in) > RUNS_REMEMBERED:
                self._spent_in.popitem(last=False)
        if run.fan_out is not None:
            del self._fan_outs[event.run_id]
            self._fan_out_over(run.fan_out, event.time - run.began_at, event.time, over.status)
        run.item = None  # Which may be the run itself.

    def _fan_out_began(self, event: Event, began: FanOutBegan) -> None:
        run = self._runs.get(event.run_id)
        if run is not None:
            self._fan_outs[event.run_id] = run.fan_out = _FanOut(began.fan_out, run.began_at)

    def _fan_out_over(self, fan_out: _FanOut, seconds: float, now: float, status: str) -> None:
        fan_out.advance(now)
        self._work_seconds += fan_out.work_seconds
        self._slot_seconds += fan_out.slot_seconds
        if status != "cancelled":
            self.parallel_completion_time.add(seconds)
        if fan_out.ended is not None:
            first, last = fan_out.ended
            self.aggregation_wait_time.add(last - first)
            self.aggregation_idle_time.add(fan_out.idle_at_end)

    def _item_over(self, event: Event, over: ItemOver) -> None:
        self._items[over.status] += 1
        if over.status in ENDED:
            self.item_time.add(over.ended_at - over.started_at)
        fan_out = self._fan_outs.get(event.run_id)
        if fan_out is not None:
            fan_out.advance(event.time)
            fan_out.item_over(over)

    def _wait_began(self, event: Event, began: WaitBegan) -> None:
        if began.reason == "limiter":
            self._waits[began.wait] = event.time
        if began.reason in IDLE_WAITS:
            self._idle(event, +1)

    def _wait_over(self, event: Event, over: WaitOver) -> None:
        if over.reason == "limiter" and over.wait in self._waits:
            self.limiter_wait_time.add(event.time - self._waits.pop(over.wait))
        if over.reason in IDLE_WAITS:
            self._idle(event, -1)

    def _idle(self, event: Event, change: int) -> None:
        run = self._runs.get(event.run_id)
        item = None if run is None else run.item
        if item is None or item.of is None:
            return
        before = item.waits
        item.waits = now = max(0, before + change)
        if bool(before) != bool(now):
            item.of.advance(event.time)
            item.of.work(item.index, -1 if now else +1)

    def _model_call(self, event: Event, over: ModelCallOver) -> None:
        self.model_time.add(event.time - over.started_at)
        self._spent = self._spent.plus(over)
        kind = over.provider or "", over.model
        if kind not in self._spent_on and len(self._spent_on) >= KINDS_AT_MOST:
            kind = OTHERS, OTHERS
        self._spent_on[kind] = self._spent_on.get(kind, _NOTHING).plus(over)
        run = self._runs.get(event.run_id)
        while run is not None:
            run.spent = (run.spent or _NOTHING).plus(over)
            run = run.parent

    def _tool_call(self, event: Event, over: ToolCallOver) -> None:
        self.tool_time.add(event.time - over.started_at)
        kind = over.name, over.status
        if kind not in self._tools and len(self._tools) >= KINDS_AT_MOST:
            kind = OTHERS, over.status
        self._tools[kind] += 1

    def _limiter_used(self, event: Event, used: LimiterUsed) -> None:
        known = [method for method in self._limiters.get(used.name, ()) if method() is not None]
        method = WeakMethod(used.statistics)
        if method not in known:
            known.append(method)
        self._limiters[used.name] = known

    def _retry(self, event: Event, planned: RetryPlanned) -> None:
        self._retries += 1

    def _hedge(self, event: Event, began: HedgeBegan) -> None:
        self._hedges += 1


_NOTHING = Spent()

_COUNT: dict[type, Callable[[Metrics, Event, Any], None]] = {
    RunBegan: Metrics._run_began,
    RunOver: Metrics._run_over,
    FanOutBegan: Metrics._fan_out_began,
    ItemOver: Metrics._item_over,
    WaitBegan: Metrics._wait_began,
    WaitOver: Metrics._wait_over,
    ModelCallOver: Metrics._model_call,
    ToolCallOver: Metrics._tool_call,
    LimiterUsed: Metrics._limiter_used,
    RetryPlanned: Metrics._retry,
    HedgeBegan: Metrics._hedge,
}


def time_here(otherwise: float) -> float:
    """Return trio's time; outside trio ``otherwise``."""
    try:
        return trio.current_time()
    except RuntimeError:
        return otherwise
