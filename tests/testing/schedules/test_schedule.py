"""A schedule is a value: it prints as a short string, and the string is the schedule."""

import pytest
import trio.lowlevel
from hypothesis import given
from hypothesis import strategies as st

from harness.testing import Fault, Schedule, run_schedule
from harness.testing.schedules._schedule import Marks

FAULTS = st.builds(
    Fault,
    st.integers(0, 9),
    st.integers(1, 99),
    st.sampled_from(["cancel", "cancel_waking", "fail", "delay"]),
)
SCHEDULES = st.builds(
    Schedule,
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 5)), max_size=6),
    st.lists(FAULTS, max_size=3),
)


@given(SCHEDULES)
def test_a_schedule_is_what_its_string_says(schedule: Schedule) -> None:
    assert Schedule.parse(str(schedule)) == schedule
    marks = Marks(tuple(range(len(schedule.deviations))), 99, 0xFFFF)
    marked = Schedule(schedule.deviations, schedule.faults, marks=marks)
    assert Schedule.parse(f"  {marked}\n").marks == marks
    assert hash(marked) == hash(schedule), "what an earlier run saw is not part of the value"


@given(SCHEDULES)
def test_choices_are_the_deviations_by_their_place(schedule: Schedule) -> None:
    again = Schedule.of_choices(schedule.choices().items(), schedule.faults)
    assert again.choices() == schedule.choices()
    assert again.switches == schedule.switches == len(again.deviations)


def test_a_replay_string_is_short_and_safe_to_paste() -> None:
    schedule = Schedule(((4, 1), (11, 2)), (Fault(1, 3),), marks=Marks((1, 2), 57, 3))
    assert str(schedule) == "h1:4x1~0001,11x2~0002:c1@3:57~0003"
    assert str(Schedule()) == "h1:-:-:-"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a replay string"),
        ("nonsense", "not a replay string"),
        ("h1:4x1:-", "not a replay string"),
        ("h2:4x1:-:-", "version h2"),
        ("h1:4y1:-:-", "'4y1' isn't a deviation"),
        ("h1:-:q1@3:-", "'q1@3' isn't a fault"),
        ("h1:4x1:-:57~0003", "cut or was changed"),
        ("h1:-:-:57", "cut or was changed"),
        ("h1:-:c1@0:-", "at least 1"),
    ],
)
def test_a_string_that_is_none_says_what_is_wrong_with_it(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Schedule.parse(text)


def test_wrong_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="pair"):
        Schedule(((1, -1),))
    with pytest.raises(ValueError, match="one of cancel"):
        Fault(1, 1, "explode")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be an int"):
        Fault(True, 1)
    with pytest.raises(TypeError, match="replay string"):
        Schedule.parse(None)  # type: ignore[arg-type]


def test_a_number_is_no_schedule() -> None:
    with pytest.raises(TypeError, match="a replay string was expected, not 7"):
        run_schedule(trio.lowlevel.checkpoint, 7)  # type: ignore[arg-type]
