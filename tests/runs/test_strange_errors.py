"""The body's own error leaves the block, whatever it is like: a note on it is a courtesy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio

import harness


@dataclasses.dataclass(frozen=True)
class FrozenDataclassError(Exception):
    code: int


@attrs.frozen
class FrozenAttrsError(Exception):
    code: int


class ReadOnlyError(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise TypeError("no attributes")


class RaisingNotesError(Exception):
    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise RuntimeError("asked for notes")


def noted(notes: object) -> Callable[[], Exception]:
    def make() -> Exception:
        error: Any = OSError("noted")
        error.__notes__ = notes
        return error  # type: ignore[no-any-return]

    return make


STRANGE: dict[str, Callable[[], Exception]] = {
    "frozen dataclass": lambda: FrozenDataclassError(5),
    "frozen attrs class": lambda: FrozenAttrsError(5),
    "read-only": ReadOnlyError,
    "raising notes": RaisingNotesError,
    "notes are None": noted(None),
    "notes are numbers": noted([1]),
    "notes are a string": noted("abc"),
}


@pytest.mark.parametrize("kind", STRANGE)
async def test_a_strange_error_of_the_body_comes_out_as_itself(kind: str) -> None:
    """Noting the run on it raised, and the real error was only the context of that one."""
    error = STRANGE[kind]()
    caught: Exception | None = None
    try:
        async with harness.open_run("job") as run:
            raise error
    except Exception as out:  # Not pytest.raises, which such an error can break as well.
        caught = out
    assert caught is error
    assert run.status == "failed"


@pytest.mark.parametrize("kind", STRANGE)
async def test_a_strange_error_of_a_task_comes_out_as_itself(kind: str) -> None:
    error = STRANGE[kind]()

    async def fails() -> None:
        await trio.lowlevel.checkpoint()
        raise error

    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            async with harness.open_run("job") as run:
                harness.start_soon(nursery, fails, run=run)
    assert caught.value.exceptions[0] is error
