"""Call a function under its `Attempt`, inside the run of the item on its way.

A fan-out makes each attempt a fresh run. Here an item has one run for its whole way, so the
attempts at one call share it: its `RunLocal` values, its deps, its idempotency key, its events.
They are made one after another in the item's own task, and so share its context variables too. A
hedge runs alongside the first attempt in a task of its own: it sees the item's context variables,
and what either of them sets is gone when one has won.

Where it is the same as in a fan-out, it is the same code: when to retry, when to hedge, how often.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio
from trio.lowlevel import disable_ki_protection, enable_ki_protection

from harness.errors import RunTimedOut
from harness.fanout import AttemptOver, HedgeBegan, Hedges, RetryPlanned
from harness.fanout._attempts import Attempts, fallback_value, is_cancelled, nap
from harness.fanout._job import Ended
from harness.fanout._plan import attempt_for
from harness.fanout._tries import ONE_ATTEMPT, Tries
from harness.flow._gate import Walker
from harness.policies import Attempt
from harness.runs import Run, current_run
from harness.runs._cleanup import shielded_from
from harness.runs._endings import cancelled_error, set_context, try_note, unwrap_single
from harness.runs._frames import describe_wait, traceback_frames
from harness.runs._functions import forgotten_await_error, not_awaitable_error
from harness.runs._inner_scope import InnerScope
from harness.runs._waits import observed_run


class NotAsync(TypeError):
    """A function returned what can't be awaited: a mistake in the program, not in an item."""


class OwnScope:
    """What an attempt is made in here: a scope with a deadline, which can be cancelled."""

    __slots__ = ("cancelled", "plan", "scope", "started_at")

    def __init__(self, plan: Attempt, number: int) -> None:
        self.plan = plan
        self.scope = InnerScope(current_run().id, number)
        self.started_at = trio.current_time()
        self.cancelled = False
        """Whether it was cut short because another attempt had answered."""

    def cancel(self, reason: str) -> None:
        """Cut this attempt short."""
        self.cancelled = True
        self.scope.cancel(reason)


class InItsRun:
    """Makes the attempts at one function inside the run of the item."""

    tells_cancels = False

    def __init__(self, what: str, function: Callable[[Any], Any]) -> None:
        self._what = what
        self._function = function

    def new(self, plan: Attempt, job: Tries) -> OwnScope:
        """Return the scope of an attempt, whose time begins now unless it waits for a grant."""
        attempt = OwnScope(plan, job.attempts + 1)
        if plan.timeout is not None and plan.limiter is None:
            self.allow(attempt, plan.timeout)
        return attempt

    @enable_ki_protection
    async def carry(
        self, attempt: OwnScope, function: Callable[[Any], Awaitable[Any]], item: Any
    ) -> Ended:
        """Be the body of the scope."""
        stuck_at: types.TracebackType | None = None
        try:
            with attempt.scope:
                try:
                    value = await self._called(function, item)
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

    @disable_ki_protection
    async def _called(self, function: Callable[[Any], Awaitable[Any]], item: Any) -> Any:
        """Call the user's function, which Ctrl-C can end."""
        return await self.call(function, item)

    def allow(self, attempt: OwnScope, seconds: float) -> None:
        """Let the time of an attempt begin now."""
        attempt.scope.allow(seconds)

    def call(self, function: Callable[[Any], Awaitable[Any]], item: Any) -> Awaitable[Any]:
        """Call a function that may turn out not to be async."""
        awaitable = function(item)
        if not isinstance(awaitable, Awaitable):
            raise not_async(self._what, function, awaitable)
        return awaitable

    @enable_ki_protection
    def launch(
        self,
        nursery: trio.Nursery,
        job: Tries,
        make: Callable[[OwnScope], Awaitable[None]],
        attempt: OwnScope,
    ) -> None:
        """Make an attempt in a task of its own, in the current context."""
        nursery.start_soon(make, attempt, name=self._what)

    def tell(self, job: Tries, attempt: OwnScope, ended: Ended) -> None:
        """Tell observers how an attempt ended."""
        if (run := observed_run()) is not None:
            status, result = ended
            began, number = attempt.started_at, job.attempts
            run._notice(AttemptOver(run.id, None, self._what, number, status, began, result))

    def tell_retry(self, job: Tries, delay: float, error: Exception) -> None:
        """Tell them that another try follows."""
        if (run := observed_run()) is not None:
            run._notice(RetryPlanned(None, self._what, job.attempts, run.id, delay, error))

    def tell_hedge(self, job: Tries, attempt: OwnScope, late: OwnScope) -> None:
        """Tell them that an attempt begins beside a late one."""
        if (run := observed_run()) is not None:
            run._notice(HedgeBegan(None, self._what, run.id, run.id))

    def beside(self) -> None:
        """Do nothing: the run is the same in all tasks."""

    def counts(self, job: Tries, attempt: OwnScope) -> None:
        """Do nothing: the run is the same for all attempts."""

    def asked(self, function: Callable[[Exception], bool], error: Exception) -> bool:
        """Ask in the current context."""
        return function(error)


