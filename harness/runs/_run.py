"""Define the run: a piece of work that owns its state.

A `Run` holds everything that belongs to one piece of work: messages, dependencies, cancellation,
listeners. Code finds its run through one context variable (`current_run`), so nothing is passed
by hand. ("Run" here is a piece of work, not ``trio.run``.)

A run owns one cancel scope and no nursery. It is opened and closed by `open_run`, or by an engine
that gives it a task of its own; this file is what a run *is*, and what can be done with it
meanwhile.

Invariants: the status is set once, when the run ends. An ended run holds only plain facts: its
locals, dependencies, messages, listeners and links to other runs are gone, so a context copied by
some long-lived task keeps nothing else alive.
"""

from __future__ import annotations

import logging
import math
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol

import trio
from trio import CancelScope  # By name: `trio` has a `__getattr__`, so a look-up costs.
from trio.lowlevel import enable_ki_protection

from harness._arguments import check_count, check_seconds
from harness._outside_trio import PAGE
from harness.errors import RunEndedError
from harness.runs import _identity
from harness.runs._events import Delivery, Event, Subscription
from harness.runs._frames import describe_wait, task_frames, where_we_are
from harness.runs._inbox import Inbox
from harness.runs._inner_scope import inner_scope
from harness.runs._keys import digest, name_of_effect
from harness.runs._notices import RunBegan, RunOver
from harness.runs._observers import Observer
from harness.runs._scopes import NO_SCOPE, cancel_scope
from harness.runs._tree import Above, Tree

Ending = Literal["ok", "failed", "timed_out", "cancelled"]
RunStatus = Literal["running"] | Ending

logger = logging.getLogger("harness.runs")

CLEANUP_SECONDS = 5.0
"""How long cleanup may take after a cancel: long enough for a server, short for a person."""

NO_TAGS: Mapping[str, Any] = types.MappingProxyType({})


class ActiveCleanup(Protocol):
    """A cleanup block in progress, to be told when a run's cancel starts its clock."""

    def run_cancelled(self, cancelled_at: float) -> None:
        """Note that the run, or one above it, is cancelled as of ``cancelled_at``."""


class RunKey(Protocol):
    """What a run keeps a value under: a `RunLocal`."""

    def fork_value(self, value: Any) -> Any:
        """Return what a child run starts with where its parent has ``value``."""


class _NotForked:
    """What a run keeps one thing under that a child doesn't get."""

    def fork_value(self, value: Any) -> Any:
        """Return what a child run starts with; it is never asked."""
        return value


LASTING_KEY: RunKey = _NotForked()
"""What a run's idempotency key is under if an engine gave it one that outlives the process. Among
the run's values rather than in a slot of its own, because few runs have one."""

KEEPER: RunKey = _NotForked()
"""What keeps things with an item of a journal is asked of what is under this in the item's runs: an
object with a method ``keeper_of``, which takes the run."""

STARTED_BY: RunKey = _NotForked()
"""What the id of the run that let this one begin is under, until it has, if anybody observes it."""

_OWN_NUMBER: RunKey = _NotForked()
"""What the number of a fan-out inside an item, among those of its name, is under."""

_FOREVER, _LONG_AGO = math.inf, -math.inf
"""Looked up once: each run begins with them."""


