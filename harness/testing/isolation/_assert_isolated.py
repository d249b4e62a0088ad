"""Assert that runs of an agent function share nothing that changes what they give."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import Context, copy_context
from functools import partial
from types import FrameType
from typing import Any, cast

import attrs

from harness._arguments import check_count, check_whole
from harness.errors import ScheduleError
from harness.runs import RunLocal
from harness.runs._functions import check_callable, name_of, refuse_mismatch
from harness.testing._asked import DRAWN, PER_RUN, asked, keep_stop, tell
from harness.testing._outcomes import Comparison, Equal, IncomparableError
from harness.testing.isolation._alone import AloneFindings, AnotherKindError, run_each_alone
from harness.testing.isolation._causes import (
    Candidate,
    Causes,
    candidates_of,
    find_causes,
    other_trials,
    raced,
)
from harness.testing.isolation._declared import checks_of
from harness.testing.isolation._findings import Findings
from harness.testing.isolation._generators import Generators
from harness.testing.isolation._hunt import Caught, hunt_at_once, hunt_in_order, other_schedules
from harness.testing.isolation._leakage import Leakage, measure_leakage
from harness.testing.isolation._line_watch import LineWatch
from harness.testing.isolation._program import AgentFunction
from harness.testing.isolation._report import report
from harness.testing.isolation._same_run import SameRun, check_run_locals
from harness.testing.isolation._trials import (
    INSIDE_ONE_RUN,
    AtOnce,
    InOrder,
    Subject,
    Trial,
    Verdict,
    trial_of,
)
from harness.testing.isolation._watch import StepWatch, member_of
from harness.testing.objects import (
    WHOLE,
    MappingPart,
    SharedState,
    Suspect,
    in_a_thread_of_its_own,
    reach_from,
)
from harness.testing.schedules import Kind, Strand
from harness.testing.schedules._at_the_switch import (
    StopAtSwitch,
    Touched,
    racing_step,
    stopped_at_switch,
)
from harness.testing.schedules._kinds import by_names, check_kind, is_plain, probable_loop
from harness.testing.schedules._thread import in_worker_thread

SAME_RUN_SHARE = 5
"""For every this many schedules, one more is tried with the inputs as calls inside one run."""


@attrs.frozen
class Isolation:
    """What `assert_isolated` saw when it found nothing wrong."""

    runs: int
    """How many inputs were run."""

    schedules_run: int
    """How many schedules they were run under, all at once."""

    objects: int
    """How many objects the function can reach that could be shared."""

    outliving: tuple[str, ...] = ()
    """Paths of what a run leaves changed. It made no difference to the runs after it."""

    not_put_back: tuple[str, ...] = ()
    """What could not be put back between runs, so runs may have met what others left there."""

    uncontrolled: tuple[str, ...] = ()
    """What runs waited for that no schedule controls, such as worker threads."""

    not_looked_at: tuple[str, ...] = ()
    """Where what the function reaches was not looked at any further; what runs share there isn't
    put back."""

    per_run: tuple[str, ...] = ()
    """Paths of what two calls inside one run share, mostly a `RunLocal`: isolated per run, not per
    call."""

    per_run_report: str = attrs.field(default="", repr=False)
    """The whole report of what calls inside one run share; empty if they share nothing."""

    leakage: Leakage | None = None
    """What ``measure=`` has measured."""

    drawn: tuple[str, ...] = ()
    """Paths of generators of random numbers that runs draw from without seeding them. In the check
    each run had numbers of its own; otherwise which numbers it gets depends on the other runs."""


async def assert_isolated(
    agent_fn: AgentFunction,
    inputs: Iterable[Any],
    *,
    schedules: int = 500,
    seed: int = 0,
    schedule: str | None = None,
    shared: Mapping[str, Callable[[Any], object]] | Iterable[RunLocal[Any]] | None = None,
    equal: Equal | None = None,
    same_run: bool = False,
    measure: int | None = None,
    backend: Kind | None = None,
) -> Isolation:
    """Assert that each run gives the same alone, after others, and at once with others.

    Each input is run alone, after putting back everything that the function can reach; then after
    the others; then at once with the others under many schedules, in some of which one of them is
    cancelled. If a run gives something different from what it gives alone, the error names the
    object that the runs share, who wrote and who read it, and the proof. When this returns,
    everything is as it was before.

    Then the inputs are tried as calls inside one run, where a `RunLocal` has one value for all of
    them. What differs only there is isolated per run, not per call: it is reported as
    `Isolation.per_run`, and fails with ``same_run=True``.

    Args:
      agent_fn: An async function of one argument, or anything called like one: a bound method, a
        partial, an agent. At once with others, a plain function is run in a thread for each input,
        one at a time, with the threads switched where others could notice; after others, in the
        same thread.
      inputs: What it is called with: one input for each run. A single one is run twice at once.
      schedules: How many schedules to try.
      seed: What they are drawn from: the same seed tries the same schedules.
      schedule: A replay string, as printed by a failure; then only that is run.
      shared: What runs share on purpose: functions by object path, ``"module.NAME.attr"``. Each
        gets the object after every step and must return true: it is in order. Or a list of the
        each `RunLocal` that the calls of one run share on purpose.
      equal: A function of two outputs that is true if they are the same; by default ``==``.
      same_run: Whether to call the function inside one run, instead of in a run for each input.
      measure: How many more schedules to run, drawn at random and whatever they show, to measure in
        which share of schedules, and of runs, runs leak. They are divided among 2, 4, 8, ... and
        all inputs at once. The shares are in the report, and in ``leakage`` of the error or of
        what is returned, with the intervals they are in at 95 % confidence.
      backend: ``"trio"`` or ``"asyncio"``; by default it is told from the code and, if need be,
        from its first wait.

    Returns:
      What was seen, including what runs leave behind without harm.

    Raises:
      ScheduleError: if runs are not isolated, or one isn't deterministic alone.
      TypeError: if an argument is of the wrong type, or ``agent_fn`` isn't an async function.
      ValueError: if there are no inputs, outputs can't be compared, every run fails alone, there
        is no such backend, ``measure`` comes with ``schedule``, or the replay string or a path in
        ``shared`` fits nothing here.

    Checkpoint: always.

    Cancellation: the schedule that is being run is finished first. Everything is put back.
    """
    check_callable("assert_isolated(agent_fn, ...)", agent_fn)
    refuse_mismatch("assert_isolated(agent_fn, ...)", agent_fn, "one input", "input")
    check_count("assert_isolated(schedules=...)", schedules, advice="leave it out for 500")
    check_whole("assert_isolated(seed=...)", seed, advice="any will do")
    if measure is not None:
        check_count(
            "assert_isolated(measure=...)", measure, advice="leave it out to measure nothing"
        )
        if schedule is not None:
            raise ValueError(
                "assert_isolated got measure= and schedule=: one runs many schedules, the other "
                "only that one; leave one of them out"
            )
    if isinstance(inputs, str | bytes) or not isinstance(inputs, Iterable):
        raise TypeError(f"assert_isolated(inputs) takes a list of inputs, not {inputs!r}")
    if equal is not None and not callable(equal):
        raise TypeError(f"assert_isolated(equal=...) takes a function of two, not {equal!r}")
    given = list(inputs)
    if not given:
        raise ValueError("assert_isolated got no inputs; give at least one, better three")
    if len(given) == 1:
        given.append(copy.deepcopy(given[0]))
    wanted = asked()  # pytest's command line overrides what the test says.
    schedules = wanted.schedules or schedules
    schedule = wanted.schedule or schedule
    trial = None if schedule is None else trial_of(schedule, len(given))
    if schedule is not None and schedule.strip().startswith(INSIDE_ONE_RUN):
        same_run = True
    checks: Mapping[str, Callable[[Any], object]] = {}
    meant: Sequence[RunLocal[Any]] = ()
    if isinstance(shared, Mapping):
        checks = cast("Mapping[str, Callable[[Any], object]]", shared)
    elif shared is not None:
        meant = check_run_locals(shared)
    kind = check_kind("assert_isolated(backend=...)", backend)
    caller = sys._getframe(1)
    wanted_here = _Wanted(schedules, seed, trial, checks, meant, equal, same_run, measure, kind)

    def work(go_on: Callable[[], None]) -> Isolation:
        return _check(agent_fn, given, wanted_here, caller, go_on)

    return await in_worker_thread(work)


@attrs.frozen
class _Wanted:
    """What the caller asked for."""

    schedules: int
    seed: int
    trial: Trial | None
    checks: Mapping[str, Callable[[Any], object]]
    meant: Sequence[RunLocal[Any]]
    equal: Equal | None
    same_run: bool
    measure: int | None
    backend: Kind | None


def _check(
    agent_fn: AgentFunction,
    inputs: list[Any],
    wanted: _Wanted,
    caller: FrameType,
    go_on: Callable[[], None],
) -> Isolation:
    """Do all the work, in a thread that has no event loop."""
    reached = reach_from(agent_fn, inputs, caller)
    generators = Generators(reached.parts, wanted.seed)
    state = SharedState(reached)
    state.follow_the_rest()
    try:
        checks = checks_of(wanted.checks, reached.namespaces())
        subject = Subject(agent_fn, inputs, state, Comparison(wanted.equal), checks, generators)
        if wanted.same_run:
            subject = _inside_one_run(subject, wanted.meant)
        alone = _of_its_kind(subject, wanted.seed, wanted.backend)
        if wanted.trial is not None:
            return _replay(subject, wanted.trial, alone)
        found = _hunt(subject, wanted.schedules, wanted.seed, go_on)
        leakage = None
        if wanted.measure is not None and not isinstance(found, Caught):
            leakage, first = measure_leakage(subject, wanted.measure, wanted.seed, (), go_on)
            found = Caught(*first, found + wanted.measure) if first is not None else found
        if isinstance(found, Caught):

            def measure(known: Sequence[Candidate]) -> Leakage | None:
                if wanted.measure is None or leakage is not None:
                    return leakage
                return measure_leakage(subject, wanted.measure, wanted.seed, known, go_on)[0]

            raise _failure(subject, found, alone, wanted.seed, measure)
        seen = attrs.evolve(_isolation(subject, found, alone), leakage=leakage)
        if seen.drawn:
            tell(DRAWN, f"{name_of(agent_fn)} ({', '.join(seen.drawn)})")
        if wanted.same_run:
            return seen
        shared = _shared_by_calls(_inside_one_run(subject, wanted.meant), wanted, go_on)
        if shared is None:
            return seen
        tell(PER_RUN, f"{name_of(agent_fn)} ({', '.join(shared.objects) or 'see per_run_report'})")
        return attrs.evolve(seen, per_run=shared.objects, per_run_report=str(shared))
    except IncomparableError as error:
        raise ValueError(f"assert_isolated: {error}") from error
    finally:
        state.put_back(everything=True)
        generators.put_back()


def _of_its_kind(subject: Subject, seed: int, fixed: Kind | None) -> AloneFindings:
    """Run each input alone, as the function looks or, if its first wait shows another, as that."""
    if fixed is not None:
        subject.backend = fixed
        return run_each_alone(subject, seed)
    loop = by_names(_named_in_modules(subject)) or probable_loop(subject.agent)
    kind: Kind = "threads" if is_plain(subject.agent) else loop
    kinds: tuple[Kind, ...] = (loop, "asyncio" if loop == "trio" else "trio")
    for subject.backend in ("threads", *kinds) if kind == "threads" else kinds:
        try:
            return run_each_alone(subject, seed, may_be_another_kind=True)
        except AnotherKindError:
            subject.alone.clear()
    subject.backend = kind
    return run_each_alone(subject, seed)


def _named_in_modules(subject: Subject) -> Iterator[Any]:
    """Yield what the modules of the user's code that the function reaches have at their top."""
    for names in subject.state.reached.namespaces().values():
        yield from list(names.values())


