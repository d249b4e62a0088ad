"""Put an engine together: choose its feed, its work and its ledger from the plan.

The parts for priorities and journals are loaded only when used: most programs use neither, and
would pay for them in ``import harness``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from harness.fanout._engine import Engine, Work
from harness.fanout._feed import Feed, InOrder
from harness.fanout._item import ItemWork
from harness.fanout._job import Job
from harness.fanout._join import Join
from harness.fanout._plan import Plan
from harness.fanout._result import Result
from harness.fanout._source import Source, open_source
from harness.policies import Priority

if TYPE_CHECKING:
    from harness.fanout._by_priority import ByPriority


def engine_for(
    plan: Plan,
    items: Any,
    *,
    join: Join,
    sink: Callable[[Result[Any]], None],
    work: Work | None = None,
    new_job: Callable[[int, Any], Job] = Job,
    call: Callable[[Any], Awaitable[Any]] | None = None,
) -> Engine:
    """Return the engine that carries out a plan.

    Args:
      plan: What was asked for.
      items: As the user gave them.
      join: What judges the results.
      sink: Takes each result.
      work: What happens to an item; by default attempts, each its own run.
      new_job: Makes the job of an item; only with ``work``, and without a journal.
      call: What is called with an item, if that isn't the plan's function itself.

    Raises:
      TypeError: if the items can't be iterated.
    """
    source = open_source(f"{plan.call}()", items)
    if work is None:
        work = ItemWork(plan.function if call is None else call)
    if plan.journal is not None:
        books = plan.journal.books(plan, source)
        feed: Feed = books.feed
        ledger = books.ledger
        work.keep_in(ledger)
    else:
        ledger = None
        feed = feed_for(plan.order, source, new_job)
    return Engine(plan, source, feed=feed, work=work, ledger=ledger, join=join, sink=sink)


def feed_for(order: Priority | None, source: Source, new_job: Callable[[int, Any], Job]) -> Feed:
    """Return what says which item is next."""
    if order is None:
        return InOrder(source, new_job)
    by_priority: type[ByPriority] = import_module("harness.fanout._by_priority").ByPriority
    return by_priority(source, new_job, order)
