"""Strike a fan-out, a pipeline, a router or agents at the n-th step, and look what is left.

A case is made of a seed: a form, a policy, options, what each item does, and a fault. It runs
twice: once without the fault, to count the steps of all tasks, and once with it at one of those
steps. A Ctrl-C strikes at a line of ours, too. Both times, whatever the case is, the same must
hold; the methods of `World` that begin with ``check`` say what.

``python -m tests.support.driver SEED`` runs a case again; ``FIRST LAST`` runs many. A case depends
on its seed alone: tasks are woken in an order that depends on it, too.
"""

from __future__ import annotations

import gc
import random
import signal
import sys
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from functools import partial
from typing import Any, Literal

import attrs
import trio
from trio.lowlevel import disable_ki_protection, enable_ki_protection
from trio.testing import MockClock

import harness
from harness.agents import Agent
from harness.errors import (
    FanOutError,
    ItemSkipped,
    JournaledError,
    OutputsFailedError,
    QuorumError,
    RunCancelled,
    RunTimedOut,
    TooManyFailuresError,
)
from harness.flow import Batch, Pipeline, Router, stage, track
from harness.limits import Limiter
from harness.models import ModelRequest, ScriptedModel
from harness.policies import Priority
from tests.fanout.probes import Boom, FakeLimiter, leaves, living_tasks
from tests.support.memory_journal import MemoryJournal

if sys.version_info < (3, 12):
    from tests.support.keyboard_interrupts import HARNESS, CtrlC

    PLACES = tuple(str(HARNESS / one) for one in ("agents", "fanout", "flow", "limits", "runs"))
else:  # Tracing costs a debugger its place there.
    CtrlC = None

NAME = "driven"
FOREVER = 10_000.0
"""Longer than any case takes, in virtual seconds."""

POLICIES: dict[str, Any] = {
    "fail fast": harness.FailFast(),
    "best effort": harness.BestEffort(),
    "critical": harness.BestEffort(critical=lambda item: int(item) % 2 == 1),
    "count": harness.BestEffort(max_failures=1),
    "share": harness.BestEffort(max_failures=0.4),
    "quorum": harness.Quorum(2),
    "first": harness.FirstSuccess(),
}

OPTIONS: dict[str, tuple[Any, ...]] = {
    "form": (
        "fan_out",
        "stream",
        "pipeline",
        "pipeline stream",
        "called pipeline",
        "router",
        "router stream",
        "called router",
        "agents",
    ),
    "fault": (
        "cancel",
        "cancel run",
        "cancel around all",
        "stop",
        "the source fails",
        "ctrl-c",
        "ctrl-c in an item",
        "ctrl-c at a line",
    ),
    "limit": (1, 2, 3, 100),
    "within": (None, None, 2.5),
    "each": ("value", "function"),
    "key": (False, True),
    "order": (None, "ordered", "priority", "serial_by"),
    "window": (None, 1, 4),
    "keep": (False, True),
    "leave_after": (None, None, None, 1),
    "reading_seconds": (0, 1),
    "journal": (False, False, True),
    "slow_disk": (False, True),
    "retry": (None, None, 3),
    "hedge": (None, None, 1.5),
    "fallback": (None, None, "plain", "async"),
    "timeout": (None, None, 2.5),
    "limiter": (None, None, "fake", "real"),
    "source": ("list", "iterator", "async generator", "channel"),
    "shape": ("one", "two", "several", "batch"),
}
"""The values of each, as often as they are to be drawn."""

EXITS = ("a signal", "ctrl-c", "ctrl-c in an item", "ctrl-c at a line")
DEEDS = ("ok", "ok", "ok", "fails", "fails once", "cancels itself")
CLEANUPS = (None, None, None, "fails", "fans out", "shielded")


@attrs.frozen
class Deed:
    """What one item does."""

    seconds: int
    ending: str
    cleanup: str | None
    """What it does when it is cancelled."""


