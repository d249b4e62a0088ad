"""Read metrics as the exporters show them: by name, kind and labels, whoever is shown them.

No label is made of a run, an item or a path: the number of series depends on the models, tools,
limiters and priorities that a program has, and of each of those a bounded number is told apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar

import attrs
import trio

from harness.observe._distribution import Distribution
from harness.observe._labels import clean
from harness.observe._metrics import Metrics

T = TypeVar("T")

PRIORITIES_AT_MOST = 20
"""So many priorities are told apart, the largest; those below count together as ``lower``."""

QUANTILES = (0.5, 0.95, 0.99)

Samples = Mapping[tuple[str, ...], float]
"""Values by the values of the labels."""


def in_trio(token: trio.lowlevel.TrioToken, read: Callable[[], T]) -> T:
    """Return ``read()``, called in trio's thread from another one; here once trio is over."""
    try:
        return trio.from_thread.run_sync(read, trio_token=token)
    except trio.RunFinishedError:
        return read()


@attrs.frozen
class Reading:
    """One metric, with all its values now."""

    name: str
    what: str
    kind: Literal["gauge", "counter"]
    samples: Samples
    labels: tuple[str, ...] = ()


@attrs.frozen
class TimeReading:
    """A distribution of seconds."""

    name: str
    what: str
    times: Distribution


_NUMBERS = {
    "worker_utilization": "Share of slots' time in which items are worked on.",
    "worker_failure_rate": "Share of items that failed or timed out.",
    "workers": "Slots that there are now.",
    "working": "Slots in which an item is worked on now.",
}

_TIMES = {
    "parallel_completion_time": "Time from the start of a fan-out to its end.",
    "item_time": "Time from the start of an item to its result.",
    "aggregation_wait_time": "Time from the first item's end to the last one's in a fan-out.",
    "aggregation_idle_time": "Time for which slots stood empty during that.",
    "model_time": "Time of calls to models.",
    "tool_time": "Time of tool calls.",
    "limiter_wait_time": "Time that reservations waited for limiters.",
}

_OF_LIMITERS: dict[str, tuple[Literal["gauge", "counter"], str]] = {
    "waiting": ("gauge", "Reservations in line now."),
    "in_flight": ("gauge", "Reservations held now."),
    "paused_seconds": ("gauge", "How much longer it is paused."),
    "waits": ("counter", "Reservations that had to wait."),
    "waited_seconds": ("counter", "How long those waited."),
    "rate_limited": ("counter", "Refusals for rate that it was told of."),
}


def times(metrics: Metrics) -> Iterator[TimeReading]:
    """Yield the distributions."""
    for name, what in _TIMES.items():
        yield TimeReading(name, what, getattr(metrics, name))


def readings(metrics: Metrics) -> Iterator[Reading]:
    """Yield everything else, always the same names in the same order. In trio's thread."""
    for name, what in _NUMBERS.items():
        yield Reading(name, what, "gauge", {(): getattr(metrics, name)})
    depths = _by_priority(metrics.queue_depth_by_priority)
    yield Reading("queue_depth_by_priority", "What waits now.", "gauge", depths, ("priority",))
    yield Reading("items", "Items that ended.", "counter", _by_name(metrics.items), ("status",))
    runs = dict(metrics.runs)
    yield Reading("runs_running", "Runs that run now.", "gauge", {(): runs.pop("running")})
    yield Reading("runs", "Runs that ended.", "counter", _by_name(runs), ("status",))
    yield Reading("retries", "Attempts after a failed one.", "counter", {(): metrics.retries})
    yield Reading("hedges", "Attempts beside a late one.", "counter", {(): metrics.hedges})
    tools = _by_names(metrics.tool_calls)
    yield Reading("tool_calls", "Tool calls that ended.", "counter", tools, ("tool", "status"))
    yield from _spending(metrics)
    yield from _limits(metrics)


def _spending(metrics: Metrics) -> Iterator[Reading]:
    spent = metrics.spent_by_model
    labels = ("provider", "model")
    tokens = {(*kind, "input"): one.input_tokens for kind, one in spent.items()}
    tokens |= {(*kind, "output"): one.output_tokens for kind, one in spent.items()}
    what = "Tokens that calls to models used."
    yield Reading("tokens", what, "counter", _by_names(tokens), (*labels, "type"))
    calls = _by_names({kind: one.calls for kind, one in spent.items()})
    yield Reading("model_calls", "Calls to models.", "counter", calls, labels)
    cost = _by_names({kind: one.cost_usd for kind, one in spent.items()})
    yield Reading("cost_usd", "What those cost, in dollars.", "counter", cost, labels)


def _limits(metrics: Metrics) -> Iterator[Reading]:
    limits = metrics.limits
    use: dict[tuple[str, ...], float] = {}
    slowing: dict[tuple[str, ...], float] = {}
    for limiter, limit in limits.items():
        for dimension, one in limit.dimensions.items():
            use[clean(limiter), dimension] = one.use
            slowing[clean(limiter), dimension] = int(one.slowing)
    labels = ("limiter", "dimension")
    yield Reading("limit_use", "Used share of a limit.", "gauge", use, labels)
    yield Reading("limit_slowing", "1 while grants are spaced out.", "gauge", slowing, labels)
    for name, (kind, what) in _OF_LIMITERS.items():
        values = _by_name({limiter: getattr(one, name) for limiter, one in limits.items()})
        yield Reading(f"limit_{name}", what, kind, values, ("limiter",))


def _by_priority(depths: Mapping[float, int]) -> Samples:
    shown: Counter[tuple[str, ...]] = Counter()
    for place, (priority, depth) in enumerate(depths.items()):
        shown[f"{priority:g}" if place < PRIORITIES_AT_MOST else "lower",] += depth
    return shown


def _by_name(values: Mapping[str, float]) -> Samples:
    return _by_names({(name,): value for name, value in values.items()})


def _by_names(values: Mapping[Any, float]) -> Samples:
    """Return values by cleaned names, added up where those have become the same."""
    found: dict[tuple[str, ...], float] = {}
    for names, value in values.items():
        key = tuple(map(clean, names))
        found[key] = found.get(key, 0) + value
    return found