class Closing(Protocol):
    """Whose items a function is called for."""

    @property
    def run(self) -> Run:
        """The run that the items are below."""
        ...

    def closing(self) -> bool:
        """Return whether no further attempt is to be started."""
        ...

    def why_cut(self) -> str | None:
        """Return in words why that is so; None if it isn't."""
        ...


class _Around:
    """What the calls of one function have around them: how many items came, and whose they are."""

    __slots__ = ("host", "started")

    def __init__(self) -> None:
        self.started = 0
        self.host: Closing | None = None
        """Whose items it is called for; None if those come from calls."""

    def why_closing(self, run: Run, shielded: str | None) -> str | None:
        """Return in words why an item of ``run`` is not to be tried again; None if it may be.

        Args:
          run: The item's.
          shielded: What `shielded_from` says in its task; this may be asked in another one.
        """
        words = run._stop_words(shielded)
        if words is None and self.host is not None and self.host.closing():
            words = self.host.why_cut() or "no further attempt is made"
        return words

    def closing(self) -> bool:
        """Return whether no further attempt is to be started."""
        return self.why_closing(current_run(), shielded_from()) is not None


class Calls:
    """Calls one function, for all items of one flow."""

    __slots__ = ("_around", "_attempts", "_each", "function", "what")

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
        self._around = _Around()
        self._attempts: Attempts[Tries, OwnScope] = Attempts(
            function,
            InItsRun(what, function),
            counted=self._around,
            closing=self._around.closing,
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
        self._around.started += 1
        tries = Tries()
        try:
            while True:
                tries.before = tries.attempts
                status, result = await self._attempts.make_try(plan, tries, item)
                if status == "ok":
                    return result
                assert isinstance(result, Exception)
                if not await self.another_try(plan, tries, result):
                    break
        finally:
            walker.attempts += max(0, tries.attempts - 1)
        if plan.retry is not None or plan.hedge is not None:
            try_note(result, f"attempt {tries.attempts} at {self.what}")
        try:
            self.give_up_if_stopped(tries, result)
            return await self.fall_back(plan, item, result, walker)
        finally:
            del result  # It holds the frame that holds it.

    def give_up_if_stopped(self, tries: Tries, failure: Exception) -> None:
        """Refuse to go on if only a stop keeps a failed call from its next try.

        Raises:
          RunCancelled: then. So the item is cancelled, and has not failed.
        """
        run = current_run()
        words = self._around.why_closing(run, shielded_from()) if tries.owed else None
        if words is not None:
            error = cancelled_error(run)
            error.reason = words
            raise error from failure

    async def another_try(self, plan: Attempt, tries: Tries, failure: Exception) -> bool:
        """Wait as long as necessary before the next try; return False if there won't be one."""
        delay = self._attempts.delay_seconds(plan, tries, failure)
        if delay is None:
            return False
        around, run, shielded = self._around, current_run(), shielded_from()
        above = () if around.host is None else (around.host.run,)
        return await nap(delay, lambda: around.why_closing(run, shielded) is not None, run, *above)

    def belong_to(self, host: Closing | None) -> None:
        """Make no further attempt once ``host`` is closing; None for nobody in particular."""
        self._around.host = host

    def closing(self) -> bool:
        """Return whether no further attempt is to be started."""
        return self._around.closing()

    async def fall_back(self, plan: Attempt, item: Any, failure: Exception, walker: Walker) -> Any:
        """Return what the fallback gives for an item that failed for good; without one, raise."""
        if plan.fallback is None or is_cancelled():
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
