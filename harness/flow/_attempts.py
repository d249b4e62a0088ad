"""Call a function under its `Attempt`, inside the run of the item on its way.

A fan-out makes each attempt a fresh run. Here an item has one run for its whole way, so the
attempts at one call share it: its `RunLocal` values, its deps, its idempotency key, its events.
They are made one after another in the item's own task, and so share its context variables too. A
hedge runs alongside the first attempt in a task of its own: it sees the item's context variables,
and what either of them sets is gone when one has won.

Where it is the same as in a fan-out, it is the same code: when to retry, when to hedge, how often.
"""

from __future__ import annotations

import math
import types
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from harness.errors import RunTimedOut
from harness.fanout import Hedges
from harness.fanout._attempts import Attempts, fallback_value, nap
from harness.fanout._job import Ended
from harness.fanout._plan import attempt_for
from harness.fanout._tries import ONE_ATTEMPT, Tries
from harness.flow._gate import Walker
from harness.policies import Attempt
from harness.runs import current_run
from harness.runs._endings import set_context, unwrap_single
from harness.runs._frames import describe_wait, traceback_frames
from harness.runs._functions import forgotten_await_error, not_awaitable_error
from harness.runs._scopes import cancel_scope


class NotAsync(TypeError):
    """A function returned what can't be awaited: a mistake in the program, not in an item."""


class OwnScope:
    """What an attempt is made in here: a scope with a deadline, which can be cancelled."""

    __slots__ = ("cancelled", "plan", "scope")

    def __init__(self, plan: Attempt) -> None:
        self.plan = plan
        self.scope = trio.CancelScope()
        self.cancelled = False
        """Whether it was cut short because another attempt had answered."""

    def cancel(self, reason: str) -> None:
        """Cut this attempt short."""
        self.cancelled = True
        cancel_scope(self.scope, reason)


class InItsRun:
    """Makes the attempts at one function inside the run of the item."""

    tells_cancels = False

    def __init__(self, what: str, function: Callable[[Any], Any]) -> None:
        self._what = what
        self._function = function

    def new(self, plan: Attempt, job: Tries) -> OwnScope:
        """Return the scope of an attempt, whose time begins now unless it waits for a grant."""
        attempt = OwnScope(plan)
        if plan.timeout is not None and plan.limiter is None:
            self.allow(attempt, plan.timeout)
        return attempt

    async def carry(
        self, attempt: OwnScope, function: Callable[[Any], Awaitable[Any]], item: Any
    ) -> Ended:
        """Be the body of the scope."""
        stuck_at: types.TracebackType | None = None
        try:
            with attempt.scope:
                try:
                    value = await self.call(function, item)
                    if type(value) is types.CoroutineType:
                        raise forgotten_await_error(self._function, value)
                    return "ok", value
                except trio.Cancelled as cancelled:
                    stuck_at = cancelled.__traceback__
                    raise
            if attempt.cancelled:
                return "cancelled", None
            return "timed_out", timed_out(self._what, attempt.plan, stuck_at)
        except NotAsync:
            raise
        except Exception as error:
            return "failed", unwrap_single(error)
        finally:
            stuck_at = None  # It holds the frame that holds it.

    def allow(self, attempt: OwnScope, seconds: float) -> None:
        """Start an attempt's time now."""
        attempt.scope.deadline = trio.current_time() + seconds

    def call(self, function: Callable[[Any], Awaitable[Any]], item: Any) -> Awaitable[Any]:
        """Call a function that may turn out not to be async."""
        awaitable = function(item)
        if not isinstance(awaitable, Awaitable):
            raise not_async(self._what, function, awaitable)
        return awaitable

    def launch(
        self,
        nursery: trio.Nursery,
        job: Tries,
        make: Callable[[OwnScope], Awaitable[None]],
        attempt: OwnScope,
    ) -> None:
        """Make an attempt in a task of its own, in the current context."""
        nursery.start_soon(make, attempt, name=self._what)

    def beside(self) -> None:
        """Do nothing: the run is the same in all tasks."""

    def counts(self, job: Tries, attempt: OwnScope) -> None:
        """Do nothing: the run is the same for all attempts."""

    def asked(self, function: Callable[[Exception], bool], error: Exception) -> bool:
        """Ask in the current context."""
        return function(error)