@attrs.frozen
class Case:
    """What is driven, and what strikes it."""

    seed: int
    policy: str
    deeds: list[Deed]
    fault: str
    at: float
    """At which of all steps, as a share."""
    moment: Literal["before", "after"]
    options: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.options[name]

    @property
    def streams(self) -> bool:
        return "stream" in str(self.form)

    @property
    def by_flow(self) -> bool:
        """Whether attempts are those of a stage or track."""
        return str(self.form).startswith(("pipeline", "router"))

    @property
    def journaled(self) -> bool:
        return bool(self.journal) and not self.by_flow


def case_of(seed: int) -> Case:
    draw = random.Random(f"driver {seed}")
    options = {name: draw.choice(values) for name, values in OPTIONS.items()}
    if options["order"] == "ordered" and "stream" not in options["form"]:
        options["order"] = None
    if options["form"].startswith("pipeline") and options["order"] != "ordered":
        options["order"] = None
    return Case(
        seed=seed,
        policy=draw.choice(list(POLICIES)),
        deeds=[
            Deed(draw.randrange(4), draw.choice(DEEDS), draw.choice(CLEANUPS))
            for _ in range(draw.randrange(1, 8))
        ],
        fault=options.pop("fault"),
        at=draw.random(),
        moment=draw.choice(["before", "after"]),
        options=options,
    )


def replay_of(seed: int) -> str:
    return f"replay: python -m tests.support.driver {seed}"


class Fault(trio.abc.Instrument):
    """Counts the steps of all tasks, and calls something at one of them."""

    def __init__(self, at: int | None, moment: str, strike: Callable[[], None]) -> None:
        self.steps = 0
        self._at = at
        self._before = moment == "before"
        self._strike = strike

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        if self._before and self.steps == self._at:
            self._strike()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if not self._before and self.steps == self._at:
            self._strike()


