"""What is known of kinds of objects and of states of the process is in one place."""

import os
from collections.abc import Callable
from contextlib import chdir
from os import fchdir
from queue import SimpleQueue
from typing import Any
from warnings import resetwarnings

import pytest

from harness.testing.objects import Reached, SharedState, _kinds, place_of_definition

QUEUE: SimpleQueue[str] = SimpleQueue()


def uses_a_queue() -> None:
    QUEUE.put("it")


def goes_elsewhere(directory: int) -> None:
    fchdir(directory)


def goes_there_and_back(directory: str) -> None:
    with chdir(directory):
        pass


def shows_every_warning() -> None:
    resetwarnings()


def walk_from(function: Callable[..., Any]) -> Reached:
    reached = Reached()
    reached.add(place_of_definition(function), function)
    return reached


def _put(queue: SimpleQueue[str], held: list[str]) -> None:
    while not queue.empty():
        queue.get()
    for one in held:
        queue.put(one)


def _take(queue: SimpleQueue[str]) -> list[str]:
    held = [queue.get() for _ in range(queue.qsize())]
    _put(queue, held)
    return held


def test_an_entry_is_all_that_another_kind_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [str(one) for one in walk_from(uses_a_queue).opaque] == [
        f"{__name__}.QUEUE (_queue.SimpleQueue)"
    ]
    entry = _kinds.Kind((SimpleQueue,), part=_kinds._whole(_take, _put, "queue", by_value=True))
    monkeypatch.setattr(_kinds, "KINDS", (*_kinds.KINDS, entry))
    reached = walk_from(uses_a_queue)
    assert reached.opaque == []
    state = SharedState(reached)
    uses_a_queue()
    (left,) = state.left_behind()
    assert (left.path, left.part.kind) == (f"{__name__}.QUEUE", "queue")
    state.put_back()
    assert QUEUE.empty()


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        pytest.param(goes_elsewhere, "working directory", id="fchdir"),
        pytest.param(goes_there_and_back, "working directory", id="contextlib"),
        pytest.param(shows_every_warning, "filters of warnings", id="resetwarnings"),
    ],
)
def test_a_function_of_pythons_leads_to_what_it_sets(
    function: Callable[..., Any], kind: str
) -> None:
    assert kind in {part.kind for part in walk_from(function).parts}


def test_a_library_hands_out_the_environment_under_its_own_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pytest, "settings", os.environ, raising=False)

    def reads_it() -> Any:
        return pytest.settings  # type: ignore[attr-defined]

    assert "environment" in {part.kind for part in walk_from(reads_it).parts}