if TYPE_CHECKING:
    # Type checkers know it without its being installed. The default makes `Run` alone `Run[Any]`.
    from typing_extensions import TypeVar

    DepsT_co = TypeVar("DepsT_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    DepsT_co = TypeVar("DepsT_co", covariant=True)


class Run(Generic[DepsT_co]):
    """A piece of work that owns its state. Made by `open_run`, never directly.

    The facts stay readable forever: `id`, `name`, `path`, `tags`, `status`, `started_at`,
    `ended_at`, `cancel_reason`, `undelivered`. After the end `parent` is None, `children` is empty,
    and `deps`, `emit`, `subscribe`, ``inbox.put``, a `RunLocal` and `start_soon` raise
    `RunEndedError`.

    For type checkers ``Run[Database]`` is a run whose `deps` are a ``Database``. `open_run` returns
    it when it is given such, and `current_run` when it is asked for such.
    """

    __slots__ = (
        "__weakref__",
        "_above",
        "_above_children",
        "_attempt_number",
        "_cancel_asked",
        "_cancel_reason",
        "_cancelled_at",
        "_children",
        "_cut_at",
        "_cleanup_until",
        "_cleanups",
        "_deps",
        "_ended_at",
        "_forks",
        "_idle",
        "_inbox",
        "_item_index",
        "_locals",
        "_nurseries_at_start",
        "_observers",
        "_on_stop",
        "_parent",
        "_private",
        "_scope",
        "_sequence",
        "_started_at",
        "_status",
        "_stop_reason",
        "_stopping",
        "_subscriptions",
        "_tags",
        "_takes_no_tasks",
        "_task",
        "_tasks",
        "_undelivered",
        "_why_cut",
        "id",
        "name",
    )

    id: str
    """Short, and unique across processes."""

    name: str
    """The name it was opened with."""

    _attempt_number: int
    """Which attempt at its item it is. Set only if there may be several."""

    def __init__(
        self, name: str, parent: Run | None, started_at: float, deadline: float = math.inf
    ) -> None:
        self.id = f"{_identity.prefix}{next(_identity.numbers)}"
        self.name = name
        self._status: RunStatus = "running"
        self._started_at = started_at
        self._ended_at: float | None = None
        # Most have no deadline, and a keyword costs time.
        self._scope = CancelScope() if deadline == _FOREVER else CancelScope(deadline=deadline)
        self._tags = NO_TAGS
        self._private = False
        # What most runs never have is None until the first: a live run has to stay small.
        self._children: dict[Run, None] | None = None  # In order of their start.
        self._cleanups: list[ActiveCleanup] | None = None
        self._subscriptions: list[Subscription] | None = None
        self._inbox: Inbox | None = None
        self._undelivered: tuple[Any, ...] = ()
        self._sequence = 0
        self._stopping = False
        self._stop_reason: str | None = None
        self._on_stop: dict[Callable[[], None], None] | None = None
        # Whether `cancel` takes effect before the run's own deadline: it decides the ending.
        self._cancel_asked = False
        self._cancel_reason: str | None = None
        self._cancelled_at: float | None = None
        # Until when cleanup in this run, or below it, was allowed; who goes on longer overran.
        self._cleanup_until = _LONG_AGO
        # When and why something inside the run, such as a fan-out, cuts short what is below it.
        self._cut_at = _FOREVER
        self._why_cut: Callable[[], str | None] | None = None
        # Which item of its parent this is an attempt at; all attempts at one share a key.
        self._item_index: int | None = None
        # The tasks of `start_soon`, by scope, with their names; and who waits for the last one.
        self._tasks: dict[trio.CancelScope, str] | None = None
        self._takes_no_tasks = False
        self._idle: trio.Event | None = None
        # The task that the run is the body of, and how many nurseries it had open before.
        self._task: trio.lowlevel.Task | None = None
        self._nurseries_at_start = 0
        # Also, by kind and words, the numbers taken of equal things in an attempt at an item.
        self._locals: dict[RunKey | tuple[str, str], Any] | None = None
        self._forks: tuple[RunKey, ...] = ()  # Those of the locals that a child starts with.
        self._parent = parent
        self._above_children: Above | None = None  # Made for the first child, shared by the others.
        if parent is None:
            self._above = Above(None, None, 0, Tree())
            self._deps: Any = None
            self._observers: tuple[Observer, ...] = ()
        else:
            above = parent._above_children
            if above is None:
                depth = parent._above.depth + 1
                above = Above(parent.id, parent.path, depth, parent._above.tree, parent._above)
                parent._above_children = above
            self._above = above
            self._deps = parent._deps
            self._observers = parent._observers
            if parent._children is None:
                parent._children = {}
            parent._children[self] = None

    # What it is -------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The names from the root down to this run, such as ``nightly/ticket-17``."""
        above = self._above.path
        return self.name if above is None else f"{above}/{self.name}"

    @property
    def parent(self) -> Run | None:
        """The run this one was opened in; None for a root, and after the end."""
        return self._parent

    @property
    def children(self) -> tuple[Run, ...]:
        """The live runs that were opened in this one, oldest first."""
        return tuple(self._children or ())

    @property
    def tags(self) -> Mapping[str, Any]:
        """The tags it was opened with; read-only."""
        return self._tags

    @property
    def deps(self) -> DepsT_co:
        """What the run was given to work with: its own, or its parent's.

        Raises:
          RunEndedError: if the run has ended.
        """
        self._refuse_if_ended("its deps are gone")
        deps: DepsT_co = self._deps
        return deps

    @property
    def status(self) -> RunStatus:
        """``"running"``, and at the end one of the others."""
        return self._status

    @property
    def started_at(self) -> float:
        """The `trio.current_time` when the run began."""
        return self._started_at

    @property
    def ended_at(self) -> float | None:
        """The `trio.current_time` when the run ended; None while it is running."""
        return self._ended_at

    @property
    def deadline(self) -> float:
        """The `trio.current_time` when time runs out for it or a run above it; inf if never.

        Inside a stage or a track, it also counts the time which that allows.
        """
        deadline = self._scope.deadline
        for run in self._ancestors():
            deadline = min(deadline, run._scope.deadline, run._cut_at)
        around = inner_scope.get()
        if around is not None:
            ids = {run.id for run in (self, *self._ancestors())}
            for level in around.levels():
                if level.run_id in ids:
                    deadline = min(deadline, level.deadline)
        return deadline

    def remaining(self) -> float:
        """Return the seconds left until the deadline: at least 0; inf without one."""
        if self._status != "running":
            return 0.0
        now = self._above.tree.now
        return max(0.0, self.deadline - now())

    @property
    def cancel_reason(self) -> str | None:
        """Why the run was cancelled: the words given to `cancel`, or who cancelled it."""
        return self._cancel_reason

    @property
    def stopping(self) -> bool:
        """Whether this run, or one above it, was asked to stop softly."""
        return self._above.tree.any_stopping and (
            self._stopping or any(run._stopping for run in self._ancestors())
        )

    @property
    def undelivered(self) -> tuple[Any, ...]:
        """The messages left in the inbox when the run ended; empty before that."""
        return self._undelivered

    @property
    def attempt(self) -> int:
        """Which attempt at its item this run is, or is in, counting from 1; 1 outside any item.

        Inside a stage or a track, which attempt at that.
        """
        around = inner_scope.get()
        levels = () if around is None else tuple(around.levels())
        for run in (self, *self._ancestors()):
            for level in levels:
                if level.run_id == run.id:
                    return level.attempt
            if run._item_index is not None:
                return getattr(run, "_attempt_number", 1)
        return 1

    @property
    def idempotency_key(self) -> str:
        """A key for effects that must not happen twice.

        All attempts of a fan-out's item share one, and so do the runs inside them, so a retry or
        a hedge asks for the same effect again; with a journal, even in other processes. An item of
        a fan-out inside an item has another, derived from that. Any other run has its own. For more
        than one effect, use `effect_key`.

        Raises:
          RunEndedError: if the run has ended.
        """
        self._refuse_if_ended("its idempotency key is gone")
        return self._item_key() or digest("run", _identity.origin(), self.id)

    def effect_key(self, name: str | None = None) -> str:
        """Return a key for one of several effects: the same in every attempt, and for no other.

        Args:
          name: Names the effect within its item, such as ``"mail:ada"``. In an agent's tool call it
            may be left out: the tool's name, its arguments and their occurrence will do.

        Raises:
          TypeError: if ``name`` isn't a string, or is left out outside a tool call.
          ValueError: if it is empty.
          RunEndedError: if the run has ended.
        """
        return digest("effect", self.idempotency_key, name_of_effect(name))

    def _item_key(self) -> str | None:
        """Return the key of the item that this run is an attempt at, or is in; None without one."""
        below: list[tuple[Run, int]] = []  # Fan-outs and items in them, innermost first.
        run: Run | None = self
        key: str | None = None
        while run is not None:
            if run._locals is not None and LASTING_KEY in run._locals:
                key = run._locals[LASTING_KEY]
                break
            parent = run._parent
            if run._item_index is not None and parent is not None:
                below.append((parent, run._item_index))
            run = parent
        if key is None:
            if not below:
                return None
            fan_out, index = below.pop()
            key = digest("item", _identity.origin(), fan_out.id, str(index))
        for fan_out, index in reversed(below):
            number = (fan_out._locals or {}).get(_OWN_NUMBER, 0)
            key = digest("item", key, fan_out.name, str(number), str(index))
        return key

    def _number_as_fan_out(self) -> None:
        """Tell this fan-out from others of its name in the item it is in, for its items' keys."""
        if self._attempt() is self:
            return
        if number := self._take_number("fan-out", self.name):
            if self._locals is None:
                self._locals = {}
            self._locals[_OWN_NUMBER] = number

    def _take_number(self, kind: str, words: str, number: int | None = None) -> int:
        """Take a number, by default the smallest free one, of equal things in this attempt.

        The numbers taken are the bits of one int: every live tool call takes one, and a set in a
        dict would need ten times the memory.
        """
        attempt = self._attempt()
        if attempt._locals is None:
            attempt._locals = {}
        taken = attempt._locals.get((kind, words), 0)
        bit = ~taken & (taken + 1) if number is None else 1 << number
        attempt._locals[kind, words] = taken | bit
        return bit.bit_length() - 1

    def _give_back_number(self, kind: str, words: str, number: int) -> None:
        """Let a number that was taken be taken again."""
        values = self._attempt()._locals
        if values is not None:
            values[kind, words] &= ~(1 << number)

    def _attempt(self) -> Run:
        """Return the attempt at an item that this run is, or is in; otherwise the run itself."""
        for run in (self, *self._ancestors()):
            if run._item_index is not None or LASTING_KEY in (run._locals or ()):
                return run
        return self

    @property
    def waiting_for(self) -> str:
        """What the run's own task is waiting for, in words; worked out when asked."""
        if self._task is None:
            return (
                f"nothing, it has ended ({self._status})"
                if self._ended_at is not None
                else "its first step"
            )
        return describe_wait(task_frames(self._task))

    @property
    @enable_ki_protection
    def inbox(self) -> Inbox:
        """Messages that others left for this run. Usable from any thread."""
        inbox = self._inbox
        if inbox is None:
            with _inbox_lock:
                inbox = self._inbox
                if inbox is None:
                    inbox = Inbox(self.path, is_open=self._status == "running")
                    if self._status == "running":
                        self._inbox = inbox
        return inbox

    def __repr__(self) -> str:
        return f"<Run {self.path!r} ({self.id}) {self._status}>"

    # Cancel and stop --------------------------------------------------------------------------

    def cancel(self, reason: str | None = None, *, grace: float = 0.0) -> None:
        """Cancel this run and all below it; never another.

        May be called by any task and from any thread; from another thread it is queued and
        returns at once. Whatever takes effect first counts: a later call can bring the end forward,
        but can't put it off or give another reason. A run that has ended is left alone.

        Args:
          reason: Why, for `cancel_reason` and whoever reads the errors.
          grace: Seconds in which the run may still end by itself: it is asked to `stop` now, and
            cancelled when they are up.

        Raises:
          TypeError: if ``reason`` isn't a string or None, or ``grace`` isn't a number.
          ValueError: if ``grace`` is negative or nan.
          RuntimeError: if it owns only state: the call of a plain function, or one outside trio.
        """
        _check_reason("run.cancel()", reason)
        check_seconds("run.cancel(grace=...)", grace, advice="0 cancels at once")
        self._refuse_if_state_only("it can't be cancelled; ask it to stop() and let it look")
        self._above.tree.call(self._cancel, reason, float(grace))

    def stop(self, reason: str | None = None) -> None:
        """Ask this run and all below it to end when they can, with what they have.

        `stopping` becomes true: an agent ends after its turn, a fan-out starts nothing more.
        Plain code goes on unless it looks. May be called from any thread.

        Raises:
          TypeError: if ``reason`` isn't a string.
        """
        _check_reason("run.stop()", reason)
        self._above.tree.call(self._stop, reason)

    @enable_ki_protection
    def _cancel(self, reason: str | None, grace: float) -> None:
        scope = self._scope
        if self._status != "running" or scope.cancel_called:
            return
        now = trio.current_time()
        if grace > 0:
            self._stop(reason)
            if now + grace < scope.deadline:
                self._cancel_asked = True
                self._cancel_reason = self._cancel_reason or reason
                scope.deadline = now + grace
                for run in self._with_descendants():
                    for task_scope in run._tasks or ():
                        task_scope.deadline = min(task_scope.deadline, scope.deadline)
                    for cleanup in run._cleanups or ():
                        cleanup.run_cancelled(scope.deadline)
            return
        self._cancel_asked = True
        self._cancel_reason = self._cancel_reason or reason
        self._cancelled_at = now
        cancel_scope(scope, self._cancel_words())
        self._reach(self._with_descendants(), self._cancel_words())

    def _reach(self, runs: Iterable[Run], words: str) -> None:
        """Carry a cancel that happens now to what trio's own cancel doesn't reach in these runs."""
        now = trio.current_time()
        for run in runs:
            for task_scope in run._tasks or ():
                cancel_scope(task_scope, words)
            for cleanup in run._cleanups or ():
                cleanup.run_cancelled(now)
            for notice in tuple(run._on_stop or ()):
                notice()

    def _add_stop_notice(self, notice: Callable[[], None]) -> None:
        """Call ``notice`` when this run, or one above it, is stopped or cancelled."""
        if self._on_stop is None:
            self._on_stop = {}
        self._on_stop[notice] = None

    def _drop_stop_notice(self, notice: Callable[[], None]) -> None:
        """Stop calling it."""
        if self._on_stop is not None:
            self._on_stop.pop(notice, None)

    def _cut_below(self, words: str) -> None:
        """Carry the cancel of a scope inside this run to the runs below it."""
        self._reach((run for run in self._with_descendants() if run is not self), words)

    @enable_ki_protection
    def _stop(self, reason: str | None) -> None:
        if self._status != "running" or self._stopping:
            return
        self._stopping = self._above.tree.any_stopping = True
        self._stop_reason = reason
        for run in self._with_descendants():
            for notice in tuple(run._on_stop or ()):
                notice()

    def _cancel_words(self) -> str:
        reason = f": {self._cancel_reason}" if self._cancel_reason else ""
        return f"run {self.path!r} was cancelled{reason}"

    def _cancel_moment(self) -> float | None:
        """Return when this run's own cancel or deadline fired; None if it hasn't."""
        if not self._scope.cancel_called:
            return None
        return self._scope.deadline if self._cancelled_at is None else self._cancelled_at

    def _allow_cleanup_until(self, deadline: float) -> None:
        """Note how long cleanup in this run may take; runs above it have to wait for that."""
        self._cleanup_until = max(self._cleanup_until, deadline)
        for run in self._ancestors():
            run._cleanup_until = max(run._cleanup_until, deadline)

    def _overran_by(self, now: float) -> float:
        """Return how many seconds this run has overrun the time for its cleanup; 0 if it hasn't."""
        cancelled_at = self._cancel_moment()
        if cancelled_at is None:
            return 0.0
        return max(0.0, now - max(cancelled_at + CLEANUP_SECONDS, self._cleanup_until))

    def _note_foreign_cancel(self, cancelled: BaseException) -> None:
        """Note who cancelled this run, if it wasn't its own cancel."""
        if not self._scope.cancel_called or self._cancel_reason is None:
            self._cancel_reason = self._who_cancelled(cancelled)

    def _who_cancelled(self, cancelled: BaseException) -> str:
        """Return in words who cancelled this run from outside."""
        for run in self._ancestors():
            if words := run._cancels_with_words():
                return words
        reason = getattr(cancelled, "reason", None)
        return "a cancel scope around the run was cancelled" + (f": {reason}" if reason else "")

    def _cancels_with_words(self) -> str | None:
        """Return in words why this run cancels what is below it; None if it doesn't."""
        if self._scope.cancel_called:
            return (
                self._cancel_words() if self._cancel_asked else f"run {self.path!r} ran out of time"
            )
        return None if self._why_cut is None else self._why_cut()

    def _stop_words(self, shielded_from: str | None = None) -> str | None:
        """Return in words why this run is stopping; None if it isn't.

        Args:
          shielded_from: The id of a run whose stop, like those of the runs above it, doesn't count.
        """
        for run in (self, *self._ancestors()):
            if run.id == shielded_from:
                break
            if run._stopping:
                reason = f": {run._stop_reason}" if run._stop_reason else ""
                return f"the run was asked to stop{reason}"
        return None

    def _halt_words(self, shielded_from: str | None = None) -> str | None:
        """Return in words why this run is being cancelled or stopping; None if it isn't.

        Args:
          shielded_from: As in `_stop_words`; cancels of those runs don't count either.
        """
        for run in (self, *self._ancestors()):
            if run.id == shielded_from:
                break
            if run._scope.cancel_called:
                return run._cancels_with_words()
        return self._stop_words(shielded_from)

    def _refuse_elsewhere(self, what: str) -> None:
        """Refuse what would mix two event loops, from a context copied into another trio.run."""
        self._refuse_if_state_only(f"{what} here")
        if trio.lowlevel.current_trio_token() is not self._above.tree.token:
            raise RuntimeError(
                f"run {self.path!r} lives in another trio.run, so {what} here; "
                "open a run of this one, or go back with trio.from_thread"
            )

    def _refuse_if_state_only(self, consequence: str) -> None:
        if self._scope is NO_SCOPE:
            raise RuntimeError(
                f"run {self.path!r} is the call of a plain function, or one outside trio, and owns "
                f"state only, so {consequence}; decorate an async function and call it in trio for "
                f"a run that has tasks, a timeout and a cancel ({PAGE} shows how)"
            )

    # What is kept -----------------------------------------------------------------------------

    def keep(self, name: str, data: str | bytes) -> None:
        """Keep a file with the item that this run is an attempt at, or is in.

        With a journal, it is stored beside what the item came to: ``harness journal show FILE KEY``
        lists it, and writes it out with ``--files``. It is kept as it is, secrets and all. Without
        a journal, and outside any item of one, nothing happens. May be called from a worker thread.

        Args:
          name: What the file is called, such as ``"page.html"``.
          data: Its content; text is kept as UTF-8.

        Raises:
          TypeError: if ``name`` isn't a string, or ``data`` is neither text nor bytes.
          ValueError: if ``name`` is empty.
          RunEndedError: if the run has ended.
        """
        if not isinstance(name, str):
            raise TypeError(f"run.keep() takes the name of a file, such as 'a.html', not {name!r}")
        if not name:
            raise ValueError("run.keep() takes a name for the file, such as 'page.html', not ''")
        if not isinstance(data, str | bytes | bytearray | memoryview):
            raise TypeError(
                f"run.keep({name!r}) takes text or bytes, not a {type(data).__name__}; write "
                "what should be in the file"
            )
        self._refuse_if_ended("it can't keep anything")
        keeper = next(self._keepers(), None)
        if keeper is not None:
            content = data.encode(errors="replace") if isinstance(data, str) else bytes(data)
            self._above.tree.call(keeper.keep_file, name, self.path, content)

    def _keepers(self) -> Iterator[Any]:
        """Yield what keeps things with the items of journals that this run is in, inner first."""
        for run in (self, *self._ancestors()):
            if run._locals is not None and KEEPER in run._locals:
                keeper = run._locals[KEEPER].keeper_of(run)
                if keeper is not None:
                    yield keeper

    # Events -----------------------------------------------------------------------------------

    def emit_nowait(self, payload: Any) -> None:
        """Tell the subscribers and observers of this run, and of those above it, without waiting.

        A subscription whose buffer is full drops the event and counts it. May be called from a
        worker thread: the event is then delivered soon.

        Raises:
          RunEndedError: if the run has ended.
        """
        if self._status != "running":
            self._refuse_if_ended("it can't emit anything")
        tree = self._above.tree
        if not (tree.listeners or self._observers):
            self._sequence += 1
        elif threading.get_ident() == tree.thread_id:
            self._publish(payload)
        else:
            tree.call(self._publish, payload)

    def _emit_new(self, kind: Callable[..., Any], *args: Any) -> None:
        """Do as `emit_nowait` for a running run's own task; the event is made only if it is heard.

        An agent has four to tell in each run, and most have no listener.
        """
        if self._above.tree.listeners or self._observers:
            self.emit_nowait(kind(*args))
        else:
            self._sequence += 1

    @enable_ki_protection
    async def emit(self, payload: Any) -> None:
        """Tell the subscribers and observers, waiting until each subscription has room.

        Raises:
          RunEndedError: if the run has ended.

        Checkpoint: always.

        Cancellation: before the event is sent, nobody was told anything; while it waits for room,
        subscriptions that had room keep the event, and the others never get it.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._refuse_if_ended("it can't emit anything")
        self._refuse_elsewhere("it can't be emitted from")
        event = self._next_event(payload)
        delivery: Delivery | None = None
        for subscription in self._listening():
            delivery = subscription.offer(event, delivery)
        for observer in self._observers:
            observer.observe(event)
        if delivery is None:
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            await delivery.wait()

    def subscribe(self, *, buffer: int = 256, children: bool = False) -> Subscription:
        """Listen to this run: ``async with run.subscribe() as events: async for event in events``.

        Args:
          buffer: How many events may wait for the reader. When it is full, `emit` waits and
            `emit_nowait` drops.
          children: Whether to hear the runs below this one too, each with its own identity.

        Raises:
          TypeError: if ``buffer`` isn't a whole number.
          ValueError: if it is less than 1.
          RunEndedError: if the run has ended.
        """
        check_count("run.subscribe(buffer=...)", buffer, advice="the default is 256")
        self._refuse_if_ended("there is nothing more to hear from it")
        return Subscription(self, size=buffer, children=children)

    @enable_ki_protection
    def _publish(self, payload: Any) -> None:
        if self._status != "running":
            return  # Emitted in a thread just before the end, and reached us just after.
        event = self._next_event(payload)
        for subscription in self._listening():
            subscription.offer_nowait(event)
        for observer in self._observers:
            observer.observe(event)

    def _next_event(self, payload: Any) -> Event:
        sequence = self._sequence
        self._sequence = sequence + 1
        above = self._above
        now = above.tree.now
        return Event(self.id, above.parent_id, self.path, above.depth, sequence, now(), payload)

    def _notice(self, payload: Any, at: float | None = None) -> None:
        """Tell the observers that ask for it what harness does in this run.

        To be called only if there are observers: making the payload costs. It isn't counted as
        emitted.
        """
        above = self._above
        if at is None:
            now = above.tree.now
            at = now()
        sequence = self._sequence
        event = Event(self.id, above.parent_id, self.path, above.depth, sequence, at, payload)
        for observer in self._observers:
            observer.notice(event)

    def _notice_begin(self) -> None:
        """Tell the observers that the run begins, in the task that is its body."""
        by = None if self._locals is None else self._locals.pop(STARTED_BY, None)
        parent = self._parent
        inline = parent is not None and (self._task is None or self._task is parent._task)
        began = RunBegan(by, inline, self._item_index, self._tags)
        self._notice(began, self._started_at)

    def _listening(self) -> Sequence[Subscription]:
        """Return who hears an event of this run: its own listeners, and those of runs above."""
        own = self._subscriptions or ()
        if self._private or self._parent is None:
            return own
        found = list(own)
        run: Run | None = self
        while run is not None and not run._private:
            run = run._parent
            if run is not None and run._subscriptions:
                found += [s for s in run._subscriptions if s.children]
        return found

    def _attach(self, subscription: Subscription) -> None:
        self._refuse_if_ended("there is nothing more to hear from it")
        self._refuse_elsewhere("it can't be listened to")
        if self._subscriptions is None:
            self._subscriptions = []
        self._subscriptions.append(subscription)
        self._above.tree.listeners += 1

    def _detach(self, subscription: Subscription) -> None:
        if self._subscriptions is not None and subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            self._above.tree.listeners -= 1

    # The end ----------------------------------------------------------------------------------

    @enable_ki_protection
    def _end(self, status: Ending, ended_at: float, error: BaseException | None = None) -> None:
        """Set the status, once, and let go of everything but plain facts."""
        assert self._status == "running", f"{self!r} ended twice"
        if self._observers:
            self._notice(RunOver(status, error), ended_at)
        self._status = status
        self._ended_at = ended_at
        # Asking the scope costs, and a run younger than that can't have overrun.
        if ended_at - self._started_at > CLEANUP_SECONDS and (
            overrun := self._overran_by(ended_at)
        ):
            logger.warning(
                "run %r (%s) ended %.1f s after the time for its cleanup: something in it ignored "
                "its cancel",
                self.path,
                self.id,
                overrun,
            )
        parent = self._parent
        if parent is not None and parent._children is not None:
            parent._children.pop(self, None)
        if self._inbox is not None:
            with _inbox_lock:
                self._undelivered = self._inbox.close()
        if self._subscriptions is not None:
            self._above.tree.listeners -= len(self._subscriptions)
            for subscription in self._subscriptions:
                subscription.end()
        self._parent = self._children = self._locals = self._deps = self._inbox = None
        self._subscriptions = self._cleanups = self._tasks = self._idle = self._on_stop = None
        self._task = self._why_cut = self._above_children = None
        self._observers = self._forks = ()

    def _fork_locals(self, parent: Run) -> None:
        """Start with copies of those of the parent's values that say how they are copied."""
        assert parent._locals is not None
        own = self._locals
        self._locals = {key: key.fork_value(parent._locals[key]) for key in parent._forks}
        if own is None:
            self._forks = parent._forks
        else:  # What an engine gave to a run that it has made, before the run began.
            self._locals.update(own)
            self._forks = tuple(dict.fromkeys((*parent._forks, *self._forks)))

    def _refuse_if_ended(self, consequence: str) -> None:
        if self._status != "running":
            raise RunEndedError(
                f"run {self.path!r} has ended ({self._status}), so {consequence}"
                f"{where_we_are()}; use it inside its block. If this task has outlived it, start "
                "the task with harness.start_soon(nursery, fn, run=other_run), or run=None"
            )

    def _ancestors(self) -> Iterator[Run]:
        run = self._parent
        while run is not None:
            yield run
            run = run._parent

    def _with_descendants(self) -> Iterator[Run]:
        pending: list[Run] = [self]
        while pending:
            run = pending.pop()
            yield run
            pending.extend(run._children or ())


_inbox_lock = threading.Lock()
"""Guards the making and closing of inboxes, which other threads may race with."""


def _check_reason(call: str, reason: object) -> None:
    if reason is not None and not isinstance(reason, str):
        raise TypeError(
            f"{call} takes its reason as a string or None, not {reason!r}; "
            "say in words why, for whoever reads the error"
        )
