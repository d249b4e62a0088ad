"""Assert that an object whose calls overlap does what it does when they don't."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

import attrs

from harness._arguments import check_count, check_whole
from harness.errors import ScheduleError
from harness.runs._functions import name_of
from harness.testing._asked import EXPLORED, asked, keep_stop, tell
from harness.testing._outcomes import Comparison, Equal, IncomparableError, Outcome
from harness.testing.exploration._timeline import Timeline
from harness.testing.linearizability._histories import Call, is_linearizable, orders
from harness.testing.linearizability._programs import AtOnce, InTurn, Operation, Rows, Subject
from harness.testing.objects import (
    Place,
    Reached,
    SharedState,
    in_a_thread_of_its_own,
    place_of_definition,
)
from harness.testing.schedules import (
    Found,
    Kind,
    Schedule,
    ScheduleRun,
    find_schedule,
    run_schedule,
)
from harness.testing.schedules._at_the_switch import StopAtSwitch, stopped_at_switch
from harness.testing.schedules._kinds import (
    by_names,
    check_kind,
    globals_used,
    is_plain,
    other_kind,
    surroundings,
)
from harness.testing.schedules._thread import in_this_thread

VERSION = "l1"
"""What the replay string begins with; then come the rows, and the schedule's own string."""

SHAPES = ((1, 1), (2, 1), (2, 2), (1, 1, 1), (2, 1, 1), (3, 2), (2, 2, 2))
"""How many calls each task makes, in turn."""

EACH_AT_LEAST = 8
"""How many schedules a choice of calls is tried under; later ones get more.

Which calls matters more than in which order: with 40, the queue of the tests took three times as
many schedules in all."""

AGAIN_AT_MOST = 200
"""How many schedules fewer calls are tried under, once some are known to fail."""

ORDERS_SHOWN = 6


class NotLinearizableError(AssertionError):
    """Calls gave what no order of them gives."""


def assert_linearizable(
    make: Callable[[], Any],
    operations: Iterable[Callable[..., Any] | tuple[Any, ...]],
    *,
    schedules: int = 1_000,
    seed: int = 0,
    schedule: str | None = None,
    equal: Equal | None = None,
    backend: Kind | None = None,
) -> None:
    """Assert that calls of an object that overlap give what some order of them gives.

    Two or three tasks, or threads, call some of the operations on a new object, under a schedule.
    What the calls returned or raised is compared with what an object of the same kind gives when it
    is called by one at a time: there must be an order of the calls that gives the same, in which no
    call comes before one that had ended when it began. A call that never returns is in order if
    after some order of the others it wouldn't, either.

    If there is none, the calls are made fewer and the schedule simpler as long as it stays so.

    Args:
      make: Makes the object: its class, or a function without arguments, plain or async.
      operations: What is called: functions of the object, such as its methods, ``Cache.evict``; or,
        with more arguments, tuples of a function and those, ``(Cache.get, "key")``. If all are
        plain, they are called from threads.
      schedules: How many schedules to try, over all choices of calls.
      seed: What they are drawn from: the same seed tries the same.
      schedule: A replay string, as printed by a failure; then only that is run.
      equal: A function of two returned values that is true if they are the same; by default ``==``.
      backend: ``"trio"``, ``"asyncio"`` or ``"threads"``; by default it is told from the code.

    Raises:
      ScheduleError: if there is no such order, with the smallest calls and schedule found.
      TypeError: if an argument is of the wrong type.
      ValueError: if there are no operations, the object isn't deterministic even when called by one
        at a time, results can't be compared, or the replay string isn't one of these operations.

    It blocks its thread, in which there may be an event loop: it starts its own in another. So it
    can be called from a plain test or from an async one.
    """
    if not callable(make):
        raise TypeError(f"assert_linearizable(make, ...) takes a class or a function, not {make!r}")
    check_count("assert_linearizable(schedules=...)", schedules, advice="leave it out for 1,000")
    check_whole("assert_linearizable(seed=...)", seed, advice="any will do")
    given = [_operation(one) for one in operations]
    if not given:
        raise ValueError(
            "assert_linearizable got no operations; give at least one, such as a method"
        )
    wanted = asked()  # pytest's command line overrides what the test says.
    schedule = wanted.schedule or schedule
    replay = None if schedule is None else _parse(schedule, len(given))
    kind = check_kind("assert_linearizable(backend=...)", backend)
    same = Comparison(equal)

    def work(go_on: Callable[[], None]) -> None:
        state = _state(make, given)
        try:
            subject = _of_its_kind(make, given, kind, same, state.put_back)
            search = _Search(subject, same, InTurn(subject, state.put_back), state.put_back, seed)
            if replay is None:
                search.search(wanted.schedules or schedules)
            else:
                search.replay(*replay)
        except IncomparableError as error:
            raise ValueError(f"assert_linearizable: {error}") from error
        finally:
            state.put_back(everything=True)

    in_a_thread_of_its_own(lambda: in_this_thread(work))


