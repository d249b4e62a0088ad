"""Define every error of harness that a user may catch.

All derive from `HarnessError`, so one ``except`` clause can tell what harness reports from what the
user's own code raised. Two have a second base, which code that knows trio or Python expects:
`RunTimedOut` is a `trio.TooSlowError`, `FanOutError` is an `ExceptionGroup`.

Wrong arguments are not here: those are plain `ValueError` and `TypeError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import trio

if TYPE_CHECKING:
    from harness._approvals import Answer, Parked, WaitingCall

_ErrorT_co = TypeVar("_ErrorT_co", bound=Exception, covariant=True)
_OtherT = TypeVar("_OtherT", bound=Exception)


class HarnessError(Exception):
    """The base of every error that harness itself raises."""


class _ErrorWithFacts(HarnessError):
    """An error that is made of a message and of facts, and reads as its message."""

    def __str__(self) -> str:
        return str(self.args[0])


class HarnessWarning(UserWarning):
    """Something that works here but won't everywhere, such as a run held across a ``yield``.

    Not a `HarnessError`: it is shown, and raised only if warnings are errors.
    """


class NoRunError(HarnessError):
    """Code that needs a run was called outside any run."""


class RunEndedError(HarnessError):
    """A run was used after its block had been left.

    Usually a task outlived the run it belonged to: trio gives a task the context of whoever
    called ``start_soon``, not of the nursery it lives in. `harness.start_soon` says whose it is.
    """


class RunTimedOut(HarnessError, trio.TooSlowError):
    """A run was cut short by its own deadline, or by that of a stage or track it was in."""

    run_id: str | None = None
    """The run whose time ran out. It ends as ``"timed_out"``; any other run that the error comes
    out of ends as ``"failed"``."""

    allowed_seconds: float | None = None
    """The time it was allowed; its cleanup may have taken longer."""


class RunCancelled(HarnessError):
    """A run was cancelled; takes the place of a result or a reply."""

    reason: str | None
    """Why, in the words given to ``cancel``; None if nobody said."""

    partial: Any
    """What was finished before the cancel, if the operation can tell; else None."""

    run_id: str | None
    """The run that was cancelled. An item whose function it is raised from ends as
    ``"cancelled"`` if that is the item's own run, or one below it; else as ``"failed"``."""

    _runs_above: tuple[str, ...] = ()
    """The ids of the runs above that one, nearest first."""

    def __init__(
        self, reason: str | None = None, partial: Any = None, run_id: str | None = None
    ) -> None:
        super().__init__(reason, partial, run_id)
        self.reason = reason
        self.partial = partial
        self.run_id = run_id

    def __str__(self) -> str:
        return "the run was cancelled" + (f": {self.reason}" if self.reason else "")


class ApprovalPending(RunCancelled):
    """A run of an agent waits for a person to approve calls of its tools.

    ``partial`` is its reply so far. Go on in this process with `approve` or `deny`, and then
    ``await agent.resume(error)``; in a batch with a journal, with ``harness journal approve``.
    """

    waiting: tuple[WaitingCall, ...]
    """The calls that nobody has answered yet."""

    def __init__(
        self,
        states: Parked,
        root: str | None = None,
        partial: Any = None,
        run_id: str | None = None,
    ) -> None:
        super().__init__(None, partial, run_id)
        self.args: tuple[Any, ...] = (states, root, partial, run_id)
        self._root = root
        self._note(states)

    def __str__(self) -> str:
        calls = ", ".join(map(str, self.waiting[:_CALLS_NAMED]))
        more = len(self.waiting) - _CALLS_NAMED
        return f"waiting for a person's approval of {calls or 'nothing more'}" + (
            f" and {more} more" if more > 0 else ""
        )

    def __reduce__(self) -> tuple[Any, ...]:
        facts = (self._states, self._root, self.partial, self.run_id)
        return type(self), facts, vars(self)

    def approve(self, *ids: str) -> None:
        """Note that a person wants calls to be made.

        Args:
          ids: Their ``id``; none for all that wait.

        Raises:
          ValueError: if no such call waits.
        """
        self._answer(ids, True)

    def deny(self, *ids: str, reason: str = "") -> None:
        """Note that a person refuses calls; the model is told.

        Args:
          ids: Their ``id``; none for all that wait.
          reason: Why, in words for the model.

        Raises:
          ValueError: if no such call waits.
        """
        self._answer(ids, reason)

    def _answer(self, ids: tuple[str, ...], answer: Answer) -> None:
        self._note(_approvals().answered(self._states, ids, answer))

    def _note(self, states: Parked) -> None:
        self._states = states
        self.waiting = tuple(_approvals().waiting_in(states))


