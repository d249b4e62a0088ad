"""Try one way of running some of the inputs, and judge the result.

Runs can be tried at once, under a schedule, or one after the other with nothing put back between
them. Either way, what each gave is compared with what it gives alone. A trial has a replay string,
and gives the same result each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from harness.testing._outcomes import Comparison, Outcome
from harness.testing.isolation._fresh_threads import fresh_threads
from harness.testing.isolation._generators import Generators
from harness.testing.isolation._private import PrivateContents
from harness.testing.isolation._program import PROGRAMS, AgentFunction, Program, call_name, run_name
from harness.testing.isolation._same_run import SameRun
from harness.testing.isolation._watch import OrderWatch, OutOfOrder
from harness.testing.objects import SharedState, Suspect, ThreadLocalsPart
from harness.testing.schedules import Kind, Observer, Schedule, ScheduleRun, run_schedule
from harness.testing.schedules._run_schedule import run_probe
from harness.testing.schedules._schedule import VERSION
from harness.testing.schedules._search import Probe

IN_ORDER = "o1"
"""What the replay string of runs one after the other begins with."""

INSIDE_ONE_RUN = "r"
"""What precedes the replay string of calls inside one run."""

AT_ONCE = "i1"
"""What the replay string of runs at once begins with; the schedule's follows the members."""


STEPS_AT_MOST = 20_000
"""Steps after which a program counts as endless."""


@attrs.frozen
class Difference:
    """A run that gave something different from what it gives alone."""

    member: int
    alone: Outcome
    got: Outcome

    later: bool = False
    """Whether it returned the right thing, but something changed it afterwards."""


@attrs.frozen(eq=False)
class Verdict:
    """What is wrong with a trial, if anything."""

    outcomes: Mapping[int, Outcome]
    differences: tuple[Difference, ...]
    broken: OutOfOrder | None = None
    """A declared shared object that was found out of order."""

    error: BaseException | None = None
    """What went wrong with the whole program."""

    blocked: tuple[str, ...] = ()
    """What tasks wait for that will never come."""

    run: ScheduleRun | None = None
    """The controlled run, if there was just one."""

    position: int = 0
    """Which of several runs in order it ended with, from 0."""

    @property
    def failed(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.differences or self.broken or self.error)


@attrs.define(eq=False)
class Subject:
    """An agent function with its inputs, and what is known of how it should behave."""

    agent: AgentFunction
    inputs: Sequence[Any]
    state: SharedState
    comparison: Comparison
    checks: Mapping[str, Callable[[], object]]
    generators: Generators
    backend: Kind = "trio"
    same_run: SameRun | None = None
    """What looks into the one run that all the calls are in; None if each has its own run."""
    meant: Sequence[Suspect] = ()
    """What the calls of one run share on purpose; differences it makes don't count."""
    alone: dict[int, Outcome] = attrs.field(factory=dict[int, Outcome])
    """How each run ends alone, by index of its input."""

    @property
    def keeps_in_threads(self) -> bool:
        """Whether the function reaches a `threading.local`."""
        return any(isinstance(part, ThreadLocalsPart) for part in self.state.parts)

    def name_of(self, member: int) -> str:
        """Return what reports call the run, or the call, on the input of this index."""
        return run_name(member) if self.same_run is None else call_name(member)

    def replay_of(self, trial: Trial) -> str:
        """Return the replay string."""
        return trial.replay if self.same_run is None else f"{INSIDE_ONE_RUN}{trial.replay}"

    def watchers(
        self, observers: Iterable[Observer], suspects: Sequence[Suspect]
    ) -> tuple[list[Observer], PrivateContents | None]:
        """Return the observers, plus one that gives each run contents of its own."""
        own = [*self.meant, *self.generators.drawn, *suspects]
        private = PrivateContents(own, self.state, self.generators) if own else None
        return [*observers, *([] if private is None else [private])], private

    def run(
        self,
        members: Sequence[int],
        how: Schedule | Probe,
        observers: Iterable[Observer] = (),
        *,
        in_turn: bool = False,
    ) -> tuple[Program, ScheduleRun]:
        """Run some of the inputs at once, or one after the other, from the state as it is."""
        program = PROGRAMS[self.backend](
            self.agent, self.inputs, members, in_turn=in_turn, same_run=self.same_run
        )
        self.state.begin_run()
        watching = tuple(observers)
        most_steps = STEPS_AT_MOST * (len(members) if in_turn else 1)
        with fresh_threads():
            if isinstance(how, Schedule):
                run = run_schedule(
                    program, how, observers=watching, most_steps=most_steps, backend=self.backend
                )
            else:
                run = run_probe(
                    program, how, observers=watching, most_steps=most_steps, backend=self.backend
                )
        return program, run

    def judge(
        self,
        outcomes: Mapping[int, Outcome],
        expected: Iterable[int],
        private: PrivateContents | None = None,
    ) -> tuple[Difference, ...]:
        """Return the runs that don't end as they do alone, of those ``expected`` to."""
        found: list[Difference] = []
        for member in expected:
            got, alone = outcomes[member], self.alone[member]
            if not self.comparison.same(got, alone):
                found.append(Difference(member, alone, got))
                continue
            if got.kind == "returned":
                if private is not None:
                    private.load(member)
                if got.live is not got.value and not self.comparison.same_values(
                    got.live, alone.value
                ):
                    now = attrs.evolve(got, value=got.live)
                    found.append(Difference(member, alone, now, later=True))
        return tuple(found)


