"""What is pickled comes back, whatever errors are in it."""

from __future__ import annotations

import copy
import inspect
import pickle
import threading
from typing import Any

import pytest
import trio

import harness
from harness import errors
from harness.errors import FanOutError, JournaledError


class StatusError(Exception):
    """Like many clients' errors: its constructor wants what isn't in `args`."""

    def __init__(self, *, response: int) -> None:
        super().__init__(f"status {response}")
        self.response = response


class CodeError(Exception):
    """Its pickle can be read back, as an error that says something else."""

    def __init__(self, code: int | str) -> None:
        super().__init__(f"code {code}")


class LockedError(Exception):
    """Holds what can't be pickled."""

    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


ODD: list[tuple[Any, str]] = [
    (lambda: StatusError(response=500), "StatusError: status 500"),
    (lambda: CodeError(7), "CodeError: code 7"),
    (LockedError, "LockedError: locked"),
    (
        lambda: ExceptionGroup("both", [LockedError(), ValueError()]),
        "ExceptionGroup: both (2 sub-exceptions)",
    ),
]


async def outcome_of(make: Any) -> FanOutError[Exception]:
    async def body(item: int) -> int:
        await trio.lowlevel.checkpoint()
        if item == 1:
            error = make()
            error.add_note("asked twice")
            raise error
        if item == 2:
            raise ValueError("plain")
        return item

    with pytest.raises(FanOutError) as raised:
        await harness.fan_out(body, range(3), name="job")
    return raised.value


@pytest.mark.parametrize(("make", "words"), ODD, ids=[words for _, words in ODD])
async def test_an_entry_that_cannot_be_unpickled_becomes_a_record(make: Any, words: str) -> None:
    """One such error made the results of a whole night unreadable."""
    error = await outcome_of(make)
    again = pickle.loads(pickle.dumps(error))
    record = again.results[1].error
    assert isinstance(record, JournaledError)
    assert str(record) == words
    assert "asked twice" in record.__notes__
    assert "in run job/1" in record.__notes__
    assert record.traceback is not None
    assert "raise error" in record.traceback
    assert "harness/" not in record.traceback
    assert isinstance(again.results[2].error, ValueError)
    assert again.results[0].value == 0
    assert str(again) == str(error)
    assert pickle.loads(pickle.dumps(again)).results[1].error.traceback == record.traceback


async def test_entries_are_the_errors_of_their_results_after_a_pickle_too() -> None:
    for make in (ODD[0][0], lambda: ValueError("plain too")):
        error = await outcome_of(make)
        for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
            assert [id(entry) for entry in again.exceptions] == [
                id(result.error) for result in again.results.failed
            ]


async def test_a_class_that_the_reading_process_lacks_costs_one_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class GoneError(Exception):
        pass

    GoneError.__qualname__ = "GoneError"
    monkeypatch.setitem(globals(), "GoneError", GoneError)
    pickled = pickle.dumps((await outcome_of(lambda: GoneError("gone"))).results)
    assert isinstance(pickle.loads(pickled)[1].error, GoneError)
    monkeypatch.delitem(globals(), "GoneError")
    assert str(pickle.loads(pickled)[1].error) == "GoneError: gone"


async def test_a_copy_keeps_the_errors_themselves() -> None:
    results = (await outcome_of(ODD[0][0])).results
    assert copy.copy(results[1]).error is results[1].error
    assert type(copy.deepcopy(results)[1].error) is StatusError


FACTS: dict[str, tuple[Any, ...]] = {
    "ApprovalPending": (
        {"k": {"waiting": [{"id": "1", "tool": "pay", "arguments": {}}], "answers": {}}},
        "k",
    ),
    "FanOutError": ("m", [ValueError(1)]),
    "JournaledError": ("KeyError", "'x'", "Traceback"),
}


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, Exception) and kind.__module__ == errors.__name__
    ],
)
def test_every_error_of_harness_pickles(kind: type[Exception]) -> None:
    error = kind(*FACTS.get(kind.__name__, ("what happened",)))
    error.add_note("a note")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert repr(vars(again)) == repr(vars(error))