def _approvals() -> Any:
    """Return the module of approvals, which most programs never need."""
    return import_module("harness._approvals")


_CALLS_NAMED = 5


class InboxFullError(HarnessError):
    """A message was refused because a run's inbox had no room for it."""


class ItemSkipped(HarnessError):
    """An item of a fan-out never started, because the fan-out was over before its turn."""


class QuorumError(HarnessError):
    """Too few items succeeded, and too few were left for that to change."""


class TooManyFailuresError(HarnessError):
    """More items failed than ``BestEffort(max_failures=...)`` allows."""


class OutputsFailedError(_ErrorWithFacts):
    """A stage gave several outputs for an item, and not all of them have a value.

    Its cause is the first error. `results` says what became of each output.
    """

    results: Any
    """The `harness.Results` of the outputs, in the order in which the stage gave them."""

    def __init__(self, message: str, results: Any = ()) -> None:
        super().__init__(message, results)
        self.results = results


class UnknownTrackError(HarnessError, ValueError):
    """A router has no track with the name asked for."""


class RateLimitedError(_ErrorWithFacts):
    """A provider refused a request because too many were sent.

    Raise it (or any error that carries a status of 429 or 529) from a function under
    `harness.Retry`: the wait then uses up no attempt.
    """

    retry_after: float | None
    """Seconds the provider asked to wait; None if it didn't say."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message, retry_after)
        self.retry_after = retry_after


class FanOutError(HarnessError, ExceptionGroup[_ErrorT_co]):
    """A fan-out's policy was broken: one entry per failed item, and everything that was done.

    The group is flat: an entry is the item's own error. ``split``, ``except*`` and ``pickle``
    keep `results`.
    """

    # Any, because Results is floors above, and errors import nothing from harness.
    results: Any
    """The `harness.Results` of everything that ended, in input order."""

    def __new__(
        cls, message: str, errors: Sequence[_ErrorT_co], results: Any = ()
    ) -> FanOutError[_ErrorT_co]:
        """Return a group of ``errors`` that carries ``results``."""
        self = super().__new__(cls, message, errors)
        self.results = results
        return self

    # The group's own constructor has done everything; without this the third argument is refused.
    def __init__(self, message: str, errors: Sequence[_ErrorT_co], results: Any = ()) -> None:
        pass

    def derive(self, excs: Sequence[_OtherT], /) -> FanOutError[_OtherT]:  # type: ignore[override]
        """Return a group of ``excs`` with the same message and results, as ``split`` asks.

        If one of them isn't an `Exception`, it can only be a `BaseExceptionGroup`.
        """
        if not all(isinstance(error, Exception) for error in excs):
            return BaseExceptionGroup(self.message, excs)  # type: ignore[return-value]
        return FanOutError(self.message, excs, self.results)

    def __reduce__(self) -> tuple[Any, ...]:
        # Most entries are the error of a result, and are to be the same object again.
        places = {id(getattr(one, "error", None)): place for place, one in enumerate(self.results)}
        entries = (places.get(id(error), error) for error in self.exceptions)
        reduced: Any = import_module("harness._pickled_errors").reduced
        made: tuple[Any, ...] = reduced(
            _fan_out_error, type(self), self.message, self.results, *entries
        )
        return *made, self.__dict__


def _fan_out_error(
    kind: type[FanOutError[Exception]], message: str, results: Any, *entries: Any
) -> FanOutError[Exception]:
    """Return what was pickled; an entry is an error, or the place of the result that has it."""
    errors = [results[entry].error if isinstance(entry, int) else entry for entry in entries]
    return kind(message, errors, results)


class ScheduleError(_ErrorWithFacts, AssertionError):
    """A program fails under some order of its tasks, or its runs share what they shouldn't."""

    schedule: str | None
    """The replay string: what to pass as ``schedule=`` to see exactly this failure again."""

    schedules_run: int
    """How many schedules were run until it was found, not counting shrinking."""

    objects: tuple[str, ...]
    """The paths of the objects that caused it, if known."""

    leakage: Any = None
    """The `harness.testing.Leakage` that ``assert_isolated(measure=...)`` measured; else None."""

    def __init__(
        self,
        message: str,
        schedule: str | None = None,
        schedules_run: int = 0,
        objects: Sequence[str] = (),
    ) -> None:
        super().__init__(message, schedule, schedules_run, tuple(objects))
        self.schedule = schedule
        self.schedules_run = schedules_run
        self.objects = tuple(objects)


