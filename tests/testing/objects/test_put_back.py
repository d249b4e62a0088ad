"""Whatever the runs do, everything is as it was: contents and identities."""

import contextlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import trio
import trio.lowlevel
from hypothesis import given

from harness.errors import ScheduleError
from harness.testing import assert_isolated
from harness.testing.objects._kinds import kind_of
from harness.testing.objects._parts import MappingPart
from harness.testing.objects._places import Place
from harness.testing.objects._reach import Reached
from harness.testing.objects._shared_state import SharedState
from tests.testing.isolation import kinds

pytestmark = pytest.mark.slow

KEYS = st.sampled_from("abc")
PLACE = Place("here")


@pytest.mark.parametrize("name", kinds.KINDS)
async def test_all_is_as_it_was_after_a_failure(name: str) -> None:
    agent = getattr(kinds, name)
    reached = Reached()
    reached.add(PLACE, agent)
    before = SharedState(reached)
    with contextlib.suppress(ScheduleError):
        await assert_isolated(agent, kinds.INPUTS, schedules=5)
    if name != "counter":  # Another counter hangs there, which goes on from the same number.
        assert [suspect.path for suspect in before.left_behind()] == []


async def test_and_after_a_cancel() -> None:
    seen: list[str] = []
    asked = 0

    async def agent(text: str) -> str:
        seen.append(text)
        await trio.lowlevel.checkpoint()
        return text

    def equal(one: str, other: str) -> bool:
        nonlocal asked
        asked += 1
        if asked == 20:
            trio.from_thread.run_sync(scope.cancel)
        return one == other

    with trio.CancelScope() as scope:
        await assert_isolated(agent, ["a", "b"], equal=equal)
    assert scope.cancelled_caught
    assert seen == []
    assert asked < 40


@st.composite
def mappings(draw: st.DrawFn) -> dict[str, Any]:
    classes: list[Callable[[], Any]] = [dict, OrderedDict, Counter, lambda: defaultdict(int)]
    cls = draw(st.sampled_from(classes))
    mapping: dict[str, Any] = cls()
    mapping.update(draw(st.dictionaries(KEYS, st.integers(0, 3))))
    return mapping


@given(mapping=mappings(), changes=st.lists(st.tuples(KEYS, st.none() | st.integers(0, 3))))
def test_a_mapping(mapping: dict[str, Any], changes: list[tuple[str, int | None]]) -> None:
    before = dict(mapping)
    order = list(mapping)
    part = MappingPart(PLACE, mapping)
    taken = part.take()
    for key, value in changes:
        if value is None:
            mapping.pop(key, None)
        else:
            mapping[key] = value
    changed = part.changed(taken, part.take())
    assert bool(changed) == (dict(mapping) != before or list(mapping) != order)
    part.put(taken)
    assert dict(mapping) == before
    assert list(mapping) == order
    assert part.changed(taken, part.take()) == ()


@given(
    items=st.lists(st.integers(0, 3)),
    cls=st.sampled_from([list, deque, set, bytearray]),
    changed_to=st.lists(st.integers(0, 3)),
)
def test_a_container(items: list[int], cls: Any, changed_to: list[int]) -> None:
    container = cls(items)
    kind = kind_of(cls)
    assert kind is not None
    assert kind.part is not None
    part = kind.part(PLACE, container)
    taken = part.take()
    container.clear()
    getattr(container, "update" if cls is set else "extend")(changed_to)
    assert bool(part.changed(taken, part.take())) == (container != cls(items))
    part.put(taken)
    assert container == cls(items)
    assert part.thing is container


def test_an_object_that_has_lost_all_its_attributes() -> None:
    """They were set in a dict that nobody had, so a proof failed where runs had none at first."""

    class Desk:
        ticket: str

    desk = Desk()
    desk.ticket = "a"
    reached = Reached()
    reached.add(PLACE, desk)
    state = SharedState(reached)
    del desk.ticket
    state.put_back()
    assert desk.ticket == "a"


async def test_what_can_not_be_put_back_is_listed() -> None:
    numbers = iter(range(1_000_000))

    async def agent(text: str) -> bool:
        await trio.lowlevel.checkpoint()
        return next(numbers) >= 0

    seen = await assert_isolated(agent, ["a", "b"], schedules=5)
    assert seen.not_put_back == (
        "numbers (local of test_what_can_not_be_put_back_is_listed) (builtins.range_iterator)",
    )


async def test_what_a_run_leaves_behind_without_harm_is_returned() -> None:
    log: list[str] = []

    async def agent(text: str) -> str:
        await trio.lowlevel.checkpoint()
        log.append(text)
        return text

    seen = await assert_isolated(agent, ["a", "b"], schedules=5)
    function = "test_what_a_run_leaves_behind_without_harm_is_returned"
    assert seen.outliving == (f"log (local of {function})",)
