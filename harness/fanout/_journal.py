"""What a fan-out asks of a durable record of its items.

The engine drives these protocols, and `harness.journal` implements them, several floors above. In
the order of one item's life:

1. ``entry = batch.find(key, item)``: which item is it, and what is known of it? In memory, at once.
2. Is it done, or failed and kept? ``batch.read([entry, ...])`` gives what it ended with.
3. Else ``attempts = await batch.begin([entry, ...])``: from then on the attempts are on disk, and
   their functions may start. Begin ahead, many items per call, so that no item waits for the disk
   in its slot.
4. ``await batch.end(entry, attempt, ending)``: from then on the result is never computed again.
   `FanOutBatch.end_nowait` is the same for many, with a callback, for code that has no task to
   wait in.

An attempt that was begun ahead and never started ends as ``"unstarted"``: it didn't happen. An
attempt with no ending was in flight when its process died.

An item of a pipeline or a router takes several steps between 3 and 4. Each is recorded with
`FanOutBatch.end_nowait` when it is done; the next session finds those in `Entry.steps`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

import attrs

from harness._approvals import Parked
from harness.fanout._plan import Plan
from harness.fanout._steps import Steps
from harness.runs import current_run_or_none
from harness.runs._run import LASTING_KEY

if TYPE_CHECKING:
    from harness.fanout._kept import ItemLogs, Kept

EntryState = Literal["new", "open", "in_flight", "done", "failed"]
"""What is known of an item before it is worked on.

- ``"new"``: nothing, or its input has changed since.
- ``"open"``: it was worked on, with no ending that counts: cancelled, or to be tried again.
- ``"in_flight"``: an attempt has no ending. Its process died, perhaps because of it.
- ``"done"``, ``"failed"``: it has an ending.
"""

THE_ITEM: Any = object()
"""Stands for the item itself, where None may be one."""

Glimpse: TypeAlias = Any
"""What a journal says of an item that is done, to be handed back to it: plain data."""

AttemptStatus = Literal["ok", "failed", "timed_out", "cancelled", "unstarted"]

Acknowledge = Callable[[BaseException | None], None]
"""Called in trio's thread once a record is durable, or with the error if it can't be made so."""


class Step(NamedTuple):
    """A step of an item that earlier sessions recorded, made by the code that there is now."""

    name: str
    """What it is called: ``stage 'parse'``."""

    part: str
    """Which output of a stage that yields several took it; empty for the item itself."""

    record: int
    """The number of its record."""

    ending: int | None
    """The number of the item's ending, if that has its value; else its own record has it."""

    degraded: bool
    """Whether a fallback gave a value up to here."""

    further: int
    """Attempts beyond the first that the steps up to here made."""


class StepDone(NamedTuple):
    """A step that is done, to be recorded."""

    name: str
    """What it is called."""

    part: str
    """Which output took it, as in `Step`."""

    text: str
    """Its value, as `FanOutBatch.encode` gave it."""

    degraded: bool
    """Whether a fallback gave a value up to here."""

    further: int
    """Attempts beyond the first that the steps up to here made."""


class LastStep(NamedTuple):
    """The step that an item ended with."""

    name: str
    """What it is called."""

    for_good: bool
    """Whether no step could come after this ending: it failed, or the item was dropped."""

    further: int
    """Attempts beyond the first that the steps up to here made."""


@attrs.define(eq=False)
class Entry:
    """One item of a batch, as the journal knows it."""

    id: int
    """The item's number in the journal."""

    key: str | int
    """Its key, the same in every session."""

    state: EntryState
    """What was known of it before this session."""

    attempts: int = 0
    """Attempts that count, over all processes and including this session: those that failed, timed
    out or succeeded, and those with no ending. Cancelled ones are given back."""

    ending: int | None = None
    """The number of the record it ended with; None if there is none."""

    alone: bool = False
    """Whether its latest attempt without an ending was begun with nothing else in flight."""

    parked: int | None = None
    """The number of the record that says which of its tool calls wait for a person's approval, and
    what was answered; None if none do."""

    effects_key: str = ""
    """Its idempotency key: unique to the item, and the same in every session and after any restore.
    Empty if the item won't run."""

    steps: Sequence[Step] = ()
    """Its steps that are done, oldest first; for an item of a pipeline or a router that will run,
    made by the code that there is now."""

    further: int = 0
    """Attempts beyond the first that steps of earlier sessions made."""

    last_step: str | None = None
    """The step it ended with; None if it hasn't ended, or has no steps."""


