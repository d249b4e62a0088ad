"""Find what a test can reach besides its own locals, to put it back before every schedule.

The variables of the function around the test, and the lists, dicts and sets in them, are left as
they are. There a test keeps its notes about all schedules, such as which orders it has seen.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

from harness.testing.objects import Place, Reached, SharedState, place_of_definition

_NOT_THE_TESTS_OWN = ("trio", "outcome", "pytest", "_pytest", "anyio", "asyncio")
"""Packages whose objects a fixture may hand to a test, and which nobody should put back."""


def state_of(test: Callable[..., Any], arguments: Iterable[Any]) -> SharedState:
    """Return what a test shares with its other runs, as it is now.

    Args:
      test: The test: its globals, closure and defaults are walked, and on from there.
      arguments: What it is called with: fixtures.
    """
    reached = Reached()
    function = inspect.unwrap(test)
    if inspect.ismethod(function):
        reached.add(Place("self"), function.__self__)
        function = function.__func__
    notes: set[int] = set()
    if inspect.isfunction(function):
        reached.add(place_of_definition(function), function)
        notes = _notes(function)
    else:  # A partial, or a callable object.
        reached.add(Place("test"), function)
    for number, value in enumerate(arguments):
        if type(value).__module__.partition(".")[0] not in _NOT_THE_TESTS_OWN:
            reached.add(Place("fixtures").item(number), value)
    reached.parts = [part for part in reached.parts if id(part.thing) not in notes]
    state = SharedState(reached)
    state.follow_the_rest(apart_from=notes)
    return state


def _notes(test: FunctionType) -> set[int]:
    """Return the ids of the variables that a test closes over, and of plain containers in them."""
    notes: set[int] = set()
    for cell in test.__closure__ or ():
        notes.add(id(cell))
        try:
            held = cell.cell_contents
        except ValueError:
            continue  # It gets its value later.
        if isinstance(held, list | dict | set | deque):
            notes.add(id(held))
    return notes