def _operation(given: Any) -> Operation:
    function, *arguments = given if isinstance(given, tuple) and given else (given,)
    if not callable(function):
        raise TypeError(
            "an operation is a function of the object, or a tuple of one and its other arguments, "
            f"as (Cache.get, 'key'); not {given!r}"
        )
    return Operation(function, tuple(arguments))


def _state(make: Callable[[], Any], operations: Sequence[Operation]) -> SharedState:
    """Return what objects of this kind share, such as attributes of their class."""
    reached = Reached()
    for thing in (make, *(one.function for one in operations)):
        is_named = hasattr(thing, "__qualname__") and hasattr(thing, "__module__")
        reached.add(place_of_definition(thing) if is_named else Place("make"), thing)
    return SharedState(reached)


def _of_its_kind(
    make: Callable[[], Any],
    operations: Sequence[Operation],
    fixed: Kind | None,
    same: Comparison,
    put_back: Callable[[], None],
) -> Subject:
    """Return the subject as the kind of program it is; make sure that it is deterministic."""
    functions = [make, *(one.function for one in operations)]
    methods = (
        [one for one in vars(make).values() if callable(one)] if isinstance(make, type) else []
    )
    named = by_names(thing for one in (*functions, *methods) for thing in globals_used(one))
    loop = named or surroundings.get()
    kinds: list[Kind] = [loop, "asyncio" if loop == "trio" else "trio"]
    if all(is_plain(one) or isinstance(one, type) for one in functions):
        kinds.insert(0, "threads")
    for kind in [] if fixed is not None else kinds[:-1]:
        subject = Subject(make, operations, kind)
        errors = [one.error for one in _in_turn(subject, put_back) if one is not None]
        if other_kind(kind, errors) is None:
            break
    else:
        subject = Subject(make, operations, fixed or kinds[-1])
    twice = zip(_in_turn(subject, put_back), _in_turn(subject, put_back), strict=True)
    for operation, (one, again) in zip(operations, twice, strict=True):
        if (one is None) != (again is None) or (one and again and not same.same(one, again)):
            raise ValueError(
                f"{operation} gives {one}, and then {again}, when it is called in the same way, by "
                "one at a time; only what is deterministic can be checked: fix its seeds and ids, "
                "or pass equal="
            )
    return subject


def _in_turn(subject: Subject, put_back: Callable[[], None]) -> list[Outcome | None]:
    """Return what each operation gives, called after those before it; None if it never returns."""
    in_turn = InTurn(subject, put_back)
    everything = tuple(range(len(subject.operations)))
    return [in_turn.outcome(everything[: count + 1]) for count in everything]