class ModelUsage(NamedTuple):
    """What the calls of models in an attempt used, by kind."""

    models: Mapping[str, None]
    """Their names, in the order they were first called."""

    tokens: tuple[int, int, int, int]
    """Of the input, of the output, and how many of the input's came from the provider's cache and
    went into it."""

    def __add__(self, other: ModelUsage) -> ModelUsage:  # type: ignore[override]
        one, two, three, four = map(operator.add, self.tokens, other.tokens)
        return ModelUsage({**self.models, **other.models}, (one, two, three, four))


class Ending(NamedTuple):
    """How an attempt ended, and whether its item ended with it.

    A tuple, since one is made per attempt, and a frozen attrs class takes three times as long.
    """

    status: AttemptStatus
    """How it ended; ``"unstarted"`` if it was begun ahead and its function never called."""

    final: bool = True
    """Whether this is the item's ending. False if another attempt follows or decides instead.
    Cancelled and unstarted attempts never end their item."""

    degraded: bool = False
    """Whether the value came from the fallback."""

    seconds: float = 0.0
    """How long it took, by trio's clock."""

    value: str | None = None
    """The value as `FanOutBatch.encode` gave it, for the status ok; for a run that waits for an
    approval, its state."""

    error_type: str | None = None
    """The name of the error's class; for a failure."""

    error_message: str | None = None
    """What the error says; for a failure."""

    tokens: int = 0
    """What was used in its run and in those below."""

    cost_usd: float = 0.0
    """What that cost, in dollars."""

    error_traceback: str | None = None
    """Where the error came from, in the user's own frames; for a failure."""

    run_id: str | None = None
    """The run of the attempt; None if its function was never called."""

    usage: ModelUsage | None = None
    """What models used of the tokens; None if none was called."""
    step: LastStep | None = None
    """The step it ended with; None for an item that has none."""


class Stored(NamedTuple):
    """What an item ended with, read from the journal. A tuple, for the same reason as `Ending`."""

    status: Literal["ok", "failed", "timed_out"]
    """How it ended."""

    value: Any
    """The decoded value; None unless the status is ok."""

    error_type: str | None
    """The name of the error's class; None if the status is ok."""

    error_message: str | None
    """What the error says; None if the status is ok."""

    error_traceback: str | None
    """Where it came from, in the user's own frames; None if the status is ok."""

    degraded: bool
    """Whether the value came from the fallback."""

    attempts: int
    """As in `Entry`."""

    started_at: float
    """When its last attempt began, in seconds since the epoch."""

    ended_at: float
    """When it ended, in seconds since the epoch."""

    seconds: float
    """How long that took, by trio's clock in its process."""


@attrs.frozen(kw_only=True)
class Totals:
    """What a batch came to, over all its sessions: the same as in one unbroken session.

    Except for what was cut short or lost with a process: that is counted separately.
    """

    items: int
    """Items ever begun or ended, each once; a changed item only with its newest input."""

    ok: int
    """Items with a value, including values from a fallback."""

    failed: int
    """Items that ended with an error, including those set aside."""

    timed_out: int
    """Items that ran out of time."""

    open: int
    """Items with no ending that counts."""

    waiting: int
    """How many of those wait for a person's approval."""

    degraded: int
    """Items whose value came from the fallback."""

    attempts: int
    """Attempts with an ending that counts."""

    cancelled_attempts: int
    """Attempts that were cut short."""

    lost_attempts: int
    """Attempts with no ending: in flight now, or when their process died."""

    tokens: int
    """Used by all attempts, including cancelled ones: they spent it too."""

    cost_usd: float
    """What all attempts cost, in dollars, including cancelled ones."""

    run_seconds: float
    """How long the attempts that count took in total, by trio's clock."""

    sessions: int
    """How often the batch was opened."""

    seconds: float
    """The time from the start of each session to its last record, summed."""


