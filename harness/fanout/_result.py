"""The result of each item, and of all of them.

A `Result` is what one item ended as; `Results` is the sequence of them in input order. Both hold
plain facts: no run, no agent, and never a stored `trio.Cancelled`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, overload

import attrs
from outcome import Error, Outcome, Value

from harness._root_errors import roots_in_words
from harness._words import repr_of
from harness.errors import ApprovalPending, FanOutError
from harness.fanout._drop import DROP
from harness.runs import RunStatus

T_co = TypeVar("T_co", covariant=True)

ResultStatus = Literal["ok", "failed", "timed_out", "cancelled", "skipped"]

FAILURES: frozenset[ResultStatus] = frozenset({"failed", "timed_out"})
"""What counts as a failure: for policies, for retries, for fallbacks."""


@attrs.define(unsafe_hash=True, repr=False)
class Result(Generic[T_co]):
    """What one item of a fan-out ended as. Read-only.

    Properties over private fields, not a frozen class: one is made per item, and attrs takes twice
    as long to fill a frozen one. Still hashed by value, as a frozen one would be: that needs an
    item and a value that can be hashed.
    """

    _index: int
    _key: Any
    _item: Any
    _run_id: str | None
    _status: ResultStatus
    _ended_with: Any
    """The value if the status is ok, else the error; made into an outcome on demand."""
    _attempts: int
    _started_at: float
    _ended_at: float
    _degraded: bool = False

    @property
    def index(self) -> int:
        """The item's place in the input, from 0."""
        return self._index

    @property
    def key(self) -> Any:
        """The item's key as given; by default its index."""
        return self._key

    @property
    def item(self) -> Any:
        """The item itself."""
        return self._item

    @property
    def run_id(self) -> str | None:
        """The run of the attempt that decided; None if the item was never started, or its result
        came from a journal."""
        return self._run_id

    @property
    def status(self) -> ResultStatus:
        """How that run ended; ``"skipped"`` if the item was never started."""
        return self._status

    @property
    def attempts(self) -> int:
        """Attempts made, including hedges. Those that only met a rate limit don't count. With a
        journal: over all processes, without hedges that lost."""
        return self._attempts

    @property
    def started_at(self) -> float:
        """`trio.current_time` at which the first attempt began."""
        return self._started_at

    @property
    def ended_at(self) -> float:
        """`trio.current_time` at which it was over."""
        return self._ended_at

    @property
    def degraded(self) -> bool:
        """Whether the value came from the fallback."""
        return self._degraded

    @property
    def outcome(self) -> Outcome[T_co]:
        """`outcome.Value` or `outcome.Error`; to read it, use `value` and `error`."""
        return Value(self._ended_with) if self.status == "ok" else Error(self._ended_with)

    @property
    def value(self) -> T_co:
        """The value of an item that is ok; any other raises `error`."""
        if self._status == "ok":
            value: T_co = self._ended_with
            return value
        error: BaseException = self._ended_with
        raise error

    @property
    def error(self) -> BaseException | None:
        """What went wrong: the item's own error, `RunTimedOut`, `RunCancelled` or `ItemSkipped`;
        None if it is ok."""
        return None if self.status == "ok" else self._ended_with

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return self.status == "ok"

    @property
    def dropped(self) -> bool:
        """Whether the value is `DROP`: the item is ok, with nothing to keep."""
        return self._ended_with is DROP

    @property
    def failed(self) -> bool:
        """Whether it failed or timed out. Cancelled and skipped items didn't fail."""
        return self.status in FAILURES

    @property
    def seconds(self) -> float:
        """Time from its start to its end."""
        return self._ended_at - self._started_at

    def __reduce__(self) -> tuple[Any, ...]:
        fields = attrs.astuple(self, recurse=False)
        reduced: tuple[Any, ...] = import_module("harness._pickled_errors").reduced(
            type(self), *fields
        )
        return reduced

    def __repr__(self) -> str:
        return f"<Result of item {repr_of(self._key)}: {self._status}, {repr_of(self._ended_with)}>"


class Hedges(NamedTuple):
    """What second attempts, started beside late ones, cost and gained."""

    started: int = 0
    """How many there were."""

    won: int = 0
    """How many answered before the attempt they were started beside."""

    seconds_saved: float = 0.0
    """Roughly how much longer their items would have taken; see `Summary`."""


NO_HEDGES = Hedges()