class World:
    """Runs a case once and watches."""

    def __init__(self, case: Case, journal: MemoryJournal) -> None:
        self.case = case
        self.journal = journal
        self.struck = ""
        """The fault, once it has struck."""
        self.asked = ""
        """The fault that strikes in the user's own code, when that is called next."""
        self.calls: dict[int, int] = {}
        self.returned: dict[int, int] = {}
        self.keys: dict[int, set[str]] = {}
        self.live = 0
        self.most = 0
        self.cancelled = 0
        """Calls that met a cancel."""
        self.late: list[Boom] = []
        """What was raised while a cancel from around all was under way."""
        self.cleanups = self.cleaned = 0
        self.pulled = 0
        self.open_sources = 0
        self.scope = trio.CancelScope()
        self.outer: harness.Run | None = None
        self.fake = FakeLimiter(wait_seconds=1)
        self.real = Limiter("real", requests_per_minute=600, concurrent=2)
        self.lock = trio.CapacityLimiter(2)
        self.read: list[Any] = []
        self.stream: Any = None
        self.flow: Any = None

    # What strikes -----------------------------------------------------------------------------

    def strike(self) -> None:
        fault = self.case.fault
        if self.outer is None:
            return  # It had not begun.
        self.struck = fault
        if fault in ("ctrl-c", "ctrl-c at a line"):  # Here no line is traced.
            signal.raise_signal(signal.SIGINT)
        elif fault in ("ctrl-c in an item", "the source fails"):
            self.struck = ""
            self.asked = fault
        elif fault == "cancel":
            self.scope.cancel()
        elif fault == "cancel around all":
            self.outer.cancel("around all")
        else:
            mine = [run for run in self.outer.children if run.name == NAME]
            for run in mine:
                (run.stop if fault == "stop" else run.cancel)("from outside")
            if not mine:
                self.struck = ""  # It had not begun, or was over.

    # What is run ------------------------------------------------------------------------------

    async def body(self, item: Any) -> Any:
        index = int(item)
        deed = self.case.deeds[index]
        number = self.calls[index] = self.calls.get(index, 0) + 1
        self.keys.setdefault(index, set()).add(harness.current_run().idempotency_key)
        met_cancel = False
        self.live += 1  # Between this line and `try` there is no call, so no signal either.
        try:
            self.most = max(self.most, self.live)
            self._fail_if_asked("ctrl-c in an item", KeyboardInterrupt())
            await self._work_alone(deed.seconds)
            self._fail_if_asked("ctrl-c in an item", KeyboardInterrupt())
            if deed.ending == "fails" or (deed.ending == "fails once" and number == 1):
                raise Boom(index)
            if deed.ending == "cancels itself":
                harness.current_run().cancel("not needed")
                await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            met_cancel = True
            self.cancelled += 1
            raise
        finally:
            try:
                if met_cancel:
                    await self._clean_up(index, deed)
            finally:
                self.live -= 1
        self.returned[index] = self.returned.get(index, 0) + 1
        return item

    # A signal that finds a task between two awaits leaves a block of trio half done. Whoever wants
    # to look at it afterwards protects the block, and not what is done in it.

    @enable_ki_protection
    async def _work_alone(self, seconds: float) -> None:
        async with self.lock:
            await self._sleep(seconds)

    @disable_ki_protection
    async def _sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    def _fail_if_asked(self, fault: str, error: BaseException) -> None:
        if self.asked == fault:
            self.asked, self.struck = "", fault
            raise error

    async def _clean_up(self, index: int, deed: Deed) -> None:
        if deed.cleanup == "shielded":
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
        elif deed.cleanup == "fans out":
            self.cleanups += 1
            with harness.cleanup():
                closed = await harness.fan_out(self._close, range(3), limit=1)
            self.cleaned += closed.complete
        elif deed.cleanup == "fails":
            error = Boom(index)
            if self.scope.cancel_called:
                self.late.append(error)
            raise error

    async def _close(self, number: int) -> int:
        await trio.sleep(0.1)
        return number

    async def pass_on(self, item: Any) -> Any:
        await trio.sleep(0.5)
        return item

    async def pass_several(self, item: Any) -> AsyncGenerator[Any, None]:
        self.open_sources += 1
        try:
            for _ in range(2):
                yield item
                await trio.lowlevel.checkpoint()
        finally:
            self.open_sources -= 1

    async def pass_all(self, items: list[Any]) -> list[Any]:
        await trio.sleep(0.5)
        return items

    async def _fall_back(self, item: Any, error: Exception) -> Any:
        await trio.sleep(0.5)
        return item

    async def _output(self, agent: Agent[str], item: str) -> str:
        return (await agent(item)).output

    async def _answer(self, request: ModelRequest) -> str:
        return str(await self.body(request.messages[-1].content))

    def attempt(self) -> harness.Attempt:
        case = self.case
        plain = lambda item, error: item  # noqa: E731
        return harness.Attempt(
            timeout=case.timeout,
            retry=None
            if case.retry is None
            else harness.Retry(case.retry, first_delay=1, jitter=0),
            hedge=None if case.hedge is None else harness.Hedge(after=case.hedge),
            fallback={None: None, "plain": plain, "async": self._fall_back}[case.fallback],
            limiter={None: None, "fake": self.fake, "real": self.real}[case.limiter],
        )

    def each(self) -> Any:
        attempt = self.attempt()
        return attempt if self.case.each == "value" else lambda item: attempt

    def function(self) -> Any:
        """Return what is run for each item, or by whose `run` or `open` they are."""
        case = self.case
        each: dict[str, Any] = {"each": self.attempt()} if case.by_flow else {}
        if "pipeline" in case.form:
            first: Any = stage(self.body, limit=case.limit, **each)
            more: dict[str, list[Any]] = {
                "one": [],
                "two": [stage(self.pass_on, limit=1)],
                "several": [self.pass_several, self.pass_on],
                "batch": [stage(self.pass_all, batch=Batch(2, within=1)), self.pass_on],
            }
            self.flow = Pipeline(first, *more[case.shape], buffer=1)
        elif "router" in case.form:
            escalate = None if case.shape == "one" else "b"
            self.flow = Router(
                lambda item: "a",
                tracks={
                    "a": track(self.body, limit=case.limit, escalate=escalate, **each),
                    "b": track(self.body),
                },
            )
        elif case.form == "agents":
            agent = Agent("desk", model=ScriptedModel([self._answer]))
            return partial(self._output, agent) if case.journaled else agent
        return self.flow or self.body

    def items(self) -> Any:
        case = self.case
        made = [str(number) for number in range(len(case.deeds))]
        numbers: list[Any] = made if case.form == "agents" else list(range(len(case.deeds)))
        if case.source == "list":
            return numbers
        if case.source == "iterator":
            return self._counted(numbers)
        if case.source == "async generator":
            return self._counted_async(numbers)
        send, receive = trio.open_memory_channel[Any](len(numbers))
        for number in numbers:
            send.send_nowait(number)
        send.close()
        return receive

    def _counted(self, numbers: list[Any]) -> Iterator[Any]:
        for number in numbers:
            self._fail_if_asked("the source fails", Boom("source"))
            self.pulled += 1
            yield number

    async def _counted_async(self, numbers: list[Any]) -> AsyncGenerator[Any, None]:
        self.open_sources += 1
        try:
            for number in numbers:
                await trio.lowlevel.checkpoint()
                self._fail_if_asked("the source fails", Boom("source"))
                self.pulled += 1
                yield number
        finally:
            self.open_sources -= 1

    def options(self) -> dict[str, Any]:
        case = self.case
        options: dict[str, Any] = {
            "name": NAME,
            "policy": POLICIES[case.policy],
            "within": case.within,
            "key": str if case.key or case.journaled else None,
        }
        if not case.form.startswith("pipeline"):
            options["limit"] = case.limit
            options["priority"] = {
                "priority": lambda item: int(item) % 3,
                "serial_by": Priority(lambda item: 0, serial_by=lambda item: int(item) % 2),
            }.get(case.order)
        if not case.by_flow:
            options["each"] = self.each()
            options["journal"] = self.journal if case.journaled else None
        if case.streams:
            options |= {
                "ordered": case.order == "ordered",
                "window": case.window,
                "keep": case.keep,
            }
        return options

    async def drive(self) -> Any:
        """Run it; return the results, or None from a stream."""
        case, function, options = self.case, self.function(), self.options()
        if not case.streams:
            if case.by_flow:
                return await function.run(self.items(), **options)
            return await harness.fan_out(function, self.items(), **options)
        if case.by_flow:
            self.stream = function.open(self.items(), **options)
        else:
            self.stream = harness.open_fan_out(function, self.items(), **options)
        async with self.stream:
            async for result in self.stream:
                self.read.append(result)
                await trio.sleep(case.reading_seconds)
                if len(self.read) == case.leave_after:
                    break
        return None

    # What must hold ---------------------------------------------------------------------------

    @enable_ki_protection
    async def run(self) -> None:
        """Run the case and check it, in a task of trio."""
        before, tasks = dict(copy_context()), living_tasks()
        with trio.fail_after(FOREVER):
            async with trio.open_nursery() as nursery:
                if self.case.slow_disk and self.case.journaled:
                    nursery.start_soon(self.journal.slow_disk, 0.7)
                with self.scope:
                    async with harness.open_run("outer") as self.outer:
                        await self._drive_and_check()
                nursery.cancel_scope.cancel()
        self.check_end()
        assert living_tasks() == tasks, "tasks are left"
        assert dict(copy_context()) == before, "context variables are changed"

    @disable_ki_protection
    async def _drive_and_check(self) -> None:
        try:
            self.check_results(await self.drive())
        except FanOutError as error:
            self.check_error(error)
            if not self.case.streams:
                self.check_results(error.results)
        else:
            self.check_nothing_lost([])
        if self.stream is not None:
            self.check_stream()

    def check_results(self, results: Any) -> None:
        """Each item has one result, in order; and they add up."""
        if results is None:
            return
        indexes = [result.index for result in results]
        if self.case.source == "list":
            assert indexes == list(range(len(self.case.deeds)))
        elif self.case.source != "channel":
            assert indexes == list(range(self.pulled))
        else:
            assert indexes == list(range(len(indexes)))
        for result in results:
            self.check_result(result)
        summary = results.summary()
        parts = (summary.ok, summary.failed, summary.timed_out, summary.cancelled, summary.skipped)
        assert sum(parts) == summary.total == len(results)
        assert summary.ok == len(results.values())
        if not self.struck and self.case.policy == "best effort" and self.case.within is None:
            for result in results:
                self.check_undisturbed(result)

    def check_result(self, result: Any) -> None:
        """Its status fits what its calls did."""
        case, index = self.case, result.index
        calls = self.calls.get(index, 0)
        assert int(result.item) == index
        if result.status == "ok":
            assert result.error is None
            self.check_value(result)
            kept = case.journaled and not calls
            assert self.returned.get(index) or case.fallback or kept
        elif result.status == "failed":
            assert isinstance(result.error, Boom | OutputsFailedError | JournaledError), result
            assert calls
        elif result.status == "timed_out":
            assert isinstance(result.error, RunTimedOut)
            assert case.timeout is not None
        elif result.status == "cancelled":
            assert isinstance(result.error, RunCancelled)
        else:
            assert result.status == "skipped"
            assert isinstance(result.error, ItemSkipped)
            assert calls == 0

    def check_value(self, result: Any) -> None:
        value, case = result.value, self.case
        if case.form == "agents" and not result.degraded and not isinstance(value, str):
            value = value.output if hasattr(value, "output") else value
        if (
            "pipeline" in case.form
            and case.shape == "several"
            and not (result.degraded and not case.by_flow)
        ):
            assert tuple(map(int, value)) == (result.index,) * 2, value
        else:
            assert int(value) == result.index, value

    def check_undisturbed(self, result: Any) -> None:
        """It ended as its deed says."""
        case, deed = self.case, self.case.deeds[result.index]
        if case.timeout is not None or case.hedge is not None:
            return
        escalates = "router" in case.form and case.shape != "one"
        wanted = {"ok": "ok", "fails": "failed", "fails once": "failed"}.get(deed.ending)
        if deed.ending == "cancels itself":
            if deed.cleanup == "fails":
                return
            wanted = "cancelled"
        elif deed.ending == "fails once" and (case.retry or escalates):
            wanted = "ok"
        if wanted == "failed" and case.fallback:
            wanted = "ok"
        assert result.status == wanted, f"{result} instead of {wanted}"

    def check_stream(self) -> None:
        """What was read and what was not read are all results, once each."""
        case = self.case
        if case.order == "ordered":
            read = [result.index for result in self.read]
            assert read == sorted(read)
        rest = list(self.stream.results)
        everything = rest if case.keep else [*self.read, *rest]
        everything.sort(key=lambda result: result.index)
        indexes = [result.index for result in everything]
        size = len(case.deeds) if case.source == "list" else len(indexes)
        assert indexes == list(range(size))
        for result in everything:
            self.check_result(result)
        summary = self.stream.summary()
        assert summary.total == size
        assert summary.ok == sum(result.status == "ok" for result in everything)

    def check_error(self, error: FanOutError[Any]) -> None:
        """Its entries are what failed, and fit the policy."""
        own = {
            "quorum": QuorumError,
            "first": QuorumError,
            "count": TooManyFailuresError,
            "share": TooManyFailuresError,
        }.get(self.case.policy, ())
        for entry in error.exceptions:
            fits = isinstance(entry, Boom | RunTimedOut | OutputsFailedError | JournaledError)
            assert fits or isinstance(entry, own), entry
        assert self.case.policy != "best effort" or self.struck == "the source fails"
        self.check_nothing_lost(leaves(error))

    def check_nothing_lost(self, raised: list[BaseException]) -> None:
        """What an item raised while all was being cancelled comes out, as from a plain nursery."""
        case = self.case
        if case.policy == "fail fast" and case.hedge is None and case.leave_after is None:
            lost = [error for error in self.late if error not in raised]
            assert not lost, f"lost: {lost}"

    def check_end(self) -> None:
        """Nothing is alive, held or open."""
        case = self.case
        assert self.live == 0, "calls are still under way"
        assert self.open_sources == 0, "a generator is open"
        assert self.fake.granted == self.fake.returned, "a reservation is held"
        held = self.real.statistics()
        assert (held.in_flight, held.waiting) == (0, 0), "a limiter is held"
        assert self.lock.borrowed_tokens == 0
        assert self.cleanups == self.cleaned or self.struck in EXITS, "a cleanup was cut short"
        most = case.limit * (2 if case.hedge else 1)
        if "router" not in case.form:
            assert self.most <= most, "more at once than the limit"
        if self.flow is not None:
            statistics = self.flow.statistics()
            lines = getattr(statistics, "stages", None) or statistics.tracks.values()
            for line in lines:
                assert line.waiting == getattr(line, "held_up", 0) == 0, line
                # A Ctrl-C between two lines that count is the end of the program.
                assert line.working == 0 or self.struck in EXITS, line
        # Called pipelines have runs of their own below an item's, with keys of their own.
        if case.form in ("fan_out", "stream"):
            assert all(len(keys) <= 1 for keys in self.keys.values()), "two keys for one item"
        every = [key for keys in self.keys.values() for key in keys]
        assert len(every) == len(set(every)), "one key for two items"
        if self.struck == "stop" and self._only_a_stop_can_cancel():
            assert self.cancelled == 0, "a stop cancelled something"

    def _only_a_stop_can_cancel(self) -> bool:
        case = self.case
        return (
            case.policy in ("best effort", "count", "share")
            and case.hedge is case.timeout is case.within is case.leave_after is None
            and all(deed.ending != "cancels itself" for deed in case.deeds)
        )

    async def resume(self) -> None:
        """Whatever struck, the next session comes to the end, and does nothing again."""
        case, journal = self.case, self.journal
        if not case.journaled or not journal.sessions:
            return
        if self.struck not in EXITS:
            assert journal.unended_of_session() == [], "attempts without an ending"
            assert journal.open_batches == 0
        journal = journal.after_a_crash()
        journal.retry_failed = True
        done = {
            int(key)
            for (_, key), item in journal.items.items()
            if item.ending is not None and item.ending.status == "ok"
        }
        ran: list[int] = []

        async def again(item: Any) -> Any:
            ran.append(int(item))
            self.keys.setdefault(int(item), set()).add(harness.current_run().idempotency_key)
            await trio.lowlevel.checkpoint()
            return item

        journal.target = None  # Another function; its results are the same.
        case = attrs.evolve(case, options={**case.options, "source": "list"})
        items = World(case, journal).items()
        results = await harness.fan_out(
            again, items, policy=harness.BestEffort(), name=NAME, key=str, journal=journal, limit=3
        )
        assert results.complete
        assert [result.key for result in results] == list(map(str, items))
        assert not done & set(ran), "what was done ran again"
        assert len(ran) == len(set(ran)) == len(items) - len(done)
        if case.form in ("fan_out", "stream"):
            assert all(len(keys) <= 1 for keys in self.keys.values()), "another key for an item"