class FanOutBatch(Protocol):
    """One fan-out's part of a journal, for one session. `close` ends it."""

    @property
    def items(self) -> int:
        """How many items earlier sessions left."""
        ...

    @property
    def max_attempts(self) -> int | None:
        """How many attempts an item may have over all processes; None without a limit."""
        ...

    def find(self, key: Any, item: Any, kept: Any = THE_ITEM) -> Entry:
        """Look an item up, and refuse any later item with its key.

        Args:
          key: What names it.
          item: What makes it the same as before.
          kept: What is kept of it, for exports; by default ``item``.

        Raises:
          JournalKeyError: if the key is neither text nor a whole number, is empty, or was already
            used in this session.
          JournalValueError: if the item has no content that can be compared with an earlier one.
        """
        ...

    def glimpse(self, key: Any) -> Glimpse | None:
        """Return what is kept under a key, without a look at the item; `kept_entry` takes it.

        Any later item with that key is refused, as by `find`.

        Returns:
          None: nothing may be kept, and `find` says what is known.

        Raises:
          JournalKeyError: if the key is neither text nor a whole number, or is empty.
        """
        ...

    def kept_entry(self, key: Any, glimpse: Glimpse, item: Any, kept: Any = THE_ITEM) -> Entry:
        """Return the entry of an item that was glimpsed; a new one if it isn't what was recorded.

        Args:
          key, item, kept: As for `find`.
          glimpse: What `glimpse` gave for the key.

        Raises:
          JournalValueError: if the item has no content that can be compared with an earlier one.
        """
        ...

    def encode(self, value: Any, step: str | None = None) -> tuple[str, Any]:
        """Return the value's text for the journal, and the value that comes back from it.

        Args:
          value: The value of an item, or of a step.
          step: The name of the step that gave it; None for an item without steps.

        Raises:
          JournalValueError: if it has no text, or doesn't come back from it.
        """
        ...

    async def read(self, entries: Sequence[Entry]) -> list[Stored]:
        """Return what each of the entries ended with, in their order; they are done or failed.

        Raises:
          JournalError: if one of them has no ending, or the journal can't be read.
          JournalValueError: if a value can't be decoded.

        Checkpoint: always, unless there are no entries.

        Cancellation: nothing is left behind.
        """
        ...

    async def parked(self, entry: Entry) -> Parked:
        """Return what is kept of the runs of an item that wait for approvals.

        Raises:
          JournalError: if it can't be read.

        Checkpoint: always.

        Cancellation: nothing is left behind.
        """
        ...

    def decode(self, text: str, step: str | None = None) -> Any:
        """Return the value of a text that `encode` gave.

        Args:
          text: What `encode` gave.
          step: The stage whose value it is; None for the item's own.

        Raises:
          JournalValueError: if it can't be decoded.
        """
        ...

    async def read_step(self, step: Step) -> str:
        """Return the text of the value of a step that is done.

        Raises:
          JournalError: if it can't be read.

        Checkpoint: always.

        Cancellation: nothing is left behind.
        """
        ...

    def keep_nowait(self, entry: Entry, kept: Kept) -> None:
        """Keep something with an item; nobody is told when it is durable.

        Args:
          entry: The item.
          kept: What to keep.
        """

    async def begin(self, entries: Sequence[Entry], *, alone: bool = False) -> list[int]:
        """Record an attempt at each, and return their numbers once that is durable.

        Args:
          entries: The items.
          alone: Whether nothing else is in flight.

        Raises:
          JournalError: if it can't be made durable.

        Checkpoint: always.

        Cancellation: the attempts are recorded nevertheless, and count until they are ended.
        """
        ...

    def begin_nowait(
        self, entries: Sequence[Entry], then: Acknowledge, *, alone: bool = False
    ) -> list[int]:
        """Record an attempt at each; ``then`` is called once that is durable.

        Args:
          entries: The items.
          then: Called once, with the error if it can't be made durable. It must not raise.
          alone: Whether nothing else is in flight.
        """
        ...

    async def end(self, entry: Entry, attempt: int | None, ending: Ending) -> None:
        """Record how an attempt ended, and return once that is durable.

        Args:
          entry: The item.
          attempt: The attempt's number; None for an ending that no attempt led to.
          ending: How it ended.

        Raises:
          JournalError: if it can't be made durable.

        Checkpoint: always.

        Cancellation: the ending is recorded nevertheless; only the wait ends.
        """
        ...

    def end_nowait(
        self,
        ended: Sequence[tuple[Entry, int | None, Ending]],
        then: Acknowledge,
        steps: Sequence[tuple[Entry, StepDone]] = (),
    ) -> None:
        """Record how attempts ended; ``then`` is called once that is durable.

        Args:
          ended: For each, what `end` takes.
          then: Called once.
          steps: Steps that are done, with their items; recorded first.
        """
        ...

    async def flush(self) -> None:
        """Wait until all that was recorded before is durable.

        Raises:
          JournalError: if it can't be made durable.

        Checkpoint: always.

        Cancellation: only the wait ends.
        """
        ...

    async def totals(self) -> Totals:
        """Return what the batch came to, over all its sessions so far.

        Checkpoint: always.

        Cancellation: nothing is left behind.
        """
        ...

    async def close(self) -> None:
        """Wait until all that was recorded is durable, and let another fan-out open the batch.

        Raises:
          JournalError: if it can't be made durable.

        Checkpoint: always.

        Cancellation: the batch is closed nevertheless; only the wait ends.
        """
        ...