@attrs.frozen(kw_only=True)
class Summary:
    """How many items ended as what. Readable as text: ``print(results.summary())``."""

    total: int
    """Items that have a result."""

    ok: int
    """Items with a value, including degraded ones."""

    failed: int
    """Items whose last attempt raised."""

    timed_out: int
    """Items whose last attempt ran out of time."""

    cancelled: int
    """Items that were cut short while in flight, and those that wait."""

    waiting: int
    """How many of those wait for a person to approve calls of their agents."""

    skipped: int
    """Items that were never started."""

    degraded: int
    """Items whose value came from the fallback."""

    attempts: int
    """Attempts over all items."""

    hedges: int
    """Attempts started beside another one."""

    hedges_won: int = 0
    """Hedges that answered before the attempt that was late."""

    hedge_seconds_saved: float = 0.0
    """Roughly how much longer their items would have taken without hedges, summed over the items.

    An estimate, since the late attempt was cancelled: how much longer attempts that had already
    taken as long went on to take, on average, in this fan-out. It draws on those that ended and
    those that were cut, which had taken at least that long (Kaplan-Meier). Time beyond the longest
    attempt seen to end isn't counted, so it tends to be too low, and is 0 if none was seen."""

    seconds: float
    """From the first start to the last end."""

    run_seconds: float
    """The sum over all items; compared with `seconds` it shows how much ran side by side."""

    def __str__(self) -> str:
        parts = [f"{self.ok:,} of {self.total:,} ok"]
        for count, words in (
            (self.failed, "failed"),
            (self.timed_out, "timed out"),
            (self.cancelled - self.waiting, "cancelled"),
            (self.waiting, "waiting for approval"),
            (self.skipped, "skipped"),
            (self.degraded, "degraded"),
        ):
            if count:
                parts.append(f"{count:,} {words}")
        if self.attempts > self.total - self.skipped:
            parts.append(f"{self.attempts:,} attempts")
        if self.hedges:
            won = f"{self.hedges_won:,} answered first, saving about"
            saved = f" ({won} {self.hedge_seconds_saved:.1f} s)" if self.hedge_seconds_saved else ""
            parts.append(f"{self.hedges:,} {'hedge' if self.hedges == 1 else 'hedges'}{saved}")
        return f"{', '.join(parts)}; {self.seconds:.1f} s for {self.run_seconds:.1f} s of work"


class Tally:
    """Counts results as they come, in constant memory."""

    def __init__(self) -> None:
        self.counts: dict[ResultStatus, int] = {}
        self.degraded = self.waiting = 0
        self.attempts = 0
        self.run_seconds = 0.0
        self.first_start: float | None = None
        self.last_end = 0.0

    def add(self, result: Result[Any]) -> None:
        """Count a result."""
        status = result.status
        self.counts[status] = self.counts.get(status, 0) + 1
        if status == "skipped":
            return
        self.degraded += result.degraded
        if status == "cancelled":
            self.waiting += isinstance(result._ended_with, ApprovalPending)
        self.attempts += result.attempts
        self.run_seconds += result.ended_at - result.started_at
        if self.first_start is None or result.started_at < self.first_start:
            self.first_start = result.started_at
        self.last_end = max(self.last_end, result.ended_at)

    @property
    def ended(self) -> int:
        """How many have been counted."""
        return sum(self.counts.values())

    def summary(self, *, hedges: Hedges = NO_HEDGES, never_started: int = 0) -> Summary:
        """Return what has been counted so far, plus ``never_started`` more items."""
        counts = self.counts
        return Summary(
            total=self.ended + never_started,
            ok=counts.get("ok", 0),
            failed=counts.get("failed", 0),
            timed_out=counts.get("timed_out", 0),
            cancelled=counts.get("cancelled", 0),
            waiting=self.waiting,
            skipped=counts.get("skipped", 0) + never_started,
            degraded=self.degraded,
            attempts=self.attempts,
            hedges=hedges.started,
            hedges_won=hedges.won,
            hedge_seconds_saved=hedges.seconds_saved,
            seconds=0.0 if self.first_start is None else self.last_end - self.first_start,
            run_seconds=self.run_seconds,
        )


by_index = operator.attrgetter("index")
"""Returns an item's place in the input."""