@attrs.frozen
class AtOnce:
    """Some of the inputs at once, under a schedule."""

    members: tuple[int, ...]
    schedule: Schedule

    @property
    def replay(self) -> str:
        """The replay string."""
        return f"{AT_ONCE}:{_numbers(self.members)}:{self.schedule}"

    def play(
        self,
        subject: Subject,
        observers: Iterable[Observer] = (),
        private: Sequence[Suspect] = (),
    ) -> Verdict:
        """Put everything back, run it, and judge; each run has its own copy of ``private``."""
        return try_at_once(subject, self.members, self.schedule, observers, private)


def try_at_once(
    subject: Subject,
    members: Sequence[int],
    how: Schedule | Probe,
    observers: Iterable[Observer] = (),
    suspects: Sequence[Suspect] = (),
) -> Verdict:
    """Put everything back, run ``members`` at once, and judge."""
    subject.state.put_back()
    order = OrderWatch(subject.checks) if subject.checks else None
    watchers, private = subject.watchers(observers, suspects)
    if order is not None:
        watchers.append(order)
    program, run = subject.run(members, how, watchers)
    outcomes = dict(program.outcomes)
    struck = {fault.run - 1 for fault in run.schedule.faults}
    waits = {task.name: task.place for task in run.blocked}
    for member in members:
        if member not in outcomes:
            where = waits.get(subject.name_of(member), "")
            outcomes[member] = Outcome("unfinished", where=where)
    differences = subject.judge(
        outcomes, [member for member in members if member not in struck], private
    )
    return Verdict(
        outcomes,
        differences,
        order.broken if order is not None else None,
        run.error,
        tuple(str(task) for task in run.blocked),
        run,
    )