@attrs.define(eq=False)
class _Search:
    """Looks for calls and a schedule of them that no order explains."""

    subject: Subject
    same: Comparison
    in_turn: InTurn
    put_back: Callable[..., None]
    seed: int

    def search(self, schedules: int) -> None:
        tried = 0
        for number, rows in enumerate(self._choices()):
            if tried >= schedules:
                break
            found = self._find(rows, min(EACH_AT_LEAST + number // 10, schedules - tried))
            tried += found.schedules_run
            if isinstance(found, Found):
                raise self._failure(*self._smallest(rows, found), tried)
        tell(EXPLORED)

    def replay(self, rows: Rows, schedule: Schedule) -> None:
        program = AtOnce(self.subject, rows)
        self.put_back()
        run = run_schedule(self.subject.as_program(program), schedule, backend=self.subject.backend)
        text = _replay_string(rows, schedule)
        if run.diverged_at is not None:
            raise ScheduleError(
                f"the replay string {text!r} is of other code: the replay diverged at decision "
                f"{run.diverged_at}; search again without schedule= to get a new one",
                text,
            )
        if self._judge(program, run) is not None:
            raise self._failure(rows, run, 1)

    def _choices(self) -> Iterator[Rows]:
        """Yield what is called at once: first all pairs, then more and more calls, at random."""
        random = Random(self.seed)
        every = range(len(self.subject.operations))
        pairs = [((one,), (other,)) for one in every for other in every if one <= other]
        random.shuffle(pairs)
        yield from pairs
        for shape in itertools.cycle(SHAPES[1:]):
            yield tuple(tuple(random.choice(every) for _ in range(count)) for count in shape)

    def _find(self, rows: Rows, schedules: int, *, shrink: bool = False) -> Any:
        program = AtOnce(self.subject, rows)
        return find_schedule(
            self.subject.as_program(program),
            schedules=schedules,
            seed=self.seed,
            judge=lambda run: self._judge(program, run),
            prepare=self.put_back,
            shrink=shrink,
            backend=self.subject.backend,
        )

    def _judge(self, program: AtOnce, run: ScheduleRun) -> BaseException | None:
        if run.error is not None and not run.blocked:
            return run.error
        calls = list(program.calls)  # Orders that are run now leave it alone; the next run doesn't.
        if is_linearizable(calls, self.in_turn, self.same.same):
            return None
        return NotLinearizableError()

    def _smallest(self, rows: Rows, found: Found) -> tuple[Rows, ScheduleRun]:
        """Return fewer calls that fail, too, and the simplest schedule found for them."""
        fewer = True
        while fewer:
            fewer = False
            for smaller in _without_one(rows):
                again = self._find(smaller, AGAIN_AT_MOST)
                if isinstance(again, Found):
                    rows, fewer = smaller, True
                    break
        shrunk = self._find(rows, AGAIN_AT_MOST, shrink=True)
        return rows, (shrunk if isinstance(shrunk, Found) else found).run

    # The report -----------------------------------------------------------------------------------

    def _failure(self, rows: Rows, run: ScheduleRun, tried: int) -> ScheduleError:
        program, timeline = AtOnce(self.subject, rows), Timeline()
        self.put_back()
        again = run_schedule(
            self.subject.as_program(program),
            run.schedule,
            observers=(timeline,),
            backend=self.subject.backend,
        )
        calls = list(program.calls)
        text = _replay_string(rows, run.schedule)
        name = name_of(self.subject.make)
        if again.error is not None and not again.blocked:
            headline = f"{name} can't be called at once (schedule {tried})"
            body = [f"  {type(again.error).__name__}: {again.error}"]
        else:
            headline = (
                f"{name} is not linearizable: called at once, it gives what no order of the calls "
                f"gives (schedule {tried})"
            )
            body = [*self._events(calls), "one after the other, the same calls give:"]
            shown = [f"  {self._order(order)}" for order in orders(calls)]
            body += dict.fromkeys(shown[:ORDERS_SHOWN])
            if len(shown) > ORDERS_SHOWN:
                body.append(f"  ... {len(shown) - ORDERS_SHOWN} more orders")
        if again.switches_in_words:
            body.append(again.switches_in_words)
        story = ["in this order of steps:", *(f"  {line}" for line in timeline.lines())]
        replay = f"replay: assert_linearizable({name}, operations, schedule={text!r})"
        error = ScheduleError("\n".join([headline, *body, *story, replay]), text, tried)
        keep_stop(error, partial(stopped_at_switch, partial(self._up_to, rows, run), run.schedule))
        return error

    def _up_to(self, rows: Rows, run: ScheduleRun, switch: StopAtSwitch) -> None:
        """Play a failure for a debugger that opens in the middle of it."""
        self.put_back()
        program = self.subject.as_program(AtOnce(self.subject, rows))
        backend = self.subject.backend
        run_schedule(program, run.schedule, observers=(switch,), backend=backend)
        self.put_back(everything=True)

    def _events(self, calls: Sequence[Call]) -> Iterator[str]:
        """Yield in words what was called and what came back, in the order of events."""
        events: list[tuple[float, str]] = []
        for call in calls:
            what = str(self.subject.operations[call.operation])
            events.append((call.began, f"  task {call.task + 1} calls {what}"))
            ends = f"  task {call.task + 1} gets {call.outcome} from {what}"
            if call.ended is None:
                ends = f"  task {call.task + 1} never gets anything from {what}"
            events.append((call.ended or float("inf"), ends))
        for _, words in sorted(events, key=lambda event: event[0]):
            yield words

    def _order(self, order: Sequence[Call]) -> str:
        done: tuple[int, ...] = ()
        words: list[str] = []
        for call in order:
            done = (*done, call.operation)
            outcome: Outcome | None = self.in_turn.outcome(done)
            what = self.subject.operations[call.operation]
            if outcome is None:
                words.append(f"{what} never returns")
                break
            words.append(f"{what} gives {outcome}")
        return "; then ".join(words)


def _without_one(rows: Rows) -> Iterator[Rows]:
    """Yield the rows with one call less."""
    for number, row in enumerate(rows):
        for place in range(len(row)):
            rest = (*row[:place], *row[place + 1 :])
            smaller = (*rows[:number], *([rest] if rest else []), *rows[number + 1 :])
            if len(smaller) > 1:
                yield smaller


def _replay_string(rows: Rows, schedule: Schedule) -> str:
    return f"{VERSION}:{'/'.join('.'.join(map(str, row)) for row in rows)}:{schedule}"


def _parse(text: str, count: int) -> tuple[Rows, Schedule]:
    """Return what a replay string stands for.

    Raises:
      ValueError: if it is none, or of other operations.
    """
    found = re.fullmatch(rf"{VERSION}:([\d./]+):(.*)", text.strip())
    if found is None or not all(part.isdecimal() for part in re.split("[./]", found[1])):
        raise ValueError(
            f"{text!r} is no replay string of assert_linearizable; one begins with {VERSION}: and "
            "is printed by every failure"
        )
    rows = tuple(tuple(map(int, row.split("."))) for row in found[1].split("/"))
    if max(itertools.chain(*rows)) >= count:
        raise ValueError(f"{text!r} is of other operations: there are only {count} here")
    return rows, Schedule.parse(found[2])