class Tail(Protocol):
    """Results that are made when they are looked at."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int) -> Result[Any]: ...

    def __iter__(self) -> Iterator[Result[Any]]: ...


class Sink(Protocol):
    """Takes results. Not a `Callable`, which pyright would take for a method in a slot."""

    def __call__(self, result: Result[Any], /) -> None: ...


class Results(Sequence[Result[T_co]]):
    """The results of a fan-out: a sequence in input order, read-only."""

    __slots__ = ("_hedges", "_results", "_tail", "name", "status")

    name: str
    """The path of the fan-out's run."""

    status: RunStatus
    """How the fan-out's own run ended: ok (also after a stop), cancelled or failed; ``"running"``
    if they were taken from a stream inside its block."""

    def __init__(
        self,
        results: Iterable[Result[T_co]],
        *,
        name: str = "",
        status: RunStatus = "ok",
        hedges: Hedges = NO_HEDGES,
        never_started: Tail | None = None,
    ) -> None:
        self._results = tuple(results)
        self._tail = never_started
        """The results of items never started, which come last; made when looked at."""
        self._hedges = hedges
        self.name = name
        self.status: RunStatus = status

    def __len__(self) -> int:
        return len(self._results) + self._never_started

    @property
    def _never_started(self) -> int:
        return 0 if self._tail is None else len(self._tail)

    def __iter__(self) -> Iterator[Result[T_co]]:
        yield from self._results
        if self._tail is not None:
            yield from self._tail

    @overload
    def __getitem__(self, index: int) -> Result[T_co]: ...
    @overload
    def __getitem__(self, index: slice) -> Results[T_co]: ...
    def __getitem__(self, index: int | slice) -> Result[T_co] | Results[T_co]:
        if isinstance(index, slice):
            return self._part(self[place] for place in range(*index.indices(len(self))))
        place = operator.index(index)
        if place < 0:
            place += len(self)
        known = len(self._results)
        if self._tail is not None and known <= place < len(self):
            return self._tail[place - known]
        if not 0 <= place < known:
            raise IndexError(f"there are {len(self):,} results, and none at {index}")
        return self._results[place]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Results)
            and len(self) == len(other)
            and all(mine == its for mine, its in zip(self, other, strict=True))
        )

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"<Results of {self.name!r}: {self.summary()}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (tuple(self), self.name, self.status, self._hedges)

    def values(self) -> list[T_co]:
        """Return the values of the items that are ok, in input order, without dropped ones."""
        return [
            result.value for result in self._results if result.status == "ok" and not result.dropped
        ]

    @property
    def failed(self) -> Results[T_co]:
        """Those that failed or timed out."""
        return self._part(result for result in self._results if result.failed)

    @property
    def gaps(self) -> Results[T_co]:
        """All that have no value: failed, timed out, cancelled, skipped."""
        return self._part(result for result in self if not result.ok)

    @property
    def complete(self) -> bool:
        """Whether every item has a value; one from the fallback counts."""
        return not self._never_started and all(one.status == "ok" for one in self._results)

    @property
    def hedges(self) -> Hedges:
        """What second attempts cost and gained; zero for a part of the results."""
        return self._hedges

    def summary(self) -> Summary:
        """Return how many items ended as what."""
        tally = Tally()
        for result in self._results:
            tally.add(result)
        return tally.summary(hedges=self._hedges, never_started=self._never_started)

    def to_pandas(self) -> Any:
        """Return the results as a ``pandas.DataFrame``, a row for each item in input order.

        Its columns are index, key, status, input, value, error, error_type, error_message,
        traceback, degraded, attempts, seconds and run_id. Items and values are as they are.

        Raises:
          ImportError: if pandas isn't installed; it comes with the extra ``pandas``.
        """
        return import_module("harness.fanout._table").to_pandas(self)

    def to_polars(self) -> Any:
        """Return the results as a ``polars.DataFrame``, a row for each item in input order.

        The columns are those of `to_pandas`, but items and values are texts of JSON: polars has one
        type per column. What JSON has no form for is a string with its ``repr``.

        Raises:
          ImportError: if polars isn't installed; it comes with the extra ``polars``.
        """
        return import_module("harness.fanout._table").to_polars(self)

    def raise_if_incomplete(self) -> None:
        """Raise a `FanOutError` with one entry per gap, if there are any.

        Raises:
          FanOutError: if an item has no value.
        """
        gaps = [result for result in self if not result.ok]
        if gaps:
            raise fan_out_error(
                f"{len(gaps):,} of {len(self):,} items of run {self.name!r} have no value",
                gaps,
                self,
            )

    def _part(self, results: Iterable[Result[T_co]]) -> Results[T_co]:
        # Without the hedges: it isn't known how many belong to these items.
        return Results(results, name=self.name, status=self.status)


def _rebuild(
    results: tuple[Any, ...], name: str, status: RunStatus, hedges: Hedges
) -> Results[Any]:
    return Results(results, name=name, status=status, hedges=hedges)


def fan_out_error(
    what: str,
    gaps: Sequence[Result[Any]],
    results: Results[Any],
    *,
    others: Sequence[Exception] = (),
) -> FanOutError[Exception]:
    """Return one flat error with an entry per gap; its message names the first."""
    failures = [(gap, gap.error) for gap in gaps if isinstance(gap.error, Exception)]
    message = what
    if failures:
        gap, error = failures[0]
        message += f"; the first is item {repr_of(gap.key)}: {roots_in_words(error)}"
    return FanOutError(message, [*(error for _, error in failures), *others], results)
