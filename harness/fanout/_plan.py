"""Everything a fan-out, a pipeline or a router was asked for: one frozen value.

The public call makes it and checks it, before anything runs. Everything below takes it as it is.
So an option has its type, its default and its check in this file, and a type checker finds a wrong
name wherever it is used.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import attrs

from harness._arguments import check_count, check_seconds
from harness.fanout._feed import Feed
from harness.fanout._ledger import Ledger
from harness.fanout._limit import ADVICE, ChangingLimit, Limit
from harness.fanout._source import Source
from harness.fanout._tries import ONE_ATTEMPT
from harness.policies import Attempt, FailFast, JoinPolicy, Priority
from harness.policies._checks import as_priority, check_attempt, check_policy
from harness.runs._functions import check_callable, name_of, refuse_mismatch

if TYPE_CHECKING:
    from harness.fanout._steps import Steps

FAIL_FAST = FailFast()
LIMIT = 100
"""Items in flight by default: many for a provider, few for a machine."""

OF_ATTEMPTS = {
    **{name: f"each=harness.Attempt({name}=...)" for name in attrs.fields_dict(Attempt)},
    **dict.fromkeys(("retries", "attempts"), "each=harness.Attempt(retry=harness.Retry(3))"),
}
"""What to write for options that belong to an attempt."""

OF_LIMITS = dict.fromkeys(
    ("concurrency", "concurrent", "max_concurrency", "max_at_once", "max_workers"), "limit=..."
)
"""The same, for what others call the limit."""

OF_POLICIES = {"return_exceptions": "policy=harness.BestEffort()"}
"""The same, for what others have in place of a policy."""

ELSEWHERE = {**OF_ATTEMPTS, **OF_LIMITS, **OF_POLICIES}
"""All of them, for a call that takes ``each``, ``limit`` and ``policy``."""


class Books(NamedTuple):
    """The parts of an engine that know a journal."""

    feed: Feed
    """Which item is next, of those not yet done."""

    ledger: Ledger
    """What is recorded of each."""


class FanOutJournal(Protocol):
    """A durable record that fan-outs write to."""

    def books(self, plan: Plan, source: Source) -> Books:
        """Return what an engine needs to write here.

        The journal is asked, so that a program without one never loads any of this.

        Args:
          plan: What the fan-out was asked for.
          source: Its items.
        """
        ...


@attrs.frozen(kw_only=True)
class Plan:
    """What was asked for. The public calls say what each option means to a user.

    Raises:
      TypeError: if an option has the wrong type.
      ValueError: if a number is out of range, or two options exclude each other.
    """

    call: str
    """The public call, as errors name it: ``fan_out``."""

    function: Callable[[Any], Awaitable[Any]]
    """What is called with each item."""

    name: str | None = None
    """The name of its run; None: use `named`."""

    named: str = ""
    """What it is called if it has no name; by default after the function."""

    policy: JoinPolicy = FAIL_FAST

    limit: int | ChangingLimit = LIMIT
    """As given; see `first_limit`."""

    within: float | None = None

    each: Attempt | Callable[[Any], Attempt] = ONE_ATTEMPT

    key: Callable[[Any], Any] | None = None

    priority: Priority | Callable[[Any], float] | None = None
    """As given; see `order`."""

    journal: FanOutJournal | None = None

    ordered: bool = False

    window: int | None = None
    """As given; see `room`."""

    streamed: bool = False
    """Whether results are read as they come. Otherwise all are gathered."""

    usual_room: int | None = None
    """The room of a stream without ``window``; None: as much as its limit needs."""

    keep: bool = False

    steps: Steps | None = None
    """What each item goes through; only with a journal, which records every step."""

    order: Priority | None = attrs.field(init=False)
    """Which of the items read ahead is next; None: input order."""

    def __attrs_post_init__(self) -> None:
        self._check_counts()
        self._check_functions()
        order = self.priority
        if order is not None:
            order = as_priority(f"{self.call}(priority=...)", order)
        object.__setattr__(self, "order", order)
        if self.ordered and order is not None:
            raise ValueError(
                f"{self.call}() takes either ordered=True or priority=, not both: results in input "
                "order would wait for items that priorities put off; leave one of them out"
            )
        if self.journal is not None:
            self._check_journal()

    @property
    def run_name(self) -> str:
        """What the run is called."""
        return self.name or self.named or name_of(self.function)

    @property
    def attempt(self) -> Attempt | None:
        """What happens to every item; None if each needs a call, for its attempt or its key."""
        return self.each if self.key is None and isinstance(self.each, Attempt) else None

    @property
    def first_limit(self) -> int:
        """How many items may be in flight at the start."""
        return self.limit if isinstance(self.limit, int) else self.limit.limit

    @property
    def changing_limit(self) -> ChangingLimit | None:
        """What says how many there may be later; None if that never changes."""
        return None if isinstance(self.limit, int) else self.limit

    @property
    def room(self) -> float:
        """How many items may be pulled and not yet read, with the first limit."""
        return self.room_for(self.first_limit)

    def room_for(self, limit: int) -> float:
        """Return how many items may be pulled and not yet read, with this limit."""
        if self.window is not None:
            return self.window
        if not self.streamed:
            return math.inf
        if self.usual_room is not None:
            return self.usual_room
        return limit + max(limit, 0 if self.order is None else self.order.lookahead)

    def attempt_for(self, item: Any) -> Attempt:
        """Return what happens to an item.

        Raises:
          TypeError: if the caller's function returned something else.
          ValueError: if it returned an attempt that can't be carried out.
        """
        return attempt_for(item, self.each, where="a fan-out")

    def _check_counts(self) -> None:
        check_policy(f"{self.call}(policy=...)", self.policy)
        changes = isinstance(self.limit, ChangingLimit) and not isinstance(self.limit, type)
        what = f"the limit of {self.limit!r}" if changes else f"{self.call}(limit=...)"
        least = 0 if isinstance(self.limit, Limit) else 1
        first: object = self.limit.limit if isinstance(self.limit, ChangingLimit) else self.limit
        check_count(what, first if changes else self.limit, advice=ADVICE, least=least)
        if self.within is not None:
            check_seconds(f"{self.call}(within=...)", self.within, advice="None is for no limit")
        if self.window is not None:
            usual = (
                "twice the limit"
                if self.usual_room is None
                else "twice the room in the stages and buffers"
            )
            check_count(f"{self.call}(window=...)", self.window, advice=f"None is for {usual}")
        if self.name is not None and (not isinstance(self.name, str) or not self.name):
            raise TypeError(
                f"{self.call}(name=...) takes a readable name, not {self.name!r}; "
                "leave it out for the function's name"
            )

    def _check_functions(self) -> None:
        check_each(f"{self.call}(each=...)", self.each)
        for option, function in (("key", self.key), ("each", self.each)):
            if inspect.iscoroutinefunction(function):
                raise TypeError(
                    f"{self.call}({option}=...) takes a plain function of the item, not the async "
                    f"function {name_of(function)}: it is asked before the item starts, which must "
                    "not wait"
                )
        if self.key is not None and not callable(self.key):
            raise TypeError(
                f"{self.call}(key=...) takes a function of the item, not {self.key!r}; "
                "write key=lambda item: item.id"
            )

    def _check_journal(self) -> None:
        if not hasattr(self.journal, "books"):
            raise TypeError(
                f"{self.call}(journal=...) takes an open journal, not {self.journal!r}; write "
                "async with harness.journal.open_journal(path) as journal:"
            )
        if self.key is None:
            raise TypeError(
                f"{self.call}(journal=...) needs key=: an item is found again by its key, and its "
                "place in the input may be another one next time; write key=lambda item: item.id"
            )


def check_function(call: str, fn: Any, *, items: int = 1) -> None:
    """Refuse what can't be called with this many items (one or none), before anything runs.

    Raises:
      TypeError: if ``fn`` is a coroutine, an async generator, not callable, or takes no argument.
    """
    check_callable(call, fn)
    if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
        raise TypeError(
            f"{call} takes an async function that returns a value, not the generator function "
            f"{name_of(fn)}; return a list, or use a pipeline stage to yield several"
        )
    what, parameters = ("one item", "item") if items else ("no argument", "")
    advice = ", or give it the others with functools.partial"
    if items and getattr(fn, "__name__", "").isidentifier():
        advice += f", or spread items that are tuples: lambda item: {fn.__name__}(*item)"
    refuse_mismatch(call, fn, what, parameters, advice=advice)


def check_each(where: str, each: Any) -> None:
    """Refuse what is neither an `Attempt` nor a function that could return one.

    Raises:
      TypeError: naming ``where``.
      ValueError: if it is an attempt that can't be carried out; naming ``where``.
    """
    if isinstance(each, Attempt):
        check_attempt(where, each)
    elif not callable(each) or isinstance(each, type):
        raise TypeError(
            f"{where} takes an Attempt, or a function of the item that returns one, not "
            f"{each!r}; write each=harness.Attempt(...)"
        )


def attempt_for(item: Any, each: Attempt | Callable[[Any], Attempt], *, where: str) -> Attempt:
    """Return what happens to an item.

    Args:
      item: The item.
      each: An attempt, or the caller's function of the item.
      where: Whose ``each`` it is, as errors name it: ``a fan-out``.

    Raises:
      TypeError: if the caller's function returned something else.
      ValueError: if it returned an attempt that can't be carried out.
    """
    if isinstance(each, Attempt):
        return each
    attempt = each(item)
    if not isinstance(attempt, Attempt):
        raise TypeError(
            f"each= of {where} is a function that must return an Attempt for an item, but returned "
            f"{attempt!r}"
        )
    check_attempt(f"each= of {where}", attempt)
    return attempt