class DeadlockError(HarnessError, AssertionError):
    """Under some schedule every task of a program is waiting, and nothing can wake any of them."""


class CancellationError(HarnessError, AssertionError):
    """A cancelled task left something behind, or went on as if it had not been cancelled."""


class LivelockError(HarnessError, AssertionError):
    """Under some schedule a program goes on forever."""


class StarvationError(HarnessError, AssertionError):
    """Under some schedule a task never gets what it waits for: others take it each time."""


class InjectedFault(HarnessError):
    """Stands for the error of a call that a schedule made to fail."""

    def __init__(self, message: str = "this call was made to fail by the schedule") -> None:
        super().__init__(message)


class QuotaExhaustedError(_ErrorWithFacts):
    """A quota for a day, a month or an account is used up, so a retry can't help.

    On purpose, it isn't a `RateLimitedError` and has no ``retry_after``: code that waits for rate
    limits mustn't wait for this. Fail, or use another provider.
    """

    resets_after: float | None
    """Seconds until the quota is full again; None if the provider didn't say."""

    def __init__(self, message: str, resets_after: float | None = None) -> None:
        super().__init__(message, resets_after)
        self.resets_after = resets_after


class BudgetExceeded(_ErrorWithFacts):
    """A budget of its runs has less left than a call might spend.

    A retry can't help, so none is made.
    """

    run_path: str | None
    """The run that was given the budget; it may be above the one that asked."""

    partial: Any
    """If an agent's run ends with this: the `harness.agents.Reply` with what was done."""

    def __init__(self, message: str, run_path: str | None = None, partial: Any = None) -> None:
        super().__init__(message, run_path, partial)
        self.run_path = run_path
        self.partial = partial


class RecursiveCallError(HarnessError):
    """A pipeline or router was called from inside of itself, and had no slot free.

    The call would wait for a slot that its own caller may hold, for ever.
    """


class NestedReservationError(HarnessError):
    """Code that already holds a reservation of a limiter asked it for another.

    With enough such callers, each holds what another waits for. Reserve once per request to the
    provider, never around code that makes its own requests.
    """


class ReservationError(HarnessError, RuntimeError):
    """A reservation was used in a way that its state doesn't allow.

    Settled or refunded twice, entered twice, settled before it was granted, or asked for when there
    is none.
    """


class LimiterRunError(HarnessError, RuntimeError):
    """A limiter that belongs to one ``trio.run`` was used in another."""


class ChaosError(HarnessError):
    """An error that `harness.testing.Chaos` put into a call; nothing was wrong with the call."""


class JournalError(HarnessError):
    """The base of a journal's errors; by itself, that it couldn't be read or written.

    What was acknowledged before is safe.
    """