class Calls:
    """Calls one function, for all items of one flow."""

    __slots__ = ("_attempts", "_each", "_items", "function", "what")

    def __init__(
        self,
        what: str,
        function: Callable[[Any], Any],
        each: Attempt | Callable[[Any], Attempt],
    ) -> None:
        self.what = what
        """What the function is, in words such as ``stage 'parse'``."""
        self.function = function
        self._each = each
        self._items = 0
        self._attempts: Attempts[Tries, OwnScope] = Attempts(
            function,
            InItsRun(what, function),
            items_started=lambda: self._items,
            closing=lambda: current_run().stopping,
        )

    @property
    def plain(self) -> bool:
        """Whether there is nothing to do but call the function."""
        return isinstance(self._each, Attempt) and self._each == ONE_ATTEMPT

    @property
    def hedges(self) -> Hedges:
        """The attempts started alongside others, and what they achieved."""
        return self._attempts.hedges

    def plan_for(self, item: Any) -> Attempt:
        """Return what should happen to one item.

        Raises:
          TypeError: if the caller's function of the item returned something else.
          ValueError: if it returned an attempt that can't be carried out.
        """
        return attempt_for(item, self._each, where=self.what)

    async def call(self, item: Any, walker: Walker) -> Any:
        """Call the function on ``item`` as its `Attempt` says, and return the value.

        Raises:
          Exception: of the last attempt, if all failed and there is no fallback.
          RunTimedOut: if that was its time; it names the current run.
          NotAsync: if the function returned no awaitable.

        Checkpoint: as the function does.

        Cancellation: no attempt is left alive.
        """
        plan = self.plan_for(item)
        self._items += 1
        tries = Tries()
        try:
            while True:
                tries.before = tries.attempts
                status, result = await self._attempts.make_try(plan, tries, item)
                if status == "ok":
                    return result
                if not await self.another_try(plan, tries, result):
                    break
        finally:
            walker.attempts += max(0, tries.attempts - 1)
        try:
            return await self.fall_back(plan, item, result, walker)
        finally:
            del result  # It holds the frame that holds it.

    async def another_try(self, plan: Attempt, tries: Tries, failure: Exception) -> bool:
        """Wait as long as necessary before the next try; return False if there won't be one."""
        delay = self._attempts.delay_seconds(plan, tries, failure)
        return delay is not None and await nap(delay, current_run())

    async def fall_back(self, plan: Attempt, item: Any, failure: Exception, walker: Walker) -> Any:
        """Return what the fallback gives for an item that failed for good; without one, raise."""
        if plan.fallback is None or trio.current_effective_deadline() == -math.inf:
            raise failure
        try:
            value = await fallback_value(plan, item, failure)
        except Exception as error:
            set_context(error, failure)
            raise
        walker.degraded = True
        return value


def timed_out(what: str, plan: Attempt, stuck_at: types.TracebackType | None) -> RunTimedOut:
    """Return the error for an attempt whose time is up, saying where it was."""
    run = current_run()
    where = f", in {describe_wait(traceback_frames(stuck_at))}" if stuck_at is not None else ""
    error = RunTimedOut(
        f"{what} of run {run.path!r} ran out of time after {plan.timeout:g} s{where}"
    )
    error.run_id = run.id
    return error


def not_async(what: str, function: Callable[..., Any], returned: Any) -> NotAsync:
    """Return the error for a function that returned something that can't be awaited."""
    return NotAsync(f"{what}: {not_awaitable_error(function, returned)}")