def _hunt(subject: Subject, schedules: int, seed: int, go_on: Callable[[], None]) -> Caught | int:
    return hunt_in_order(subject) or hunt_at_once(subject, schedules, seed, go_on)


def _inside_one_run(subject: Subject, meant: Sequence[RunLocal[Any]]) -> Subject:
    """Return the same subject with its inputs as calls inside one run."""
    same_run = SameRun(subject.state)
    return attrs.evolve(subject, same_run=same_run, meant=same_run.suspects(meant), alone={})


def _shared_by_calls(
    subject: Subject, wanted: _Wanted, go_on: Callable[[], None]
) -> ScheduleError | None:
    """Return what calls inside one run share that runs of their own don't."""
    try:
        alone = run_each_alone(subject, wanted.seed)
    except (ScheduleError, ValueError):
        # Alone it was right in a run of its own, so this is not a leak between calls.
        return None
    share = max(wanted.schedules // SAME_RUN_SHARE, 1)
    found = _hunt(subject, share, wanted.seed, go_on)
    return _failure(subject, found, alone, wanted.seed) if isinstance(found, Caught) else None


def _isolation(subject: Subject, schedules: int, alone: AloneFindings) -> Isolation:
    state = subject.state
    return Isolation(
        len(subject.inputs),
        schedules,
        len(state.reached.parts),
        alone.outliving,
        tuple(state.not_put_back),
        alone.uncontrolled,
        not_looked_at=tuple(state.reached.not_looked_at()),
        drawn=_drawn(subject),
    )


def _drawn(subject: Subject) -> tuple[str, ...]:
    return tuple(suspect.path for suspect in subject.generators.drawn)


def _replay(subject: Subject, trial: Trial, alone: AloneFindings) -> Isolation:
    verdict = trial.play(subject)
    diverged = verdict.run.diverged_at if verdict.run is not None else None
    if diverged is not None:
        raise ScheduleError(
            f"the replay string {subject.replay_of(trial)!r} is of other code: the replay diverged "
            f"at decision {diverged}; search again without schedule= to get a new one",
            subject.replay_of(trial),
        )
    if verdict.failed:
        raise _failure(subject, Caught(trial, verdict, 1), alone, seed=0)
    return _isolation(subject, 1, alone)


def _failure(
    subject: Subject,
    found: Caught,
    alone: AloneFindings,
    seed: int,
    measure: Callable[[Sequence[Candidate]], Leakage | None] = lambda known: None,
) -> ScheduleError:
    """Find out all that can be said about a failing trial, and report it.

    Args:
      subject: What was tried.
      found: The trial.
      alone: What was seen of the runs alone.
      seed: What other trials are drawn from.
      measure: Given what makes runs leak, measures how often it does; None if nobody asked.
    """
    trial = found.trial
    if subject.same_run is not None:
        subject.same_run.add_used()
    watch = StepWatch(subject.state)
    again = _replay_watched(subject, trial, watch)
    run_was_cancelled = subject.same_run is not None and subject.same_run.was_cancelled
    candidates = candidates_of(watch.steps)
    broken = found.verdict.broken
    if broken is not None and not found.verdict.differences:
        # The object was declared as shared on purpose, so there is nothing to make private.
        candidates = [one for one in candidates if one.path.startswith(broken.path)]
        causes = Causes(tuple(candidates), proven=False)
    else:
        causes, candidates = _proof(subject, trial, candidates, seed)
        if not causes.proven:
            # It may be where no walk led, which is worth a look after every step now.
            closer = StepWatch(subject.state, closely=True)
            again = _replay_watched(subject, trial, closer)
            found_closer = candidates_of(closer.steps)
            if {one.path for one in found_closer} - {one.path for one in candidates}:
                watch = closer
                causes, candidates = _proof(subject, trial, found_closer, seed)
    # Replays that are right without it, too, prove nothing; nor does a single one, by chance, where
    # something goes on in real time.
    if not again.failed or (alone.uncontrolled and causes.replays == 1):
        causes = attrs.evolve(causes, proven=False)
    lines = LineWatch([suspect for one in candidates for suspect in one.suspects])
    in_a_thread_of_its_own(lambda: _replay_watched(subject, trial, lines))
    if causes.proven and not raced(causes.candidates, lines.accesses):
        causes = attrs.evolve(causes, raced=tuple(raced(candidates, lines.accesses)))
    subject.state.put_back()
    named = (*causes.candidates, *causes.raced)
    initial = {one.path: _initial(subject, one) for one in named}
    paths = [broken.path] if broken is not None else []
    paths += [one.path for one in named if one.path not in paths]
    notes = [f"{words} are not controlled by a schedule" for words in alone.uncontrolled]
    notes += [
        f"runs draw from {path} without seeding it; here each had numbers of its own"
        for path in _drawn(subject)
    ]
    if not again.failed:
        notes.append(
            "it did not fail again when it was replayed, so it depends on something that no "
            "schedule controls: a thread, a socket, the real time"
        )
    if found.verdict.run is not None and found.verdict.run.switches_in_words:
        notes.append(found.verdict.run.switches_in_words)
    if not isinstance(trial, AtOnce) and len(trial.members) > 2:
        names = ", ".join(subject.name_of(member) for member in trial.members)
        notes.append(f"it takes all of these, one after the other: {names}")
    leakage = measure(causes.candidates if causes.proven and not causes.joint else ())
    findings = Findings(
        function=name_of(subject.agent),
        inputs=subject.inputs,
        trial=trial,
        verdict=found.verdict,
        causes=causes,
        steps=watch.steps,
        accesses=lines.accesses,
        initial=initial,
        outliving=alone.outliving,
        not_put_back=subject.state.not_put_back,
        not_looked_at=subject.state.reached.not_looked_at(),
        schedules_run=found.schedules_run,
        notes=notes,
        same_keys=_same_keys(subject, trial, named[:1]),
        inside_one_run=subject.same_run is not None,
        run_was_cancelled=run_was_cancelled,
        isolated_per_run=_is_right_in_runs_of_their_own(subject, trial),
        replay=subject.replay_of(trial),
        leakage=leakage,
    )
    error = ScheduleError(report(findings), findings.replay, found.schedules_run, paths)
    error.leakage = leakage
    error.__cause__ = _first_error(found)
    if isinstance(trial, AtOnce):
        touched = [
            Touched(access.suspect.path, access.step, access.is_write) for access in lines.accesses
        ]
        step = racing_step(touched, [step.member for step in watch.steps])
        up_to = partial(_up_to, subject, trial, copy_context())
        stop = partial(stopped_at_switch, up_to, trial.schedule, step, counts=_is_a_runs)
        keep_stop(error, stop)
    return error


def _is_a_runs(strand: Strand) -> bool:
    return member_of(strand) is not None


def _up_to(subject: Subject, trial: Trial, context: Context, switch: StopAtSwitch) -> None:
    """Play a trial for a debugger that opens in the middle of it."""
    try:
        context.copy().run(trial.play, subject, [switch])
    finally:
        subject.state.put_back(everything=True)


def _is_right_in_runs_of_their_own(subject: Subject, trial: Trial) -> bool:
    """Tell whether calls that fail inside one run are right with a run for each."""
    if subject.same_run is None:
        return False
    verdict = trial.play(attrs.evolve(subject, same_run=None, meant=()))
    return not verdict.failed


def _proof(
    subject: Subject, trial: Trial, candidates: list[Candidate], seed: int
) -> tuple[Causes, list[Candidate]]:
    """Return the causes and the candidates, with more candidates where nothing is proven."""
    schedules = other_schedules(subject, trial, seed) if isinstance(trial, AtOnce) else iter(())
    others = other_trials(trial, schedules)
    causes = find_causes(subject, trial, candidates, others)
    if causes.proven and others and causes.replays == 1:
        # A run that was cancelled may not have come to all that it writes.
        paths = {one.path for one in candidates}
        more = [one for one in _written_alone(subject, trial) if one.path not in paths]
        wider = find_causes(subject, trial, [*candidates, *more], others) if more else causes
        if wider.replays > 1:
            return wider, [*candidates, *more]
    if causes.proven:
        return causes, candidates
    candidates = [*_used_by_several(subject, trial), *candidates]
    return Causes(tuple(candidates), proven=False), candidates


def _written_alone(subject: Subject, trial: Trial) -> list[Candidate]:
    """Return what the runs of a trial write when each is alone."""
    watch = StepWatch(subject.state)
    for member in trial.members:
        _replay_watched(subject, InOrder((member,)), watch)
    return candidates_of(watch.steps)


def _used_by_several(subject: Subject, trial: Trial) -> list[Candidate]:
    """Return what can't be looked into and is used by more than one run."""
    suspects = [Suspect(part) for part in subject.state.reached.opaque]
    lines = LineWatch(suspects)
    in_a_thread_of_its_own(lambda: _replay_watched(subject, trial, lines))
    return [
        Candidate(suspect.path, (suspect,))
        for suspect in suspects
        if len({access.member for access in lines.accesses if access.suspect is suspect}) > 1
    ]


def _same_keys(subject: Subject, trial: Trial, first: Sequence[Candidate]) -> list[Any]:
    """Return the keys of a dict that more than one run writes when alone."""
    writers: dict[Any, set[int]] = {}
    parts = [suspect.part for one in first for suspect in one.suspects if suspect.key is WHOLE]
    if any(isinstance(part, MappingPart) for part in parts):
        for member in dict.fromkeys(trial.members):
            watch = StepWatch(subject.state)
            _replay_watched(subject, InOrder((member,)), watch)
            for write in (write for step in watch.steps for write in step.writes):
                if write.part in parts and write.key is not WHOLE:
                    writers.setdefault(write.key, set()).add(member)
        subject.state.put_back()
    return [key for key, members in writers.items() if len(members) > 1]


def _initial(subject: Subject, candidate: Candidate) -> Any:
    """Return what a guilty thing held at first."""
    suspect = candidate.suspects[0]
    if suspect.part.names_things:
        return subject.state.initial_of(suspect.part).get(suspect.key)
    return suspect.part.thing


def _replay_watched(subject: Subject, trial: Trial, observer: StepWatch | LineWatch) -> Verdict:
    subject.state.put_back()
    observer.begin()
    verdict = trial.play(subject, [observer])
    if isinstance(observer, StepWatch):
        observer.leave_out({suspect.part for suspect in subject.generators.drawn})
    return verdict


def _first_error(found: Caught) -> BaseException | None:
    for difference in found.verdict.differences:
        if difference.got.error is not None:
            return difference.got.error
    return found.verdict.error