class JournalFormatError(JournalError):
    """The file isn't a journal, is damaged, or is from a newer version. Nothing was changed."""


class JournalLockedError(JournalError):
    """Another process writes to the journal, or took it over; or the batch is already open."""


class JournalClosedError(JournalError, RuntimeError):
    """A journal was used outside its block, in another ``trio.run``, or in a forked process."""


class JournalMismatchError(JournalError):
    """A batch was recorded by other code or with other settings.

    Give it another name, or open the journal with ``force=True`` to continue with what is there.
    """


class JournalKeyError(JournalError, ValueError):
    """An item's key is missing, empty, of the wrong type, or a duplicate."""


class JournalValueError(JournalError, ValueError):
    """A value or an item can't be written as text, or doesn't come back from it."""


class JournaledError(HarnessError):
    """Stands for an error of another process, whose object was lost: recorded in a journal, or
    pickled and not to be unpickled. It has the notes of that error."""

    type_name: str
    """The name of its class."""

    message: str
    """What it said."""

    traceback: str | None
    """Where it came from, in the user's own frames; None if that isn't known."""

    def __init__(self, type_name: str, message: str, traceback: str | None = None) -> None:
        super().__init__(type_name, message)
        self.type_name = type_name
        self.message = message
        self.traceback = traceback

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}" if self.message else self.type_name


class NotObservableError(HarnessError):
    """A running program can't be looked at: it has no socket, or none that is the user's alone."""


class CounterBoundsError(HarnessError, ValueError):
    """A change would have taken a shared counter out of its bounds, and wasn't made."""


class EffectUnknownError(_ErrorWithFacts):
    """An effect may or may not have taken place: it began, and nobody knows how it ended.

    A retry can't help, so none is made.
    """

    key: Any
    """The key given to `harness.shared.Once`."""

    idempotency_key: str
    """The idempotency key that the effect was given, so that its receiver can be asked."""

    def __init__(self, message: str, key: Any = None, idempotency_key: str = "") -> None:
        super().__init__(message, key, idempotency_key)
        self.key = key
        self.idempotency_key = idempotency_key


class SharedClosedError(HarnessError, RuntimeError):
    """A cache or a once was used, or waited for, after its block had been left."""


class CircularWaitError(HarnessError, RuntimeError):
    """A load or an effect asked, perhaps through others, for something that is waiting for it."""


class ModelError(_ErrorWithFacts):
    """A model gave no usable answer.

    The message names the run, the model and the cause; what the provider's client raised is the
    ``__cause__``. It never contains a key.
    """

    model: str | None
    """The model that was asked."""

    provider: str | None
    """The provider, such as ``"openai"``."""

    status_code: int | None
    """The status of the response; None if there was none."""

    headers: Mapping[str, str]
    """The headers of the response, with lower-case names."""

    body: Any
    """What the response said, if it was an error: parsed JSON or text."""

    retry_after: float | None
    """Seconds after which the same request may succeed; None if unknown."""

    partial: Any = None
    """If an agent's run ends with this: the `harness.agents.Reply` with what was done."""

    def __init__(
        self,
        message: str,
        *,
        model: str | None = None,
        provider: str | None = None,
        status_code: int | None = None,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
        retry_after: float | None = None,
    ) -> None:
        # Bypasses the other base of a subclass, which has one of these as its own.
        Exception.__init__(self, message)
        self.model = model
        self.provider = provider
        self.status_code = status_code
        self.headers = dict(headers or {})
        self.body = body
        self.retry_after = retry_after


class ModelStatusError(ModelError):
    """A provider answered a request with an error; see its ``status_code``."""


class ModelAccessError(ModelStatusError):
    """A provider doesn't let this key do that: status 401 or 403. A retry can't help."""


class ModelRequestError(ModelStatusError):
    """A provider can't do what a request asks: status 400, 404, 413 or the like. Sent again, the
    same request fails again."""


class ContextWindowError(ModelRequestError):
    """A request is longer than the model's context window, alone or with the output it allows."""