@attrs.frozen
class InOrder:
    """Some of the inputs one after the other.

    Each is in a loop of its own. But calls inside one run are in one loop, and so are runs that
    may keep something in the threads of a pool, since those end with a controlled program.
    """

    members: tuple[int, ...]

    @property
    def replay(self) -> str:
        """The replay string."""
        return f"{IN_ORDER}:{_numbers(self.members)}"

    def play(
        self,
        subject: Subject,
        observers: Iterable[Observer] = (),
        private: Sequence[Suspect] = (),
    ) -> Verdict:
        """Put everything back once, run one after the other, and judge each when it has ended."""
        watchers, contents = subject.watchers(observers, private)
        subject.state.put_back()
        if subject.same_run is not None or (len(self.members) > 1 and subject.keeps_in_threads):
            return self._in_one_program(subject, watchers, contents)
        last: dict[int, Outcome] = {}
        for position, member in enumerate(self.members):
            program, run = subject.run((member,), Schedule(), watchers)
            outcome = program.outcomes.get(member) or Outcome("unfinished")
            last[member] = outcome
            differences = subject.judge({member: outcome}, (member,), contents)
            if differences or run.error is not None:
                blocked = tuple(str(task) for task in run.blocked)
                return Verdict(
                    last, differences, error=run.error, blocked=blocked, position=position
                )
        return Verdict(last, ())

    def _in_one_program(
        self, subject: Subject, watchers: list[Observer], private: PrivateContents | None
    ) -> Verdict:
        program, run = subject.run(self.members, Schedule(), watchers, in_turn=True)
        outcomes = {
            member: program.outcomes.get(member) or Outcome("unfinished") for member in self.members
        }
        blocked = tuple(str(task) for task in run.blocked)
        for position, member in enumerate(self.members):
            differences = subject.judge(outcomes, (member,), private)
            if differences:
                if differences[-1].later:
                    position = len(self.members) - 1  # Some later call did that.
                return Verdict(
                    outcomes, differences, error=run.error, blocked=blocked, position=position
                )
        last = len(self.members) - 1
        return Verdict(outcomes, (), error=run.error, blocked=blocked, position=last)


def last_is_wrong_in_one_loop(subject: Subject, members: Sequence[int]) -> bool:
    """Tell whether the last run is also wrong when all share one loop.

    If not, it only met what belonged to a loop that had ended, such as a worker that the first run
    started for all: that isn't a leak from one run into another.
    """
    subject.state.put_back()
    last = members[-1]
    watchers, private = subject.watchers((), ())
    program, run = subject.run(members, Schedule(), watchers, in_turn=True)
    outcome = program.outcomes.get(last) or Outcome("unfinished")
    return run.error is not None or bool(subject.judge({last: outcome}, [last], private))


Trial = AtOnce | InOrder


def trial_of(text: str, inputs: int) -> Trial:
    """Return the trial that a replay string stands for, whether inside one run or not.

    Args:
      text: What a report printed.
      inputs: How many inputs there are.

    Raises:
      TypeError: if it isn't a string.
      ValueError: if it isn't a replay string of this function, or is for more inputs.
    """
    if not isinstance(text, str):
        raise TypeError(f"schedule= takes a replay string, not {text!r}")
    text = text.strip().removeprefix(INSIDE_ONE_RUN)
    if text.startswith(f"{VERSION}:"):
        return AtOnce(tuple(range(inputs)), Schedule.parse(text))
    kind, _, rest = text.partition(":")
    numbers, _, schedule = rest.partition(":")
    if kind not in (IN_ORDER, AT_ONCE) or not all(
        number.isdecimal() for number in numbers.split(",")
    ):
        raise ValueError(
            f"{text!r} is not a replay string of assert_isolated; one begins with '{AT_ONCE}:' or "
            f"'{IN_ORDER}:' and is printed by every failure"
        )
    members = tuple(int(number) - 1 for number in numbers.split(","))
    if not all(0 <= member < inputs for member in members):
        raise ValueError(
            f"the replay string {text!r} is about runs {numbers}, and there are {inputs} inputs; "
            "give the inputs that it was found with"
        )
    if len(set(members)) < len(members):
        raise ValueError(
            f"the replay string {text!r} names a run twice; copy it from the failure as it is"
        )
    if kind == IN_ORDER:
        return InOrder(members)
    return AtOnce(members, Schedule.parse(schedule))


def _numbers(members: Iterable[int]) -> str:
    return ",".join(str(member + 1) for member in members)