@contextmanager
def in_an_order_of(seed: int) -> Iterator[None]:
    """Have trio wake tasks in an order that depends on the seed alone, and take Ctrl-C."""
    internals: Any = trio._core._run
    state, allowed = internals._r.getstate(), internals._ALLOW_DETERMINISTIC_SCHEDULING
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    internals._r.seed(seed)
    internals._ALLOW_DETERMINISTIC_SCHEDULING = True
    try:
        yield
    finally:
        internals._ALLOW_DETERMINISTIC_SCHEDULING = allowed
        internals._r.setstate(state)
        signal.signal(signal.SIGINT, handler)


def carry_out(
    case: Case,
    world: World,
    around: AbstractContextManager[object] | None = None,
    *,
    instruments: Sequence[trio.abc.Instrument] = (),
) -> None:
    """Run a case in a trio of its own, and then what resumes it in another.

    Args:
      case, world: The case and what watches it.
      around: Entered in trio's main task, around it all; None for nothing.
      instruments: Trio's.
    """

    async def main() -> None:
        with around or nullcontext():
            await world.run()

    try:
        run_in_order(case.seed, main, instruments)
    except BaseException as error:
        raised = leaves(error)
        if world.struck not in EXITS or KeyboardInterrupt not in map(type, raised):
            raise
        if any(not isinstance(one, KeyboardInterrupt | Boom) for one in raised):
            raise
        world.check_end()
    else:
        assert world.struck not in EXITS, "Ctrl-C was swallowed"
    run_in_order(case.seed, world.resume)