class ContentFilterError(ModelRequestError):
    """A provider's filter refused a request because of what is in it."""


class ModelRateLimitedError(ModelStatusError, RateLimitedError):
    """A provider refused a model's request because too many were sent, or it has no capacity.

    With a limiter, a model waits and asks again; this comes out if the wait would pass the
    deadline, or exceed ten minutes in total.
    """


class ModelQuotaExhaustedError(ModelStatusError, QuotaExhaustedError):
    """A provider refused a model's request because a quota is used up; a retry can't help."""

    def __init__(self, message: str, *, resets_after: float | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.resets_after = resets_after


class ModelRequestTooLargeError(ModelRequestError):
    """A provider refused a request that alone is above its limit; a retry can't help.

    Send less: a shorter history, a smaller ``max_output_tokens``, or several requests.
    """


class ModelFileError(ModelRequestError):
    """A model can't take a file that it was asked with: of that type, that size, or where it is.

    Raised before anything is sent, and before a limiter or a budget is asked.
    """


class ModelConnectionError(ModelError):
    """A provider couldn't be reached, or the connection broke before the answer was complete."""


class ModelUnreachableError(ModelConnectionError):
    """A provider couldn't be reached, so nothing was sent."""


class ModelReplyError(ModelError):
    """A model's reply makes no sense: it is malformed, cut short or empty."""


class MissingApiKeyError(ModelError):
    """A model was opened without the key that its provider requires."""


class ModelNotOpenError(HarnessError, RuntimeError):
    """A model that holds connections or memory was used outside its ``async with`` block."""


class ScriptEndedError(ModelError):
    """A scripted model was asked more often in one history than its script has replies."""


class UnrecordedRequestError(ModelError):
    """A recorded model was asked something for which its cassette has no reply."""


class MissingPriceError(ModelError):
    """A model without a price was asked under a budget in dollars, which couldn't be kept."""


class CassetteError(HarnessError):
    """A file of recorded replies can't be read, or holds something that isn't a recording."""


class MaxTurnsError(_ErrorWithFacts):
    """An agent took all its turns without reaching an answer."""

    partial: Any
    """The `harness.agents.Reply` with what was done."""

    def __init__(self, message: str, partial: Any = None) -> None:
        super().__init__(message, partial)
        self.partial = partial


class JournalMissingError(JournalFormatError):
    """There is no journal to read: no file, an empty one, or a database without its tables.

    A process killed while creating one leaves the same.
    """


class OutputError(_ErrorWithFacts):
    """An agent's answer didn't fit its ``output_type``, even after the model was told why."""

    partial: Any
    """The `harness.agents.Reply` with what was done; the answer is in its messages."""

    def __init__(self, message: str, partial: Any = None) -> None:
        super().__init__(message, partial)
        self.partial = partial


class ToolArgumentsError(HarnessError, ValueError):
    """The arguments of a tool call don't fit the tool. The model is told, and can correct them."""


class ToolTimeoutError(HarnessError, trio.TooSlowError):
    """A tool call took longer than the tool's timeout."""


class AsyncioBridgeError(HarnessError, RuntimeError):
    """Code in asyncio ended in a way that its caller in trio didn't ask for."""


class McpServerError(HarnessError):
    """An MCP server can't be reached, broke the protocol, or its connection was closed."""


class McpToolError(HarnessError):
    """An MCP server says that a call of one of its tools failed."""


class ClusterError(HarnessError):
    """A cluster can't be used: nothing can be sent there, or none of its workers starts."""


class ClusterGoneError(ClusterError):
    """A cluster's workers end as soon as they are started, so nothing can run in it any more."""


class WorkerLostError(_ErrorWithFacts):
    """The process that worked on an item has ended. The item is tried again, whatever ``retry=``
    says; this is its error only if that has happened to it several times."""

    follows: bool
    """Whether another attempt follows."""

    def __init__(self, message: str, follows: bool = False) -> None:
        super().__init__(message, follows)
        self.follows = follows
