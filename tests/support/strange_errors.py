"""Errors that do something odd when given notes, asked for them, or put into words."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import attrs


@dataclasses.dataclass(frozen=True)
class FrozenDataclassError(Exception):
    """Refuses every attribute, ``__traceback__``, ``__context__`` and notes included."""

    code: int


@attrs.frozen
class FrozenAttrsError(Exception):
    """The same from attrs, with slots."""

    code: int


class ReadOnlyError(Exception):
    """Refuses with an error that no library would expect."""

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse."""
        raise TypeError("no attributes")


class RaisingNotesError(Exception):
    """Fails when it is asked for its notes."""

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        """Fail."""
        raise RuntimeError("asked for notes")


class RaisingTextError(Exception):
    """Can't be put into words."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError("asked for text")

    def __repr__(self) -> str:
        """Fail."""
        raise RuntimeError("asked for repr")


def noted(notes: object) -> Callable[[], Exception]:
    """Return what makes an error that holds ``notes``, which need be no list of strings."""

    def make() -> Exception:
        error: Any = OSError("noted")
        error.__notes__ = notes
        return error  # type: ignore[no-any-return]

    return make


REFUSING: dict[str, Callable[[], Exception]] = {
    "frozen dataclass": lambda: FrozenDataclassError(5),
    "frozen attrs class": lambda: FrozenAttrsError(5),
    "read-only": ReadOnlyError,
}
"""Those that nothing can be noted on."""

WITH_TEXT: dict[str, Callable[[], Exception]] = {
    **REFUSING,
    "raising notes": RaisingNotesError,
    "notes are None": noted(None),
    "notes are numbers": noted([1]),
    "notes are a string": noted("abc"),
    "notes are a tuple": noted((object(),)),
}
"""Those that trio can put into words, as it does with the errors of a nursery's tasks."""

STRANGE: dict[str, Callable[[], Exception]] = {**WITH_TEXT, "raising text": RaisingTextError}