class SharedBatch(FanOutBatch, Protocol):
    """A batch whose items several sessions divide among them while all of them run."""

    @property
    def held(self) -> int:
        """How many of the items asked for are held by others."""
        ...

    @property
    def claiming(self) -> int:
        """How many items may become this session's with the answer that is awaited."""
        ...

    def listen(self, told: Callable[[BaseException | None], None]) -> None:
        """Have ``told`` called after answers, and now and then while others hold items.

        It is called in trio's thread between two tasks, with the error if there can be no answers.
        """
        ...

    def ask(self, key: Any, item: Any, kept: Any, answer: Callable[[Entry], None]) -> None:
        """Ask for an item; ``answer`` is called, as ``told`` is, once it is done or this session's.

        Args:
          key, item, kept: As for `find`.
          answer: Takes the item, once.

        Raises:
          JournalKeyError: as `find` does.
          JournalValueError: as `find` does.
        """
        ...

    def claim(self, wanted: int) -> None:
        """Have up to ``wanted`` more of the items asked for made this session's."""
        ...

    def give_back(self, entry: Entry) -> None:
        """Let others have an item that ended here and isn't done; that must be recorded."""
        ...


class ValueForm(Protocol):
    """The JSON form of values that aren't plain data, for a function such as an agent.

    A journal without ``encode=`` and ``decode=`` keeps them in this form.
    """

    def value_to_json(self, value: Any) -> Any:
        """Return what JSON can hold of a value, including one from a fallback."""
        ...

    def value_from_json(self, plain: Any) -> Any:
        """Return the value that `value_to_json` was given."""
        ...


class BatchStore(Protocol):
    """Where the batches of fan-outs are kept."""

    @property
    def name(self) -> str:
        """Where that is."""
        ...

    @property
    def kept(self) -> Literal["raise", "return"]:
        """What becomes of failures from earlier sessions under a policy that raises failures."""
        ...

    @property
    def logs(self) -> ItemLogs | None:
        """What is kept of what items say; None: only files."""
        ...

    async def open_batch(
        self, name: str, *, target: str, settings: Mapping[str, Any]
    ) -> FanOutBatch:
        """Open a batch, new or known.

        Args:
          name: Its name in the journal.
          target: The full name of the function.
          settings: Whatever else decides its answers; plain JSON data.

        Raises:
          JournalMismatchError: if it is known with another target, version or settings.
          JournalLockedError: if it is already open, or another process has taken over the journal.
          JournalError: if the journal can't be read or written.

        Checkpoint: always.

        Cancellation: the batch isn't open.
        """
        ...