def run_in_order(
    seed: int,
    main: Callable[[], Awaitable[None]],
    instruments: Sequence[trio.abc.Instrument] = (),
) -> None:
    """Be `trio.run` on a virtual clock, where tasks wake in an order that the seed decides."""
    with in_an_order_of(seed):
        trio.run(main, clock=MockClock(autojump_threshold=0), instruments=list(instruments))


def run_once(case: Case, at: int | None) -> int:
    """Run a case, with its fault at a step or a line; return how many of those there were."""
    world = World(case, MemoryJournal())
    if CtrlC is None or case.fault != "ctrl-c at a line":
        fault = Fault(at, case.moment, world.strike)
        carry_out(case, world, instruments=[fault])
        return fault.steps
    tracer = CtrlC(at - 1 if at else sys.maxsize, PLACES)
    carry_out(case, world, tracing(tracer, world))
    return sys.maxsize - tracer.left


@contextmanager
def tracing(tracer: Any, world: World) -> Iterator[None]:
    """Raise `KeyboardInterrupt` at a line of ours in the block."""
    sys.settrace(tracer)
    try:
        yield
    finally:
        sys.settrace(None)
        if tracer.struck:
            world.struck = world.case.fault


def drive(seed: int) -> None:
    """Run the case of a seed without and with its fault.

    Raises:
      BaseException: what doesn't hold, with a line that runs it again.
    """
    case = case_of(seed)
    at = None
    try:
        if case.fault == "ctrl-c at a line":
            run_once(case, None)  # What is done the first time only has lines of its own.
        steps = run_once(case, None)
        at = int(case.at * steps) + 1
        run_once(case, at)
    except BaseException as error:
        struck = "undisturbed" if at is None else f"{case.fault} {case.moment} {at}"
        error.add_note(f"{replay_of(seed)}  # {struck}; {case}")
        raise


def main(words: list[str]) -> int:
    first, last = int(words[0]), int(words[-1])
    failed = 0
    for seed in range(first, last + 1):
        try:
            drive(seed)
        except BaseException as error:
            failed += 1
            if first == last:
                traceback.print_exception(error)
            else:
                print(f"{replay_of(seed)}  # {error!r}", flush=True)
            if failed > 40:
                break
    gc.collect()
    print(f"{seed + 1 - first} cases, {failed} of them failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
