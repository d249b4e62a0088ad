"""Run a function over many items at once, and return the result of each."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from typing import Any, TypeVar

import trio
from trio.lowlevel import enable_ki_protection

from harness._arguments import says_where_options_are
from harness._outside_trio import refuse_outside_trio
from harness.fanout._assemble import engine_for
from harness.fanout._engine import Work
from harness.fanout._job import Job
from harness.fanout._join import Join
from harness.fanout._limit import ChangingLimit
from harness.fanout._plan import ELSEWHERE, FAIL_FAST, LIMIT, FanOutJournal, Plan, check_function
from harness.fanout._result import Result, Results, by_index
from harness.fanout._tries import ONE_ATTEMPT
from harness.policies import Attempt, JoinPolicy, Priority
from harness.runs import RunStatus, open_run

ITEMS_PER_CHECKPOINT = 1_000
"""How many items are recorded as skipped before other tasks get a turn."""

ItemT = TypeVar("ItemT")
T = TypeVar("T")


@says_where_options_are(ELSEWHERE)
async def fan_out(
    fn: Callable[[ItemT], Awaitable[T]],
    items: Iterable[ItemT] | AsyncIterable[ItemT],
    *,
    policy: JoinPolicy = FAIL_FAST,
    limit: int | ChangingLimit = LIMIT,
    within: float | None = None,
    each: Attempt | Callable[[ItemT], Attempt] = ONE_ATTEMPT,
    key: Callable[[ItemT], Any] | None = None,
    priority: Priority | Callable[[ItemT], float] | None = None,
    journal: FanOutJournal | None = None,
    name: str | None = None,
) -> Results[T]:
    """Run ``fn(item)`` for every item, at most ``limit`` at once, and return all results.

    The fan-out is a run, and so is every attempt at an item, in its own task: every `RunLocal` is
    fresh there, and the context variables are those of this call. The next item starts when any
    ends.

    Args:
      fn: Anything that returns an awaitable when called with an item.
      items: Any iterable or async iterable; pulled only as there is room, and closed early if the
        fan-out ends early.
      policy: When the fan-out is over, and whether it succeeded: `FailFast` (the default),
        `BestEffort`, `Quorum`, `FirstSuccess`, or a `harness.policies.JoinPolicy` of your own.
      limit: Items in flight at most: a number, a `harness.Limit` that you change while it runs, or
        anything else whose ``limit`` changes, such as a `harness.limits.AdaptiveCapacity`.
      within: Seconds after which the whole fan-out ends with what it has; 0: at the first
        checkpoint.
      each: What happens to one item: timeout, retries, hedge, fallback, limiter. Or a function
        that returns that for an item.
      key: The item's key, for results, names and dumps; by default its index.
      priority: A function that returns a number for an item, or a `Priority`: of the items read
        ahead, the one with the largest number is started first. ``Priority(serial_by=)`` runs
        items with the same key one after the other.
      journal: Records how each item ended, so that a later call picks up where this one ended,
        however it ended. Needs ``key``; see `harness.journal.open_journal`.
      name: The fan-out's name, and that of its batch in the journal; by default the function's.

    Returns:
      One `Result` per item, in input order; for items that were never started too if the number
      of items is known beforehand.

    Raises:
      FanOutError: if the policy is broken, or the items can't be read further; with the results.
      TypeError: if an argument has the wrong type, or ``fn`` returns no awaitable.
      ValueError: if a number is out of range.
      JournalError: if the journal can't be read or written or has the batch of another function,
        or if an item has no key to be found by.
      RuntimeError: outside trio.

    Checkpoint: always.

    Cancellation: everything in flight is cancelled and has ended before the cancel goes on.
    Cancelling or stopping the fan-out's own run returns the results instead, unless a quorum was
    not reached.
    """
    check_function("fan_out()", fn)
    plan = Plan(
        call="fan_out",
        function=fn,
        policy=policy,
        limit=limit,
        within=within,
        each=each,
        key=key,
        priority=priority,
        journal=journal,
        name=name,
    )
    return await gather(plan, items)


@enable_ki_protection
async def gather(
    plan: Plan,
    items: Any,
    *,
    work: Work | None = None,
    new_job: Callable[[int, Any], Job] = Job,
    call: Callable[[Any], Awaitable[Any]] | None = None,
) -> Results[Any]:
    """Carry out a plan, in a run of its own, and return all results or raise its error.

    Args:
      plan, items, work, new_job, call: As for `engine_for`.
    """
    refuse_outside_trio(f"{plan.call}() was called")
    kept: list[Result[Any]] = []
    join = Join(plan.policy, plan.run_name, keeps_all=True)
    engine = engine_for(
        plan, items, join=join, sink=kept.append, work=work, new_job=new_job, call=call
    )

    def results(status: RunStatus = "failed") -> Results[Any]:
        kept.extend(engine.skipped())
        kept.sort(key=by_index)
        return Results(
            kept,
            name=run.path,
            status=status,
            hedges=engine.hedges,
            never_started=engine.never_started(),
        )

    async with open_run(plan.run_name) as run:
        join.run_path = run.path
        engine.begin(run)
        await engine.drive()
        for count, result in enumerate(engine.skipped(), 1):
            kept.append(result)
            if count % ITEMS_PER_CHECKPOINT == 0:
                await trio.lowlevel.cancel_shielded_checkpoint()
        if error := engine.error(results):
            raise error
    if run.status == "cancelled" and (error := engine.error(results)):
        raise error  # The block swallowed the run's own cancel; the policy still has its say.
    return results(run.status)
