"""Search for a schedule under which a program fails.

No single way of choosing finds every fault soon (see `_choosers`), so they take turns, and all
learn from earlier runs: how many decisions there are, and what there is to strike. One way is
systematic, so a program that is small enough is explored completely, and then the search ends too.

Everything is drawn from the seed: the same search of the same program makes the same runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

import attrs

from harness.testing.schedules._choosers import (
    Afterwards,
    ArrivalsOnly,
    Chooser,
    Planned,
    Priorities,
    StepPriorities,
    Sticky,
    Uniform,
)
from harness.testing.schedules._controlled import ScheduleRun
from harness.testing.schedules._schedule import Fault, Schedule
from harness.testing.schedules._strand import Observer
from harness.testing.schedules._sweep import Sweep
from harness.testing.schedules._systematic import Deviations, Systematic
from harness.testing.schedules._targets import Wait

MOST_WAITS = 2_000
"""How many waits of earlier runs are kept."""


@attrs.frozen(eq=False)
class Probe:
    """What a search wants run next."""

    chooser: Chooser
    faults: tuple[Fault, ...] = ()
    deviations: Deviations | None = None
    """What a systematic probe consists of."""

    observers: tuple[Observer, ...] = ()
    """What looks on for the search."""


@attrs.define(eq=False)
class Search:
    """Probes, until there is nothing left to try or nobody asks for more."""

    seed: int
    cancels: bool = True
    """Whether runs that faults can strike are cancelled."""

    task_cancels: bool = False
    """Whether single tasks are."""

    arrivals_only: bool = False
    """Whether only the order of replies is varied, not that of steps."""

    exhausted: bool = attrs.field(default=False, init=False)
    """Whether every order of the program's steps was run."""

    _random: Random = attrs.field(init=False)
    _systematic: Systematic = attrs.field(init=False)
    _sweep: Sweep = attrs.field(init=False)
    _waiting: list[tuple[Schedule, Wait]] = attrs.field(
        factory=list[tuple[Schedule, Wait]], init=False
    )
    _decisions: int = attrs.field(default=1, init=False)

    def __attrs_post_init__(self) -> None:
        self._random = Random(self.seed)
        self._systematic = Systematic(self._random)
        self._sweep = Sweep(self._random, self.cancels)

    def probes(self) -> Iterator[Probe]:
        """Yield what to run next. Tell `learn` the outcome of each before asking for another."""
        turn = 0
        while True:
            # If only replies are varied, there may well be few enough orders to try all.
            systematic = self.arrivals_only or turn % 4 == 0
            deviations = self._systematic.propose() if systematic else None
            strike = bool(self._sweep) and turn % 2 == 1
            self.exhausted = self._systematic.exhausted
            if deviations is not None:
                yield Probe(Planned(dict(deviations)), deviations=deviations)
            elif self.exhausted and not self._sweep:
                return
            elif strike:
                # In turn: where a run had to wait in some schedule, and each step of each run.
                yield (turn // 2 % 2 == 0 and self._while_waiting()) or Probe(
                    self._at_random(turn // 2), self._sweep.propose()
                )
            elif turn % 4 or not self.exhausted:
                yield Probe(self._at_random(turn))
            turn += 1

    def faults(self) -> Iterator[Probe]:
        """Yield what to run when the orders without a fault are known; endless if there is one."""
        while self._sweep:
            yield Probe(Uniform(Random(self._random.getrandbits(64))), self._sweep.propose())

    def learn(self, probe: Probe, run: ScheduleRun) -> None:
        """Learn what a run had to decide, and what could have been struck."""
        self._decisions = max(self._decisions, len(run.choices))
        if probe.deviations is not None:
            widths = run.widths
            if self.arrivals_only:
                widths = tuple(
                    width if decision in run.arrivals else 1
                    for decision, width in enumerate(run.widths)
                )
            self._systematic.learn(probe.deviations, widths)
        task_steps = Counter(run.order) if self.task_cancels else {}
        self._sweep.learn(run.target_steps, run.target_calls, task_steps)
        if self.cancels:
            self._waiting += [(run.schedule, wait) for wait in run.waits if wait.run]
            if len(self._waiting) > MOST_WAITS:
                self._waiting = self._random.sample(self._waiting, MOST_WAITS // 2)

    def _while_waiting(self) -> Probe | None:
        """Return a probe that cancels a run where it had to wait, and goes on at random.

        For such a cancel to hurt, others must be quick: what the run waits for comes between the
        cancel and the moment the run sees it, or the cancel comes between the grant and its use.
        """
        if not self._waiting:
            return None
        schedule, wait = self._random.choice(self._waiting)
        if self._random.random() < 0.5:
            fault = Fault(wait.run, wait.step, "cancel")
        else:
            fault = Fault(wait.run, wait.step + 1, "cancel_waking")
        return Probe(
            Afterwards(
                Planned(schedule.choices()),
                wait.decisions,
                Uniform(Random(self._random.getrandbits(64))),
            ),
            tuple({*schedule.faults, fault}) if self._random.random() < 0.3 else (fault,),
        )

    def _at_random(self, turn: int) -> Chooser:
        """Return one of the random ways, in turn."""
        random = Random(self._random.getrandbits(64))
        if self.arrivals_only:
            return ArrivalsOnly(Uniform(random))
        ways: tuple[Callable[[], Chooser], ...] = (
            lambda: Priorities(random, 1, self._decisions),
            lambda: StepPriorities(random),
            lambda: Priorities(random, 2, self._decisions),
            lambda: Priorities(random, 1, self._decisions),
            lambda: Sticky(random, 0.1),
            lambda: Priorities(random, 3, self._decisions),
            lambda: Uniform(random),
        )
        return ways[turn % len(ways)]()
