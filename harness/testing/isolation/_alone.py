"""Find out what each run gives alone, and whether that is always the same.

Only an output that a run gives every time when alone can be compared with what it gives among
others. So each input is run more than once, with everything put back in between, and under other
orders of the run's own tasks if it has several.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import attrs

from harness._words import errors_in_words, repr_of
from harness.errors import ScheduleError
from harness.testing._outcomes import (
    ERROR_WORDS_AT_MOST,
    IncomparableError,
    Outcome,
    by_identity_words,
    compared_by_identity,
    first_difference,
)
from harness.testing.isolation._trials import Subject
from harness.testing.schedules import Schedule, ScheduleRun
from harness.testing.schedules._choosers import Uniform
from harness.testing.schedules._kinds import other_kind
from harness.testing.schedules._other_loops import starts_a_loop, was_refused_by_loop
from harness.testing.schedules._search import Probe

OTHER_ORDERS = 5
"""How many random orders of a run's own tasks to try, if it has several."""

REPETITIONS = 2


@attrs.frozen
class AloneFindings:
    """What was seen apart from the outcomes."""

    outliving: tuple[str, ...]
    """Paths of what some run leaves changed."""

    uncontrolled: tuple[str, ...]
    """What runs waited for that no schedule controls."""


class AnotherKindError(Exception):
    """The function is for another kind of loop than it was taken for."""


def run_each_alone(
    subject: Subject, seed: int, *, may_be_another_kind: bool = False
) -> AloneFindings:
    """Fill in ``subject.alone``.

    Args:
      subject: What is run.
      seed: What the orders of a run's own tasks are drawn from.
      may_be_another_kind: Whether its kind is only a guess, which the first run may refute.

    Raises:
      AnotherKindError: if it did.
      ScheduleError: if some run doesn't give the same each time, or never ends.
      TypeError: if the function isn't async.
      ValueError: if no input can be run at all, or outputs can't be compared.
    """
    outliving: dict[str, None] = {}
    uncontrolled: set[str] = set()
    for member in range(len(subject.inputs)):
        how: list[Schedule | Probe] = [Schedule()] * REPETITIONS
        while how:
            subject.state.put_back()
            subject.generators.begin(member)
            first_time = member not in subject.alone
            what = how.pop()
            program, run = subject.run((member,), what)
            drawn_from = subject.generators.changed(member)
            uncontrolled |= run.uncontrolled
            if may_be_another_kind and not subject.alone:
                raised = [run.error, *(one.error for one in program.outcomes.values())]
                if other_kind(subject.backend, raised):
                    raise AnotherKindError
            _refuse_two_loops(subject, member, run)
            if run.error is not None:
                raise ScheduleError(
                    f"{_words(subject, member)} doesn't end even when run alone, so there is "
                    "nothing to compare with: "
                    + errors_in_words(run.error, at_most=ERROR_WORDS_AT_MOST)
                ) from run.error
            outcome = program.outcomes[member]
            if first_time:
                subject.alone[member] = outcome
                _refuse_no_coroutine(outcome)
                if any(width > 1 for width in run.widths):
                    how += [Probe(Uniform(Random(seed + extra))) for extra in range(OTHER_ORDERS)]
                subject.state.look_closer()
                for suspect in subject.state.left_behind():
                    outliving.setdefault(suspect.path)
                if drawn_from:
                    subject.state.put_back()
                    subject.generators.begin(member, "other numbers")
                    subject.run((member,), Schedule())
                    subject.generators.note_drawn(drawn_from)
            else:
                _compare(subject, member, outcome, what)
    _refuse_only_errors(subject)
    return AloneFindings(tuple(outliving), tuple(sorted(uncontrolled)))


def _compare(subject: Subject, member: int, outcome: Outcome, how: Schedule | Probe) -> None:
    alone = subject.alone[member]
    cls = None
    if subject.comparison.equal is None and outcome.kind == "returned":
        cls = compared_by_identity(outcome.value)
    try:
        same = subject.comparison.same(outcome, alone)
    except IncomparableError as error:
        raise ValueError(f"assert_isolated: {error}") from error
    if same:
        return
    if cls is not None:
        raise ValueError(f"assert_isolated: {by_identity_words(cls)}")
    words = _words(subject, member)
    if isinstance(how, Schedule):
        changed = [suspect.path for suspect in subject.state.left_behind()]
        changed = changed or [str(part.place) for part in subject.state.reached.opaque]
        raise ScheduleError(
            f"{words} is not deterministic alone: it gave {alone}, then {outcome}"
            f"{_where(alone, outcome)}. "
            "Take out what differs each time (the clock, random numbers, ids, the order of a set), "
            "give it a seed, or pass equal=, a function of two outputs that looks past it"
            + _not_put_back(subject),
            objects=changed,
        )
    raise ScheduleError(
        f"{words} is not deterministic alone: it gave {alone}, and {outcome} when its own tasks "
        f"went on in another order{_where(alone, outcome)}. Make it give the same in every order "
        "(@explore_schedules finds out where), or pass equal=, a function of two outputs that "
        "looks past it"
    )


def _where(one: Outcome, other: Outcome) -> str:
    words = first_difference(one.value, other.value)
    return f" (the first difference is {words})" if words else ""


def _not_put_back(subject: Subject) -> str:
    listed = subject.state.not_put_back
    if not listed:
        return ""
    return f"; what could not be put back between the two: {', '.join(listed)}"


def _refuse_two_loops(subject: Subject, member: int, run: ScheduleRun) -> None:
    """Refuse what can't work: each run has an event loop of its own."""
    if run.strangers:
        raise ScheduleError(
            f"{_words(subject, member)} uses something that belongs to the event loop around the "
            f"check: a nursery, an event, a lock or a channel (it woke or started "
            f"{', '.join(map(repr, run.strangers))}). Each run has a loop of its own; make such "
            "things in the function that is checked"
        ) from run.error


def _refuse_no_coroutine(outcome: Outcome) -> None:
    """Raise the error for a plain function: there is nothing to compare."""
    error = outcome.error
    if isinstance(error, TypeError) and "can't be used in 'await' expression" in str(error):
        raise TypeError(
            f"assert_isolated(agent_fn, ...) was to await what the function returned: {error}; "
            'a plain function is run in a thread, with backend="threads"'
        ) from error


def _refuse_only_errors(subject: Subject) -> None:
    outcomes: Sequence[Outcome] = list(subject.alone.values())
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    if len(errors) == len(outcomes):
        what_to_do = (
            "give inputs that the function can take, or a model that doesn't fail in a test"
        )
        if starts_a_loop(errors[0]):
            what_to_do = (
                f"the function is run inside of {subject.backend} already: let it await what it "
                f"gives to {subject.backend}.run"
            )
        if was_refused_by_loop(errors[0]):
            what_to_do = (
                "it uses an event, a lock or a channel of the event loop around the check; make "
                "such things in the function"
            )
        raise ValueError(
            f"every run failed alone, {subject.name_of(0)} with {errors_in_words(errors[0])}, so "
            f"there is nothing to compare; {what_to_do}"
        ) from errors[0]


def _words(subject: Subject, member: int) -> str:
    return f"{subject.name_of(member)} (input {repr_of(subject.inputs[member])})"