class DefaultName(str):
    """A batch name that nobody chose: the function's.

    Two fan-outs of one function may be two batches or one continued, and only a name can tell.
    """

    inside: frozenset[str] = frozenset()
    """The ids of the runs around it up to that of the next item with a journal; none if there is
    no such item."""


@attrs.frozen(kw_only=True)
class BatchIdentity:
    """Which batch of a journal a fan-out is, and what makes an item the same as before."""

    name: str
    """Its name in the journal."""

    target: str
    """The full name of its function."""

    settings: Mapping[str, Any] = attrs.field(factory=dict)
    """What else decides its answers; plain JSON data."""

    content: Callable[[Any], Any] | None = None
    """Returns the part of an item that makes it the same as before; None: all of it."""

    kept: Callable[[Any], Any] | None = None
    """Returns what is kept of an item, for exports; None: its content."""

    form: ValueForm | None = None
    """Turns its values into plain data; None: they are plain."""

    function: Callable[..., Any]
    """The function whose source is compared, and whose annotation says what its values are."""

    tell: Callable[[str], None] | None = None
    """Told that the source has changed; None: a `HarnessWarning` is given."""

    opened: Callable[[int], None] | None = None
    """Called with how many items are done, once it is open; None: nobody asks."""

    steps: Steps | None = None
    """What its items go through; None: a function."""


def batch_of(plan: Plan, function: Callable[..., Any] | None = None) -> BatchIdentity:
    """Return which batch a fan-out is, from its function and its name.

    Args:
      plan: What was asked for.
      function: What its function calls, if that is another one's wrapper; None: that itself.
    """
    steps = plan.steps
    if steps is not None:
        return BatchIdentity(
            name=plan.name or _default_name(plan),
            target=steps.target,
            settings=settings_of(steps.of),
            function=steps.of,
            steps=steps,
        )
    inner: Any = plan.function if function is None else function
    while isinstance(inner, functools.partial):
        inner = inner.func
    of = inner if hasattr(inner, "__qualname__") else type(inner)
    return BatchIdentity(
        name=plan.name or _default_name(plan),
        target=f"{of.__module__}.{of.__qualname__}",
        settings=settings_of(inner),
        form=form_of(inner),
        function=plan.function if function is None else function,
    )


def form_of(function: Any) -> ValueForm | None:
    """Return how the values of an agent, or of its method `run`, are written; else None."""
    while isinstance(function, functools.partial):
        function = function.func
    owner: Any
    for owner in (getattr(function, "__self__", None), function):
        # Ask its class: a mock has any attribute it is asked for.
        if hasattr(type(owner), "value_to_json") and hasattr(type(owner), "value_from_json"):
            form: ValueForm = owner
            return form
    return None


def settings_of(function: Any) -> dict[str, Any]:
    """Return what an agent was made with, or each of the agents in a pipeline or a router."""
    while isinstance(function, functools.partial):
        function = function.func
    owner: Any
    for owner in (function, getattr(function, "__self__", None)):
        if hasattr(type(owner), "batch_settings"):
            settings: dict[str, Any] = owner.batch_settings()
            return settings
    if not isinstance(getattr(type(function), "functions", None), property):
        return {}
    return {
        f"{name}: {what}": value
        for name, part in function.functions.items()
        for what, value in settings_of(part).items()
    }


def _default_name(plan: Plan) -> DefaultName:
    name = DefaultName(plan.run_name)
    run = current_run_or_none()
    inside: list[str] = []
    for one in () if run is None else (run, *run._ancestors()):
        inside.append(one.id)
        if one._locals is not None and LASTING_KEY in one._locals:
            name.inside = frozenset(inside)
            break
    return name
