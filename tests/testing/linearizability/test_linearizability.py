"""Calls that overlap give what some order of them gives; wrong objects are found and explained."""

from __future__ import annotations

import itertools
import re
from collections.abc import Hashable

import attrs
import pytest
import trio

from harness.errors import ScheduleError
from harness.testing import assert_linearizable
from harness.testing._outcomes import Comparison, Outcome
from harness.testing.linearizability._histories import Call, is_linearizable
from tests.scale import scaled
from tests.testing.linearizability.things import THINGS, Cache, Counter, LockedCounter, Thing

SEEDS = scaled(2, full=30)
RIGHT_SCHEDULES = scaled(60, full=1_000)

each_thing = pytest.mark.parametrize("thing", THINGS.values(), ids=THINGS.keys())


@pytest.mark.slow
@each_thing
def test_a_wrong_one_is_found_from_every_seed_and_its_failure_replayed(thing: Thing) -> None:
    for seed in range(SEEDS):
        operations = thing.operations(thing.wrong)
        with pytest.raises(ScheduleError, match="is not linearizable") as caught:
            assert_linearizable(thing.wrong, operations, seed=seed)
        assert thing.says in str(caught.value).replace("'a', 1", "'a', 2")
        calls = len(re.findall(r"^  task . calls", str(caught.value), re.MULTILINE))
        assert calls <= 3
        replay = caught.value.schedule
        with pytest.raises(ScheduleError, match="is not linearizable"):
            assert_linearizable(thing.wrong, operations, schedule=replay)


@pytest.mark.slow
@each_thing
def test_a_right_one_raises_no_alarm(thing: Thing) -> None:
    operations = thing.operations(thing.right)
    assert_linearizable(thing.right, operations, schedules=RIGHT_SCHEDULES)


def test_a_report_has_the_calls_what_they_give_in_turn_and_the_steps() -> None:
    with pytest.raises(ScheduleError) as caught:
        assert_linearizable(Cache, [(Cache.add, "a", 1)])
    assert str(caught.value).splitlines() == [
        "Cache is not linearizable: called at once, it gives what no order of the calls gives "
        "(schedule 1)",
        "  task 1 calls add('a', 1)",
        "  task 2 calls add('a', 1)",
        "  task 2 gets True from add('a', 1)",
        "  task 1 gets True from add('a', 1)",
        "one after the other, the same calls give:",
        "  add('a', 1) gives True; then add('a', 1) gives False",
        "in this order of steps:",
        "  'task 1' goes on for 1 step, to Cache.add (things.py:72)",
        "  'task 2' goes on for 2 steps, to its end",
        "  'task 1' goes on for 1 step, to its end",
        "  'main' goes on for 1 step, to its end",
        f"replay: assert_linearizable(Cache, operations, schedule={caught.value.schedule!r})",
    ]


async def test_it_can_be_called_inside_a_loop() -> None:
    await trio.lowlevel.checkpoint()
    assert_linearizable(LockedCounter, [LockedCounter.increase], schedules=5)


def test_bad_input_is_refused() -> None:
    with pytest.raises(TypeError, match="takes a class or a function, not 1"):
        assert_linearizable(1, [])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got no operations"):
        assert_linearizable(Counter, [])
    with pytest.raises(TypeError, match=r"an operation is a function of the object.*not 'read'"):
        assert_linearizable(Counter, ["read"])  # type: ignore[list-item]
    for schedule, why in (("h1:-:-:-", "no replay string"), ("l1:0/7:h1:-:-:-", "only 1 here")):
        with pytest.raises(ValueError, match=why):
            assert_linearizable(Counter, [Counter.read], schedule=schedule)
    numbers = itertools.count()
    with pytest.raises(ValueError, match="only what is deterministic can be checked"):
        assert_linearizable(Counter, [lambda counter: next(numbers)])


# The search itself, on histories written by hand -------------------------------------------------


@attrs.define(eq=False)
class Register:
    """Writes 1 or 2, reads what was written last, and takes it: waiting if there is nothing."""

    asked: int = 0

    def outcome(self, order: tuple[int, ...]) -> Outcome | None:
        self.asked += 1
        value = 0
        outcome: Outcome | None = None
        for operation in order:
            if operation in (1, 2):
                value, outcome = operation, Outcome("returned")
            elif operation == 0:
                outcome = Outcome("returned", value)
            else:
                outcome, value = Outcome("returned", value) if value else None, 0
        return outcome

    def state(self, order: tuple[int, ...]) -> Hashable:
        return next((one for one in reversed(order) if one), 0)


def history(*calls: tuple[int, int, int | None, int | None]) -> list[Call]:
    """Return calls, each by operation, beginning, end and what it returned."""
    return [
        Call(number, operation, began, ended, None if ended is None else Outcome("returned", gave))
        for number, (operation, began, ended, gave) in enumerate(calls)
    ]


READ, ONE, TWO, TAKE = range(4)


@pytest.mark.parametrize(
    ("calls", "fine"),
    [
        pytest.param([(ONE, 1, 2, None), (READ, 3, 4, 1)], True, id="in turn"),
        pytest.param([(ONE, 1, 2, None), (READ, 3, 4, 0)], False, id="a stale read"),
        pytest.param([(ONE, 1, 4, None), (READ, 2, 3, 0)], True, id="overlapping, before"),
        pytest.param([(ONE, 1, 4, None), (READ, 2, 3, 1)], True, id="overlapping, after"),
        pytest.param(
            [(ONE, 1, 8, None), (READ, 2, 3, 1), (READ, 4, 5, 0)], False, id="there and back"
        ),
        pytest.param(
            [(ONE, 1, 8, None), (TWO, 2, 7, None), (READ, 3, 4, 2), (READ, 5, 6, 1)],
            True,
            id="written the other way round",
        ),
        pytest.param([(TAKE, 1, None, None)], True, id="waits for what never comes"),
        pytest.param([(TAKE, 1, None, None), (ONE, 2, 3, None)], False, id="waits for what came"),
        pytest.param(
            [(TAKE, 1, None, None), (TAKE, 2, 5, 1), (ONE, 3, 4, None)], True, id="one waits on"
        ),
    ],
)
def test_histories_are_judged_as_the_definition_says(
    calls: list[tuple[int, int, int | None, int | None]], fine: bool
) -> None:
    assert is_linearizable(history(*calls), Register(), Comparison(None).same) is fine


def test_what_was_tried_before_is_not_tried_again() -> None:
    """Eight writes have 40,320 orders, and leave one of a few states."""
    register = Register()
    calls = history(*((ONE, 1, 10, None) for _ in range(8)), (READ, 11, 12, 2))
    assert not is_linearizable(calls, register, Comparison(None).same)
    assert register.asked < 3_000
