"""Hunt for a trial that fails: first one after the other, then at once under many schedules."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from random import Random

import attrs

from harness.testing.isolation._trials import (
    AtOnce,
    InOrder,
    Subject,
    Trial,
    Verdict,
    last_is_wrong_in_one_loop,
    try_at_once,
)
from harness.testing.schedules import Schedule, ScheduleRun
from harness.testing.schedules._search import Probe, Search
from harness.testing.schedules._shrink import Shrinking

GROUP = 4
"""How many runs are tried at once when there are more than `ALL_AT_ONCE` inputs."""

ALL_AT_ONCE = 6

SMALLER_GROUP_SCHEDULES = 60
"""How many schedules to try when seeing whether fewer runs show the same fault."""


@attrs.frozen(eq=False)
class Caught:
    """A trial that fails."""

    trial: Trial
    verdict: Verdict
    schedules_run: int


def hunt_in_order(subject: Subject) -> Caught | None:
    """Return a pair of runs whose second is wrong after the first, if there is one.

    There are too many orders to try all. Forwards and backwards, every run comes after every other.
    """
    forward = list(range(len(subject.inputs)))
    for tried, members in enumerate((forward, forward[::-1]), 1):
        trial = InOrder(tuple(members))
        verdict = _once_more(subject, trial, trial.play(subject))
        first = members[: verdict.position + 1]
        if verdict.failed and (
            subject.same_run is not None or last_is_wrong_in_one_loop(subject, first)
        ):
            return _shortest(subject, tuple(first), tried)
    return None


def _once_more(subject: Subject, trial: Trial, verdict: Verdict) -> Verdict:
    """Return the verdict on a trial that may have failed for what earlier ones left far away."""
    if verdict.failed and subject.state.look_closer():
        return trial.play(subject)
    return verdict


def _shortest(subject: Subject, members: tuple[int, ...], tried: int) -> Caught:
    """Leave out runs as long as the last one is still wrong."""
    kept = list(members)
    for position in range(len(kept) - 2, -1, -1):
        without = [*kept[:position], *kept[position + 1 :]]
        if len(without) > 1 and _last_is_wrong(subject, without):
            kept = without
    trial = InOrder(tuple(kept))
    return Caught(trial, trial.play(subject), tried)


def _last_is_wrong(subject: Subject, members: Sequence[int]) -> bool:
    verdict = InOrder(tuple(members)).play(subject)
    return verdict.failed and verdict.position == len(members) - 1


def hunt_at_once(
    subject: Subject, schedules: int, seed: int, check_cancelled: Callable[[], None]
) -> Caught | int:
    """Return a schedule under which some run is wrong, made as simple as can be.

    If there is none, return how many schedules were tried.

    Args:
      subject: What is tried.
      schedules: How many schedules to try.
      seed: What they are drawn from.
      check_cancelled: Called between schedules; raises if it is time to stop.
    """
    tried = 0
    for members, share in _groups(len(subject.inputs), schedules, seed):
        count = 0
        for count, (trial, verdict) in enumerate(_schedules(subject, members, seed, share), 1):
            check_cancelled()
            if verdict.failed:
                verdict = _once_more(subject, trial, verdict)
            if verdict.failed:
                found = Caught(trial, verdict, tried + count)
                return _simpler(subject, found, seed)
        tried += count
    return tried


def _groups(inputs: int, schedules: int, seed: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield which runs to try at once, and for how many schedules."""
    everybody = tuple(range(inputs))
    if inputs <= ALL_AT_ONCE:
        yield everybody, schedules
        return
    order = list(everybody)
    Random(seed).shuffle(order)
    groups = [tuple(sorted(order[at : at + GROUP])) for at in range(0, inputs, GROUP)]
    if len(groups[-1]) < 2:
        groups[-1] = tuple(sorted({*groups[-1], order[0]}))
    # All together now and then: some faults need a crowd.
    share = max(schedules // (len(groups) + 1), 1)
    left = schedules
    for group in groups:
        if left <= 0:
            return
        yield group, min(share, left)
        left -= share
    if left > 0:
        yield everybody, left


def _schedules(
    subject: Subject, members: tuple[int, ...], seed: int, schedules: int
) -> Iterator[tuple[AtOnce, Verdict]]:
    search = Search(seed)
    for probe in itertools.islice(search.probes(), schedules):
        verdict = try_at_once(subject, members, probe)
        assert verdict.run is not None
        search.learn(probe, verdict.run)
        yield AtOnce(members, verdict.run.schedule), verdict


def other_schedules(subject: Subject, trial: AtOnce, seed: int) -> Iterator[AtOnce]:
    """Yield more trials of the same runs, with the trial's faults and with none."""
    yield AtOnce(trial.members, Schedule())
    search = Search(seed, cancels=False)
    for probe in itertools.islice(search.probes(), SMALLER_GROUP_SCHEDULES):
        faulty = attrs.evolve(probe, faults=trial.schedule.faults)
        verdict = try_at_once(subject, trial.members, faulty)
        assert verdict.run is not None
        search.learn(probe, verdict.run)
        yield AtOnce(trial.members, verdict.run.schedule)


def _simpler(subject: Subject, found: Caught, seed: int) -> Caught:
    """Return the same fault with fewer runs, switches and faults."""
    trial = found.trial
    assert isinstance(trial, AtOnce)
    victims = [difference.member for difference in found.verdict.differences]
    if len(trial.members) > 2:
        smaller = _with_fewer_runs(subject, trial.members, victims, seed)
        if smaller is not None:
            trial = smaller
    shrunk = _shrunk(subject, trial)
    if shrunk is None:
        return found
    return Caught(*shrunk, found.schedules_run)


def _with_fewer_runs(
    subject: Subject, members: tuple[int, ...], victims: Sequence[int], seed: int
) -> AtOnce | None:
    for pair in itertools.islice(itertools.combinations(members, 2), 6):
        if victims and not set(victims) & set(pair):
            continue
        for trial, verdict in _schedules(subject, pair, seed, SMALLER_GROUP_SCHEDULES):
            if verdict.failed:
                return trial
    return None


def _shrunk(subject: Subject, trial: AtOnce) -> tuple[AtOnce, Verdict] | None:
    """Leave out switches and faults as long as something is still wrong.

    None if the trial doesn't fail again: it depends on what no schedule controls.
    """
    verdict = trial.play(subject)
    assert verdict.run is not None
    if not verdict.failed:
        return None
    latest = verdict

    def run(probe: Probe) -> ScheduleRun:
        nonlocal latest
        latest = try_at_once(subject, trial.members, probe)
        assert latest.run is not None
        return latest.run

    shrinking = Shrinking(run, lambda _: latest.failed, verdict.run)
    simplest = AtOnce(trial.members, shrinking.shrink().schedule)
    verdict = simplest.play(subject)
    return (simplest, verdict) if verdict.failed else None
